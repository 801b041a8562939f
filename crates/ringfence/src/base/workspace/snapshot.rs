//! Snapshots of a workspace's files, to find out afterwards what a run changed.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::Workspace;
use super::tree::{
    DirListing, NextSteps, TreeDir, TreeEntry, TreeVisitor, WalkFilter, WalkStart, WalkStop,
    WorkspaceTree, thread_count,
};
use crate::base::IgnorePoison;
use crate::base::{CancelToken, Error, Kind, Result};

/// Maximum total bytes of all recorded paths.
const MAX_PATH_TOTAL: usize = 32 << 20;

/// State of one file at the time of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileState {
    pub size: u64,
    /// Seconds and nanoseconds.
    pub mtime: (i64, u64),
    pub inode: u64,
    /// Changes with every change to the file, even if its mtime is set back.
    ctime: (i64, u64),
}

impl FileState {
    #[allow(clippy::unnecessary_cast, reason = "the types of the fields depend on the machine")]
    fn from_stat(stat: &Stat) -> FileState {
        FileState {
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mtime: (stat.st_mtime as i64, stat.st_mtime_nsec as u64),
            inode: stat.st_ino,
            ctime: (stat.st_ctime as i64, stat.st_ctime_nsec as u64),
        }
    }
}

/// The regular files of a workspace, except those that git ignores and the contents of `.git`.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Keyed by path from the workspace.
    pub files: HashMap<PathBuf, FileState>,
    /// False if there were more files than the cap, or a directory could not be read.
    pub complete: bool,
    /// Total bytes of all paths.
    path_bytes: usize,
}

/// Differences between two snapshots, each list sorted by path.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FileChanges {
    pub created: Vec<PathBuf>,
    pub changed: Vec<PathBuf>,
    pub removed: Vec<PathBuf>,
    /// False if one of the snapshots is incomplete, so that there may be more differences.
    pub complete: bool,
}

impl Snapshot {
    /// Records up to `max_files` files. Takes about a microsecond for each.
    pub fn capture(
        workspace: &Arc<Workspace>,
        max_files: usize,
        cancel: &CancelToken,
    ) -> Result<Snapshot> {
        Snapshot::capture_within(workspace, max_files, MAX_PATH_TOTAL, cancel)
    }

    fn capture_within(
        workspace: &Arc<Workspace>,
        max_files: usize,
        max_path_bytes: usize,
        cancel: &CancelToken,
    ) -> Result<Snapshot> {
        let WalkStart::Tree(tree) = WorkspaceTree::find_start(
            workspace,
            ".",
            WalkFilter { skip_ignored: true, show_hidden: true, inverted: false },
        )?
        else {
            return Err(Error::internal("the workspace is not a directory"));
        };
        let stop = WalkStop::without_deadline(cancel);
        let visitor = SnapshotVisitor {
            max_files,
            max_path_bytes,
            halt: &stop,
            found: Mutex::new(Snapshot { complete: true, ..Snapshot::default() }),
        };
        tree.walk(&visitor, thread_count(), &stop);
        if cancel.is_cancelled() {
            return Err(Error::new(Kind::Cancelled, "cancelled"));
        }
        let mut snapshot = visitor.found.into_inner().ignore_poison();
        // No run changes protected files, and stand-ins for missing ones come and go with runs.
        let rights = workspace.rights();
        for protected in rights.protected.iter().chain(rights.git_protected.iter().flatten()) {
            if let Ok(relative_path) = protected.path.strip_prefix(workspace.path()) {
                snapshot.files.remove(relative_path);
            }
        }
        Ok(snapshot)
    }
}

struct SnapshotVisitor<'h> {
    max_files: usize,
    max_path_bytes: usize,
    halt: &'h WalkStop,
    found: Mutex<Snapshot>,
}

impl SnapshotVisitor<'_> {
    fn mark_incomplete(&self) {
        self.found.lock().ignore_poison().complete = false;
    }
}

impl TreeVisitor for SnapshotVisitor<'_> {
    type ThreadState = ();

    fn new_thread_state(&self) {}

    fn visit_dir(&self, _: &WorkspaceTree, _: &TreeDir, listing: DirListing) -> NextSteps {
        if listing.too_long > 0 || listing.is_truncated {
            self.mark_incomplete();
        }
        let mut steps = NextSteps::default();
        for entry in listing.entries {
            match entry.kind {
                FileType::Directory => steps.descend.push(entry),
                FileType::RegularFile => steps.process.push(entry),
                _ => {}
            }
        }
        steps
    }

    fn process_entries(
        &self,
        (): &mut (),
        _: &WorkspaceTree,
        directory: &TreeDir,
        entries: Vec<TreeEntry>,
    ) {
        for entry in entries {
            let Ok(stat) = directory.stat_entry(&entry.name) else { continue };
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                continue;
            }
            let path = directory.path().join(&entry.name);
            let mut snapshot = self.found.lock().ignore_poison();
            if snapshot.files.len() >= self.max_files
                || snapshot.path_bytes + path.as_os_str().len() > self.max_path_bytes
            {
                snapshot.complete = false;
                self.halt.stop();
                return;
            }
            snapshot.path_bytes += path.as_os_str().len();
            snapshot.files.insert(path, FileState::from_stat(&stat));
        }
    }

    fn dir_failed(&self, _: &Path, _: &OsStr, _: usize, errno: Errno) {
        // A directory that was removed in the meantime has no files.
        if errno != Errno::NOENT {
            self.mark_incomplete();
        }
    }
}

/// Compares two snapshots. A file that is missing only from an incomplete snapshot is not reported.
pub fn diff_snapshots(before: &Snapshot, after: &Snapshot) -> FileChanges {
    let mut changes =
        FileChanges { complete: before.complete && after.complete, ..FileChanges::default() };
    for (path, state) in &after.files {
        match before.files.get(path) {
            Some(old) if old == state => {}
            Some(_) => changes.changed.push(path.clone()),
            None if before.complete => changes.created.push(path.clone()),
            None => {}
        }
    }
    if after.complete {
        changes
            .removed
            .extend(before.files.keys().filter(|path| !after.files.contains_key(*path)).cloned());
    }
    for list in [&mut changes.created, &mut changes.changed, &mut changes.removed] {
        list.sort();
    }
    changes
}

#[cfg(test)]
mod tests;
