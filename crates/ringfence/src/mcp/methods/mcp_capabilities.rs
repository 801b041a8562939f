//! `mcp.capabilities`: the whole server in one answer, even before a handshake.

use std::path::Path;

use serde_json::{Value, json};

use super::tools_list::permission;
use crate::call::{State, asks};
use crate::config::Escalate;
use crate::mcp::{Server, version};
use crate::registry::Schemas;
use crate::rulebook::Leaving;
use crate::session::Session;
use crate::tools::Tool;

/// Returns the answer. With a session it includes the rules and the session's defaults.
pub async fn capabilities(server: &Server, session: Option<&Session>) -> Value {
    server.pipeline.refresh().await;
    let state = server.pipeline.state();
    let listed = state.registry.listed(session.map(|session| session.workspace.path()));
    let tools: Vec<Value> =
        listed.map(|(tool, schemas)| describe(&state, &**tool, schemas, session)).collect();
    let mut all = json!({
        "server": {"name": "ringfence", "version": env!("CARGO_PKG_VERSION")},
        "protocolVersions": version::supported(),
        "config": server.pipeline.about_config(&state),
        "tools": tools,
    });
    if let Some(session) = session {
        all["policy"] = policy(server, &state, session).await;
    }
    all
}

/// Returns the state of the rules. A file that could not be read is reported by name only, because
/// a client must not learn the operator's paths.
async fn policy(server: &Server, state: &State, session: &Session) -> Value {
    let book = server.pipeline.policy.current(session.workspace.path()).await;
    let name =
        |file: &str| Path::new(file).file_name().map(|name| name.to_string_lossy().into_owned());
    let faults: Vec<Value> = book
        .faults
        .iter()
        .map(|fault| json!({"file": name(&fault.file), "line": fault.line, "message": fault.message}))
        .collect();
    let escalate = match book.leaving(&state.config, true) {
        Leaving::Possible => state.config.policy.escalate,
        Leaving::Off | Leaving::Prevented(_) => Escalate::Off,
    };
    json!({
        "generation": book.generation,
        "rules": book.table.prefixes.len(),
        "escalate": escalate.name(),
        "escalate_risky": state.config.policy.escalate_risky.name(),
        "broken": faults,
    })
}

fn describe(state: &State, tool: &dyn Tool, schemas: &Schemas, session: Option<&Session>) -> Value {
    let spec = tool.spec();
    let mut about = json!({
        "name": spec.name,
        "display_name": spec.title,
        "description": spec.description,
        "version": spec.version,
        "permission": permission(tool),
        "requires_approval": asks(&state.config, tool),
        "sandbox_profile": spec.profile,
        "default_timeout_ms": u64::try_from(spec.timeout.as_millis()).unwrap_or(u64::MAX),
        "allows_streaming": spec.streaming,
        "side_effects": spec.effects,
        "inputSchema": spec.input_schema,
    });
    if let Some(schema) = &schemas.output {
        about["outputSchema"] = Value::Object(schema.clone());
    }
    if let Some(session) = session {
        about["session_defaults"] = tool.session_defaults(session, &session.shape());
    }
    about
}

/// Returns the short form that `initialize` and `server/discover` carry.
pub fn table(state: &State, workspace: Option<&Path>) -> Value {
    let row = |tool: &dyn Tool| {
        let spec = tool.spec();
        json!({"name": spec.name, "version": spec.version, "permission": permission(tool)})
    };
    state.registry.listed(workspace).map(|(tool, _)| row(&**tool)).collect()
}
