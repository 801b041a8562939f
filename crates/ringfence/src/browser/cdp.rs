//! The debugging line of a browser: JSON messages that end with a NUL, calls with an id one way, answers and events
//! the other. One task reads. It hands each event to the sink of its session before it reads on, so that what the
//! sinks keep is always in the order of the line, and nothing can lag behind or be lost.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::base::{Error, Kind, Result};

/// No answer is longer: a picture of 16384 pixels squared fits.
const LONGEST: usize = 256 << 20;
/// Nor is one that is no picture.
const ANSWERED: usize = 64 << 20;
/// Nor is an event. Addresses of pages have 2 MiB at most, so what says where a page is always fits.
const EVENT: usize = 4 << 20;
/// A browser that has not answered by then is not going to.
const ANSWER: Duration = Duration::from_secs(30);
/// Orders that wait to be written. A browser that takes none has stopped working.
const WAITING: usize = 1024;

/// Takes the events of one session, in their order. It must not wait for anything.
pub trait Sink: Send + Sync {
    fn take(&self, line: &Line, event: Event<'_>);

    /// An event was too long to be read.
    fn miss(&self, method: &str, bytes: usize) {
        tracing::debug!("an event of the browser was too long: {method}, {bytes} bytes");
    }
}

pub struct Event<'a> {
    pub method: &'a str,
    pub params: &'a Value,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Line(Arc<Inner>);

struct Inner {
    orders: mpsc::Sender<Vec<u8>>,
    pending: Mutex<HashMap<u64, Waiting>>,
    /// By the id of the session; the browser's own has none.
    sinks: Mutex<HashMap<String, Arc<dyn Sink>>>,
    next: AtomicU64,
    closed: CancellationToken,
}

/// Who waits for an answer, and how long it may be.
struct Waiting {
    reply: oneshot::Sender<Result<Value>>,
    most: usize,
}

/// What a message is, without what it says: that is only read where somebody wants it.
#[derive(Deserialize)]
struct Envelope<'a> {
    id: Option<u64>,
    #[serde(borrow, default)]
    method: Cow<'a, str>,
    #[serde(borrow, default, rename = "sessionId")]
    session: Cow<'a, str>,
}

impl Line {
    pub fn new<S>(stream: S) -> Line
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (orders, queue) = mpsc::channel(WAITING);
        let line = Line(Arc::new(Inner {
            orders,
            pending: Mutex::default(),
            sinks: Mutex::default(),
            next: AtomicU64::new(1),
            closed: CancellationToken::new(),
        }));
        let (from, to) = tokio::io::split(stream);
        tokio::spawn(write(to, queue, line.0.closed.clone()));
        tokio::spawn(read(from, line.clone()));
        line
    }

    /// Calls a method of the browser itself, or of one session.
    pub async fn call(&self, session: Option<&str>, method: &str, params: Value) -> Result<Value> {
        self.call_for(session, method, params, ANSWER).await
    }

    /// The same with another patience: some things take as long as the caller wants.
    pub async fn call_for(
        &self,
        session: Option<&str>,
        method: &str,
        params: Value,
        patience: Duration,
    ) -> Result<Value> {
        let (reply, answer) = oneshot::channel();
        let most = if method == "Page.captureScreenshot" { LONGEST } else { ANSWERED };
        let pending = self.pending(Waiting { reply, most });
        let message = message(pending.id, session, method, params);
        let work = async {
            self.0.orders.send(message).await.map_err(|_| gone())?;
            answer.await.unwrap_or_else(|_| Err(gone()))
        };
        tokio::select! {
            biased;
            answer = tokio::time::timeout(patience, work) => answer.unwrap_or_else(|_| Err(slow(method))),
            () = self.0.closed.cancelled() => Err(gone()),
        }
    }

    /// Gives an order whose answer nobody waits for.
    pub fn order(&self, session: Option<&str>, method: &str, params: Value) {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        if self.0.orders.try_send(message(id, session, method, params)).is_err()
            && !self.0.closed.is_cancelled()
        {
            tracing::warn!("the browser takes no orders any more");
            self.close();
        }
    }

    /// From now on events of the session go there; those of the browser itself when it is none.
    pub fn listen(&self, session: Option<&str>, sink: Arc<dyn Sink>) {
        lock(&self.0.sinks).insert(session.unwrap_or_default().to_owned(), sink);
    }

    pub fn forget(&self, session: &str) {
        lock(&self.0.sinks).remove(session);
    }

    pub fn close(&self) {
        self.0.closed.cancel();
    }

    pub fn is_closed(&self) -> bool {
        self.0.closed.is_cancelled()
    }

    /// Resolves when there is nobody at the other end any more.
    pub async fn closed(&self) {
        self.0.closed.cancelled().await;
    }

    fn pending(&self, waiting: Waiting) -> Pending<'_> {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.0.pending).insert(id, waiting);
        Pending { line: self, id }
    }

    fn take(&self, bytes: &[u8]) -> io::Result<()> {
        let head: Envelope<'_> = serde_json::from_slice(bytes)?;
        if let Some(id) = head.id {
            let waiting = lock(&self.0.pending).remove(&id);
            let Some(Waiting { reply, most }) = waiting else { return Ok(()) };
            // An error means that nobody waits for it any more.
            let _ = reply.send(match bytes.len() > most {
                true => Err(too_long()),
                false => {
                    let mut message: Value = serde_json::from_slice(bytes)?;
                    match message.get("error") {
                        Some(error) => Err(refused(error)),
                        None => Ok(message["result"].take()),
                    }
                }
            });
            return Ok(());
        }
        let sink = lock(&self.0.sinks).get(&*head.session).cloned();
        let Some(sink) = sink.filter(|_| !head.method.is_empty()) else { return Ok(()) };
        if bytes.len() > EVENT {
            sink.miss(&head.method, bytes.len());
            return Ok(());
        }
        let message: Value = serde_json::from_slice(bytes)?;
        sink.take(
            self,
            Event { method: &head.method, params: message.get("params").unwrap_or(&Value::Null) },
        );
        Ok(())
    }

    /// Whether what has come of a message is already more than anybody wants of it. Then it need not be kept; who waits
    /// for it is told.
    fn gives_up(&self, begun: &[u8]) -> bool {
        if begun.len() <= EVENT {
            return false;
        }
        let digits = begun
            .strip_prefix(b"{\"id\":")
            .map(|rest| rest.split(|byte| !byte.is_ascii_digit()).next());
        let id = digits
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u64>().ok());
        let Some(id) = id else {
            tracing::warn!("an event of the browser was too long");
            return true;
        };
        let mut pending = lock(&self.0.pending);
        if pending.get(&id).is_some_and(|waiting| begun.len() <= waiting.most) {
            return false;
        }
        if let Some(waiting) = pending.remove(&id) {
            let _ = waiting.reply.send(Err(too_long()));
        }
        true
    }
}

