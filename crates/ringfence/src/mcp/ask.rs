//! Attaches a request to a run: forwards its progress, log lines and questions to the client.
//!
//! On the 2025 protocols a question is a request to the client in mid-call. On 2026-07-28 it ends
//! the request, and the run is parked until the answer comes with the next one.

#![expect(deprecated, reason = "2025 clients still read log messages")]

use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt};
use rmcp::model::{
    CustomNotification, CustomRequest, LoggingLevel, LoggingMessageNotificationParam,
    ProgressNotificationParam, ProgressToken, ServerNotification, ServerRequest,
};
use rmcp::service::{Peer, PeerRequestOptions, RequestContext, RoleServer, ServiceError};
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::base::call::Output;
use crate::base::caller::{Event, Question};
use crate::base::{Cancel, Cause, Error, Kind, Result};
use crate::call::park::Held;

/// Reason why a request is no longer attached to its run.
pub enum Attached {
    Done(Result<Output>),
    /// 2026-07-28: these questions must be answered first.
    Asks(Held),
    /// It continues in the background.
    Detached(Held),
}

/// Request that is currently attached to a run.
pub struct Link<'a> {
    pub context: &'a RequestContext<RoleServer>,
    pub stateless: bool,
    /// Why the run is cancelled if this request is.
    pub cause: Cause,
    /// Cancelled with the connection. A run of 2026-07-28 would not learn of that through its own
    /// session.
    pub line: &'a Cancel,
}

/// Pause before the result: some clients drop progress that arrives in the same read.
const AFTER_PROGRESS: Duration = Duration::from_millis(8);

/// Forwards the events of a run until it ends, asks (2026-07-28) or detaches.
pub async fn attach(mut held: Held, link: &Link<'_>) -> Attached {
    let mut pen = Pen {
        peer: &link.context.peer,
        token: link.context.meta.get_progress_token(),
        last: 0.0,
        at: None,
    };
    let mut asked = FuturesUnordered::new();
    let mut speaks = true;
    if link.stateless && !held.open.is_empty() {
        return Attached::Asks(held);
    }
    loop {
        tokio::select! {
            biased;
            () = link.context.ct.cancelled() => {
                held.run.cancel.cancel(link.cause);
                // The client gets no answer any more; stay until the run is over so that its end is
                // recorded.
                return Attached::Done(finish(&mut held, &mut asked).await);
            }
            cause = link.line.cancelled() => {
                held.run.cancel.cancel(cause);
                return Attached::Done(finish(&mut held, &mut asked).await);
            }
            event = held.run.events.recv(), if speaks => match event {
                None => speaks = false,
                Some(Event::Ask(questions)) if link.stateless => {
                    held.ask(questions);
                    if !held.open.is_empty() {
                        return Attached::Asks(held);
                    }
                }
                Some(Event::Ask(questions)) => {
                    for question in questions {
                        asked.push(put(&link.context.peer, question));
                    }
                }
                Some(Event::Progress { message, progress, total, done }) => {
                    let cancelled = until_cancelled(link, pen.progress(message, progress, total)).await;
                    let _ = done.send(());
                    if cancelled { continue }
                }
                Some(Event::Log { level, logger, data, done }) => {
                    until_cancelled(link, pen.log(level, logger, data)).await;
                    let _ = done.send(());
                }
                Some(Event::Notify { method, params, done }) => {
                    let id = serde_json::to_value(&link.context.id).unwrap_or_default();
                    until_cancelled(link, pen.notify(method, params, id)).await;
                    let _ = done.send(());
                }
                Some(Event::Detach(done)) => {
                    let _ = done.send(());
                    return Attached::Detached(held);
                }
            },
            Some(()) = asked.next(), if !asked.is_empty() => {}
            result = &mut held.run.done => {
                pen.settle().await;
                return Attached::Done(result.unwrap_or_else(|_| Err(lost())));
            }
        }
    }
}

