//! Protected paths as the host sees them: which paths must be covered, and stand-ins for the
//! missing ones.
//!
//! A mount point cannot be renamed, removed or replaced, so a run mounts a read-only cover over
//! every protected path. That requires something to mount on: where nothing exists, an empty
//! directory or file is created as a stand-in and removed when the last run has ended. Runs of
//! several servers may share a stand-in, so each run holds a shared lock on it, and only the run
//! that can take the lock exclusively removes it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, XattrFlags, fgetxattr, flock,
    fsetxattr, fstat, mkdirat, openat, statat, unlinkat,
};
use rustix::io::Errno;

use crate::rights::{ProtectedPath, Rights, StandIn, StandInText};

/// Number of attempts when another server removes a stand-in while we try to lock it; each attempt
/// creates it anew.
const MAX_ATTEMPTS: usize = 50;
const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// Maximum number of symbolic links in one path, the same as in the kernel.
const MAX_LINKS: usize = 40;
/// Extended attribute that marks our stand-ins, so that the last run removes them, or the first run
/// after a crash.
const STAND_IN_XATTR: &str = "user.ringfence.stand_in";

/// Keeps paths protected for as long as it lives, and the stand-ins in place.
#[derive(Default)]
pub struct ProtectionGuard {
    /// Paths to cover. Each exists, is below a writable root and is reached without symbolic links;
    /// outer paths come before inner ones.
    pub covers: Vec<PathBuf>,
    stand_ins: Vec<LockedStandIn>,
}

/// A stand-in with a shared lock, so that no other server removes it.
struct LockedStandIn {
    parent: OwnedFd,
    name: OsString,
    file: File,
    /// `None` for what may become one: another server has created it and has yet to mark it.
    kind: Option<StandIn>,
}

/// A path that cannot be protected, and the reason.
#[derive(Debug)]
pub struct ProtectionError {
    pub path: PathBuf,
    pub cause: io::Error,
}

impl ProtectionGuard {
    /// Finds everything that these rights protect, and creates and locks the missing stand-ins.
    pub fn acquire(rights: &Rights) -> Result<ProtectionGuard, ProtectionError> {
        let mut guard = ProtectionGuard::default();
        for protected in protected_paths(rights) {
            let roots = rights.writable_roots().filter(|root| protected.path.starts_with(root));
            // Use the innermost root: directories above it are not ours to inspect.
            let Some(root) = roots.max_by_key(|root| root.as_os_str().len()) else { continue };
            guard
                .hold_path(root, &protected)
                .map_err(|error| ProtectionError { path: protected.path.clone(), cause: error })?;
        }
        guard.covers.sort();
        guard.covers.dedup();
        Ok(guard)
    }

    /// Removes the stand-ins that no other run holds. Returns the files of what was removed, which
    /// their file system frees when they are closed.
    pub fn remove_stand_ins(&mut self) -> Vec<File> {
        // Inner ones first; otherwise the outer directory is not empty.
        self.stand_ins.drain(..).rev().filter_map(LockedStandIn::remove_if_unused).collect()
    }

    /// Protects one path, and retries if another server removes a stand-in at the same time.
    fn hold_path(&mut self, root: &Path, protected: &ProtectedPath) -> io::Result<()> {
        for _ in 0..MAX_ATTEMPTS {
            match self.locate_or_create(root, protected)? {
                CoverLookup::Cover(path) => {
                    self.covers.push(path);
                    return Ok(());
                }
                CoverLookup::Nothing => return Ok(()),
                CoverLookup::Vanished => std::thread::sleep(RETRY_PAUSE),
            }
        }
        // A process that has kept it locked this long prevents its removal just as our own lock
        // would.
        match protected.path.symlink_metadata() {
            Ok(_) => {
                self.covers.push(protected.path.clone());
                Ok(())
            }
            Err(_) => Err(io::Error::other(
                "another process keeps removing it; stop that process and try again",
            )),
        }
    }

