//! `tools/list`: every tool, with what a client shows and what an operator wants to know.

use std::sync::Arc;

use rmcp::model::{ListToolsResult, MetaObject, Tool as WireTool, ToolAnnotations};
use serde_json::{Map, Value, json};

use crate::call::{PipelineState, needs_approval};
use crate::mcp::{Server, codex_legacy, meta};
use crate::registry::{NameStyle, ToolSchemas};
use crate::session::{ClientInfo, Session};
use crate::tools::{DynTool, SessionState};

/// How long a client may cache a list. Lists change only with the config, and `list_changed`
/// reports it.
pub const TTL_MS: u64 = 60_000;

/// Returns the tools that a session can see.
pub async fn list_tools(
    server: &Server,
    session_state: &SessionState,
    client: &ClientInfo,
    stateless: bool,
) -> ListToolsResult {
    server.pipeline.reload_if_changed().await;
    server.pipeline.release_stale_sandboxes(&session_state.sandboxes);
    let session = &session_state.session;
    let state = server.pipeline.state();
    let style = NameStyle::for_client(state.config.tool_names, client);
    let tools = state.registry.tools_with_schemas(Some(session)).map(|(tool, schemas)| {
        match codex_legacy::is_active(server) {
            true => codex_legacy::to_wire_tool(tool.spec(), schemas),
            false => to_wire_tool(&**tool, schemas, style, Some((&state, session))),
        }
    });
    let mut tools: Vec<WireTool> = tools.collect();
    if !stateless {
        tools.iter_mut().for_each(drop_newer_schema);
    }
    let mut result = ListToolsResult::with_all_items(tools);
    if stateless {
        result.ttl_ms = Some(TTL_MS);
        result.cache_scope = Some(rmcp::model::CacheScope::Private);
    }
    result
}

/// Removes an output schema that is not of an object: before 2026-07-28 there was no such thing, and
/// clients reject the whole list over it.
fn drop_newer_schema(tool: &mut WireTool) {
    let is_object = |schema: &Arc<Map<String, Value>>| {
        schema.get("type").is_some_and(|schema_type| schema_type == "object")
    };
    tool.output_schema = tool.output_schema.take().filter(is_object);
}

/// Converts a tool to its entry in the list, with names in this style.
pub fn to_wire_tool(
    tool: &dyn DynTool,
    schemas: &ToolSchemas,
    style: NameStyle,
    session: Option<(&PipelineState, &Session)>,
) -> WireTool {
    let spec = tool.spec();
    let name = style.spell_name(&spec.name);
    // Operators and the audit log use the dotted name, so an entry with the other spelling shows it
    // as well.
    let is_respelled = name != spec.name;
    let title = match is_respelled {
        true => format!("{} ({})", spec.title, spec.name),
        false => spec.title.clone(),
    };
    let texts = schemas.texts_for(style);
    let mut wire_tool =
        WireTool::new(name, texts.description.clone(), Arc::clone(&texts.input_schema));
    wire_tool.title = Some(title.clone());
    if spec.lists_output_schema {
        wire_tool.output_schema = schemas.output_outline.clone();
    }
    wire_tool.annotations = Some(ToolAnnotations::from_raw(
        Some(title),
        Some(spec.hints.read_only),
        Some(spec.hints.destructive),
        Some(spec.hints.idempotent),
        Some(spec.hints.open_world),
    ));
    let mut metadata = tool_metadata(tool, schemas, session);
    if is_respelled {
        metadata.insert(meta::NAME.to_owned(), json!(spec.name));
    }
    wire_tool.meta = Some(MetaObject::from(metadata));
    wire_tool
}

/// Returns the metadata of one tool under our own keys.
fn tool_metadata(
    tool: &dyn DynTool,
    schemas: &ToolSchemas,
    session: Option<(&PipelineState, &Session)>,
) -> Map<String, Value> {
    let spec = tool.spec();
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
    put(meta::VERSION, json!(spec.version));
    put(meta::PERMISSION, tool_permission(tool));
    put(meta::SANDBOX_PROFILE, json!(spec.profile));
    put(
        meta::DEFAULT_TIMEOUT_MS,
        json!(u64::try_from(spec.timeout.as_millis()).unwrap_or(u64::MAX)),
    );
    put(meta::ALLOWS_STREAMING, json!(spec.streaming));
    put(meta::SIDE_EFFECTS, json!(spec.effects));
    if let Some((state, session)) = session {
        put(meta::REQUIRES_APPROVAL, json!(needs_approval(&state.config, tool)));
        put(meta::SESSION_DEFAULTS, tool.session_defaults(session, &session.overrides()));
    }
    if let (true, Some(schema)) = (!spec.lists_output_schema, &schemas.output_outline) {
        put(meta::OUTPUT_SCHEMA, Value::Object(Map::clone(schema)));
    }
    map
}

/// Returns the permission of a tool: `{allow, scope, reason?}`.
pub fn tool_permission(tool: &dyn DynTool) -> Value {
    let scope = tool.spec().scope.name();
    match tool.unavailable_reason() {
        None => json!({"allow": true, "scope": scope}),
        Some(reason) => json!({"allow": false, "scope": scope, "reason": reason}),
    }
}
