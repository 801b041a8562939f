//! Protected paths on the host's side: which there are, and something that stands in for those that are missing.
//!
//! A mount point cannot be renamed, removed or replaced, so a protected path is made one. That needs something to
//! mount on: where nothing is, an empty directory or file is made, and removed when the last run has ended. Runs of
//! several servers may share one, so each holds a shared lock on it, and only who gets it alone removes it.

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

/// Somebody removes it while we take hold of it; each time it is made anew.
const ATTEMPTS: usize = 50;
const PAUSE: Duration = Duration::from_millis(1);
/// As many as the kernel follows.
const MAX_LINKS: usize = 40;
/// Marks what we have made, so that the last run removes it, or the first one after a crash.
const MARK: &str = "user.ringfence.stand_in";

/// What is protected while this lives.
#[derive(Default)]
pub struct Guard {
    /// Existing, without symbolic links, each below a writable place; an outer one comes before an inner one.
    pub covers: Vec<PathBuf>,
    held: Vec<Held>,
}

/// A protected object that nobody removes while we hold it.
struct Held {
    parent: OwnedFd,
    name: OsString,
    file: File,
    made: StandIn,
}

/// What cannot be protected, and why.
#[derive(Debug)]
pub struct Unprotected {
    pub path: PathBuf,
    pub why: io::Error,
}

impl Guard {
    pub fn take(rights: &Rights) -> Result<Guard, Unprotected> {
        let mut guard = Guard::default();
        for protected in wanted(rights) {
            let roots = rights.writable_roots().filter(|root| protected.path.starts_with(root));
            // The nearest one: what lies above it is not ours to look at.
            let Some(root) = roots.max_by_key(|root| root.as_os_str().len()) else { continue };
            guard
                .hold(root, &protected)
                .map_err(|why| Unprotected { path: protected.path.clone(), why })?;
        }
        guard.covers.sort();
        guard.covers.dedup();
        Ok(guard)
    }

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
        // Whoever holds a lock on it all this time keeps it from being removed as well as we would.
        match protected.path.symlink_metadata() {
            Ok(_) => {
                self.covers.push(protected.path.clone());
                Ok(())
            }
            Err(_) => Err(io::Error::other("it is removed again and again")),
        }
    }

    /// Walks from the writable place to the protected path, without following anything, makes what is missing and holds
    /// what was made.
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
                    // A directory on the way is made so that what lies in it can be covered, and stays open.
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
                // Nothing can have such a name.
                Err(Errno::NAMETOOLONG) => return Ok(Found::Nothing),
                Err(errno) => return Err(errno.into()),
            };
            let is_directory = match FileType::from_raw_mode(fstat(&fd)?.st_mode) {
                // It is covered itself, so that it leads where it led. What it leads to is protected by its own name.
                FileType::Symlink => return Ok(Found::Cover(path)),
                kind => kind == FileType::Directory,
            };
            match take(&here, name)? {
                Taken::Held(held) => self.held.push(held),
                Taken::NotOurs => {}
                Taken::Gone => return Ok(Found::Gone),
            }
            // A file where a directory is looked for: nothing can be below it as long as it stays.
            if last || !is_directory {
                return Ok(Found::Cover(path));
            }
            here = fd;
        }
        // It is the writable place itself: by the operator's word, or because a link leads there.
        Ok(Found::Nothing)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Inner ones first, or an outer one is not empty.
        for held in self.held.drain(..).rev() {
            held.release();
        }
    }
}

enum Found {
    Cover(PathBuf),
    /// There is nothing to protect.
    Nothing,
    /// Somebody was faster; look again.
    Gone,
}

/// Everything that has to be protected. Where the server has not found out what git would execute, the repositories are
/// closed as a whole.
fn wanted(rights: &Rights) -> Vec<Protected> {
    let whole = |path: &PathBuf| Protected { path: path.clone(), stand_in: StandIn::Directory };
    let for_git = match &rights.for_git {
        Some(known) => known.clone(),
        None => rights.repositories.iter().map(whole).collect(),
    };
    let for_git = for_git.into_iter().filter(|protected| !rights.is_unprotected(&protected.path));
    rights.protected.iter().cloned().chain(for_git).collect()
}

