//! Directories that belong to a running server. Each has a lock file next to it, which its owner
//! holds for as long as it lives, so that the next server can remove what a killed one left behind
//! without touching anything in use.
//!
//! The lock exists and is held before the directory exists, so a directory without a held lock is
//! abandoned.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};

const LOCK_SUFFIX: &str = ".lock";

/// Directory owned by this process. It is removed when this value is dropped.
pub struct HeldDir {
    path: PathBuf,
    lock: PathBuf,
    /// Never read: the kernel releases the lock when the process ends, however it ends.
    _held: File,
}

impl HeldDir {
    /// Creates the directory, and missing parents. Its name must never have been used before.
    pub fn create(path: PathBuf) -> io::Result<HeldDir> {
        let parent = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        let lock = with_suffix(&path, LOCK_SUFFIX);
        // The lock file gets its final name only once it is locked; otherwise another server's
        // sweep would remove it.
        let temporary_lock = with_suffix(&lock, ".new");
        let lock_file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary_lock)?;
        flock(&lock_file, FlockOperation::NonBlockingLockExclusive)?;
        std::fs::rename(&temporary_lock, &lock)?;
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(HeldDir { path, lock, _held: lock_file })
    }

    /// Returns the directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for HeldDir {
    fn drop(&mut self) {
        remove_dir_and_lock(&self.path, &self.lock);
    }
}

/// Removes every directory below `parent` whose owner is gone.
pub fn sweep_abandoned(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.filter_map(io::Result::ok) {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let id = match name.strip_suffix(LOCK_SUFFIX) {
            Some(id) if !is_dir => id,
            None if is_dir => name,
            _ => continue,
        };
        // Names that we never create are not ours to remove; `...lock` would even refer to the
        // parent's parent.
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            continue;
        }
        let path = parent.join(id);
        let lock = with_suffix(&path, LOCK_SUFFIX);
        let nofollow =
            i32::try_from((OFlags::NOFOLLOW | OFlags::CLOEXEC).bits()).unwrap_or_default();
        let lock_file = match OpenOptions::new().write(true).custom_flags(nofollow).open(&lock) {
            Ok(file) => match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Some(file),
                Err(_) => continue,
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(
                    "cannot open the lock file of a possibly abandoned directory: {error}"
                );
                continue;
            }
        };
        remove_dir_and_lock(&path, &lock);
        drop(lock_file);
    }
}

fn remove_dir_and_lock(path: &Path, lock: &Path) {
    // The directory first: it must never exist without its lock.
    for result in [std::fs::remove_dir_all(path), std::fs::remove_file(lock)] {
        match result {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("cannot remove the files of a session: {error}");
                return;
            }
            _ => {}
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut text = path.as_os_str().to_owned();
    text.push(suffix);
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::scratch::Scratch;

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn only_abandoned_directories_are_swept() {
        let scratch = Scratch::new();
        let parent = scratch.path().join("outputs");
        let held = HeldDir::create(parent.join("s-1")).unwrap();
        std::fs::write(held.path().join("o-1"), "in use").unwrap();
        for (left, file) in [("s-2", "s-2.lock"), ("s-3", "unrelated"), ("s-4", "s-5.lock")] {
            std::fs::create_dir(parent.join(left)).unwrap();
            std::fs::write(parent.join(left).join("o-1"), "left").unwrap();
            std::fs::write(parent.join(file), "").unwrap();
        }
        for odd in [".lock", "..lock", "...lock"] {
            std::fs::write(parent.join(odd), "").unwrap();
        }
        let elsewhere = scratch.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        std::fs::write(elsewhere.join("kept"), "").unwrap();
        std::os::unix::fs::symlink(&elsewhere, parent.join("s-6")).unwrap();
        std::os::unix::fs::symlink(&elsewhere, parent.join("s-2/link")).unwrap();
        sweep_abandoned(&parent);
        assert_eq!(
            names(&parent),
            ["...lock", "..lock", ".lock", "s-1", "s-1.lock", "s-6", "unrelated"]
        );
        assert_eq!(std::fs::read_to_string(held.path().join("o-1")).unwrap(), "in use");
        assert!(elsewhere.join("kept").exists());
        drop(held);
        assert_eq!(names(&parent), ["...lock", "..lock", ".lock", "s-6", "unrelated"]);
    }
}
