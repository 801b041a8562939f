#!/usr/bin/env bash
# Runs in a booted Debian system as the unit `check.service`, with the package installed and a token in /root/token: the
# server is started as README.Debian says, makes a call for the holder of the token, and refuses others. Powers off.
set -uo pipefail
trap 'systemctl poweroff --force --force' EXIT

fail() { echo "FAILED: $*"; systemctl status --no-pager ringfence; exit 1; }

systemctl start ringfence || fail 'start'
url=http://127.0.0.1:8931/mcp
for _ in $(seq 100); do
    curl -s -o /dev/null $url && break
    systemctl is-active --quiet ringfence || fail 'the server has ended'
    sleep 0.1
done
# post ARGUMENT...: sends one message.
post() {
    curl -sS --max-time 60 "$@" -H 'Content-Type: application/json' \
        -H 'Accept: application/json, text/event-stream' $url
}
# request METHOD PARAMS: prints a message.
request() { printf '{"jsonrpc":"2.0","id":1,"method":"%s","params":%s}' "$1" "$2"; }
client='{"name":"packaging","version":"1"}'
hello=$(request initialize '{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":'"$client"'}')
[ "$(post -o /dev/null -w '%{http_code}' -d "$hello")" = 401 ] || fail 'a request without a token is not refused'

token="Authorization: Bearer $(cat /root/token)"
post -H "$token" -D /root/headers -d "$hello" | grep -qF '"serverInfo":{"name":"ringfence"' || fail 'initialize'
session=$(sed -n 's/^mcp-session-id: \([^\r]*\).*/Mcp-Session-Id: \1/Ip' /root/headers)
post -H "$token" -H "$session" -d '{"jsonrpc":"2.0","method":"notifications/initialized"}'
call=$(request tools/call '{"name":"shell.exec","arguments":{"command":"id -un; touch /etc/x"}}')
answer=$(post -H "$token" -H "$session" -d "$call")
[[ $answer == *'ringfence\n'*'Read-only file system'* ]] || fail "the call: $answer"

systemctl reload ringfence || fail 'reload'
systemctl is-active --quiet ringfence || fail 'reload ends the server'
systemctl stop ringfence || fail 'stop'
systemctl is-failed --quiet ringfence && fail 'stop is a failure'
[ "$(stat -c '%U %a' /var/lib/ringfence)" = 'ringfence 700' ] || fail 'others can read the state'
echo 'ok: the unit serves the holder of a token, in the sandbox, and stops'
