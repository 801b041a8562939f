//! What is listed, and what a list costs: accepted definitions alone, the same bytes at every start, and no process.

use serde_json::{Map, Value, json};

use super::{Gateway, assert_unknown, error_of, listed, offer, said, wait_for_list};
use crate::support::{Approve, Client, DEADLINE, SESSIONS, Server, Transport, eventually};

/// Records of other servers, in order.
fn upstream_events(server: &Server) -> Vec<String> {
    let events = server.audit().into_iter().map(|record| record["event"].as_str().unwrap().into());
    events.filter(|event: &String| event.starts_with("upstream.")).collect()
}

/// The answer to a list, byte for byte.
fn list_bytes(gateway: &Gateway) -> Vec<u8> {
    let mut server = gateway.spawn(Transport::Stdio);
    let mut client = server.connect(SESSIONS);
    let before = client.heard.lock().unwrap().len();
    assert!(listed(&mut client).iter().any(|name| name == "pipe25__echo"));
    let bytes = client.heard.lock().unwrap()[before..].to_vec();
    client.hang_up();
    assert!(server.ended().success(), "{}", server.log());
    assert_eq!(upstream_events(&server), Vec::<String>::new());
    bytes
}

#[test]
fn a_list_starts_nothing_and_is_the_same_at_every_start() {
    let gateway = Gateway::new().stdio("pipe25", &[]).stdio("pipe26", &["--era", "2026"]);
    let first = list_bytes(&gateway);
    assert_eq!(first, list_bytes(&gateway));
    assert!(gateway.processes().is_empty());
    let text = String::from_utf8(first).unwrap();
    let message: Value = serde_json::from_str(&text).unwrap();
    let tools = message["result"]["tools"].as_array().unwrap();
    let echo = tools.iter().find(|tool| tool["name"] == "pipe25__echo").unwrap();
    let accepted = &offer()["tools"]["echo"];
    for member in ["description", "inputSchema"] {
        assert_eq!(echo[member], accepted[member], "{member}");
    }
    assert_eq!(echo["annotations"]["readOnlyHint"], true);
}

