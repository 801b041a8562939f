//! The gate as clients and people meet it: who is asked what, what an answer is good for, and what is not an
//! answer at all.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::matrix::{CELLS, eras, on_cell, on_cells_at_once};
use crate::support::server::{Scratch, binary, ringfence};
use crate::support::subset::assert_holds;
use crate::support::{
    Approve, Client, DEADLINE, MODERN, Options, SESSIONS, Server, Transport, eventually,
    on_every_transport, token,
};

fn plain(options: Options) -> Options {
    options.unfenced()
}

fn error_of(message: &Value) -> &Value {
    assert_eq!(message["result"]["isError"], true, "{message:#}");
    &message["result"]["structuredContent"]["error"]
}

fn echo(client: &mut Client, text: &str) -> Value {
    client.call("shell.exec", json!({"command": format!("echo {text}")}))
}

#[track_caller]
fn assert_ran(message: &Value, text: &str) {
    assert_holds(
        json!({"result": {"isError": false, "structuredContent": {"stdout": format!("{text}\n")}}}),
        message,
    );
}

/// Codex turns an empty form into its own menu. Every other client gets a form with the choices in it.
#[test]
fn a_question_has_the_shape_that_clients_really_show() {
    for cell in CELLS {
        for name in ["codex-mcp-client", "Codex", "it", "claude-code"] {
            let mut server = plain(Options::new(cell.transport)).spawn();
            let mut client = server.client(cell.version);
            client.name = name.to_owned();
            client.shake_hands();
            assert_ran(&echo(&mut client, "shape"), "shape");
            let [question] = &client.questions[..] else {
                panic!("asked {} times", client.questions.len())
            };
            let empty = serde_json::Map::new();
            let meta = question.get("_meta").and_then(Value::as_object).unwrap_or(&empty);
            let schema = match name.to_ascii_lowercase().starts_with("codex") {
                true => {
                    assert_eq!(meta["persist"], json!(["session"]));
                    json!({"type": "object", "properties": {}})
                }
                false => {
                    assert_eq!(meta.get("persist"), None);
                    let names = ["Allow once", "Allow for this session"];
                    json!({"type": "object", "properties": {"choice": {
                        "type": "string", "title": "Answer", "enum": ["once", "session"], "enumNames": names, "default": "once",
                    }}})
                }
            };
            assert_eq!(question["requestedSchema"], schema, "{name}");
            // The engine numbers every request of the server's for progress; nothing else may be there.
            assert!(
                meta.keys().all(|key| ["persist", "progressToken"].contains(&key.as_str())),
                "{meta:?}"
            );
            assert_eq!(question["mode"], "form");
            let members: Vec<&String> =
                question.as_object().unwrap().keys().filter(|key| *key != "_meta").collect();
            assert_eq!(members.len(), 3, "{question}");
            let text = question["message"].as_str().unwrap();
            let workspace = server.workspace().display().to_string();
            for part in [
                "shell.exec",
                "echo shape",
                "without a sandbox",
                &workspace,
                "local",
                "network",
                "sandbox: none",
            ] {
                assert!(text.contains(part), "{part} is not in the question:\n{text}");
            }
        }
    }
}

/// A form that any client shows is enough to trust a tool for the session.
#[test]
fn a_choice_in_the_form_is_the_answer() {
    on_every_transport(plain, |server, client| {
        client.approve = Approve::Choice("once");
        assert_ran(&echo(client, "one"), "one");
        client.approve = Approve::Choice("session");
        assert_ran(&echo(client, "two"), "two");
        client.approve = Approve::Decline;
        assert_ran(&echo(client, "three"), "three");
        assert_eq!(client.questions.len(), 2);
        let modes: Vec<Value> =
            server.events("approval").iter().map(|event| event["mode"].clone()).collect();
        assert_eq!(modes, ["once", "session", "session"]);
    });
}

#[test]
fn a_choice_that_was_not_offered_is_a_no() {
    on_every_transport(plain, |server, client| {
        for choice in ["inside", "always", "deny", "Session", ""] {
            client.approve = Approve::Choice(choice);
            let message = client.call("shell.exec", json!({"command": "touch ran"}));
            assert_eq!(error_of(&message)["kind"], "approval_denied", "{choice}");
        }
        assert!(!server.workspace().join("ran").exists());
    });
    // Without a handle there is no session to keep trust in.
    let mut server = Options::new(Transport::Http).unfenced().spawn();
    let mut client = server.client(MODERN);
    client.approve = Approve::Choice("session");
    assert_eq!(error_of(&echo(&mut client, "one"))["kind"], "approval_denied");
    assert_eq!(
        client.questions[0]["requestedSchema"]["properties"]["choice"]["enum"],
        json!(["once"])
    );
}

