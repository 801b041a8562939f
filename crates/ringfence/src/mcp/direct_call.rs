//! Calls that a transport starts and answers itself, without the protocol engine.
//!
//! The engine reads a request as every kind of message in turn and passes it through several tasks
//! and queues, because messages may precede an answer. Most calls say nothing before they end. Such
//! a call is started by its transport, which writes the answer as soon as it exists. As soon as a
//! call says something, the engine gets the request after all and attaches to the running call.

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorData, RequestMetaObject, ServerResult,
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::attach::missing_result_error;
use super::version;
use crate::base::Result;
use crate::base::call::ToolOutput;
use crate::call::RunningCall;

/// Returns the parameters of a plain call: one that names a tool and its arguments alone, in a
/// session of a 2025 protocol version.
pub fn read_params(
    message: &Map<String, Value>,
) -> Option<(CallToolRequestParams, RequestMetaObject)> {
    let params = message.get("params")?.as_object()?;
    let is_plain = params.keys().all(|key| ["name", "arguments", "_meta"].contains(&key.as_str()));
    let name = params.get("name")?.as_str().filter(|_| is_plain)?.to_owned();
    let arguments = match params.get("arguments") {
        Some(Value::Object(arguments)) => Some(arguments.clone()),
        Some(_) => return None,
        None => None,
    };
    let request_meta = match params.get("_meta") {
        Some(Value::Object(members)) if !members.keys().any(|key| is_for_engine(key)) => {
            serde_json::from_value(Value::Object(members.clone())).ok()?
        }
        Some(_) => return None,
        None => RequestMetaObject::default(),
    };
    let mut call = CallToolRequestParams::new(name);
    call.arguments = arguments;
    Some((call, request_meta))
}

/// Returns whether this member of `_meta` says something about the protocol or the client.
fn is_for_engine(key: &str) -> bool {
    key.starts_with(version::META_PREFIX)
}

/// Waits for the result of a call that no one can listen to any more. What it asks is answered with
/// no.
pub async fn finish_unheard(run: &mut RunningCall) -> Result<ToolOutput> {
    loop {
        match wait_for_result(run).await {
            Some(result) => return result,
            None => drop(run.events.recv().await),
        }
    }
}

/// Waits for the result of a call. Returns `None` as soon as the call says something else; the
/// event can be received again. Nothing is lost if the caller stops waiting.
pub async fn wait_for_result(run: &mut RunningCall) -> Option<Result<ToolOutput>> {
    let mut events_open = true;
    loop {
        tokio::select! {
            biased;
            event = run.events.recv(), if events_open => match event {
                Some(event) => {
                    run.events.return_event(event);
                    return None;
                }
                None => events_open = false,
            },
            result = &mut run.done => {
                return Some(result.unwrap_or_else(|_| Err(missing_result_error())));
            }
        }
    }
}

/// Answer to a call.
#[derive(Serialize)]
struct CallAnswer<'a> {
    jsonrpc: &'static str,
    id: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<ServerResult>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorData>,
}

/// Serializes the answer to a call of a 2025 session.
pub fn serialize_outcome(
    id: &Value,
    outcome: Result<CallToolResponse, ErrorData>,
) -> serde_json::Result<Vec<u8>> {
    let (result, error) = match outcome {
        Ok(response) => {
            let mut result = ServerResult::from(response);
            result.strip_result_type_for_legacy_peer();
            (Some(result), None)
        }
        Err(error) => (None, Some(error)),
    };
    serde_json::to_vec(&CallAnswer { jsonrpc: "2.0", id, result, error })
}
