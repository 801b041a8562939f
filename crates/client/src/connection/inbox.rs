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
    max_log_bytes: usize,
    max_requests: usize,
    max_request_bytes: usize,
}

#[derive(Default)]
struct WaitingEvents {
    progress: Option<RawJson>,
    logs: VecDeque<RawJson>,
    log_bytes: usize,
    requests: VecDeque<ServerRequest>,
}

impl WaitingEvents {
    fn take_log(&mut self) -> Option<RawJson> {
        let log = self.logs.pop_front()?;
        self.log_bytes -= log.get().len();
        Some(log)
    }
}

impl ServerRequest {
    fn params_bytes(&self) -> usize {
        self.params.as_ref().map_or(0, |params| params.get().len())
    }
}

impl CallInbox {
    pub(crate) fn new(limits: &Limits) -> CallInbox {
        CallInbox {
            waiting: Mutex::default(),
            arrived: Notify::new(),
            max_log_lines: limits.log_lines,
            max_log_bytes: limits.log_bytes,
            max_requests: limits.server_requests,
            max_request_bytes: limits.question_bytes,
        }
    }

    /// Adds an event. Returns the request again if it is too long or too many are waiting.
    pub(crate) fn add_event(&self, event: CallEvent) -> Result<(), ServerRequest> {
        let mut waiting = self.lock_waiting();
        match event {
            CallEvent::Progress(params) => waiting.progress = Some(params),
            CallEvent::Log(params) => {
                // A line of a batch must not keep the whole batch in memory.
                let params = params.into_compact();
                waiting.log_bytes += params.get().len();
                waiting.logs.push_back(params);
                while waiting.logs.len() > self.max_log_lines
                    || waiting.log_bytes > self.max_log_bytes
                {
                    waiting.take_log();
                }
            }
            CallEvent::Request(request)
                if waiting.requests.len() >= self.max_requests
                    || request.params_bytes() > self.max_request_bytes =>
            {
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
        let log = waiting.take_log().map(CallEvent::Log);
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
    fn long_log_lines_push_out_the_others() {
        let inbox = CallInbox::new(&Limits { log_bytes: 10, ..Limits::default() });
        for text in ["12345", "1234", "123", "x".repeat(11).as_str()] {
            inbox.add_event(CallEvent::Log(RawJson::from(text.to_owned()))).unwrap();
        }
        assert!(inbox.take_event().is_none());
        inbox.add_event(CallEvent::Log(raw(7))).unwrap();
        assert!(matches!(inbox.take_event(), Some(CallEvent::Log(_))));
        assert_eq!(inbox.lock_waiting().log_bytes, 0);
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
