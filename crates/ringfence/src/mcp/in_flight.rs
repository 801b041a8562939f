//! Ids of the requests in flight on one connection. A second request under an id that is still in
//! use would take the answer, and the cancellation, of the first.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rmcp::model::{JsonRpcMessage, ServerJsonRpcMessage};
use serde_json::{Map, Value};

use super::envelope;
use crate::base::IgnorePoison;
use crate::base::{Error, Kind};

/// Ids in use on one connection, and the number of answers that have not been read.
#[derive(Default)]
pub struct InFlightRequests {
    ids: Mutex<RequestIds>,
    /// Answers that the client has not read yet.
    unread: AtomicUsize,
}

#[derive(Default)]
struct RequestIds {
    /// Not answered yet.
    open: HashSet<String>,
    /// The most recently cancelled ids, which are never answered. MCP forbids reusing an id, and
    /// the call under it may still be ending, so the id is not free; but it does not count towards
    /// the limit.
    cancelled: VecDeque<String>,
}

/// Requests in flight at a time. A client that sends and does not read would otherwise fill our
/// memory with answers.
const MAX_IN_FLIGHT: usize = 256;

impl InFlightRequests {
    /// Registers a message from the client. Returns a refusal if its id is in use or the limit is
    /// reached.
    pub fn register_message(&self, message: &Map<String, Value>) -> Result<(), Value> {
        let mut ids = self.lock();
        if message.get("method").is_some_and(|method| method == "notifications/cancelled") {
            let id = message.get("params").and_then(|params| params.get("requestId")).map(id_text);
            ids.cancel_id(id.unwrap_or_default());
        }
        let Some(id) = message.get("id").filter(|_| message.contains_key("method")) else {
            return Ok(());
        };
        let refused = |error: Error| Err(envelope::refusal_message(Some(id.clone()), &error));
        let id_text = id_text(id);
        if ids.open.contains(&id_text) || ids.cancelled.contains(&id_text) {
            return refused(duplicate_id_error());
        }
        if ids.open.len() + self.unread.load(Ordering::Relaxed) >= MAX_IN_FLIGHT {
            return refused(Error::new(
                Kind::ResourceExhausted,
                format!("{MAX_IN_FLIGHT} requests are already in flight"),
            ));
        }
        ids.open.insert(id_text);
        Ok(())
    }

    /// Frees the id of a request that was refused after it was registered, or that is answered.
    /// Returns false if the client has cancelled it: then MCP forbids an answer.
    pub fn release_id(&self, id: &Value) -> bool {
        self.lock().open.remove(&id_text(id))
    }

    /// Returns whether a request is in flight and not cancelled.
    pub fn is_open(&self, id: &Value) -> bool {
        self.lock().open.contains(&id_text(id))
    }

    /// Frees the id that this message answers.
    pub fn release_answered(&self, message: &ServerJsonRpcMessage) {
        let id = match message {
            JsonRpcMessage::Response(response) => serde_json::to_string(&response.id),
            JsonRpcMessage::Error(error) => serde_json::to_string(&error.id),
            _ => return,
        };
        if let Ok(id) = id {
            self.lock().open.remove(&id);
        }
    }

    /// Counts an answer as unread until the guard is dropped.
    pub fn count_unread(self: &Arc<Self>) -> UnreadGuard {
        self.unread.fetch_add(1, Ordering::Relaxed);
        UnreadGuard(Arc::clone(self))
    }

    fn lock(&self) -> MutexGuard<'_, RequestIds> {
        self.ids.lock().ignore_poison()
    }
}

impl RequestIds {
    fn cancel_id(&mut self, id: String) {
        if self.open.remove(&id) {
            self.cancelled.truncate(MAX_IN_FLIGHT - 1);
            self.cancelled.push_front(id);
        }
    }
}

/// Returns an id as text. A whole number with a point is the same id as without.
pub fn id_text(id: &Value) -> String {
    match id.as_f64().filter(|number| id.is_f64() && number.fract() == 0.0) {
        Some(number) => format!("{number:.0}"),
        None => id.to_string(),
    }
}

/// Answer that the client has not read yet.
pub struct UnreadGuard(Arc<InFlightRequests>);

impl Drop for UnreadGuard {
    fn drop(&mut self) {
        self.0.unread.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the error for a request whose id is in use.
pub fn duplicate_id_error() -> Error {
    Error::new(Kind::InvalidRequest, "a request with this id is still in flight")
        .with_reason("duplicate_id")
        .with_hint("Give each request an id of its own.")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn send(ids: &InFlightRequests, message: Value) -> Result<(), Value> {
        ids.register_message(message.as_object().unwrap())
    }

    fn ask(ids: &InFlightRequests, id: usize) -> Result<(), Value> {
        send(ids, json!({"id": id, "method": "ping"}))
    }

    /// What was cancelled is never answered, so it must not take up a place for ever.
    #[test]
    fn a_session_survives_any_number_of_cancellations() {
        let ids = InFlightRequests::default();
        for id in 0..MAX_IN_FLIGHT * 4 {
            ask(&ids, id).unwrap();
            send(&ids, json!({"method": "notifications/cancelled", "params": {"requestId": id}}))
                .unwrap();
        }
        assert_eq!(
            ask(&ids, MAX_IN_FLIGHT * 4 - 1).unwrap_err()["error"]["data"]["reason"],
            "duplicate_id"
        );
        for id in MAX_IN_FLIGHT * 4..MAX_IN_FLIGHT * 5 {
            ask(&ids, id).unwrap();
        }
        assert_eq!(
            ask(&ids, MAX_IN_FLIGHT * 5).unwrap_err()["error"]["data"]["kind"],
            "resource_exhausted"
        );
    }
}