    /// Walks from the writable root to the protected path without following links; creates what is
    /// missing and locks what was created.
    fn locate_or_create(
        &mut self,
        root: &Path,
        protected: &ProtectedPath,
    ) -> io::Result<CoverLookup> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut directory = openat(CWD, root, flags | OFlags::DIRECTORY, Mode::empty())?;
        let mut path = root.to_owned();
        let relative_path = protected.path.strip_prefix(root).map_err(io::Error::other)?;
        let mut names = relative_path.iter().peekable();
        while let Some(name) = names.next() {
            path.push(name);
            let is_last = names.peek().is_none();
            let fd = match openat(&directory, name, flags, Mode::empty()) {
                Ok(fd) => fd,
                Err(Errno::NOENT) if protected.stand_in == StandIn::Nothing => {
                    return Ok(CoverLookup::Nothing);
                }
                Err(Errno::NOENT) => {
                    // Create missing parent directories too, so that the path in them can be
                    // covered. The parents stay writable.
                    let stand_in = if is_last { protected.stand_in } else { StandIn::Directory };
                    let locked = match create_stand_in(&directory, name, stand_in) {
                        Ok(Some(locked)) => locked,
                        Ok(None) => return Ok(CoverLookup::Vanished),
                        Err(error) => return handle_unwritable(&directory, root, &path, error),
                    };
                    directory = locked.file.try_clone()?.into();
                    self.stand_ins.push(locked);
                    match is_last {
                        true => return Ok(CoverLookup::Cover(path)),
                        false => continue,
                    }
                }
                // No file can have a name this long.
                Err(Errno::NAMETOOLONG) => return Ok(CoverLookup::Nothing),
                Err(errno) => return Err(errno.into()),
            };
            let is_directory = match FileType::from_raw_mode(fstat(&fd)?.st_mode) {
                // Cover the link itself, so that it keeps its target. The target is protected
                // separately, under its own name.
                FileType::Symlink => return Ok(CoverLookup::Cover(path)),
                kind => kind == FileType::Directory,
            };
            match lock_existing(&directory, name)? {
                LockOutcome::Locked(locked) => self.stand_ins.push(locked),
                LockOutcome::NotStandIn => {}
                LockOutcome::Gone => return Ok(CoverLookup::Vanished),
            }
            // A file where a directory is expected: while it stays there, nothing can exist below
            // it.
            if is_last || !is_directory {
                return Ok(CoverLookup::Cover(path));
            }
            directory = fd;
        }
        // It is the writable root itself, either by configuration or because a link leads there.
        Ok(CoverLookup::Nothing)
    }
}

impl Drop for ProtectionGuard {
    fn drop(&mut self) {
        drop(self.remove_stand_ins());
    }
}

/// Result of looking for a protected path.
enum CoverLookup {
    /// This path must be covered.
    Cover(PathBuf),
    /// Nothing needs protection.
    Nothing,
    /// Another process removed or created it in the meantime; try again.
    Vanished,
}

/// Returns everything that must be protected. If the server could not determine what git would
/// execute, whole repositories become read-only.
pub(crate) fn protected_paths(rights: &Rights) -> Vec<ProtectedPath> {
    let protect_whole =
        |path: &PathBuf| ProtectedPath { path: path.clone(), stand_in: StandIn::Directory };
    let for_git = match &rights.git_protected {
        Some(known) => known.clone(),
        None => rights.repositories.iter().map(protect_whole).collect(),
    };
    let for_git = for_git.into_iter().filter(|protected| !rights.is_released(&protected.path));
    rights.protected.iter().cloned().chain(for_git).collect()
}

/// Returns everything that must be covered for one path: the path itself, and every path that
/// decides where it leads.
pub fn paths_to_cover(protected: ProtectedPath) -> Vec<ProtectedPath> {
    let ProtectedPath { path, stand_in } = protected;
    let mut paths = vec![path.clone()];
    // A run may create this path, so it could create a link here. Following that link would make
    // its target read-only for all later runs.
    if stand_in != StandIn::Nothing {
        paths.extend(link_trail(&path).into_iter().filter(|other| *other != path));
    }
    paths.into_iter().map(|path| ProtectedPath { path, stand_in }).collect()
}

/// Returns every path that decides where `path` leads, as the kernel would follow it: each link on
/// the way, each directory that a link enters and leaves again, and the final target whether it
/// exists or not. A cycle of links has no target.
fn link_trail(path: &Path) -> Vec<PathBuf> {
    let (mut resolved, mut trail) = (PathBuf::from("/"), Vec::<PathBuf>::new());
    let mut rest: Vec<OsString> = path.iter().rev().map(OsString::from).collect();
    while let Some(name) = rest.pop() {
        match name.as_encoded_bytes() {
            b"/" => resolved = PathBuf::from("/"),
            b"." => {}
            b".." => {
                // Directories above a known link are already pinned together with it.
                if !trail.iter().any(|known| known.starts_with(&resolved)) {
                    trail.push(resolved.clone());
                }
                resolved.pop();
            }
            _ => {
                resolved.push(&name);
                if let Ok(target) = std::fs::read_link(&resolved) {
                    trail.push(resolved.clone());
                    if trail.len() > MAX_LINKS {
                        return trail;
                    }
                    resolved.pop();
                    rest.extend(target.iter().rev().map(OsString::from));
                }
            }
        }
    }
    trail.push(resolved);
    trail
}

