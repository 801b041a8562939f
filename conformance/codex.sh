#!/usr/bin/env bash
# Runs a real Codex with a ringfence binary as its MCP server:
#
#   conformance/codex.sh [target/debug/ringfence]
#
# The model is a script on the loopback (codex_model.py), so nothing leaves the machine; only the first run needs the
# network, to install Codex under .node/. The checks cover end results: what Codex showed the model, what happened
# in the workspace, and what the audit log says. Needs node, npm and python3 (3.10 or newer).
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath -- "${1:-$here/../target/debug/ringfence}") || exit 2
[ -x "$binary" ] || { echo "no such binary: $binary" >&2; exit 2; }
codex=$("$here/codex-install.sh") || exit 2

scratch=$(mktemp -d)
model=
server=
stop() {
    for process in $model $server; do
        kill "$process" 2>/dev/null && wait "$process" 2>/dev/null
    done
    model= server=
}
trap 'stop; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

# converse NAME MODEL OPTION... <PLAN: runs one `codex exec` with its own home, root and workspace. Afterwards $at is
# their directory; `shown` in it is what the model saw, `audit` what was recorded, `log` the output of Codex. With
# transport=http Codex connects to a server that is already running. $prepare is run in the workspace first.
converse() {
    scenario=$1 at=$scratch/$1
    local model_name=$2
    shift 2
    mkdir -p "$at/home/.codex" "$at/root" "$at/workspace"
    cat >"$at/plan"
    python3 "$here/codex_model.py" serve "$at/plan" "$at/requests" "$at/port" 2>"$at/model.log" &
    model=$!
    for _ in $(seq 100); do
        [ -s "$at/port" ] && break
        kill -0 "$model" 2>/dev/null || break
        sleep 0.1
    done
    [ -s "$at/port" ] || { echo "the model did not start:" >&2; cat "$at/model.log" >&2; exit 2; }

    # Without a sandbox every command needs approval.
    echo "sandbox.profile = \"${profile:-default}\"" >"$at/ringfence.toml"
    printf '%s\n' "${rules:-}" >"$at/house.rules"
    (cd "$at/workspace" && eval "${prepare:-true}")
    local serve=(serve --root "$at/root" --workspace "$at/workspace" --config "$at/ringfence.toml"
        --rules "$at/house.rules" --tools "${tools:-core}") reached
    if [ "${transport:-stdio}" = http ]; then
        env -i PATH="$PATH" HOME="$at/home" "$binary" "${serve[@]}" --http 127.0.0.1:0 2>"$at/server.log" &
        server=$!
        for _ in $(seq 100); do
            reached=$(sed -n 's,.*listening on \(http://[^ ]*/mcp\).*,\1,p' "$at/server.log")
            [ -n "$reached" ] && break
            kill -0 "$server" 2>/dev/null || { cat "$at/server.log" >&2; exit 2; }
            sleep 0.1
        done
        reached="url = \"$reached\""
    else
        reached="command = \"$binary\"
args = [$(printf '"%s", ' "${serve[@]}")]"
    fi
    cat >"$at/home/.codex/config.toml" <<END
model = "$model_name"
model_provider = "script"
check_for_update_on_startup = false

[model_providers.script]
name = "script"
base_url = "http://127.0.0.1:$(<"$at/port")/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false

[mcp_servers.ringfence]
$reached
default_tools_approval_mode = "approve"
required = true
END
    # Requests of Codex beyond the loopback end at a closed port.
    (cd "$at/workspace" && env -i PATH="$PATH" HOME="$at/home" CODEX_HOME="$at/home/.codex" \
        HTTP_PROXY=http://127.0.0.1:9 HTTPS_PROXY=http://127.0.0.1:9 NO_PROXY=127.0.0.1 \
        timeout 60 "$codex" exec --skip-git-repo-check "$@" "Follow the plan.") </dev/null >"$at/log" 2>&1
    code=$?
    stop
    # Codex stops its servers and does not wait for them.
    for _ in $(seq 50); do
        "$binary" audit --root "$at/root" >"$at/audit" 2>&1
        grep -q 'server\.stop' "$at/audit" && break
        sleep 0.1
    done
    python3 "$here/codex_model.py" shown "$at/requests" >"$at/shown" 2>&1
}

passed=0
failed=0
# check NAME COMMAND...: the command must succeed.
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
# report: prints all output of the scenario after a failure.
report() {
    [ "$failed" = "${reported:-0}" ] && return
    reported=$failed
    tail -n 40 "$at/shown" "$at/audit" "$at/log" "$at/model.log" | cut -c1-1500 >&2
}
shows() { grep -Eq -- "$1" "$at/shown"; }
hides() { ! shows "$1"; }
recorded() { grep -Eq -- "$1" "$at/audit"; }
# Codex may kill a server that takes a moment to end, so only check that none is left.
gone() { for _ in $(seq 50); do pgrep -f -- "--root $at/root " >/dev/null || return 0; sleep 0.1; done; return 1; }
absent() { [ ! -e "$at/workspace/$1" ]; }
holds() { [ "$(cat "$at/workspace/$1")" = "$2" ]; }
ended() { [ "$code" = 0 ] && [ "$(tail -n 1 "$at/log")" = "$1" ]; }

