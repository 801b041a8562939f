//! Stdio transport: one JSON message per line. The process is the session, and the end of input is
//! its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rmcp::model::{
    ClientJsonRpcMessage, GetExtensions, JsonRpcMessage, ServerJsonRpcMessage, ServerResult,
};
use rmcp::service::{RoleServer, serve_directly_with_ct};
use rmcp::transport::Transport;
use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::Mutex;

use super::codex::PushedState;
use super::dispatch::ProtocolHandler;
use super::envelope::{self, EnvelopeVerdict};
use super::in_flight::InFlightRequests;
use super::server::{ClientConnection, Server};
use super::stdio_streams;
use crate::base::{CancelCause, Error, Kind, Result};
use crate::session::Principal;

/// Opens the session of the client on standard input and output.
pub fn connect_client(server: &Server) -> Result<ClientConnection> {
    server.connect_client(Principal::local(), "stdio")
}

/// Serves one client on this process's own standard input and output until either side ends.
pub async fn serve_client(server: Arc<Server>, connection: ClientConnection) -> Result<()> {
    let session = Arc::clone(connection.session());
    let transport = StdioTransport {
        input: BufReader::with_capacity(64 * 1024, stdio_streams::open_stdin()),
        output: Arc::new(Mutex::new(stdio_streams::open_stdout())),
        max_message_bytes: server.config.limits.message_bytes,
        connection,
        skipping: false,
        buffer: Vec::new(),
        pending_refusal: None,
        in_flight: Arc::default(),
        has_ended: Arc::default(),
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
    result
        .map(|_| ())
        .map_err(|error| Error::internal("the connection ended unexpectedly").with_source(error))
}

struct StdioTransport<R, W> {
    input: R,
    output: Arc<Mutex<W>>,
    max_message_bytes: usize,
    connection: ClientConnection,
    /// Dropping the rest of a line that was too long.
    skipping: bool,
    /// Part of the current line that has been read. The engine drops a `receive` half-way when it
    /// has other things to do, so nothing may be kept in that future alone.
    buffer: Vec<u8>,
    /// Refusal that is being written. No further line is read before the client has taken it.
    pending_refusal: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
    in_flight: Arc<InFlightRequests>,
    /// Standard input has ended.
    has_ended: Arc<AtomicBool>,
}

enum StdioInput {
    Line(Vec<u8>),
    TooLong,
    End,
}

impl<R: AsyncBufRead + Unpin, W> StdioTransport<R, W> {
    async fn read_input(&mut self) -> std::io::Result<StdioInput> {
        loop {
            let available = self.input.fill_buf().await?;
            if available.is_empty() {
                // The last line is accepted without its newline too; if it was truncated, it is not
                // valid JSON and is refused as such.
                let rest = std::mem::take(&mut self.buffer);
                return Ok(if rest.is_empty() { StdioInput::End } else { StdioInput::Line(rest) });
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let consumed = end.map_or(available.len(), |index| index + 1);
            if !self.skipping {
                self.buffer.extend_from_slice(&available[..consumed]);
            }
            self.input.consume(consumed);
            let is_too_long = self.buffer.len() > self.max_message_bytes;
            match end {
                Some(_) if std::mem::take(&mut self.skipping) => return Ok(StdioInput::TooLong),
                Some(_) if is_too_long => {
                    self.buffer = Vec::new();
                    return Ok(StdioInput::TooLong);
                }
                Some(_) => return Ok(StdioInput::Line(std::mem::take(&mut self.buffer))),
                None if is_too_long => {
                    self.buffer = Vec::new();
                    self.skipping = true;
                }
                None => {}
            }
        }
    }
}

/// Writes a message at once. The next message waits for it: a client that does not read blocks us
/// here.
async fn write_line<W: AsyncWrite + Unpin>(
    output: &Mutex<W>,
    mut bytes: Vec<u8>,
) -> std::io::Result<()> {
    bytes.push(b'\n');
    let mut output = output.lock().await;
    output.write_all(&bytes).await?;
    output.flush().await
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
        JsonRpcMessage::Error(error) => {
            let kind = error.error.data.as_ref().and_then(|data| data.get("kind"));
            kind.is_none_or(|kind| kind != Kind::Cancelled.name())
        }
        JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => false,
    }
}

/// Converts a valid message to the engine's type and attaches its connection. Returns a refusal if
/// that fails, or if its id is in use.
pub(super) fn parse_message(
    message: serde_json::Map<String, Value>,
    connection: &ClientConnection,
    in_flight: &InFlightRequests,
) -> std::result::Result<ClientJsonRpcMessage, Value> {
    let id = envelope::request_id(&message);
    in_flight.register_message(&message)?;
    let pushed = PushedState::store_from_message(
        message.get("method"),
        message.get("params"),
        connection.session(),
    );
    let mut parsed: ClientJsonRpcMessage =
        serde_json::from_value(Value::Object(message)).map_err(|error| {
            if let Some(id) = &id {
                in_flight.release_refused(id);
            }
            envelope::refusal_message(
                id,
                &Error::new(Kind::InvalidRequest, "this message does not match the protocol")
                    .with_source(error),
            )
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
        self.in_flight.release_answered(&message);
        let unread_guard = self.in_flight.count_unread();
        let has_ended = Arc::clone(&self.has_ended);
        async move {
            if has_ended.load(Ordering::Acquire) && !is_sent_after_eof(&message) {
                return Ok(());
            }
            let result = write_line(&output, serialize_answer(&message)?).await;
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
            let verdict = match self.read_input().await {
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
                EnvelopeVerdict::Pass(message) => {
                    match parse_message(message, &self.connection, &self.in_flight) {
                        Ok(message) => return Some(message),
                        Err(refusal) => refusal,
                    }
                }
                EnvelopeVerdict::Refuse(_, refusal) => refusal,
                EnvelopeVerdict::Ignore => continue,
            };
            let output = Arc::clone(&self.output);
            self.pending_refusal = Some(tokio::spawn(async move {
                write_line(&output, refusal.to_string().into_bytes()).await
            }));
        }
        self.has_ended.store(true, Ordering::Release);
        // The engine waits for calls in flight before it cancels them; their children must not live
        // that long.
        self.connection.session().cancel.cancel(CancelCause::Eof);
        None
    }

    async fn close(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub(super) fn too_long_error(limit: usize) -> Error {
    Error::new(Kind::TooLarge, format!("a message may have at most {limit} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(input: &[u8], limit: usize) -> Vec<String> {
        let scratch = crate::config::scratch::Scratch::new();
        let server = crate::mcp::server::tests::server(&scratch);
        let mut pipe = StdioTransport {
            input: BufReader::with_capacity(4, input),
            output: Arc::new(Mutex::new(Vec::<u8>::new())),
            max_message_bytes: limit,
            connection: server.connect_client(Principal::local(), "stdio").unwrap(),
            skipping: false,
            buffer: Vec::new(),
            pending_refusal: None,
            in_flight: Arc::default(),
            has_ended: Arc::default(),
        };
        let mut seen = Vec::new();
        loop {
            match pipe.read_input().await.unwrap() {
                StdioInput::Line(bytes) => seen.push(String::from_utf8(bytes).unwrap()),
                StdioInput::TooLong => seen.push("too long".into()),
                StdioInput::End => return seen,
            }
        }
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_dropped_whole_and_the_next_one_is_read() {
        assert_eq!(
            lines(b"one\nthis is far too long\ntwo\n", 8).await,
            ["one\n", "too long", "two\n"]
        );
        assert_eq!(lines(b"12345678\n", 8).await, ["too long"]);
        assert_eq!(lines(b"1234567\n", 8).await, ["1234567\n"]);
        assert_eq!(lines(b"one\nend", 8).await, ["one\n", "end"]);
        assert_eq!(lines(b"far too long without an end", 8).await, Vec::<String>::new());
    }
}
