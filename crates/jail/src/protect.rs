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
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, XattrFlags, fgetxattr, flock, fsetxattr,
    fstat, mkdirat, openat, statat, unlinkat,
};
use rustix::io::Errno;

use crate::rights::{Protected, Rights, StandIn, Text};

/// Number of attempts when another server removes a stand-in while we try to lock it; each attempt
/// creates it anew.
const ATTEMPTS: usize = 50;
const PAUSE: Duration = Duration::from_millis(1);
/// Maximum number of symbolic links in one path, the same as in the kernel.
const MAX_LINKS: usize = 40;
/// Extended attribute that marks our stand-ins, so that the last run removes them, or the first run
/// after a crash.
const MARK: &str = "user.ringfence.stand_in";

/// Keeps paths protected for as long as it lives, and the stand-ins in place.
#[derive(Default)]
pub struct Guard {
    /// Paths to cover. Each exists, is below a writable root and is reached without symbolic links;
    /// outer paths come before inner ones.
    pub covers: Vec<PathBuf>,
    held: Vec<Held>,
}

/// A stand-in with a shared lock, so that no other server removes it.
struct Held {
    parent: OwnedFd,
    name: OsString,
    file: File,
    made: StandIn,
}

/// A path that cannot be protected, and the reason.
#[derive(Debug)]
pub struct Unprotected {
    pub path: PathBuf,
    pub why: io::Error,
}

impl Guard {
    /// Finds everything that these rights protect, and creates and locks the missing stand-ins.
    pub fn take(rights: &Rights) -> Result<Guard, Unprotected> {
        let mut guard = Guard::default();
        for protected in wanted(rights) {
            let roots = rights.writable_roots().filter(|root| protected.path.starts_with(root));
            // Use the innermost root: directories above it are not ours to inspect.
            let Some(root) = roots.max_by_key(|root| root.as_os_str().len()) else { continue };
            guard
                .hold(root, &protected)
                .map_err(|why| Unprotected { path: protected.path.clone(), why })?;
        }
        guard.covers.sort();
        guard.covers.dedup();
        Ok(guard)
    }

