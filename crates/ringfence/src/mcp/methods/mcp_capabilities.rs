//! `mcp.capabilities`: the whole server in one answer, even before a handshake.

use std::path::Path;

use serde_json::{Value, json};

use super::tools_list::tool_permission;
use crate::call::{PipelineState, needs_approval};
use crate::config::EscalationMode;
use crate::mcp::{Server, version};
use crate::registry::ToolSchemas;
use crate::rulebook::EscalationStatus;
use crate::session::Session;
use crate::tools::DynTool;
use crate::upstream::status::describe_servers;

/// Returns the answer. With a session it includes the rules and the session's defaults.
pub async fn describe_server(server: &Server, session: Option<&Session>) -> Value {
    server.pipeline.reload_if_changed().await;
    let state = server.pipeline.state();
    let tools = state.registry.tools_with_schemas(session);
    let tools: Vec<Value> =
        tools.map(|(tool, schemas)| describe_tool(&state, &**tool, schemas, session)).collect();
    let mut description = json!({
        "server": {"name": "ringfence", "version": env!("CARGO_PKG_VERSION")},
        "protocolVersions": version::supported_versions(),
        "config": server.pipeline.describe_config(&state),
        "tools": tools,
    });
    let upstreams = describe_servers(
        &state.config,
        &state.registry.upstreams,
        session.map(|session| &session.principal),
    );
    if !upstreams.is_empty() {
        description["upstreams"] = Value::Array(upstreams);
    }
    if let Some(session) = session {
        description["policy"] = describe_rules(server, &state, session).await;
    }
    description
}

/// Returns the state of the rules. A file that could not be read is reported by name only, because
/// a client must not learn the operator's paths.
async fn describe_rules(server: &Server, state: &PipelineState, session: &Session) -> Value {
    let rulebook = server.pipeline.policy.current_rules(session.workspace.path()).await;
    let name =
        |file: &str| Path::new(file).file_name().map(|name| name.to_string_lossy().into_owned());
    let rules_errors: Vec<Value> = rulebook
        .faults
        .iter()
        .map(|rules_error| json!({"file": name(&rules_error.file), "line": rules_error.line, "message": rules_error.message}))
        .collect();
    let escalate = match rulebook.escalation_status(&state.config, state.sandbox.escalate, true) {
        EscalationStatus::Possible => state.config.policy.escalate,
        EscalationStatus::Off | EscalationStatus::Prevented(_) => EscalationMode::Off,
    };
    json!({
        "generation": rulebook.generation,
        "rules": rulebook.table.prefixes.len(),
        "escalate": escalate.name(),
        "escalate_risky": state.config.policy.escalate_risky.name(),
        "broken": rules_errors,
    })
}

fn describe_tool(
    state: &PipelineState,
    tool: &dyn DynTool,
    schemas: &ToolSchemas,
    session: Option<&Session>,
) -> Value {
    let spec = tool.spec();
    let mut description = json!({
        "name": spec.name,
        "display_name": spec.title,
        "description": spec.description,
        "version": spec.version,
        "permission": tool_permission(tool),
        "requires_approval": needs_approval(&state.config, tool),
        "sandbox_profile": spec.profile,
        "default_timeout_ms": u64::try_from(spec.timeout.as_millis()).unwrap_or(u64::MAX),
        "allows_streaming": spec.streaming,
        "side_effects": spec.effects,
        "inputSchema": spec.input_schema,
    });
    if let Some(schema) = &schemas.output_schema {
        description["outputSchema"] = Value::Object(schema.clone());
    }
    if let Some(session) = session {
        description["session_defaults"] = tool.session_defaults(session, &session.overrides());
    }
    description
}

/// Most rows of the table of tools: a client that waits for its first answer reads at most 20 KB.
const MAX_TABLE_ROWS: usize = 200;

/// Returns the short form that `initialize` and `server/discover` carry.
pub fn tool_table(state: &PipelineState, workspace: Option<&Path>) -> Value {
    let row = |tool: &dyn DynTool| {
        let spec = tool.spec();
        json!({"name": spec.name, "version": spec.version, "permission": tool_permission(tool)})
    };
    let tools = state.registry.visible_tools(workspace).take(MAX_TABLE_ROWS);
    tools.map(|tool| row(&**tool)).collect()
}
