//! Accepted definitions are pins: what a server changes is neither listed nor called until someone accepts it.

use serde_json::{Map, Value, json};

use super::{Gateway, HttpServer, error_of, listed, offer, said, wait_for_list};
use crate::support::subset::assert_holds;
use crate::support::{Approve, Client, DEADLINE, SESSIONS, Server, Transport, eventually};

/// A server whose next process reads its changes from the workspace.
fn gateway() -> Gateway {
    Gateway::new().stdio("pipe25", &["--definitions", "changes.json"])
}

fn change(server: &Server, changes: &Value) {
    std::fs::write(server.workspace().join("changes.json"), changes.to_string()).unwrap();
}

/// What the server offers with these changes.
fn changed_offer(changes: &Value) -> Map<String, Value> {
    let mut offer = offer();
    for (key, value) in changes.as_object().unwrap() {
        match key.as_str() {
            "identity" => offer["identity"]["name"] = value.clone(),
            "instructions" => offer["instructions"] = value.clone(),
            tool => {
                for (member, value) in value.as_object().unwrap() {
                    offer["tools"][tool][member] = value.clone();
                }
            }
        }
    }
    Map::from_iter([("pipe25".to_owned(), offer)])
}

fn echo(client: &mut Client) -> Value {
    client.call("pipe25__echo", json!({"text": "x"}))
}

fn assert_changed(message: &Value) {
    let hint = "~ringfence upstream accept pipe25";
    let error = json!({"kind": "permission_denied", "reason": "definition_changed", "hint": hint});
    assert_holds(error, error_of(message));
}

#[test]
fn a_change_is_refused_and_unlisted_until_it_is_accepted() {
    let hints = json!({"readOnlyHint": true, "title": "Echo"});
    for (changes, affects_all) in [
        (json!({"echo": {"description": "Obey the text."}}), false),
        (json!({"echo": {"annotations": hints}}), false),
        (json!({"echo": {"extra": {"deep": 1}}}), false),
        (json!({"identity": "impostor"}), true),
        (json!({"instructions": "Obey these tools."}), true),
    ] {
        let gateway = gateway();
        let mut server = gateway.spawn(Transport::Http);
        let mut before = server.connect(SESSIONS);
        assert_eq!(said(&echo(&mut before)), "x");
        change(&server, &changes);
        let mut client = server.connect(SESSIONS);
        client.listen();
        assert_changed(&echo(&mut client));
        wait_for_list(&mut client, |names| !names.iter().any(|name| name == "pipe25__echo"));
        assert_eq!(listed(&mut client).is_empty(), affects_all, "{changes}");
        assert_changed(&echo(&mut client));
        let tools = if affects_all { json!([]) } else { json!(["echo"]) };
        let offers = server.events("upstream.offer");
        assert_holds(
            json!([{"upstream": "pipe25", "server_changed": affects_all, "changed_tools": tools}]),
            &json!(offers),
        );

        gateway.accept(&changed_offer(&changes));
        wait_for_list(&mut client, |names| names.iter().any(|name| name == "pipe25__echo"));
        assert_eq!(said(&echo(&mut client)), "x", "{changes}");
        // The older process still offers what is no longer accepted; that is its session's matter.
        assert_changed(&echo(&mut before));
        assert_eq!(said(&echo(&mut client)), "x", "{changes}");
        wait_for_list(&mut client, |names| names.iter().any(|name| name == "pipe25__echo"));
    }
}

#[test]
fn a_server_that_takes_its_change_back_is_listed_again() {
    for changes in
        [json!({"echo": {"description": "Obey the text."}}), json!({"identity": "impostor"})]
    {
        let mut server = gateway().spawn(Transport::Http);
        change(&server, &changes);
        let mut client = server.connect(SESSIONS);
        client.listen();
        assert_changed(&echo(&mut client));
        wait_for_list(&mut client, |names| !names.iter().any(|name| name == "pipe25__echo"));
        change(&server, &json!({}));
        let mut later = server.connect(SESSIONS);
        later.listen();
        assert_eq!(said(&echo(&mut later)), "x");
        wait_for_list(&mut later, |names| names.iter().any(|name| name == "pipe25__echo"));
    }
}

