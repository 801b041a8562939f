//! Walks from the workspace's descriptor to the object that a path names.
//!
//! Symlinks are read and their text is walked in turn, so the kernel never follows one for us, and
//! a link's target is subject to the same rules as a caller's path. Only the current directory is
//! held open: a deep path needs no more descriptors than a shallow one.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, mkdirat, openat};
use rustix::io::Errno;

use super::{
    ObjectId, Workspace, check_path_text, os_error, outside_error, protected_error, quick_read,
    read_link_target, suggest_path,
};
use crate::base::error::{Error, Result};

/// As many symlinks as the kernel itself follows.
const MAX_LINKS: usize = 40;
/// Maximum length of a name in bytes, on every Linux file system.
const MAX_NAME_BYTES: usize = 255;
/// More directories than a path can name: someone is removing them as fast as we create them.
const MAX_CREATED_DIRS: usize = 4096;

pub(super) struct PathWalk<'w> {
    workspace: &'w Workspace,
    /// The caller's path, for messages.
    requested_path: &'w str,
    current_dir: OwnedFd,
    /// From the workspace (exclusive) down to the current directory.
    levels: Vec<WalkLevel>,
    /// Steps left to walk, the next one last.
    remaining_steps: Vec<WalkStep>,
    links_followed: usize,
    dirs_created: usize,
    /// The walk refuses protected paths.
    for_writing: bool,
    /// The walk fails where it would have to wait for a disk, or leaves the file system.
    without_waiting: bool,
}

pub(super) struct WalkLevel {
    pub name: OsString,
    id: ObjectId,
}

enum WalkStep {
    Up,
    Down(OsString),
}

/// Result of a walk.
pub(super) enum WalkEnd {
    /// The walk's current directory.
    Directory,
    /// Anything that is neither a directory nor a symlink, in the current directory.
    Object { name: OsString, fd: OwnedFd, stat: Stat },
    /// `name` does not exist in the current directory; `rest` would be below it.
    Missing { name: OsString, rest: Vec<OsString> },
}

