//! Everything that can end a call early, and what must be true afterwards: the whole tree is dead, what it said is
//! kept where there is somebody to tell, and one record names the cause.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::matrix::{eras, on_cell, on_cells_at_once};
use crate::support::process::{
    marker, status_kb, tree, wait_for_death, wait_for_tree, with_argument,
};
use crate::support::subset::assert_holds;
use crate::support::{
    Approve, Client, DEADLINE, MODERN, Options, SESSIONS, Server, Transport, eventually, server,
};

const GRACE: &str = "[limits]\ngrace_ms = 300";
/// The grace, and two seconds for all the rest.
const DEAD_WITHIN: Duration = Duration::from_millis(2300);

fn graceful(options: Options) -> Options {
    options.config(GRACE)
}

/// Lets the session run commands without further questions.
fn trust(client: &mut Client) {
    client.approve = Approve::Session;
    let message = client.call("shell.exec", json!({"command": "true"}));
    assert_eq!(message["result"]["structuredContent"]["exit_code"], 0, "{message}");
    client.approve = Approve::Decline;
}

/// A tree with a child that has left its session: the id of the call, and how to find the tree.
fn start_tree(client: &mut Client) -> (String, String) {
    trust(client);
    let marker = marker();
    let id = client.start_call("shell.exec", &json!({"command": tree(&marker)}));
    wait_for_tree(&marker);
    (id, marker)
}

/// Two calls are on record, `true` and the tree, and the second says why it ended.
fn assert_cause(server: &Server, status: &str, cause: &str) {
    let stops = server.stops(2);
    assert_holds(
        json!({"status": status, "cause": cause, "stdout_bytes": 6, "tool": "shell.exec"}),
        &stops[1],
    );
    assert_eq!(server.events("call.start").len(), 2);
}

#[test]
fn a_client_cancels_with_a_notification() {
    for cell in eras().filter(|cell| (cell.transport, cell.version) != (Transport::Http, MODERN)) {
        on_cell(cell, graceful, |server, client| {
            let (id, marker) = start_tree(client);
            client.cancel(&id);
            wait_for_death(&marker, DEAD_WITHIN);
            assert_cause(server, "cancelled", "client");
            // The rest goes on, and nothing more is said about what was cancelled.
            assert!(client.request("tools/list", json!({}))["result"]["tools"].is_array());
            assert!(client.stray().is_empty(), "{}: a cancelled request was answered", client.at());
        });
    }
}

/// Over HTTP, a call that takes long is passed from one part of the server to another after a while.
/// A cancellation may come at any moment of that.
#[test]
fn a_call_is_not_answered_whenever_it_is_cancelled() {
    let mut server = graceful(Options::new(Transport::Http)).spawn();
    let mut client = server.connect(SESSIONS);
    trust(&mut client);
    let moments = [0, 20, 50, 70, 80, 85, 90, 95, 100, 105, 110, 150];
    for (count, after_ms) in moments.into_iter().enumerate() {
        let id = client.start_call("shell.exec", &json!({"command": "sleep 60"}));
        eventually(DEADLINE, "it has begun", || server.events("call.start").len() == count + 2);
        // Not to wait for anything: to cancel at another moment than before.
        std::thread::sleep(Duration::from_millis(after_ms));
        client.cancel(&id);
        let stop = &server.stops(count + 2)[count + 1];
        assert_holds(json!({"status": "cancelled", "cause": "client"}), stop);
    }
    assert!(client.request("tools/list", json!({}))["result"]["tools"].is_array());
    assert!(client.stray().is_empty(), "a cancelled request was answered");
}

