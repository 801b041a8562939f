//! The envelope rules, in process: each verdict is checked against the rules said once more in other words.

use ringfence::{EnvelopeVerdict, Kind, judge_message};
use serde_json::{Value, json};

use crate::rng::Rng;
use crate::{Shown, assert_error_body, each_case, mutate};

/// Messages of both eras that are sound, to be spoiled. None of them runs anything: whoever is asked says no.
pub fn sound_messages() -> Vec<Value> {
    let stateless = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "fuzz", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    });
    let request = |method: &str, params: Value| json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
    let initialize = |version: &str| {
        let info = json!({"name": "fuzz", "version": "1"});
        request(
            "initialize",
            json!({"protocolVersion": version, "capabilities": {"elicitation": {}}, "clientInfo": info}),
        )
    };
    let call = |tool: &str, arguments: Value| {
        request("tools/call", json!({"name": tool, "arguments": arguments}))
    };
    vec![
        initialize("2024-11-05"),
        initialize("2025-11-25"),
        request("ping", json!({})),
        json!({"jsonrpc": "2.0", "id": "p", "method": "ping"}),
        request("tools/list", json!({})),
        request("tools/list", json!({"_meta": stateless})),
        request("server/discover", json!({"_meta": stateless})),
        request("mcp.capabilities", json!({})),
        request("logging/setLevel", json!({"level": "debug"})),
        call("file.read", json!({"path": "file.txt", "offset": 1, "limit": 10})),
        call("file_read", json!({"path": "dir"})),
        call(
            "file.write",
            json!({"path": "dir/new.txt", "content": "text\n", "mode": "overwrite"}),
        ),
        call("shell.exec", json!({"command": "true", "env": {"A": "b"}, "timeout_ms": 1000})),
        call("shell.exec", json!({"argv": ["true"], "cwd": "dir", "stdin": "x"})),
        request(
            "tools/call",
            json!({"name": "file.read", "arguments": {"path": "file.txt"}, "_meta": stateless}),
        ),
        request(
            "tools/call",
            json!({"name": "shell.exec", "arguments": {"command": "true"}, "_meta": stateless}),
        ),
        request(
            "tools/call",
            json!({"name": "file.read", "arguments": {"path": "file.txt"}, "_meta": {"progressToken": 1}}),
        ),
        request("no/such/method", json!({"a": [1, 2.5, null]})),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99, "reason": "x"}}),
        json!({"jsonrpc": "2.0", "id": 1, "result": {"action": "decline"}}),
        json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "no"}}),
    ]
}

/// One message, spoiled in none to four places.
pub fn any_message(rng: &mut Rng, sound: &[Value]) -> Vec<u8> {
    let mut message = rng.pick(sound).clone();
    for _ in 0..rng.below(5) {
        mutate::spoil(rng, &mut message);
    }
    mutate::write(rng, &message)
}

/// What the rules say about a message.
#[derive(Debug, PartialEq)]
pub enum Fate {
    /// Nobody may answer it: a notification, a request whose id is null.
    Silence,
    /// An answer of the client's. It may be refused, under no id, when it does not fit the protocol.
    Perhaps,
    /// Refused at the edge; the id comes back when it is one.
    Refused(Option<Value>),
    /// A sound request: exactly one answer with this id.
    Answer(Value),
}

/// As JSON is commonly read: a number that no floating-point one can hold is no number, and `-0` is zero.
fn read(bytes: &[u8]) -> serde_json::Result<Value> {
    fn fits(value: &mut Value) -> bool {
        match value {
            Value::Number(number) => {
                if let Some(whole) = number.as_i64() {
                    *number = whole.into();
                }
                number.as_f64().is_some()
            }
            Value::Array(items) => items.iter_mut().all(fits),
            Value::Object(members) => members.values_mut().all(fits),
            _ => true,
        }
    }
    let mut value = serde_json::from_slice::<Value>(bytes)?;
    match fits(&mut value) {
        true => Ok(value),
        false => Err(serde::de::Error::custom("a number is out of range")),
    }
}

