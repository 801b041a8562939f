//! Walks everything below a directory, by descriptor.
//!
//! A directory is opened by its name relative to its parent's descriptor, never by a path and never
//! through a symlink, so that everything visited is inside the workspace, whatever is renamed or
//! swapped in the meantime. Anything that `file.read` would refuse is not visited. Nothing here
//! follows a link, blocks on a file or starts a program.

mod crew;
mod entry;
mod rules;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{FileType, Mode, OFlags, RawDir, ResolveFlags, Stat, fstat, openat, openat2};
use rustix::io::Errno;

use super::client::Shutters;
use super::walk::{End, Walk};
use super::{Id, MAX_PATH_BYTES, Workspace, os_error};
use crate::base::Cancel;
use crate::base::error::Result;
pub use crew::{Halt, Next, Visitor};
pub use entry::{Entry, in_a_line, order};
use rules::Rules;

/// Maximum number of directories kept open for the work below them. Beyond this they are reopened
/// by their names.
const MAX_HELD: usize = 64;
/// More names than any caller can use; a larger directory is read in part.
const MAX_NAMES: usize = 1_000_000;
/// Enough for some hundred names at a time.
const BUFFER_BYTES: usize = 32 << 10;

/// Selection of the entries that a walk visits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sight {
    /// Skip entries that `.gitignore`, `.ignore` and `.git/info/exclude` ignore.
    pub gitignore: bool,
    /// Visit names that begin with a dot, except `.git`.
    pub hidden: bool,
    /// Inverted: visit only entries that the other two would skip, and the directories leading to
    /// them.
    pub left_out: bool,
}

/// Starting point of a walk.
pub enum Start {
    /// A file, open for reading, and its path.
    File(File, String),
    Tree(Tree),
}

/// Directory tree to walk.
pub struct Tree {
    workspace: Arc<Workspace>,
    sight: Sight,
    held: Arc<AtomicUsize>,
    root: Arc<Directory>,
}

/// One directory of a walk.
pub struct Directory {
    fd: Option<Held>,
    spot: Arc<Spot>,
}

/// Facts about a directory that are known without having it open.
struct Spot {
    /// From the workspace; empty for the workspace itself.
    path: PathBuf,
    /// From the start of the walk.
    depth: usize,
    id: Id,
    above: Option<Arc<Spot>>,
    rules: Option<Arc<Rules>>,
    /// This directory or one above it is skipped by the walk's rules.
    left_out: bool,
}

/// An open directory, counted against [`MAX_HELD`].
struct Held {
    fd: OwnedFd,
    count: Arc<AtomicUsize>,
}

