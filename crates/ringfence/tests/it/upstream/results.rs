//! What comes back from a server: checked by its own schema, bounded, and without what could pass for ours.

use serde_json::{Value, json};

use super::{Gateway, said};
use crate::support::subset::assert_holds;
use crate::support::{Client, SESSIONS, Server, Transport};

fn start() -> (Server, Client) {
    let mut server = Gateway::new().stdio("pipe25", &[]).spawn(Transport::Stdio);
    let client = server.connect(SESSIONS);
    (server, client)
}

#[test]
fn a_result_keeps_the_form_that_its_tool_declares() {
    let (_server, mut client) = start();
    let right = client.call("pipe25__structured", json!({"right": true}));
    assert_holds(json!({"isError": false, "structuredContent": {"n": 1}}), &right["result"]);
    let wrong = client.call("pipe25__structured", json!({"right": false}));
    let texts = json!([{"text": "~does not match the form"}, {"text": "~one"}]);
    assert_holds(
        json!({"isError": true, "structuredContent": null, "content": texts}),
        &wrong["result"],
    );
}

#[test]
fn an_image_is_an_image_and_its_copy_is_not_text() {
    let (_server, mut client) = start();
    let message = client.call("pipe25__image", json!({}));
    let content = json!([{"type": "image", "mimeType": "image/png", "data": "~iVBORw0KGgo"}]);
    assert_holds(json!({"isError": false, "content": content}), &message["result"]);
    assert_eq!(message["result"]["structuredContent"]["copy"], "[see the image]");
    let copies = message.to_string().matches("iVBORw0KGgo").count();
    assert_eq!(copies, 1, "the data comes once");
}

#[test]
fn a_long_text_is_cut_and_can_be_read_on() {
    let (_server, mut client) = start();
    for (tool, at) in [("big", "/text"), ("resource", "/resource/text")] {
        let message = client.call(&format!("pipe25__{tool}"), json!({"n": 200_000}));
        let text = message["result"]["content"][0].pointer(at).and_then(Value::as_str).unwrap();
        assert!(text.len() < 50_000, "{tool}: {} bytes", text.len());
        let start = text.find("output:").unwrap_or_else(|| panic!("{tool}: {text}"));
        let is_part = |c: &char| c.is_ascii_alphanumeric() || matches!(c, ':' | '-');
        let handle: String = text[start..].chars().take_while(is_part).collect();
        let part = client.call("file.read", json!({"path": handle}));
        assert_eq!(part["result"]["isError"], false, "{tool} {handle}: {part:#}");
    }
}

#[test]
fn nothing_of_a_server_passes_for_ours() {
    let (_server, mut client) = start();
    let message = client.call("pipe25__odd", json!({}));
    let meta = &message["result"]["_meta"];
    assert_eq!((&meta["own"], &meta["dev.ringfence/session"]), (&json!(1), &Value::Null));
    assert_eq!(said(&message), "a\u{200b}b\u{1b}[31mc", "a trusted server's text is its own");
}
