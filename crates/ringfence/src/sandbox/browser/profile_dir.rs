//! Directory for a browser's files. Each browser has its own, and next to it a lock that this
//! process holds as long as it lives, so that the next server can tell what a killed one left
//! behind.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::base::ids::short_id;

const BROWSERS_DIR: &str = "browser";
const LOCK: &str = "lock";

/// Directory of one browser, removed when dropped.
pub struct BrowserProfileDir {
    /// The browser writes here, so nothing in it is opened by its path.
    pub dir: PathBuf,
    /// For what the server itself writes: the browser cannot reach it.
    pub log_dir: PathBuf,
    lock_path: PathBuf,
    /// Never read, only held.
    _lock: File,
}

/// Removes what browsers of killed servers left behind.
pub fn sweep_abandoned(root: &Path) -> io::Result<()> {
    let browsers_dir = root.join(BROWSERS_DIR);
    if !browsers_dir.exists() {
        return Ok(());
    }
    let dir_lock = open_lock_file(&root.join(format!("{BROWSERS_DIR}.{LOCK}")))?;
    flock(&dir_lock, FlockOperation::LockExclusive)?;
    remove_unlocked(root, &browsers_dir);
    Ok(())
}

impl BrowserProfileDir {
    /// Creates a new one, after removing those that no server uses any more.
    pub fn create(root: &Path) -> io::Result<BrowserProfileDir> {
        let browsers_dir = root.join(BROWSERS_DIR);
        DirBuilder::new().recursive(true).mode(0o700).create(&browsers_dir)?;
        // Between the creation of a lock and holding it, another server would consider it
        // abandoned.
        let dir_lock = open_lock_file(&root.join(format!("{BROWSERS_DIR}.{LOCK}")))?;
        flock(&dir_lock, FlockOperation::LockExclusive)?;
        remove_unlocked(root, &browsers_dir);
        let id = short_id("b");
        let lock_path = browsers_dir.join(format!("{id}.{LOCK}"));
        let lock_file = open_lock_file(&lock_path)?;
        flock(&lock_file, FlockOperation::NonBlockingLockExclusive)?;
        let dir = browsers_dir.join(&id);
        DirBuilder::new().mode(0o700).create(&dir)?;
        Ok(BrowserProfileDir {
            dir: dir.canonicalize()?,
            log_dir: log_dir_path(root, &id),
            lock_path,
            _lock: lock_file,
        })
    }
}

impl Drop for BrowserProfileDir {
    fn drop(&mut self) {
        for removal in [
            remove_if_present(&self.log_dir),
            remove_if_present(&self.dir),
            std::fs::remove_file(&self.lock_path),
        ] {
            if let Err(error) = removal {
                tracing::warn!("cannot remove a browser's files: {error}");
            }
        }
    }
}

fn log_dir_path(root: &Path, id: &str) -> PathBuf {
    root.join("outputs").join(id)
}

fn open_lock_file(path: &Path) -> io::Result<File> {
    let nofollow = i32::try_from((OFlags::NOFOLLOW | OFlags::CLOEXEC).bits()).unwrap_or_default();
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(nofollow)
        .open(path)
}

/// Removes every directory whose lock no one holds.
fn remove_unlocked(root: &Path, browsers_dir: &Path) {
    let Ok(entries) = std::fs::read_dir(browsers_dir) else { return };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut ids: Vec<String> = names
        .map(|name| name.strip_suffix(&format!(".{LOCK}")).map_or(name.clone(), str::to_owned))
        .filter(|id| id.starts_with("b-"))
        .collect();
    ids.sort();
    ids.dedup();
    for id in ids {
        let lock_path = browsers_dir.join(format!("{id}.{LOCK}"));
        let Ok(file) = open_lock_file(&lock_path) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        for removal in [
            remove_if_present(&log_dir_path(root, &id)),
            remove_if_present(&browsers_dir.join(&id)),
            std::fs::remove_file(&lock_path),
        ] {
            if let Err(error) = removal {
                tracing::warn!("cannot remove files that a browser left behind: {error}");
            }
        }
    }
}

fn remove_if_present(dir: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::scratch::Scratch;

    #[test]
    fn what_is_left_is_removed_and_what_is_lived_in_stays() {
        let scratch = Scratch::new();
        let root = scratch.dir("root");
        let elsewhere = scratch.dir("elsewhere");
        std::fs::write(elsewhere.join("keep"), "x").unwrap();
        let first = BrowserProfileDir::create(&root).unwrap();
        // As a server leaves them that was killed, with and without a lock.
        for (id, locked) in [("b-1111", true), ("b-2222", false)] {
            std::fs::create_dir_all(root.join("browser").join(id).join("profile")).unwrap();
            std::os::unix::fs::symlink(&elsewhere, root.join("browser").join(id).join("out"))
                .unwrap();
            std::fs::create_dir_all(root.join("outputs").join(id)).unwrap();
            if locked {
                std::fs::write(root.join("browser").join(format!("{id}.lock")), "").unwrap();
            }
        }
        let second = BrowserProfileDir::create(&root).unwrap();
        assert!(first.dir.is_dir() && second.dir.is_dir());
        assert_eq!(std::fs::read_dir(root.join("browser")).unwrap().count(), 4);
        assert_eq!(std::fs::read_dir(root.join("outputs")).unwrap().count(), 0);
        assert!(elsewhere.join("keep").exists());
        assert!(!second.log_dir.starts_with(&second.dir), "the browser cannot write where we do");
        drop((first, second));
        assert_eq!(std::fs::read_dir(root.join("browser")).unwrap().count(), 0);
    }
}
