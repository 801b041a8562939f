//! What a server says during one call, kept until the call takes it.
//!
//! The reader of a connection never waits for a call: of progress the latest message is kept, of log
//! lines the last ones, and of requests as many as a server can reasonably have open. So a call that
//! takes nothing slows down no other call, and a server that floods us fills no memory.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::limits::Limits;
use crate::message::RawJson;

/// Request of a server that belongs to a call.
#[derive(Debug, Clone)]
pub struct ServerRequest {
    pub(crate) id: RawJson,
    pub method: String,
    pub params: Option<RawJson>,
}

/// Event of a call.
#[derive(Debug)]
pub(crate) enum CallEvent {
    /// Parameters of `notifications/progress`.
    Progress(RawJson),
    /// Parameters of `notifications/message`.
    Log(RawJson),
    Request(ServerRequest),
}

/// Inbox of one call.
pub(crate) struct CallInbox {
    waiting: Mutex<WaitingEvents>,
    arrived: Notify,
    max_log_lines: usize,
    max_requests: usize,
}

#[derive(Default)]
struct WaitingEvents {
    progress: Option<RawJson>,
    logs: VecDeque<RawJson>,
    requests: VecDeque<ServerRequest>,
}

impl CallInbox {
    pub(crate) fn new(limits: &Limits) -> CallInbox {
        CallInbox {
            waiting: Mutex::default(),
            arrived: Notify::new(),
            max_log_lines: limits.log_lines,
            max_requests: limits.server_requests,
        }
    }

    /// Adds an event. Returns the request again if too many are waiting.
    pub(crate) fn add_event(&self, event: CallEvent) -> Result<(), ServerRequest> {
        let mut waiting = self.lock_waiting();
        match event {
            CallEvent::Progress(params) => waiting.progress = Some(params),
            CallEvent::Log(params) => {
                if waiting.logs.len() >= self.max_log_lines {
                    waiting.logs.pop_front();
                }
                waiting.logs.push_back(params);
            }
            CallEvent::Request(request) if waiting.requests.len() >= self.max_requests => {
                return Err(request);
            }
            CallEvent::Request(request) => waiting.requests.push_back(request),
        }
        drop(waiting);
        self.arrived.notify_one();
        Ok(())
    }

    /// Takes an event without waiting. Log lines come first: they are older than the progress that
    /// follows them, and a question comes after what leads to it.
    pub(crate) fn take_event(&self) -> Option<CallEvent> {
        let mut waiting = self.lock_waiting();
        let log = waiting.logs.pop_front().map(CallEvent::Log);
        log.or_else(|| waiting.progress.take().map(CallEvent::Progress))
            .or_else(|| waiting.requests.pop_front().map(CallEvent::Request))
    }

    /// Waits for the next event.
    pub(crate) async fn next_event(&self) -> CallEvent {
        loop {
            if let Some(event) = self.take_event() {
                return event;
            }
            self.arrived.notified().await;
        }
    }

    fn lock_waiting(&self) -> MutexGuard<'_, WaitingEvents> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(number: usize) -> RawJson {
        RawJson::from(number.to_string())
    }

    #[test]
    fn of_progress_the_latest_is_kept_and_of_log_lines_the_last() {
        let inbox = CallInbox::new(&Limits { log_lines: 3, ..Limits::default() });
        for number in 0..10 {
            inbox.add_event(CallEvent::Progress(raw(number))).unwrap();
            inbox.add_event(CallEvent::Log(raw(number))).unwrap();
        }
        let mut taken = Vec::new();
        while let Some(event) = inbox.take_event() {
            taken.push(match event {
                CallEvent::Progress(params) => format!("progress {}", params.get()),
                CallEvent::Log(params) => format!("log {}", params.get()),
                CallEvent::Request(_) => unreachable!(),
            });
        }
        assert_eq!(taken, ["log 7", "log 8", "log 9", "progress 9"]);
    }

    #[test]
    fn requests_beyond_the_limit_come_back() {
        let inbox = CallInbox::new(&Limits { server_requests: 1, ..Limits::default() });
        let request = || {
            CallEvent::Request(ServerRequest { id: raw(1), method: "x".to_owned(), params: None })
        };
        assert!(inbox.add_event(request()).is_ok());
        assert!(inbox.add_event(request()).is_err());
    }
}
