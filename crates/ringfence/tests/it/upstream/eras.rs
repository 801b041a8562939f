//! Every client with every server: questions, progress, log lines, cancellation and changed lists pass between eras
//! and transports.

use serde_json::{Value, json};

use super::{
    CHANGED, PAIRS, error_of, listed, listen, lists, offer, on_all_pairs, said, said_json,
    wait_for_list,
};
use crate::support::subset::assert_holds;
use crate::support::{Approve, Client, DEADLINE, MODERN, Transport, eventually};

/// Calls a tool with `_meta`; the whole message.
fn call_with_meta(client: &mut Client, tool: &str, arguments: Value, meta: Value) -> Value {
    let params = json!({"name": tool, "arguments": arguments, "_meta": meta});
    let id = client.start("tools/call", params);
    client.wait(&id)
}

/// A server's log lines and questions, as the client saw them.
fn notes(client: &mut Client, method: &str) -> Vec<Value> {
    client.drain();
    let (found, rest) =
        client.notifications.drain(..).partition(|note: &Value| note["method"] == method);
    client.notifications = rest;
    found
}

#[test]
fn a_question_of_a_server_is_answered_by_the_human() {
    let with_urls = |client: &mut Client| {
        client.capabilities = json!({"elicitation": {"form": {}, "url": {}}});
    };
    on_all_pairs(
        |gateway| gateway,
        with_urls,
        |_, server, client, id| {
            for (approve, answer) in [
                (Approve::Choice("red"), json!({"action": "accept", "content": {"choice": "red"}})),
                (Approve::Decline, json!({"action": "decline"})),
                (Approve::Cancel, json!({"action": "cancel"})),
            ] {
                client.approve = approve;
                client.questions.clear();
                let message = client.call(&format!("{id}__ask"), json!({}));
                assert_eq!(said_json(&message), answer, "{} {id}", client.at());
                let message = format!("~The MCP server `{id}` asks");
                let colours = json!({"properties": {"choice": {"enum": ["red", "blue"]}}});
                assert_eq!(client.questions.len(), 1, "{:?}", client.questions);
                assert_holds(
                    json!({"message": message, "requestedSchema": colours}),
                    &client.questions[0],
                );
            }
            client.questions.clear();
            client.approve = Approve::Once;
            let message = client.call(&format!("{id}__ask_url"), json!({}));
            assert_eq!(said_json(&message)["action"], "accept", "{} {id}", client.at());
            let url = "https://example.com/login";
            assert_holds(json!({"mode": "url", "url": url}), &client.questions[0]);
            let asked = server.events("upstream.question");
            let actions: Vec<&Value> = asked
                .iter()
                .filter(|event| event["upstream"] == id)
                .map(|event| &event["action"])
                .collect();
            assert_eq!(actions, ["accept", "decline", "cancel", "accept"], "{} {id}", client.at());
        },
    );
}

#[test]
fn without_a_human_a_question_is_cancelled_and_roots_are_those_of_the_sandbox() {
    on_all_pairs(
        |gateway| gateway,
        |client| client.capabilities = json!({}),
        |_, server, client, id| {
            for tool in ["ask", "ask_url"] {
                let message = client.call(&format!("{id}__{tool}"), json!({}));
                assert_eq!(said_json(&message)["action"], "cancel", "{} {id}", client.at());
            }
            let roots = said_json(&client.call(&format!("{id}__roots"), json!({})));
            let workspace = server.workspace().canonicalize().unwrap();
            let expected = match id.starts_with("pipe") {
                true => {
                    json!([{"uri": format!("file://{}", workspace.display()), "name": "workspace"}])
                }
                false => json!([]),
            };
            assert_eq!(roots["roots"], expected, "{} {id}", client.at());
            assert!(client.questions.is_empty(), "{:?}", client.questions);
        },
    );
}

#[test]
fn progress_comes_in_order_and_before_the_result() {
    on_all_pairs(
        |gateway| gateway,
        |_| {},
        |_, _, client, id| {
            let tool = format!("{id}__progress");
            let meta = json!({"progressToken": "p"});
            let message = call_with_meta(client, &tool, json!({"n": 200}), meta);
            assert_eq!(said(&message), "progressed");
            let steps = notes(client, "notifications/progress");
            let mut last = 0.0;
            for step in &steps {
                let progress = step["params"]["progress"].as_f64().unwrap();
                assert!(progress > last, "{} {id}: {steps:?}", client.at());
                last = progress;
                let text = format!("{id}: step {progress}");
                let wanted = json!({"progressToken": "p", "total": 200.0, "message": text});
                assert_holds(wanted, &step["params"]);
            }
            assert!(last == 200.0, "{} {id}: {steps:?}", client.at());
            // Without a token no one wants to know.
            client.call(&tool, json!({"n": 200}));
            assert!(notes(client, "notifications/progress").is_empty(), "{} {id}", client.at());
        },
    );
}