    /// Protects one path, and retries if another server removes a stand-in at the same time.
    fn hold(&mut self, root: &Path, protected: &Protected) -> io::Result<()> {
        for _ in 0..ATTEMPTS {
            match self.find(root, protected)? {
                Found::Cover(path) => {
                    self.covers.push(path);
                    return Ok(());
                }
                Found::Nothing => return Ok(()),
                Found::Gone => std::thread::sleep(PAUSE),
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
    fn find(&mut self, root: &Path, protected: &Protected) -> io::Result<Found> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut here = openat(CWD, root, flags | OFlags::DIRECTORY, Mode::empty())?;
        let mut path = root.to_owned();
        let below = protected.path.strip_prefix(root).map_err(io::Error::other)?;
        let mut names = below.iter().peekable();
        while let Some(name) = names.next() {
            path.push(name);
            let last = names.peek().is_none();
            let fd = match openat(&here, name, flags, Mode::empty()) {
                Ok(fd) => fd,
                Err(Errno::NOENT) if protected.stand_in == StandIn::Nothing => {
                    return Ok(Found::Nothing);
                }
                Err(Errno::NOENT) => {
                    // Create missing parent directories too, so that the path in them can be
                    // covered. The parents stay writable.
                    let stand_in = if last { protected.stand_in } else { StandIn::Directory };
                    let held = match make(&here, name, stand_in) {
                        Ok(Some(held)) => held,
                        Ok(None) => return Ok(Found::Gone),
                        Err(error) => return unwritable(&here, root, &path, error),
                    };
                    here = held.file.try_clone()?.into();
                    self.held.push(held);
                    match last {
                        true => return Ok(Found::Cover(path)),
                        false => continue,
                    }
                }
                // No file can have a name this long.
                Err(Errno::NAMETOOLONG) => return Ok(Found::Nothing),
                Err(errno) => return Err(errno.into()),
            };
            let is_directory = match FileType::from_raw_mode(fstat(&fd)?.st_mode) {
                // Cover the link itself, so that it keeps its target. The target is protected
                // separately, under its own name.
                FileType::Symlink => return Ok(Found::Cover(path)),
                kind => kind == FileType::Directory,
            };
            match take(&here, name)? {
                Taken::Held(held) => self.held.push(held),
                Taken::NotOurs => {}
                Taken::Gone => return Ok(Found::Gone),
            }
            // A file where a directory is expected: while it stays there, nothing can exist below
            // it.
            if last || !is_directory {
                return Ok(Found::Cover(path));
            }
            here = fd;
        }
        // It is the writable root itself, either by configuration or because a link leads there.
        Ok(Found::Nothing)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Inner ones first; otherwise the outer directory is not empty.
        for held in self.held.drain(..).rev() {
            held.release();
        }
    }
}

/// Result of looking for a protected path.
enum Found {
    /// This path must be covered.
    Cover(PathBuf),
    /// Nothing needs protection.
    Nothing,
    /// Another process removed or created it in the meantime; try again.
    Gone,
}

/// Returns everything that must be protected. If the server could not determine what git would
/// execute, whole repositories become read-only.
fn wanted(rights: &Rights) -> Vec<Protected> {
    let whole = |path: &PathBuf| Protected { path: path.clone(), stand_in: StandIn::Directory };
    let for_git = match &rights.for_git {
        Some(known) => known.clone(),
        None => rights.repositories.iter().map(whole).collect(),
    };
    let for_git = for_git.into_iter().filter(|protected| !rights.is_unprotected(&protected.path));
    rights.protected.iter().cloned().chain(for_git).collect()
}

/// Returns everything that must be covered for one path: the path itself, and every path that
/// decides where it leads.
pub fn real_places(protected: Protected) -> Vec<Protected> {
    let Protected { path, stand_in } = protected;
    let mut places = vec![path.clone()];
    // A run may create this path, so it could create a link here. Following that link would make
    // its target read-only for all later runs.
    if stand_in != StandIn::Nothing {
        places.extend(trail(&path).into_iter().filter(|place| *place != path));
    }
    places.into_iter().map(|path| Protected { path, stand_in }).collect()
}

/// Returns every path that decides where `path` leads, as the kernel would follow it: each link on
/// the way, each directory that a link enters and leaves again, and the final target whether it
/// exists or not. A cycle of links has no target.
fn trail(path: &Path) -> Vec<PathBuf> {
    let (mut real, mut trail) = (PathBuf::from("/"), Vec::<PathBuf>::new());
    let mut rest: Vec<OsString> = path.iter().rev().map(OsString::from).collect();
    while let Some(name) = rest.pop() {
        match name.as_encoded_bytes() {
            b"/" => real = PathBuf::from("/"),
            b"." => {}
            b".." => {
                // Directories above a known link are already pinned together with it.
                if !trail.iter().any(|known| known.starts_with(&real)) {
                    trail.push(real.clone());
                }
                real.pop();
            }
            _ => {
                real.push(&name);
                if let Ok(target) = std::fs::read_link(&real) {
                    trail.push(real.clone());
                    if trail.len() > MAX_LINKS {
                        return trail;
                    }
                    real.pop();
                    rest.extend(target.iter().rev().map(OsString::from));
                }
            }
        }
    }
    trail.push(real);
    trail
}

/// Decides what to do where no stand-in can be created because we cannot write to the directory.
fn unwritable(
    directory: &OwnedFd,
    root: &Path,
    path: &Path,
    error: io::Error,
) -> io::Result<Found> {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NAMETOOLONG) => return Ok(Found::Nothing),
        // The run cannot create it either.
        Some(Errno::ROFS) => return Ok(Found::Nothing),
        Some(Errno::ACCESS | Errno::PERM) => {}
        _ => return Err(error),
    }
    let is_ours = fstat(directory)?.st_uid == rustix::process::geteuid().as_raw();
    match path.parent().filter(|above| *above != root) {
        // The run could rename this directory, or change its mode if it owns it.
        Some(above) => Ok(Found::Cover(above.to_owned())),
        None if is_ours => Err(error),
        None => Ok(Found::Nothing),
    }
}

