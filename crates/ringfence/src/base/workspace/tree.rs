//! Walks everything below a directory, by descriptor.
//!
//! A directory is opened by its name relative to its parent's descriptor, never by a path and never
//! through a symlink, so that everything visited is inside the workspace, whatever is renamed or
//! swapped in the meantime. Anything that `file.read` would refuse is not visited. Nothing here
//! follows a link, blocks on a file or starts a program.

mod entry;
mod ignore_rules;
mod workers;

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

use super::client_limits::ClosedNames;
use super::path_walk::{PathWalk, WalkEnd};
use super::{MAX_PATH_BYTES, ObjectId, Workspace, os_error};
use crate::base::CancelToken;
use crate::base::error::Result;
pub use entry::{TreeEntry, compare_paths, escape_name};
use ignore_rules::IgnoreRules;
pub use workers::{NextSteps, TreeVisitor, WalkStop};

/// Maximum number of directories kept open for the work below them. Beyond this they are reopened
/// by their names.
const MAX_OPEN_DIRS: usize = 64;
/// More names than any caller can use; a larger directory is read in part.
const MAX_NAMES: usize = 1_000_000;
/// Enough for some hundred names at a time.
const BUFFER_BYTES: usize = 32 << 10;

/// Selection of the entries that a walk visits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalkFilter {
    /// Skip entries that `.gitignore`, `.ignore` and `.git/info/exclude` ignore.
    pub skip_ignored: bool,
    /// Visit names that begin with a dot, except `.git`.
    pub show_hidden: bool,
    /// Inverted: visit only entries that the other two would skip, and the directories leading to
    /// them.
    pub inverted: bool,
}

/// Starting point of a walk.
pub enum WalkStart {
    /// A file, open for reading, and its path.
    File(File, String),
    Tree(WorkspaceTree),
}

/// Directory tree to walk.
pub struct WorkspaceTree {
    workspace: Arc<Workspace>,
    filter: WalkFilter,
    open_dirs: Arc<AtomicUsize>,
    root: Arc<TreeDir>,
}

/// One directory of a walk.
pub struct TreeDir {
    fd: Option<CountedFd>,
    node: Arc<TreeNode>,
}

/// Facts about a directory that are known without having it open.
struct TreeNode {
    /// From the workspace; empty for the workspace itself.
    path: PathBuf,
    /// From the start of the walk.
    depth: usize,
    id: ObjectId,
    parent: Option<Arc<TreeNode>>,
    rules: Option<Arc<IgnoreRules>>,
    /// This directory or one above it is skipped by the walk's rules.
    is_skipped: bool,
}

/// An open directory, counted against [`MAX_OPEN_DIRS`].
struct CountedFd {
    fd: OwnedFd,
    count: Arc<AtomicUsize>,
}

impl CountedFd {
    fn new(fd: OwnedFd, count: &Arc<AtomicUsize>) -> CountedFd {
        count.fetch_add(1, Ordering::Relaxed);
        CountedFd { fd, count: Arc::clone(count) }
    }
}

impl Drop for CountedFd {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The visible names of a directory.
#[derive(Debug, Default)]
pub struct DirListing {
    pub entries: Vec<TreeEntry>,
    /// Number of names that the walk's rules skipped.
    pub skipped: u64,
    /// Number of paths too long to be named.
    pub too_long: u64,
    /// The directory has more names than were read.
    pub is_truncated: bool,
}

impl WorkspaceTree {
    /// Finds the starting point, following symlinks as for any path that a caller names.
    pub fn find_start(
        workspace: &Arc<Workspace>,
        path: &str,
        filter: WalkFilter,
    ) -> Result<WalkStart> {
        let (walk, end) = PathWalk::new(workspace, path)?.run(false)?;
        match end {
            WalkEnd::Directory => {
                let (names, dir) = walk.into_parts();
                let dir = reopen_readable(&dir).map_err(|errno| os_error(errno, path))?;
                Ok(WalkStart::Tree(
                    WorkspaceTree::from_dir(workspace, &names, dir, filter)
                        .map_err(|errno| os_error(errno, path))?,
                ))
            }
            WalkEnd::Object { name, fd, stat } => {
                let object =
                    super::HeldFile::from_regular(fd, &stat, walk.display_path(Some(&name)))?;
                Ok(WalkStart::File(object.open_read()?, object.path))
            }
            WalkEnd::Missing { name, rest } => Err(walk.not_found_error(&name, rest.is_empty())),
        }
    }

