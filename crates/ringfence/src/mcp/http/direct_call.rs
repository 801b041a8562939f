//! Calls of 2025 sessions that need nothing of the engine.
//!
//! The engine keeps a queue, a worker and an event stream for each session, because messages may
//! precede an answer. Most calls say nothing before they end. Such a call is started here, and its
//! answer is one JSON body. As soon as it says something, or takes longer than a client should wait
//! for the head of a response, the engine gets the request after all and attaches to the running
//! call.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use rmcp::model::{CallToolResponse, ErrorData};
use serde_json::{Map, Value};

use super::{HttpServer, complete_error_response, forward_to_engine, json_error};
use crate::base::call::ToolOutput;
use crate::base::{CancelCause, CancelToken, Error, Result, TraceId};
use crate::mcp::attach::missing_result_error;
use crate::mcp::direct_call::{read_params, serialize_outcome, wait_for_result};
use crate::mcp::methods::tools_call::{
    CallToAttach, IncomingCall, StartedCall, complete_response, render_outcome, start_or_resume,
};
use crate::mcp::server::ClientConnection;

/// How long the head of a response waits for the first message. Clients and proxies that wait for
/// the head see it no later, however long the call takes.
pub const FIRST_MESSAGE_WAIT: Duration = Duration::from_millis(100);

/// Starts a call of a 2025 session and answers it, if its answer is the first thing that it says.
/// Gives everything back that is not plainly such a call; nothing was started then.
pub async fn try_direct_call(
    app: &Arc<HttpServer>,
    connection: &ClientConnection,
    parts: Parts,
    message: Map<String, Value>,
) -> std::result::Result<Response, (Parts, Map<String, Value>)> {
    let (Some(client), Some((params, request_meta))) =
        (connection.declared_client(), read_params(&message))
    else {
        return Err((parts, message));
    };
    let id = message.get("id").cloned().unwrap_or_default();
    let (headers, tool, trace_id) =
        (parts.headers.clone(), params.name.clone(), TraceId::generate());
    let incoming = IncomingCall {
        server: &app.server,
        connection: connection.clone(),
        client,
        stateless: false,
        request_meta: &request_meta,
        headers: Some(&headers),
        is_config_checked: true,
    };
    // Before the start, which takes a moment: a client may cancel at once.
    let session_id = &connection.session().id;
    let guard = app.server.track_call(session_id, &id.to_string(), CancelToken::new());
    let call = match start_or_resume(&incoming, params, &trace_id).await {
        Ok(call) => call,
        Err(error) => {
            return Ok(answer_response(
                &id,
                render_outcome(&incoming, &tool, Err(error), &trace_id),
            ));
        }
    };
    let cancel = call.run.cancel.clone();
    guard.attach_run(cancel.clone());
    let started = StartedCall { call, _guard: guard };
    let mut request = RunningRequest { app, content: Some((parts, message, started)) };
    let result = request.wait_for_quick_result().await;
    let response = match result {
        Some(result) => {
            request.content = None;
            let outcome = result.map(|output| complete_response(output, &trace_id, false));
            answer_response(&id, render_outcome(&incoming, &tool, outcome, &trace_id))
        }
        None => request.hand_over(id).await,
    };
    // MCP forbids an answer to a call that its client has cancelled, and the engine does not know
    // of a cancellation that came before it got the request.
    Ok(if cancel.cause() == Some(CancelCause::Client) { empty_stream() } else { response })
}

/// Request whose call is running. If its connection ends, the engine gets it, as it would have got
/// it without us.
struct RunningRequest<'a> {
    app: &'a Arc<HttpServer>,
    content: Option<(Parts, Map<String, Value>, StartedCall)>,
}

impl RunningRequest<'_> {
    /// Waits for the result, as long as nothing else is said and a client should wait.
    async fn wait_for_quick_result(&mut self) -> Option<Result<ToolOutput>> {
        let (_, _, started) = self.content.as_mut()?;
        let waiting = wait_for_result(&mut started.call.run);
        tokio::time::timeout(FIRST_MESSAGE_WAIT, waiting).await.ok().flatten()
    }

    /// Lets the engine answer.
    async fn hand_over(&mut self, id: Value) -> Response {
        match self.take_for_engine() {
            Some((parts, message)) => {
                let response = forward_to_engine(self.app, parts, message).await;
                complete_error_response(response, Some(id)).await
            }
            None => json_error(Some(id), &missing_result_error()),
        }
    }

    /// Returns the request for the engine, which attaches to the call.
    fn take_for_engine(&mut self) -> Option<(Parts, Map<String, Value>)> {
        let (mut parts, message, started) = self.content.take()?;
        parts.extensions.insert(CallToAttach::new(started));
        Some((parts, message))
    }
}

impl Drop for RunningRequest<'_> {
    fn drop(&mut self) {
        if let Some((parts, message)) = self.take_for_engine() {
            let app = Arc::clone(self.app);
            // The engine keeps the answer for a client that comes back.
            tokio::spawn(async move { forward_to_engine(&app, parts, message).await });
        }
    }
}

fn answer_response(id: &Value, outcome: Result<CallToolResponse, ErrorData>) -> Response {
    match serialize_outcome(id, outcome) {
        Ok(body) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => {
            let error = Error::internal("the result cannot be written").with_source(error);
            json_error(Some(id.clone()), &error)
        }
    }
}

/// Returns a response that ends without an answer.
fn empty_stream() -> Response {
    ([(CONTENT_TYPE, "text/event-stream")], Body::empty()).into_response()
}