/// Decides what to do where no stand-in can be created because we cannot write to the directory.
fn handle_unwritable(
    directory: &OwnedFd,
    root: &Path,
    path: &Path,
    error: io::Error,
) -> io::Result<CoverLookup> {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NAMETOOLONG) => return Ok(CoverLookup::Nothing),
        // The run cannot create it either.
        Some(Errno::ROFS) => return Ok(CoverLookup::Nothing),
        Some(Errno::ACCESS | Errno::PERM) => {}
        _ => return Err(error),
    }
    let is_ours = fstat(directory)?.st_uid == rustix::process::geteuid().as_raw();
    match path.parent().filter(|parent| *parent != root) {
        // The run could rename this directory, or change its mode if it owns it.
        Some(parent) => Ok(CoverLookup::Cover(parent.to_owned())),
        None if is_ours => Err(error),
        None => Ok(CoverLookup::Nothing),
    }
}

/// Creates and locks a stand-in. Returns `None` if another process was faster.
fn create_stand_in(
    parent: &OwnedFd,
    name: &OsStr,
    stand_in: StandIn,
) -> io::Result<Option<LockedStandIn>> {
    let created = match stand_in {
        StandIn::Nothing => return Ok(None),
        StandIn::Directory => mkdirat(parent, name, Mode::from_raw_mode(0o755)),
        StandIn::File(text) => write_new_file(parent, name, text),
    };
    match created {
        Ok(()) => {}
        Err(Errno::EXIST | Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    let Some(file) = open_locked(parent, name)? else { return Ok(None) };
    // If the mark cannot be stored, the stand-in is left behind only after a crash.
    let _ = fsetxattr(&file, STAND_IN_XATTR, b"1", XattrFlags::empty());
    LockedStandIn::new(parent, name, file, Some(stand_in)).map(Some)
}

/// Creates a file with this text; fails if the name already exists.
fn write_new_file(parent: &OwnedFd, name: &OsStr, text: StandInText) -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(parent, name, flags, Mode::from_raw_mode(0o644))?;
    rustix::io::write(&file, text.as_bytes()).map(drop)
}

/// Result of trying to lock an existing path.
enum LockOutcome {
    Locked(LockedStandIn),
    /// Not a stand-in, so no server removes it.
    NotStandIn,
    Gone,
}

/// Locks an existing path if it is a stand-in, or may be one in a moment. Only stand-ins are ever
/// removed, so nothing else needs a lock.
fn lock_existing(parent: &OwnedFd, name: &OsStr) -> io::Result<LockOutcome> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let (recognized, may_become) = match openat(parent, name, flags, Mode::empty()) {
        Ok(fd) => {
            let file = File::from(fd);
            let recognized = recognize_stand_in(&file);
            (recognized, recognized.is_none() && looks_like_stand_in(&file).is_some())
        }
        Err(Errno::NOENT) => return Ok(LockOutcome::Gone),
        // We cannot read it, so we did not create it.
        Err(_) => (None, false),
    };
    if recognized.is_none() && !may_become {
        return Ok(LockOutcome::NotStandIn);
    }
    match open_locked(parent, name)? {
        Some(file) => LockedStandIn::new(parent, name, file, recognized).map(LockOutcome::Locked),
        None => Ok(LockOutcome::Gone),
    }
}

/// Recognizes a stand-in created by any server, now or before a crash.
fn recognize_stand_in(file: &File) -> Option<StandIn> {
    let mut mark = [0; 8];
    fgetxattr(file, STAND_IN_XATTR, &mut mark).ok()?;
    match file.metadata().ok()?.is_dir() {
        true => Some(StandIn::Directory),
        false => looks_like_stand_in(file),
    }
}