/// Codex shows a form with a choice too, and a question about leaving the sandbox has one more answer than its menu.
#[test]
fn a_question_about_leaving_the_sandbox_offers_to_stay_inside() {
    let fixtures = |options: Options| options.arg("--conformance-fixtures");
    for cell in CELLS {
        for name in ["codex-mcp-client", "it"] {
            let mut server = fixtures(Options::new(cell.transport)).spawn();
            let mut client = server.client(cell.version);
            client.name = name.to_owned();
            client.shake_hands();
            let mut answers = Vec::new();
            for choice in ["inside", "inside", "once", "session"] {
                client.approve = Approve::Choice(choice);
                let message = client.call("test_asks_where_to_run", json!({}));
                answers.push(message["result"]["structuredContent"].clone());
            }
            client.approve = Approve::Decline;
            let message = client.call("test_asks_where_to_run", json!({}));
            answers.push(message["result"]["structuredContent"].clone());
            assert_holds(
                json!([
                    {"by": "client", "for_session": false, "inside": true},
                    {"by": "client", "for_session": false, "inside": true},
                    {"by": "client", "for_session": false, "inside": false},
                    {"by": "client", "for_session": true, "inside": false},
                    {"by": "trust", "for_session": true, "inside": false},
                ]),
                &json!(answers),
            );
            assert_eq!(client.questions.len(), 4);
            let names = [
                "Run it outside the sandbox, once",
                "Run it outside the sandbox, for this session",
                "Run it inside the sandbox",
            ];
            assert_eq!(
                client.questions[0]["requestedSchema"],
                json!({"type": "object", "properties": {"choice": {
                    "type": "string", "title": "Answer", "enum": ["once", "session", "inside"], "enumNames": names,
                    "default": "once",
                }}})
            );
            let modes: Vec<Value> =
                server.events("approval").iter().map(|event| event["mode"].clone()).collect();
            assert_eq!(modes, ["inside", "inside", "once", "session", "session"]);
        }
    }
}

/// The caller chooses the order of arguments and how long they are. What would run, where, and with which search path
/// comes first all the same, and everything else is there too.
#[test]
fn a_question_begins_with_what_decides() {
    on_every_transport(plain, |server, client| {
        std::fs::create_dir(server.workspace().join("sub")).unwrap();
        let stdin = format!(
            "{}Allow `shell.exec`? (1 lines; read all of them before you answer)\ncommand: ls\n",
            "\n".repeat(3000)
        );
        let filler = "x".repeat(30_000);
        client.call(
            "shell.exec",
            json!({"reason": filler, "stdin": stdin, "env": {"A": "\u{a0}\u{3164}"}, "cwd": "sub", "argv": ["touch", "r\u{2800}an", "a b"]}),
        );
        let text = client.questions[0]["message"].as_str().unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with(&format!("Allow `shell.exec`? ({} lines, ", lines.len())),
            "{}",
            lines[0]
        );
        assert!(
            lines[0].ends_with(
                " characters; read all of them before you answer) It runs without a sandbox."
            ),
            "{}",
            lines[0]
        );
        assert_eq!(lines[1], "command: touch 'r\\u{2800}an' 'a b'");
        let directory = server.workspace().canonicalize().unwrap().join("sub");
        assert_eq!(
            lines[2],
            format!("runs: without a sandbox; directory: {}", directory.display())
        );
        assert!(lines[3].starts_with("PATH: /"), "{}", lines[3]);
        assert!(
            text.contains(&filler)
                && text.contains("\n    [3000 blank lines]\n    | Allow `shell.exec`?"),
            "{text}"
        );
        assert!(text.contains("\nargument \"env A\": \\u{a0}\\u{3164}\n"), "{text}");
        assert_eq!(text.matches("\ncommand: ").count(), 1);
        let long = "true\n\n\n\nrm -rf x\r\n";
        client.call("shell.exec", json!({"command": long}));
        let lines: Vec<&str> = client.questions[1]["message"].as_str().unwrap().lines().collect();
        assert!(lines[1].starts_with("runs: without a sandbox; directory: /"), "{lines:?}");
        assert_eq!(
            lines[2..6],
            ["command:", "    | true", "    [3 blank lines]", "    | rm -rf x\\u{d}"]
        );
    });
}

/// Shortened, it would be a question about something else.
#[test]
fn what_cannot_be_shown_whole_is_refused_and_nobody_is_asked() {
    on_every_transport(plain, |server, client| {
        let long = "x".repeat(70_000);
        for arguments in [
            json!({"command": format!("touch ran # {long}")}),
            json!({"command": "touch ran", "stdin": long}),
            json!({"command": "touch ran", "env": {"LONG": long}}),
            json!({"command": "touch ran", "reason": "\u{202e}".repeat(10_000)}),
        ] {
            let message = client.call("shell.exec", arguments);
            let want = json!({"kind": "too_large", "hint": "~to a file first", "trace_id": "*", "limit_bytes": 65536});
            assert_holds(want, error_of(&message));
        }
        assert!(client.questions.is_empty());
        assert!(!server.workspace().join("ran").exists());
        assert_holds(
            json!([{"outcome": "denied", "by": "limit"}, {"outcome": "denied", "by": "limit"}]),
            &json!(server.events("approval")),
        );
        // The way that the hint names.
        let script = format!("touch ran # {}\n", "x".repeat(30_000));
        std::fs::write(server.workspace().join("script"), script.repeat(3)).unwrap();
        assert_eq!(
            client.call("shell.exec", json!({"command": "sh script"}))["result"]["isError"],
            false
        );
        assert!(server.workspace().join("ran").exists());
    });
}