/// The deadline has ended it already, and what it ran has not gone yet.
#[test]
fn a_call_that_is_cancelled_after_its_deadline_is_not_answered() {
    for cell in eras().filter(|cell| cell.version == SESSIONS) {
        on_cell(cell, graceful, |server, client| {
            trust(client);
            let command = "trap 'touch warned' TERM; while :; do sleep 0.02; done";
            let arguments = json!({"command": command, "timeout_ms": 200});
            let id = client.start_call("shell.exec", &arguments);
            let warned = server.workspace().join("warned");
            eventually(DEADLINE, "it was warned", || warned.exists());
            client.cancel(&id);
            assert_holds(json!({"status": "timed_out"}), &server.stops(2)[1]);
            assert!(client.request("tools/list", json!({}))["result"]["tools"].is_array());
            assert!(client.stray().is_empty(), "{}: a cancelled request was answered", client.at());
        });
    }
}

#[test]
fn a_notification_cancels_its_own_sessions_call_alone() {
    for transport in [Transport::Http, Transport::Sse] {
        let mut server = graceful(Options::new(transport)).spawn();
        let mut victim = server.connect(SESSIONS);
        let mut other = server.connect(SESSIONS);
        let (id, marker) = start_tree(&mut victim);
        other.cancel(&id);
        assert!(other.request("tools/list", json!({}))["result"]["tools"].is_array());
        assert_eq!(with_argument(&marker).len(), 2, "somebody else's call was cancelled");
        victim.cancel(&id);
        wait_for_death(&marker, DEAD_WITHIN);
    }
}

#[test]
fn closing_the_answer_cancels_on_2026_07_28() {
    let mut server = graceful(Options::new(Transport::Http)).spawn();
    let mut client = server.connect(MODERN);
    let (id, marker) = start_tree(&mut client);
    client.hang_up_on(&id);
    wait_for_death(&marker, DEAD_WITHIN);
    assert_cause(&server, "cancelled", "disconnect");
}

/// The 2025 protocols say that a lost connection is no cancellation.
#[test]
fn closing_the_answer_does_not_cancel_in_a_session() {
    let mut server = graceful(Options::new(Transport::Http)).spawn();
    let mut client = server.connect(SESSIONS);
    trust(&mut client);
    let command =
        "echo begun > begun; while [ ! -e go ]; do sleep 0.02; done; echo finished > finished";
    let id = client.start_call("shell.exec", &json!({"command": command}));
    eventually(DEADLINE, "it has begun", || server.workspace().join("begun").exists());
    client.hang_up_on(&id);
    assert_eq!(client.try_wait(&id), None);
    assert!(client.request("tools/list", json!({}))["result"]["tools"].is_array());
    std::fs::write(server.workspace().join("go"), "").unwrap();
    eventually(DEADLINE, "it goes on to its end", || server.workspace().join("finished").exists());
    let stop = &server.stops(2)[1];
    assert_holds(json!({"status": "completed", "exit_code": 0, "cause": null}), stop);
}

#[test]
fn deleting_the_session_ends_its_calls() {
    let mut server = graceful(Options::new(Transport::Http)).spawn();
    let mut client = server.connect(SESSIONS);
    let mut other = server.connect(SESSIONS);
    let (id, marker) = start_tree(&mut client);
    assert!((200..300).contains(&client.delete()));
    wait_for_death(&marker, DEAD_WITHIN);
    assert_cause(&server, "cancelled", "session_end");
    let _ = client.try_wait(&id);
    assert!(other.request("tools/list", json!({}))["result"]["tools"].is_array());
}

#[test]
fn closing_the_event_stream_ends_its_calls() {
    for version in ["2024-11-05", MODERN] {
        let mut server = graceful(Options::new(Transport::Sse)).spawn();
        let mut client = server.connect(version);
        let (_, marker) = start_tree(&mut client);
        client.hang_up();
        wait_for_death(&marker, DEAD_WITHIN);
        assert_cause(&server, "cancelled", "disconnect");
    }
}

