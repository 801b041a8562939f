//! Connection to a browser over the Chrome DevTools Protocol: JSON messages terminated by a NUL,
//! calls with an id in one direction, answers and events in the other.
//!
//! A single task reads. It passes each event to the sink of its session before it reads on, so that
//! sinks see events in order, and no event can be delayed or lost.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::base::IgnorePoison;
use crate::base::{Error, Kind, Result};

/// Maximum length of an answer with an image: 16384 by 16384 pixels fit.
const MAX_IMAGE_REPLY_BYTES: usize = 256 << 20;
/// Maximum length of any other answer.
const MAX_REPLY_BYTES: usize = 64 << 20;
/// Maximum length of an event. Addresses of pages have at most 2 MiB, so an event that says where a
/// page is always fits.
const MAX_EVENT_BYTES: usize = 4 << 20;
/// Time after which a browser is assumed not to answer at all.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of commands waiting to be written. A browser that reads none of them has stopped
/// working.
const MAX_QUEUED_COMMANDS: usize = 1024;

/// Receives the events of one session, in order. It must not block.
pub trait EventSink: Send + Sync {
    /// Handles one event.
    fn handle_event(&self, connection: &CdpConnection, event: CdpEvent<'_>);

    /// Handles an event that was too long to be read.
    fn handle_skipped(&self, method: &str, bytes: usize) {
        tracing::debug!("a browser event was too long: {method}, {bytes} bytes");
    }
}

/// Event of the browser or of a page.
pub struct CdpEvent<'a> {
    pub method: &'a str,
    pub params: &'a Value,
}

/// Connection to a browser. Cheap to clone.
#[derive(Clone)]
pub struct CdpConnection(Arc<CdpShared>);

struct CdpShared {
    commands: mpsc::Sender<Vec<u8>>,
    pending: Mutex<HashMap<u64, ReplySlot>>,
    /// Sinks by session id; the browser itself has the empty id.
    sinks: Mutex<HashMap<String, Arc<dyn EventSink>>>,
    next_id: AtomicU64,
    closed: CancellationToken,
}

/// Receiver of an answer, and the maximum length of that answer.
struct ReplySlot {
    reply: oneshot::Sender<Result<Value>>,
    max_bytes: usize,
}

/// Header of a message. The rest is parsed only if it is needed.
#[derive(Deserialize)]
struct CdpEnvelope<'a> {
    id: Option<u64>,
    #[serde(borrow, default)]
    method: Cow<'a, str>,
    #[serde(borrow, default, rename = "sessionId")]
    session: Cow<'a, str>,
}

