//! Calls on standard input and output that need nothing of the engine: see
//! [`crate::mcp::direct_call`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientJsonRpcMessage, ErrorData, GetExtensions,
    JsonRpcMessage, RequestMetaObject,
};
use serde_json::{Map, Value};
use tokio::io::AsyncWrite;
use tokio::sync::{mpsc, oneshot};

use super::{StdioOutput, convert_message, is_cancellation};
use crate::base::{CancelCause, CancelToken, TraceId};
use crate::mcp::direct_call::{finish_unheard, read_params, serialize_outcome, wait_for_result};
use crate::mcp::in_flight::{InFlightRequests, id_text};
use crate::mcp::methods::tools_call::{
    CallToAttach, IncomingCall, StartedCall, complete_response, render_outcome, start_or_resume,
};
use crate::mcp::server::{CallGuard, ClientConnection, DeclaredClient, Server};

/// Starts the calls of one client that are answered without the engine.
pub struct DirectCalls<W> {
    server: Arc<Server>,
    connection: ClientConnection,
    output: Arc<StdioOutput<W>>,
    /// Where calls go that need the engine after all.
    to_engine: mpsc::UnboundedSender<CallForEngine>,
}

/// Request of a running call that said something before its end.
pub struct CallForEngine {
    message: Map<String, Value>,
    started: StartedCall,
    give_back: oneshot::Sender<StartedCall>,
}

impl CallForEngine {
    /// Returns the request for the engine, which attaches to the call; `None` if the client has
    /// cancelled the call. The engine must not get it then: MCP forbids to answer it.
    pub fn into_message(
        self,
        connection: &ClientConnection,
        in_flight: &InFlightRequests,
    ) -> Option<ClientJsonRpcMessage> {
        if !self.message.get("id").is_some_and(|id| in_flight.is_open(id)) {
            return None;
        }
        // Everything that the engine could refuse was checked before the call was started.
        let mut message = convert_message(self.message, connection)
            .inspect_err(|error| tracing::error!("{}", error.log_line()))
            .ok()?;
        if let JsonRpcMessage::Request(request) = &mut message {
            request.request.extensions_mut().insert(CallToAttach::new(self.started));
        }
        Some(message)
    }

    /// Gives the call back to its task: there is no engine any more.
    pub fn return_call(self) {
        // The task waits for it.
        let _ = self.give_back.send(self.started);
    }
}

/// Request of a call that is started directly.
struct DirectRequest {
    message: Map<String, Value>,
    id: Value,
    client: Arc<DeclaredClient>,
    params: CallToolRequestParams,
    request_meta: RequestMetaObject,
    guard: CallGuard,
}

impl<W: AsyncWrite + Unpin + Send + 'static> DirectCalls<W> {
    /// Creates the starter, and the receiver for calls that need the engine.
    pub fn new(
        server: Arc<Server>,
        connection: ClientConnection,
        output: Arc<StdioOutput<W>>,
    ) -> (Self, mpsc::UnboundedReceiver<CallForEngine>) {
        // As many as there are requests in flight, whose number is limited.
        let (to_engine, for_engine) = mpsc::unbounded_channel();
        (DirectCalls { server, connection, output, to_engine }, for_engine)
    }

    /// Ends a direct call that the client cancels: the engine does not know of it.
    pub fn forward_cancellation(&self, message: &Map<String, Value>) {
        if !is_cancellation(message) {
            return;
        }
        let request_id = message.get("params").and_then(|params| params.get("requestId"));
        let request_id = request_id.map(id_text).unwrap_or_default();
        let session_id = &self.connection.session().id;
        self.server.cancel_call(session_id, &request_id, CancelCause::Client);
    }

    /// Starts the call that a valid message asks for, and answers it. Gives a message back that is
    /// not plainly such a call; nothing was started then.
    pub fn try_start_call(&self, message: Map<String, Value>) -> Result<(), Map<String, Value>> {
        let is_call = message.get("method").is_some_and(|method| method == "tools/call");
        let (true, Some(id), Some(client)) =
            (is_call, message.get("id"), self.connection.declared_client())
        else {
            return Err(message);
        };
        let Some((params, request_meta)) = read_params(&message) else { return Err(message) };
        let (id, session_id) = (id.clone(), &self.connection.session().id);
        // Before the start, which takes a moment: a client may cancel at once.
        let guard = self.server.track_call(session_id, &id.to_string(), CancelToken::new());
        let request = DirectRequest { message, id, client, params, request_meta, guard };
        let (server, connection) = (Arc::clone(&self.server), self.connection.clone());
        let (output, to_engine) = (Arc::clone(&self.output), self.to_engine.clone());
        self.output.tasks.spawn(Box::pin(async move {
            answer_request(&server, connection, &output, &to_engine, request).await;
        }));
        Ok(())
    }
}

/// Runs a call and writes its answer, unless the call says something before its end: then the engine
/// gets it, as long as there is one.
async fn answer_request<W: AsyncWrite + Unpin>(
    server: &Arc<Server>,
    connection: ClientConnection,
    output: &StdioOutput<W>,
    to_engine: &mpsc::UnboundedSender<CallForEngine>,
    request: DirectRequest,
) {
    let DirectRequest { message, id, client, params, request_meta, guard } = request;
    let (tool, trace_id) = (params.name.clone(), TraceId::generate());
    let session_end = connection.session().cancel.clone();
    let incoming = IncomingCall {
        server,
        connection,
        client,
        stateless: false,
        request_meta: &request_meta,
        headers: None,
        is_config_checked: false,
    };
    let result = match start_or_resume(&incoming, params, &trace_id).await {
        Err(error) => Err(error),
        Ok(mut call) => {
            guard.attach_run(call.run.cancel.clone());
            match wait_for_result(&mut call.run).await {
                Some(result) => result,
                None if session_end.is_cancelled() => finish_unheard(&mut call.run).await,
                None => {
                    let started = StartedCall { call, _guard: guard };
                    let Some(mut started) = hand_over(to_engine, message, started).await else {
                        return;
                    };
                    finish_unheard(&mut started.call.run).await
                }
            }
        }
    };
    let outcome = result.map(|output| complete_response(output, &trace_id, false));
    output.write_outcome(&id, render_outcome(&incoming, &tool, outcome, &trace_id)).await;
}

/// Hands a call over to the engine. Returns it if there is none any more.
async fn hand_over(
    to_engine: &mpsc::UnboundedSender<CallForEngine>,
    message: Map<String, Value>,
    started: StartedCall,
) -> Option<StartedCall> {
    let (give_back, returned) = oneshot::channel();
    match to_engine.send(CallForEngine { message, started, give_back }) {
        Ok(()) => returned.await.ok(),
        Err(mpsc::error::SendError(call)) => Some(call.started),
    }
}

impl<W: AsyncWrite + Unpin> StdioOutput<W> {
    async fn write_outcome(&self, id: &Value, outcome: Result<CallToolResponse, ErrorData>) {
        let is_open = self.in_flight.release_id(id);
        let is_sent = match &outcome {
            Ok(_) => !self.has_ended.load(Ordering::Acquire),
            Err(error) => {
                !self.has_ended.load(Ordering::Acquire) || !super::is_about_cancellation(error)
            }
        };
        if !is_open || !is_sent {
            return;
        }
        let _unread_guard = self.in_flight.count_unread();
        let written = match serialize_outcome(id, outcome) {
            Ok(bytes) => self.write_line(bytes).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = written {
            tracing::error!("cannot answer a call: {error}");
        }
    }
}