#[test]
fn the_end_of_input_ends_everything() {
    for version in [SESSIONS, MODERN] {
        let mut server = graceful(Options::new(Transport::Stdio)).spawn();
        let mut client = server.connect(version);
        let (id, marker) = start_tree(&mut client);
        client.hang_up();
        wait_for_death(&marker, DEAD_WITHIN);
        assert_eq!(client.try_wait(&id), None, "nothing is written after the end of input");
        assert!(server.ended().success(), "{}", server.log());
        assert_cause(&server, "cancelled", "eof");
        assert_holds(json!([{"cause": "eof"}]), &json!(server.events("server.stop")));
    }
}

#[test]
fn a_signal_ends_everything_and_the_log_is_closed() {
    for cell in eras() {
        for signal in [Signal::TERM, Signal::INT] {
            on_cell(cell, graceful, |server, client| {
                let (id, marker) = start_tree(client);
                server.signal(signal);
                wait_for_death(&marker, DEAD_WITHIN);
                // What there was is still told.
                let partial = json!({"isError": true, "structuredContent": {"status": "cancelled", "stdout": "begun\n"}});
                assert_holds(json!({"result": partial}), &client.wait(&id));
                assert!(server.ended().success(), "{}", server.log());
                assert_cause(server, "cancelled", "shutdown");
                assert_holds(json!([{"cause": "shutdown"}]), &json!(server.events("server.stop")));
                let (code, text) = server::verify(&server.scratch);
                assert_eq!(code, 0, "{text}");
                assert!(text.contains("chain intact") && !text.contains("crash"), "{text}");
            });
            if cell.transport != Transport::Stdio {
                break;
            }
        }
    }
}

/// Nobody is left to clean up, so the tree must hang on the server's life itself.
#[test]
fn the_tree_dies_with_a_server_that_is_killed() {
    for transport in [Transport::Stdio, Transport::Http] {
        let mut server = graceful(Options::new(transport)).spawn();
        let mut client = server.connect(SESSIONS);
        let (_, marker) = start_tree(&mut client);
        server.signal(Signal::KILL);
        wait_for_death(&marker, DEAD_WITHIN);
        // Its log is locked until the kernel has closed the last of its files.
        server.ended();
        assert_eq!(server.events("call.stop").len(), 1);
        let (code, text) = server::verify(&server.scratch);
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("crash"), "{text}");
    }
}

#[test]
fn time_that_is_up_ends_a_call_and_keeps_what_it_said() {
    for cell in eras() {
        on_cell(cell, graceful, |server, client| {
            trust(client);
            let marker = marker();
            let arguments = json!({"command": tree(&marker), "timeout_ms": 400});
            let message = client.call("shell.exec", arguments);
            assert_holds(
                json!({"result": {"isError": true, "structuredContent": {
                    "status": "timed_out", "stdout": "begun\n", "trace_id": "*",
                    "error": {"kind": "deadline_exceeded", "hint": "*", "trace_id": "*"}}}}),
                &message,
            );
            assert!(with_argument(&marker).is_empty(), "the tree is dead before the answer comes");
            assert_cause(server, "timed_out", "deadline");
        });
    }
}

/// The smallest of what the caller, the client and the operator allow.
#[test]
fn a_client_and_an_operator_can_shorten_the_time() {
    let operator = |options: Options| options.config("[limits]\ngrace_ms = 300\ntimeout_ms = 1000");
    for cell in eras() {
        on_cell(cell, operator, |server, client| {
            trust(client);
            let marker = marker();
            let params = json!({"name": "shell.exec", "arguments": {"command": tree(&marker), "timeout_ms": 60000},
                "_meta": {"dev.ringfence/timeout_ms": 400}});
            let message = client.request("tools/call", params);
            assert_eq!(message["result"]["structuredContent"]["status"], "timed_out", "{message}");
            assert_eq!(server.stops(2)[1]["timeout_ms"], 400);
        });
    }
    on_cell(eras().next().unwrap(), operator, |server, client| {
        trust(client);
        let message = client.call("shell.exec", json!({"command": "sleep 30"}));
        assert_eq!(message["result"]["structuredContent"]["status"], "timed_out", "{message}");
        assert_eq!(server.stops(2)[1]["timeout_ms"], 1000);
    });
}