/// Each tool says in its own words what would run.
#[test]
fn every_tool_that_runs_something_says_so_first() {
    let question =
        |client: &Client| client.questions.last().unwrap()["message"].as_str().unwrap().to_owned();
    for cell in eras() {
        on_cell(
            cell,
            |options| plain(options).arg("--tools").arg("all"),
            |server, client| {
                std::fs::write(server.workspace().join("f.sh"), "true").unwrap();
                client
                    .call("code.exec", json!({"stdin": "in", "file": "f.sh", "language": "bash"}));
                let text = question(client);
                assert_eq!(text.lines().nth(1), Some("command: bash f.sh"), "{text}");
                let code = "import os\nos.remove('x')";
                client.call(
                    "code.exec",
                    json!({"stdin": "in", "args": ["a b"], "code": code, "language": "python"}),
                );
                let text = question(client);
                assert!(
                    text.lines()
                        .nth(1)
                        .unwrap()
                        .starts_with("runs: without a sandbox; directory: /"),
                    "{text}"
                );
                let shown = "\ncommand:\n    | python 'a b', with this code:\n    | import os\n    | os.remove('x')\nPATH: ";
                assert!(text.contains(shown), "{text}");
                let started = client.call(
                    "shell.exec",
                    json!({"command": "cat", "interactive": true, "yield_ms": 0}),
                );
                let id = &started["result"]["structuredContent"]["exec_id"];
                client.call(
                    "shell.session",
                    json!({"op": "write", "wait_ms": 0, "id": id, "eof": true, "input": "typed"}),
                );
                let text = question(client);
                assert_eq!(text.lines().nth(1), Some("command: typed"), "{text}");
            },
        );
        on_cell(
            cell,
            |options| plain(options).arg("--tools").arg("shell"),
            |server, client| {
                let workspace = server.workspace().canonicalize().unwrap();
                client.call(
                    "shell",
                    json!({"login": false, "workdir": workspace, "command": "echo one"}),
                );
                let text = question(client);
                assert_eq!(text.lines().nth(1), Some("command: echo one"), "{text}");
            },
        );
    }
}

/// A client's no may be nobody's: a headless one declines by itself.
#[test]
fn a_no_says_whose_it_was() {
    on_every_transport(plain, |_, client| {
        client.approve = Approve::Decline;
        let message = echo(client, "no");
        let want = json!({"kind": "approval_denied", "hint": "~The client said no; headless clients do so automatically"});
        assert_holds(want, error_of(&message));
    });
}

#[test]
fn own_tools_takes_names_and_patterns() {
    let named =
        |options: Options| options.config("[approval]\nown_tools = [\"file_write\", \"shell.*\"]");
    on_every_transport(named, |server, client| {
        client.approve = Approve::Decline;
        for (tool, arguments) in [
            ("file.write", json!({"path": "ran", "content": "x"})),
            ("file_write", json!({"path": "ran", "content": "x"})),
            ("shell.exec", json!({"command": "touch ran"})),
            ("shell_exec", json!({"command": "touch ran"})),
        ] {
            assert_eq!(
                error_of(&client.call(tool, arguments))["kind"],
                "approval_denied",
                "{tool}"
            );
        }
        assert_eq!(client.questions.len(), 4);
        std::fs::write(server.workspace().join("there"), "text").unwrap();
        assert_eq!(client.call("file.read", json!({"path": "there"}))["result"]["isError"], false);
        assert_eq!(client.questions.len(), 4, "file.read is not named");
        let file = server.scratch.path().join("config.toml");
        std::fs::write(file, "[approval]\nown_tools = [\"file.read\"]").unwrap();
        assert_eq!(
            error_of(&client.call("file_read", json!({"path": "there"})))["kind"],
            "approval_denied"
        );
        assert_ran(&echo(client, "free"), "free");
        assert_eq!(client.questions.len(), 5);
    });
}

#[test]
fn once_is_for_one_call() {
    on_every_transport(plain, |server, client| {
        assert_ran(&echo(client, "one"), "one");
        assert_ran(&echo(client, "two"), "two");
        assert_eq!(client.questions.len(), 2);
        let approvals = server.events("approval");
        assert_eq!(approvals.len(), 2);
        assert_holds(
            json!({"outcome": "approved", "by": "client", "mode": "once", "tool": "shell.exec"}),
            &approvals[0],
        );
    });
}

#[test]
fn trust_lasts_for_the_session_and_always_means_no_more() {
    for answer in [Approve::Session, Approve::Always] {
        on_every_transport(plain, |server, client| {
            client.approve = answer;
            assert_ran(&echo(client, "one"), "one");
            client.approve = Approve::Decline;
            assert_ran(&echo(client, "two"), "two");
            assert_eq!(client.questions.len(), 1);
            let approvals = server.events("approval");
            assert_holds(
                json!([
                    {"outcome": "approved", "by": "client", "mode": "session"},
                    {"outcome": "approved", "by": "trust", "mode": "session"},
                ]),
                &json!(approvals),
            );
        });
    }
}

