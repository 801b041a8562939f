//! Every call passes the gate and is on record, whatever the server says about its tools.

use serde_json::{Value, json};

use super::{Gateway, error_of, said};
use crate::support::subset::assert_holds;
use crate::support::{Approve, MODERN, SESSIONS, Transport};

/// Tools that only read, add, and destroy, with arguments.
fn tools() -> [(&'static str, Value); 3] {
    [
        ("pipe25__echo", json!({"text": "x"})),
        ("pipe25__add", json!({})),
        ("pipe25__write", json!({"path": "x"})),
    ]
}

#[test]
fn what_asks_is_what_the_operator_says() {
    for (approval, trust, asks) in [
        ("auto", "trusted", [false, true, true]),
        ("auto", "untrusted", [true, true, true]),
        ("always", "trusted", [true, true, true]),
        ("never", "trusted", [false, false, false]),
    ] {
        let gateway = Gateway::new()
            .stdio("pipe25", &[])
            .edit("pipe25", |entry| entry["trust"] = json!(trust))
            .bundle("pipe25", "direct", json!({"allowTools": ["echo", "add", "write"]}))
            .config(&format!("[upstream.pipe25]\napproval = '{approval}'"));
        let mut server = gateway.spawn(Transport::Stdio);
        let mut client = server.connect(SESSIONS);
        client.approve = Approve::Decline;
        for ((tool, arguments), asks) in tools().into_iter().zip(asks) {
            client.questions.clear();
            let message = client.call(tool, arguments);
            assert_eq!(client.questions.len(), usize::from(asks), "{approval} {trust} {tool}");
            if asks {
                assert_eq!(error_of(&message)["kind"], "approval_denied");
                let question = client.questions[0]["message"].as_str().unwrap();
                let what = tool.replace("pipe25__", "") + " on the MCP server pipe25";
                assert!(question.contains(&what), "{question}");
            }
        }
        assert_eq!(gateway.processes().len(), usize::from(asks.contains(&false)), "{approval}");
    }
}

#[test]
fn without_anyone_to_ask_only_reading_is_possible() {
    let mut server = Gateway::new().stdio("pipe25", &[]).spawn(Transport::Stdio);
    let mut client = server.client(SESSIONS);
    client.capabilities = json!({});
    client.shake_hands();
    let [(echo, text), rest @ ..] = tools();
    assert_eq!(said(&client.call(echo, text)), "x");
    for (tool, arguments) in rest {
        let message = client.call(tool, arguments);
        assert_eq!(message["result"]["isError"], true, "{message:#}");
    }
    assert!(!server.workspace().join("x").exists());
}

#[test]
fn connections_and_calls_are_on_record() {
    let gateway = Gateway::new().stdio("pipe25", &[]).stdio("pipe26", &["--era", "2026"]);
    let mut server = gateway.spawn(Transport::Stdio);
    let mut client = server.connect(MODERN);
    for _ in 0..2 {
        for id in ["pipe25", "pipe26"] {
            assert_eq!(said(&client.call(&format!("{id}__echo"), json!({"text": "x"}))), "x");
        }
    }
    let connects = server.events("upstream.connect");
    let connect = |id: &str, protocol: &str| json!({"upstream": id, "protocol": protocol, "server": "scripted", "version": "1", "trace_id": "*"});
    let expected = json!([connect("pipe25", "2025-11-25"), connect("pipe26", "2026-07-28")]);
    assert_holds(expected, &json!(connects));
    assert_eq!(connects.len(), 2, "one for each connection");
    for stop in server.stops(4) {
        assert_holds(json!({"status": "completed", "tool": "~__echo", "trace_id": "*"}), &stop);
    }
    client.hang_up();
    assert!(server.ended().success());
    let ends = server.events("run.stop");
    assert_holds(json!([{"upstream": "*"}, {"upstream": "*"}]), &json!(ends));
}

/// The human decides by the arguments, so an untrusted server must not choose which of them are shown.
#[test]
fn only_a_trusted_server_can_hide_the_values_of_arguments() {
    for trust in ["untrusted", "trusted"] {
        let mut gateway = Gateway::new()
            .stdio("pipe25", &[])
            .edit("pipe25", |entry| entry["trust"] = json!(trust))
            .bundle("pipe25", "direct", json!({"allowTools": ["write"]}));
        let schema = &mut gateway.locked["pipe25"]["tools"]["write"]["inputSchema"];
        schema["properties"]["path"]["format"] = json!("password");
        schema["properties"]["text"]["writeOnly"] = json!(true);
        let mut server = gateway.spawn(Transport::Stdio);
        let mut client = server.connect(SESSIONS);
        client.approve = Approve::Decline;
        client.call("pipe25__write", json!({"path": "to-a-victim", "text": "the body"}));
        let question = client.questions[0]["message"].as_str().unwrap();
        let shows_values = question.contains("to-a-victim") && question.contains("the body");
        let lengths = ["[not shown, 11 characters given", "[not shown, 8 characters given"];
        let shows_lengths = lengths.iter().all(|length| question.contains(length));
        assert_eq!(shows_values, trust == "untrusted", "{question}");
        assert_eq!(shows_lengths, trust == "trusted", "{question}");
        let tools = client.request("tools/list", json!({})).to_string();
        let has_marks = tools.contains("\"password\"") || tools.contains("writeOnly");
        assert_eq!(has_marks, trust == "trusted", "{tools}");
    }
}
