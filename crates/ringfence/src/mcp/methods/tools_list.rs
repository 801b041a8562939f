//! `tools/list`: every tool with what a client shows and what an operator wants to know.

use std::sync::Arc;

use rmcp::model::{ListToolsResult, MetaObject, Tool as WireTool, ToolAnnotations};
use serde_json::{Map, Value, json};

use crate::mcp::{Server, meta};
use crate::registry::{spells_with_dots, underscored};
use crate::session::{Client, Session};
use crate::tools::Spec;

/// Lists change only with the config, and `list_changed` says so: a client may keep one for a while.
pub const TTL_MS: u64 = 60_000;

pub fn list(server: &Server, session: &Session, client: &Client, stateless: bool) -> ListToolsResult {
    let dots = spells_with_dots(server.config.tool_names, client);
    let tools =
        server.pipeline.registry.tools().iter().map(|tool| wire(tool.spec(), dots, Some((server, session)))).collect();
    let mut result = ListToolsResult::with_all_items(tools);
    if stateless {
        result.ttl_ms = Some(TTL_MS);
        result.cache_scope = Some(rmcp::model::CacheScope::Private);
    }
    result
}

pub fn wire(spec: &Spec, dots: bool, session: Option<(&Server, &Session)>) -> WireTool {
    let name = if dots { spec.name.clone() } else { underscored(&spec.name) };
    let mut tool = WireTool::new(name, spec.description.clone(), Arc::new(spec.input_schema.clone()));
    tool.title = Some(spec.title.clone());
    if !spec.can_return_image {
        tool.output_schema = spec.output_schema.clone().map(outline).map(Arc::new);
    }
    tool.annotations = Some(ToolAnnotations::from_raw(
        Some(spec.title.clone()),
        Some(spec.hints.read_only),
        Some(spec.hints.destructive),
        Some(spec.hints.idempotent),
        Some(spec.hints.open_world),
    ));
    tool.meta = Some(MetaObject::from(describe(spec, session)));
    tool
}

/// The metadata of one tool under our own keys.
fn describe(spec: &Spec, session: Option<(&Server, &Session)>) -> Map<String, Value> {
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
    put(meta::VERSION, json!(spec.version));
    put(meta::PERMISSION, permission(spec));
    put(meta::SANDBOX_PROFILE, json!(spec.profile));
    put(meta::DEFAULT_TIMEOUT_MS, json!(u64::try_from(spec.timeout.as_millis()).unwrap_or(u64::MAX)));
    put(meta::ALLOWS_STREAMING, json!(spec.streaming));
    put(meta::SIDE_EFFECTS, json!(spec.effects));
    if let Some((server, session)) = session {
        put(meta::REQUIRES_APPROVAL, json!(asks(server, spec)));
        put(meta::SESSION_DEFAULTS, json!({"cwd": session.workspace.display(), "overrides": false}));
    }
    if let (true, Some(schema)) = (spec.can_return_image, &spec.output_schema) {
        put(meta::OUTPUT_SCHEMA, Value::Object(outline(schema.clone())));
    }
    map
}

/// The outline of a schema that results are checked by: names and types, no words, nothing of what is inside. The whole
/// is in the capabilities, and every byte of a list is paid for by a model.
fn outline(mut schema: Map<String, Value>) -> Map<String, Value> {
    fn strip(schema: &mut Value) {
        let Value::Object(schema) = schema else { return };
        schema.retain(|key, _| key == "type" || key == "items");
        if let Some(items) = schema.get_mut("items") {
            strip(items);
        }
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(strip);
    }
    schema
}

/// Whether a call of it asks, by its own nature or by the operator's word.
pub fn asks(server: &Server, spec: &Spec) -> bool {
    spec.requires_approval || server.config.approval.own_tools_always
}

/// `{allow, scope, reason?}`.
pub fn permission(spec: &Spec) -> Value {
    match &spec.unavailable {
        None => json!({"allow": true, "scope": spec.scope.name()}),
        Some(reason) => json!({"allow": false, "scope": spec.scope.name(), "reason": reason}),
    }
}
