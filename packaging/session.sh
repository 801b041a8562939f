#!/usr/bin/env bash
# Uses a server on standard input and output as a client does: initialize, list of tools, one call, end of input.
#
#   packaging/session.sh COMMAND...
#
# It needs nothing but bash, because it also runs in systems that have little else.
set -euo pipefail

coproc server { exec "$@"; }
# shellcheck disable=SC2154  # set by coproc
input=${server[1]} output=${server[0]} pid=$server_PID

# ask ID METHOD PARAMS: sends a request and prints its answer; the server's own messages are skipped.
ask() {
    local line
    printf '{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}\n' "$1" "$2" "$3" >&"$input"
    while IFS= read -r -t 60 line; do
        [[ $line != *"\"id\":$1,"* ]] || { printf '%s\n' "$line"; return; }
    done <&"$output"
    echo "session: no answer to $2" >&2
    return 1
}
# expect TEXT ANSWER
expect() { [[ $2 == *"$1"* ]] || { echo "session: '$1' is not in: ${2:0:2000}" >&2; exit 1; }; }

client='{"name":"packaging","version":"1"}'
expect '"serverInfo":{"name":"ringfence"' \
    "$(ask 1 initialize '{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":'"$client"'}')"
printf '{"jsonrpc":"2.0","method":"notifications/initialized"}\n' >&"$input"
expect '"name":"shell.exec"' "$(ask 2 tools/list '{}')"
answer=$(ask 3 tools/call '{"name":"shell.exec","arguments":{"command":"echo in the sandbox; touch /etc/x"}}')
expect 'in the sandbox' "$answer"
expect 'Read-only file system' "$answer"

exec {input}>&-
wait "$pid"
echo 'session: initialize, tools/list, shell.exec, end of input'
