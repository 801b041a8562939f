#!/usr/bin/env bash
# Lists and calls tools with the MCP Inspector's command line, over stdio, HTTP and SSE, in each protocol era that the
# transport supports. Usage: conformance/inspector.sh BINARY
set -euo pipefail

binary=$(realpath "${1:?usage: conformance/inspector.sh BINARY}")
here=$(cd "$(dirname "$0")/.." && pwd)
tools=$here/.node/inspector
inspector=2.12.0

# The Inspector needs a newer Node than distributions ship; npm provides it.
if [ "$(cat "$tools/installed" 2>/dev/null)" != "$inspector" ]; then
    echo "inspector: installing @modelcontextprotocol/inspector@$inspector under .node/"
    mkdir -p "$tools"
    npm install --prefix "$tools" --no-audit --no-fund --no-progress --loglevel error \
        node@24 "@modelcontextprotocol/inspector@$inspector" >/dev/null
    echo "$inspector" >"$tools/installed"
fi
export PATH=$tools/node_modules/node/bin:$PATH

stage=$(mktemp -d)
server=
finish() {
    if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; fi
    rm -rf "$stage"
}
trap finish EXIT
mkdir "$stage/home" "$stage/workspace"
export HOME=$stage/home MCP_INSPECTOR_SECRET_STORE=memory

inspect() {
    timeout 60 node "$tools/node_modules/@modelcontextprotocol/inspector/$entry" --cli "$@" 2>"$stage/err"
}
entry=$(node -p "const b = require('$tools/node_modules/@modelcontextprotocol/inspector/package.json').bin; b['mcp-inspector']")

count=0
# check NAME EXPECTED_TEXT EXPECTED_EXIT ARGS...
check() {
    local name=$1 wanted=$2 wanted_exit=$3 got code=0
    shift 3
    got=$(inspect "$@") || code=$?
    if [ "$code" != "$wanted_exit" ] || ! grep -qF -- "$wanted" <<<"$got$(cat "$stage/err")"; then
        echo "inspector: FAILED: $name (exit $code, wanted $wanted_exit and: $wanted)" >&2
        printf '%s\n' "$got" >&2
        cat "$stage/err" >&2
        exit 1
    fi
    count=$((count + 1))
    echo "inspector: ok: $name"
}

# scenario NAME TARGET...: makes the same calls on every transport; TARGET... says how to reach the server.
scenario() {
    local name=$1
    shift
    check "$name: list" '"file.read"' 0 "$@" --method tools/list
    check "$name: write" '"etag"' 0 "$@" --method tools/call --tool-name file.write --tool-arg path=note.txt --tool-arg "content=by $name"
    check "$name: read" "by $name" 0 "$@" --method tools/call --tool-name file.read --tool-arg path=note.txt
    # 5: the Inspector recognized the tool's own error.
    check "$name: outside" outside_workspace 5 "$@" --method tools/call --tool-name file.read --tool-arg path=../home
    check "$name: protected" '"protected"' 5 "$@" --method tools/call --tool-name file.write --tool-arg path=.codex/x --tool-arg content=x
    check "$name: sandboxed" 'Read-only file system' 0 "$@" --method tools/call --tool-name shell.exec --tool-arg "command=echo hi; touch /etc/x"
}

serve=(serve --root "$stage/root" --workspace "$stage/workspace")
scenario stdio "$binary" "${serve[@]}"

"$binary" "${serve[@]}" --http 127.0.0.1:0 2>"$stage/log" &
server=$!
for _ in $(seq 100); do
    url=$(sed -n 's,.*listening on \(http://[^ ]*\)/mcp.*,\1,p' "$stage/log")
    [ -n "$url" ] && break
    kill -0 "$server" || { cat "$stage/log" >&2; exit 1; }
    sleep 0.1
done
scenario http "$url/mcp" --transport http --protocol-era legacy --format json
scenario http-2026 "$url/mcp" --transport http --protocol-era modern --format json
scenario sse "$url/mcp/sse" --transport sse --format json
echo "inspector: $count/$count"
