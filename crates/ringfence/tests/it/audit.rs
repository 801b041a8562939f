//! The log as an operator reads it: every call is in it, nothing can be changed unseen, and without it nothing runs.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::server::{Scratch, binary, ringfence, verify};
use crate::support::subset::assert_holds;
use crate::support::{
    Approve, DEADLINE, MODERN, Options, SESSIONS, Transport, eventually, on_every_transport,
};

#[test]
fn a_call_is_on_record_with_everything_that_matters() {
    on_every_transport(
        |options| options.unfenced(),
        |server, client| {
            let command = json!({"command": "echo hello; echo no >&2; exit 3"});
            let message = client.call("shell.exec", command);
            let trace =
                message["result"]["_meta"]["dev.ringfence/trace_id"].as_str().unwrap().to_owned();
            let stop = server.stops(1).remove(0);
            let transport = format!("{:?}", client.transport).to_lowercase();
            let workspace = server.workspace().display().to_string();
            let common = json!({
                "trace_id": "*", "session": "~s-", "principal": "local", "workspace": workspace, "transport": transport,
                "protocol": client.version, "client": "it/1", "tool": "shell.exec", "arguments_hash": "~sha256:",
                "cwd": workspace, "profile": "none", "timeout_ms": 120000, "seq": "*", "ts": "*", "mac": "*",
            });
            let start = server.events("call.start").remove(0);
            assert_holds(common.clone(), &start);
            assert_holds(common, &stop);
            assert_holds(
                json!({"status": "failed", "exit_code": 3, "stdout_bytes": 6, "stderr_bytes": 3, "started": "*",
                    "stopped": "*", "duration_ms": "*", "error": null, "cause": null}),
                &stop,
            );
            let approval = server.events("approval").remove(0);
            assert_holds(
                json!({"outcome": "approved", "by": "client", "mode": "once", "tool": "shell.exec"}),
                &approval,
            );
            for record in [&start, &approval] {
                assert_eq!(record["trace_id"], stop["trace_id"]);
                assert_eq!(record["session"], stop["session"]);
                assert_eq!(record["arguments_hash"], stop["arguments_hash"]);
            }
            // What the client was told leads to what is on record.
            assert_eq!(stop["trace_id"], trace);
            assert_eq!(message["result"]["structuredContent"]["trace_id"], stop["trace_id"]);
        },
    );
}

/// Arguments may hold secrets, so they are on record as a hash alone.
#[test]
fn arguments_and_tokens_are_not_in_the_log() {
    let mut server = Options::new(Transport::Stdio).env("RINGFENCE_LOG", "trace").spawn();
    let mut client = server.connect(SESSIONS);
    client.call(
        "shell.exec",
        json!({"command": "echo $TOKEN >/dev/null", "env": {"TOKEN": "hunter2hunter2"}}),
    );
    client.call("file.write", json!({"path": "f", "content": "hunter2hunter2"}));
    client.hang_up();
    assert!(server.ended().success());
    let records = json!(server.audit()).to_string();
    assert!(!records.contains("hunter2") && !server.log().contains("hunter2"), "{}", server.log());
}

#[test]
fn the_log_can_be_filtered() {
    let mut server = Options::new(Transport::Stdio).unfenced().spawn();
    let mut client = server.connect(SESSIONS);
    let first = client.call("shell.exec", json!({"command": "true"}));
    client.call("file.read", json!({"path": "missing"}));
    let trace = first["result"]["structuredContent"]["trace_id"].as_str().unwrap().to_owned();
    let session = server.stops(2)[0]["session"].as_str().unwrap().to_owned();
    let filtered = |filter: &[&str]| -> Vec<Value> {
        let mut command = ringfence(&server.scratch);
        let output = command
            .args(["audit", "--json", "--root"])
            .arg(server.root())
            .args(filter)
            .output()
            .unwrap();
        assert!(output.status.success(), "{filter:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let by_trace = filtered(&["--trace", &trace]);
    assert_eq!(by_trace.len(), 3, "approval, start, stop: {by_trace:?}");
    assert!(filtered(&["--tool", "file.read"]).iter().all(|record| record["tool"] == "file.read"));
    assert_eq!(filtered(&["--tool", "file.read"]).len(), 2);
    assert_eq!(filtered(&["--session", &session]).len(), 5);
    assert_eq!(filtered(&["--session", "s-none"]).len(), 0);
    assert_eq!(filtered(&["--since", "2099-01-01"]).len(), 0);
    assert_eq!(filtered(&["--since", "1h"]).len(), server.audit().len());
}

/// A finished log with a few records: its directory and its one file.
fn finished() -> (std::sync::Arc<Scratch>, PathBuf) {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    for _ in 0..3 {
        client.call("shell.exec", json!({"command": "true"}));
    }
    client.hang_up();
    assert!(server.ended().success());
    let mut files = logs(&server.scratch);
    assert_eq!(files.len(), 1);
    (std::sync::Arc::clone(&server.scratch), files.remove(0))
}

fn logs(scratch: &Scratch) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(scratch.path().join("root/audit")).unwrap();
    let mut files: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    files.sort();
    files
}

#[test]
fn a_whole_log_verifies() {
    let (scratch, _) = finished();
    let (code, text) = verify(&scratch);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("chain intact"), "{text}");
}

