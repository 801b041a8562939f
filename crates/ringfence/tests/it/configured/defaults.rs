//! What holds for an entry that says nothing but its command: one test for each default, by what it does.

use serde_json::{Value, json};

use super::{error_of, listed, said, with};
use crate::support::{Approve, Client};

const BARE: &str =
    "[mcp.bare]\ncommand = \"sh\"\nargs = [\"-c\", \"echo one; cat; pwd; echo \\\"$0 $#\\\"\"]\n";

fn about(client: &mut Client) -> Value {
    listed(client).into_iter().find(|tool| tool["name"] == "bare").unwrap()
}

#[test]
fn sandbox_profile_is_default() {
    let (_server, mut client) = with(BARE);
    assert_eq!(about(&mut client)["_meta"]["dev.ringfence/sandbox_profile"], "default");
    let message = client.call("bare", json!({}));
    assert_eq!(
        message["result"]["structuredContent"]["sandbox"]["profile"], "default",
        "{message:#}"
    );
}

#[test]
fn requires_approval_is_true() {
    let (_server, mut client) = with(BARE);
    assert_eq!(about(&mut client)["_meta"]["dev.ringfence/requires_approval"], true);
    client.approve = Approve::Decline;
    assert_eq!(error_of(&client.call("bare", json!({})))["kind"], "approval_denied");
}

#[test]
fn allow_network_is_false() {
    let (_server, mut client) = with(BARE);
    let message = client.call("bare", json!({}));
    assert_eq!(message["result"]["structuredContent"]["sandbox"]["network"], "off", "{message:#}");
}

#[test]
fn timeout_ms_is_two_minutes_and_the_operator_can_change_that_for_all() {
    let (server, mut client) = with(BARE);
    assert_eq!(about(&mut client)["_meta"]["dev.ringfence/default_timeout_ms"], 120_000);
    client.call("bare", json!({}));
    assert_eq!(server.stops(1)[0]["timeout_ms"], 120_000);
    let (_server, mut client) = with(&format!("[surface]\ndefault_timeout_ms = 7000\n{BARE}"));
    assert_eq!(about(&mut client)["_meta"]["dev.ringfence/default_timeout_ms"], 7000);
    let (_server, mut client) = with(&format!("[limits]\ntimeout_ms = 5000\n{BARE}"));
    assert_eq!(about(&mut client)["_meta"]["dev.ringfence/default_timeout_ms"], 5000);
}

#[test]
fn streaming_is_false_and_then_there_is_no_progress() {
    for (streaming, more) in [(false, ""), (true, "streaming = true\n")] {
        let (server, mut client) = with(&format!(
            "[mcp.talks]\ncommand = \"sh\"\nargs = [\"-c\", \"echo one; while [ ! -e go ]; do sleep 0.02; done; echo two\"]\nrequires_approval = false\n{more}"
        ));
        let params = json!({"name": "talks", "arguments": {}, "_meta": {"progressToken": "p"}});
        let id = client.start("tools/call", params);
        if streaming {
            let note = client.wait_notification("notifications/progress");
            assert!(note["params"]["message"].as_str().unwrap().contains("one"), "{note:#}");
        }
        std::fs::write(server.workspace().join("go"), "").unwrap();
        assert_eq!(said(&client.wait(&id)), "one\ntwo\n");
        let progress = client
            .notifications
            .iter()
            .filter(|note| note["method"] == "notifications/progress")
            .count();
        assert!(streaming || progress == 0, "{progress} messages");
    }
}

#[test]
fn side_effects_are_none() {
    let (_server, mut client) = with(BARE);
    let tool = about(&mut client);
    assert_eq!(tool["_meta"]["dev.ringfence/side_effects"], json!(["exec"]));
    assert_eq!(tool["annotations"]["readOnlyHint"], true);
    assert_eq!(tool["annotations"]["openWorldHint"], false);
}

#[test]
fn args_stdin_cwd_and_env_are_nothing_beyond_the_baseline() {
    let (server, mut client) = with(
        "[mcp.bare]\ncommand = \"env\"\n[mcp.where]\ncommand = \"sh\"\nargs = [\"-c\", \"pwd; cat; echo end\"]\n",
    );
    let workspace = server.workspace().canonicalize().unwrap();
    assert_eq!(said(&client.call("where", json!({}))), format!("{}\nend\n", workspace.display()));
    let message = client.call("bare", json!({}));
    let known = [
        "PATH",
        "HOME",
        "LANG",
        "TERM",
        "TZ",
        "USER",
        "LOGNAME",
        "SHELL",
        "RUSTUP_HOME",
        "ASAN_OPTIONS",
        "LSAN_OPTIONS",
        "GIT_CONFIG_GLOBAL",
    ];
    for line in said(&message).lines() {
        let (name, _) = line.split_once('=').unwrap();
        assert!(known.contains(&name) || name.starts_with("LC_"), "{line}");
    }
}

#[test]
fn input_schema_takes_nothing_and_secret_args_hide_nothing() {
    let (_server, mut client) = with(BARE);
    assert_eq!(
        about(&mut client)["inputSchema"],
        json!({"type": "object", "additionalProperties": false})
    );
    assert_eq!(error_of(&client.call("bare", json!({"a": 1})))["kind"], "invalid_arguments");
    let (_server, mut client) = with(
        "[mcp.q]\ncommand = \"true\"\ninput_schema = '{\"type\": \"object\", \"properties\": {\"plain\": {\"type\": \"string\"}}}'",
    );
    client.call("q", json!({"plain": "in plain sight"}));
    assert!(client.questions[0]["message"].as_str().unwrap().contains("in plain sight"));
}

#[test]
fn names_and_version_are_what_can_be_known() {
    let (_server, mut client) = with("[mcp.bare]\ncommand = \"true\"\n");
    let tool = about(&mut client);
    assert_eq!(tool["title"], "bare");
    assert_eq!(tool["description"], "Runs `true`.");
    assert_eq!(tool["_meta"]["dev.ringfence/version"], "1");
}
