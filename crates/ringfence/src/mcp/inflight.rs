//! The ids of the requests in flight on one connection. A second request under an id that is still in use would take
//! the answer, and the cancellation, of the first.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rmcp::model::{JsonRpcMessage, ServerJsonRpcMessage};
use serde_json::{Map, Value};

use super::edge;
use crate::base::{Error, Kind};

#[derive(Default)]
pub struct InFlight(Mutex<HashSet<String>>);

impl InFlight {
    /// Takes note of what a client sends; the refusal when it uses an id twice.
    pub fn received(&self, message: &Map<String, Value>) -> Result<(), Value> {
        match message.get("id").filter(|_| message.contains_key("method")) {
            Some(id) if !self.lock().insert(id.to_string()) => Err(edge::refusal(Some(id.clone()), &duplicate_id())),
            _ => Ok(()),
        }
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

    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub fn duplicate_id() -> Error {
    Error::new(Kind::InvalidRequest, "a request with this id is still in flight")
        .reason("duplicate_id")
        .hint("Give each request an id of its own.")
}