# A model that Codex does not know sees every tool from the start. A command runs in the sandbox without approval.
converse listed scripted --sandbox workspace-write <<'END'
[
    {"call": "file_write", "arguments": {"path": "notes/today.txt", "content": "one\ntwo\n"}},
    {"call": "file_read", "arguments": {"path": "notes/today.txt"}},
    {"call": "file_read", "arguments": {"path": "../root/audit/key"}},
    {"call": "shell_exec", "arguments": {"command": "echo hello | tee ran; touch /etc/ringfence-was-here .codex/x; unshare -r true"}},
    {"say": "the end"}
]
END
check "Codex exits successfully" ended "the end"
check "file.read is listed with its arguments" shows '^listed file_read (.* )?path( |$)'
check "file.write is listed with its arguments" shows '^listed file_write (.* )?content (.* )?path( |$)'
check "shell.exec is listed with its arguments" shows '^listed shell_exec (.* )?command( |$)'
check "the model sees what file.write did" shows '^result 0 .*"path":"notes/today\.txt","created":true,"etag":"[^"]+"'
check "the file is written" holds notes/today.txt $'one\ntwo'
check "the model sees the text that file.read read" shows '^result 1 .*Output:\\none\\ntwo\\n'
check "the model sees why a path outside is refused" shows '^result 2 .*"kind":"permission_denied","reason":"outside_workspace".*"hint":"[^"]'
check "the command runs in the sandbox" holds ran hello
check "the model sees its output" shows '^result 3 .*"stdout":"hello\\n"'
check "the model sees that it cannot write outside" shows '^result 3 .*Read-only file system'
check "the model sees what was refused" shows '^result 3 .*"denials":\[\{"kind":"syscall","name":"unshare","count":1\}\]'
check "nothing outside was touched" [ ! -e /etc/ringfence-was-here ]
check "no file that configures agents was created" absent .codex
check "the refusal is recorded" recorded 'call\.stop +shell\.exec +.*refused unshare'
check "the server ends with Codex" gone
check "the audit log is intact" "$binary" audit verify --root "$at/root"
report

# Current models have to search for tools. They see our instructions, which must lead them to the right tool.
converse searched gpt-5.5 --sandbox workspace-write <<'END'
[
    {"search": "create or write a file in the workspace"},
    {"call": "file_write", "arguments": {"path": "a.txt", "content": "found\n"}},
    {"search": "run a shell command"},
    {"call": "shell_exec", "arguments": {"command": "echo hello | tee ran"}},
    {"say": "the end"}
]
END
check "Codex exits successfully" ended "the end"
check "no tool is listed before a search" hides '^listed'
check "the model sees which tools exist" shows '^source ringfence: .*file\.read.*file\.write.*shell\.exec'
check "a search finds file.write" shows '^found 0 file_write (.* )?content '
check "a search finds shell.exec" shows '^found 2 shell_exec (.* )?command '
check "the file is written" holds a.txt found
check "the command runs in the sandbox" holds ran hello
report

# Codex reports which sandbox its own commands run in, and our tools apply it. By default `codex exec` is read-only.
converse narrowed scripted <<'END'
[
    {"call": "file_write", "arguments": {"path": "a.txt", "content": "no\n"}},
    {"call": "shell_exec", "arguments": {"command": "echo hello | tee ran; echo hello > /tmp/x && cat /tmp/x"}},
    {"say": "the end"}
]
END
check "Codex exits successfully" ended "the end"
check "the model sees why nothing is written, and what to do" shows '^result 0 .*"reason":"client_read_only".*"hint":"[^"]*`read-only`'
check "a command writes nothing either" shows '^result 1 .*Read-only file system'
check "a command has its own /tmp" shows '^result 1 .*"stdout":"hello\\nhello\\n"'
check "the workspace is unchanged" eval 'absent a.txt && absent ran'
report

# A full day's work, over both transports that Codex supports: files, search, a command, code, a page that the agent
# serves itself, and what is refused.
for way in stdio http; do
    transport=$way prepare='mkdir src; printf "fn main() {\\n    answer(41)\\n}\\n" >src/main.rs; printf "env uname -s\\n" >build.sh' \
        rules='prefix_rule(pattern=["uname"], decision="forbidden", justification="told so")' \
        converse "work-$way" scripted --sandbox workspace-write <<'END'
