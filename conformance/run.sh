#!/usr/bin/env bash
# Runs the official MCP conformance suite against a ringfence binary:
#
#   conformance/run.sh [target/debug/ringfence]
#
# First in full, with the fixtures the suite calls by name; then as shipped, where only scenarios that need a
# fixture may fail (shipped-*.yml). The suite is installed next to this file once and kept.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath -- "${1:-$here/../target/debug/ringfence}") || exit 2
[ -x "$binary" ] || { echo "no such binary: $binary" >&2; exit 2; }

scratch=$(mktemp -d)
server=
stop() {
    [ -n "$server" ] && kill "$server" 2>/dev/null && wait "$server" 2>/dev/null
    server=
}
trap 'stop; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

# A copy of the lock file identifies the installed version.
installed=$here/node_modules/.installed
if ! cmp -s "$here/package-lock.json" "$installed"; then
    npm ci --prefix "$here" --no-audit --no-fund --loglevel=error || { echo "cannot install the suite" >&2; exit 2; }
    cp "$here/package-lock.json" "$installed"
fi
node=$here/node_modules/node/bin/node

# start FLAG...: starts a server on a free port, with an empty root and workspace and without configuration.
start() {
    local home=$scratch/$RANDOM$RANDOM
    mkdir -p "$home/root" "$home/workspace"
    env -i PATH="$PATH" HOME="$home" \
        "$binary" serve --http 127.0.0.1:0 --root "$home/root" --workspace "$home/workspace" "$@" 2>"$home/log" &
    server=$!
    for _ in $(seq 100); do
        url=$(sed -n 's/.*listening on \(http:[^ ]*\).*/\1/p' "$home/log")
        [ -n "$url" ] && return
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    echo "the server did not start:" >&2
    cat "$home/log" >&2
    exit 2
}

passed=0
failed=0
# run NAME WANTED VERSION OPTION...: runs one suite. WANTED is the total it must print, or - for any.
run() {
    local name=$1 wanted=$2 suite=$here/node_modules/conformance-$3/dist/index.js
    shift 3
    local log=$scratch/suite.log total from=$SECONDS
    (cd "$scratch" && timeout 300 "$node" "$suite" server --url "$url" "$@") >"$log" 2>&1
    local code=$?
    total=$(sed -n 's/^Total: //p' "$log" | tail -1)
    if [ "$code" = 0 ] && { [ "$wanted" = - ] || [ "$total" = "$wanted" ]; }; then
        passed=$((passed + 1))
        echo "ok    $name: ${total:-no total} ($((SECONDS - from)) s)"
    else
        failed=$((failed + 1))
        echo "FAIL  $name: ${total:-no total}, exit code $code; wanted ${wanted/-/no unlisted failure}"
        sed -n '/=== SUMMARY ===/,$p' "$log" | grep -v '✓\|^  ~' >&2
        grep -q '=== SUMMARY ===' "$log" || tail -20 "$log" >&2
    fi
}

start --conformance-fixtures
run "0.1.16 with fixtures" "45 passed, 0 failed" 0.1.16 --suite all
run "2025-11-25 with fixtures" "82 passed, 0 failed" 0.2.0-alpha.12 --requirements 2025-11-25
run "2026-07-28 with fixtures" "196 passed, 0 failed" 0.2.0-alpha.12 --requirements 2026-07-28
stop

start
run "0.1.16 as shipped" - 0.1.16 --suite all --expected-failures "$here/shipped-0.1.16.yml"
run "2025-11-25 as shipped" - 0.2.0-alpha.12 --requirements 2025-11-25 --expected-failures "$here/shipped-2025-11-25.yml"
run "2026-07-28 as shipped" - 0.2.0-alpha.12 --requirements 2026-07-28 --expected-failures "$here/shipped-2026-07-28.yml"
stop

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
