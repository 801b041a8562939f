#!/usr/bin/env bash
# Calls tools of twelve real MCP servers through one ringfence server, each in its sandbox without network. The servers
# come from npm and PyPI, pinned below, and are installed under .node/upstreams/.
# Usage: conformance/upstreams.sh BINARY
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath -- "${1:?usage: conformance/upstreams.sh BINARY}")
[ -x "$binary" ] || { echo "no such binary: $binary" >&2; exit 2; }
packages=$(realpath -m -- "$here/../.node/upstreams")
# A sandbox has a /tmp of its own, so a server could not read its own program there.
case $packages/ in
/tmp/* | /var/tmp/* | /dev/shm/*) packages=${XDG_CACHE_HOME:-$HOME/.cache}/ringfence-conformance/upstreams ;;
esac

npm_servers=(
    @modelcontextprotocol/server-everything@2026.8.31 @modelcontextprotocol/server-filesystem@2026.8.31
    @modelcontextprotocol/server-memory@2026.8.31 @modelcontextprotocol/server-sequential-thinking@2026.8.31
    @playwright/mcp@0.0.83 chrome-devtools-mcp@1.11.0 @upstash/context7-mcp@4.1.1 @notionhq/notion-mcp-server@2.5.2
)
python_servers=(mcp-server-fetch==2026.10.24 mcp-server-git==2026.10.19 mcp-server-time==2026.10.19)
# The last release of this one does not work with version 2 of the Python SDK.
sqlite_server=(mcp-server-sqlite==2025.4.25 'mcp<2')

wanted="${npm_servers[*]} ${python_servers[*]} ${sqlite_server[*]}"
if [ "$(cat "$packages/installed" 2>/dev/null)" != "$wanted" ]; then
    echo 'installing twelve MCP servers'
    rm -rf "$packages"
    mkdir -p "$packages"
    npm install --prefix "$packages" --no-audit --no-fund --loglevel=error "${npm_servers[@]}"
    for venv in python sqlite; do
        python3 -m venv "$packages/$venv"
    done
    "$packages/python/bin/pip" install --quiet --disable-pip-version-check "${python_servers[@]}"
    "$packages/sqlite/bin/pip" install --quiet --disable-pip-version-check "${sqlite_server[@]}"
    echo "$wanted" >"$packages/installed"
fi

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
trap 'exit 130' INT TERM
python3 "$here/upstreams.py" "$binary" "$packages" "$stage"
