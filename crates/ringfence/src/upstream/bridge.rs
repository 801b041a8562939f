//! Passes what a server says during a call on to our client: progress, log lines, questions. Both
//! sides may speak either protocol era.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use futures::future::BoxFuture;
use ringfence_client::{
    CallHandler, Question, QuestionAnswer, RawJson, ServerClient, ToolCall, clean_line, clean_text,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Notify;

use super::client_error::to_call_error;
use super::questions::answer_questions;
use crate::base::{CancelCause, CancelToken, Error, IgnorePoison, Kind};
use crate::config::UpstreamServer;
use crate::tools::RunCx;

/// Log lines that wait for our client; the oldest go first.
const MAX_WAITING_LOGS: usize = 100;
const MAX_MESSAGE_CHARS: usize = 1_000;
/// Longest name of a logger, or of a member of a log line's data.
const MAX_NAME_CHARS: usize = 60;
/// Largest data of a log line.
const MAX_LOG_BYTES: usize = 16 << 10;
/// Time for what a server said last, once its answer is here.
const LAST_MESSAGES_TIMEOUT: Duration = Duration::from_secs(1);

/// Calls a tool of a server for a call of our client, and returns the result as it came.
pub async fn call_server(
    cx: &RunCx,
    server: &UpstreamServer,
    client: &ServerClient,
    call: &ToolCall,
) -> std::result::Result<RawJson, CallFailure> {
    let bridge = CallBridge { cx, server, waiting: Mutex::default(), has_news: Notify::new() };
    let answer = async {
        let forwarding = bridge.forward_messages();
        tokio::select! {
            answer = client.call_tool(call, &bridge) => answer,
            never = forwarding => match never {},
        }
    };
    let answer = tokio::select! {
        answer = answer => answer.map_err(|error| {
            let is_lost = error.is_other_connection();
            let error = to_call_error(&error, &server.id);
            if is_lost { CallFailure::ConnectionLost(error) } else { CallFailure::Failed(error) }
        }),
        // Dropping the call tells the server that it is cancelled.
        _ = cx.control.cancel.cancelled() => Err(CallFailure::Failed(cancelled_error(&cx.control.cancel))),
    };
    // The answer must not overtake what was said before it.
    let _ = tokio::time::timeout(LAST_MESSAGES_TIMEOUT, bridge.forward_waiting()).await;
    answer
}

/// Why a call has no result.
pub enum CallFailure {
    /// Its connection is lost, and the call did not run or may run again. The next connection is to
    /// be compared first.
    ConnectionLost(Error),
    Failed(Error),
}

impl CallFailure {
    /// Returns the error of the call: what is known about the end of the connection, if it is lost.
    pub fn into_error(self) -> Error {
        let (CallFailure::ConnectionLost(error) | CallFailure::Failed(error)) = self;
        error
    }
}

/// Returns the error of a call that was cancelled or took too long.
pub fn cancelled_error(cancel: &CancelToken) -> Error {
    match cancel.cause() {
        Some(CancelCause::Deadline) => {
            Error::new(Kind::DeadlineExceeded, "the server did not answer in time")
        }
        _ => Error::new(Kind::Cancelled, "the call was cancelled"),
    }
}

/// One call, as the connection sees its caller.
struct CallBridge<'a> {
    cx: &'a RunCx,
    server: &'a UpstreamServer,
    waiting: Mutex<VecDeque<ServerMessage>>,
    has_news: Notify,
}

enum ServerMessage {
    Progress(ProgressFields),
    Log(LogFields),
}

#[derive(Deserialize)]
struct ProgressFields {
    progress: f64,
    #[serde(default)]
    total: Option<f64>,
    #[serde(default)]
    message: Option<String>,
}

#[derive(Deserialize)]
struct LogFields {
    level: String,
    #[serde(default)]
    logger: Option<String>,
    data: Value,
}

impl CallBridge<'_> {
    fn queue_message(&self, message: ServerMessage) {
        let mut waiting = self.waiting.lock().ignore_poison();
        match (&message, waiting.back_mut()) {
            // Of progress only the newest matters.
            (ServerMessage::Progress(_), Some(last @ ServerMessage::Progress(_))) => {
                *last = message;
            }
            _ => {
                if waiting.len() >= MAX_WAITING_LOGS {
                    waiting.pop_front();
                }
                waiting.push_back(message);
            }
        }
        drop(waiting);
        self.has_news.notify_one();
    }

    /// Passes messages on as they come, as fast as our client takes them. Never returns.
    async fn forward_messages(&self) -> std::convert::Infallible {
        loop {
            self.forward_waiting().await;
            self.has_news.notified().await;
        }
    }

    async fn forward_waiting(&self) {
        loop {
            let next = self.waiting.lock().ignore_poison().pop_front();
            match next {
                Some(ServerMessage::Progress(fields)) => {
                    let message = fields.message.as_deref().unwrap_or_default();
                    let message = match clean_line(message, MAX_MESSAGE_CHARS) {
                        text if text.is_empty() => text,
                        text => format!("{}: {text}", self.server.id),
                    };
                    let client = &self.cx.control.client;
                    client.send_progress(message, fields.progress, fields.total).await;
                }
                Some(ServerMessage::Log(fields)) => self.forward_log(fields).await,
                None => return,
            }
        }
    }

    async fn forward_log(&self, fields: LogFields) {
        let level = known_level(&fields.level);
        let logger = match &fields.logger {
            Some(logger) => format!("{}/{}", self.server.id, clean_line(logger, MAX_NAME_CHARS)),
            None => self.server.id.clone(),
        };
        self.cx.control.client.send_log(level, &logger, clean_data(fields.data)).await;
    }
}

/// Cleans all texts of a log line's data, names included.
fn clean_data(data: Value) -> Value {
    match data {
        Value::String(text) => clean_text(&text, MAX_MESSAGE_CHARS).into(),
        Value::Array(items) => items.into_iter().map(clean_data).collect(),
        Value::Object(members) => members
            .into_iter()
            .map(|(name, value)| (clean_line(&name, MAX_NAME_CHARS), clean_data(value)))
            .collect(),
        other => other,
    }
}

fn known_level(level: &str) -> &'static str {
    const LEVELS: [&str; 8] =
        ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
    LEVELS.into_iter().find(|known| *known == level).unwrap_or("info")
}

impl CallHandler for CallBridge<'_> {
    fn answer_questions(&self, questions: Vec<Question>) -> BoxFuture<'_, Vec<QuestionAnswer>> {
        Box::pin(answer_questions(self.cx, self.server, questions))
    }

    fn handle_progress(&self, params: &RawJson) {
        if !self.cx.control.client.capabilities().progress {
            return;
        }
        // A server that sends something else has nothing to say.
        if let Ok(fields) = params.parse::<ProgressFields>()
            && fields.progress.is_finite()
        {
            self.queue_message(ServerMessage::Progress(fields));
        }
    }

    fn log_level(&self) -> Option<&str> {
        self.cx.control.client.capabilities().logging.then_some("info")
    }

    fn handle_log(&self, params: &RawJson) {
        if params.get().len() <= MAX_LOG_BYTES
            && let Ok(fields) = params.parse::<LogFields>()
        {
            self.queue_message(ServerMessage::Log(fields));
        }
    }
}
