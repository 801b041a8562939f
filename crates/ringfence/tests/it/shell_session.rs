//! Commands that go on after their call, and shells that live on between calls.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::server::Scratch;
use crate::support::{
    Client, DEADLINE, Options, SESSIONS, Server, Transport, eventually, matrix, process,
};

fn start() -> (Server, Client) {
    let mut server = Options::new(Transport::Stdio).spawn();
    let client = server.connect(SESSIONS);
    (server, client)
}

/// What a call says, without the wrapping.
fn call(client: &mut Client, tool: &str, arguments: Value) -> Value {
    let answer = client.call(tool, arguments);
    let result = &answer["result"]["structuredContent"];
    if result.is_null() { answer.clone() } else { result.clone() }
}

fn exec(client: &mut Client, arguments: Value) -> Value {
    call(client, "shell.exec", arguments)
}

fn session(client: &mut Client, arguments: Value) -> Value {
    call(client, "shell.session", arguments)
}

/// Reads on until it says so, or fails. It may have said so before its call was answered.
fn read_until(client: &mut Client, begun: &Value, wanted: &str) -> String {
    let id = begun["exec_id"].as_str().unwrap_or_else(|| panic!("{begun}"));
    let (mut said, until) =
        (begun["stdout"].as_str().unwrap().to_owned(), Instant::now() + Duration::from_secs(10));
    while !said.contains(wanted) {
        assert!(Instant::now() < until, "never said {wanted:?} but {said:?}");
        let seen = session(client, json!({"op": "read", "id": id, "wait_ms": 100}));
        said.push_str(seen["stdout"].as_str().unwrap_or_else(|| panic!("{seen}")));
    }
    said
}

#[test]
fn what_takes_long_goes_on_and_is_read_on() {
    matrix::on_cells_at_once(
        matrix::eras().filter(|cell| cell.version != crate::support::MODERN),
        |options| options,
        |_, client| {
            let begun = exec(
                client,
                json!({"command": "echo one; sleep 2; echo two; exit 3", "yield_ms": 800}),
            );
            assert_eq!(
                (&begun["status"], &begun["stdout"]),
                (&json!("running"), &json!("one\n")),
                "{begun}"
            );
            let id = begun["exec_id"].as_str().unwrap().to_owned();
            let done = session(client, json!({"op": "read", "id": id}));
            assert_eq!(
                (&done["status"], &done["exit_code"]),
                (&json!("failed"), &json!(3)),
                "{done}"
            );
            assert_eq!(done["stdout"], "two\n", "only what is new");
            let again = session(client, json!({"op": "read", "id": id}));
            assert_eq!((&again["exit_code"], &again["stdout"]), (&json!(3), &json!("")));
            let whole = client.call("file.read", json!({"path": begun["output"]}));
            assert_eq!(whole["result"]["content"][0]["text"], "one\ntwo\n");
        },
    );
}

#[test]
fn a_server_in_the_background_serves_later_calls() {
    let (_server, mut client) = start();
    let command = "echo hello >index.html; exec python3 -u -m http.server 8123 --bind 127.0.0.1";
    let begun = exec(&mut client, json!({"command": command, "yield_ms": 0}));
    assert_eq!(begun["status"], "running", "{begun}");
    let id = begun["exec_id"].as_str().unwrap().to_owned();
    read_until(&mut client, &begun, "Serving HTTP");
    let got = exec(&mut client, json!({"command": "curl -s http://127.0.0.1:8123/"}));
    assert_eq!(got["stdout"], "hello\n", "{got}");
    let listed = session(&mut client, json!({"op": "list"}));
    assert_eq!(
        (&listed["runs"][0]["id"], &listed["runs"][0]["status"]),
        (&json!(id), &json!("running"))
    );
    let closed = session(&mut client, json!({"op": "close", "id": id}));
    assert_eq!(
        (&closed["status"], &closed["error"]),
        (&json!("cancelled"), &Value::Null),
        "{closed}"
    );
    let gone = session(&mut client, json!({"op": "read", "id": id}));
    assert_eq!(gone["error"]["kind"], "not_found", "{gone}");
    let got = exec(&mut client, json!({"command": "curl -s http://127.0.0.1:8123/"}));
    assert_eq!(got["status"], "failed", "{got}");
}