/// A call that waits for its answer. Dropped with the call, so that nothing is kept for one that was cancelled.
struct Pending<'a> {
    line: &'a Line,
    id: u64,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        lock(&self.line.0.pending).remove(&self.id);
    }
}

fn message(id: u64, session: Option<&str>, method: &str, params: Value) -> Vec<u8> {
    let mut message = json!({"id": id, "method": method, "params": params});
    if let Some(session) = session {
        message["sessionId"] = json!(session);
    }
    let mut bytes = message.to_string().into_bytes();
    bytes.push(0);
    bytes
}

async fn write(
    mut to: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<Vec<u8>>,
    closed: CancellationToken,
) {
    let work = async {
        while let Some(message) = queue.recv().await {
            to.write_all(&message).await?;
        }
        Ok::<(), io::Error>(())
    };
    tokio::select! {
        _ = work => closed.cancel(),
        () = closed.cancelled() => {}
    }
}

async fn read(mut from: impl AsyncRead + Unpin, line: Line) {
    let closed = line.0.closed.clone();
    let work = async {
        let mut bytes: Vec<u8> = Vec::with_capacity(1 << 16);
        let mut searched = 0;
        // The rest of a message that nobody wants.
        let mut skips = false;
        loop {
            if from.read_buf(&mut bytes).await? == 0 {
                return Ok(());
            }
            let mut begin = 0;
            while let Some(at) = bytes[searched..].iter().position(|byte| *byte == 0) {
                let end = searched + at;
                if !std::mem::take(&mut skips) {
                    line.take(&bytes[begin..end])?;
                }
                begin = end + 1;
                searched = begin;
            }
            bytes.drain(..begin);
            if skips || line.gives_up(&bytes) {
                skips = true;
                bytes.clear();
            }
            searched = bytes.len();
            if bytes.is_empty() && bytes.capacity() > 4 << 20 {
                bytes = Vec::with_capacity(1 << 16);
            }
        }
    };
    let ended: io::Result<()> = tokio::select! {
        ended = work => ended,
        () = closed.cancelled() => Ok(()),
    };
    if let Err(error) = ended {
        tracing::warn!("the line to the browser broke: {error}");
    }
    closed.cancel();
    // Whoever waits for an answer is told now, and sinks hold what holds us.
    lock(&line.0.pending).clear();
    lock(&line.0.sinks).clear();
}

fn slow(method: &str) -> Error {
    Error::new(Kind::Unavailable, format!("the browser did not answer `{method}` in time"))
        .reason("browser_hung")
        .hint("The page or the browser is stuck. Open the page anew with browser.navigate, without `page`.")
}

fn too_long() -> Error {
    Error::new(Kind::TooLarge, "the browser's answer is too long")
        .reason("browser_refused")
        .hint("Ask for less: a part of the page, or a smaller picture.")
}

fn gone() -> Error {
    Error::new(Kind::Unavailable, "the browser ended unexpectedly")
        .reason("browser_ended")
        .hint("Its pages are gone. Call browser.navigate again: a fresh browser is started.")
}

/// What the browser says about a call that it does not carry out. Its words are about the call, and bounded.
fn refused(error: &Value) -> Error {
    let said = error.get("message").and_then(Value::as_str).unwrap_or("no reason given");
    let said = super::log::plain(&said.chars().take(300).collect::<String>());
    Error::new(Kind::Conflict, format!("the browser refused: {said}"))
        .reason("browser_refused")
        .hint(
            "The page may have changed meanwhile. Look at it with browser.snapshot and try again.",
        )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "cdp/tests.rs"]
mod tests;
