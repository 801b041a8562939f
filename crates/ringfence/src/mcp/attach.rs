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

use crate::base::call::ToolOutput;
use crate::base::client_handle::{ClientEvent, ClientQuestion};
use crate::base::{CancelCause, CancelToken, Error, Kind, Result};
use crate::call::park::ResumableCall;

/// Reason why a request is no longer attached to its run.
pub enum AttachOutcome {
    Done(Result<ToolOutput>),
    /// 2026-07-28: these questions must be answered first.
    NeedsAnswers(ResumableCall),
    /// It continues in the background.
    Detached(ResumableCall),
}

/// Request that is currently attached to a run.
pub struct AttachedRequest<'a> {
    pub context: &'a RequestContext<RoleServer>,
    pub stateless: bool,
    /// Why the run is cancelled if this request is.
    pub cause: CancelCause,
    /// Cancelled with the connection. A run of 2026-07-28 would not learn of that through its own
    /// session.
    pub connection_cancel: &'a CancelToken,
}

/// Pause before the result: some clients drop progress that arrives in the same read.
const AFTER_PROGRESS: Duration = Duration::from_millis(8);
/// Time for the engine to read a cancellation that the run has acted on already.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(1);

/// Forwards the events of a run until it ends, asks (2026-07-28) or detaches.
pub async fn attach_to_run(
    mut call: ResumableCall,
    request: &AttachedRequest<'_>,
) -> AttachOutcome {
    let mut sender = NotificationSender {
        peer: &request.context.peer,
        progress_token: request.context.meta.get_progress_token(),
        last_progress: 0.0,
        last_sent: None,
    };
    let mut pending_questions = FuturesUnordered::new();
    let mut events_open = true;
    if request.stateless && !call.open_questions.is_empty() {
        return AttachOutcome::NeedsAnswers(call);
    }
    loop {
        tokio::select! {
            biased;
            () = request.context.ct.cancelled() => {
                call.run.cancel.cancel(request.cause);
                // The client gets no answer any more; stay until the run is over so that its end is
                // recorded.
                return AttachOutcome::Done(wait_for_end(&mut call, &mut pending_questions).await);
            }
            cause = request.connection_cancel.cancelled() => {
                call.run.cancel.cancel(cause);
                return AttachOutcome::Done(wait_for_end(&mut call, &mut pending_questions).await);
            }
            event = call.run.events.recv(), if events_open => match event {
                None => events_open = false,
                Some(ClientEvent::Ask(questions)) if request.stateless => {
                    call.add_questions(questions);
                    if !call.open_questions.is_empty() {
                        return AttachOutcome::NeedsAnswers(call);
                    }
                }
                Some(ClientEvent::Ask(questions)) => {
                    for question in questions {
                        pending_questions.push(put_question(&request.context.peer, question));
                    }
                }
                Some(ClientEvent::Progress { message, progress, total, done }) => {
                    let cancelled = send_unless_cancelled(request, sender.send_progress(message, progress, total)).await;
                    let _ = done.send(());
                    if cancelled { continue }
                }
                Some(ClientEvent::Log { level, logger, data, done }) => {
                    send_unless_cancelled(request, sender.send_log(level, logger, data)).await;
                    let _ = done.send(());
                }
                Some(ClientEvent::Notify { method, params, done }) => {
                    let id = serde_json::to_value(&request.context.id).unwrap_or_default();
                    send_unless_cancelled(request, sender.send_notification(method, params, id)).await;
                    let _ = done.send(());
                }
                Some(ClientEvent::Detach(done)) => {
                    let _ = done.send(());
                    return AttachOutcome::Detached(call);
                }
            },
            Some(()) = pending_questions.next(), if !pending_questions.is_empty() => {}
            result = &mut call.run.done => {
                sender.wait_after_progress().await;
                wait_for_engine(&call, request).await;
                return AttachOutcome::Done(result.unwrap_or_else(|_| Err(missing_result_error())));
            }
        }
    }
}

/// Waits until the engine knows that the client has cancelled the call, because it drops the answer
/// then: over HTTP the run is cancelled first, and may end before the engine has read that.
async fn wait_for_engine(call: &ResumableCall, request: &AttachedRequest<'_>) {
    if call.run.cancel.cause() == Some(CancelCause::Client) {
        let cancelled = request.context.ct.cancelled();
        // The engine does not read while the client does not; the answer is not sent either then.
        let _ = tokio::time::timeout(ENGINE_TIMEOUT, cancelled).await;
    }
}

