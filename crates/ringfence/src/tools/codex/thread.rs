//! What is kept of a thread between its turns: where it was begun, and with which settings. Codex keeps the conversation
//! itself, in the thread's own home; a reply has to bring the settings again.
//!
//! A thread is continued only by the principal who began it here.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::events::is_thread;
use super::home::threads;
use super::settings::Settings;
use crate::base::{Error, Kind, Result};
use crate::config::Config;
use crate::session::Session;

/// The file of it, in the thread's place and outside the home.
pub const RECORD: &str = "thread.json";

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Thread {
    pub workspace: PathBuf,
    pub settings: Settings,
}

impl Thread {
    /// The thread of this id, if this principal began it in this workspace.
    pub fn find(config: &Config, session: &Session, id: &str) -> Result<Thread> {
        let unknown = || {
            Error::new(Kind::NotFound, "there is no such thread")
                .reason("unknown_thread")
                .hint("Use the `threadId` of a result of `codex` exactly as it was given, or begin a new one with `codex`.")
                .with("argument", "threadId")
        };
        // Checked before it becomes a part of a path.
        if !is_thread(id) {
            return Err(unknown());
        }
        let record = threads(config, session).join(id).join(RECORD);
        let text = std::fs::read(record).map_err(|error| unknown().source(error))?;
        let thread: Thread =
            serde_json::from_slice(&text).map_err(|error| unknown().source(error))?;
        match thread.workspace == session.workspace.path() {
            true => Ok(thread),
            false => Err(Error::new(Kind::Conflict, "the thread was begun in another workspace")
                .reason("other_workspace")
                .hint("Serve that workspace, or begin a new thread with `codex`.")),
        }
    }

    /// What is written of it.
    pub fn record(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self)
            .map_err(|error| Error::internal("a thread cannot be written down").source(error))
    }
}