    fn from_dir(
        workspace: &Arc<Workspace>,
        names: &[OsString],
        dir: OwnedFd,
        filter: WalkFilter,
    ) -> rustix::io::Result<WorkspaceTree> {
        let rules =
            filter.skip_ignored.then(|| IgnoreRules::read_above(workspace, names)).flatten();
        let id = ObjectId::from_stat(&fstat(&dir)?);
        let open_dirs = Arc::new(AtomicUsize::new(0));
        let node = Arc::new(TreeNode {
            path: names.iter().collect(),
            depth: 0,
            id,
            parent: None,
            rules,
            is_skipped: false,
        });
        let root = Arc::new(TreeDir { fd: Some(CountedFd::new(dir, &open_dirs)), node });
        Ok(WorkspaceTree { workspace: Arc::clone(workspace), filter, open_dirs, root })
    }

    /// Returns the path from the workspace; empty for the workspace itself.
    pub fn path(&self) -> &Path {
        &self.root.node.path
    }

    /// Shows everything below to `visitor`, using up to `threads` threads, until the walk is
    /// complete or halted.
    pub fn walk<V: TreeVisitor>(&self, visitor: &V, threads: usize, stop: &WalkStop) {
        workers::run_workers(self, visitor, threads, stop);
    }

    /// Reopens the starting directory for one walk.
    fn reopen_root(&self) -> rustix::io::Result<TreeDir> {
        let Some(counted_fd) = &self.root.fd else { return Err(Errno::BADF) };
        let node = &self.root.node;
        let (path, rules) = (node.path.clone(), node.rules.clone());
        let node = TreeNode { path, depth: 0, id: node.id, parent: None, rules, is_skipped: false };
        Ok(TreeDir {
            fd: Some(CountedFd::new(reopen_readable(&counted_fd.fd)?, &self.open_dirs)),
            node: Arc::new(node),
        })
    }

    /// Opens a name in a directory as a directory to continue in.
    fn open_child(&self, parent: &TreeDir, entry: &TreeEntry) -> rustix::io::Result<TreeDir> {
        let name = entry.name.as_os_str();
        let fd = match &parent.fd {
            Some(counted_fd) => open_dir_at(&counted_fd.fd, name)?,
            None => open_dir_at(&self.reopen_dir(&parent.node)?, name)?,
        };
        let id = ObjectId::from_stat(&fstat(&fd)?);
        let parent_node = &parent.node;
        // A directory that contains itself, by a mount or a strange file system, is not entered
        // again.
        let is_cycle = std::iter::successors(Some(parent_node), |node| node.parent.as_ref())
            .any(|node| node.id == id);
        if self.workspace.closed_object_error(id).is_some() {
            return Err(Errno::NOENT);
        }
        if is_cycle || id.dev != parent_node.id.dev && entry::is_pseudo_file_system(&fd) {
            return Err(Errno::XDEV);
        }
        let node = TreeNode {
            path: parent_node.path.join(name),
            depth: parent_node.depth + 1,
            id,
            parent: Some(Arc::clone(parent_node)),
            rules: parent_node.rules.clone(),
            is_skipped: entry.is_skipped,
        };
        Ok(TreeDir { fd: Some(CountedFd::new(fd, &self.open_dirs)), node: Arc::new(node) })
    }