impl<'w> PathWalk<'w> {
    /// Starts a walk to a path that is to be read.
    pub fn new(workspace: &'w Workspace, requested_path: &'w str) -> Result<PathWalk<'w>> {
        check_path_text(requested_path)?;
        let current_dir = reopen_base(workspace, requested_path)?;
        let mut walk = PathWalk {
            workspace,
            requested_path,
            current_dir,
            levels: Vec::new(),
            remaining_steps: Vec::new(),
            links_followed: 0,
            dirs_created: 0,
            for_writing: false,
            without_waiting: false,
        };
        walk.queue_path(Path::new(requested_path))?;
        Ok(walk)
    }

    /// Starts a walk to a path that is to be written.
    pub fn for_writing(workspace: &'w Workspace, requested_path: &'w str) -> Result<PathWalk<'w>> {
        Ok(PathWalk { for_writing: true, ..PathWalk::new(workspace, requested_path)? })
    }

    /// Starts a walk that fails wherever it would have to wait: its errors say nothing about the
    /// path.
    pub fn without_waiting(
        workspace: &'w Workspace,
        requested_path: &'w str,
    ) -> Result<PathWalk<'w>> {
        Ok(PathWalk { without_waiting: true, ..PathWalk::new(workspace, requested_path)? })
    }

    /// Walks to the end, creating missing directories on the way if `create` is set.
    pub fn run(mut self, create: bool) -> Result<(PathWalk<'w>, WalkEnd)> {
        while let Some(step) = self.remaining_steps.pop() {
            let end = match step {
                WalkStep::Up => self.climb_up()?,
                WalkStep::Down(name) => self.enter_name(name, create)?,
            };
            if let Some(end) = end {
                return Ok((self, end));
            }
        }
        Ok((self, WalkEnd::Directory))
    }

    /// Returns the current directory's descriptor.
    pub fn into_dir(self) -> OwnedFd {
        self.current_dir
    }

    /// Returns the names from the workspace down to the current directory, and its descriptor.
    pub fn into_parts(self) -> (Vec<OsString>, OwnedFd) {
        (self.levels.into_iter().map(|level| level.name).collect(), self.current_dir)
    }

    /// Returns the error for a name that does not exist in the current directory, with similar
    /// names.
    pub fn not_found_error(&self, name: &OsStr, is_last: bool) -> Error {
        let near =
            suggest_path::similar_names(self.workspace, &self.levels, &self.current_dir, name);
        let near = near.iter().map(|near| self.display_path(Some(near))).collect();
        suggest_path::not_found_error(self.requested_path, is_last, near)
    }

    /// Returns the current directory's path (and `name` in it), relative to the workspace.
    pub fn display_path(&self, name: Option<&OsStr>) -> String {
        let names: Vec<_> = self
            .levels
            .iter()
            .map(|level| level.name.as_os_str())
            .chain(name)
            .map(OsStr::to_string_lossy)
            .collect();
        if names.is_empty() { ".".to_owned() } else { names.join("/") }
    }

    /// Puts a path in front of the remaining steps. An absolute one restarts at the workspace, or
    /// is refused.
    fn queue_path(&mut self, path: &Path) -> Result<()> {
        let relative = if path.is_absolute() {
            self.workspace.strip_root(path).ok_or_else(outside_error)?
        } else {
            path
        };
        let mut steps = Vec::new();
        for component in relative.components() {
            match component {
                Component::Normal(name) => steps.push(WalkStep::Down(name.to_owned())),
                Component::ParentDir => steps.push(WalkStep::Up),
                Component::CurDir => {}
                Component::RootDir | Component::Prefix(_) => return Err(outside_error()),
            }
        }
        self.remaining_steps.extend(steps.into_iter().rev());
        Ok(())
    }

    fn enter_name(&mut self, name: OsString, create: bool) -> Result<Option<WalkEnd>> {
        // Check the name first: the directory may not exist yet, and a caller must not create it
        // either.
        if let Some(refusal) = self.workspace.closed_name_error(&self.levels, &name) {
            return Err(refusal);
        }
        if self.for_writing
            && let Some(refusal) =
                self.workspace.protection_error(&self.levels, &name, self.requested_path)
        {
            return Err(refusal);
        }
        let opened = match self.without_waiting {
            true => quick_read::open_cached_step(self.current_dir.as_fd(), &name),
            false => self.workspace.open_step(self.current_dir.as_fd(), &name),
        };
        let fd = match opened {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return self.handle_missing(name, create),
            Err(errno) => return Err(self.to_error(errno)),
        };
        let stat = fstat(&fd).map_err(|errno| self.to_error(errno))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::Symlink
            && let Some(refusal) = self.workspace.closed_object_error(ObjectId::from_stat(&stat))
        {
            return Err(refusal);
        }
        match kind {
            // The target of a link may have to be read from the disk.
            FileType::Symlink if self.without_waiting => Err(self.to_error(Errno::AGAIN)),
            FileType::Symlink => self.follow_link(&fd).map(|()| None),
            FileType::Directory => {
                self.levels.push(WalkLevel { name, id: ObjectId::from_stat(&stat) });
                self.current_dir = fd;
                Ok(None)
            }
            _ if self.remaining_steps.is_empty() => {
                self.check_writable(&name)?;
                Ok(Some(WalkEnd::Object { name, fd, stat }))
            }
            _ => Err(self.to_error(Errno::NOTDIR)),
        }
    }

    fn follow_link(&mut self, link: &OwnedFd) -> Result<()> {
        self.links_followed += 1;
        if self.links_followed > MAX_LINKS {
            return Err(outside_error().with_source(Errno::LOOP));
        }
        let target = read_link_target(link).map_err(|errno| self.to_error(errno))?;
        if target.is_absolute() {
            self.current_dir = reopen_base(self.workspace, self.requested_path)?;
            self.levels.clear();
        }
        self.queue_path(&target)
    }

    /// Goes up one level. If the directory has been moved in the meantime, `..` may lead elsewhere,
    /// so the directory it opens has to be the parent that we came through.
    fn climb_up(&mut self) -> Result<Option<WalkEnd>> {
        if self.levels.pop().is_none() {
            return Err(outside_error());
        }
        let Some(level) = self.levels.last() else {
            self.current_dir = reopen_base(self.workspace, self.requested_path)?;
            return Ok(None);
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let parent_dir = openat(&self.current_dir, "..", flags, Mode::empty())
            .map_err(|errno| self.to_error(errno))?;
        let stat = fstat(&parent_dir).map_err(|errno| self.to_error(errno))?;
        if ObjectId::from_stat(&stat) != level.id {
            return Err(outside_error());
        }
        self.current_dir = parent_dir;
        Ok(None)
    }

    /// Refuses to write or create something where only reading is allowed.
    fn check_writable(&self, name: &OsStr) -> Result<()> {
        let refusal = self
            .for_writing
            .then(|| self.workspace.read_only_error(&self.levels, name, self.requested_path))
            .flatten();
        refusal.map_or(Ok(()), Err)
    }

    fn handle_missing(&mut self, name: OsString, create: bool) -> Result<Option<WalkEnd>> {
        if self.for_writing && self.workspace.forbids_creating(&self.levels, &name) {
            return Err(protected_error(self.requested_path));
        }
        if self.remaining_steps.iter().any(|step| matches!(step, WalkStep::Up)) {
            // `new/../x` refers to nothing while `new` does not exist, and nothing is created to
            // find out where it leads.
            return Err(if self.leaves_workspace() {
                outside_error()
            } else {
                self.to_error(Errno::NOENT)
            });
        }
        self.check_writable(&name)?;
        if self.remaining_steps.is_empty() || !create {
            let rest = self.remaining_steps.drain(..).rev().filter_map(|step| match step {
                WalkStep::Down(name) => Some(name),
                WalkStep::Up => None,
            });
            return Ok(Some(WalkEnd::Missing { name, rest: rest.collect() }));
        }
        // Fail before the first directory is created, where the failure is predictable.
        let names = self
            .remaining_steps
            .iter()
            .filter_map(|step| if let WalkStep::Down(name) = step { Some(name) } else { None });
        if names.chain([&name]).any(|name| name.len() > MAX_NAME_BYTES) {
            return Err(self.to_error(Errno::NAMETOOLONG));
        }
        self.dirs_created += 1;
        match mkdirat(&self.current_dir, &name, Mode::from_raw_mode(0o777)) {
            // If another process was faster, the walk inspects its directory like any other.
            Ok(()) | Err(Errno::EXIST) if self.dirs_created <= MAX_CREATED_DIRS => {}
            Ok(()) | Err(Errno::EXIST) => return Err(self.to_error(Errno::BUSY)),
            Err(errno) => return Err(self.to_error(errno)),
        }
        self.remaining_steps.push(WalkStep::Down(name));
        Ok(None)
    }

    /// Returns whether the remaining steps lead above the workspace, counted by name from a missing
    /// one.
    fn leaves_workspace(&self) -> bool {
        let mut depth = Some(self.levels.len() + 1);
        for step in self.remaining_steps.iter().rev() {
            depth = depth.and_then(|depth| match step {
                WalkStep::Down(_) => Some(depth + 1),
                WalkStep::Up => depth.checked_sub(1),
            });
        }
        depth.is_none()
    }

    fn to_error(&self, errno: Errno) -> Error {
        os_error(errno, self.requested_path)
    }
}

fn reopen_base(workspace: &Workspace, requested_path: &str) -> Result<OwnedFd> {
    workspace.base.try_clone().map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        os_error(errno, requested_path)
    })
}
