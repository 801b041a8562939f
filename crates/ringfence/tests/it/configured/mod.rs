//! An operator's commands as tools: `[mcp.<name>]`.

mod apart;
mod asking;
mod calls;
mod declared;
mod defaults;
mod endings;
mod hostile;
mod listing;
mod paths;

use serde_json::Value;

use crate::support::{Approve, Client, Options, SESSIONS, Server, Transport};

/// A server whose commands ask nobody unless they must, and a client that says yes.
fn with(config: &str) -> (Server, Client) {
    let mut server = Options::new(Transport::Stdio).config(config).spawn();
    let mut client = server.connect(SESSIONS);
    client.approve = Approve::Once;
    (server, client)
}

/// What the command said.
#[track_caller]
fn said(message: &Value) -> &str {
    assert_eq!(message["result"]["isError"], false, "{message:#}");
    message["result"]["structuredContent"]["stdout"].as_str().unwrap()
}

#[track_caller]
fn error_of(message: &Value) -> &Value {
    assert_eq!(message["result"]["isError"], true, "{message:#}");
    &message["result"]["structuredContent"]["error"]
}

fn listed(client: &mut Client) -> Vec<Value> {
    client.request("tools/list", serde_json::json!({}))["result"]["tools"]
        .as_array()
        .unwrap()
        .clone()
}

fn names(client: &mut Client) -> Vec<String> {
    listed(client).iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}