impl Held {
    fn new(fd: OwnedFd, count: &Arc<AtomicUsize>) -> Held {
        count.fetch_add(1, Ordering::Relaxed);
        Held { fd, count: Arc::clone(count) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The visible names of a directory.
#[derive(Debug, Default)]
pub struct Seen {
    pub entries: Vec<Entry>,
    /// Number of names that the walk's rules skipped.
    pub left_out: u64,
    /// Number of paths too long to be named.
    pub too_long: u64,
    /// The directory has more names than were read.
    pub cut: bool,
}

impl Tree {
    /// Finds the starting point, following symlinks as for any path that a caller names.
    pub fn at(workspace: &Arc<Workspace>, path: &str, sight: Sight) -> Result<Start> {
        let (walk, end) = Walk::new(workspace, path)?.run(false)?;
        match end {
            End::Directory => {
                let (names, dir) = walk.into_parts();
                let dir = readable(&dir).map_err(|errno| os_error(errno, path))?;
                Ok(Start::Tree(
                    Tree::begin(workspace, &names, dir, sight)
                        .map_err(|errno| os_error(errno, path))?,
                ))
            }
            End::Object { name, fd, stat } => {
                let object = super::Object::regular(fd, &stat, walk.shown(Some(&name)))?;
                Ok(Start::File(object.open_read()?, object.path))
            }
            End::Missing { name, rest } => Err(walk.no_such(&name, rest.is_empty())),
        }
    }

    fn begin(
        workspace: &Arc<Workspace>,
        names: &[OsString],
        dir: OwnedFd,
        sight: Sight,
    ) -> rustix::io::Result<Tree> {
        let rules = sight.gitignore.then(|| Rules::above(workspace, names)).flatten();
        let id = Id::of(&fstat(&dir)?);
        let held = Arc::new(AtomicUsize::new(0));
        let spot = Arc::new(Spot {
            path: names.iter().collect(),
            depth: 0,
            id,
            above: None,
            rules,
            left_out: false,
        });
        let root = Arc::new(Directory { fd: Some(Held::new(dir, &held)), spot });
        Ok(Tree { workspace: Arc::clone(workspace), sight, held, root })
    }

    /// Returns the path from the workspace; empty for the workspace itself.
    pub fn path(&self) -> &Path {
        &self.root.spot.path
    }

    /// Shows everything below to `visitor`, using up to `threads` threads, until the walk is
    /// complete or halted.
    pub fn walk<V: Visitor>(&self, visitor: &V, threads: usize, halt: &Halt) {
        crew::run(self, visitor, threads, halt);
    }

    /// Reopens the starting directory for one walk.
    fn again(&self) -> rustix::io::Result<Directory> {
        let Some(held) = &self.root.fd else { return Err(Errno::BADF) };
        let spot = &self.root.spot;
        let (path, rules) = (spot.path.clone(), spot.rules.clone());
        let spot = Spot { path, depth: 0, id: spot.id, above: None, rules, left_out: false };
        Ok(Directory { fd: Some(Held::new(readable(&held.fd)?, &self.held)), spot: Arc::new(spot) })
    }

    /// Opens a name in a directory as a directory to continue in.
    fn open(&self, parent: &Directory, entry: &Entry) -> rustix::io::Result<Directory> {
        let name = entry.name.as_os_str();
        let fd = match &parent.fd {
            Some(held) => open_in(&held.fd, name)?,
            None => open_in(&self.find(&parent.spot)?, name)?,
        };
        let id = Id::of(&fstat(&fd)?);
        let above = &parent.spot;
        // A directory that contains itself, by a mount or a strange file system, is not entered
        // again.
        let again = std::iter::successors(Some(above), |spot| spot.above.as_ref())
            .any(|spot| spot.id == id);
        if self.workspace.shut_object(id).is_some() {
            return Err(Errno::NOENT);
        }
        if again || id.dev != above.id.dev && entry::is_machinery(&fd) {
            return Err(Errno::XDEV);
        }
        let spot = Spot {
            path: above.path.join(name),
            depth: above.depth + 1,
            id,
            above: Some(Arc::clone(above)),
            rules: above.rules.clone(),
            left_out: entry.left_out,
        };
        Ok(Directory { fd: Some(Held::new(fd, &self.held)), spot: Arc::new(spot) })
    }

    /// Reopens a directory by the names that led to it: in one call where openat2 can refuse
    /// symlinks on the way, otherwise one name at a time.
    fn find(&self, spot: &Spot) -> rustix::io::Result<OwnedFd> {
        let base = &self.workspace.base;
        let straight = match self.workspace.openat2.load(Ordering::Relaxed)
            && !spot.path.as_os_str().is_empty()
        {
            true => {
                let resolve =
                    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
                openat2(base, &spot.path, DIRECTORY, Mode::empty(), resolve)
            }
            false => Err(Errno::NOSYS),
        };
        let dir = match straight {
            Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN | Errno::NAMETOOLONG) => {
                let mut dir = openat(base, ".", DIRECTORY, Mode::empty())?;
                for name in &spot.path {
                    dir = open_in(&dir, name)?;
                }
                dir
            }
            decided => decided?,
        };
        if Id::of(&fstat(&dir)?) == spot.id { Ok(dir) } else { Err(Errno::NOENT) }
    }

    /// Reads the names of a directory that was just opened, and its ignore rules.
    fn read(
        &self,
        directory: &mut Directory,
        buffer: &mut Vec<u8>,
        halt: &Halt,
    ) -> rustix::io::Result<Seen> {
        let Some(held) = &directory.fd else { return Err(Errno::BADF) };
        let (mut found, mut cut) = (Vec::new(), false);
        buffer.reserve(BUFFER_BYTES);
        let mut names = RawDir::new(held.fd.as_fd(), spare(buffer));
        while let Some(next) = names.next() {
            let next = next?;
            let name = next.file_name().to_bytes();
            // The kernel lets no file system put a slash into a name; such a name would lead
            // elsewhere.
            if name == b"." || name == b".." || name.is_empty() || name.contains(&b'/') {
                continue;
            }
            found.push((OsStr::from_bytes(name).to_owned(), next.file_type()));
            cut = found.len() >= MAX_NAMES || found.len() % 1024 == 0 && halt.is_called();
            if cut {
                break;
            }
        }
        let is = |wanted: &str| found.iter().any(|(name, _)| name == wanted);
        let spot = &directory.spot;
        if self.sight.gitignore && (is(".gitignore") || is(".ignore") || is(".git")) {
            let own = Rules::of(&held.fd, spot.path.as_os_str().len(), spot.rules.as_ref());
            // No other reference to this directory exists yet.
            if let Some(spot) = Arc::get_mut(&mut directory.spot) {
                spot.rules = Some(Arc::new(own));
            }
        }
        Ok(Seen { cut, ..self.choose(directory, found) })
    }

    fn choose(&self, directory: &Directory, found: Vec<(OsString, FileType)>) -> Seen {
        let mut seen = Seen::default();
        let spot = &directory.spot;
        let shutters = self.workspace.shutters(&spot.path);
        let mut path = spot.path.as_os_str().as_bytes().to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        let above = path.len();
        for (name, kind) in found {
            let Some(kind) = self.kind_of(directory, &shutters, &name, kind) else { continue };
            // Git's internal files are of no use to a caller, and very many.
            if name == ".git" {
                continue;
            }
            path.truncate(above);
            path.extend_from_slice(name.as_bytes());
            if path.len() > MAX_PATH_BYTES {
                seen.too_long += 1;
                continue;
            }
            let verdict = spot
                .rules
                .as_ref()
                .and_then(|rules| rules.judge(&path, kind == FileType::Directory));
            let left_out =
                verdict.unwrap_or(!self.sight.hidden && name.as_bytes().starts_with(b"."));
            seen.left_out += u64::from(left_out);
            let left_out = left_out || spot.left_out;
            // In the inverted mode, directories that are not skipped are still visited: they may
            // contain skipped entries.
            let seen_now = if self.sight.left_out {
                left_out || kind == FileType::Directory
            } else {
                !left_out
            };
            if seen_now {
                seen.entries.push(Entry { name, kind, left_out });
            }
        }
        seen
    }

    /// Returns the type of an entry, or `None` if callers may not see it.
    fn kind_of(
        &self,
        dir: &Directory,
        shutters: &Shutters<'_>,
        name: &OsStr,
        kind: FileType,
    ) -> Option<FileType> {
        if shutters.shut(name) {
            return None;
        }
        // If an object is closed under any name, every entry has to be checked.
        if kind != FileType::Unknown && !shutters.by_object {
            return Some(kind);
        }
        let stat = dir.stat(name).ok()?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        (kind == FileType::Symlink || self.workspace.shut_object(Id::of(&stat)).is_none())
            .then_some(kind)
    }

    /// Opens a regular file of a directory for reading.
    pub fn open_file(&self, dir: &Directory, name: &OsStr) -> rustix::io::Result<(File, Stat)> {
        let Some(held) = &dir.fd else { return Err(Errno::BADF) };
        // It was a regular file when its name was read. If it was replaced since, opening it with
        // these flags neither follows a link nor blocks, and the check below rejects it.
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = openat(&held.fd, name, flags, Mode::empty())?;
        let stat = fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        match self.workspace.shut_object(Id::of(&stat)) {
            Some(_) => Err(Errno::ACCESS),
            None => Ok((File::from(fd), stat)),
        }
    }
}

impl Directory {
    /// Returns the path from the workspace; empty for the workspace itself.
    pub fn path(&self) -> &Path {
        &self.spot.path
    }

    /// Returns the depth below the start of the walk, which itself has depth 0.
    pub fn depth(&self) -> usize {
        self.spot.depth
    }

    /// Returns the status of the name itself, not of a symlink's target.
    pub fn stat(&self, name: &OsStr) -> rustix::io::Result<Stat> {
        let Some(held) = &self.fd else { return Err(Errno::BADF) };
        rustix::fs::statat(&held.fd, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Returns the status of the directory itself.
    pub fn own_stat(&self) -> rustix::io::Result<Stat> {
        let Some(held) = &self.fd else { return Err(Errno::BADF) };
        fstat(&held.fd)
    }

    /// Returns the text of a symlink.
    pub fn target(&self, name: &OsStr) -> rustix::io::Result<Vec<u8>> {
        let Some(held) = &self.fd else { return Err(Errno::BADF) };
        Ok(rustix::fs::readlinkat(&held.fd, name, Vec::new())?.into_bytes())
    }

    /// Returns the same directory without its descriptor.
    fn released(&self) -> Directory {
        Directory { fd: None, spot: Arc::clone(&self.spot) }
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// Opens a directory by a single name. Without following links it cannot leave its parent.
fn open_in(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    openat(dir, name, DIRECTORY, Mode::empty())
}

/// Reopens a directory so that its names can be read.
fn readable(dir: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    openat(dir, ".", DIRECTORY, Mode::empty())
}

fn spare(buffer: &mut Vec<u8>) -> &mut [MaybeUninit<u8>] {
    buffer.clear();
    buffer.spare_capacity_mut()
}

/// Returns up to `most` names of a directory, for lookups that need nothing else.
pub(super) fn first_names(dir: &OwnedFd, most: usize) -> Vec<OsString> {
    let mut found = Vec::new();
    let Ok(dir) = readable(dir) else { return found };
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    let mut names = RawDir::new(dir.as_fd(), spare(&mut buffer));
    while let Some(Ok(next)) = names.next() {
        let name = next.file_name().to_bytes();
        if name != b"." && name != b".." {
            found.push(OsStr::from_bytes(name).to_owned());
        }
        if found.len() >= most {
            break;
        }
    }
    found
}

/// Returns the number of threads to use for a walk.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(8)
}

impl Halt {
    /// Creates a halt for a walk without a time limit.
    pub fn with(cancel: &Cancel) -> Halt {
        Halt::new(cancel.clone(), None)
    }
}

#[cfg(test)]
mod tests;
