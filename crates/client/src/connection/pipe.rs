//! Connection over two byte streams, one message per line: a process's pipes, or the SSE transport
//! of 2024.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::inbox::CallInbox;
use super::lines::{Line, LineReader};
use super::router::{MessageSource, Router};
use crate::error::{ClientError, Result, closed_by_us};
use crate::message::{RawJson, Reply, read_messages, write_message, write_reply};

/// Messages that wait to be written. A server that does not read its input makes its callers wait.
const QUEUED_MESSAGES: usize = 64;
/// Messages that wait are written together, up to this many bytes.
const BATCH_BYTES: usize = 64 << 10;

/// Connection over pipes.
pub(crate) struct PipeConnection {
    router: Arc<Router>,
    outgoing: mpsc::Sender<Vec<u8>>,
    closed: CancellationToken,
    tasks: TaskTracker,
}

/// Sends `notifications/cancelled` if the request ends without an answer.
struct PipeCancelGuard<'a> {
    outgoing: &'a mpsc::Sender<Vec<u8>>,
    id: u64,
    is_armed: bool,
}

impl Drop for PipeCancelGuard<'_> {
    fn drop(&mut self) {
        if self.is_armed
            && let Ok(message) = write_message(
                None,
                "notifications/cancelled",
                Some(serde_json::json!({"requestId": self.id})),
            )
        {
            // A server whose queue is full does not read, and would not see it either.
            let _ = self.outgoing.try_send(message);
        }
    }
}

impl PipeConnection {
    /// Starts to read and write. `describe_end` is awaited when the server has closed its output, and
    /// says why.
    pub(crate) fn start(
        reader: impl AsyncRead + Unpin + Send + 'static,
        writer: impl AsyncWrite + Unpin + Send + 'static,
        router: Arc<Router>,
        max_bytes: usize,
        describe_end: BoxFuture<'static, ClientError>,
    ) -> PipeConnection {
        let (outgoing, queue) = mpsc::channel(QUEUED_MESSAGES);
        let (closed, tasks) = (CancellationToken::new(), TaskTracker::new());
        let connection = PipeConnection {
            router: Arc::clone(&router),
            outgoing: outgoing.clone(),
            closed: closed.clone(),
            tasks: tasks.clone(),
        };
        let (is_closed, broken) = (closed.clone(), CancellationToken::new());
        let reports_break = broken.clone();
        tasks.spawn(async move {
            is_closed.run_until_cancelled(write_queue(writer, queue)).await;
            reports_break.cancel();
        });
        let read =
            read_all(LineReader::new(reader, max_bytes), Arc::clone(&router), outgoing, max_bytes);
        tasks.spawn(async move {
            // A server that closes its input, or its output, is of no more use.
            let read = broken.run_until_cancelled(read);
            if closed.run_until_cancelled(read).await.is_some()
                && let Some(error) = closed.run_until_cancelled(describe_end).await
            {
                router.close(error);
            }
            closed.cancel();
        });
        tasks.close();
        connection
    }

    /// Sends a request and waits for its answer. Dropping the future tells the server to stop.
    pub(crate) async fn request(
        &self,
        method: &str,
        params: impl FnOnce(u64) -> serde_json::Value,
        inbox: Option<Arc<CallInbox>>,
    ) -> Result<RawJson> {
        // The server must not be told to cancel these: the era is found out by what it answers.
        let can_cancel = !matches!(method, "initialize" | "server/discover");
        let mut pending = self.router.open_request(inbox)?;
        let message = write_message(Some(pending.id), method, Some(params(pending.id)))?;
        self.send(message).await?;
        let mut guard =
            PipeCancelGuard { outgoing: &self.outgoing, id: pending.id, is_armed: can_cancel };
        let answer = pending.wait().await;
        guard.is_armed = false;
        answer
    }

    /// Subscribes to changes of the tool list. On a pipe that is a request which stays open.
    pub(crate) fn listen(&self, params: serde_json::Value) {
        let (router, outgoing) = (Arc::clone(&self.router), self.outgoing.clone());
        self.tasks.spawn(async move {
            let Ok(mut pending) = router.open_subscription() else { return };
            let message = write_message(Some(pending.id), "subscriptions/listen", Some(params));
            if let Ok(message) = message
                && outgoing.send(message).await.is_ok()
            {
                // It ends with the connection, or because the server does not support it.
                let _ = pending.wait().await;
            }
        });
    }

    /// Sends a message for whose fate no one waits.
    pub(crate) fn send_in_background(&self, message: Vec<u8>) {
        // A server whose queue is full does not read, and would not see it either.
        let _ = self.outgoing.try_send(message);
    }

    /// Sends a notification.
    pub(crate) async fn notify(&self, method: &str, params: Option<impl Serialize>) -> Result<()> {
        self.send(write_message(None, method, params)?).await
    }

    /// Answers a request of the server.
    pub(crate) async fn reply(&self, id: &RawJson, reply: &Reply) -> Result<()> {
        self.send(write_reply(id, reply)).await
    }

    /// Closes both streams and waits until nothing of the connection is left.
    pub(crate) async fn close(&self) {
        self.router.close(closed_by_us());
        self.closed.cancel();
        self.tasks.wait().await;
    }

    async fn send(&self, message: Vec<u8>) -> Result<()> {
        tokio::select! {
            sent = self.outgoing.send(message) => {
                if sent.is_ok() {
                    return Ok(());
                }
                // The server does not read any more; why is being found out.
                self.closed.cancelled().await;
            }
            () = self.closed.cancelled() => {}
        }
        Err(self.closed_error())
    }

    fn closed_error(&self) -> ClientError {
        self.router.closed_error().unwrap_or_else(closed_by_us)
    }
}

impl Drop for PipeConnection {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

async fn write_queue(mut writer: impl AsyncWrite + Unpin, mut queue: mpsc::Receiver<Vec<u8>>) {
    let mut batch = Vec::new();
    while let Some(message) = queue.recv().await {
        batch.clear();
        batch.extend_from_slice(&message);
        batch.push(b'\n');
        while batch.len() < BATCH_BYTES
            && let Ok(message) = queue.try_recv()
        {
            batch.extend_from_slice(&message);
            batch.push(b'\n');
        }
        // A write error means that the server has ended, which the end of its output shows too.
        if writer.write_all(&batch).await.is_err() || writer.flush().await.is_err() {
            return;
        }
    }
}

async fn read_all(
    mut lines: LineReader<impl AsyncRead + Unpin>,
    router: Arc<Router>,
    outgoing: mpsc::Sender<Vec<u8>>,
    max_bytes: usize,
) {
    loop {
        let text = match lines.next_line().await {
            Line::Text(text) => Arc::new(text),
            Line::TooLong(id) => {
                router.handle_long_message(id, max_bytes);
                continue;
            }
            Line::NotUtf8 => {
                router.handle_bad_message("bytes that are not UTF-8", None, MessageSource::Shared);
                continue;
            }
            Line::End => return,
        };
        let Some(messages) = read_messages(&text) else {
            match text.trim_start().starts_with(['{', '[']) {
                true => {
                    let description = "a line that is not JSON";
                    router.handle_bad_message(description, None, MessageSource::Shared);
                }
                // Many servers print something now and then.
                false => router.handle_stray_text(),
            }
            continue;
        };
        for message in messages {
            if let Some((id, reply)) = router.route(message, MessageSource::Shared) {
                // Never wait here: a server that asks without reading must not stop the reader.
                let _ = outgoing.try_send(write_reply(&id, &reply));
            }
        }
        if router.closed_error().is_some() {
            return;
        }
    }
}
