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

use super::channel;
use super::codex::Pushed;
use super::dispatch::Handler;
use super::edge::{self, Verdict};
use super::inflight::InFlight;
use super::server::{Line, Server};
use crate::base::{Cause, Error, Kind, Result};
use crate::session::Principal;

/// Opens the session of the client on standard input and output.
pub fn connect(server: &Server) -> Result<Line> {
    server.connect(Principal::local(), "stdio")
}

/// Serves one client on this process's own standard input and output until either side ends.
pub async fn serve(server: Arc<Server>, line: Line) -> Result<()> {
    let session = Arc::clone(&line.session);
    let pipe = Pipe {
        input: BufReader::with_capacity(64 * 1024, channel::input()),
        output: Arc::new(Mutex::new(channel::output())),
        limit: server.config.limits.message_bytes,
        line,
        skipping: false,
        buffer: Vec::new(),
        refusing: None,
        in_flight: Arc::default(),
        has_ended: Arc::default(),
    };
    // `serve_directly` skips the engine's own handshake loop, which would end at the first
    // unexpected message.
    let running = serve_directly_with_ct(
        Handler { server: Arc::clone(&server) },
        pipe,
        None,
        server.shutdown.token().child_token(),
    );
    let ended = running.waiting().await;
    session.cancel.cancel(Cause::Eof);
    ended
        .map(|_| ())
        .map_err(|error| Error::internal("the connection ended unexpectedly").source(error))
}

struct Pipe<R, W> {
    input: R,
    output: Arc<Mutex<W>>,
    limit: usize,
    line: Line,
    /// Dropping the rest of a line that was too long.
    skipping: bool,
    /// Part of the current line that has been read. The engine drops a `receive` half-way when it
    /// has other things to do, so nothing may be kept in that future alone.
    buffer: Vec<u8>,
    /// Refusal that is being written. No further line is read before the client has taken it.
    refusing: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
    in_flight: Arc<InFlight>,
    /// Standard input has ended.
    has_ended: Arc<AtomicBool>,
}

enum Input {
    Line(Vec<u8>),
    TooLong,
    End,
}

impl<R: AsyncBufRead + Unpin, W> Pipe<R, W> {
    async fn next(&mut self) -> std::io::Result<Input> {
        loop {
            let available = self.input.fill_buf().await?;
            if available.is_empty() {
                // The last line is accepted without its newline too; if it was truncated, it is not
                // valid JSON and is refused as such.
                let rest = std::mem::take(&mut self.buffer);
                return Ok(if rest.is_empty() { Input::End } else { Input::Line(rest) });
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(available.len(), |at| at + 1);
            if !self.skipping {
                self.buffer.extend_from_slice(&available[..taken]);
            }
            self.input.consume(taken);
            let over = self.buffer.len() > self.limit;
            match end {
                Some(_) if std::mem::take(&mut self.skipping) => return Ok(Input::TooLong),
                Some(_) if over => {
                    self.buffer = Vec::new();
                    return Ok(Input::TooLong);
                }
                Some(_) => return Ok(Input::Line(std::mem::take(&mut self.buffer))),
                None if over => {
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
fn outlives_input(message: &ServerJsonRpcMessage) -> bool {
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
pub(super) fn parse(
    message: serde_json::Map<String, Value>,
    line: &Line,
    in_flight: &InFlight,
) -> std::result::Result<ClientJsonRpcMessage, Value> {
    let id = edge::request_id(&message);
    in_flight.received(&message)?;
    let pushed = Pushed::take(message.get("method"), message.get("params"), &line.session);
    let mut parsed: ClientJsonRpcMessage =
        serde_json::from_value(Value::Object(message)).map_err(|error| {
            if let Some(id) = &id {
                in_flight.refused(id);
            }
            edge::refusal(
                id,
                &Error::new(Kind::InvalidRequest, "this message does not match the protocol")
                    .source(error),
            )
        })?;
    match &mut parsed {
        JsonRpcMessage::Request(request) => {
            let extensions = request.request.extensions_mut();
            extensions.insert(line.clone());
            if let Some(pushed) = pushed {
                extensions.insert(pushed);
            }
        }
        JsonRpcMessage::Notification(notification) => {
            notification.notification.extensions_mut().insert(line.clone());
        }
        _ => {}
    }
    Ok(parsed)
}

/// Serializes an answer and makes sure that an error in it has all its fields.
pub(super) fn stamped(message: &ServerJsonRpcMessage) -> std::io::Result<Vec<u8>> {
    match message {
        JsonRpcMessage::Error(_) => {
            let mut value = serde_json::to_value(message)?;
            edge::stamp(&mut value);
            Ok(serde_json::to_vec(&value)?)
        }
        _ => Ok(serde_json::to_vec(message)?),
    }
}

impl<R, W> Transport<RoleServer> for Pipe<R, W>
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
        self.in_flight.sent(&message);
        let unread = self.in_flight.unread();
        let has_ended = Arc::clone(&self.has_ended);
        async move {
            if has_ended.load(Ordering::Acquire) && !outlives_input(&message) {
                return Ok(());
            }
            let written = write_line(&output, stamped(&message)?).await;
            drop(unread);
            written
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            if let Some(refusing) = &mut self.refusing {
                let written = refusing.await;
                self.refusing = None;
                if let Ok(Err(error)) = written {
                    tracing::error!("standard output failed: {error}");
                    break;
                }
            }
            let verdict = match self.next().await {
                Ok(Input::Line(bytes)) if bytes.iter().all(u8::is_ascii_whitespace) => continue,
                Ok(Input::Line(bytes)) => edge::judge(&bytes),
                Ok(Input::TooLong) => edge::refuse(None, too_long(self.limit)),
                Ok(Input::End) => break,
                Err(error) => {
                    tracing::error!("standard input failed: {error}");
                    break;
                }
            };
            let refusal = match verdict {
                Verdict::Pass(message) => match parse(message, &self.line, &self.in_flight) {
                    Ok(message) => return Some(message),
                    Err(refusal) => refusal,
                },
                Verdict::Refuse(_, refusal) => refusal,
                Verdict::Ignore => continue,
            };
            let output = Arc::clone(&self.output);
            self.refusing = Some(tokio::spawn(async move {
                write_line(&output, refusal.to_string().into_bytes()).await
            }));
        }
        self.has_ended.store(true, Ordering::Release);
        // The engine waits for calls in flight before it cancels them; their children must not live
        // that long.
        self.line.session.cancel.cancel(Cause::Eof);
        None
    }

    async fn close(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub(super) fn too_long(limit: usize) -> Error {
    Error::new(Kind::TooLarge, format!("a message may have at most {limit} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(input: &[u8], limit: usize) -> Vec<String> {
        let scratch = crate::config::scratch::Scratch::new();
        let server = crate::mcp::server::tests::server(&scratch);
        let mut pipe = Pipe {
            input: BufReader::with_capacity(4, input),
            output: Arc::new(Mutex::new(Vec::<u8>::new())),
            limit,
            line: server.connect(Principal::local(), "stdio").unwrap(),
            skipping: false,
            buffer: Vec::new(),
            refusing: None,
            in_flight: Arc::default(),
            has_ended: Arc::default(),
        };
        let mut seen = Vec::new();
        loop {
            match pipe.next().await.unwrap() {
                Input::Line(bytes) => seen.push(String::from_utf8(bytes).unwrap()),
                Input::TooLong => seen.push("too long".into()),
                Input::End => return seen,
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
