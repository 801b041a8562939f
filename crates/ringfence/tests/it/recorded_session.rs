//! The names that programs rely on: JSON keys, error kinds, states and audit fields of a recorded
//! session. Code may be renamed freely; these may not change by accident.
//!
//! Texts for humans, paths, times and ids are replaced before the comparison. After a deliberate
//! change, `RINGFENCE_BLESS=1` records the session again.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::support::{Approve, Client, MODERN, Options, SESSIONS, Transport};

const CONFIG: &str = r#"
[mcp.greet]
description = "Greets"
command = "printf"
args = ["hello %s", "{name}"]
input_schema = { type = "object", properties = { name = { type = "string" } }, required = ["name"] }
"#;

const RULES: &str = r#"prefix_rule(pattern = ["touch"], decision = "forbidden")"#;

/// Calls that together show every kind of result: success, tool error, protocol error, refusal.
fn calls() -> Vec<(&'static str, Value)> {
    vec![
        ("file.write", json!({"path": "notes/a.txt", "content": "one\ntwo\n"})),
        ("file.read", json!({"path": "notes/a.txt"})),
        ("file.read", json!({"path": "missing.txt"})),
        ("file.read", json!({"path": "../outside"})),
        ("file.read", json!({"pth": "notes/a.txt"})),
        ("file.list", json!({"path": "notes"})),
        ("file.search", json!({"pattern": "two"})),
        ("file.replace", json!({"path": "notes/a.txt", "edits": [{"old": "two", "new": "three"}]})),
        ("shell.exec", json!({"command": "echo out; echo err >&2; exit 3"})),
        ("shell.exec", json!({"command": "touch made"})),
        ("shell.exec", json!({"command": "sleep 60", "timeout_ms": 200})),
        ("shell.exec", json!({"command": "unshare -r true"})),
        ("shell.exec", json!({"command": "true", "escalate": "why not"})),
        ("greet", json!({"name": "you"})),
        ("greet", json!({})),
        ("no.such.tool", json!({})),
    ]
}

fn record(version: &'static str) -> Value {
    let options = Options::new(Transport::Stdio).config(CONFIG).arg("--audit-execs");
    let mut server = options.spawn();
    let rules = server.scratch.path().join("home/.codex/rules");
    std::fs::create_dir_all(&rules).unwrap();
    std::fs::write(rules.join("default.rules"), RULES).unwrap();
    let mut client = server.client(version);
    client.approve = Approve::Once;
    let mut steps = Map::new();
    steps.insert("handshake".into(), client.shake_hands());
    steps.insert("tools/list".into(), tools_by_name(&mut client));
    let capabilities = client.request("mcp.capabilities", json!({}));
    assert!(capabilities["result"]["tools"].is_array(), "{capabilities:#}");
    steps.insert("mcp.capabilities".into(), capabilities);
    steps.insert("no/such/method".into(), client.request("no/such/method", json!({})));
    for (at, (tool, arguments)) in calls().into_iter().enumerate() {
        steps.insert(format!("{:02} {tool} {arguments}", at + 1), client.call(tool, arguments));
    }
    drop(client);
    server.ended();
    steps.insert("audit".into(), Value::Array(server.audit()));
    let mut session = Value::Object(steps);
    mask("", &mut session);
    session
}

fn tools_by_name(client: &mut Client) -> Value {
    let listed = client.request("tools/list", json!({}));
    let tools = listed["result"]["tools"].as_array().unwrap();
    tools.iter().map(|tool| (tool["name"].as_str().unwrap().to_owned(), tool.clone())).collect()
}

/// Values that are for humans, or that differ from one run to the next.
const TEXTS: &[&str] = &[
    "message",
    "hint",
    "description",
    "title",
    "text",
    "instructions",
    "reason",
    "justification",
    "stdout",
    "stderr",
    "output",
    "version",
    "summary",
    "detail",
    "question",
    "diff",
];

/// Replaces what may change by the kind of value it is.
fn mask(key: &str, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields.iter_mut() {
                // Below `properties` the keys are names of arguments, not ours.
                mask(key, value);
            }
        }
        Value::Array(values) => {
            values.iter_mut().for_each(|value| mask(key, value));
            if values.iter().all(|value| !value.is_object()) {
                values.dedup();
            }
        }
        Value::Number(_) => *value = json!("<number>"),
        Value::String(text) if TEXTS.contains(&key) => *text = "<text>".into(),
        Value::String(text) if is_name(text) => {}
        Value::String(text) => *text = "<value>".into(),
        Value::Null | Value::Bool(_) => {}
    }
}

/// A word of the protocol, such as a kind, a state or a method; not a path, an id or a sentence.
fn is_name(text: &str) -> bool {
    let named = |c: char| c.is_ascii_lowercase() || "_./-".contains(c);
    !text.starts_with(['/', '.']) && text.chars().all(named) && text.len() < 40
}

/// Recorded anew by `RINGFENCE_BLESS=1`.
#[track_caller]
fn compare(name: &str, session: &Value) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/recorded_session").join(name);
    let now = serde_json::to_string_pretty(session).unwrap() + "\n";
    if std::env::var_os("RINGFENCE_BLESS").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, &now).unwrap();
    }
    let recorded = std::fs::read_to_string(&file).unwrap();
    let differs = recorded.lines().zip(now.lines()).position(|(old, new)| old != new);
    if let Some(at) = differs.or((recorded.len() != now.len()).then_some(0)) {
        let context = |text: &str| {
            text.lines().skip(at.saturating_sub(12)).take(20).collect::<Vec<_>>().join("\n")
        };
        panic!(
            "{name} differs at line {}\nrecorded:\n{}\nnow:\n{}",
            at + 1,
            context(&recorded),
            context(&now)
        );
    }
}

#[test]
fn names_on_the_wire_and_in_the_log_are_the_recorded_ones() {
    for (version, name) in [(SESSIONS, "2025.json"), (MODERN, "2026.json")] {
        compare(name, &record(version));
    }
}

/// A masked record must still tell a changed name.
#[test]
fn a_renamed_key_is_a_difference() {
    let masked = |key: &str| {
        let mut value = json!({"error": {(key): "not_found", "message": "no such file"}});
        mask("", &mut value);
        value
    };
    assert_ne!(masked("kind"), masked("sort"));
    assert_eq!(masked("kind")["error"]["message"], "<text>");
    assert_eq!(masked("kind")["error"]["kind"], "not_found");
}
