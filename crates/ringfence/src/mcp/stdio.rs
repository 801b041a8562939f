//! Stdio transport: one JSON message per line. The process is the session, and the end of input is
//! its end.

mod direct_call;
mod lines;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::model::{
    ClientJsonRpcMessage, ErrorData, GetExtensions, JsonRpcMessage, ServerJsonRpcMessage,
    ServerResult,
};
use rmcp::service::{RoleServer, serve_directly_with_ct};
use rmcp::transport::Transport;
use serde_json::{Map, Value};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{Mutex, mpsc};
use tokio_util::task::TaskTracker;

use self::direct_call::{CallForEngine, DirectCalls};
use self::lines::{InputLines, StdioInput};
use super::codex::PushedState;
use super::dispatch::ProtocolHandler;
use super::envelope::{self, EnvelopeVerdict};
use super::in_flight::InFlightRequests;
use super::server::{ClientConnection, Server};
use super::stdio_streams;
use crate::base::{CancelCause, Error, Kind, Result};
use crate::session::Principal;

/// Time for the answers to calls that end because the connection does; the engine gives its own as
/// much.
const LAST_ANSWERS_TIMEOUT: Duration = Duration::from_secs(2);

/// Opens the session of the client on standard input and output.
pub fn connect_client(server: &Server) -> Result<ClientConnection> {
    server.connect_client(Principal::local(), "stdio")
}

/// Serves one client on this process's own standard input and output until either side ends.
pub async fn serve_client(server: Arc<Server>, connection: ClientConnection) -> Result<()> {
    let session = Arc::clone(connection.session());
    let output = Arc::new(StdioOutput::new(stdio_streams::open_stdout()));
    let input = BufReader::with_capacity(64 * 1024, stdio_streams::open_stdin());
    let (direct_calls, for_engine) =
        DirectCalls::new(Arc::clone(&server), connection.clone(), Arc::clone(&output));
    let transport = StdioTransport {
        lines: InputLines::new(input, server.config.limits.message_bytes),
        output: Arc::clone(&output),
        max_message_bytes: server.config.limits.message_bytes,
        connection,
        direct_calls,
        for_engine,
        pending_refusal: None,
    };
    // `serve_directly` skips the engine's own handshake loop, which would end at the first
    // unexpected message.
    let running = serve_directly_with_ct(
        ProtocolHandler { server: Arc::clone(&server) },
        transport,
        None,
        server.shutdown.inner_token().child_token(),
    );
    let result = running.waiting().await;
    session.cancel.cancel(CancelCause::Eof);
    output.tasks.close();
    // A client that does not read gets no more.
    let _ = tokio::time::timeout(LAST_ANSWERS_TIMEOUT, output.tasks.wait()).await;
    result
        .map(|_| ())
        .map_err(|error| Error::internal("the connection ended unexpectedly").with_source(error))
}

struct StdioTransport<R, W> {
    lines: InputLines<R>,
    output: Arc<StdioOutput<W>>,
    max_message_bytes: usize,
    connection: ClientConnection,
    direct_calls: DirectCalls<W>,
    for_engine: mpsc::UnboundedReceiver<CallForEngine>,
    /// Refusal that is being written. No further line is read before the client has taken it.
    pending_refusal: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
}

/// Standard output, and the requests whose answers go there.
struct StdioOutput<W> {
    stream: Mutex<W>,
    in_flight: Arc<InFlightRequests>,
    /// Standard input has ended.
    has_ended: AtomicBool,
    /// Tasks of calls that are answered without the engine.
    tasks: TaskTracker,
}

impl<W: AsyncWrite + Unpin> StdioOutput<W> {
    fn new(stream: W) -> StdioOutput<W> {
        StdioOutput {
            stream: Mutex::new(stream),
            in_flight: Arc::default(),
            has_ended: AtomicBool::new(false),
            tasks: TaskTracker::new(),
        }
    }

    /// Writes a message at once. The next message waits for it: a client that does not read blocks
    /// us here.
    async fn write_line(&self, mut bytes: Vec<u8>) -> std::io::Result<()> {
        bytes.push(b'\n');
        let mut stream = self.stream.lock().await;
        stream.write_all(&bytes).await?;
        stream.flush().await
    }
}

/// Returns whether a message is still written when standard input has ended. The end cancels every
/// call, so that what is left of calls (results, progress, questions) has no reader; a batch of
/// requests from a file still gets its answers.
fn is_sent_after_eof(message: &ServerJsonRpcMessage) -> bool {
    match message {
        JsonRpcMessage::Response(response) => !matches!(
            response.result,
            ServerResult::CallToolResult(_) | ServerResult::InputRequiredResult(_)
        ),
        JsonRpcMessage::Error(error) => !is_about_cancellation(&error.error),
        JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => false,
    }
}

fn is_about_cancellation(error: &ErrorData) -> bool {
    let kind = error.data.as_ref().and_then(|data| data.get("kind"));
    kind.is_some_and(|kind| kind == Kind::Cancelled.name())
}

/// Returns whether a message cancels a request of the client.
fn is_cancellation(message: &Map<String, Value>) -> bool {
    message.get("method").is_some_and(|method| method == "notifications/cancelled")
}

/// Registers a valid message and converts it for the engine. Returns a refusal if that fails, or if
/// its id is in use.
pub(super) fn parse_message(
    message: Map<String, Value>,
    connection: &ClientConnection,
    in_flight: &InFlightRequests,
) -> std::result::Result<ClientJsonRpcMessage, Value> {
    in_flight.register_message(&message)?;
    convert_registered(message, connection, in_flight)
}