/// Judges a message as the server does and checks the verdict.
pub fn check(bytes: &[u8]) -> Fate {
    let verdict = std::panic::catch_unwind(|| judge_message(bytes))
        .unwrap_or_else(|_| panic!("judge panicked on {:?}", Shown(bytes)));
    let parsed = read(bytes);
    let about = Shown(bytes);
    match verdict {
        EnvelopeVerdict::Refuse(kind, refusal) => {
            check_refusal(&refusal, kind, &parsed, &about);
            Fate::Refused(refusal.get("id").cloned())
        }
        EnvelopeVerdict::Ignore => {
            let message = parsed.unwrap_or_else(|_| panic!("no JSON, and ignored: {about:?}"));
            let null_id = message.get("id") == Some(&Value::Null);
            assert!(
                message.get("method").is_some() && (null_id || message.get("id").is_none()),
                "ignored: {about:?}"
            );
            Fate::Silence
        }
        EnvelopeVerdict::Pass(message) => {
            assert_eq!(message["jsonrpc"], "2.0", "{about:?}");
            match (message.get("method"), message.get("id")) {
                (Some(method), id) => {
                    assert!(method.is_string(), "{about:?}");
                    assert!(message.get("params").is_none_or(Value::is_object), "{about:?}");
                    assert!(id.is_none_or(|id| id.is_string() || id.is_i64()), "{about:?}");
                    if method == "tools/call" {
                        assert!(message["params"]["name"].is_string(), "{about:?}");
                    }
                    id.map_or(Fate::Silence, |id| Fate::Answer(id.clone()))
                }
                (None, id) => {
                    assert!(
                        id.is_some()
                            && (message.contains_key("result") || message.contains_key("error")),
                        "{about:?}"
                    );
                    Fate::Perhaps
                }
            }
        }
    }
}

fn check_refusal(
    refusal: &Value,
    kind: Kind,
    parsed: &serde_json::Result<Value>,
    about: &Shown<'_>,
) {
    assert_eq!(refusal["jsonrpc"], "2.0", "{about:?}");
    let error = &refusal["error"];
    assert_error_body(&error["data"], about);
    assert_eq!(error["data"]["code"], error["code"], "{about:?}");
    assert_eq!(error["data"]["kind"], kind.name(), "{about:?}");
    let id = refusal.get("id");
    match parsed {
        Err(_) => assert_eq!((error["code"].as_i64(), id), (Some(-32700), None), "{about:?}"),
        Ok(Value::Object(message)) => {
            let answers = message.get("result").or(message.get("error")).is_some()
                && message.get("method").is_none();
            let sound = message.get("id").filter(|id| !answers && (id.is_string() || id.is_i64()));
            assert_eq!(id, sound, "the id is kept when it is a request's: {about:?}");
            // A method of one era asked for in the other is known at the edge already.
            let known = match error["code"].as_i64() {
                Some(-32601) => message.get("method").is_some_and(Value::is_string),
                code => matches!(code, Some(-32600 | -32602)),
            };
            assert!(known, "{refusal} for {about:?}");
        }
        Ok(_) => assert_eq!((error["code"].as_i64(), id), (Some(-32600), None), "{about:?}"),
    }
}

#[test]
fn sound_messages_pass() {
    for message in sound_messages() {
        let fate = check(message.to_string().as_bytes());
        assert!(!matches!(fate, Fate::Refused(_)), "{message}");
    }
}

#[test]
fn every_envelope_is_judged_by_the_rules() {
    let sound = sound_messages();
    let (mut refused, mut silent, mut passed) = (0u64, 0u64, 0u64);
    each_case("envelope", 20_000, |rng| {
        let bytes = any_message(rng, &sound);
        match check(&bytes) {
            Fate::Refused(_) => refused += 1,
            Fate::Silence | Fate::Perhaps => silent += 1,
            Fate::Answer(_) => passed += 1,
        }
    });
    println!("envelope: {refused} refused, {silent} without an answer, {passed} passed on");
    assert!(refused > 0 && silent > 0 && passed > 0, "the cases are one-sided");
}

/// Found by the cases above: an id in a client's answer is one of ours, and may be in use by the client as well.
#[test]
fn an_error_never_goes_back_under_the_id_of_an_answer() {
    for (message, fate) in [
        (r#"{"jsonrpc":"1.0","id":1,"result":{}}"#, Fate::Refused(None)),
        (r#"{"jsonrpc":"2.0","id":1,"error":"no"}"#, Fate::Refused(None)),
        (r#"{"jsonrpc":"2.0","id":1}"#, Fate::Refused(Some(json!(1)))),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#, Fate::Refused(Some(json!(1)))),
        (r#"{"jsonrpc":"2.0","method":"notifications/initialized","error":{}}"#, Fate::Silence),
    ] {
        assert_eq!(check(message.as_bytes()), fate, "{message}");
    }
}
