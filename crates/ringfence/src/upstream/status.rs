//! State of each server, for people and clients.

use std::time::Duration;

use ringfence_client::{ClientError, ClientStatus, Era, clean_text};
use serde_json::{Value, json};

use super::backend::UpstreamBackend;
use super::catalog::{ServerPins, UpstreamTools};
use crate::config::Config;
use crate::session::Principal;

/// Longest error in a status.
const MAX_ERROR_CHARS: usize = 300;

/// Describes every server: its state, what is accepted of it, and what waits for someone.
/// Connections are those of one principal: what others do is not its business.
pub fn describe_servers(
    config: &Config,
    tools: &UpstreamTools,
    principal: Option<&Principal>,
) -> Vec<Value> {
    let backends = tools.backends.values();
    backends.map(|backend| describe_server(config, backend, principal)).collect()
}

fn describe_server(
    config: &Config,
    backend: &UpstreamBackend,
    principal: Option<&Principal>,
) -> Value {
    let id = &backend.server.id;
    let observations = &backend.pool.observations;
    let mut description = describe_connections(backend, principal);
    description["id"] = json!(id);
    description["trust"] = json!(backend.server.server.trust.name());
    description["transport"] = json!(backend.server.server.transport.type_name());
    if let Some(package) = &backend.package {
        description["installed"] = json!(package.is_installed());
    }
    match observations.accepted_server(config, id) {
        Some(locked) => {
            let pins = ServerPins::new(id, &locked);
            let drift = principal.map(|principal| observations.drift(&pins, principal));
            let drift = drift.unwrap_or_default();
            description["accepted_tools"] = json!(pins.tool_count());
            description["changed_tools"] = json!(drift.changed_tools.len());
            description["new_tools"] = json!(drift.new_tools.len());
            description["server_changed"] = json!(drift.server_changed);
        }
        None => {
            description["accepted_tools"] = json!(0);
            if observations.has_learn_error(id) {
                // Its words may name paths of the host.
                description["error"] =
                    json!("it could not be asked for its tools; see the server's log");
            }
        }
    }
    description
}

/// A server with several connections has the state of the best one.
fn describe_connections(backend: &UpstreamBackend, principal: Option<&Principal>) -> Value {
    let Some(principal) = principal else { return json!({"state": "idle"}) };
    let mut description = match backend.pool.recent_failure(&backend.definition, principal) {
        Some((error, retry_in)) => describe_failure(&error, retry_in),
        None => json!({"state": "idle"}),
    };
    for connection in backend.pool.connections_of(&backend.server.id, principal) {
        match connection.client.status() {
            ClientStatus::Connected(greeting) => {
                let era = if greeting.era == Era::Stateless { "stateless" } else { "initialized" };
                return json!({"state": "connected", "era": era, "protocol": greeting.version});
            }
            ClientStatus::Connecting => description = json!({"state": "connecting"}),
            ClientStatus::Failed { error, retry_in } => {
                description = describe_failure(&error, retry_in);
            }
            ClientStatus::Idle => {}
        }
    }
    description
}

fn describe_failure(error: &ClientError, retry_in: Option<Duration>) -> Value {
    json!({
        "state": "failed",
        "error": clean_text(error.message(), MAX_ERROR_CHARS),
        "retry_in_ms": retry_in.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
    })
}