#[test]
fn a_no_and_a_closed_dialog_are_both_a_no() {
    on_every_transport(plain, |server, client| {
        for answer in [Approve::Decline, Approve::Cancel] {
            client.approve = answer;
            let message = client.call("shell.exec", json!({"command": "touch ran"}));
            assert_holds(
                json!({"kind": "approval_denied", "hint": "*", "trace_id": "*"}),
                error_of(&message),
            );
        }
        assert!(!server.workspace().join("ran").exists());
        assert_eq!(server.events("call.start").len(), 0, "nothing was started");
        assert_holds(
            json!([{"outcome": "denied", "by": "client"}, {"outcome": "denied", "by": "client"}]),
            &json!(server.events("approval")),
        );
        assert_holds(
            json!([{"status": "denied", "error": "approval_denied"}]),
            &json!(server.stops(2)),
        );
    });
}

#[test]
fn silence_is_a_no() {
    let short = |options: Options| options.unfenced().config("[approval]\nexpiry_s = 1");
    on_cells_at_once(eras(), short, |server, client| {
        client.approve = Approve::Never;
        let message = client.call("shell.exec", json!({"command": "touch ran"}));
        if client.is_modern() {
            // The question was put; nobody comes back with an answer.
            assert_eq!(message["result"]["resultType"], "input_required", "{message}");
        } else {
            assert_holds(
                json!({"kind": "approval_expired", "hint": "*", "trace_id": "*"}),
                error_of(&message),
            );
        }
        let stops = server.stops(1);
        assert_holds(json!({"status": "denied", "error": "approval_expired"}), &stops[0]);
        assert_holds(
            json!([{"outcome": "expired", "by": "nobody"}]),
            &json!(server.events("approval")),
        );
        assert!(!server.workspace().join("ran").exists());
        if client.is_modern() {
            let state = &message["result"]["requestState"];
            let late = client.retry(
                "shell.exec",
                &json!({"command": "touch ran"}),
                state,
                json!({"q1": Approve::Once.answer()}),
            );
            assert_holds(
                json!({"error": {"code": -32602, "data": {"kind": "invalid_arguments", "hint": "*"}}}),
                &late,
            );
            assert!(!server.workspace().join("ran").exists());
        }
    });
}

#[test]
fn a_client_that_cannot_ask_is_told_at_once() {
    for cell in eras() {
        for capabilities in [json!({}), json!({"elicitation": {"url": {}}})] {
            let mut server = Options::new(cell.transport).unfenced().spawn();
            let mut client = server.client(cell.version);
            client.capabilities = capabilities;
            client.shake_hands();
            let begun = Instant::now();
            let message = client.call("shell.exec", json!({"command": "touch ran"}));
            assert!(begun.elapsed() < Duration::from_secs(5));
            let want = json!({"kind": "approval_denied", "reason": "no_asker", "hint": "~ringfence approvals"});
            assert_holds(want, error_of(&message));
            assert!(client.questions.is_empty());
            assert_holds(
                json!([{"outcome": "denied", "by": "nobody"}]),
                &json!(server.events("approval")),
            );
            assert!(!server.workspace().join("ran").exists());
        }
    }
}

/// It says of itself that nobody sees what it is asked.
#[test]
fn an_accept_that_nobody_saw_is_a_no() {
    let unseen = [
        json!({"codex/sandbox-state-meta": {"permissionProfile": {"type": "disabled"}}}),
        json!({"codex/sandbox-state": {"sandboxPolicy": {"type": "danger-full-access"}}}),
        json!({"x-codex-turn-metadata": {"sandbox_mode": "danger-full-access"}}),
        json!({"x-codex-turn-metadata": {"sandbox_mode": "workspace-write", "turn_trigger": "exec"}}),
    ];
    for cell in eras() {
        on_cell(cell, plain, |server, client| {
            let arguments = json!({"command": "touch ran"});
            for meta in &unseen {
                let id = client.start(
                    "tools/call",
                    json!({"name": "shell.exec", "arguments": arguments, "_meta": meta}),
                );
                let message = client.finish(id, "shell.exec", &arguments);
                assert_holds(
                    json!({"kind": "approval_denied", "reason": "no_human"}),
                    error_of(&message),
                );
            }
            assert!(client.questions.is_empty(), "it was asked all the same");
            assert!(!server.workspace().join("ran").exists());
        });
    }
}

/// Older versions push their state instead, and it holds until the next one.
#[test]
fn a_client_that_pushes_its_state_is_believed_at_once() {
    let mut server = Options::new(Transport::Stdio).unfenced().spawn();
    let mut client = server.connect(SESSIONS);
    let declared = client.request("initialize", json!({"protocolVersion": SESSIONS, "capabilities": {"elicitation": {}}, "clientInfo": {"name": "codex-mcp-client", "version": "1"}}));
    assert_holds(
        json!({"codex/sandbox-state": {"version": "1.0.0"}, "codex/sandbox-state-meta": {}}),
        &declared["result"]["capabilities"]["experimental"],
    );
    let push = |client: &mut Client, kind: &str| {
        let answer =
            client.request("codex/sandbox-state/update", json!({"sandboxPolicy": {"type": kind}}));
        assert_eq!(answer["result"], json!({}));
    };
    push(&mut client, "danger-full-access");
    assert_holds(
        json!({"kind": "approval_denied", "reason": "no_human"}),
        error_of(&echo(&mut client, "one")),
    );
    push(&mut client, "workspace-write");
    assert_ran(&echo(&mut client, "two"), "two");
}

