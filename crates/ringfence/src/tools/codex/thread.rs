//! Record of a thread between its turns: its workspace and its settings. Codex keeps the
//! conversation itself, in the thread's own home; a reply has to pass the settings again.
//!
//! A thread can be continued only by the principal who started it here.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::events::is_thread_id;
use super::home::threads_dir;
use super::settings::CodexSettings;
use crate::base::{Error, Kind, Result};
use crate::config::Config;
use crate::session::Session;

/// File name of the record, in the thread's directory and outside the home.
pub const RECORD_FILE: &str = "thread.json";

/// A thread that can be continued.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct ThreadRecord {
    pub workspace: PathBuf,
    pub settings: CodexSettings,
}

impl ThreadRecord {
    /// Returns the thread with this id, if this principal started it in this workspace.
    pub fn load_thread(config: &Config, session: &Session, id: &str) -> Result<ThreadRecord> {
        let unknown_error = || {
            Error::new(Kind::NotFound, "there is no such thread")
                .with_reason("unknown_thread")
                .with_hint("Use the `threadId` of a result of `codex` exactly as it was given, or start a new one with `codex`.")
                .with_fact("argument", "threadId")
        };
        // Checked before it becomes part of a path.
        if !is_thread_id(id) {
            return Err(unknown_error());
        }
        let record_path = threads_dir(config, session).join(id).join(RECORD_FILE);
        let text =
            std::fs::read(record_path).map_err(|error| unknown_error().with_source(error))?;
        let thread: ThreadRecord =
            serde_json::from_slice(&text).map_err(|error| unknown_error().with_source(error))?;
        match thread.workspace == session.workspace.path() {
            true => Ok(thread),
            false => Err(Error::new(Kind::Conflict, "the thread was started in another workspace")
                .with_reason("other_workspace")
                .with_hint("Serve that workspace, or start a new thread with `codex`.")),
        }
    }

    /// Returns the content of the record file.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self)
            .map_err(|error| Error::internal("a thread cannot be recorded").with_source(error))
    }
}