[
    {"call": "file_list", "arguments": {"path": ".", "depth": 0}},
    {"call": "file_search", "arguments": {"pattern": "answer\\(\\d+\\)"}},
    {"call": "file_replace", "arguments": {"path": "src/main.rs", "edits": [{"old": "41", "new": "42"}]}},
    {"call": "file_write", "arguments": {"path": "in.txt", "content": "3\n4\n5\n"}},
    {"call": "code_exec", "arguments": {"language": "python", "code": "n = [int(x) for x in open('in.txt')]\nopen('out.txt', 'w').write(str(sum(n)))\nsum(n)"}},
    {"call": "file_read", "arguments": {"path": "out.txt"}},
    {"call": "shell_exec", "arguments": {"command": "bash build.sh"}},
    {"call": "file_read", "arguments": {"path": "../root/audit/key"}},
    {"call": "shell_exec", "arguments": {"command": "mkdir -p www; echo '<title>Hello</title><h1>It works</h1>' >www/index.html; cd www; exec python3 -m http.server 8000 --bind 127.0.0.1", "yield_ms": 500}},
    {"call": "browser_navigate", "arguments": {"url": "http://localhost:8000/"}},
    {"call": "browser_screenshot", "arguments": {"path": "shot.png"}},
    {"call": "browser_navigate", "arguments": {"url": "http://169.254.169.254/latest/meta-data/"}},
    {"call": "shell_session", "arguments": {"op": "list"}},
    {"say": "the end"}
]
END
    check "Codex exits successfully" ended "the end"
    check "the model sees the files" shows '^result 0 .*src/main\.rs'
    check "the model sees where the text was found" shows '^result 1 .*"path":"src/main\.rs".*"line":2'
    check "one word is replaced and nothing else" holds src/main.rs $'fn main() {\n    answer(42)\n}'
    check "the model sees the last value of its code" shows '^result 4 .*"result\\*":\\*"12'
    check "the model sees which file the code created" shows '^result 4 .*out\.txt'
    check "the model reads what the code has written" shows '^result 5 .*12'
    check "a forbidden program started by a script is stopped" shows '^result 6 .*forbidden.*told so|^result 6 .*told so'
    check "and its name is recorded" recorded 'exec +shell\.exec +.*uname'
    check "the model sees why a path outside is refused" shows '^result 7 .*"reason":"outside_workspace"'
    check "a server continues in the background" shows '^result 8 .*"status":"running"'
    check "the browser opens what the agent serves" shows '^result 9 .*"title":"Hello"'
    check "the model sees the picture" shows '^result 10 .*\[input_image\]'
    check "the picture is a file of the workspace" eval 'head -c 4 "$at/workspace/shot.png" | grep -q PNG'
    check "the browser does not open the metadata of a cloud" shows '^result 11 .*"kind":"(permission_denied|approval_denied)"'
    check "the model sees what is running" shows '^result 12 .*http\.server'
    [ $way = http ] || check "the server ends with Codex" gone
    check "the audit log is intact" "$binary" audit verify --root "$at/root"
    report
done

# Replacement for codex-shell-tool-mcp: one shell, with the same interface.
tools=shell converse shell scripted --sandbox workspace-write <<END
[
    {"call": "shell", "arguments": {"command": "true", "workdir": "."}},
    {"call": "shell", "arguments": {"command": "echo hello | tee ran; echo there >&2; exit 3", "workdir": "$scratch/shell/workspace"}},
    {"say": "the end"}
]
END
check "Codex exits successfully" ended "the end"
check "shell is listed with its arguments" shows '^listed shell command login timeout_ms workdir$'
check "no other tool of ours is listed" hides '^listed (file_|shell_)'
check "the model sees that workdir has to be absolute" shows '^result 0 .*"kind":"invalid_arguments".*absolute'
check "the model sees both streams as one, and the exit code" shows '^result 1 .*"exit_code.*:3.*hello.*there'
check "the command runs in the sandbox" holds ran hello
report

# Without a sandbox approval is required. `codex exec` has no one to ask and declines.
profile=none converse denied scripted <<'END'
[
    {"call": "shell_exec", "arguments": {"command": "echo hello | tee ran"}},
    {"say": "the end"}
]
END
check "Codex exits successfully" ended "the end"
check "the model sees that shell.exec is denied, with a hint" shows '^result 0 .*"kind":"approval_denied".*"hint":"[^"]'
check "the denied command does not run" absent ran
check "the denial is recorded" recorded 'approval +shell\.exec +denied'
check "nothing denied is started" eval '! recorded "call\.start +shell\.exec"'
report

# With its own sandbox off Codex accepts every question automatically. That is not a human's answer.
profile=none converse unseen scripted --dangerously-bypass-approvals-and-sandbox <<'END'
[
    {"call": "shell_exec", "arguments": {"command": "echo hello | tee ran"}},
    {"say": "the end"}
]
END
check "Codex exits successfully" ended "the end"
check "an automatic yes runs nothing" absent ran
check "an automatic yes is not recorded as approval" eval '! recorded "approval +shell\.exec +approved"'
check "the model sees that no one was asked" shows '^result 0 .*"kind":"approval_denied","reason":"no_human"'
report

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
