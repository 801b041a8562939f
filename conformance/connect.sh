#!/usr/bin/env bash
# Has the real clients read back what `ringfence connect` wrote: Codex, Claude Code, Gemini CLI and opencode, each in an
# empty home. The client first makes its own config with its own command; a comment is added where it allows one; then
# it is connected, listed by the client, connected over HTTP, listed again, and disconnected.
# Usage: conformance/connect.sh BINARY [CLIENT...]
set -euo pipefail

binary=$(realpath "${1:?usage: conformance/connect.sh BINARY [CLIENT...]}")
shift
clients=("${@:-codex claude gemini opencode}")
here=$(cd "$(dirname "$0")/.." && pwd)
tools=$here/.node/connect
packages="@openai/codex@0.169.0 @anthropic-ai/claude-code@2.1.197 @google/gemini-cli@0.61.0 opencode-ai@1.18.33"

if [ "$(cat "$tools/installed" 2>/dev/null)" != "$packages" ]; then
    echo "connect: installing $packages under .node/"
    mkdir -p "$tools"
    # shellcheck disable=SC2086
    npm install --prefix "$tools" --save-exact --no-audit --no-fund --no-progress --loglevel error $packages >/dev/null
    # npm may be set up to run no scripts of packages; these two fetch nothing, they put the program in place.
    (cd "$tools/node_modules/@anthropic-ai/claude-code" && node install.cjs >/dev/null)
    (cd "$tools/node_modules/opencode-ai" && node postinstall.mjs >/dev/null)
    echo "$packages" >"$tools/installed"
fi

# Codex refuses a home below /tmp.
stage=$(mktemp -d "$tools/run.XXXXXX")
server=
finish() {
    if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; fi
    rm -rf "$stage"
}
trap finish EXIT
export PATH=$tools/node_modules/.bin:$PATH
export DISABLE_AUTOUPDATER=1 OPENCODE_DISABLE_AUTOUPDATE=1 CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 NO_COLOR=1
unset CODEX_HOME CLAUDE_CONFIG_DIR XDG_CONFIG_HOME XDG_STATE_HOME XDG_DATA_HOME XDG_CACHE_HOME GEMINI_CLI_HOME RINGFENCE_TOKEN

count=0
# has NAME TEXT PATTERN: fails unless the text matches the extended pattern.
has() {
    if ! grep -qE -- "$3" <<<"$2"; then
        printf 'connect: FAILED: %s: not found: %s\n%s\n' "$1" "$3" "$2" >&2
        exit 1
    fi
    count=$((count + 1))
    echo "connect: ok: $1"
}

lacks() {
    if grep -qE -- "$3" <<<"$2"; then
        printf 'connect: FAILED: %s: found: %s\n%s\n' "$1" "$3" "$2" >&2
        exit 1
    fi
    count=$((count + 1))
    echo "connect: ok: $1"
}

# The client's own command makes its config: an entry `other`, which is a server that can be started.
add_other() {
    case $1 in
        codex) codex mcp add other -- "$binary" serve ;;
        claude) claude mcp add -s user other -- "$binary" serve ;;
        gemini) gemini mcp add -s user other "$binary" serve ;;
        opencode) opencode mcp add other -- "$binary" serve ;;
    esac >"$stage/out" 2>&1 || { cat "$stage/out" >&2; exit 1; }
}

config_file() {
    case $1 in
        codex) echo "$HOME/.codex/config.toml" ;;
        claude) echo "$HOME/.claude.json" ;;
        gemini) echo "$HOME/.gemini/settings.json" ;;
        opencode) find "$HOME/.config/opencode" -maxdepth 1 -name 'opencode.json*' ! -name '*.bak' | sort | tail -1 ;;
    esac
}

list() {
    case $1 in
        codex) codex mcp list --json ;;
        *) "$1" mcp list ;;
    esac 2>&1 | sed 's/\x1b\[[0-9;]*m//g'
}

# What the list says of a server that it could start.
connected() {
    case $1 in
        codex) echo '"name": "ringfence"' ;;
        claude) echo 'ringfence: .*Connected' ;;
        gemini) echo 'ringfence: .*Connected' ;;
        opencode) echo 'ringfence.* connected' ;;
    esac
}

try_client() {
    local client=$1 file before
    export HOME=$stage/$client
    mkdir -p "$HOME/project"
    cd "$HOME/project"
    # Gemini CLI starts no server in a directory that is not trusted.
    if [ "$client" = gemini ]; then
        mkdir "$HOME/.gemini"
        printf '{"%s": "TRUST_FOLDER"}\n' "$HOME/project" >"$HOME/.gemini/trustedFolders.json"
    fi
    add_other "$client"
    file=$(config_file "$client")
    case $client in
        codex) sed -i '1i # a comment of the user' "$file" ;;
        gemini | opencode) sed -i '1i // a comment of the user' "$file" ;;
    esac
    cp "$file" "$stage/before"

    before=$(list "$client")
    has "$client: its own entry" "$before" other
    lacks "$client: not connected yet" "$before" "$(connected "$client")"
    "$binary" connect "$client" --yes >"$stage/out"
    has "$client: connect" "$(cat "$stage/out")" 'is connected'
    has "$client: read back" "$(list "$client")" "$(connected "$client")"
    has "$client: the other entry" "$(list "$client")" other
    if [ "$client" = codex ]; then
        has "codex: timeout, approval and variables" "$(list codex | tr -d ' \n')" '"name":"ringfence".*"env_vars":\["CODEX_HOME"\].*"tool_timeout_sec":600'
    fi
    [ "$client" = claude ] || has "$client: the comment" "$(cat "$file")" 'a comment of the user'
    has "$client: connect again" "$("$binary" connect "$client")" 'already connected'

    "$binary" connect "$client" --http "$url" --replace-shell --yes >"$stage/out"
    export RINGFENCE_TOKEN=not-checked
    has "$client: read back over HTTP" "$(list "$client")" "$(connected "$client")"
    has "$client: the address" "$(list "$client")" "$url"
    unset RINGFENCE_TOKEN

    "$binary" disconnect "$client" >"$stage/out"
    lacks "$client: disconnected" "$(list "$client")" "$(connected "$client")"
    has "$client: the other entry stays" "$(list "$client")" other
    # Claude Code writes its file whenever it runs; the others only when asked.
    [ "$client" = claude ] || has "$client: restored" "$(cmp "$stage/before" "$file" && echo same)" same
}

mkdir -p "$stage/serve/workspace"
HOME=$stage/serve "$binary" serve --http 127.0.0.1:0 --root "$stage/serve/root" --workspace "$stage/serve/workspace" 2>"$stage/log" &
server=$!
for _ in $(seq 100); do
    url=$(sed -n 's,.*listening on \(http://[^ ]*/mcp\).*,\1,p' "$stage/log")
    [ -n "$url" ] && break
    kill -0 "$server" || { cat "$stage/log" >&2; exit 1; }
    sleep 0.1
done

# shellcheck disable=SC2068
for client in ${clients[@]}; do
    try_client "$client"
done
echo "connect: $count/$count"
