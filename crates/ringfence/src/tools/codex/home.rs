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

use super::users::Users;
use crate::base::ids::short;
use crate::base::{Error, Kind, Result};
use crate::config::Config;
use crate::session::Session;

/// Maximum number of threads per principal that can be continued; beyond that the oldest is
/// removed.
pub const KEPT: usize = 1000;
/// The directory in which Codex keeps conversations.
const SESSIONS: &str = "sessions";
const LOCK: &str = "lock";
/// Name prefix of the directory of a thread that has no id yet.
const NEW: &str = "new";
/// Age after which such a directory that is not locked was left over by a server that was killed.
const LEFT_OVER: Duration = Duration::from_secs(3600);

/// Returns the directory with the threads of a principal.
pub fn threads(config: &Config, session: &Session) -> PathBuf {
    config.root.join("codex").join(session.principal.directory_name()).join("threads")
}

/// A thread's directory, locked for one turn.
pub struct Home {
    place: PathBuf,
    /// The directory belongs to a thread and is not removed.
    is_kept: bool,
    _lock: File,
}

impl Home {
    /// Creates a directory for a thread that has yet to start.
    pub fn begin(config: &Config, session: &Session) -> Result<Home> {
        let place = threads(config, session).join(short(NEW));
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&place)
            .and_then(|()| lock(&place));
        let lock =
            made.map_err(|error| Error::internal("cannot create a home for Codex").source(error))?;
        Ok(Home { place, is_kept: false, _lock: lock })
    }

    /// Locks the directory of a thread to continue.
    pub fn again(config: &Config, session: &Session, thread: &str) -> Result<Home> {
        let place = threads(config, session).join(thread);
        let lock = lock(&place).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                Error::new(Kind::Conflict, "the thread is in the middle of another turn")
                    .reason("thread_busy")
                    .hint("Wait until that call has ended.")
            }
            _ => Error::internal("cannot open the home of the thread").source(error),
        })?;
        Ok(Home { place, is_kept: true, _lock: lock })
    }

    /// Returns the value of CODEX_HOME.
    pub fn path(&self) -> PathBuf {
        self.place.join("home")
    }

    /// Clears the home and copies the user's files into it.
    pub fn furnish(&self, users: &Users) -> Result<()> {
        let home = self.path();
        let furnish = || {
            clear(&home)?;
            users.files().try_for_each(|(name, bytes)| write(&home.join(name), bytes))
        };
        furnish().map_err(|error| Error::internal("cannot prepare the home of Codex").source(error))
    }

    /// Turns this into the directory of `thread` and writes its record. A run can choose any id, so
    /// an id that any principal already uses is refused.
    pub fn keep_as(&mut self, config: &Config, thread: &str, record: &[u8]) -> Result<()> {
        let fails =
            |error: io::Error| Error::internal("cannot record a thread of Codex").source(error);
        replace(&self.place.join(super::thread::RECORD), record).map_err(fails)?;
        if self.is_kept {
            return Ok(());
        }
        let of_all = std::fs::read_dir(config.root.join("codex")).map_err(fails)?.flatten();
        let is_taken = of_all
            .map(|principal| principal.path().join("threads").join(thread))
            .any(|place| place.exists());
        let all = self.place.parent().unwrap_or(&self.place).to_owned();
        let place = all.join(thread);
        if is_taken || std::fs::rename(&self.place, &place).is_err() {
            return Err(
                Error::internal("Codex named a thread that already exists").reason("codex_failed")
            );
        }
        (self.place, self.is_kept) = (place, true);
        if let Err(error) = forget_oldest(&all) {
            tracing::warn!("cannot remove old threads of Codex: {error}");
        }
        Ok(())
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let left = match self.is_kept {
            true => clear(&self.path()),
            false => std::fs::remove_dir_all(&self.place),
        };
        if let Err(error) = left {
            tracing::warn!("cannot remove the files that Codex left behind: {error}");
        }
    }
}

fn lock(place: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(place.join(LOCK))?;
    file.try_lock()?;
    Ok(file)
}

/// Removes everything except the conversation. Follows no symlinks: a run may have put anything
/// here.
fn clear(home: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(home)?;
    for entry in std::fs::read_dir(home)? {
        let entry = entry?;
        let is_folder = entry.file_type()?.is_dir();
        match is_folder {
            true if entry.file_name() == SESSIONS => {}
            true => std::fs::remove_dir_all(entry.path())?,
            false => std::fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(bytes)
}

/// Replaces a file atomically.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension(short(NEW));
    write(&fresh, bytes)?;
    std::fs::rename(&fresh, path)
}

fn forget_oldest(threads: &Path) -> io::Result<()> {
    let mut all: Vec<(SystemTime, PathBuf)> = std::fs::read_dir(threads)?
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    all.sort();
    let is_new =
        |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(NEW));
    let is_old = |then: &SystemTime| then.elapsed().is_ok_and(|age| age > LEFT_OVER);
    let excess = all.len().saturating_sub(KEPT);
    let (oldest, others) = all.split_at(excess);
    let left_over = others.iter().filter(|(then, path)| is_new(path) && is_old(then));
    for (_, path) in oldest.iter().chain(left_over) {
        // Skip threads that are in use.
        if let Ok(_held) = lock(path) {
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
        for at in 0..=KEPT {
            std::fs::create_dir(all.join(format!("old-{at}"))).unwrap();
        }
        let age = |name: &str, then: SystemTime| {
            File::open(all.join(name)).unwrap().set_modified(then).unwrap()
        };
        age("old-7", SystemTime::UNIX_EPOCH);
        let busy = lock(&all.join("old-9")).unwrap();
        age("old-9", SystemTime::UNIX_EPOCH);
        forget_oldest(&all).unwrap();
        // The one of the two that could be.
        assert!(!all.join("old-7").exists() && all.join("old-9").exists());
        assert_eq!(std::fs::read_dir(&all).unwrap().count(), KEPT);
        drop(busy);
        scratch.dir("threads/new-1");
        age("new-1", SystemTime::UNIX_EPOCH);
        forget_oldest(&all).unwrap();
        assert!(!all.join("new-1").exists() && std::fs::read_dir(&all).unwrap().count() == KEPT);
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
        clear(&home).unwrap();
        let left: Vec<_> =
            std::fs::read_dir(&home).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(left, ["sessions"]);
        assert!(home.join("sessions/2026/a.jsonl").exists() && kept.exists());
        // A link in its place is none of ours.
        std::fs::remove_dir_all(home.join("sessions")).unwrap();
        std::os::unix::fs::symlink(kept.parent().unwrap(), home.join("sessions")).unwrap();
        clear(&home).unwrap();
        assert!(std::fs::read_dir(&home).unwrap().next().is_none() && kept.exists());
    }
}
