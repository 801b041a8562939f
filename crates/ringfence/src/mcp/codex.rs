//! Codex's reports about itself: the sandbox of its own commands, and whether a person answers
//! questions.
//!
//! Codex has reported its sandbox in eight ways so far: as a notification, as a request, and in
//! `_meta` of each call, under one key or two. [`sandbox_state`] reads all of them. A state that
//! comes with a call applies to that call; a pushed state applies until the next push.

pub mod sandbox_state;

use std::sync::Arc;

use rmcp::model::{ExperimentalCapabilities, Extensions, RequestMetaObject};
use serde_json::{Value, json};

use super::server::ClientConnection;
use crate::base::client_sandbox::ClientSandbox;
use crate::base::{Error, Kind, Result};
use crate::session::Session;

/// Method that pushes a sandbox state.
pub const UPDATE_METHOD: &str = "codex/sandbox-state/update";
const STATE_KEYS: [&str; 2] = ["codex/sandbox-state", "codex/sandbox-state-meta"];

/// Returns the capabilities that make Codex report its sandbox. Only the presence of the keys
/// matters.
pub fn state_capabilities() -> ExperimentalCapabilities {
    let declared =
        json!({"codex/sandbox-state": {"version": "1.0.0"}, "codex/sandbox-state-meta": {}});
    serde_json::from_value(declared).unwrap_or_default()
}

/// Returns the sandbox that applies to a call: the one that came with it, else the one pushed to
/// its session, else the one pushed to its connection.
pub fn sandbox_for_call(
    meta: &RequestMetaObject,
    session: &Session,
    connection: &ClientConnection,
) -> Option<Arc<ClientSandbox>> {
    let states: Vec<&Value> = STATE_KEYS.iter().filter_map(|key| meta.get(*key)).collect();
    match states[..] {
        [] => session
            .client_sandbox()
            .or_else(|| connection.session().client_sandbox().filter(|_| connection.persistent)),
        // Both keys must say the same, or neither can be relied on.
        [one, other] if one != other => {
            Some(Arc::new(fallback_sandbox("the two states of a call differ")))
        }
        [state, ..] => Some(Arc::new(
            sandbox_state::read_state(state).unwrap_or_else(|reason| fallback_sandbox(&reason)),
        )),
    }
}

/// Returns whether this `_meta` says that the client answers without a person.
pub fn auto_answers(meta: &RequestMetaObject) -> bool {
    let turn = meta.get("x-codex-turn-metadata");
    let has_value = |key: &str, value: &str| {
        turn.and_then(|turn| turn.get(key)).is_some_and(|found| found == value)
    };
    has_value("turn_trigger", "exec") || has_value("sandbox_mode", "danger-full-access")
}

/// Result of reading a pushed state. The state is read where the message arrives and the result
/// travels with the message, so that the next message sees the state whichever of the two is
/// processed first.
#[derive(Debug, Clone)]
pub struct PushedState(std::result::Result<(), String>);

impl PushedState {
    /// Reads and stores the state of a message, if the message pushes one.
    pub fn store_from_message(
        method: Option<&Value>,
        params: Option<&Value>,
        session: &Session,
    ) -> Option<PushedState> {
        if method.and_then(Value::as_str) != Some(UPDATE_METHOD) {
            return None;
        }
        let parsed = sandbox_state::read_state(params.unwrap_or(&Value::Null));
        let result = parsed.as_ref().map(|_| ()).map_err(Clone::clone);
        session.set_client_sandbox(parsed.unwrap_or_else(|reason| fallback_sandbox(&reason)));
        Some(PushedState(result))
    }

    /// Returns the result that is attached to the message, or to the HTTP request that carried it.
    pub fn from_extensions(extensions: &Extensions) -> Option<PushedState> {
        let parts = || {
            extensions
                .get::<::http::request::Parts>()
                .and_then(|parts| parts.extensions.get::<PushedState>())
        };
        extensions.get::<PushedState>().or_else(parts).cloned()
    }

    /// Returns an error if the state could not be read.
    pub fn check_readable(&self) -> Result<()> {
        self.0.as_ref().map_err(|reason| {
            Error::invalid_arguments(format!("the sandbox state cannot be read: {reason}"))
                .with_reason("bad_sandbox_state")
                .with_hint("Until a state can be read, the workspace is read-only and there is no network.")
        })?;
        Ok(())
    }
}

/// Returns the error for a state that belongs to no session.
pub fn no_session_error() -> Error {
    Error::new(Kind::InvalidRequest, "there is no session that the sandbox state could belong to")
        .with_reason("no_session")
        .with_hint(
            "Send the session handle in `_meta`, or the state itself in `_meta` of each call.",
        )
}

fn fallback_sandbox(reason: &str) -> ClientSandbox {
    let reason: String =
        reason.chars().take(200).map(|c| if c.is_control() { '?' } else { c }).collect();
    tracing::warn!(
        "a client's sandbox state cannot be read ({reason}): read-only and without network until it can"
    );
    ClientSandbox::most_restrictive()
}
