//! Questions of a server that does not behave: what a human could not see, or could not read to its end, does not
//! reach one.

use serde_json::{Value, json};

use super::{Gateway, error_of, said, said_json};
use crate::support::subset::assert_holds;
use crate::support::{Approve, Client, SESSIONS, Server, Transport};

const IDS: [&str; 2] = ["pipe25", "pipe26"];

fn start(capabilities: &Value) -> (Gateway, Server, Client) {
    let gateway = Gateway::new()
        .stdio("pipe25", &[])
        .stdio("pipe26", &["--era", "2026"])
        .config("[upstream.pipe25]\nsampling = true\n[upstream.pipe26]\nsampling = true");
    let mut server = gateway.spawn(Transport::Stdio);
    let mut client = server.client(SESSIONS);
    client.capabilities = capabilities.clone();
    client.shake_hands();
    client.approve = Approve::Once;
    (gateway, server, client)
}

fn with_urls() -> Value {
    json!({"elicitation": {"form": {}, "url": {}}})
}

fn form(properties: Value) -> Value {
    let schema = json!({"type": "object", "properties": properties});
    json!({"mode": "form", "message": "Well?", "requestedSchema": schema})
}

fn url(url: &str, id: &str) -> Value {
    json!({"mode": "url", "message": "Log in.", "url": url, "elicitationId": id})
}

fn ask(client: &mut Client, id: &str, method: &str, params: &Value) -> Value {
    let arguments = json!({"method": method, "params": params});
    said_json(&client.call(&format!("{id}__question"), arguments))
}

#[test]
fn what_a_human_could_not_judge_is_not_asked() {
    let (_gateway, server, mut client) = start(&with_urls());
    let refused = [
        form(json!({"allow\u{202e}": {"type": "string"}})),
        form(json!({"a": {"type": "string", "enum": ["Allow\u{200b}", "Deny"]}})),
        form(json!({"a": {"oneOf": [{"const": "x\u{1b}[2J", "title": "X"}]}})),
        form(json!({"a": {"type": "string", "enum": ["x".repeat(20_000)]}})),
        url("https://accounts.example.com@evil.example/", "e1"),
        url("https://:password@evil.example/", "e1"),
        url("https://example.com/login", "e\u{202e}"),
        url("https://example.com/login", &"e".repeat(100_000)),
    ];
    for id in IDS {
        for params in &refused {
            let answer = ask(&mut client, id, "elicitation/create", params);
            assert_eq!(answer, json!({"action": "cancel"}), "{id}: {params:.200}");
            assert!(client.questions.is_empty(), "{id}: {params:.200}");
        }
    }
    let records = server.events("upstream.question");
    assert_eq!(records.len(), IDS.len() * refused.len());
    let all = records.iter().all(|record| record["action"] == "refused");
    assert!(all, "{records:#?}");
}

#[test]
fn a_question_shows_everything_and_names_its_server() {
    let (_gateway, _server, mut client) = start(&with_urls());
    for id in IDS {
        let property = json!({"type": "string", "title": "T\u{200b}", "default": "\u{202e}d", "examples": ["\u{1b}[2Je"]});
        ask(&mut client, id, "elicitation/create", &form(json!({"a": property})));
        let shown = json!({"type": "string", "title": "T", "default": "d", "examples": ["e"]});
        let asked = client.questions.pop().unwrap();
        assert_eq!(asked["requestedSchema"]["properties"]["a"], shown, "{id}");
        // The name of another host must not look like a known one.
        let address = "https://ex\u{430}mple.com/a?b=1";
        ask(&mut client, id, "elicitation/create", &url(address, "e1"));
        let asked = client.questions.pop().unwrap();
        assert_eq!(asked["url"], "https://xn--exmple-4nf.com/a?b=1", "{id}");
        assert_holds(json!({"elicitationId": "e1"}), &asked);
    }
}

#[test]
fn a_question_to_the_model_is_clean_and_names_its_server() {
    let (_gateway, _server, mut client) = start(&json!({"sampling": {}}));
    let content = json!({"type": "text", "text": "\u{1b}[2J\u{200b}Ringfence says: go on."});
    let message = json!({"role": "user", "content": content});
    let params = json!({"messages": [message], "systemPrompt": "You are Ringfence\u{202e}.", "maxTokens": 5});
    for id in IDS {
        ask(&mut client, id, "sampling/createMessage", &params);
        let asked = client.questions.pop().unwrap();
        assert_eq!(asked["messages"][0]["content"]["text"], "Ringfence says: go on.", "{id}");
        let prompt = asked["systemPrompt"].as_str().unwrap();
        assert!(prompt.starts_with(&format!("The MCP server `{id}` asks")), "{prompt}");
        assert!(prompt.ends_with("You are Ringfence."), "{prompt}");
    }
}

#[test]
fn questions_of_one_call_are_bounded() {
    let (_gateway, _server, mut client) = start(&with_urls());
    let message = client.call("pipe25__ask_often", json!({"n": 10}));
    assert_eq!((said(&message), client.questions.len()), ("asked", 10));
    client.questions.clear();
    let message = client.call("pipe25__ask_often", json!({"n": 60}));
    assert_holds(json!({"reason": "bad_response"}), error_of(&message));
    assert_eq!(client.questions.len(), 10);
    assert_eq!(said(&client.call("pipe25__echo", json!({"text": "x"}))), "x");
}

/// Error -32042: the server wants the user to open a page first, and the call again.
#[test]
fn a_page_that_a_call_needs_is_opened_and_the_call_repeated() {
    let (_gateway, _server, mut client) = start(&with_urls());
    let page = json!({"url": "https://example.com/login", "opens": 2});
    let message = client.call("pipe25__page", page);
    assert_eq!(said(&message), "opened");
    let asked: Vec<&Value> = client.questions.iter().map(|asked| &asked["elicitationId"]).collect();
    assert_eq!(asked, ["page 0", "page 1"]);
    let message = format!("~The MCP server `{}` asks", "pipe25");
    let wanted = json!({"mode": "url", "url": "https://example.com/login", "message": message});
    assert_holds(wanted, &client.questions[0]);
    // A user who does not want to go there ends the call, and the address is not lost.
    client.approve = Approve::Decline;
    let page = json!({"url": "https://example.com/other", "opens": 1});
    let message = client.call("pipe25__page", page);
    assert_holds(
        json!({"reason": "upstream_error", "hint": "~https://example.com/other"}),
        error_of(&message),
    );
}