#[test]
fn a_tree_that_does_not_listen_is_killed() {
    let mut server = graceful(Options::new(Transport::Stdio)).spawn();
    let mut client = server.connect(SESSIONS);
    trust(&mut client);
    let marker = marker();
    let command = format!(
        "trap '' TERM; (trap '' TERM; setsid -f sleep {marker}); echo begun; while :; do sleep {marker}; done"
    );
    let id = client.start_call("shell.exec", &json!({"command": command}));
    wait_for_tree(&marker);
    let begun = Instant::now();
    client.cancel(&id);
    wait_for_death(&marker, DEAD_WITHIN);
    assert!(begun.elapsed() >= Duration::from_millis(250), "it had its grace");
    assert_cause(&server, "cancelled", "client");
}

/// A call that waits for a human can be cancelled too; then nothing ever runs.
#[test]
fn a_question_is_withdrawn_with_its_call() {
    for transport in [Transport::Stdio, Transport::Http, Transport::Sse] {
        let mut server = graceful(Options::new(transport).unfenced()).spawn();
        let mut client =
            server.connect(if transport == Transport::Sse { "2025-06-18" } else { SESSIONS });
        client.approve = Approve::Never;
        let id = client.start_call("shell.exec", &json!({"command": "touch ran"}));
        let (asked, _) = client.wait_question();
        client.cancel(&id);
        let stop = server.stops(1).remove(0);
        assert_holds(
            json!({"status": "cancelled", "error": "cancelled", "cause": "client"}),
            &stop,
        );
        assert_holds(
            json!([{"outcome": "expired", "by": "client"}]),
            &json!(server.events("approval")),
        );
        // A late yes is too late.
        client.reply(&asked, Approve::Once.answer().unwrap());
        assert!(client.request("tools/list", json!({}))["result"]["tools"].is_array());
        assert!(!server.workspace().join("ran").exists());
        assert_eq!(server.events("call.start").len(), 0);
    }
}

/// What the command said comes while it runs; the result is the end.
#[test]
fn output_is_streamed_while_a_command_runs() {
    for cell in eras() {
        on_cell(cell, graceful, |server, client| {
            trust(client);
            let command = "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two";
            let params = json!({"name": "shell.exec", "arguments": {"command": command}, "_meta": {"progressToken": "p"}});
            let id = client.start("tools/call", params);
            let note = client.wait_notification("notifications/progress");
            assert_holds(json!({"progressToken": "p", "message": "~one"}), &note["params"]);
            std::fs::write(server.workspace().join("go"), "").unwrap();
            let message = client.wait(&id);
            assert_eq!(message["result"]["structuredContent"]["stdout"], "one\ntwo\n", "{message}");
            let mut last = note["params"]["progress"].as_f64().unwrap();
            for later in client
                .notifications
                .iter()
                .filter(|note| note["method"] == "notifications/progress")
            {
                let progress = later["params"]["progress"].as_f64().unwrap();
                assert!(progress > last, "progress only grows");
                last = progress;
            }
            std::fs::remove_file(server.workspace().join("go")).unwrap();
            // Without a token there is no progress.
            client.notifications.clear();
            client.call("shell.exec", json!({"command": "echo one; sleep 0.3; echo two"}));
            assert!(client.notifications.is_empty(), "{:?}", client.notifications);
        });
    }
}

/// Says so much and counts it, a megabyte at a time.
const FLOOD: &str = "for i in $(seq 300); do head -c 999999 /dev/zero | tr '\\0' x; echo; echo $i > counting; mv counting count; sleep 0.01; done";

