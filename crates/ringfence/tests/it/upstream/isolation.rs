//! Who shares a connection, and when it ends: never two principals, nothing after a session, nothing after us.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Gateway, HttpServer, error_of, lists, said, said_json};
use crate::support::{
    Approve, Client, DEADLINE, MODERN, Options, SESSIONS, Transport, eventually, token,
};

const SHARED: &str = "[upstream.pipe25]\nshare = 'principal'";

fn gateway(config: &str) -> Gateway {
    Gateway::new().stdio("pipe25", &[]).config(config)
}

fn guarded(gateway: &Gateway) -> Options {
    gateway
        .options(Transport::Http)
        .env("MCP_AUTH_ENABLED", "true")
        .env("MCP_AUTH_JWT_SECRET", token::SECRET)
}

/// Which process answers, and how many calls it has had.
#[track_caller]
fn process(client: &mut Client) -> (String, u64) {
    let count = said_json(&client.call("pipe25__count", json!({})));
    (count["process"].as_str().unwrap().to_owned(), count["calls"].as_u64().unwrap())
}

fn wait_until_none_runs(gateway: &Gateway) {
    eventually(DEADLINE, "no process is left", || gateway.processes().is_empty());
}

#[test]
fn principals_never_share_a_process_and_sessions_only_if_the_operator_says_so() {
    for (config, is_shared) in [("", false), (SHARED, true)] {
        let gateway = gateway(&format!("shared_workspace = true\n{config}"));
        let mut server = guarded(&gateway).spawn();
        let mut connect = |subject: &str| {
            let mut client = server.client_as(SESSIONS, Some(&token::of(subject)));
            client.shake_hands();
            client
        };
        let (mut anna, mut again, mut bert) = (connect("anna"), connect("anna"), connect("bert"));
        let (first, calls) = process(&mut anna);
        assert_eq!(calls, 1);
        assert_eq!(process(&mut anna), (first.clone(), 2), "the next call finds it running");
        let (second, _) = process(&mut again);
        assert_eq!(second == first, is_shared, "{config}");
        let (third, calls) = process(&mut bert);
        assert!(third != first && third != second && calls == 1, "another principal's process");
        assert_eq!(gateway.processes().len(), if is_shared { 2 } else { 3 });
        // What one has left there is not there for the other.
        anna.approve = Approve::Once;
        assert_eq!(said(&anna.call("pipe25__add", json!({"note": "of anna"}))), "added");
        assert_eq!(said(&bert.call("pipe25__notes", json!({}))), "[]");
    }
}

/// A server decides by the abilities of its client what it offers and asks.
#[test]
fn clients_with_other_abilities_get_another_process() {
    let gateway = gateway(SHARED);
    let mut server = gateway.spawn(Transport::Http);
    let mut able = server.connect(SESSIONS);
    let mut unable = server.client(SESSIONS);
    unable.capabilities = json!({});
    unable.shake_hands();
    assert_ne!(process(&mut able).0, process(&mut unable).0);
    assert_eq!(process(&mut server.connect(SESSIONS)), (process(&mut able).0, 2));
}

#[test]
fn a_call_without_a_session_leaves_no_process() {
    let gateway = gateway("");
    let mut server = gateway.spawn(Transport::Http);
    let mut client = server.connect(MODERN);
    let handle = client.handle.take();
    let (first, _) = process(&mut client);
    wait_until_none_runs(&gateway);
    let (second, calls) = process(&mut client);
    assert!(second != first && calls == 1);
    wait_until_none_runs(&gateway);
    // A question in between is part of the call.
    client.approve = Approve::Choice("red");
    let message = client.call("pipe25__ask", json!({}));
    assert_eq!(said_json(&message)["content"]["choice"], "red");
    wait_until_none_runs(&gateway);
    client.handle = handle;
    let (third, _) = process(&mut client);
    assert_eq!(process(&mut client), (third, 2), "a handle keeps it");
}