#[test]
fn a_program_that_asks_is_answered() {
    let (_server, mut client) = start();
    let begun = exec(
        &mut client,
        json!({"command": "read name; echo hello $name; cat; echo end", "interactive": true, "yield_ms": 50}),
    );
    let id = begun["exec_id"].as_str().unwrap_or_else(|| panic!("{begun}")).to_owned();
    let mut said = session(&mut client, json!({"op": "write", "id": id, "input": "world\n"}));
    assert_eq!(said["status"], "running", "{said}");
    said["exec_id"] = json!(id);
    assert_eq!(read_until(&mut client, &said, "world"), "hello world\n");
    let said = session(
        &mut client,
        json!({"op": "write", "id": id, "input": "more\n", "eof": true, "wait_ms": 5000}),
    );
    assert_eq!(
        (&said["status"], &said["stdout"]),
        (&json!("completed"), &json!("more\nend\n")),
        "{said}"
    );
    let late = session(&mut client, json!({"op": "write", "id": id, "input": "x"}));
    assert_eq!(late["error"]["kind"], "conflict", "{late}");
    let deaf = exec(&mut client, json!({"command": "sleep 5", "yield_ms": 0}));
    let refused = session(&mut client, json!({"op": "write", "id": deaf["exec_id"], "input": "x"}));
    assert_eq!(refused["error"]["reason"], "stdin_closed", "{refused}");
}

#[test]
fn signals_reach_what_goes_on() {
    let (_server, mut client) = start();
    let command = "trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let begun = exec(&mut client, json!({"command": command, "yield_ms": 0}));
    let id = begun["exec_id"].as_str().unwrap().to_owned();
    read_until(&mut client, &begun, "ready");
    let ended =
        session(&mut client, json!({"op": "signal", "id": id, "signal": "TERM", "wait_ms": 5000}));
    assert_eq!((&ended["exit_code"], &ended["stdout"]), (&json!(7), &json!("caught\n")), "{ended}");
    let unknown = session(&mut client, json!({"op": "signal", "id": id, "signal": "TRM"}));
    assert_eq!(unknown["error"]["kind"], "invalid_arguments", "{unknown}");
}

#[test]
fn its_own_time_ends_what_goes_on() {
    let (_server, mut client) = start();
    let begun = exec(
        &mut client,
        json!({"command": "echo on; sleep 60", "yield_ms": 0, "timeout_ms": 700}),
    );
    let done = session(&mut client, json!({"op": "read", "id": begun["exec_id"]}));
    assert_eq!(
        (&done["status"], &done["error"]["kind"]),
        (&json!("timed_out"), &json!("deadline_exceeded")),
        "{done}"
    );
}

#[test]
fn a_shell_keeps_its_state_between_calls() {
    let (_server, mut client) = start();
    let first = exec(
        &mut client,
        json!({"command": "mkdir sub; cd sub; X=kept; echo err >&2; false", "session": "new"}),
    );
    assert_eq!(
        (&first["status"], &first["exit_code"], &first["stderr"]),
        (&json!("failed"), &json!(1), &json!("err\n"))
    );
    let id = first["session"].as_str().unwrap_or_else(|| panic!("{first}")).to_owned();
    let second = exec(&mut client, json!({"command": "echo $X; basename $PWD", "session": id}));
    assert_eq!(
        (&second["stdout"], &second["exit_code"]),
        (&json!("kept\nsub\n"), &json!(0)),
        "{second}"
    );
    // A line of several kilobytes, with quotes and line ends.
    let long = format!("cat <<'END' | wc -c\n{}\nEND\n", "it's \"long\" ".repeat(2000));
    let third = exec(&mut client, json!({"command": long, "session": id}));
    assert_eq!(third["stdout"], "24001\n", "{third}");
    let broken = exec(&mut client, json!({"command": "if", "session": id}));
    assert_eq!(broken["status"], "failed", "{broken}");
    let fourth = exec(&mut client, json!({"command": "echo $X; exit 5", "session": id}));
    assert_eq!(
        (&fourth["stdout"], &fourth["exit_code"]),
        (&json!("kept\n"), &json!(5)),
        "{fourth}"
    );
    let gone = exec(&mut client, json!({"command": "true", "session": id}));
    assert_eq!(gone["error"]["kind"], "not_found", "{gone}");
}