#[test]
fn one_changed_byte_is_found_and_named() {
    let (scratch, file) = finished();
    let whole = std::fs::read(&file).unwrap();
    let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
    assert!(lines.len() > 8);
    for number in [1, 4, lines.len()] {
        let before: usize = lines[..number - 1].iter().map(|line| line.len()).sum();
        let mut changed = whole.clone();
        // A digit of the time: still JSON, still plausible.
        let at = before + lines[number - 1].iter().rposition(|byte| byte.is_ascii_digit()).unwrap();
        changed[at] = if changed[at] == b'1' { b'2' } else { b'1' };
        std::fs::write(&file, &changed).unwrap();
        let (code, text) = verify(&scratch);
        assert_eq!(code, 1, "{text}");
        assert!(
            text.contains("BROKEN") && text.contains(&format!("line {number}")),
            "line {number}: {text}"
        );
    }
    std::fs::write(&file, &whole).unwrap();
    assert_eq!(verify(&scratch).0, 0);
}

#[test]
fn a_removed_line_and_a_cut_tail_are_found() {
    let (scratch, file) = finished();
    let whole = std::fs::read(&file).unwrap();
    let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
    let without = |number: usize| {
        let kept =
            lines.iter().enumerate().filter(|(at, _)| at + 1 != number).map(|(_, line)| *line);
        kept.collect::<Vec<_>>().concat()
    };
    let swapped = [&lines[..3], &[lines[4], lines[3]], &lines[5..]].concat().concat();
    let cut = lines[..lines.len() - 2].concat();
    let torn = whole[..whole.len() - 20].to_vec();
    for (what, bytes) in [
        ("removed", without(5)),
        ("swapped", swapped),
        ("cut", cut),
        ("torn", torn),
        ("emptied", Vec::new()),
    ] {
        std::fs::write(&file, bytes).unwrap();
        let (code, text) = verify(&scratch);
        assert_eq!(code, 1, "{what}: {text}");
        assert!(text.contains("BROKEN"), "{what}: {text}");
    }
    std::fs::remove_file(&file).unwrap();
    let (code, text) = verify(&scratch);
    assert_eq!(code, 1, "a whole file removed: {text}");
}

#[test]
fn two_servers_share_one_root() {
    let mut first = Options::new(Transport::Stdio).spawn();
    let mut second = Options::new(Transport::Http).on(&first.scratch).spawn();
    let mut one = first.connect(SESSIONS);
    let mut two = second.connect(MODERN);
    for _ in 0..5 {
        one.call("shell.exec", json!({"command": "true"}));
        two.call("shell.exec", json!({"command": "true"}));
    }
    let stops = first.stops(10);
    assert_eq!(stops.iter().filter(|stop| stop["transport"] == "stdio").count(), 5);
    let (code, text) = verify(&first.scratch);
    assert_eq!(code, 0, "while both write: {text}");
    one.hang_up();
    assert!(first.ended().success());
    second.signal(Signal::TERM);
    assert!(second.ended().success());
    let (code, text) = verify(&first.scratch);
    assert_eq!(code, 0, "{text}");
    assert_eq!(logs(&first.scratch).len(), 2);
}

/// The next server starts where the dead one left off, and the log says what happened.
#[test]
fn a_killed_server_leaves_a_log_that_says_so() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    client.approve = Approve::Session;
    client.call("shell.exec", json!({"command": "true"}));
    client.start_call("shell.exec", &json!({"command": "sleep 100"}));
    eventually(DEADLINE, "the call has begun", || server.events("call.start").len() == 2);
    server.signal(Signal::KILL);
    server.child.wait().unwrap();
    let (code, text) = verify(&server.scratch);
    assert_eq!(code, 0, "a crash is no forgery: {text}");
    assert!(text.contains("crash"), "{text}");
    let mut next = Options::new(Transport::Stdio).on(&server.scratch).spawn();
    let mut client = next.connect(SESSIONS);
    client.call("shell.exec", json!({"command": "true"}));
    client.hang_up();
    assert!(next.ended().success());
    let (code, text) = verify(&server.scratch);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("crash"), "{text}");
}