#[test]
fn an_idle_process_ends_and_the_next_call_starts_another() {
    let gateway = gateway("[upstream.pipe25]\nidle_s = 1");
    let mut server = gateway.spawn(Transport::Stdio);
    let mut client = server.connect(SESSIONS);
    let (first, _) = process(&mut client);
    assert_eq!(gateway.processes().len(), 1);
    eventually(Duration::from_secs(10), "it ends by itself", || gateway.processes().is_empty());
    let (second, calls) = process(&mut client);
    assert!(second != first && calls == 1);
    let stops = server.events("run.stop");
    assert_eq!(stops.iter().filter(|stop| stop["upstream"] == "pipe25").count(), 1, "{stops:?}");
}

#[test]
fn a_process_ends_with_its_session() {
    let gateway = gateway("");
    let mut server = gateway.spawn(Transport::Http);
    let (mut one, mut other) = (server.connect(SESSIONS), server.connect(SESSIONS));
    process(&mut one);
    let (kept, _) = process(&mut other);
    assert!((200..300).contains(&one.delete()));
    eventually(DEADLINE, "its process ends", || gateway.processes().len() == 1);
    assert_eq!(process(&mut other), (kept, 2));
}

#[test]
fn nothing_is_left_however_the_server_ends() {
    for config in ["", SHARED] {
        for signal in [None, Some(Signal::TERM), Some(Signal::KILL)] {
            let gateway = gateway(config);
            let mut server = gateway.spawn(Transport::Stdio);
            let mut client = server.connect(SESSIONS);
            let params = json!({"name": "pipe25__slow", "_meta": {"progressToken": 1}});
            client.start("tools/call", params);
            client.wait_notification("notifications/progress");
            match signal {
                None => client.hang_up(),
                Some(signal) => server.signal(signal),
            }
            server.ended();
            wait_until_none_runs(&gateway);
        }
    }
}

fn call_with_state(client: &mut Client, state: &Value, tool: &str, arguments: Value) -> Value {
    let meta = json!({"codex/sandbox-state-meta": state});
    let params = json!({"name": tool, "arguments": arguments, "_meta": meta});
    let id = client.start("tools/call", params);
    client.finish(id, tool, &arguments)
}

#[test]
fn a_stricter_sandbox_of_the_client_gets_a_process_of_its_own() {
    let gateway = gateway("[upstream.pipe25]\nside_effects = ['filesystem_write']");
    let mut server = gateway.spawn(Transport::Stdio);
    let mut client = server.connect(SESSIONS);
    client.approve = Approve::Once;
    let strict = json!({"sandboxPolicy": {"type": "read-only"}});
    let (free, _) = process(&mut client);
    let message = call_with_state(&mut client, &strict, "pipe25__count", json!({}));
    let narrow = said_json(&message)["process"].as_str().unwrap().to_owned();
    assert_ne!(narrow, free);
    assert_eq!(process(&mut client), (free, 2), "the free one is still there");
    let file = server.workspace().join("written");
    let arguments = json!({"path": "written", "text": "x"});
    let message = call_with_state(&mut client, &strict, "pipe25__write", arguments.clone());
    assert_eq!(message["result"]["isError"], true, "{message:#}");
    assert!(!file.exists(), "it wrote what the client does not allow");
    assert_eq!(said(&client.call("pipe25__write", arguments)), "done");
    assert!(file.exists());
}

/// A call in another session fails on its own: connections of a principal are bounded.
#[test]
fn a_session_that_is_over_takes_its_calls_along() {
    let gateway = gateway("");
    let mut server = gateway.spawn(Transport::Http);
    let mut client = server.connect(SESSIONS);
    let params = json!({"name": "pipe25__slow", "_meta": {"progressToken": 1}});
    client.start("tools/call", params);
    client.wait_notification("notifications/progress");
    client.delete();
    wait_until_none_runs(&gateway);
    let stops = server.stops(1);
    assert_eq!(
        (&stops[0]["status"], &stops[0]["cause"]),
        (&json!("cancelled"), &json!("session_end"))
    );
    let mut other = server.connect(SESSIONS);
    other.approve = Approve::Decline;
    assert_eq!(error_of(&other.call("pipe25__crash", json!({})))["kind"], "approval_denied");
}