#[test]
fn a_command_that_takes_too_long_is_interrupted_and_the_shell_lives_on() {
    let (_server, mut client) = start();
    let first = exec(&mut client, json!({"command": "X=kept", "session": "new"}));
    let id = first["session"].as_str().unwrap().to_owned();
    let late = exec(
        &mut client,
        json!({"command": "echo before; sleep 60", "session": id, "timeout_ms": 300}),
    );
    assert_eq!(
        (&late["status"], &late["stdout"]),
        (&json!("timed_out"), &json!("before\n")),
        "{late}"
    );
    assert_eq!(late["error"]["kind"], "deadline_exceeded");
    let next = exec(&mut client, json!({"command": "echo $X", "session": id}));
    assert_eq!(next["stdout"], "kept\n", "{next}");
    // One that does not listen takes the shell with it.
    let stubborn = exec(
        &mut client,
        json!({"command": "trap '' INT; sleep 60", "session": id, "timeout_ms": 300}),
    );
    assert_eq!(stubborn["status"], "timed_out", "{stubborn}");
    assert!(stubborn["warnings"].to_string().contains("has ended"), "{stubborn}");
}

#[test]
fn a_shell_is_not_spoken_to_by_two_at_once() {
    let (_server, mut client) = start();
    let busy = exec(
        &mut client,
        json!({"command": "sleep 3; echo done", "session": "new", "yield_ms": 100}),
    );
    assert_eq!(busy["status"], "running", "{busy}");
    let id = busy["exec_id"].as_str().unwrap().to_owned();
    let refused = exec(&mut client, json!({"command": "true", "session": id}));
    assert_eq!(
        (&refused["error"]["kind"], &refused["error"]["reason"]),
        (&json!("conflict"), &json!("busy")),
        "{refused}"
    );
    let done = session(&mut client, json!({"op": "read", "id": id}));
    assert_eq!(
        (&done["status"], &done["stdout"]),
        (&json!("completed"), &json!("done\n")),
        "{done}"
    );
    let next = exec(&mut client, json!({"command": "echo next", "session": id}));
    assert_eq!(next["stdout"], "next\n", "{next}");
}

#[test]
fn a_forbidden_command_is_stopped_in_a_shell_that_lives_on() {
    let rules = "prefix_rule(pattern=[\"uname\"], decision=\"forbidden\")\n";
    let scratch = Scratch::new();
    let file = scratch.path().join("shell.rules");
    std::fs::write(&file, rules).unwrap();
    let options =
        Options::new(Transport::Stdio).on(&scratch).arg("--rules").arg(file.to_str().unwrap());
    let mut server = options.spawn();
    let mut client = server.connect(SESSIONS);
    let first = exec(&mut client, json!({"command": "env uname -s", "session": "new"}));
    assert_eq!(first["exit_code"], 1, "{first}");
    assert!(first["stderr"].as_str().unwrap().contains("forbidden"), "{first}");
    let id = first["session"].as_str().unwrap().to_owned();
    // Other rules than it was started with: it is used no more.
    std::fs::write(&file, "prefix_rule(pattern=[\"id\"], decision=\"forbidden\")\n").unwrap();
    let refused = exec(&mut client, json!({"command": "true", "session": id}));
    assert_eq!(refused["error"]["reason"], "rules_changed", "{refused}");
}

