#!/usr/bin/env bash
# Runs the client scenarios of the official MCP conformance suite against the example `conformance_client`:
#
#   conformance/client.sh [target/debug/examples/conformance_client]
#
# All scenarios that each revision requires, and those added after its release. Extensions of OAuth (client credentials,
# DPoP and others) are left out: the client has none. The suite is installed next to this file once and kept.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
client=$(realpath -- "${1:-$here/../target/debug/examples/conformance_client}") || exit 2
[ -x "$client" ] || { echo "no such program: $client" >&2; exit 2; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
# The suite splits its command at spaces.
ln -s "$client" "$scratch/client"

# A copy of the lock file identifies the installed version.
installed=$here/node_modules/.installed
if ! cmp -s "$here/package-lock.json" "$installed"; then
    npm ci --prefix "$here" --no-audit --no-fund --loglevel=error || { echo "cannot install the suite" >&2; exit 2; }
    cp "$here/package-lock.json" "$installed"
fi
node=$here/node_modules/node/bin/node
# The suite is one large file, and each scenario starts it again.
export NODE_COMPILE_CACHE=$scratch/cache

# suite VERSION ARGUMENT...: runs that version of the suite.
suite() {
    local version=$1
    shift
    (cd "$scratch" && timeout 120 "$node" "$here/node_modules/conformance-$version/dist/index.js" "$@")
}

# run_scenario VERSION REVISION SCENARIO LOG: runs one scenario and writes the exit code next to its log.
run_scenario() {
    local code
    for _ in 1 2 3; do
        suite "$1" client --command "$scratch/client" --spec-version "$2" --scenario "$3" >"$4" 2>&1
        code=$?
        # A busy machine delays the client; the suite calls that acceptable and fails the scenario.
        grep -q 'reconnected slightly late' "$4" || break
    done
    echo "$code" >"$4.code"
}

passed=0
failed=0
# run NAME WANTED VERSION REVISION SCENARIO...: runs scenarios, four at a time. WANTED is the number of checks that must pass.
run() {
    local name=$1 wanted=$2 version=$3 revision=$4 from=$SECONDS scenario log checks sum=0 broken=()
    shift 4
    for scenario in "$@"; do
        while [ "$(jobs -pr | wc -l)" -ge 4 ]; do wait -n; done
        run_scenario "$version" "$revision" "$scenario" "$scratch/$name-${scenario//\//-}" &
    done
    wait
    for scenario in "$@"; do
        log=$scratch/$name-${scenario//\//-}
        checks=$(sed -n 's|^Passed: \([0-9]*\)/.*|\1|p' "$log")
        sum=$((sum + ${checks:-0}))
        [ "$(cat "$log.code")" = 0 ] && continue
        broken+=("$scenario")
        sed -n '/^Client exited/,/^Checks:/p; /^Test Results:/,$p' "$log" | sed "s|^|$scenario: |" >&2
        grep -q '^Test Results:' "$log" || tail -20 "$log" >&2
    done
    if [ ${#broken[@]} = 0 ] && [ "$sum" = "$wanted" ]; then
        passed=$((passed + 1))
        echo "ok    $name: $# scenarios, $sum checks ($((SECONDS - from)) s)"
    else
        failed=$((failed + 1))
        echo "FAIL  $name: $# scenarios, $sum checks passed, wanted $wanted; failed: ${broken[*]:-none}"
    fi
}

# scenarios REVISION PATTERN: prints the client scenarios of a revision that match.
scenarios() {
    suite 0.2.0-alpha.12 list --requirements "$1" | sed '/^  extension/,/^  added/d' |
        sed -n '/^Client scenarios/,/^$/s/^  - //p; s/^    - \(.*\) \[client\]$/\1/p' | grep "$2"
}

run 0.1.16 10 0.1.16 2025-11-25 initialize tools_call elicitation-sep1034-client-defaults sse-retry
# shellcheck disable=SC2046 # No name contains a space.
run 2025-11-25 20 0.2.0-alpha.12 2025-11-25 $(scenarios 2025-11-25 '^[^/]*$')
# shellcheck disable=SC2046
run 2026-07-28 57 0.2.0-alpha.12 2026-07-28 $(scenarios 2026-07-28 '^[^/]*$')
# shellcheck disable=SC2046
run 2025-11-25-oauth 258 0.2.0-alpha.12 2025-11-25 $(scenarios 2025-11-25 '^auth/')
# shellcheck disable=SC2046
run 2026-07-28-oauth 367 0.2.0-alpha.12 2026-07-28 $(scenarios 2026-07-28 '^auth/')

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
