//! Every end of a run reports what was seen until then: denials, execs and the list of execs are on record whatever
//! ends the run, and whatever the run does to prevent it.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::process::{marker, parent, wait_for_death, with_argument};
use crate::support::subset::assert_holds;
use crate::support::{
    Approve, Client, DEADLINE, MODERN, Options, SESSIONS, Server, Transport, eventually,
};

/// Is denied something, and then ignores every request to end.
const STUBBORN: &str = "unshare -r true; trap '' TERM; touch ready; while :; do sleep 0.05; done";

fn options(transport: Transport) -> Options {
    Options::new(transport).config("[limits]\ngrace_ms = 300").arg("--audit-execs")
}

fn start(version: &'static str, arguments: Value) -> (Server, Client, String) {
    let mut server = options(Transport::Stdio).spawn();
    let mut client = server.connect(version);
    client.approve = Approve::Decline;
    let id = client.start_call("shell.exec", &arguments);
    eventually(DEADLINE, "it ignores SIGTERM", || server.workspace().join("ready").exists());
    (server, client, id)
}

/// The record of the end names the denial and the execs, and those are listed one by one before it.
#[track_caller]
fn assert_reported(server: &Server, stop: &Value) {
    assert_holds(
        json!({"denials": [{"kind": "syscall", "name": "unshare", "count": 1}], "report": null}),
        stop,
    );
    assert!(stop["execs"]["count"].as_u64() >= Some(4), "bash, unshare, touch and sleep: {stop}");
    assert_eq!(stop["execs"]["unlisted"], Value::Null, "{stop}");
    let listed = server.events("exec");
    let of_run = listed.iter().filter(|exec| exec["trace_id"] == stop["trace_id"]).count();
    assert_eq!(Some(of_run as u64), stop["execs"]["count"].as_u64(), "{listed:#?}");
}

#[test]
fn a_run_that_ignores_sigterm_until_its_deadline_is_on_record() {
    for version in [SESSIONS, MODERN] {
        let (server, mut client, id) =
            start(version, json!({"command": STUBBORN, "timeout_ms": 800}));
        let message = client.wait(&id);
        let result = &message["result"]["structuredContent"];
        assert_holds(
            json!({"status": "timed_out", "sandbox": {"limits": "*", "denials": [{"name": "unshare"}]}}),
            result,
        );
        let stop = &server.stops(1)[0];
        assert_holds(json!({"status": "timed_out", "cause": "deadline", "signal": 9}), stop);
        assert_reported(&server, stop);
    }
}

/// The same in a sandbox without namespaces, where no process is the first.
#[test]
fn a_contained_run_that_ignores_sigterm_is_on_record() {
    let mut server = options(Transport::Stdio).config("[sandbox]\nprofile = \"contained\"").spawn();
    let mut client = server.connect(SESSIONS);
    client.call("shell.exec", json!({"command": STUBBORN, "timeout_ms": 800}));
    let stop = &server.stops(1)[0];
    assert_holds(json!({"status": "timed_out", "profile": "contained"}), stop);
    assert_reported(&server, stop);
}

/// A shell and an interpreter that live on between calls end with their session.
#[test]
fn what_lives_on_between_calls_is_on_record_when_the_server_ends() {
    let python = "import os, signal; os.system('unshare -r true; touch /tmp/x; stat / >/dev/null'); signal.signal(15, signal.SIG_IGN)";
    for (tool, arguments) in [
        (
            "shell.exec",
            json!({"command": "unshare -r true; touch x; stat / >/dev/null; trap '' TERM", "session": "new"}),
        ),
        ("code.exec", json!({"language": "python", "code": python, "session": "new"})),
    ] {
        let mut server = options(Transport::Stdio).spawn();
        let mut client = server.connect(SESSIONS);
        let message = client.call(tool, arguments);
        assert_eq!(message["result"]["isError"], false, "{message}");
        client.hang_up();
        assert!(server.ended().success(), "{}", server.log());
        let [stop] = &server.events("run.stop")[..] else {
            panic!("{tool}: {:#?}", server.audit())
        };
        assert_holds(json!({"status": "cancelled", "signal": 9}), stop);
        assert_reported(&server, stop);
    }
}

#[test]
fn a_run_that_ignores_sigterm_when_it_is_cancelled_is_on_record() {
    let (server, mut client, id) = start(SESSIONS, json!({"command": STUBBORN}));
    client.cancel(&id);
    let stop = &server.stops(1)[0];
    assert_holds(json!({"status": "cancelled", "cause": "client"}), stop);
    assert_reported(&server, stop);
}

