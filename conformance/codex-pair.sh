#!/usr/bin/env bash
# Runs a real Codex behind `codex` and `codex-reply` of a ringfence binary, with the surface on and off:
#
#   conformance/codex-pair.sh [target/debug/ringfence]
#
# The model is a script on the loopback (codex_model.py) and the client another (codex_pair.py), so nothing leaves the
# machine; only the first run needs the network, to install Codex under .node/. Needs node, npm and python3.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath -- "${1:-$here/../target/debug/ringfence}") || exit 2
[ -x "$binary" ] || { echo "no such binary: $binary" >&2; exit 2; }
codex=$("$here/codex-install.sh") || exit 2

# Returns a directory that a run can see: a run has its own /tmp, /var/tmp and /run, and a clone may be there.
visible_folder() {
    local place
    for place in "${PAIR_SCRATCH:-$here/../target/tmp}" /var/lib/ringfence-tests "$HOME/.cache/ringfence-tests"; do
        place=$(realpath -m -- "$place")
        case $place in /tmp/* | /var/tmp/* | /run/*) continue ;; esac
        mkdir -p -- "$place" 2>/dev/null && [ -w "$place" ] && { echo "$place"; return; }
    done
    echo 'no writable directory outside of /tmp found: set PAIR_SCRATCH' >&2
    return 1
}
folder=$(visible_folder) || exit 2
scratch=$(mktemp -d -p "$folder") || exit 2
model=
trap 'kill $model 2>/dev/null; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
# A clone may be below /tmp. Codex comes with its helpers next to it.
if [[ $codex == /tmp/*/bin/codex || $codex == /var/tmp/*/bin/codex ]]; then
    cp -a "${codex%/bin/codex}" "$scratch/codex" || exit 2
    codex=$scratch/codex/bin/codex
fi

# converse NAME PLAN SCRIPT: runs one server, one client and one model. Afterwards $at/result has what the client
# received, one line per step, $at/requests the requests to the model, $at/audit the audit records. $rules and $config
# are the operator's, $path is the server's, $more is added to the configuration of Codex.
converse() {
    scenario=$1 at=$scratch/$1
    mkdir -p "$at/home/.codex" "$at/root" "$at/workspace/.git/hooks" "$at/bin"
    : >"$at/requests"
    printf '%s' "$2" >"$at/plan"
    printf '%s' "$3" >"$at/script"
    printf '%s\n' "${rules:-}" >"$at/house.rules"
    printf '%s\n' "${config:-}" >"$at/ringfence.toml"
    ln -s "$codex" "$at/bin/codex"
    python3 "$here/codex_model.py" serve "$at/plan" "$at/requests" "$at/port" 2>"$at/model.log" &
    model=$!
    for _ in $(seq 100); do
        [ -s "$at/port" ] && break
        kill -0 "$model" 2>/dev/null || break
        sleep 0.1
    done
    [ -s "$at/port" ] || { echo "the model did not start:" >&2; cat "$at/model.log" >&2; exit 2; }
    cat >"$at/home/.codex/config.toml" <<END
model = "scripted"
model_provider = "script"
check_for_update_on_startup = false
${more:-}

[model_providers.script]
name = "script"
base_url = "http://127.0.0.1:$(<"$at/port")/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false
END
    cp "$at/home/.codex/config.toml" "$at/config.before"
    env -i PATH="${path:-$at/bin:$PATH}" HOME="$at/home" timeout 90 \
        python3 "$here/codex_pair.py" "$at/script" "$at/result" -- \
        "$binary" serve --root "$at/root" --workspace "$at/workspace" --config "$at/ringfence.toml" \
        --rules "$at/house.rules" --tools all 2>"$at/log"
    code=$?
    kill "$model" 2>/dev/null
    wait "$model" 2>/dev/null
    model=
    "$binary" audit --root "$at/root" >"$at/audit" 2>&1
    python3 "$here/codex_model.py" shown "$at/requests" >"$at/shown" 2>/dev/null
    python3 "$here/codex_model.py" said "$at/requests" >"$at/said" 2>/dev/null
    check "client and server exit successfully" [ "$code" = 0 ]
    check "the audit log is intact" "$binary" audit verify --root "$at/root"
    check "the user's configuration is unchanged" cmp "$at/config.before" "$at/home/.codex/config.toml"
}

passed=0
failed=0
check() {
    local name="$scenario: $1"
    shift
    if "$@" >/dev/null 2>&1; then
        passed=$((passed + 1))
        echo "ok    $name"
    else
        failed=$((failed + 1))
        echo "FAIL  $name: $*"
    fi
}
report() {
    [ "$failed" = "${reported:-0}" ] && return
    reported=$failed
    tail -n 40 "$at/result" "$at/shown" "$at/said" "$at/audit" "$at/log" "$at/model.log" | cut -c1-2500 >&2
}
# result STEP EXPRESSION: evaluates a Python expression; `r` is the result of the step, `heard` everything received with it.
result() {
    python3 - "$at/result" "$1" "$2" <<'END'
import json, sys
heard = json.loads(open(sys.argv[1]).read().splitlines()[int(sys.argv[2])])
r = heard["answer"] or {}
s = r.get("structuredContent") or {}
text = "".join(block.get("text", "") for block in r.get("content", []))
sys.exit(not eval(sys.argv[3]))
END
}
shows() { grep -Eq -- "$1" "$at/shown"; }
said() { grep -Eq -- "$1" "$at/said"; }
recorded() { grep -Eq -- "$1" "$at/audit"; }
holds() { [ "$(cat "$at/workspace/$1")" = "$2" ]; }
absent() { [ ! -e "$at/workspace/$1" ]; }
gone() { for _ in $(seq 50); do pgrep -f -- "$1" >/dev/null || return 0; sleep 0.1; done; return 1; }
THREAD='len(s["threadId"]) == 36'

# With the surface on and off, the answers are the same in the same form.
for gate in on off; do
    [ $gate = on ] && config='' || config='enable_mcp_server_surface = false'
    converse "turns-$gate" '[{"say": "the first"}, {"say": "the second"}]' '[
        {"method": "tools/list"},
        {"method": "tools/call", "params": {"name": "codex", "arguments": {"prompt": "--help me", "base-instructions": "BASE", "developer-instructions": "- \"DEV\"", "sandbox": "workspace-write", "approval-policy": "on-request", "config": {"model_reasoning_effort": "high"}}}},
        {"method": "tools/call", "thread": true, "params": {"name": "codex-reply", "arguments": {"prompt": "and then?"}}},
        {"method": "tools/call", "params": {"name": "codex-reply", "arguments": {"prompt": "x", "threadId": "01a1e507-1a6d-7780-bad2-f3ce356a988a"}}},
        {"method": "tools/call", "params": {"name": "codex", "arguments": {"sandbox": "workspace-write"}}},
        {"method": "tools/call", "params": {"name": "nothing", "arguments": {}}}
    ]'
    check "the first turn has a thread and an answer" result 1 "r['isError'] is False and s['content'] == text == 'the first' and $THREAD"
    # Events in the last tenth of a second are only in the result, so a short turn may have no progress.
    check "progress is human-readable" result 1 "(not heard['progress'] or any('thread ' + s['threadId'] in line for line in heard['progress'])) and not any('{' in line for line in heard['progress'])"
    check "the reply is in the same thread" result 2 "s['content'] == text == 'the second' and s['threadId'] == json.loads(open(sys.argv[1]).read().splitlines()[1])['answer']['structuredContent']['threadId']"
    check "the model sees the first prompt again" said '^user --help me$'
    check "the model sees its own first answer" said '^assistant the first$'
    check "the model sees the second prompt" said '^user and then\?$'
    check "the thread keeps its instructions" said '^developer BASE$'
    check "the thread keeps the developer's instructions" said '^developer - "DEV"'
    check "an unknown thread is an error that says so" result 3 "r['isError'] and 'no such thread' in text"
    check "a missing argument is an error that says so" result 4 "r['isError'] and 'prompt' in text"
    check "every turn is recorded" recorded 'call\.stop +codex-reply +.*completed'
    if [ $gate = on ]; then
        check "the pair is listed with everything else" result 0 "{'codex', 'codex-reply', 'file.read'} <= {tool['name'] for tool in r['tools']}"
        check "it declares that it needs approval" result 0 "all(tool['_meta']['dev.ringfence/requires_approval'] for tool in r['tools'] if tool['name'].startswith('codex'))"
        check "a human was asked" result 1 "len(heard['questions']) == 1 and '| --help me' in heard['questions'][0]['message']"
        check "an unknown tool is an error of the protocol" result 5 "r['code'] == -32602"
        check "no notification of the old server is sent" result 1 "heard['events'] == []"
    else
        check "the list is exactly the pair" result 0 "[tool['name'] for tool in r['tools']] == ['codex', 'codex-reply']"
        check "no one was asked, as before" result 1 "heard['questions'] == []"
        check "in its legacy form" result 0 "all(sorted(tool) == ['description', 'inputSchema', 'name', 'outputSchema', 'title'] for tool in r['tools'])"
        check "an unknown tool is a text" result 5 "r['isError'] and text == \"Unknown tool 'nothing'\" and 'structuredContent' not in r"
        check "every event is reported" result 1 "[event['msg']['type'] for event in heard['events']][0::99] == ['thread.started'] and all(event['_meta'] == {'threadId': s['threadId'], 'requestId': 2} for event in heard['events'])"
    fi
    report
done
config=

# Codex's own sandbox works inside ours, and every exec in it is judged.
rules='prefix_rule(pattern=["uname"], decision="forbidden", justification="told so")' \
    converse nested '[
        {"shell": "echo hi | tee made; env uname -s; touch /etc/ringfence-was-here; touch \"$CODEX_HOME/x\"; cat ~/.ssh/id; echo evil > .git/hooks/pre-commit; unshare -Ur true; echo end"},
        {"shell": "exec 3<>/dev/tcp/127.0.0.1/'"1"'; echo no"},
        {"say": "done"}
    ]' '[{"method": "tools/call", "params": {"name": "codex", "arguments": {"prompt": "go", "sandbox": "workspace-write"}}}]'
check "the turn succeeds" result 0 "s['content'] == 'done'"
check "a command of Codex works in the workspace" holds made hi
check "a forbidden program is stopped, though Codex runs it" shows '^result 0 .*ringfence: /usr/bin/uname: forbidden: told so'
check "and is recorded" recorded 'exec +codex +.*uname'
check "the result names it" result 0 "any(denial['name'] == 'uname' for denial in s['denials'])"
check "its own sandbox keeps the rest read-only" shows '^result 0 .*touch: cannot touch ./etc/ringfence-was-here.: Read-only.*/home/x.: Read-only'
check "hooks cannot be planted" absent .git/hooks/pre-commit
check "no further sandbox can be nested" shows '^result 0 .*unshare failed: Operation not permitted'
check "its own sandbox has no network" shows '^result 1 .*(socket: Operation not permitted|Network is unreachable)'
check "commands are reported as they run" result 0 "any('runs: ' in line for line in heard['progress'])"
report

# With its own sandbox off, only ours applies, as for every command.
mkdir -p "$scratch/whole/home/.ssh" && echo key >"$scratch/whole/home/.ssh/id"
rules='prefix_rule(pattern=["uname"], decision="forbidden", justification="told so")' \
    converse whole '[
        {"shell": "echo hi > made; env uname -s; touch /etc/ringfence-was-here; cat '"$scratch"'/whole/home/.ssh/id; echo LD_PRELOAD=x >> '"$scratch"'/whole/home/.codex/.env; echo LD_PRELOAD=x >> \"$CODEX_HOME/.env\"; mkdir -p .codex/x; echo end"},
        {"say": "done"}
    ]' '[{"method": "tools/call", "params": {"name": "codex", "arguments": {"prompt": "go", "sandbox": "danger-full-access"}}}]'