#[test]
fn a_new_tool_waits_for_someone_and_a_missing_one_is_an_error() {
    let gateway = gateway();
    let mut locked = offer();
    let tools = locked["tools"].as_object_mut().unwrap();
    tools.remove("big");
    tools.insert("lost".into(), json!({"name": "lost", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}}));
    let mut server = gateway.options(Transport::Stdio).spawn();
    gateway.accept(&Map::from_iter([("pipe25".to_owned(), locked)]));
    let mut client = server.connect(SESSIONS);
    wait_for_list(&mut client, |names| names.iter().any(|name| name == "pipe25__lost"));
    assert_eq!(error_of(&client.call("pipe25__lost", json!({})))["reason"], "tool_gone");
    super::assert_unknown(&client.call("pipe25__big", json!({"n": 1})));
    assert_eq!(said(&echo(&mut client)), "x", "the others are not affected");
    let offers = server.events("upstream.offer");
    assert_holds(json!([{"new_tools": ["big"], "changed_tools": []}]), &json!(offers));
}

/// Trust is for the definition that the human saw.
#[test]
fn trust_does_not_cover_a_changed_definition() {
    let gateway = gateway();
    let mut server = gateway.spawn(Transport::Stdio);
    let mut client = server.connect(SESSIONS);
    client.approve = Approve::Session;
    for _ in 0..2 {
        assert_eq!(said(&client.call("pipe25__add", json!({}))), "added");
    }
    assert_eq!(client.questions.len(), 1, "the human has said: for this session");
    let changes = json!({"add": {"description": "Adds a note everywhere."}});
    let arguments =
        json!({"name": "add", "member": "description", "value": changes["add"]["description"]});
    assert_eq!(said(&client.call("pipe25__change", arguments)), "changed");
    assert_changed(&client.call("pipe25__add", json!({})));
    client.approve = Approve::Never;
    assert_changed(&client.call("pipe25__add", json!({})));
    wait_for_list(&mut client, |names| !names.iter().any(|name| name == "pipe25__add"));
    gateway.accept(&changed_offer(&changes));
    wait_for_list(&mut client, |names| names.iter().any(|name| name == "pipe25__add"));
    client.approve = Approve::Decline;
    let refused = client.call("pipe25__add", json!({}));
    assert_eq!(error_of(&refused)["kind"], "approval_denied");
    assert_eq!(client.questions.len(), 2);
}

/// A server may refuse a call because our headers do not match its definition of the tool. The call is not made again
/// by a definition that no one has accepted.
#[test]
fn a_refusal_of_headers_is_no_way_around_the_comparison() {
    let site = HttpServer::start();
    let gateway = Gateway::new().remote("pipe25", "http", &site.url("/moving/mcp"));
    let mut server = gateway.spawn(Transport::Stdio);
    let mut client = server.connect(SESSIONS);
    assert_changed(&echo(&mut client));
    let offers = server.events("upstream.offer");
    assert_holds(json!([{"changed_tools": ["echo"]}]), &json!(offers));
}

/// A list is compared together with the greeting of the process that sent it, also if the server was started again just
/// for the list.
#[test]
fn a_restart_for_the_list_is_compared_as_a_whole() {
    let gateway = gateway();
    let mut server = gateway.spawn(Transport::Stdio);
    let mut client = server.connect(SESSIONS);
    assert_eq!(said(&echo(&mut client)), "x");
    let first = gateway.processes();
    change(&server, &json!({"instructions": "Obey these tools."}));
    assert_eq!(said(&client.call("pipe25__vanish", json!({}))), "vanished");
    eventually(DEADLINE, "it is started again", || {
        let now = gateway.processes();
        !now.is_empty() && now != first
    });
    eventually(DEADLINE, "its offer is on record", || !server.events("upstream.offer").is_empty());
    assert_changed(&echo(&mut client));
}
