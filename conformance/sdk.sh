#!/usr/bin/env bash
# Calls every tool with the official TypeScript and Python SDKs, with calls that fail and, where that is cheap, calls
# that succeed: their validators must accept every result, and kind, hint and trace id of each error must arrive.
# Usage: conformance/sdk.sh BINARY
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath -- "${1:?usage: conformance/sdk.sh BINARY}") || exit 2
[ -x "$binary" ] || { echo "no such binary: $binary" >&2; exit 2; }
python_sdk=1.30.0
venv=$here/../.node/python-sdk

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
trap 'exit 130' INT TERM
cat >"$stage/config.toml" <<'END'
[mcp.greet]
command = "/bin/echo"
args = ["hello", "{name}"]
description = "Greets."
requires_approval = false
input_schema = { type = "object", properties = { name = { type = "string" } }, required = ["name"], additionalProperties = false }
END

# check NAME RUNNER...: runs one client against its own server, with an empty environment except for a PATH without Codex.
check() {
    local name=$1 at=$stage/$1
    shift
    mkdir -p "$at/home" "$at/workspace"
    env -i PATH=/usr/bin:/bin HOME="$at/home" timeout 120 "$@" "$here/sdk-calls.json" "$at/workspace" \
        "$binary" serve --root "$at/root" --workspace "$at/workspace" --config "$stage/config.toml" --tools all
}

code=0
installed=$here/node_modules/.installed
if ! command -v npm >/dev/null; then
    echo 'sdk: SKIPPED: npm is not installed; the TypeScript SDK was not checked'
elif ! cmp -s "$here/package-lock.json" "$installed" &&
    ! { npm ci --prefix "$here" --no-audit --no-fund --loglevel=error && cp "$here/package-lock.json" "$installed"; }; then
    echo 'sdk: FAILED: cannot install the TypeScript SDK' >&2
    code=1
else
    check typescript "$here/node_modules/node/bin/node" "$here/sdk.mjs" || code=1
fi

if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    echo 'sdk: SKIPPED: python3 with venv is not installed; the Python SDK was not checked'
elif [ "$(cat "$venv/installed" 2>/dev/null)" != "$python_sdk" ] &&
    ! { rm -rf "$venv" && python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check "mcp==$python_sdk" &&
        echo "$python_sdk" >"$venv/installed"; }; then
    echo 'sdk: FAILED: cannot install the Python SDK' >&2
    code=1
else
    check python "$venv/bin/python" "$here/sdk.py" || code=1
fi
exit $code