/// Returns what it would stand in for, if it contains no more than a stand-in does.
fn looks_like_stand_in(file: &File) -> Option<StandIn> {
    let metadata = file.metadata().ok()?;
    if metadata.is_dir() {
        let mut entries = Dir::read_from(file).ok()?.flatten();
        let is_empty =
            entries.all(|entry| [&b"."[..], b".."].contains(&entry.file_name().to_bytes()));
        return is_empty.then_some(StandIn::Directory);
    }
    let texts = [StandInText::Empty, StandInText::Dot];
    let mut bytes = [0; 16];
    let is_short = metadata.is_file() && metadata.len() < bytes.len() as u64;
    let count = file.read_at(&mut bytes, 0).ok().filter(|_| is_short)?;
    texts.into_iter().find(|text| text.as_bytes() == &bytes[..count]).map(StandIn::File)
}

/// Opens a path and takes the shared lock that keeps others from removing it. Returns `None` if it
/// is being removed.
fn open_locked(parent: &OwnedFd, name: &OsStr) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(parent, name, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    Ok(is_still_at(parent, name, &file)?.then_some(file))
}

/// Returns whether `name` still refers to this open file.
fn is_still_at(parent: &OwnedFd, name: &OsStr, file: &File) -> io::Result<bool> {
    let file_stat = fstat(file)?;
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(name_stat) => {
            Ok((name_stat.st_dev, name_stat.st_ino) == (file_stat.st_dev, file_stat.st_ino))
        }
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

impl LockedStandIn {
    fn new(
        parent: &OwnedFd,
        name: &OsStr,
        file: File,
        kind: Option<StandIn>,
    ) -> io::Result<LockedStandIn> {
        Ok(LockedStandIn { parent: parent.try_clone()?, name: name.to_owned(), file, kind })
    }

    /// Removes the stand-in if no other run holds it and no one has put anything into it. Returns
    /// its file if it was removed.
    fn remove_if_unused(self) -> Option<File> {
        flock(&self.file, FlockOperation::NonBlockingLockExclusive).ok()?;
        let kind = self.kind.or_else(|| recognize_stand_in(&self.file))?;
        let is_untouched = match kind {
            StandIn::Nothing => false,
            StandIn::Directory => true,
            StandIn::File(text) => {
                self.file.metadata().is_ok_and(|now| now.len() == text.as_bytes().len() as u64)
            }
        };
        if is_untouched && is_still_at(&self.parent, &self.name, &self.file).unwrap_or(false) {
            let flags =
                if kind == StandIn::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            // A directory that is no longer empty stays; any other failure is ignored too.
            unlinkat(self.parent.as_fd(), &self.name, flags).ok()?;
            return Some(self.file);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a workspace in which `.own` is protected.
    fn workspace(name: &str) -> (PathBuf, Rights) {
        let folder =
            std::env::temp_dir().join(format!("ringfence-protect-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let folder = folder.canonicalize().unwrap();
        let protected =
            vec![ProtectedPath { path: folder.join(".own"), stand_in: StandIn::Directory }];
        (folder.clone(), Rights { workspace: folder, protected, ..Rights::default() })
    }

    /// Returns whether another server could remove it now.
    fn is_free(file: &File) -> bool {
        let is_free = flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
        flock(file, FlockOperation::Unlock).unwrap();
        is_free
    }

    #[test]
    fn a_stand_in_that_another_server_has_yet_to_mark_is_held() {
        let (folder, rights) = workspace("unmarked");
        std::fs::create_dir(folder.join(".own")).unwrap();
        let theirs = File::open(folder.join(".own")).unwrap();
        let guard = ProtectionGuard::acquire(&rights).unwrap();
        assert!(!is_free(&theirs), "its maker could remove it under our cover");
        // On a file system without marks its maker alone removes it.
        let is_marked = fsetxattr(&theirs, STAND_IN_XATTR, b"1", XattrFlags::empty()).is_ok();
        drop(guard);
        assert_eq!(folder.join(".own").exists(), !is_marked, "the last one removes it");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_empty_directory_of_the_user_stays() {
        let (folder, rights) = workspace("empty");
        std::fs::create_dir(folder.join(".own")).unwrap();
        drop(ProtectionGuard::acquire(&rights).unwrap());
        assert!(folder.join(".own").exists());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_stand_in_lasts_as_long_as_someone_needs_it() {
        let (folder, rights) = workspace("shared");
        let first = ProtectionGuard::acquire(&rights).unwrap();
        let second = ProtectionGuard::acquire(&rights).unwrap();
        drop(first);
        assert!(folder.join(".own").exists());
        drop(second);
        assert!(!folder.join(".own").exists());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
