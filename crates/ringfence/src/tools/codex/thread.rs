//! What is kept of a thread between its turns: who began it, where, and with which settings. Codex keeps the
//! conversation itself, in its own home; a reply has to bring the settings again.
//!
//! A thread is continued only by the principal who began it here: CODEX_HOME has everybody's.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::events::is_thread;
use super::settings::Settings;
use crate::base::ids::short;
use crate::base::{Error, Kind, Result};
use crate::config::Config;
use crate::session::Session;

/// Threads of a principal that can be continued; then the oldest is forgotten.
pub const KEPT: usize = 1000;

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Thread {
    pub workspace: PathBuf,
    pub settings: Settings,
}

fn folder(config: &Config, session: &Session) -> PathBuf {
    config.root.join("codex").join(session.principal.directory())
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
        let text = std::fs::read(folder(config, session).join(id)).map_err(|error| unknown().source(error))?;
        let thread: Thread = serde_json::from_slice(&text).map_err(|error| unknown().source(error))?;
        match thread.workspace == session.workspace.path() {
            true => Ok(thread),
            false => Err(Error::new(Kind::Conflict, "the thread was begun in another workspace")
                .reason("other_workspace")
                .hint("Serve that workspace, or begin a new thread with `codex`.")),
        }
    }

    /// Remembers it. What cannot be remembered can only not be continued, so that is no reason to lose a result.
    pub fn keep(config: &Config, session: &Session, id: &str, settings: &Settings) {
        let thread = Thread { workspace: session.workspace.path().to_owned(), settings: settings.clone() };
        if !is_thread(id) {
            return;
        }
        if let Err(error) = thread.write(&folder(config, session), id) {
            tracing::warn!("a thread of Codex cannot be remembered: {error}");
        }
    }

    fn write(&self, folder: &std::path::Path, id: &str) -> std::io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // Instructions may be anybody's business, so nobody else reads them; and no half of a file is ever there.
        let fresh = folder.join(format!(".{}", short("new")));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        drop(file);
        std::fs::rename(&fresh, folder.join(id))?;
        forget_oldest(folder)
    }
}

fn forget_oldest(folder: &std::path::Path) -> std::io::Result<()> {
    let mut all: Vec<_> = std::fs::read_dir(folder)?
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    all.sort();
    let excess = all.len().saturating_sub(KEPT);
    all.iter().take(excess).try_for_each(|(_, path)| std::fs::remove_file(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::scratch::Scratch;

    const ID: &str = "01a1e507-1a6d-7780-bad2-f3ce356a988a";

    #[test]
    fn the_oldest_is_forgotten_and_no_other() {
        let scratch = Scratch::new();
        let folder = scratch.dir("threads");
        let thread = Thread { workspace: "/w".into(), settings: Settings::default() };
        for at in 0..KEPT {
            std::fs::write(folder.join(format!("old-{at}")), "").unwrap();
        }
        let ancient = folder.join("old-7");
        let then = std::time::SystemTime::UNIX_EPOCH;
        std::fs::File::open(&ancient).unwrap().set_modified(then).unwrap();
        thread.write(&folder, ID).unwrap();
        assert!(!ancient.exists() && folder.join(ID).exists());
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), KEPT);
        let again: Thread = serde_json::from_slice(&std::fs::read(folder.join(ID)).unwrap()).unwrap();
        assert_eq!(again, thread);
    }
}