#[test]
fn trust_does_not_cross_sessions() {
    for transport in [Transport::Http, Transport::Sse] {
        for version in [SESSIONS, MODERN] {
            let mut server = Options::new(transport).unfenced().spawn();
            let mut trusting = server.connect(version);
            trusting.approve = Approve::Session;
            assert_ran(&echo(&mut trusting, "one"), "one");
            let mut other = server.connect(version);
            other.approve = Approve::Decline;
            assert_eq!(error_of(&echo(&mut other, "two"))["kind"], "approval_denied");
            trusting.approve = Approve::Decline;
            assert_ran(&echo(&mut trusting, "three"), "three");
        }
    }
}

/// On 2026-07-28 a session is what comes back with its handle. On stdio and SSE it is also the connection, which is one
/// client's; the requests of HTTP have nothing else in common.
#[test]
fn without_a_handle_there_is_trust_only_in_a_connection() {
    for (transport, is_trusted) in
        [(Transport::Stdio, true), (Transport::Http, false), (Transport::Sse, true)]
    {
        let mut server = Options::new(transport).unfenced().spawn();
        let mut client = server.client(MODERN);
        client.approve = Approve::Session;
        let first = echo(&mut client, "one");
        assert_ran(&first, "one");
        client.approve = Approve::Decline;
        let second = echo(&mut client, "two");
        match is_trusted {
            true => assert_ran(&second, "two"),
            false => assert_eq!(error_of(&second)["kind"], "approval_denied"),
        }
        // The handle that came with a result can be used from then on, also as an argument.
        client.handle =
            first["result"]["_meta"]["dev.ringfence/session"].as_str().map(str::to_owned);
        client.approve = Approve::Session;
        assert_ran(&echo(&mut client, "three"), "three");
        let handle = client.handle.take();
        client.approve = Approve::Decline;
        let arguments = json!({"command": "echo four", "ringfence_session": handle});
        assert_ran(&client.call("shell.exec", arguments), "four");
        let forged = json!({"command": "echo five", "ringfence_session": "forged"});
        let message = client.call("shell.exec", forged);
        assert_holds(
            json!({"error": {"code": -32602, "data": {"reason": "bad_session"}}}),
            &message,
        );
    }
}

#[test]
fn trust_does_not_cross_tools() {
    let always = |options: Options| options.config("[approval]\nown_tools = \"always\"");
    for cell in eras() {
        on_cell(cell, always, |server, client| {
            client.approve = Approve::Session;
            assert_ran(&echo(client, "one"), "one");
            client.approve = Approve::Decline;
            let message = client.call("file.write", json!({"path": "ran", "content": "x"}));
            assert_eq!(error_of(&message)["kind"], "approval_denied");
            assert!(!server.workspace().join("ran").exists());
            assert_ran(&echo(client, "two"), "two");
        });
    }
}

/// Calls a command and leaves its question open: the arguments and the sealed state.
fn ask(client: &mut Client, command: &str) -> (Value, Value) {
    let arguments = json!({"command": command});
    client.approve = Approve::Never;
    let message = client.call("shell.exec", arguments.clone());
    assert_eq!(message["result"]["resultType"], "input_required", "{message}");
    (arguments, message["result"]["requestState"].clone())
}

fn yes() -> Value {
    json!({"q1": {"action": "accept", "content": {}}})
}

#[track_caller]
fn assert_refused(message: &Value, reason: &str) {
    let data = json!({"kind": "invalid_arguments", "reason": reason, "hint": "*", "trace_id": "*"});
    assert_holds(json!({"error": {"code": -32602, "data": data}}), message);
}

#[test]
fn sealed_state_is_good_for_one_answer_to_the_same_call() {
    for transport in [Transport::Stdio, Transport::Http, Transport::Sse] {
        let mut server = Options::new(transport).unfenced().spawn();
        let mut client = server.connect(MODERN);
        let (arguments, state) = ask(&mut client, "echo ran >> ran");
        let text = state.as_str().unwrap();
        for at in [0, text.len() / 2, text.len() - 1] {
            let mut changed = text.as_bytes().to_vec();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = json!(String::from_utf8(changed).unwrap());
            assert_refused(&client.retry("shell.exec", &arguments, &changed, yes()), "bad_state");
        }
        for forged in ["", "x", "{}"] {
            assert_refused(
                &client.retry("shell.exec", &arguments, &json!(forged), yes()),
                "bad_state",
            );
        }
        assert_refused(
            &client.retry("shell.exec", &json!({"command": "echo other >> ran"}), &state, yes()),
            "other_call",
        );
        assert_refused(&client.retry("file.read", &arguments, &state, yes()), "other_call");
        assert!(!server.workspace().join("ran").exists());
        let message = client.retry("shell.exec", &arguments, &state, yes());
        assert_holds(json!({"result": {"structuredContent": {"exit_code": 0}}}), &message);
        assert_refused(&client.retry("shell.exec", &arguments, &state, yes()), "used_state");
        assert_eq!(std::fs::read_to_string(server.workspace().join("ran")).unwrap(), "ran\n");
        assert_eq!(server.events("call.start").len(), 1);
    }
}

