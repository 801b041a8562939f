//! CODEX_HOME of a run: one for each thread, under the root, with copies of the user's
//! configuration.
//!
//! The user's own CODEX_HOME is only read. Between turns only the conversation is kept: anything
//! else that a run has left there (hooks, variables, programs) would take effect in the next turn.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::user_config::UserConfig;
use crate::base::ids::short_id;
use crate::base::{Error, Kind, Result};
use crate::config::Config;
use crate::session::Session;

/// Maximum number of threads per principal that can be continued; beyond that the oldest is
/// removed.
pub const MAX_THREADS: usize = 1000;
/// The directory in which Codex keeps conversations.
const SESSIONS_DIR: &str = "sessions";
const LOCK_FILE: &str = "lock";
/// Name prefix of the directory of a thread that has no id yet.
const NEW_PREFIX: &str = "new";
/// Age after which such a directory that is not locked was left over by a server that was killed.
const LEFTOVER_AGE: Duration = Duration::from_secs(3600);

/// Returns the directory with the threads of a principal.
pub fn threads_dir(config: &Config, session: &Session) -> PathBuf {
    config.root.join("codex").join(session.principal.directory_name()).join("threads")
}

/// A thread's directory, locked for one turn.
pub struct ThreadHome {
    thread_dir: PathBuf,
    /// The directory belongs to a thread and is not removed.
    is_assigned: bool,
    _lock: File,
}

impl ThreadHome {
    /// Creates a directory for a thread that has yet to start.
    pub fn create_new(config: &Config, session: &Session) -> Result<ThreadHome> {
        let thread_dir = threads_dir(config, session).join(short_id(NEW_PREFIX));
        let lock_result = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&thread_dir)
            .and_then(|()| lock_dir(&thread_dir));
        let lock = lock_result.map_err(|error| {
            Error::internal("cannot create a home for Codex").with_source(error)
        })?;
        Ok(ThreadHome { thread_dir, is_assigned: false, _lock: lock })
    }

    /// Locks the directory of a thread to continue.
    pub fn reopen_thread(config: &Config, session: &Session, thread: &str) -> Result<ThreadHome> {
        let thread_dir = threads_dir(config, session).join(thread);
        let lock = lock_dir(&thread_dir).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                Error::new(Kind::Conflict, "the thread is in the middle of another turn")
                    .with_reason("thread_busy")
                    .with_hint("Wait until that call has ended.")
            }
            _ => Error::internal("cannot open the home of the thread").with_source(error),
        })?;
        Ok(ThreadHome { thread_dir, is_assigned: true, _lock: lock })
    }

    /// Returns the value of CODEX_HOME.
    pub fn codex_home(&self) -> PathBuf {
        self.thread_dir.join("home")
    }

    /// Clears the home and copies the user's files into it.
    pub fn install_config(&self, user_config: &UserConfig) -> Result<()> {
        let home = self.codex_home();
        let prepare_home = || {
            clear_home(&home)?;
            user_config
                .config_files()
                .try_for_each(|(name, bytes)| write_new(&home.join(name), bytes))
        };
        prepare_home()
            .map_err(|error| Error::internal("cannot prepare the home of Codex").with_source(error))
    }

    /// Turns this into the directory of `thread` and writes its record. A run can choose any id, so
    /// an id that any principal already uses is refused.
    pub fn assign_thread(&mut self, config: &Config, thread: &str, record: &[u8]) -> Result<()> {
        let record_error = |error: io::Error| {
            Error::internal("cannot record a thread of Codex").with_source(error)
        };
        replace_file(&self.thread_dir.join(super::thread::RECORD_FILE), record)
            .map_err(record_error)?;
        if self.is_assigned {
            return Ok(());
        }
        let principal_dirs =
            std::fs::read_dir(config.root.join("codex")).map_err(record_error)?.flatten();
        let is_taken = principal_dirs
            .map(|principal| principal.path().join("threads").join(thread))
            .any(|new_dir| new_dir.exists());
        let parent_dir = self.thread_dir.parent().unwrap_or(&self.thread_dir).to_owned();
        let new_dir = parent_dir.join(thread);
        if is_taken || std::fs::rename(&self.thread_dir, &new_dir).is_err() {
            return Err(Error::internal("Codex named a thread that already exists")
                .with_reason("codex_failed"));
        }
        (self.thread_dir, self.is_assigned) = (new_dir, true);
        if let Err(error) = remove_oldest(&parent_dir) {
            tracing::warn!("cannot remove old threads of Codex: {error}");
        }
        Ok(())
    }
}

