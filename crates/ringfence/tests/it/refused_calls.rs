//! Calls that are refused are on record one by one up to a rate, and counted beyond it.

use serde_json::{Value, json};

use crate::support::server::verify;
use crate::support::subset::assert_holds;
use crate::support::{
    Client, DEADLINE, MODERN, Options, SESSIONS, Server, Transport, eventually, token,
};

/// More than may be refused at once.
const STORM: usize = 300;
/// The size of a burst, and room for what comes back while the storm lasts.
const RECORDED: std::ops::Range<usize> = 100..250;

/// Refused calls of a principal that are on record by themselves, and those that are counted.
fn accounted(server: &Server, principal: &str) -> (usize, u64) {
    let of = |event: &str| {
        let mut events = server.events(event);
        events.retain(|record| record["principal"] == principal);
        events
    };
    let stops = of("call.stop").iter().filter(|stop| stop["started"].is_null()).count();
    (stops, of("call.refused").iter().map(|record| record["count"].as_u64().unwrap()).sum())
}

/// The answers to many calls of a tool that does not exist and to one with wrong arguments.
fn storm(client: &mut Client) -> Vec<Value> {
    let mut answers: Vec<Value> =
        (1..STORM).map(|_| client.call("no.such.tool", json!({}))).collect();
    answers.push(client.call("file.read", json!({"path": 7})));
    answers
}

#[test]
fn a_storm_of_refused_calls_is_counted_and_valid_calls_run() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let answers = storm(&mut client);
    assert_eq!(answers[0]["error"]["data"]["kind"], "unknown_tool", "{}", answers[0]);
    let errors = answers.iter().map(|answer| &answer["result"]["structuredContent"]["error"]);
    let exhausted: Vec<&Value> =
        errors.filter(|error| error["kind"] == "resource_exhausted").collect();
    assert!(exhausted.len() > 50, "{} of {STORM}", exhausted.len());
    for error in &exhausted {
        assert_holds(
            json!({"reason": "refused_calls", "retry_after_ms": "*", "trace_id": "*"}),
            error,
        );
        assert!(error["hint"].as_str().unwrap().contains("Valid calls still run"), "{error}");
    }
    assert!(
        exhausted[0]["message"].as_str().unwrap().contains("there is no tool `no.such.tool`"),
        "{}",
        exhausted[0]
    );
    let valid = client.call("file.list", json!({}));
    assert_eq!(valid["result"]["isError"], false, "{valid}");
    client.hang_up();
    assert!(server.ended().success());
    let (recorded, counted) = accounted(&server, "local");
    assert!(RECORDED.contains(&recorded), "{recorded} recorded, {counted} counted");
    assert_eq!((recorded as u64 + counted, counted), (STORM as u64, exhausted.len() as u64));
    let summary = server.events("call.refused").remove(0);
    assert_holds(
        json!({"principal": "local", "errors": {"unknown_tool": "*"}, "first": "*", "last": "*"}),
        &summary,
    );
    assert_eq!(server.events("call.start").len(), 1);
    let stop = server.events("server.stop").remove(0);
    assert!(summary["seq"].as_u64() < stop["seq"].as_u64(), "the sum is there before the end");
    server.wait_for_log("refused calls");
    assert_eq!(verify(&server.scratch).0, 0);
}

/// What nobody could be asked about has an `approval` record too.
#[test]
fn denied_calls_are_counted_as_well() {
    let mut server = Options::new(Transport::Stdio).unfenced().spawn();
    let mut client = server.client(SESSIONS);
    client.capabilities = json!({});
    client.shake_hands();
    for _ in 0..STORM {
        client.call("shell.exec", json!({"command": "true"}));
    }
    client.hang_up();
    assert!(server.ended().success());
    let (recorded, counted) = accounted(&server, "local");
    assert!(RECORDED.contains(&recorded), "{recorded} recorded, {counted} counted");
    assert_eq!(recorded as u64 + counted, STORM as u64);
    assert_eq!(server.events("approval").len(), recorded);
}

#[test]
fn each_principal_has_its_own_limit() {
    let options = Options::new(Transport::Http).config("shared_workspace = true");
    let options = options.env("MCP_AUTH_ENABLED", "true").env("MCP_AUTH_JWT_SECRET", token::SECRET);
    let mut server = options.spawn();
    let (anna, ben) = (token::of("anna"), token::of("ben"));
    let mut loud = server.client_as(MODERN, Some(&anna));
    loud.shake_hands();
    storm(&mut loud);
    let mut quiet = server.client_as(SESSIONS, Some(&ben));
    quiet.shake_hands();
    let answer = quiet.call("no.such.tool", json!({}));
    assert_eq!(answer["error"]["data"]["kind"], "unknown_tool", "{answer}");
    // It does not take the end of the server to have the count on record.
    eventually(DEADLINE, "the count is on record", || !server.events("call.refused").is_empty());
    server.signal(rustix::process::Signal::TERM);
    assert!(server.ended().success());
    let names: Vec<Value> =
        server.events("call.refused").iter().map(|record| record["principal"].clone()).collect();
    assert!(!names.is_empty() && names.iter().all(|name| name == &names[0]), "{names:?}");
    let (recorded, counted) = accounted(&server, names[0].as_str().unwrap());
    assert!(RECORDED.contains(&recorded), "{recorded} recorded, {counted} counted");
    assert_eq!(recorded as u64 + counted, STORM as u64);
}
