//! `mcp.capabilities`: the whole server in one answer, also before a handshake.

use serde_json::{Value, json};

use super::tools_list::{asks, permission};
use crate::mcp::{Server, version};
use crate::session::Session;
use crate::tools::Spec;

pub fn capabilities(server: &Server, session: Option<&Session>) -> Value {
    let tools: Vec<Value> =
        server.pipeline.registry.tools().iter().map(|tool| describe(server, tool.spec(), session)).collect();
    json!({
        "server": {"name": "ringfence", "version": env!("CARGO_PKG_VERSION")},
        "protocolVersions": version::supported(),
        "tools": tools,
    })
}

fn describe(server: &Server, spec: &Spec, session: Option<&Session>) -> Value {
    let mut tool = json!({
        "name": spec.name,
        "display_name": spec.title,
        "description": spec.description,
        "version": spec.version,
        "permission": permission(spec),
        "requires_approval": asks(server, spec),
        "sandbox_profile": spec.profile,
        "default_timeout_ms": u64::try_from(spec.timeout.as_millis()).unwrap_or(u64::MAX),
        "allows_streaming": spec.streaming,
        "side_effects": spec.effects,
        "inputSchema": spec.input_schema,
    });
    if let Some(schema) = &spec.output_schema {
        tool["outputSchema"] = Value::Object(schema.clone());
    }
    if let Some(session) = session {
        tool["session_defaults"] = json!({"cwd": session.workspace.display(), "overrides": false});
    }
    tool
}

/// The short form that rides on `initialize` and `server/discover`.
pub fn table(server: &Server) -> Value {
    let row = |spec: &Spec| json!({"name": spec.name, "version": spec.version, "permission": permission(spec)});
    server.pipeline.registry.tools().iter().map(|tool| row(tool.spec())).collect()
}