/// Waits for the end of a run that has been cancelled.
async fn finish(held: &mut Held, asked: &mut (impl Stream<Item = ()> + Unpin)) -> Result<Output> {
    let mut speaks = true;
    let result = loop {
        tokio::select! {
            biased;
            // Withdraw open questions, so that the client closes its dialogs.
            Some(()) = asked.next() => {}
            result = &mut held.run.done => break result,
            // Receive and drop events, so that nothing the run still sends can block it.
            event = held.run.events.recv(), if speaks => speaks = event.is_some(),
        }
    };
    let _ = tokio::time::timeout(AFTER_PROGRESS, asked.for_each(|()| std::future::ready(()))).await;
    result.unwrap_or_else(|_| Err(lost()))
}

fn lost() -> Error {
    Error::internal("the call ended without a result")
}

async fn until_cancelled(link: &Link<'_>, sending: impl Future<Output = ()>) -> bool {
    tokio::select! {
        () = sending => false,
        () = link.context.ct.cancelled() => true,
        _ = link.line.cancelled() => true,
    }
}

/// Asks the client one question. If the asker no longer wants the answer (it was answered
/// elsewhere, or time is up), cancels the request so that the client can close its dialog.
async fn put(peer: &Peer<RoleServer>, mut question: Question) {
    let request =
        ServerRequest::CustomRequest(CustomRequest::new(question.method, Some(question.params)));
    let mut handle =
        match peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await {
            Ok(handle) => handle,
            Err(error) => {
                let _ = question.reply.send(Err(unanswered(error)));
                return;
            }
        };
    tokio::select! {
        answer = &mut handle.rx => {
            let answer = match answer {
                Ok(Ok(result)) => serde_json::to_value(result).map_err(|e| Error::internal("an unreadable answer").source(e)),
                Ok(Err(error)) => Err(unanswered(error)),
                Err(_) => Err(unanswered(ServiceError::TransportClosed)),
            };
            let _ = question.reply.send(answer);
        }
        () = question.reply.closed() => {
            if let Err(error) = handle.cancel(Some("answered elsewhere or expired".to_owned())).await {
                tracing::debug!("cannot withdraw a question: {error}");
            }
        }
    }
}

fn unanswered(error: ServiceError) -> Error {
    Error::new(Kind::Unavailable, "the client did not answer").source(error)
}

/// Sender of notifications for one request.
struct Pen<'a> {
    peer: &'a Peer<RoleServer>,
    token: Option<ProgressToken>,
    last: f64,
    at: Option<Instant>,
}

impl Pen<'_> {
    async fn progress(&mut self, message: String, progress: f64, total: Option<f64>) {
        let Some(token) = self.token.clone() else { return };
        // MCP requires every progress value to be above the one before.
        self.last =
            if progress > self.last || self.at.is_none() { progress } else { self.last + 1.0 };
        let mut note = ProgressNotificationParam::new(token, self.last).with_message(message);
        note.total = total;
        if let Err(error) = self.peer.notify_progress(note).await {
            tracing::debug!("progress was not delivered: {error}");
        }
        self.at = Some(Instant::now());
    }

    async fn log(&mut self, level: &str, logger: String, data: Value) {
        let level: LoggingLevel =
            serde_json::from_value(Value::from(level)).unwrap_or(LoggingLevel::Info);
        let note = LoggingMessageNotificationParam::new(level, data).with_logger(logger);
        let note =
            ServerNotification::LoggingMessageNotification(rmcp::model::Notification::new(note));
        if let Err(error) = self.peer.send_notification(note).await {
            tracing::debug!("a log line was not delivered: {error}");
        }
    }

    async fn notify(&mut self, method: &str, mut params: Map<String, Value>, request: Value) {
        let about = params.entry("_meta").or_insert_with(|| Value::Object(Map::new()));
        about["requestId"] = request;
        let note = CustomNotification::new(method, Some(Value::Object(params)));
        if let Err(error) =
            self.peer.send_notification(ServerNotification::CustomNotification(note)).await
        {
            tracing::debug!("a notification was not delivered: {error}");
        }
        self.at = Some(Instant::now());
    }

    async fn settle(&self) {
        if let Some(at) = self.at {
            tokio::time::sleep_until(at + AFTER_PROGRESS).await;
        }
    }
}