#[test]
fn a_run_that_ignores_sigterm_when_the_server_ends_is_on_record() {
    for by_signal in [false, true] {
        let (mut server, mut client, _) = start(SESSIONS, json!({"command": STUBBORN}));
        match by_signal {
            true => server.signal(Signal::TERM),
            false => client.hang_up(),
        }
        assert!(server.ended().success(), "{}", server.log());
        let stop = &server.stops(1)[0];
        assert_holds(
            json!({"status": "cancelled", "cause": if by_signal { "shutdown" } else { "eof" }}),
            stop,
        );
        assert_reported(&server, stop);
        let events: Vec<Value> =
            server.audit().iter().map(|record| record["event"].clone()).collect();
        let at = |name: &str| events.iter().rposition(|event| event == name).unwrap();
        assert!(at("exec") < at("call.stop") && at("call.stop") < at("server.stop"), "{events:?}");
    }
}

#[test]
fn a_background_run_that_ignores_sigterm_is_on_record_however_it_ends() {
    for end in ["close", "eof", "shutdown"] {
        let (mut server, mut client, id) =
            start(SESSIONS, json!({"command": STUBBORN, "yield_ms": 100}));
        let message = client.wait(&id);
        let result = &message["result"]["structuredContent"];
        assert_eq!(result["status"], "running", "{message}");
        match end {
            "close" => {
                drop(client.call("shell.session", json!({"op": "close", "id": result["exec_id"]})))
            }
            "eof" => client.hang_up(),
            _ => server.signal(Signal::TERM),
        }
        eventually(DEADLINE, "its end is on record", || !server.events("run.stop").is_empty());
        let [stop] = &server.events("run.stop")[..] else { panic!("{end}: {:#?}", server.audit()) };
        assert_holds(json!({"status": "cancelled", "trace_id": result["trace_id"]}), stop);
        assert_reported(&server, stop);
        client.hang_up();
        server.ended();
    }
}

/// The main process ends at once; what it leaves behind uses the grace. The result does not wait for that, the record
/// does.
#[test]
fn what_is_left_behind_is_on_record_too() {
    let mut server = options(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let late = "trap '' TERM; touch up; exec >/dev/null 2>&1 </dev/null; until [ -e go ]; do sleep 0.01; done; unshare -r true; touch done; sleep 30";
    let command =
        format!("(setsid bash -c \"{late}\" &) ; until [ -e up ]; do sleep 0.01; done; echo main");
    let message = client.call("shell.exec", json!({"command": command}));
    let result = &message["result"]["structuredContent"];
    assert_holds(
        json!({"status": "completed", "stdout": "main\n", "warnings": ["~still running when the command exited"]}),
        result,
    );
    std::fs::write(server.workspace().join("go"), "").unwrap();
    let stop = &server.stops(1)[0];
    assert_holds(json!({"status": "completed", "report": "interim", "denials": null}), stop);
    eventually(DEADLINE, "the rest is on record", || !server.events("run.stop").is_empty());
    let rest = &server.events("run.stop")[0];
    assert_eq!(rest["trace_id"], stop["trace_id"]);
    assert!(server.workspace().join("done").exists(), "it had its grace");
    assert_reported(&server, rest);
}

/// Parts of what holds a run, outwards from its main process.
#[derive(Clone, Copy)]
enum Holder {
    Init = 1,
    Supervisor,
    Zygote,
}

/// A call that was denied something and sleeps; then a part of what holds it is killed from outside.
fn lose(holder: Holder) -> (Server, Value) {
    let mut server = options(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let marker = marker();
    let arguments = json!({"command": format!("unshare -r true; exec sleep {marker}")});
    let id = client.start_call("shell.exec", &arguments);
    eventually(DEADLINE, "it sleeps", || !with_argument(&marker).is_empty());
    let main = with_argument(&marker)[0];
    let holder = (0..holder as u8).fold(main, |pid, _| parent(pid));
    let holder = Pid::from_raw(i32::try_from(holder).unwrap()).unwrap();
    kill_process(holder, Signal::KILL).unwrap();
    let message = client.wait(&id);
    wait_for_death(&marker, DEADLINE);
    (server, message)
}

#[test]
fn a_lost_first_process_ends_its_run_with_a_whole_report() {
    let (server, message) = lose(Holder::Init);
    let result = &message["result"]["structuredContent"];
    assert_holds(
        json!({"status": "killed", "signal": 9, "sandbox": {"denials": [{"name": "unshare"}]}}),
        result,
    );
    let stop = &server.stops(1)[0];
    assert_holds(
        json!({"status": "failed", "signal": 9, "denials": [{"name": "unshare"}], "execs": {"count": 3}, "report": null}),
        stop,
    );
}

/// No one is left to report, and the record says so instead of showing nothing.
#[test]
fn a_lost_supervisor_is_a_missing_report_on_record() {
    for holder in [Holder::Supervisor, Holder::Zygote] {
        let (server, message) = lose(holder);
        assert_eq!(
            message["result"]["structuredContent"]["error"]["reason"], "supervisor_lost",
            "{message}"
        );
        let stop = &server.stops(1)[0];
        assert_holds(
            json!({"status": "failed", "error": "internal", "reason": "supervisor_lost", "report": "missing"}),
            stop,
        );
    }
}
