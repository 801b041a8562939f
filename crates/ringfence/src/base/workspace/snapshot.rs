//! What files there are, so that afterwards one can tell what a run has made of them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::Workspace;
use super::tree::{Directory, Entry, Halt, Next, Seen, Sight, Start, Tree, Visitor, threads};
use crate::base::{Cancel, Error, Kind, Result};

/// Bytes of all paths that are noted.
const MAX_PATHS: usize = 32 << 20;

/// One file as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub size: u64,
    /// Seconds and nanoseconds.
    pub mtime: (i64, u64),
    pub inode: u64,
    /// Changes with every change to the file, also with those that put its mtime back.
    ctime: (i64, u64),
}

impl Mark {
    #[allow(clippy::unnecessary_cast, reason = "the types of the fields depend on the machine")]
    fn of(stat: &Stat) -> Mark {
        Mark {
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mtime: (stat.st_mtime as i64, stat.st_mtime_nsec as u64),
            inode: stat.st_ino,
            ctime: (stat.st_ctime as i64, stat.st_ctime_nsec as u64),
        }
    }
}

/// The regular files of a workspace, but for those that git ignores and for what is in `.git`.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// By path from the workspace.
    pub files: HashMap<PathBuf, Mark>,
    /// False when there were more files than were asked for, or a directory could not be read.
    pub complete: bool,
    /// Of all paths.
    bytes: usize,
}

/// What became of the files between two snapshots, each list in the order of paths.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub created: Vec<PathBuf>,
    pub changed: Vec<PathBuf>,
    pub removed: Vec<PathBuf>,
    /// False when one of the snapshots does not have all files, so that there may be more to tell.
    pub complete: bool,
}

impl Snapshot {
    /// Notes up to `cap` files. Takes about a microsecond for each.
    pub fn take(workspace: &Arc<Workspace>, cap: usize, cancel: &Cancel) -> Result<Snapshot> {
        Snapshot::take_within(workspace, cap, MAX_PATHS, cancel)
    }

    fn take_within(
        workspace: &Arc<Workspace>,
        cap: usize,
        most_bytes: usize,
        cancel: &Cancel,
    ) -> Result<Snapshot> {
        let Start::Tree(tree) =
            Tree::at(workspace, ".", Sight { gitignore: true, hidden: true, left_out: false })?
        else {
            return Err(Error::internal("the workspace is no directory"));
        };
        let halt = Halt::with(cancel);
        let taker = Taker {
            cap,
            most_bytes,
            halt: &halt,
            found: Mutex::new(Snapshot { complete: true, ..Snapshot::default() }),
        };
        tree.walk(&taker, threads(), &halt);
        if cancel.is_cancelled() {
            return Err(Error::new(Kind::Cancelled, "cancelled"));
        }
        let mut found = taker.found.into_inner().unwrap_or_else(PoisonError::into_inner);
        // No run changes what is protected, and what stands in for a missing file comes and goes with runs.
        let rights = workspace.rights();
        for protected in rights.protected.iter().chain(rights.for_git.iter().flatten()) {
            if let Ok(below) = protected.path.strip_prefix(workspace.path()) {
                found.files.remove(below);
            }
        }
        Ok(found)
    }
}

struct Taker<'h> {
    cap: usize,
    most_bytes: usize,
    halt: &'h Halt,
    found: Mutex<Snapshot>,
}

impl Taker<'_> {
    fn incomplete(&self) {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).complete = false;
    }
}

impl Visitor for Taker<'_> {
    type Own = ();

    fn own(&self) {}

    fn enter(&self, _: &Tree, _: &Directory, seen: Seen) -> Next {
        if seen.too_long > 0 || seen.cut {
            self.incomplete();
        }
        let mut next = Next::default();
        for entry in seen.entries {
            match entry.kind {
                FileType::Directory => next.descend.push(entry),
                FileType::RegularFile => next.work.push(entry),
                _ => {}
            }
        }
        next
    }

    fn work(&self, (): &mut (), _: &Tree, directory: &Directory, entries: Vec<Entry>) {
        for entry in entries {
            let Ok(stat) = directory.stat(&entry.name) else { continue };
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                continue;
            }
            let path = directory.path().join(&entry.name);
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            if found.files.len() >= self.cap
                || found.bytes + path.as_os_str().len() > self.most_bytes
            {
                found.complete = false;
                self.halt.call();
                return;
            }
            found.bytes += path.as_os_str().len();
            found.files.insert(path, Mark::of(&stat));
        }
    }

    fn lost(&self, _: &Path, _: &OsStr, _: usize, errno: Errno) {
        // One that has gone meanwhile has no files.
        if errno != Errno::NOENT {
            self.incomplete();
        }
    }
}

/// What happened in between. Of a file that only the incomplete one of two snapshots lacks nothing is said.
pub fn changes(before: &Snapshot, after: &Snapshot) -> Changes {
    let mut found = Changes { complete: before.complete && after.complete, ..Changes::default() };
    for (path, mark) in &after.files {
        match before.files.get(path) {
            Some(old) if old == mark => {}
            Some(_) => found.changed.push(path.clone()),
            None if before.complete => found.created.push(path.clone()),
            None => {}
        }
    }
    if after.complete {
        found
            .removed
            .extend(before.files.keys().filter(|path| !after.files.contains_key(*path)).cloned());
    }
    for list in [&mut found.created, &mut found.changed, &mut found.removed] {
        list.sort();
    }
    found
}

#[cfg(test)]
mod tests;
