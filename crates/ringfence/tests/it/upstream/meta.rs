//! Bundles for the meta tools: found by search, described, called by the tool of their class, and nothing else.

use serde_json::{Value, json};

use super::{Gateway, assert_unknown, error_of, listed, said};
use crate::support::subset::assert_holds;
use crate::support::{Approve, Client, SESSIONS, Transport};

pub const NAMES: [&str; 5] = [
    "search_tools",
    "describe_tools",
    "call_tool_read",
    "call_tool_write",
    "call_tool_destructive",
];

fn gateway() -> Gateway {
    Gateway::new()
        .stdio("pipe25", &[])
        .bundle("pipe25", "meta", json!({"denyTools": ["crash", "env"]}))
        .stdio("pipe26", &["--era", "2026"])
        .bundle("pipe26", "direct", json!({"allowTools": ["count"]}))
}

fn found(client: &mut Client, query: &str) -> Vec<Value> {
    let message = client.call("search_tools", json!({"query": query, "limit": 50}));
    let tools = &message["result"]["structuredContent"]["tools"];
    tools.as_array().unwrap_or_else(|| panic!("{message:#}")).clone()
}

fn call_through(client: &mut Client, caller: &str, name: &str, arguments: Value) -> Value {
    client.call(caller, json!({"name": name, "arguments": arguments}))
}

#[test]
fn a_tool_is_found_described_and_called() {
    let gateway = gateway();
    let mut server = gateway.spawn(Transport::Stdio);
    let mut client = server.connect(SESSIONS);
    assert_eq!(listed(&mut client), ["pipe26__count"], "the rest is behind the meta tools");
    let answer = client.request("tools/list", json!({}));
    for name in NAMES {
        assert_holds(json!({"tools": [{"name": name}]}), &answer["result"]);
    }
    let tools = found(&mut client, "repeat a text");
    assert_holds(
        json!({"name": "pipe25__echo", "server": "pipe25", "call_with": "call_tool_read", "signature": "~text"}),
        &tools[0],
    );
    assert!(gateway.processes().is_empty(), "a search starts nothing");
    let message = client.call("describe_tools", json!({"names": ["pipe25__echo"]}));
    assert_holds(
        json!({"tools": [{"name": "pipe25__echo", "input_schema": {"required": ["text"]}}]}),
        &message["result"]["structuredContent"],
    );
    client.approve = Approve::Decline;
    let message = call_through(&mut client, "call_tool_read", "pipe25__echo", json!({"text": "x"}));
    assert_eq!(said(&message), "x");
    assert!(client.questions.is_empty(), "reading does not ask");
    let stops = server.stops(3);
    assert_holds(json!({"tool": "pipe25__echo"}), &stops[2]);
}

#[test]
fn each_class_has_its_caller_and_the_gate_is_that_of_the_tool() {
    let mut server = gateway().spawn(Transport::Stdio);
    let mut client = server.connect(SESSIONS);
    client.approve = Approve::Decline;
    let callers = [
        ("pipe25__echo", "call_tool_read", json!({"text": "x"})),
        ("pipe25__add", "call_tool_write", json!({"note": "x"})),
        ("pipe25__write", "call_tool_destructive", json!({"path": "/nowhere/x"})),
    ];
    for (tool, right, arguments) in &callers {
        for (_, caller, _) in callers.iter().filter(|(_, caller, _)| caller != right) {
            let message = call_through(&mut client, caller, tool, arguments.clone());
            assert_holds(
                json!({"kind": "invalid_arguments", "reason": "wrong_caller", "hint": format!("~{right}")}),
                error_of(&message),
            );
        }
    }
    assert!(client.questions.is_empty(), "told before anyone is asked");
    for (asked, (tool, caller, arguments)) in callers[1..].iter().enumerate() {
        let message = call_through(&mut client, caller, tool, arguments.clone());
        assert_eq!(error_of(&message)["kind"], "approval_denied", "{tool}");
        assert_eq!(client.questions.len(), asked + 1, "{tool}");
        let question = client.questions[asked]["message"].as_str().unwrap();
        let (_, own_name) = tool.split_once("__").unwrap();
        assert!(question.contains(&format!("{own_name} on the MCP server pipe25")), "{question}");
    }
    client.approve = Approve::Once;
    let message = call_through(&mut client, "call_tool_write", "pipe25__add", json!({"note": "x"}));
    assert_eq!(said(&message), "added");
}

#[test]
fn wrong_arguments_are_answered_with_the_schema() {
    let gateway = gateway();
    let mut server = gateway.spawn(Transport::Stdio);
    let mut client = server.connect(SESSIONS);
    for arguments in [json!({}), json!({"text": 1})] {
        let message = call_through(&mut client, "call_tool_read", "pipe25__echo", arguments);
        let error = error_of(&message);
        assert_eq!(error["kind"], "invalid_arguments", "{error:#}");
        assert!(error.to_string().contains("\"required\""), "no schema in {error:#}");
    }
    assert!(gateway.processes().is_empty(), "nothing is started for a call that cannot be right");
}

#[test]
fn nothing_is_reached_that_search_hides() {
    let gateway = gateway();
    let mut server = gateway.spawn(Transport::Stdio);
    let mut client = server.connect(SESSIONS);
    for query in ["end the process in mid-call crash", "environment env", "count calls session"] {
        let hidden = |tool: &Value| {
            let name = tool["name"].as_str().unwrap();
            name.ends_with("crash") || name.ends_with("env") || name.starts_with("pipe26")
        };
        let tools = found(&mut client, query);
        assert!(!tools.iter().any(hidden), "{query}: {tools:?}");
    }
    for name in ["pipe25__crash", "pipe25__env", "pipe26__count", "shell.exec", "search_tools"] {
        let message = client.call("describe_tools", json!({"names": [name]}));
        assert_eq!(error_of(&message)["reason"], "unknown_tool", "{name}");
        for caller in &NAMES[2..] {
            let message = call_through(&mut client, caller, name, json!({}));
            assert_eq!(error_of(&message)["reason"], "unknown_tool", "{caller} {name}");
        }
    }
    for name in ["pipe25__crash", "pipe25__env", "pipe25__echo"] {
        assert_unknown(&client.call(name, json!({"text": "x"})));
    }
    assert!(gateway.processes().is_empty());
}