/// A retry that answers nothing gets the question again, under new state.
#[test]
fn a_retry_without_an_answer_is_asked_again() {
    let mut server = Options::new(Transport::Http).unfenced().spawn();
    let mut client = server.connect(MODERN);
    let (arguments, state) = ask(&mut client, "echo once >> ran");
    let again = client.retry("shell.exec", &arguments, &state, json!({}));
    assert_eq!(again["result"]["resultType"], "input_required", "{again}");
    assert_refused(&client.retry("shell.exec", &arguments, &state, yes()), "used_state");
    let message =
        client.retry("shell.exec", &arguments, &again["result"]["requestState"].clone(), yes());
    assert_holds(json!({"result": {"structuredContent": {"exit_code": 0}}}), &message);
    assert_eq!(std::fs::read_to_string(server.workspace().join("ran")).unwrap(), "once\n");
}

#[test]
fn sealed_state_is_good_for_its_principal_alone() {
    let options = Options::new(Transport::Http).unfenced().config("shared_workspace = true");
    let mut server =
        options.env("MCP_AUTH_ENABLED", "true").env("MCP_AUTH_JWT_SECRET", token::SECRET).spawn();
    let mut anna = server.client_as(MODERN, Some(&token::of("anna")));
    anna.shake_hands();
    let mut bert = server.client_as(MODERN, Some(&token::of("bert")));
    bert.shake_hands();
    let (arguments, state) = ask(&mut anna, "echo ran");
    assert_refused(&bert.retry("shell.exec", &arguments, &state, yes()), "bad_state");
    let message = anna.retry("shell.exec", &arguments, &state, yes());
    assert_ran(&message, "ran");
    // Nor is a session handle.
    bert.handle = anna.handle.clone();
    assert_refused(&bert.call("shell.exec", arguments), "bad_session");
}

#[test]
fn sealed_state_of_another_server_is_worth_nothing() {
    let mut server = Options::new(Transport::Stdio).unfenced().spawn();
    let mut client = server.connect(MODERN);
    let (arguments, state) = ask(&mut client, "touch ran");
    let mut second = Options::new(Transport::Stdio).unfenced().on(&server.scratch).spawn();
    let mut other = second.connect(MODERN);
    assert_refused(&other.retry("shell.exec", &arguments, &state, yes()), "bad_state");
    assert!(!server.workspace().join("ran").exists());
}

fn steps(server: &Server) -> Vec<String> {
    let log =
        std::fs::read_to_string(server.workspace().join("asks_twice.log")).unwrap_or_default();
    log.lines().map(str::to_owned).collect()
}

/// A run that asks in the middle is parked, taken up again and never started twice.
#[test]
fn a_call_that_asks_in_mid_run_runs_once() {
    on_every_transport(
        |options| options.arg("--conformance-fixtures"),
        |server, client| {
            let message = client.call("test_asks_twice", json!({}));
            assert_eq!(message["result"]["isError"], false, "{message:#}");
            assert_eq!(client.questions.len(), 2, "{}", client.at());
            assert_eq!(steps(server), ["first", "second"], "{}", client.at());
            assert_eq!(server.events("call.start").len(), 1);
            let approvals = server.events("approval");
            assert_eq!(approvals.len(), 2);
            let stop = &server.stops(1)[0];
            for approval in &approvals {
                assert_eq!(approval["trace_id"], stop["trace_id"]);
            }
        },
    );
}

/// State of the first round is used up in the second, and the run is where it was.
#[test]
fn a_parked_run_is_not_disturbed_by_old_state() {
    let mut server = Options::new(Transport::Http).unfenced().arg("--conformance-fixtures").spawn();
    let mut client = server.connect(MODERN);
    client.approve = Approve::Never;
    let first = client.call("test_asks_twice", json!({}))["result"].clone();
    let answers = |round: &Value| {
        let keys = round["inputRequests"].as_object().unwrap().keys();
        keys.map(|key| (key.clone(), json!({"action": "accept", "content": {}}))).collect::<Value>()
    };
    let second = client.retry(
        "test_asks_twice",
        &json!({}),
        &first["requestState"],
        answers(&first),
    )["result"]
        .clone();
    assert_eq!(second["resultType"], "input_required");
    assert_refused(
        &client.retry("test_asks_twice", &json!({}), &first["requestState"], answers(&first)),
        "used_state",
    );
    let last =
        client.retry("test_asks_twice", &json!({}), &second["requestState"], answers(&second));
    assert_eq!(last["result"]["isError"], false, "{last:#}");
    assert_eq!(steps(&server), ["first", "second"]);
}

/// Nobody comes back: the run is told no, and nothing is left of it.
#[test]
fn a_parked_run_that_nobody_comes_back_for_ends() {
    let config = "[approval]\nexpiry_s = 1\n[limits]\ngrace_ms = 100";
    let mut server = Options::new(Transport::Http)
        .unfenced()
        .config(config)
        .arg("--conformance-fixtures")
        .spawn();
    let mut client = server.connect(MODERN);
    client.approve = Approve::Never;
    client.call("test_asks_twice", json!({}));
    server.stops(1);
    assert_eq!(server.events("approval")[0]["outcome"], "expired");
}