/// Converts a message whose id is registered, and frees the id if that fails.
fn convert_registered(
    message: Map<String, Value>,
    connection: &ClientConnection,
    in_flight: &InFlightRequests,
) -> std::result::Result<ClientJsonRpcMessage, Value> {
    let id = envelope::request_id(&message);
    convert_message(message, connection).map_err(|error| {
        if let Some(id) = &id {
            in_flight.release_id(id);
        }
        envelope::refusal_message(id, &error)
    })
}

/// Converts a valid message to the engine's type and attaches its connection.
fn convert_message(
    message: Map<String, Value>,
    connection: &ClientConnection,
) -> Result<ClientJsonRpcMessage> {
    let pushed = PushedState::store_from_message(
        message.get("method"),
        message.get("params"),
        connection.session(),
    );
    let mut parsed: ClientJsonRpcMessage =
        serde_json::from_value(Value::Object(message)).map_err(|error| {
            Error::new(Kind::InvalidRequest, "this message does not match the protocol")
                .with_source(error)
        })?;
    match &mut parsed {
        JsonRpcMessage::Request(request) => {
            let extensions = request.request.extensions_mut();
            extensions.insert(connection.clone());
            if let Some(pushed) = pushed {
                extensions.insert(pushed);
            }
        }
        JsonRpcMessage::Notification(notification) => {
            notification.notification.extensions_mut().insert(connection.clone());
        }
        _ => {}
    }
    Ok(parsed)
}

/// Serializes an answer and makes sure that an error in it has all its fields.
pub(super) fn serialize_answer(message: &ServerJsonRpcMessage) -> std::io::Result<Vec<u8>> {
    match message {
        JsonRpcMessage::Error(_) => {
            let mut value = serde_json::to_value(message)?;
            envelope::complete_error(&mut value);
            Ok(serde_json::to_vec(&value)?)
        }
        _ => Ok(serde_json::to_vec(message)?),
    }
}

impl<R, W> Transport<RoleServer> for StdioTransport<R, W>
where
    R: AsyncBufRead + AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send + 'static,
{
    type Error = std::io::Error;

    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = std::io::Result<()>> + Send + 'static {
        let output = Arc::clone(&self.output);
        output.in_flight.release_answered(&message);
        let unread_guard = output.in_flight.count_unread();
        async move {
            if output.has_ended.load(Ordering::Acquire) && !is_sent_after_eof(&message) {
                return Ok(());
            }
            let result = output.write_line(serialize_answer(&message)?).await;
            drop(unread_guard);
            result
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            if let Some(refusal_task) = &mut self.pending_refusal {
                let result = refusal_task.await;
                self.pending_refusal = None;
                if let Ok(Err(error)) = result {
                    tracing::error!("standard output failed: {error}");
                    break;
                }
            }
            let input = tokio::select! {
                biased;
                Some(call) = self.for_engine.recv() => {
                    match call.into_message(&self.connection, &self.output.in_flight) {
                        Some(message) => return Some(message),
                        None => continue,
                    }
                }
                input = self.lines.read_line() => input,
            };
            let verdict = match input {
                Ok(StdioInput::Line(bytes)) if bytes.iter().all(u8::is_ascii_whitespace) => {
                    continue;
                }
                Ok(StdioInput::Line(bytes)) => envelope::judge_message(&bytes),
                Ok(StdioInput::TooLong) => {
                    envelope::refuse_message(None, too_long_error(self.max_message_bytes))
                }
                Ok(StdioInput::End) => break,
                Err(error) => {
                    tracing::error!("standard input failed: {error}");
                    break;
                }
            };
            let refusal = match verdict {
                EnvelopeVerdict::Pass(message) => match self.handle_message(message) {
                    Ok(None) => continue,
                    Ok(Some(message)) => return Some(message),
                    Err(refusal) => refusal,
                },
                EnvelopeVerdict::Refuse(_, refusal) => refusal,
                EnvelopeVerdict::Ignore => continue,
            };
            let output = Arc::clone(&self.output);
            self.pending_refusal = Some(tokio::spawn(async move {
                output.write_line(refusal.to_string().into_bytes()).await
            }));
        }
        self.output.has_ended.store(true, Ordering::Release);
        // The engine waits for calls in flight before it cancels them; their children must not live
        // that long.
        self.connection.session().cancel.cancel(CancelCause::Eof);
        self.return_calls();
        None
    }

    async fn close(&mut self) -> std::io::Result<()> {
        self.return_calls();
        Ok(())
    }
}

pub(super) fn too_long_error(limit: usize) -> Error {
    Error::new(Kind::TooLarge, format!("a message may have at most {limit} bytes"))
}

impl<R, W: AsyncWrite + Unpin + Send + 'static> StdioTransport<R, W> {
    /// Gives the calls back that the engine will not take any more.
    fn return_calls(&mut self) {
        self.for_engine.close();
        while let Ok(call) = self.for_engine.try_recv() {
            call.return_call();
        }
    }

    /// Starts a plain call, or returns the message for the engine, or a refusal.
    fn handle_message(
        &self,
        message: Map<String, Value>,
    ) -> std::result::Result<Option<ClientJsonRpcMessage>, Value> {
        let in_flight = &self.output.in_flight;
        in_flight.register_message(&message)?;
        self.direct_calls.forward_cancellation(&message);
        match self.direct_calls.try_start_call(message) {
            Ok(()) => Ok(None),
            Err(message) => convert_registered(message, &self.connection, in_flight).map(Some),
        }
    }
}