/// What has to be covered for one path: the path itself, and everything that decides where it leads.
pub fn real_places(protected: Protected) -> Vec<Protected> {
    let Protected { path, stand_in } = protected;
    let mut places = vec![path.clone()];
    // What a run may create may be a link of its making, which would close to later runs whatever it leads to.
    if stand_in != StandIn::Nothing {
        places.extend(trail(&path).into_iter().filter(|place| *place != path));
    }
    places.into_iter().map(|path| Protected { path, stand_in }).collect()
}

/// Everything that decides where a path leads, as the kernel would follow it: each link on the way, each directory that a
/// link enters and leaves again, and the end, whether anything is there or not. Links that lead in circles have no end.
fn trail(path: &Path) -> Vec<PathBuf> {
    let (mut real, mut trail) = (PathBuf::from("/"), Vec::<PathBuf>::new());
    let mut rest: Vec<OsString> = path.iter().rev().map(OsString::from).collect();
    while let Some(name) = rest.pop() {
        match name.as_encoded_bytes() {
            b"/" => real = PathBuf::from("/"),
            b"." => {}
            b".." => {
                // Those above a link stay in their place with it.
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

/// What is to be done where nothing can stand in, since we cannot write to the directory.
fn unwritable(
    directory: &OwnedFd,
    root: &Path,
    path: &Path,
    error: io::Error,
) -> io::Result<Found> {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NAMETOOLONG) => return Ok(Found::Nothing),
        // Nor can the run.
        Some(Errno::ROFS) => return Ok(Found::Nothing),
        Some(Errno::ACCESS | Errno::PERM) => {}
        _ => return Err(error),
    }
    let is_ours = fstat(directory)?.st_uid == rustix::process::geteuid().as_raw();
    match path.parent().filter(|above| *above != root) {
        // The run could rename it, or change its mode if it is its own.
        Some(above) => Ok(Found::Cover(above.to_owned())),
        None if is_ours => Err(error),
        None => Ok(Found::Nothing),
    }
}

/// `None` when somebody was faster.
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
    // Without room for the mark only a crash leaves it behind.
    let _ = fsetxattr(&file, MARK, b"1", XattrFlags::empty());
    Held::new(parent, name, file, stand_in).map(Some)
}

fn write_new(parent: &OwnedFd, name: &OsStr, text: Text) -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(parent, name, flags, Mode::from_raw_mode(0o644))?;
    rustix::io::write(&file, text.bytes()).map(drop)
}

enum Taken {
    Held(Held),
    /// It stands in for nothing, and nobody of us removes it.
    NotOurs,
    Gone,
}

/// What is there already. Only what stands in for something is ever removed, so only that has to be held.
fn take(parent: &OwnedFd, name: &OsStr) -> io::Result<Taken> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let marked = match openat(parent, name, flags, Mode::empty()) {
        Ok(fd) => left_by_us(&File::from(fd)),
        Err(Errno::NOENT) => return Ok(Taken::Gone),
        // What we cannot read we did not make.
        Err(_) => None,
    };
    let Some(stand_in) = marked else { return Ok(Taken::NotOurs) };
    match open_locked(parent, name)? {
        Some(file) => Held::new(parent, name, file, stand_in).map(Taken::Held),
        None => Ok(Taken::Gone),
    }
}

/// What one of us has made, now or before a crash.
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

/// Opens it and holds the lock that keeps others from removing it; `None` when it is being removed.
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

    /// Removes what we have made, if nobody else holds it and nobody has put anything into it.
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
            // A directory that is no longer empty stays, and so does anything else that does not go.
            let _ = unlinkat(self.parent.as_fd(), &self.name, flags);
        }
    }
}