fn pending(server: &Server) -> Vec<Value> {
    let output = ringfence(&server.scratch)
        .args(["approvals", "--json", "--root"])
        .arg(server.root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    value["pending"].as_array().unwrap().clone()
}

#[test]
fn a_mistyped_root_does_not_hide_questions() {
    let mut server = Options::new(Transport::Http).unfenced().spawn();
    let mut client = server.connect(MODERN);
    client.call("mcp.capabilities", json!({}));
    assert_eq!(pending(&server).len(), 0, "a root in use, without questions");
    let list = |root: &std::path::Path| {
        let output =
            ringfence(&server.scratch).args(["approvals", "--root"]).arg(root).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let mistyped = server.root().with_file_name("mistyped");
    let (code, said) = list(&mistyped);
    let expected = format!("error: no server has used the root {}\nhint: ", mistyped.display());
    assert!(code == Some(66) && said.starts_with(&expected), "{code:?} {said}");
    assert_eq!(list(&server.root()).0, Some(0));
}

/// `ringfence approvals ANSWER` at a terminal of its own, in a process that the server's client did not start.
fn at_terminal(server: &Server, words: &[&str]) -> (bool, String) {
    let script = r#"
import os, pty, subprocess, sys
status = pty.spawn(sys.argv[1:])
sys.exit(os.waitstatus_to_exitcode(status))
"#;
    let mut command = std::process::Command::new("python3");
    command
        .args(["-c", script])
        .arg(binary())
        .args(["approvals", "--root"])
        .arg(server.root())
        .args(words);
    let output = command.stdin(std::process::Stdio::null()).output().expect("python3 runs");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

const TERMINAL: &str = "[approval]\nterminal = true";

fn wait_for_question(server: &Server) -> Value {
    let mut found = Vec::new();
    eventually(DEADLINE, "a question waits", || {
        found = pending(server);
        !found.is_empty()
    });
    assert_eq!(found.len(), 1);
    found.remove(0)
}

#[test]
fn a_person_at_the_terminal_can_answer_for_a_client_that_cannot() {
    for version in [SESSIONS, MODERN] {
        let mut server = Options::new(Transport::Http).unfenced().config(TERMINAL).spawn();
        let mut client = server.client(version);
        client.capabilities = json!({});
        client.shake_hands();
        let arguments = json!({"command": "echo seen"});
        for (words, outcome) in [(&["allow"][..], "approved"), (&["deny"], "denied")] {
            let id = client.start_call("shell.exec", &arguments);
            let question = wait_for_question(&server);
            assert_holds(
                json!({"tool": "shell.exec", "arguments": {"command": "echo seen"}, "principal": "local"}),
                &question,
            );
            let (done, said) =
                at_terminal(&server, &[words, &[question["id"].as_str().unwrap()]].concat());
            assert!(done, "{said}");
            let message = client.finish(id, "shell.exec", &arguments);
            match outcome {
                "approved" => assert_ran(&message, "seen"),
                _ => assert_eq!(error_of(&message)["kind"], "approval_denied"),
            }
            assert_holds(
                json!({"outcome": outcome, "by": "terminal"}),
                server.events("approval").last().unwrap(),
            );
            assert!(pending(&server).is_empty());
        }
    }
}

#[test]
fn the_terminal_can_trust_a_session() {
    let mut server = Options::new(Transport::Http).unfenced().config(TERMINAL).spawn();
    let mut client = server.connect(SESSIONS);
    client.approve = Approve::Never;
    let arguments = json!({"command": "echo seen"});
    let id = client.start_call("shell.exec", &arguments);
    let question = wait_for_question(&server);
    let (done, said) =
        at_terminal(&server, &["allow", question["id"].as_str().unwrap(), "--session"]);
    assert!(done, "{said}");
    assert_ran(&client.finish(id, "shell.exec", &arguments), "seen");
    assert_ran(&client.call("shell.exec", arguments), "seen");
    assert_holds(
        json!([{"by": "terminal", "mode": "session"}, {"by": "trust"}]),
        &json!(server.events("approval")),
    );
}

/// The list says how old a question is and when it expires; `--inside` is an answer where the question offers it.
#[test]
fn the_terminal_can_keep_a_command_inside() {
    let options =
        Options::new(Transport::Http).unfenced().config(TERMINAL).arg("--conformance-fixtures");
    let mut server = options.spawn();
    let mut client = server.connect(SESSIONS);
    client.approve = Approve::Never;
    let id = client.start_call("test_asks_where_to_run", &json!({}));
    let question = wait_for_question(&server);
    let name = question["id"].as_str().unwrap();
    let (_, listed) = at_terminal(&server, &[]);
    let header =
        listed.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{listed}"));
    assert!(header.contains(", asked ") && header.contains(" ago, expires in "), "{header}");
    let (done, said) = at_terminal(&server, &["allow", name, "--inside", "--session"]);
    assert!(!done, "both cannot be: {said}");
    let (done, said) = at_terminal(&server, &["allow", name, "--inside"]);
    assert!(done && said.contains("Allowed inside the sandbox:"), "{said}");
    let message = client.finish(id, "test_asks_where_to_run", &json!({}));
    let want = json!({"by": "terminal", "for_session": false, "inside": true});
    assert_holds(want, &message["result"]["structuredContent"]);
    let id = client.start_call("shell.exec", &json!({"command": "echo seen"}));
    let question = wait_for_question(&server);
    let name = question["id"].as_str().unwrap();
    let (done, said) = at_terminal(&server, &["allow", name, "--inside"]);
    assert!(!done && said.contains("does not offer `--inside`"), "{said}");
    assert_eq!(pending(&server).len(), 1, "a mistake at the terminal is no answer");
    assert!(at_terminal(&server, &["allow", name]).0);
    assert_ran(&client.finish(id, "shell.exec", &json!({"command": "echo seen"})), "seen");
}

/// The client is asked too. Whoever is first decides, and the other's dialog is taken back.
#[test]
fn the_first_answer_wins() {
    let mut server = Options::new(Transport::Http).unfenced().config(TERMINAL).spawn();
    let mut client = server.connect(SESSIONS);
    client.listen();
    client.approve = Approve::Never;
    let arguments = json!({"command": "echo first"});
    let id = client.start_call("shell.exec", &arguments);
    let (asked, _) = client.wait_question();
    let question = wait_for_question(&server);
    let (done, said) = at_terminal(&server, &["allow", question["id"].as_str().unwrap()]);
    assert!(done, "{said}");
    assert_ran(&client.wait(&id), "first");
    let note = client.wait_notification("notifications/cancelled");
    assert_eq!(note["params"]["requestId"], asked);
    client.reply(&asked, Approve::Decline.answer().unwrap());
    // A late answer changes nothing, and the connection is as good as before.
    client.approve = Approve::Once;
    assert_ran(&echo(&mut client, "again"), "again");
}

#[test]
fn the_terminal_is_too_late_when_the_client_has_answered() {
    let mut server = Options::new(Transport::Http).unfenced().config(TERMINAL).spawn();
    let mut client = server.connect(SESSIONS);
    client.approve = Approve::Never;
    let id = client.start_call("shell.exec", &json!({"command": "echo first"}));
    let (asked, _) = client.wait_question();
    let question = wait_for_question(&server);
    client.reply(&asked, Approve::Decline.answer().unwrap());
    assert_eq!(error_of(&client.wait(&id))["kind"], "approval_denied");
    let (done, said) = at_terminal(&server, &["allow", question["id"].as_str().unwrap()]);
    assert!(!done, "{said}");
    assert_eq!(server.events("approval").len(), 1);
    assert_eq!(server.events("call.start").len(), 0);
}

/// On stdio the client started the server, so whatever else it starts is the agent's hand.
#[test]
fn an_agent_cannot_approve_itself() {
    assert_agent_cannot_approve(Options::new(Transport::Stdio));
}

/// `npx` and its like stand between the client and the server, which are still the same agent.
#[test]
fn an_agent_cannot_approve_itself_behind_a_launcher() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let launcher = scratch.path().join("launcher");
    let script = format!("#!/bin/sh\n'{}' \"$@\"\nexit $?\n", binary().display());
    std::fs::write(&launcher, script).unwrap();
    std::fs::set_permissions(&launcher, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_agent_cannot_approve(Options::new(Transport::Stdio).on(&scratch).through(launcher));
}

fn assert_agent_cannot_approve(options: Options) {
    let mut server = options.unfenced().config(TERMINAL).spawn();
    let mut client = server.connect(SESSIONS);
    client.approve = Approve::Never;
    client.start_call("shell.exec", &json!({"command": "touch ran"}));
    let (asked, _) = client.wait_question();
    let question = wait_for_question(&server);
    let id = question["id"].as_str().unwrap();
    let (done, said) = at_terminal(&server, &["allow", id]);
    assert!(!done && said.contains("cannot answer"), "{said}");
    let piped = ringfence(&server.scratch)
        .args(["approvals", "allow", id, "--root"])
        .arg(server.root())
        .output()
        .unwrap();
    assert!(!piped.status.success(), "no terminal at all");
    assert!(!server.workspace().join("ran").exists());
    assert_eq!(pending(&server).len(), 1, "the question still waits");
    client.reply(&asked, Approve::Decline.answer().unwrap());
    server.stops(1);
}

#[test]
fn the_approval_socket_is_for_the_owner_alone() {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    let server = Options::new(Transport::Http).unfenced().config(TERMINAL).spawn();
    let mut sockets = Vec::new();
    eventually(DEADLINE, "there is a socket", || {
        let mut folders = vec![server.root()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
                let kind = entry.file_type().unwrap();
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if kind.is_socket() {
                    sockets.push(entry.path());
                }
            }
        }
        !sockets.is_empty()
    });
    let [socket] = &sockets[..] else { panic!("{sockets:?}") };
    // It is there a moment before it has its mode; its directory was closed before.
    eventually(DEADLINE, "nobody else may use it", || {
        socket.metadata().unwrap().permissions().mode() & 0o777 == 0o600
    });
    assert_eq!(socket.parent().unwrap().metadata().unwrap().permissions().mode() & 0o077, 0);
}