/// Fail closed: what cannot be recorded does not run.
#[test]
fn nothing_runs_when_the_log_cannot_be_written() {
    on_every_transport(
        |options| options.config("[limits]\naudit_rotate_mb = 1"),
        |server, client| {
            client.approve = Approve::Session;
            client.call("shell.exec", json!({"command": "true"}));
            // Root can write where it has no right to, so the directory goes away instead.
            let audit = server.root().join("audit");
            std::fs::rename(&audit, server.root().join("moved")).unwrap();
            let message = client.call("shell.exec", json!({"command": "touch ran"}));
            let error = &message["result"]["structuredContent"]["error"];
            assert_holds(json!({"kind": "unavailable", "hint": "*", "trace_id": "*"}), error);
            assert!(
                !server.workspace().join("ran").exists(),
                "{}: it ran off the record",
                client.at()
            );
            // Also where nobody has to be asked, which would be on record first.
            let message = client.call("file.write", json!({"path": "ran", "content": ""}));
            assert_eq!(
                message["result"]["structuredContent"]["error"]["kind"], "unavailable",
                "{message}"
            );
            assert!(
                !server.workspace().join("ran").exists(),
                "{}: it ran off the record",
                client.at()
            );
            std::fs::rename(server.root().join("moved"), &audit).unwrap();
        },
    );
}

/// A limit on file sizes stands in for a full disk.
#[test]
fn nothing_runs_when_the_disk_is_full() {
    let mut server = {
        let options = Options::new(Transport::Stdio);
        let scratch = Scratch::new();
        // The shell's own limit is inherited: no file may grow past 8 kB.
        let wrapper = scratch.path().join("limited");
        let binary = binary();
        let text = format!("#!/bin/bash\nulimit -f 8\nexec '{}' \"$@\"\n", binary.display());
        std::fs::write(&wrapper, text).unwrap();
        std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).unwrap();
        options.on(&scratch).through(wrapper).spawn()
    };
    let mut client = server.connect(SESSIONS);
    client.approve = Approve::Session;
    let mut ran = 0;
    let refused = loop {
        let message =
            client.call("shell.exec", json!({"command": format!("echo {ran} > ran-{ran}")}));
        if message["result"]["isError"] == true {
            break message;
        }
        ran += 1;
        assert!(ran < 100, "the log never fills");
    };
    assert_holds(
        json!({"error": {"hint": "*", "trace_id": "*"}}),
        &refused["result"]["structuredContent"],
    );
    assert!(ran > 0);
    assert!(!server.workspace().join(format!("ran-{ran}")).exists(), "it ran off the record");
    let message = client.call("file.write", json!({"path": "written", "content": ""}));
    assert_eq!(message["result"]["isError"], true, "{message}");
    assert!(!server.workspace().join("written").exists(), "it ran off the record");
    assert!(
        client.request("tools/list", json!({}))["result"]["tools"].is_array(),
        "the server lives on"
    );
}

#[test]
fn garbage_pipes_and_endless_lines_are_found_while_a_server_writes() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    client.call("file.list", json!({}));
    assert_eq!(verify(&server.scratch).0, 0);
    let live = logs(&server.scratch).remove(0);
    let folder = live.parent().unwrap();
    let pipe = folder.join("pipe.jsonl");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (code, text) = verify(&server.scratch);
    assert!(code == 1 && text.contains("pipe.jsonl line 1: it is not a regular file"), "{text}");
    std::fs::remove_file(pipe).unwrap();
    assert_eq!(verify(&server.scratch).0, 0);

    let size = std::fs::metadata(&live).unwrap().len();
    let file = std::fs::OpenOptions::new().append(true).open(&live).unwrap();
    std::io::Write::write_all(&mut &file, b"garbage").unwrap();
    let (code, text) = verify(&server.scratch);
    assert!(code == 1 && text.contains("something that is not a record was added"), "{text}");
    file.set_len(64 << 30).unwrap();
    let (code, text) = verify(&server.scratch);
    assert!(code == 1 && text.contains("it has more than 16777216 bytes"), "{text}");
    file.set_len(size).unwrap();
    assert_eq!(verify(&server.scratch).0, 0);
}
