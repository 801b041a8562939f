//! How calls of an entry end early, and what is on record of them.

use std::time::Duration;

use serde_json::{Value, json};

use super::{said, with};
use crate::support::matrix::on_every_transport;
use crate::support::process::{marker, tree, wait_for_death, wait_for_tree};
use crate::support::subset::assert_holds;
use crate::support::{MODERN, Options, Transport};

fn with_tree(marker: &str) -> String {
    format!(
        "[limits]\ngrace_ms = 300\n[mcp.tree]\ncommand = \"bash\"\nargs = [\"-c\", '''{}''']\nrequires_approval = false\nstreaming = true\n",
        tree(marker)
    )
}

#[test]
fn a_cancelled_call_is_dead_with_all_its_processes_and_on_record() {
    let marker = marker();
    on_every_transport(
        |options: Options| options.config(&with_tree(&marker)),
        |server, client| {
            let id = client.start_call("tree", &json!({}));
            wait_for_tree(&marker);
            match (client.transport, client.version) {
                (Transport::Http, MODERN) => client.hang_up_on(&id),
                _ => client.cancel(&id),
            }
            wait_for_death(&marker, Duration::from_millis(2300));
            assert_holds(
                json!({"status": "cancelled", "tool": "tree", "stdout_bytes": 6}),
                &server.stops(1)[0],
            );
        },
    );
}

#[test]
fn a_call_that_takes_too_long_keeps_what_it_said() {
    let marker = marker();
    let (server, mut client) = with(&format!("{}timeout_ms = 700\n", with_tree(&marker)));
    let message = client.call("tree", json!({}));
    assert_holds(
        json!({"isError": true, "structuredContent": {"status": "timed_out", "error": {"kind": "deadline_exceeded", "trace_id": "*", "hint": "*"}}}),
        &message["result"],
    );
    assert!(!message["result"]["structuredContent"]["stdout"].as_str().unwrap().is_empty());
    wait_for_death(&marker, Duration::from_millis(2300));
    assert_holds(json!({"status": "timed_out", "timeout_ms": 700}), &server.stops(1)[0]);
}

#[test]
fn the_smaller_time_of_client_and_entry_counts() {
    let (server, mut client) =
        with("[mcp.quick]\ncommand = \"true\"\ntimeout_ms = 4000\nrequires_approval = false");
    for (given, counts) in [(1500, 1500), (9000, 4000)] {
        let meta = json!({"dev.ringfence/timeout_ms": given});
        let id =
            client.start("tools/call", json!({"name": "quick", "arguments": {}, "_meta": meta}));
        said(&client.wait(&id));
        assert_eq!(server.events("call.stop").last().unwrap()["timeout_ms"], counts);
    }
}

/// Everything that seed 000 wants of a record.
#[test]
fn a_record_says_who_what_where_and_how_it_went() {
    let (server, mut client) =
        with("[mcp.say]\ncommand = \"sh\"\nargs = [\"-c\", \"printf 123; printf 45 >&2; exit 4\"]");
    let message = client.call("say", json!({}));
    let (approval, start, stop) =
        (&server.events("approval")[0], &server.events("call.start")[0], &server.stops(1)[0]);
    let trace = &message["result"]["_meta"]["dev.ringfence/trace_id"];
    let workspace = server.workspace().canonicalize().unwrap().display().to_string();
    assert_holds(
        json!({"trace_id": trace, "session": "~s-", "principal": "local", "tool": "say", "arguments_hash": "~sha256:",
            "outcome": "approved", "by": "client", "mode": "once", "ts": "*"}),
        approval,
    );
    let common = json!({"trace_id": trace, "session": "~s-", "principal": "local", "workspace": workspace, "tool": "say",
        "arguments_hash": "~sha256:", "cwd": workspace, "profile": "default", "timeout_ms": 120_000});
    assert_holds(common.clone(), start);
    assert_holds(common, stop);
    assert_holds(
        json!({"status": "failed", "exit_code": 4, "stdout_bytes": 3, "stderr_bytes": 2, "started": "*", "stopped": "*"}),
        stop,
    );
    assert_ne!(start["trace_id"], Value::Null);
}