#[test]
fn everything_dies_with_its_session() {
    let (mut server, mut client) = start();
    let marker = process::marker();
    exec(&mut client, json!({"command": format!("exec sleep {marker}"), "yield_ms": 0}));
    exec(&mut client, json!({"command": format!("sleep {marker} &"), "session": "new"}));
    eventually(Duration::from_secs(5), "both run", || process::with_argument(&marker).len() == 2);
    client.hang_up();
    server.ended();
    process::wait_for_death(&marker, Duration::from_secs(5));
}

#[test]
fn the_end_of_what_went_on_is_on_record() {
    let (mut server, mut client) = start();
    let begun = exec(&mut client, json!({"command": "echo hi; exit 4", "yield_ms": 0}));
    session(&mut client, json!({"op": "read", "id": begun["exec_id"]}));
    client.hang_up();
    server.ended();
    let records = server.audit();
    let of = |event: &str| {
        records.iter().filter(|record| record["event"] == event).cloned().collect::<Vec<_>>()
    };
    let stop = of("call.stop").into_iter().find(|record| record["tool"] == "shell.exec").unwrap();
    assert_eq!(stop["status"], "running");
    let [end] = &of("run.stop")[..] else { panic!("{records:#?}") };
    assert_eq!(
        (&end["exit_code"], &end["status"], &end["trace_id"]),
        (&json!(4), &json!("failed"), &stop["trace_id"])
    );
    assert_eq!(end["stdout_bytes"], 3);
}

/// Requests over HTTP have no session without a handle; on stdio they have their process.
#[test]
fn without_a_session_that_lasts_nothing_goes_on() {
    for (transport, reason) in
        [(Transport::Http, json!("no_session")), (Transport::Stdio, Value::Null)]
    {
        let mut server = Options::new(transport).spawn();
        let mut client = server.connect(crate::support::MODERN);
        for arguments in [
            json!({"command": "true", "yield_ms": 0}),
            json!({"command": "true", "session": "new"}),
        ] {
            client.handle = None;
            let reply = exec(&mut client, arguments);
            assert_eq!(reply["error"]["reason"], reason, "{reply}");
        }
    }
}

#[test]
fn a_command_that_goes_on_in_a_shell_keeps_its_time() {
    let (_server, mut client) = start();
    let marker = process::marker();
    let arguments = json!({"command": format!("sleep {marker}"), "session": "new", "yield_ms": 50, "timeout_ms": 700});
    let begun = exec(&mut client, arguments);
    assert_eq!(begun["status"], "running", "{begun}");
    process::wait_for_death(&marker, Duration::from_secs(5));
    let late = session(&mut client, json!({"op": "read", "id": begun["exec_id"]}));
    assert_eq!(late["status"], "timed_out", "{late}");
    let next = exec(&mut client, json!({"command": "echo on", "session": begun["exec_id"]}));
    assert_eq!(next["stdout"], "on\n", "{next}");
}