check "a command of Codex works in the workspace" holds made hi
check "a forbidden program is stopped" shows '^result 0 .*ringfence: /usr/bin/uname: forbidden: told so'
check "the sandbox keeps the rest read-only" shows '^result 0 .*/etc/ringfence-was-here.: Read-only'
check "keys are hidden" shows '^result 0 .*\.ssh/id: (No such file|Permission denied)'
check "the user's own home is out of reach" shows '^result 0 .*/home/\.codex/\.env: (No such file|Permission denied)'
check "and nothing is left in it" [ "$(ls -A "$at/home/.codex")" = config.toml ]
check "no file that configures agents is created" absent .codex
report

# Configuration in the workspace starts nothing outside Codex's sandbox, whichever projects the user trusts.
for place in . sub; do
    name=planted-${place/./top}
    mkdir -p "$scratch/$name/workspace/$place/.codex"
    cat >"$scratch/$name/workspace/$place/.codex/config.toml" <<END
[mcp_servers.x]
command = "/bin/sh"
args = ["-c", "touch $scratch/$name/workspace/EVIL"]
END
    more="[projects.\"$scratch/$name/workspace\"]
trust_level = \"trusted\"" \
        converse "$name" '[{"shell": "echo hi > made"}, {"say": "done"}, {"shell": "echo on > again"}, {"say": "done"}]' '[
            {"method": "tools/call", "params": {"name": "codex", "arguments": {"prompt": "go", "sandbox": "workspace-write", "cwd": "'$place'"}}},
            {"method": "tools/call", "thread": true, "params": {"name": "codex-reply", "arguments": {"prompt": "go on"}}}
        ]'
    check "it works" holds "$place/made" hi
    check "and continues" holds "$place/again" on
    check "nothing of the workspace was started" absent EVIL
    report