    /// Reopens a directory by the names that led to it: in one call where openat2 can refuse
    /// symlinks on the way, otherwise one name at a time.
    fn reopen_dir(&self, node: &TreeNode) -> rustix::io::Result<OwnedFd> {
        let base = &self.workspace.base;
        let openat2_result = match self.workspace.openat2.load(Ordering::Relaxed)
            && !node.path.as_os_str().is_empty()
        {
            true => {
                let resolve =
                    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
                openat2(base, &node.path, OPEN_DIR_FLAGS, Mode::empty(), resolve)
            }
            false => Err(Errno::NOSYS),
        };
        let dir = match openat2_result {
            Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN | Errno::NAMETOOLONG) => {
                let mut dir = openat(base, ".", OPEN_DIR_FLAGS, Mode::empty())?;
                for name in &node.path {
                    dir = open_dir_at(&dir, name)?;
                }
                dir
            }
            result => result?,
        };
        if ObjectId::from_stat(&fstat(&dir)?) == node.id { Ok(dir) } else { Err(Errno::NOENT) }
    }

    /// Reads the names of a directory that was just opened, and its ignore rules.
    fn read_dir(
        &self,
        directory: &mut TreeDir,
        buffer: &mut Vec<u8>,
        stop: &WalkStop,
    ) -> rustix::io::Result<DirListing> {
        let Some(counted_fd) = &directory.fd else { return Err(Errno::BADF) };
        let (mut typed_names, mut is_truncated) = (Vec::new(), false);
        buffer.reserve(BUFFER_BYTES);
        let mut names = RawDir::new(counted_fd.fd.as_fd(), spare_buffer(buffer));
        while let Some(raw_entry) = names.next() {
            let raw_entry = raw_entry?;
            let name = raw_entry.file_name().to_bytes();
            // The kernel lets no file system put a slash into a name; such a name would lead
            // elsewhere.
            if name == b"." || name == b".." || name.is_empty() || name.contains(&b'/') {
                continue;
            }
            typed_names.push((OsStr::from_bytes(name).to_owned(), raw_entry.file_type()));
            is_truncated = typed_names.len() >= MAX_NAMES
                || typed_names.len() % 1024 == 0 && stop.is_stopped();
            if is_truncated {
                break;
            }
        }
        let has_name = |expected: &str| typed_names.iter().any(|(name, _)| name == expected);
        let node = &directory.node;
        if self.filter.skip_ignored
            && (has_name(".gitignore") || has_name(".ignore") || has_name(".git"))
        {
            let dir_rules = IgnoreRules::from_dir(
                &counted_fd.fd,
                node.path.as_os_str().len(),
                node.rules.as_ref(),
            );
            // No other reference to this directory exists yet.
            if let Some(node) = Arc::get_mut(&mut directory.node) {
                node.rules = Some(Arc::new(dir_rules));
            }
        }
        Ok(DirListing { is_truncated, ..self.filter_names(directory, typed_names) })
    }

    fn filter_names(
        &self,
        directory: &TreeDir,
        typed_names: Vec<(OsString, FileType)>,
    ) -> DirListing {
        let mut listing = DirListing::default();
        let node = &directory.node;
        let closed_names = self.workspace.closed_names_in(&node.path);
        let mut path = node.path.as_os_str().as_bytes().to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        let prefix_len = path.len();
        for (name, kind) in typed_names {
            let Some(kind) = self.visible_type(directory, &closed_names, &name, kind) else {
                continue;
            };
            // Git's internal files are of no use to a caller, and very many.
            if name == ".git" {
                continue;
            }
            path.truncate(prefix_len);
            path.extend_from_slice(name.as_bytes());
            if path.len() > MAX_PATH_BYTES {
                listing.too_long += 1;
                continue;
            }
            let ignored = node
                .rules
                .as_ref()
                .and_then(|rules| rules.is_ignored(&path, kind == FileType::Directory));
            let is_skipped =
                ignored.unwrap_or(!self.filter.show_hidden && name.as_bytes().starts_with(b"."));
            listing.skipped += u64::from(is_skipped);
            let is_skipped = is_skipped || node.is_skipped;
            // In the inverted mode, directories that are not skipped are still visited: they may
            // contain skipped entries.
            let is_visible = if self.filter.inverted {
                is_skipped || kind == FileType::Directory
            } else {
                !is_skipped
            };
            if is_visible {
                listing.entries.push(TreeEntry { name, kind, is_skipped });
            }
        }
        listing
    }