/// Waits for the end of a run that has been cancelled.
async fn wait_for_end(
    call: &mut ResumableCall,
    pending_questions: &mut (impl Stream<Item = ()> + Unpin),
) -> Result<ToolOutput> {
    let mut events_open = true;
    let result = loop {
        tokio::select! {
            biased;
            // Withdraw open questions, so that the client closes its dialogs.
            Some(()) = pending_questions.next() => {}
            result = &mut call.run.done => break result,
            // Receive and drop events, so that nothing the run still sends can block it.
            event = call.run.events.recv(), if events_open => events_open = event.is_some(),
        }
    };
    let _ = tokio::time::timeout(
        AFTER_PROGRESS,
        pending_questions.for_each(|()| std::future::ready(())),
    )
    .await;
    result.unwrap_or_else(|_| Err(missing_result_error()))
}

/// Returns the error for a call whose task ended without a result.
pub fn missing_result_error() -> Error {
    Error::internal("the call ended without a result")
}

async fn send_unless_cancelled(
    request: &AttachedRequest<'_>,
    sending: impl Future<Output = ()>,
) -> bool {
    tokio::select! {
        () = sending => false,
        () = request.context.ct.cancelled() => true,
        _ = request.connection_cancel.cancelled() => true,
    }
}

/// Asks the client one question. If the asker no longer wants the answer (it was answered
/// elsewhere, or time is up), cancels the request so that the client can close its dialog.
async fn put_question(peer: &Peer<RoleServer>, mut question: ClientQuestion) {
    let request =
        ServerRequest::CustomRequest(CustomRequest::new(question.method, Some(question.params)));
    let mut handle =
        match peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await {
            Ok(handle) => handle,
            Err(error) => {
                let _ = question.reply.send(Err(unanswered_error(error)));
                return;
            }
        };
    tokio::select! {
        answer = &mut handle.rx => {
            let answer = match answer {
                Ok(Ok(result)) => serde_json::to_value(result).map_err(|e| Error::internal("an unreadable answer").with_source(e)),
                Ok(Err(error)) => Err(unanswered_error(error)),
                Err(_) => Err(unanswered_error(ServiceError::TransportClosed)),
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

fn unanswered_error(error: ServiceError) -> Error {
    Error::new(Kind::Unavailable, "the client did not answer").with_source(error)
}

/// Sender of notifications for one request.
struct NotificationSender<'a> {
    peer: &'a Peer<RoleServer>,
    progress_token: Option<ProgressToken>,
    last_progress: f64,
    last_sent: Option<Instant>,
}

impl NotificationSender<'_> {
    async fn send_progress(&mut self, message: String, progress: f64, total: Option<f64>) {
        let Some(token) = self.progress_token.clone() else { return };
        // MCP requires every progress value to be above the one before.
        self.last_progress = if progress > self.last_progress || self.last_sent.is_none() {
            progress
        } else {
            self.last_progress + 1.0
        };
        let mut notification =
            ProgressNotificationParam::new(token, self.last_progress).with_message(message);
        notification.total = total;
        if let Err(error) = self.peer.notify_progress(notification).await {
            tracing::debug!("progress was not delivered: {error}");
        }
        self.last_sent = Some(Instant::now());
    }

    async fn send_log(&mut self, level: &str, logger: String, data: Value) {
        let level: LoggingLevel =
            serde_json::from_value(Value::from(level)).unwrap_or(LoggingLevel::Info);
        let notification = LoggingMessageNotificationParam::new(level, data).with_logger(logger);
        let notification = ServerNotification::LoggingMessageNotification(
            rmcp::model::Notification::new(notification),
        );
        if let Err(error) = self.peer.send_notification(notification).await {
            tracing::debug!("a log line was not delivered: {error}");
        }
    }

    async fn send_notification(
        &mut self,
        method: &str,
        mut params: Map<String, Value>,
        request_id: Value,
    ) {
        let meta = params.entry("_meta").or_insert_with(|| Value::Object(Map::new()));
        meta["requestId"] = request_id;
        let notification = CustomNotification::new(method, Some(Value::Object(params)));
        if let Err(error) =
            self.peer.send_notification(ServerNotification::CustomNotification(notification)).await
        {
            tracing::debug!("a notification was not delivered: {error}");
        }
        self.last_sent = Some(Instant::now());
    }

    async fn wait_after_progress(&self) {
        if let Some(sent_at) = self.last_sent {
            tokio::time::sleep_until(sent_at + AFTER_PROGRESS).await;
        }
    }
}
