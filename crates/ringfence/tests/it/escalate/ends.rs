//! What runs outside ends with the call that it belongs to, however that ends.

use rustix::process::Signal;
use serde_json::json;

use super::{Serving, as_everybody, result};
use crate::support::process::{marker, wait_for_death, with_argument};
use crate::support::{Client, DEADLINE, SESSIONS, Server, Transport, eventually};

/// A call whose command outside leaves a child in a session of its own, and sleeps.
fn running(serving: &Serving, more: &str) -> (Server, Client, String, String) {
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let marker = marker();
    let script = format!(
        "$OUT sh -c 'trap \"\" TERM; (setsid -f sleep {marker}); (sleep {marker} &); sleep {marker}'; echo never"
    );
    let mut arguments = serving.script(&script);
    if !more.is_empty() {
        arguments["timeout_ms"] = json!(more.parse::<u64>().unwrap());
    }
    let id = client.start_call("shell.exec", &arguments);
    // Three sleep outside.
    eventually(DEADLINE, "it runs outside", || with_argument(&marker).len() >= 3);
    (server, client, id, marker)
}

fn serving(transport: Transport) -> Serving {
    let serving = Serving::new(transport).config("limits.grace_ms = 200").outside_unasked();
    let pattern = serving.pattern("out");
    serving.rules(&[(&pattern, "allow")])
}

#[test]
fn a_call_that_is_cancelled_takes_what_runs_outside_with_it() {
    let serving = serving(Transport::Stdio);
    let (server, mut client, id, marker) = running(&serving, "");
    client.cancel(&id);
    wait_for_death(&marker, DEADLINE);
    assert_eq!(server.stops(1)[0]["status"], "cancelled");
}

#[test]
fn a_call_that_takes_too_long_takes_what_runs_outside_with_it() {
    let serving = serving(Transport::Stdio);
    let (server, mut client, id, marker) = running(&serving, "2500");
    let message = client.wait(&id);
    assert_eq!(
        message["result"]["structuredContent"]["error"]["kind"], "deadline_exceeded",
        "{message}"
    );
    wait_for_death(&marker, DEADLINE);
    assert_eq!(server.stops(1)[0]["status"], "timed_out");
}

#[test]
fn a_client_that_goes_takes_what_runs_outside_with_it() {
    let serving = serving(Transport::Stdio);
    let (mut server, mut client, _, marker) = running(&serving, "");
    client.hang_up();
    server.ended();
    wait_for_death(&marker, DEADLINE);
}

#[test]
fn a_server_that_is_killed_leaves_nothing_outside() {
    let serving = serving(Transport::Http);
    let (mut server, _client, _, marker) = running(&serving, "");
    server.signal(Signal::KILL);
    server.ended();
    wait_for_death(&marker, DEADLINE);
}

#[test]
fn a_sandbox_that_is_killed_leaves_nothing_outside() {
    as_everybody(|place| {
        let marker = place.cx.marker();
        let outside =
            format!("sh -c '(setsid -f sleep {marker}); (sleep {marker} &); sleep {marker}'");
        let script = format!("{}; echo begun; $OUT {outside}", place.names());
        let live = place.fence().start(&["bash", "-c", &script]);
        eventually(DEADLINE, "it runs outside", || with_argument(&marker).len() >= 3);
        live.kill();
        wait_for_death(&marker, DEADLINE);
    });
}

/// The run has ended, and something of it still runs outside in the background.
#[test]
fn a_run_that_ends_takes_what_runs_outside_with_it() {
    let serving = serving(Transport::Stdio);
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let marker = marker();
    let script = format!(
        "$OUT sh -c 'echo > up; sleep {marker}' > /dev/null 2>&1 & until [ -e up ]; do sleep 0.01; done"
    );
    let message = client.call("shell.exec", serving.script(&script));
    assert_eq!(result(&message)["exit_code"], 0, "{message}");
    wait_for_death(&marker, DEADLINE);
}

#[test]
fn a_daemon_that_is_left_outside_ends_with_its_command() {
    let serving = serving(Transport::Stdio);
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let marker = marker();
    let message = client.call(
        "shell.exec",
        serving.script(&format!("$OUT setsid -f sleep {marker} > /dev/null 2>&1; echo $?")),
    );
    assert_eq!(result(&message)["stdout"], "0\n", "{message}");
    wait_for_death(&marker, DEADLINE);
}