fn megabytes(server: &Server) -> u64 {
    let text = std::fs::read_to_string(server.workspace().join("count")).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

fn silence() -> Duration {
    if std::env::var_os("RINGFENCE_PROOF").is_some() {
        Duration::from_secs(30)
    } else {
        Duration::from_secs(3)
    }
}

/// Watches the server's memory while the client reads nothing, and returns by how many kilobytes it has grown.
fn flood(server: &Server, client: &mut Client) -> u64 {
    trust(client);
    let before = status_kb(server.pid(), "VmRSS");
    let params = json!({"name": "shell.exec", "arguments": {"command": FLOOD}, "_meta": {"progressToken": "p"}});
    client.start("tools/call", params);
    client.wait_notification("notifications/progress");
    client.pause(true);
    let until = Instant::now() + silence();
    let mut most = before;
    // The time itself is what is tested here; the memory is looked at all along.
    while Instant::now() < until {
        most = most.max(status_kb(server.pid(), "VmRSS"));
        std::thread::sleep(Duration::from_millis(20));
    }
    most - before
}

/// Little of it is kept, so that the disk does not matter here.
fn unkept(options: Options) -> Options {
    options.config("[limits]\ngrace_ms = 300\noutput_file_mb = 1")
}

#[test]
fn a_client_that_does_not_read_blocks_the_command_and_costs_no_memory() {
    on_cells_at_once(
        eras().filter(|cell| cell.transport == Transport::Stdio),
        unkept,
        |server, client| {
            let grown = flood(server, client);
            assert!(grown < 20 * 1024, "grew by {grown} kB");
            let blocked_at = megabytes(server);
            assert!((5..300).contains(&blocked_at), "blocked after {blocked_at} MB of 300");
            // Blocked means that it stays where it is.
            std::thread::sleep(Duration::from_millis(500));
            assert_eq!(megabytes(server), blocked_at, "it goes on");
            // And it goes on when somebody reads.
            client.pause(false);
            eventually(DEADLINE, "it goes on", || megabytes(server) > blocked_at);
        },
    );
}

/// On the network the system's own buffers hold some megabytes before anything blocks; ours hold nothing.
#[test]
fn a_client_that_does_not_read_costs_no_memory_on_the_network() {
    on_cells_at_once(
        eras().filter(|cell| cell.transport != Transport::Stdio),
        unkept,
        |server, client| {
            let grown = flood(server, client);
            assert!(grown < 20 * 1024, "{}: grew by {grown} kB", client.at());
            assert!(megabytes(server) > 5, "{}: nothing was said", client.at());
        },
    );
}

/// A cancellation reaches a call whose client has stopped reading.
#[test]
fn a_client_that_does_not_read_can_still_cancel() {
    for transport in [Transport::Stdio, Transport::Http] {
        let mut server = graceful(Options::new(transport)).spawn();
        let mut client = server.connect(SESSIONS);
        trust(&mut client);
        let marker = marker();
        let command = format!(
            "(setsid -f sleep {marker}); (exec sleep {marker} >/dev/null) & yes 0123456789"
        );
        let params = json!({"name": "shell.exec", "arguments": {"command": command}, "_meta": {"progressToken": "p"}});
        let id = client.start("tools/call", params);
        client.pause(true);
        wait_for_tree(&marker);
        std::thread::sleep(Duration::from_secs(2));
        client.cancel(&id);
        wait_for_death(&marker, DEAD_WITHIN);
        client.pause(false);
        let stop: Value = server.stops(2).remove(1);
        assert_holds(json!({"status": "cancelled", "cause": "client"}), &stop);
    }
}

/// The engine waits five seconds for its handlers at the end of input, and a subscription never ends of its own accord.
#[test]
fn a_subscription_does_not_delay_the_end() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(MODERN);
    client.start("subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
    client.wait_notification("notifications/subscriptions/acknowledged");
    let begun = Instant::now();
    client.hang_up();
    server.ended();
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}