impl CdpConnection {
    /// Starts the tasks that read from and write to `stream`.
    pub fn new<S>(stream: S) -> CdpConnection
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (commands, queue) = mpsc::channel(MAX_QUEUED_COMMANDS);
        let connection = CdpConnection(Arc::new(CdpShared {
            commands,
            pending: Mutex::default(),
            sinks: Mutex::default(),
            next_id: AtomicU64::new(1),
            closed: CancellationToken::new(),
        }));
        let (reader, writer) = tokio::io::split(stream);
        tokio::spawn(write_messages(writer, queue, connection.0.closed.clone()));
        tokio::spawn(read_messages(reader, connection.clone()));
        connection
    }

    /// Calls a method of the browser itself, or of one session, and returns its result.
    pub async fn call_method(
        &self,
        session: Option<&str>,
        method: &str,
        params: Value,
    ) -> Result<Value> {
        self.call_with_timeout(session, method, params, REPLY_TIMEOUT).await
    }

    /// Like [`CdpConnection::call_method`], with another timeout: some calls take as long as the
    /// caller wants.
    pub async fn call_with_timeout(
        &self,
        session: Option<&str>,
        method: &str,
        params: Value,
        timeout: Duration,
    ) -> Result<Value> {
        let (reply, answer) = oneshot::channel();
        let max_bytes = if method == "Page.captureScreenshot" {
            MAX_IMAGE_REPLY_BYTES
        } else {
            MAX_REPLY_BYTES
        };
        let pending = self.register_call(ReplySlot { reply, max_bytes });
        let message = encode_message(pending.id, session, method, params);
        let work = async {
            self.0.commands.send(message).await.map_err(|_| browser_ended_error())?;
            answer.await.unwrap_or_else(|_| Err(browser_ended_error()))
        };
        tokio::select! {
            biased;
            answer = tokio::time::timeout(timeout, work) => answer.unwrap_or_else(|_| Err(timeout_error(method))),
            () = self.0.closed.cancelled() => Err(browser_ended_error()),
        }
    }

    /// Sends a command without waiting for its answer.
    pub fn send_command(&self, session: Option<&str>, method: &str, params: Value) {
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        if self.0.commands.try_send(encode_message(id, session, method, params)).is_err()
            && !self.0.closed.is_cancelled()
        {
            tracing::warn!("the browser no longer accepts commands");
            self.close();
        }
    }

    /// Sets the sink for the events of a session, or of the browser itself if `session` is None.
    pub fn set_sink(&self, session: Option<&str>, sink: Arc<dyn EventSink>) {
        lock_mutex(&self.0.sinks).insert(session.unwrap_or_default().to_owned(), sink);
    }

    /// Removes the sink of a session.
    pub fn remove_sink(&self, session: &str) {
        lock_mutex(&self.0.sinks).remove(session);
    }

    /// Closes the connection.
    pub fn close(&self) {
        self.0.closed.cancel();
    }

    /// Returns whether the connection is closed.
    pub fn is_closed(&self) -> bool {
        self.0.closed.is_cancelled()
    }

    /// Resolves once the connection is closed.
    pub async fn wait_closed(&self) {
        self.0.closed.cancelled().await;
    }

    fn register_call(&self, slot: ReplySlot) -> PendingCdpCall<'_> {
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        lock_mutex(&self.0.pending).insert(id, slot);
        PendingCdpCall { connection: self, id }
    }

    fn dispatch_message(&self, bytes: &[u8]) -> io::Result<()> {
        let envelope: CdpEnvelope<'_> = serde_json::from_slice(bytes)?;
        if let Some(id) = envelope.id {
            let slot = lock_mutex(&self.0.pending).remove(&id);
            let Some(ReplySlot { reply, max_bytes }) = slot else { return Ok(()) };
            // Fails only if the caller no longer waits; ignore that.
            let _ = reply.send(match bytes.len() > max_bytes {
                true => Err(too_long_error()),
                false => {
                    let mut message: Value = serde_json::from_slice(bytes)?;
                    match message.get("error") {
                        Some(error) => Err(refused_error(error)),
                        None => Ok(message["result"].take()),
                    }
                }
            });
            return Ok(());
        }
        let sink = lock_mutex(&self.0.sinks).get(&*envelope.session).cloned();
        let Some(sink) = sink.filter(|_| !envelope.method.is_empty()) else { return Ok(()) };
        if bytes.len() > MAX_EVENT_BYTES {
            sink.handle_skipped(&envelope.method, bytes.len());
            return Ok(());
        }
        let message: Value = serde_json::from_slice(bytes)?;
        sink.handle_event(
            self,
            CdpEvent {
                method: &envelope.method,
                params: message.get("params").unwrap_or(&Value::Null),
            },
        );
        Ok(())
    }

    /// Returns whether the part of a message received so far already exceeds its limit. Then the
    /// rest is skipped, and a caller that waits for it gets an error.
    fn is_oversized(&self, partial_message: &[u8]) -> bool {
        if partial_message.len() <= MAX_EVENT_BYTES {
            return false;
        }
        let digits = partial_message
            .strip_prefix(b"{\"id\":")
            .map(|rest| rest.split(|byte| !byte.is_ascii_digit()).next());
        let id = digits
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u64>().ok());
        let Some(id) = id else {
            tracing::warn!("a browser event was too long");
            return true;
        };
        let mut pending = lock_mutex(&self.0.pending);
        if pending.get(&id).is_some_and(|slot| partial_message.len() <= slot.max_bytes) {
            return false;
        }
        if let Some(slot) = pending.remove(&id) {
            let _ = slot.reply.send(Err(too_long_error()));
        }
        true
    }
}