/// Somebody who reads for long holds up neither the next command nor its time.
#[test]
fn a_reader_holds_nobody_up() {
    let (_server, mut client) = start();
    let first =
        exec(&mut client, json!({"command": "(sleep 30; echo late) & echo on", "session": "new"}));
    let id = first["session"].clone();
    let look = json!({"op": "read", "id": id, "wait_ms": 20000});
    let busy = exec(&mut client, json!({"command": "sleep 0.3", "session": id, "yield_ms": 50}));
    assert_eq!(busy["status"], "running", "{busy}");
    let reading = client.start_call("shell.session", &look);
    let begun = Instant::now();
    let done = session(&mut client, json!({"op": "read", "id": id, "wait_ms": 5000}));
    assert_eq!(done["status"], "completed", "{done}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let answer = client.finish(reading, "shell.session", &look);
    assert_eq!(answer["result"]["isError"], false, "{answer}");
}

#[test]
fn words_of_the_shell_that_end_loops_do_not_end_the_shell() {
    let (_server, mut client) = start();
    let first =
        exec(&mut client, json!({"command": "echo one; continue; echo never", "session": "new"}));
    assert_eq!((&first["stdout"], &first["exit_code"]), (&json!("one\n"), &json!(0)), "{first}");
    let id = first["session"].clone();
    let second = exec(&mut client, json!({"command": "break; echo never", "session": id}));
    assert_eq!(second["session"], id, "{second}");
    // What it writes to the line itself is nobody's answer.
    let forged = exec(
        &mut client,
        json!({"command": "for n in 9 10 11; do printf 'x 0\\0' >&$n; done 2>/dev/null; (exit 4)", "session": id}),
    );
    assert_eq!(forged["exit_code"], 4, "{forged}");
    let replaced = json!({"command": "exec sleep 30", "session": id, "timeout_ms": 400});
    let begun = Instant::now();
    let replaced = exec(&mut client, replaced);
    assert_eq!(replaced["status"], "timed_out", "{replaced}");
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn what_has_ended_takes_nobodys_place() {
    let (_server, mut client) = start();
    let marker = process::marker();
    for _ in 0..33 {
        let begun = exec(&mut client, json!({"command": "true", "yield_ms": 0}));
        // It may be over already when it is looked at.
        assert!(begun["error"].is_null(), "{begun}");
        eventually(Duration::from_secs(5), "it has ended", || {
            let listed = session(&mut client, json!({"op": "list"}));
            listed["runs"].as_array().unwrap().iter().all(|run| run["status"] != "running")
        });
    }
    for _ in 0..32 {
        exec(&mut client, json!({"command": format!("sleep {marker}"), "yield_ms": 0}));
    }
    let full = exec(&mut client, json!({"command": "true", "yield_ms": 0}));
    assert_eq!(full["error"]["kind"], "resource_exhausted", "{full}");
    let foreground = exec(&mut client, json!({"command": "echo on"}));
    assert_eq!(foreground["stdout"], "on\n", "{foreground}");
}

/// Nothing of a session is left once it is over: no process, no stored output.
#[test]
fn a_session_that_is_over_is_let_go() {
    let mut server = Options::new(Transport::Http).spawn();
    let mut client = server.connect(SESSIONS);
    let begun = exec(&mut client, json!({"command": "sleep 60", "yield_ms": 0}));
    assert_eq!(begun["status"], "running", "{begun}");
    exec(&mut client, json!({"command": "X=1", "session": "new"}));
    let zygotes = || {
        process::with_argument("__zygote")
            .into_iter()
            .filter(|pid| process::parent(*pid) == server.pid())
    };
    let outputs = server.root().join("outputs");
    let kept = || std::fs::read_dir(&outputs).map_or(0, Iterator::count);
    // Its directory, and the lock that shows that its owner lives.
    assert_eq!((zygotes().count(), kept()), (1, 2));
    client.delete();
    eventually(DEADLINE, "it is let go", || zygotes().count() == 0 && kept() == 0);
}

/// A call whose sandbox denies what a run could read is not shown what it said, whatever it asks for.
#[test]
fn a_narrower_call_sees_nothing_of_a_wider_run() {
    let (server, mut client) = start();
    std::fs::write(server.workspace().join("secret.txt"), "TOPSECRET\n").unwrap();
    let begun =
        exec(&mut client, json!({"command": "sleep 0.2; cat secret.txt; sleep 60", "yield_ms": 0}));
    let id = begun["exec_id"].clone();
    let narrow = json!({"codex/sandbox-state": {"sandboxPolicy": {"type": "read-only"}, "sandboxCwd": server.workspace()}});
    for op in
        [json!({"op": "read"}), json!({"op": "signal", "signal": "CONT"}), json!({"op": "close"})]
    {
        let mut arguments = op.clone();
        arguments["id"] = id.clone();
        arguments["wait_ms"] = json!(600);
        let params = json!({"name": "shell.session", "arguments": arguments, "_meta": narrow});
        let answer = client.request("tools/call", params);
        assert!(!answer.to_string().contains("TOPSECRET"), "{op}: {answer}");
    }
}