impl Drop for ThreadHome {
    fn drop(&mut self) {
        let removal = match self.is_assigned {
            true => clear_home(&self.codex_home()),
            false => std::fs::remove_dir_all(&self.thread_dir),
        };
        if let Err(error) = removal {
            tracing::warn!("cannot remove the files that Codex left behind: {error}");
        }
    }
}

fn lock_dir(dir: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(dir.join(LOCK_FILE))?;
    file.try_lock()?;
    Ok(file)
}

/// Removes everything except the conversation. Follows no symlinks: a run may have put anything
/// here.
fn clear_home(home: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(home)?;
    for entry in std::fs::read_dir(home)? {
        let entry = entry?;
        let is_directory = entry.file_type()?.is_dir();
        match is_directory {
            true if entry.file_name() == SESSIONS_DIR => {}
            true => std::fs::remove_dir_all(entry.path())?,
            false => std::fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(bytes)
}

/// Replaces a file atomically.
fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension(short_id(NEW_PREFIX));
    write_new(&temporary, bytes)?;
    std::fs::rename(&temporary, path)
}

fn remove_oldest(threads: &Path) -> io::Result<()> {
    let mut entries: Vec<(SystemTime, PathBuf)> = std::fs::read_dir(threads)?
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    entries.sort();
    let is_new = |path: &Path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(NEW_PREFIX))
    };
    let is_old = |modified: &SystemTime| modified.elapsed().is_ok_and(|age| age > LEFTOVER_AGE);
    let excess = entries.len().saturating_sub(MAX_THREADS);
    let (oldest, others) = entries.split_at(excess);
    let leftovers = others.iter().filter(|(modified, path)| is_new(path) && is_old(modified));
    for (_, path) in oldest.iter().chain(leftovers) {
        // Skip threads that are in use.
        if let Ok(_lock) = lock_dir(path) {
            std::fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::scratch::Scratch;

    #[test]
    fn the_oldest_is_forgotten_and_none_that_is_at_work() {
        let scratch = Scratch::new();
        let all = scratch.dir("threads");
        for at in 0..=MAX_THREADS {
            std::fs::create_dir(all.join(format!("old-{at}"))).unwrap();
        }
        let age = |name: &str, then: SystemTime| {
            File::open(all.join(name)).unwrap().set_modified(then).unwrap()
        };
        age("old-7", SystemTime::UNIX_EPOCH);
        let busy = lock_dir(&all.join("old-9")).unwrap();
        age("old-9", SystemTime::UNIX_EPOCH);
        remove_oldest(&all).unwrap();
        // The one of the two that could be.
        assert!(!all.join("old-7").exists() && all.join("old-9").exists());
        assert_eq!(std::fs::read_dir(&all).unwrap().count(), MAX_THREADS);
        drop(busy);
        scratch.dir("threads/new-1");
        age("new-1", SystemTime::UNIX_EPOCH);
        remove_oldest(&all).unwrap();
        assert!(
            !all.join("new-1").exists() && std::fs::read_dir(&all).unwrap().count() == MAX_THREADS
        );
    }

    #[test]
    fn nothing_stays_in_a_home_but_the_conversation() {
        let scratch = Scratch::new();
        let home = scratch.dir("home");
        scratch.file("home/sessions/2026/a.jsonl", "said");
        scratch.file("home/tmp/arg0/x", "evil");
        let kept = scratch.file("outside/kept", "kept");
        for name in [".env", "hooks.json", "x.config.toml", "auth.json", "state_5.sqlite"] {
            scratch.file(&format!("home/{name}"), "evil");
        }
        std::os::unix::fs::symlink(kept.parent().unwrap(), home.join("rules")).unwrap();
        clear_home(&home).unwrap();
        let left: Vec<_> =
            std::fs::read_dir(&home).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(left, ["sessions"]);
        assert!(home.join("sessions/2026/a.jsonl").exists() && kept.exists());
        // A link in its place is none of ours.
        std::fs::remove_dir_all(home.join("sessions")).unwrap();
        std::os::unix::fs::symlink(kept.parent().unwrap(), home.join("sessions")).unwrap();
        clear_home(&home).unwrap();
        assert!(std::fs::read_dir(&home).unwrap().next().is_none() && kept.exists());
    }
}