#[test]
fn log_lines_name_their_server() {
    on_all_pairs(
        |gateway| gateway,
        |_| {},
        |_, _, client, id| {
            if id == PAIRS[0] {
                listen(client);
            }
            let tool = format!("{id}__log");
            let meta = json!({"io.modelcontextprotocol/logLevel": "info"});
            let message = call_with_meta(client, &tool, json!({}), meta);
            assert_eq!(said(&message), "logged");
            // In a session over HTTP it comes on a stream of its own.
            let heard = client.wait_notification("notifications/message");
            let line = json!({"level": "warning", "logger": format!("{id}/diary"), "data": "a line for the log"});
            assert_holds(line, &heard["params"]);
            // Data of any form is as clean as a text.
            let data = json!({"a\u{202e}": ["b\u{200b}", {"c": "\u{1b}[2Jd"}], "n": 1});
            let meta = json!({"io.modelcontextprotocol/logLevel": "info"});
            call_with_meta(client, &tool, json!({"data": data}), meta);
            let heard = client.wait_notification("notifications/message");
            assert_eq!(heard["params"]["data"], json!({"a": ["b", {"c": "d"}], "n": 1}));
            // A client of 2026-07-28 gets what it asked for alone.
            client.call(&tool, json!({}));
            match client.is_modern() {
                true => assert!(notes(client, "notifications/message").is_empty(), "{id}"),
                false => drop(client.wait_notification("notifications/message")),
            }
        },
    );
}

#[test]
fn a_cancelled_call_ends_on_the_server_too() {
    on_all_pairs(
        |gateway| gateway,
        |_| {},
        |_, server, client, id| {
            let tool = format!("{id}__slow");
            let params = json!({"name": tool, "arguments": {}, "_meta": {"progressToken": id}});
            let call = client.start("tools/call", params);
            client.wait_notification("notifications/progress");
            let is_stream = client.transport == Transport::Http && client.version == MODERN;
            match is_stream {
                true => client.hang_up_on(&call),
                false => client.cancel(&call),
            }
            eventually(DEADLINE, "the server is told", || {
                let notes = client.call(&format!("{id}__notes"), json!({}));
                said(&notes).contains("slow was cancelled")
            });
            let cause = if is_stream { "disconnect" } else { "client" };
            let mut stops = Vec::new();
            eventually(DEADLINE, "the call is on record", || {
                stops = server.events("call.stop");
                stops.retain(|stop| stop["tool"] == tool.as_str());
                !stops.is_empty()
            });
            assert_holds(json!([{"status": "cancelled", "cause": cause}]), &json!(stops));
            let stray = client.stray();
            assert!(stray.is_empty(), "{} {id}: it was answered: {stray:?}", client.at());
        },
    );
}

/// No one has accepted anything: the servers are asked, the client hears of it, and of what they change later.
#[test]
fn changes_of_a_list_reach_the_client() {
    on_all_pairs(
        |gateway| gateway.unlocked(),
        |_| {},
        |gateway, server, client, id| {
            if id == PAIRS[0] {
                listen(client);
                wait_for_list(client, |names| {
                    PAIRS.iter().all(|id| names.contains(&format!("{id}__echo")))
                });
                assert_eq!(
                    listed(client).len(),
                    PAIRS.len() * offer()["tools"].as_object().unwrap().len()
                );
                notes(client, CHANGED);
            }
            let echo = format!("{id}__echo");
            let change =
                json!({"name": "echo", "member": "description", "value": format!("Obeys {id}.")});
            assert_eq!(said(&client.call(&format!("{id}__change"), change)), "changed");
            // The server says so itself; no further call is needed.
            wait_for_list(client, |names| !names.contains(&echo));
            let message = client.call(&echo, json!({"text": "x"}));
            assert_holds(
                json!({"kind": "permission_denied", "reason": "definition_changed"}),
                error_of(&message),
            );
            assert!(lists(client, &format!("{id}__count")), "the others stay");

            let text = std::fs::read_to_string(gateway.lock_path()).unwrap();
            let mut file: Value = serde_json::from_str(&text).unwrap();
            file["servers"][id]["tools"]["echo"]["description"] = json!(format!("Obeys {id}."));
            gateway.accept(file["servers"].as_object().unwrap());
            wait_for_list(client, |names| names.contains(&echo));
            assert_eq!(said(&client.call(&echo, json!({"text": "x"}))), "x");
            let offers = server.events("upstream.offer");
            let mut own = offers.iter().filter(|offer| offer["upstream"] == id);
            assert_holds(json!({"changed_tools": ["echo"]}), own.next_back().expect("a record"));
        },
    );
}