/// A credential for us is none for others.
#[test]
fn no_header_of_a_client_is_passed_on() {
    let site = HttpServer::start();
    let gateway = Gateway::new()
        .remote("http25", "http", &site.url("/2025/mcp"))
        .remote("http26", "http", &site.url("/2026/mcp"))
        .edit("http25", |entry| entry["transport"]["headers"] = json!({"X-Key": "${OWN_KEY}"}))
        .config("shared_workspace = true");
    let mut server = guarded(&gateway).env("OWN_KEY", "key-for-the-server-1").spawn();
    let token = token::of("anna");
    for version in [SESSIONS, MODERN] {
        let mut client = server.client_as(version, Some(&token));
        client.shake_hands();
        for id in ["http25", "http26"] {
            let message = client.call(&format!("{id}__headers"), json!({}));
            let headers = said_json(&message);
            assert!(headers["host"].is_string(), "{headers:#}");
            assert_eq!(headers["authorization"], Value::Null, "{headers:#}");
            assert!(!message.to_string().contains(&token), "{headers:#}");
            assert_eq!(headers["x-key"].is_string(), id == "http25", "{headers:#}");
            assert!(!message.to_string().contains("key-for-the-server-1"), "it is not redacted");
            let session = client.session().unwrap_or("none");
            assert!(!message.to_string().contains(session), "{headers:#}");
        }
    }
}

/// A call that runs keeps what it began with; the next one gets what the file says.
#[test]
fn a_changed_entry_makes_another_process() {
    let gateway = gateway("[upstream.pipe25]\nenv = { N = '1' }");
    let mut server = gateway.spawn(Transport::Stdio);
    let mut client = server.connect(SESSIONS);
    let (first, _) = process(&mut client);
    let params = json!({"name": "pipe25__slow", "_meta": {"progressToken": 1}});
    let slow = client.start("tools/call", params);
    client.wait_notification("notifications/progress");
    let config = gateway.scratch.path().join("config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("N = '1'", "N = '2'")).unwrap();
    let (second, _) = process(&mut client);
    assert_ne!(second, first);
    assert_eq!(said_json(&client.call("pipe25__env", json!({})))["N"], "2");
    assert_eq!(gateway.processes().len(), 2, "the call that runs is not disturbed");
    client.cancel(&slow);
    eventually(DEADLINE, "the old process ends", || gateway.processes().len() == 1);
    assert_eq!(process(&mut client).0, second);
}

/// What a server offers may depend on the workspace that it runs in.
#[test]
fn an_offer_to_one_principal_concerns_no_other() {
    let gateway = Gateway::new().stdio("pipe25", &["--definitions", "changes.json"]);
    let mut server = Options { workspace: false, ..guarded(&gateway) }.spawn();
    let mut connect = |subject: &str| {
        let mut client = server.client_as(SESSIONS, Some(&token::of(subject)));
        client.shake_hands();
        client.approve = Approve::Once;
        client
    };
    let (mut anna, mut bert) = (connect("anna"), connect("bert"));
    let changes = json!({"identity": "impostor"}).to_string();
    bert.call("file.write", json!({"path": "changes.json", "content": changes}));
    let error = bert.call("pipe25__echo", json!({"text": "x"}));
    assert_eq!(error_of(&error)["reason"], "definition_changed");
    assert!(!lists(&mut bert, "pipe25__echo"));
    assert!(lists(&mut anna, "pipe25__echo"), "the other's offer counts");
    assert_eq!(said(&anna.call("pipe25__add", json!({"note": "of anna"}))), "added");
}