    /// Returns the type of an entry, or `None` if callers may not see it.
    fn visible_type(
        &self,
        dir: &TreeDir,
        closed_names: &ClosedNames<'_>,
        name: &OsStr,
        kind: FileType,
    ) -> Option<FileType> {
        if closed_names.is_closed(name) {
            return None;
        }
        // If an object is closed under any name, every entry has to be checked.
        if kind != FileType::Unknown && !closed_names.has_closed_objects {
            return Some(kind);
        }
        let stat = dir.stat_entry(name).ok()?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        (kind == FileType::Symlink
            || self.workspace.closed_object_error(ObjectId::from_stat(&stat)).is_none())
        .then_some(kind)
    }

    /// Opens a regular file of a directory for reading.
    pub fn open_file(&self, dir: &TreeDir, name: &OsStr) -> rustix::io::Result<(File, Stat)> {
        let Some(counted_fd) = &dir.fd else { return Err(Errno::BADF) };
        // It was a regular file when its name was read. If it was replaced since, opening it with
        // these flags neither follows a link nor blocks, and the check below rejects it.
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = openat(&counted_fd.fd, name, flags, Mode::empty())?;
        let stat = fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        match self.workspace.closed_object_error(ObjectId::from_stat(&stat)) {
            Some(_) => Err(Errno::ACCESS),
            None => Ok((File::from(fd), stat)),
        }
    }
}

impl TreeDir {
    /// Returns the path from the workspace; empty for the workspace itself.
    pub fn path(&self) -> &Path {
        &self.node.path
    }

    /// Returns the depth below the start of the walk, which itself has depth 0.
    pub fn depth(&self) -> usize {
        self.node.depth
    }

    /// Returns the status of the name itself, not of a symlink's target.
    pub fn stat_entry(&self, name: &OsStr) -> rustix::io::Result<Stat> {
        let Some(counted_fd) = &self.fd else { return Err(Errno::BADF) };
        rustix::fs::statat(&counted_fd.fd, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Returns the status of the directory itself.
    pub fn stat_self(&self) -> rustix::io::Result<Stat> {
        let Some(counted_fd) = &self.fd else { return Err(Errno::BADF) };
        fstat(&counted_fd.fd)
    }

    /// Returns the text of a symlink.
    pub fn read_link(&self, name: &OsStr) -> rustix::io::Result<Vec<u8>> {
        let Some(counted_fd) = &self.fd else { return Err(Errno::BADF) };
        Ok(rustix::fs::readlinkat(&counted_fd.fd, name, Vec::new())?.into_bytes())
    }

    /// Returns the same directory without its descriptor.
    fn without_fd(&self) -> TreeDir {
        TreeDir { fd: None, node: Arc::clone(&self.node) }
    }
}

const OPEN_DIR_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// Opens a directory by a single name. Without following links it cannot leave its parent.
fn open_dir_at(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    openat(dir, name, OPEN_DIR_FLAGS, Mode::empty())
}

/// Reopens a directory so that its names can be read.
fn reopen_readable(dir: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    openat(dir, ".", OPEN_DIR_FLAGS, Mode::empty())
}

fn spare_buffer(buffer: &mut Vec<u8>) -> &mut [MaybeUninit<u8>] {
    buffer.clear();
    buffer.spare_capacity_mut()
}

/// Returns up to `max_names` names of a directory, for lookups that need nothing else.
pub(super) fn read_first_names(dir: &OwnedFd, max_names: usize) -> Vec<OsString> {
    let mut file_names = Vec::new();
    let Ok(dir) = reopen_readable(dir) else { return file_names };
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    let mut names = RawDir::new(dir.as_fd(), spare_buffer(&mut buffer));
    while let Some(Ok(raw_entry)) = names.next() {
        let name = raw_entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            file_names.push(OsStr::from_bytes(name).to_owned());
        }
        if file_names.len() >= max_names {
            break;
        }
    }
    file_names
}

/// Returns the number of threads to use for a walk.
pub fn thread_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(8)
}

impl WalkStop {
    /// Creates a halt for a walk without a time limit.
    pub fn without_deadline(cancel: &CancelToken) -> WalkStop {
        WalkStop::new(cancel.clone(), None)
    }
}

#[cfg(test)]
mod tests;
