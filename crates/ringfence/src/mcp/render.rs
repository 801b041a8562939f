//! Conversion of the results and errors of tools to the wire format.

use std::time::Instant;

use rmcp::model::{CallToolResult, ContentBlock, ErrorData, MetaObject};
use serde_json::{Map, Value, json};

use super::log_limit::LogLimit;
use super::meta;
use crate::base::call::{OutputBlock, ToolOutput};
use crate::base::{Error, Kind, TraceId};
use crate::tools::arguments::schema_check::SCHEMA_FACT;

static UNAUTHENTICATED: LogLimit = LogLimit::new();

/// Logs a refused request under the trace id that its caller gets, with details that the caller
/// does not get.
pub fn log_refusal(error: &Error, trace_id: &TraceId) {
    match error.kind() {
        Kind::Internal => tracing::error!(%trace_id, "{}", error.log_line()),
        // Anyone can cause these, at any rate.
        Kind::Unauthenticated => match UNAUTHENTICATED.admit_line(Instant::now()) {
            Some(0) => tracing::warn!(%trace_id, "refused: {}", error.log_line()),
            Some(unlogged) => {
                tracing::warn!(%trace_id, "refused: {} ({unlogged} more before it)", error.log_line())
            }
            None => {}
        },
        _ => tracing::info!(%trace_id, "refused: {}", error.log_line()),
    }
}

/// Returns an error as JSON-RPC represents it.
pub fn error_data(error: &Error, trace_id: &TraceId) -> ErrorData {
    let code = i32::try_from(error.wire_code()).unwrap_or(-32603);
    ErrorData::new(
        rmcp::model::ErrorCode(code),
        error.message().to_owned(),
        Some(error.to_body(trace_id)),
    )
}

/// Returns the output of a tool as the result of a call, for a client of 2026-07-28 if `stateless`.
pub fn tool_result(mut output: ToolOutput, trace_id: &TraceId, stateless: bool) -> CallToolResult {
    if !stateless && output.structured.as_ref().is_some_and(|value| !value.is_object()) {
        // Older clients reject a result whose structured content is not an object.
        let text = output.structured.take().map(|value| OutputBlock::Text(value.to_string()));
        output.content.extend(text.filter(|_| output.content.is_empty()));
    }
    let mut content = Vec::with_capacity(output.content.len());
    for block in output.content {
        match block {
            OutputBlock::Text(text) => content.push(ContentBlock::text(text)),
            OutputBlock::Image { data, mime } => content.push(ContentBlock::image(data, mime)),
            OutputBlock::Wire(value) => match serde_json::from_value(value) {
                Ok(block) => content.push(block),
                Err(error) => tracing::error!(%trace_id, "a content block was dropped: {error}"),
            },
        }
    }
    let mut result = CallToolResult::success(content);
    result.structured_content = output.structured;
    result.is_error = Some(output.is_error);
    result.meta = Some(meta_with_trace_id(output.meta, trace_id));
    result
}

/// Returns a failed call as a result, so that a model can read what went wrong and correct itself.
pub fn failure_result(error: &Error, trace_id: &TraceId) -> CallToolResult {
    let body = error.to_body(trace_id);
    let hint = body["hint"].as_str().unwrap_or_default().to_owned();
    // Many clients show the model nothing but the text. The schema is bounded where it is added.
    let schema = error.get_fact(SCHEMA_FACT).map(|schema| format!("schema: {schema}\n"));
    let text = format!(
        "{}: {}\n{hint}\n{}trace_id: {trace_id}",
        error.kind().name(),
        error.message(),
        schema.unwrap_or_default()
    );
    let mut result = CallToolResult::error(vec![ContentBlock::text(text)]);
    result.structured_content = Some(json!({"error": body}));
    result.meta = Some(meta_with_trace_id(Map::new(), trace_id));
    result
}

/// Returns a failed call of another server's tool. Clients compare structured content with the
/// schema that the server declares, so the error is in the text and in `_meta` alone.
pub fn upstream_failure_result(error: &Error, trace_id: &TraceId) -> CallToolResult {
    let mut result = failure_result(error, trace_id);
    let body = result.structured_content.take().map(|mut body| body["error"].take());
    result.meta.get_or_insert_default().insert(meta::ERROR.to_owned(), json!(body));
    result
}

fn meta_with_trace_id(mut map: Map<String, Value>, trace_id: &TraceId) -> MetaObject {
    map.insert(meta::TRACE_ID.to_owned(), json!(trace_id.as_str()));
    MetaObject::from(map)
}
