//! The ids of the requests in flight on one connection. A second request under an id that is still in use would take
//! the answer, and the cancellation, of the first.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::model::{JsonRpcMessage, ServerJsonRpcMessage};
use serde_json::{Map, Value};

use super::edge;
use crate::base::{Error, Kind};

#[derive(Default)]
pub struct InFlight {
    ids: Mutex<HashSet<String>>,
    /// Answers that the client has not taken yet.
    unread: AtomicUsize,
}

/// At a time. A client that sends and does not read would otherwise fill our memory with answers.
const LIMIT: usize = 256;

impl InFlight {
    /// Takes note of what a client sends; the refusal when it uses an id twice.
    pub fn received(&self, message: &Map<String, Value>) -> Result<(), Value> {
        let Some(id) = message.get("id").filter(|_| message.contains_key("method")) else { return Ok(()) };
        let mut ids = self.lock();
        let refused = |error: Error| Err(edge::refusal(Some(id.clone()), &error));
        if ids.contains(&id.to_string()) {
            return refused(duplicate_id());
        }
        if ids.len() + self.unread.load(Ordering::Relaxed) >= LIMIT {
            return refused(Error::new(Kind::ResourceExhausted, format!("{LIMIT} requests are in flight already")));
        }
        ids.insert(id.to_string());
        Ok(())
    }

    /// A request that was refused after all.
    pub fn refused(&self, id: &Value) {
        self.lock().remove(&id.to_string());
    }

    /// An answer frees its id. What was cancelled is never answered, and its id stays used: MCP forbids to take it again.
    pub fn sent(&self, message: &ServerJsonRpcMessage) {
        let id = match message {
            JsonRpcMessage::Response(response) => serde_json::to_string(&response.id),
            JsonRpcMessage::Error(error) => serde_json::to_string(&error.id),
            _ => return,
        };
        if let Ok(id) = id {
            self.lock().remove(&id);
        }
    }

    /// Counts an answer from here until the returned guard is dropped.
    pub fn unread(self: &Arc<Self>) -> Unread {
        self.unread.fetch_add(1, Ordering::Relaxed);
        Unread(Arc::clone(self))
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct Unread(Arc<InFlight>);

impl Drop for Unread {
    fn drop(&mut self) {
        self.0.unread.fetch_sub(1, Ordering::Relaxed);
    }
}

pub fn duplicate_id() -> Error {
    Error::new(Kind::InvalidRequest, "a request with this id is still in flight")
        .reason("duplicate_id")
        .hint("Give each request an id of its own.")
}
