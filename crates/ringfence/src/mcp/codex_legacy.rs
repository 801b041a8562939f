//! Compatibility with clients that were written for `codex mcp-server`: its form of the list and of
//! errors. Active only while the operator has switched the surface off.

use std::sync::Arc;

use rmcp::model::{
    CallToolResult, ContentBlock, ErrorCode, ErrorData, MetaObject, Tool as WireTool,
};
use serde_json::{Map, json};

use super::{Server, meta};
use crate::base::{Error, Kind, TraceId};
use crate::registry::{NameStyle, ToolSchemas};
use crate::tools::ToolSpec;

/// Returns whether compatibility mode is active.
pub fn is_active(server: &Server) -> bool {
    !server.pipeline.state().config.surface.enabled
}

/// Returns a tool for the list, without annotations and `_meta`.
pub fn to_wire_tool(spec: &ToolSpec, schemas: &ToolSchemas) -> WireTool {
    let input = &schemas.texts_for(NameStyle::Dots).input_schema;
    let mut tool = WireTool::new(spec.name.clone(), spec.description.clone(), Arc::clone(input));
    tool.title = Some(spec.title.clone());
    tool.output_schema = schemas.output_outline.clone();
    tool
}

/// Returns the error for an unknown method. In this mode our own methods are unknown, too.
pub fn unknown_method_error(method: &str) -> ErrorData {
    ErrorData::new(
        ErrorCode::METHOD_NOT_FOUND,
        format!("method not found: {method}"),
        Some(json!({"method": method})),
    )
}

/// Returns any failure as text, including that of an unknown tool.
pub fn failure_result(error: &Error, tool: &str, trace_id: &TraceId) -> CallToolResult {
    let shown_tool: String = tool.chars().take(64).collect();
    let hint = error.hint_text().unwrap_or_else(|| error.kind().default_hint());
    let text = match error.kind() {
        Kind::UnknownTool => format!("Unknown tool '{shown_tool}'"),
        Kind::InvalidArguments => {
            format!("Failed to parse configuration for Codex tool: {}\n{hint}", error.message())
        }
        kind => format!("{}: {}\n{hint}\ntrace_id: {trace_id}", kind.name(), error.message()),
    };
    let mut result = CallToolResult::error(vec![ContentBlock::text(text)]);
    let trace = Map::from_iter([(meta::TRACE_ID.to_owned(), json!(trace_id.as_str()))]);
    result.meta = Some(MetaObject::from(trace));
    result
}