done

# Without an argument the configured mode applies; without a configured mode, the most restrictive one.
more='sandbox_mode = "danger-full-access"' converse configured '[{"shell": "echo hi > made; unshare -Ur true"}, {"say": "done"}]' \
    '[{"method": "tools/call", "params": {"name": "codex", "arguments": {"prompt": "go"}}}]'
check "the question says it" result 0 "'(danger-full-access)' in heard['questions'][0]['message']"
check "it may write" holds made hi
check "and the sandbox is complete" shows '^result 0 .*unshare failed: Operation not permitted'
report
converse least '[{"shell": "echo hi > made"}, {"say": "done"}]' \
    '[{"method": "tools/call", "params": {"name": "codex", "arguments": {"prompt": "go"}}}]'
check "the question says it" result 0 "'(read-only), with the workspace read-only' in heard['questions'][0]['message']"
check "nothing is written" absent made
report

# A failure is reported in Codex's own words; a cancelled run leaves nothing; a denied call never runs.
marker=300.$$$RANDOM
converse wrong '[{"fail": "no credits left"}]' '[
    {"method": "tools/call", "params": {"name": "codex", "arguments": {"prompt": "go"}}},
    {"method": "tools/call", "answer": "decline", "params": {"name": "codex", "arguments": {"prompt": "go"}}},
    {"method": "tools/call", "params": {"name": "codex", "arguments": {"prompt": "go", "config": {"model_provider": "x"}}}}
]'
check "a turn that fails is an error in its own words" result 0 "r['isError'] and 'no credits left' in s['content'] == text and $THREAD"
check "a declined call does not run" result 1 "r['isError'] and 'approval_denied' in text"
check "the model was asked once" [ "$(wc -l <"$at/requests")" = 1 ]
check "a call cannot say where credentials go" result 2 "r['isError'] and s['error']['reason'] == 'codex_config' and not heard['questions']"
report
converse cancelled '[{"shell": "sleep '"$marker"' & sleep '"$marker"'"}, {"say": "done"}]' '[
    {"method": "tools/call", "cancel": "runs: ", "params": {"name": "codex", "arguments": {"prompt": "go", "sandbox": "workspace-write"}}},
    {"method": "ping"}
]'
check "nothing of it is left" gone "$marker"
check "it is recorded" recorded 'call\.stop +codex +.*cancelled'
check "the server continues" result 1 "r == {}"
report

path=/usr/bin:/bin converse missing '[]' '[{"method": "tools/call", "params": {"name": "codex", "arguments": {"prompt": "go"}}}, {"method": "mcp.capabilities"}]'
check "the error names a missing Codex and how to install it" result 0 "s['error']['kind'] == 'unavailable' and s['error']['reason'] == 'runtime_missing' and 'npm install -g @openai/codex' in s['error']['hint']"
check "the capabilities say so too" result 1 "[tool['permission']['allow'] for tool in r['tools'] if tool['name'].startswith('codex')] == [False, False]"
report

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