/// Call that waits for its answer. Dropped with the call, so that nothing is kept for a cancelled
/// one.
struct PendingCdpCall<'a> {
    connection: &'a CdpConnection,
    id: u64,
}

impl Drop for PendingCdpCall<'_> {
    fn drop(&mut self) {
        lock_mutex(&self.connection.0.pending).remove(&self.id);
    }
}

fn encode_message(id: u64, session: Option<&str>, method: &str, params: Value) -> Vec<u8> {
    let mut message = json!({"id": id, "method": method, "params": params});
    if let Some(session) = session {
        message["sessionId"] = json!(session);
    }
    let mut bytes = message.to_string().into_bytes();
    bytes.push(0);
    bytes
}

async fn write_messages(
    mut writer: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<Vec<u8>>,
    closed: CancellationToken,
) {
    let work = async {
        while let Some(message) = queue.recv().await {
            writer.write_all(&message).await?;
        }
        Ok::<(), io::Error>(())
    };
    tokio::select! {
        _ = work => closed.cancel(),
        () = closed.cancelled() => {}
    }
}

async fn read_messages(mut reader: impl AsyncRead + Unpin, connection: CdpConnection) {
    let closed = connection.0.closed.clone();
    let work = async {
        let mut bytes: Vec<u8> = Vec::with_capacity(1 << 16);
        let mut searched = 0;
        // True while the rest of an oversized message is skipped.
        let mut is_skipping = false;
        loop {
            if reader.read_buf(&mut bytes).await? == 0 {
                return Ok(());
            }
            let mut start = 0;
            while let Some(offset) = memchr::memchr(0, &bytes[searched..]) {
                let end = searched + offset;
                if !std::mem::take(&mut is_skipping) {
                    connection.dispatch_message(&bytes[start..end])?;
                }
                start = end + 1;
                searched = start;
            }
            bytes.drain(..start);
            if is_skipping || connection.is_oversized(&bytes) {
                is_skipping = true;
                bytes.clear();
            }
            searched = bytes.len();
            if bytes.is_empty() && bytes.capacity() > 4 << 20 {
                bytes = Vec::with_capacity(1 << 16);
            }
        }
    };
    let outcome: io::Result<()> = tokio::select! {
        outcome = work => outcome,
        () = closed.cancelled() => Ok(()),
    };
    if let Err(error) = outcome {
        tracing::warn!("the connection to the browser broke: {error}");
    }
    closed.cancel();
    // Pending calls fail now. Sinks must go, because they keep alive what keeps this connection
    // alive.
    lock_mutex(&connection.0.pending).clear();
    lock_mutex(&connection.0.sinks).clear();
}

fn timeout_error(method: &str) -> Error {
    Error::new(Kind::Unavailable, format!("the browser did not answer `{method}` in time"))
        .with_reason("browser_hung")
        .with_hint("The page or the browser is stuck. Open the address again with browser.navigate, without `page`.")
}

fn too_long_error() -> Error {
    Error::new(Kind::TooLarge, "the browser's answer is too long")
        .with_reason("browser_refused")
        .with_hint("Ask for less: a part of the page, or a smaller image.")
}

fn browser_ended_error() -> Error {
    Error::new(Kind::Unavailable, "the browser ended unexpectedly")
        .with_reason("browser_ended")
        .with_hint("Its pages are gone. Call browser.navigate again: a fresh browser is started.")
}

/// Returns the error for a call that the browser rejected. Its message is bounded and escaped.
fn refused_error(error: &Value) -> Error {
    let message = error.get("message").and_then(Value::as_str).unwrap_or("no reason given");
    let message = super::page_log::escape_line(&message.chars().take(300).collect::<String>());
    Error::new(Kind::Conflict, format!("the browser refused: {message}"))
        .with_reason("browser_refused")
        .with_hint(
            "The page may have changed in the meantime. Look at it with browser.snapshot and try again.",
        )
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().ignore_poison()
}

#[cfg(test)]
mod tests;
