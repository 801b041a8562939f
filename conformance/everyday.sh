#!/usr/bin/env bash
# Runs real tools that write to protected paths: create-vite, npm with husky, pre-commit. What is allowed works; what is
# not fails with a hint. Usage: conformance/everyday.sh BINARY
set -euo pipefail

binary=$(realpath -- "${1:?usage: conformance/everyday.sh BINARY}")
here=$(cd "$(dirname "$0")" && pwd)
pre_commit=4.7.0
venv=$here/../.node/pre-commit

command -v npm >/dev/null || { echo 'everyday: SKIPPED: npm is not installed'; exit 0; }
python3 -c 'import ensurepip, venv' 2>/dev/null ||
    { echo 'everyday: SKIPPED: python3 with venv is not installed'; exit 0; }
installed=$here/node_modules/.installed
cmp -s "$here/package-lock.json" "$installed" ||
    { npm ci --prefix "$here" --no-audit --no-fund --loglevel=error && cp "$here/package-lock.json" "$installed"; }
if [ "$(cat "$venv/installed" 2>/dev/null)" != "$pre_commit" ]; then
    rm -rf "$venv" && python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "pre-commit==$pre_commit"
    echo "$pre_commit" >"$venv/installed"
fi

# A clone of this project may be below /tmp, where the sandbox sees only the workspace: put everything into the workspace.
stage=$(mktemp -d -p "$(realpath "$here/../.node")" everyday.XXXXXX)
trap 'rm -rf "$stage"' EXIT
trap 'exit 130' INT TERM
tools=$stage/workspace/tools
mkdir -p "$stage/home" "$tools"
# A copy, not a hard link: through a link, commands in the sandbox could write to the original file.
cp "$here/node_modules/node/bin/node" "$tools/node"
cp -r "$here/node_modules/create-vite" "$tools/create-vite"
cp -r "$venv"/lib/python3*/site-packages "$tools/python"
printf '#!/bin/sh\nPYTHONPATH=%s/python exec python3 -m pre_commit "$@"\n' "$tools" >"$tools/pre-commit"
chmod +x "$tools/pre-commit"
tarball=$(npm pack --silent --pack-destination "$tools" "$here/node_modules/husky")
export HOME=$stage/home PATH=$tools:/usr/bin:/bin npm_config_update_notifier=false
export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=me GIT_AUTHOR_EMAIL=me@example.org
export GIT_COMMITTER_NAME=me GIT_COMMITTER_EMAIL=me@example.org
cd "$stage/workspace"
git init -q -b main .
echo tools >.git/info/exclude

count=0 code=0
# check NAME WANTED_EXIT WANTED_TEXT [OPTION...] -- COMMAND...
check() {
    local name=$1 wanted_exit=$2 wanted=$3 got=0 said
    shift 3
    said=$(timeout 120 "$binary" sandbox --root "$stage/root" "$@" 2>&1 </dev/null) || got=$?
    if [ $got != "$wanted_exit" ] || [[ $said != *"$wanted"* ]]; then
        printf 'FAIL  %s: exit %s instead of %s, or without %q:\n%s\n' "$name" "$got" "$wanted_exit" "$wanted" "$said"
        code=1
    else
        echo "ok    $name"
    fi
    count=$((count + 1))
}

check 'create-vite makes a project' 0 '' -- node tools/create-vite/index.js app --template vue-ts --no-interactive
check 'with its editor settings' 0 extensions.json -- ls app/.vscode
check 'other editor files in the root can be written' 0 '' -- sh -c 'echo "{}" > .vscode/launch.json'

# A project that installs husky's hooks whenever its packages are installed, as husky's guide recommends.
mkdir .husky && echo 'npm test' >.husky/pre-commit
printf '{"name": "project", "version": "1.0.0", "scripts": {"prepare": "husky"}}\n' >package.json
npm install --silent --offline --ignore-scripts --package-lock-only --save-dev "./tools/$tarball"
check 'npm ci with husky' 0 'added 1 package' -- npm ci --offline --no-audit --no-fund
git config core.hooksPath .husky/_
check 'npm ci with husky, with its hooks enabled' 0 'added 1 package' -- npm ci --offline --no-audit --no-fund
check 'the hooks are unchanged' 0 'npm test' -- cat .husky/pre-commit
git config --unset core.hooksPath

echo 'repos: []' >.pre-commit-config.yaml
git add .pre-commit-config.yaml
check 'pre-commit runs' 0 '' -- pre-commit run --all-files
check 'pre-commit cannot install into the repository of the workspace' 3 'Read-only file system' -- pre-commit install
check 'unless the operator unprotects the hooks' 0 'installed at' --unprotect .git/hooks -- pre-commit install
check 'pre-commit can install into a repository that the run created' 0 'installed at' -- \
    sh -c 'git init -q made && cd made && cp ../.pre-commit-config.yaml . && pre-commit install'

echo "everyday: $count checks, exit $code"
exit $code