/// Creates and locks a stand-in. Returns `None` if another process was faster.
fn make(parent: &OwnedFd, name: &OsStr, stand_in: StandIn) -> io::Result<Option<Held>> {
    let made = match stand_in {
        StandIn::Nothing => return Ok(None),
        StandIn::Directory => mkdirat(parent, name, Mode::from_raw_mode(0o755)),
        StandIn::File(text) => write_new(parent, name, text),
    };
    match made {
        Ok(()) => {}
        Err(Errno::EXIST | Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    let Some(file) = open_locked(parent, name)? else { return Ok(None) };
    // If the mark cannot be stored, the stand-in is left behind only after a crash.
    let _ = fsetxattr(&file, MARK, b"1", XattrFlags::empty());
    Held::new(parent, name, file, stand_in).map(Some)
}

/// Creates a file with this text; fails if the name already exists.
fn write_new(parent: &OwnedFd, name: &OsStr, text: Text) -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(parent, name, flags, Mode::from_raw_mode(0o644))?;
    rustix::io::write(&file, text.bytes()).map(drop)
}

/// Result of trying to lock an existing path.
enum Taken {
    Held(Held),
    /// Not a stand-in, so no server removes it.
    NotOurs,
    Gone,
}

/// Locks an existing path if it is a stand-in. Only stand-ins are ever removed, so nothing else
/// needs a lock.
fn take(parent: &OwnedFd, name: &OsStr) -> io::Result<Taken> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let marked = match openat(parent, name, flags, Mode::empty()) {
        Ok(fd) => left_by_us(&File::from(fd)),
        Err(Errno::NOENT) => return Ok(Taken::Gone),
        // We cannot read it, so we did not create it.
        Err(_) => None,
    };
    let Some(stand_in) = marked else { return Ok(Taken::NotOurs) };
    match open_locked(parent, name)? {
        Some(file) => Held::new(parent, name, file, stand_in).map(Taken::Held),
        None => Ok(Taken::Gone),
    }
}

/// Recognizes a stand-in created by any server, now or before a crash.
fn left_by_us(file: &File) -> Option<StandIn> {
    let mut mark = [0; 8];
    fgetxattr(file, MARK, &mut mark).ok()?;
    let metadata = file.metadata().ok()?;
    if metadata.is_dir() {
        return Some(StandIn::Directory);
    }
    let mut bytes = Vec::new();
    file.take(16).read_to_end(&mut bytes).ok()?;
    [Text::Empty, Text::Dot].into_iter().find(|text| text.bytes() == bytes).map(StandIn::File)
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
    Ok(is_still(parent, name, &file)?.then_some(file))
}

/// Returns whether `name` still refers to this open file.
fn is_still(parent: &OwnedFd, name: &OsStr, file: &File) -> io::Result<bool> {
    let ours = fstat(file)?;
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => Ok((there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

impl Held {
    fn new(parent: &OwnedFd, name: &OsStr, file: File, made: StandIn) -> io::Result<Held> {
        Ok(Held { parent: parent.try_clone()?, name: name.to_owned(), file, made })
    }

    /// Removes the stand-in if no other run holds it and no one has put anything into it.
    fn release(self) {
        if flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        let untouched = match self.made {
            StandIn::Nothing => false,
            StandIn::Directory => true,
            StandIn::File(text) => {
                self.file.metadata().is_ok_and(|now| now.len() == text.bytes().len() as u64)
            }
        };
        if untouched && is_still(&self.parent, &self.name, &self.file).unwrap_or(false) {
            let flags =
                if self.made == StandIn::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            // A directory that is no longer empty stays; any other failure is ignored too.
            let _ = unlinkat(self.parent.as_fd(), &self.name, flags);
        }
    }
}
