//! A walk over everything below a directory, by descriptor.
//!
//! A directory is opened by its name in its parent's descriptor, never by a path and never through a symlink, so
//! that whatever is renamed or swapped meanwhile, what is seen lies in the workspace. What `file.read` would refuse
//! is not seen at all. Nothing here follows, blocks on or starts anything.

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

/// Directories that are kept open for what lies below them. Past this they are found again by their names.
const MAX_HELD: usize = 64;
/// More names than anybody can use; a directory with more is seen in part.
const MAX_NAMES: usize = 1_000_000;
/// Enough for some hundred names at a time.
const BUFFER_BYTES: usize = 32 << 10;

/// What of a tree is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sight {
    /// What `.gitignore`, `.ignore` and `.git/info/exclude` leave out is left out.
    pub gitignore: bool,
    /// Names that begin with a dot are seen, but for `.git`.
    pub hidden: bool,
    /// The other way round: nothing is seen but what the two would leave out, and the way there.
    pub left_out: bool,
}

/// Where a walk begins.
pub enum Start {
    /// A file, open for reading, and its path.
    File(File, String),
    Tree(Tree),
}

/// A directory to walk over.
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

/// What is known of a directory without having it open.
struct Spot {
    /// From the workspace, empty for the workspace itself.
    path: PathBuf,
    /// From the walk's beginning.
    depth: usize,
    id: Id,
    above: Option<Arc<Spot>>,
    rules: Option<Arc<Rules>>,
    /// It or one above it is left out by the rules of the sight.
    left_out: bool,
}

/// An open directory that is counted.
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

/// The names of a directory that may be seen.
#[derive(Debug, Default)]
pub struct Seen {
    pub entries: Vec<Entry>,
    /// How many names the rules of the sight left out.
    pub left_out: u64,
    /// Paths that are too long to be named.
    pub too_long: u64,
    /// There are more names than were read.
    pub cut: bool,
}

impl Tree {
    /// Finds where to begin. Through symlinks, as any path that a caller names.
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

    /// From the workspace; empty for the workspace itself.
    pub fn path(&self) -> &Path {
        &self.root.spot.path
    }

    /// Shows everything below to `visitor`, with up to `threads` threads, until it ends or is told to.
    pub fn walk<V: Visitor>(&self, visitor: &V, threads: usize, halt: &Halt) {
        crew::run(self, visitor, threads, halt);
    }

    /// The first directory, for one walk.
    fn again(&self) -> rustix::io::Result<Directory> {
        let Some(held) = &self.root.fd else { return Err(Errno::BADF) };
        let spot = &self.root.spot;
        let (path, rules) = (spot.path.clone(), spot.rules.clone());
        let spot = Spot { path, depth: 0, id: spot.id, above: None, rules, left_out: false };
        Ok(Directory { fd: Some(Held::new(readable(&held.fd)?, &self.held)), spot: Arc::new(spot) })
    }

    /// Opens a name of a directory as a directory to go on in.
    fn open(&self, parent: &Directory, entry: &Entry) -> rustix::io::Result<Directory> {
        let name = entry.name.as_os_str();
        let fd = match &parent.fd {
            Some(held) => open_in(&held.fd, name)?,
            None => open_in(&self.find(&parent.spot)?, name)?,
        };
        let id = Id::of(&fstat(&fd)?);
        let above = &parent.spot;
        // One that holds itself, by a mount or a strange file system, is not entered again.
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

    /// Opens a directory again by the names that led to it: at once where the kernel takes no symlink on the way,
    /// else each name as a step of its own.
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

    /// Reads the names of a directory that was just opened, and its rules.
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
            // The kernel lets no file system put a slash into a name; one that did would lead elsewhere.
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
            // Nobody else has this directory yet.
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
            // What git keeps for itself is nobody's text, and endless.
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
            // Of what is not left out only directories are wanted then: there may be something in them.
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

    /// What it is, unless it is nothing that a caller may see.
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
        // Where an object is shut under whatever name, each has to be looked at.
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
        // It was a regular file when its name was read. Should it be something else by now, then opening it this way
        // neither follows nor blocks, and it is not used.
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
    /// From the workspace; empty for the workspace itself.
    pub fn path(&self) -> &Path {
        &self.spot.path
    }

    /// How far below the walk's beginning; 0 for that itself.
    pub fn depth(&self) -> usize {
        self.spot.depth
    }

    /// Of the very name, not of what a symlink leads to.
    pub fn stat(&self, name: &OsStr) -> rustix::io::Result<Stat> {
        let Some(held) = &self.fd else { return Err(Errno::BADF) };
        rustix::fs::statat(&held.fd, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Of the directory itself.
    pub fn own_stat(&self) -> rustix::io::Result<Stat> {
        let Some(held) = &self.fd else { return Err(Errno::BADF) };
        fstat(&held.fd)
    }

    /// The text of a symlink.
    pub fn target(&self, name: &OsStr) -> rustix::io::Result<Vec<u8>> {
        let Some(held) = &self.fd else { return Err(Errno::BADF) };
        Ok(rustix::fs::readlinkat(&held.fd, name, Vec::new())?.into_bytes())
    }

    /// The same without its descriptor.
    fn released(&self) -> Directory {
        Directory { fd: None, spot: Arc::clone(&self.spot) }
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// A single name that is not followed cannot leave its directory.
fn open_in(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    openat(dir, name, DIRECTORY, Mode::empty())
}

/// The same directory, opened so that its names can be read.
fn readable(dir: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    openat(dir, ".", DIRECTORY, Mode::empty())
}

fn spare(buffer: &mut Vec<u8>) -> &mut [MaybeUninit<u8>] {
    buffer.clear();
    buffer.spare_capacity_mut()
}

/// The names of a directory, as many as wanted: for those who look for one and nothing else.
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

/// How many threads a search is worth.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(8)
}

impl Halt {
    /// For walks that end by themselves.
    pub fn with(cancel: &Cancel) -> Halt {
        Halt::new(cancel.clone(), None)
    }
}

#[cfg(test)]
mod tests;