#[test]
fn a_trusted_server_is_learned_once_and_written_down() {
    let gateway = Gateway::new().stdio("pipe25", &[]).unlocked();
    let mut server = gateway.spawn(Transport::Stdio);
    let mut client = server.connect(SESSIONS);
    wait_for_list(&mut client, |names| !names.is_empty());
    let text = std::fs::read_to_string(gateway.lock_path()).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(file, json!({"version": 1, "servers": {"pipe25": offer()}}));
    eventually(DEADLINE, "it ends when it has been asked", || gateway.processes().is_empty());
    let events = server.events("upstream.list");
    assert_eq!((events.len(), &events[0]["outcome"]), (1, &json!("ok")), "{events:?}");
    client.hang_up();
    assert!(server.ended().success());

    let mut server = gateway.options(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    assert_eq!(listed(&mut client).len(), offer()["tools"].as_object().unwrap().len());
    client.hang_up();
    assert!(server.ended().success());
    assert_eq!(server.events("upstream.list").len(), 1, "it was asked again");
}

/// A server that cannot be asked keeps no one waiting and takes nothing else down.
#[test]
fn a_server_that_cannot_be_learned_is_on_record_and_the_others_are_listed() {
    let missing = json!({"type": "stdio", "command": "/nowhere/server"});
    let gateway = Gateway::new().stdio("pipe25", &[]).server("gone", missing).unlocked();
    let mut server = gateway.spawn(Transport::Stdio);
    let mut client = server.connect(SESSIONS);
    wait_for_list(&mut client, |names| names.iter().any(|name| name == "pipe25__echo"));
    assert!(!listed(&mut client).iter().any(|name| name.starts_with("gone__")));
    let mut failed = Vec::new();
    eventually(DEADLINE, "the failure is on record", || {
        failed = server.events("upstream.list");
        failed.retain(|event| event["upstream"] == "gone");
        !failed.is_empty()
    });
    assert_eq!(failed[0]["outcome"], "failed", "{failed:?}");
}

#[test]
fn an_untrusted_server_is_listed_once_someone_accepts_it() {
    let gateway = Gateway::new()
        .stdio("pipe25", &[])
        .untrusted("pipe25")
        .bundle("pipe25", "direct", json!({"allowTools": ["echo", "odd"]}))
        .unlocked();
    let mut server = gateway.spawn(Transport::Stdio);
    let mut client = server.connect(SESSIONS);
    assert!(listed(&mut client).is_empty());
    assert_unknown(&client.call("pipe25__echo", json!({"text": "x"})));
    assert!(upstream_events(&server).is_empty() && gateway.processes().is_empty());

    gateway.accept(&Map::from_iter([("pipe25".to_owned(), offer())]));
    wait_for_list(&mut client, |names| names == ["pipe25__echo", "pipe25__odd"]);
    assert!(upstream_events(&server).is_empty() && gateway.processes().is_empty());
    client.approve = Approve::Decline;
    let refused = client.call("pipe25__echo", json!({"text": "x"}));
    assert_eq!(error_of(&refused)["kind"], "approval_denied");
    assert!(gateway.processes().is_empty(), "it was started before anyone agreed");
    client.approve = Approve::Once;
    let message = client.call("pipe25__odd", json!({}));
    let text = said(&message);
    assert!(text.starts_with("[text of the untrusted server `pipe25`"), "{text}");
    assert!(text.contains("\nabc\n"), "{text:?}");
    assert_eq!(client.questions.len(), 2, "every call asks, read-only or not");
}

#[test]
fn allow_and_deny_lists_decide_and_what_they_hide_does_not_exist() {
    let lists = json!({"allowTools": ["echo", "write", "count"], "denyTools": ["write"]});
    let gateway = Gateway::new()
        .stdio("pipe25", &[])
        .bundle("pipe25", "direct", lists)
        .stdio("pipe26", &["--era", "2026"])
        .bundle("pipe26", "direct", json!({"denyTools": ["echo"]}));
    let mut server = gateway.spawn(Transport::Stdio);
    let mut client = server.connect(SESSIONS);
    let names = listed(&mut client);
    let of = |id: &str| names.iter().filter(|name| name.starts_with(id)).count();
    assert_eq!(names[..2], ["pipe25__count", "pipe25__echo"]);
    assert_eq!((of("pipe25"), of("pipe26")), (2, offer()["tools"].as_object().unwrap().len() - 1));
    let never = client.call("pipe25__never_was", json!({}));
    for hidden in ["pipe25__write", "pipe25__ask", "pipe26__echo"] {
        let message = client.call(hidden, json!({"path": "x", "text": "x"}));
        assert_unknown(&message);
        assert_eq!(message["error"]["data"]["hint"], never["error"]["data"]["hint"]);
    }
    assert_eq!(said(&client.call("pipe25__echo", json!({"text": "x"}))), "x");
    for meta in super::meta::NAMES {
        assert_unknown(&client.call(meta, json!({"query": "x"})));
    }
}

/// Names as a client can use them: short, of plain characters, and no two alike.
#[test]
fn names_are_short_plain_and_distinct() {
    let mut tools = Map::new();
    let long = "x".repeat(100);
    let names = ["do it", "do/it", "do.it", &format!("{long}1"), &format!("{long}2"), "ünï"];
    for name in names {
        let definition = json!({"name": name, "inputSchema": {"type": "object"}});
        tools.insert(name.to_owned(), definition);
    }
    let locked = json!({"identity": {"name": "scripted"}, "tools": tools});
    let mut gateway = Gateway::new().stdio("pipe25", &[]);
    gateway.locked.insert("pipe25".into(), locked);
    let mut server = gateway.spawn(Transport::Stdio);
    let mut client: Client = server.connect(SESSIONS);
    let listed = listed(&mut client);
    assert_eq!(listed.len(), names.len(), "{listed:?}");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    for name in &listed {
        assert!(name.len() <= 48 && name.chars().all(is_plain), "{name}");
        assert_eq!(listed.iter().filter(|other| *other == name).count(), 1);
    }
}
