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

use super::{Id, Workspace, check_text, link_target, near, os_error, outside, protected};
use crate::base::error::{Error, Result};

/// As many symlinks as the kernel itself follows.
const MAX_LINKS: usize = 40;
/// Maximum length of a name in bytes, on every Linux file system.
const MAX_NAME: usize = 255;
/// More directories than a path can name: someone is removing them as fast as we create them.
const MAX_MADE: usize = 4096;

pub(super) struct Walk<'w> {
    workspace: &'w Workspace,
    /// The caller's path, for messages.
    asked: &'w str,
    here: OwnedFd,
    /// From the workspace (exclusive) down to the current directory.
    levels: Vec<Level>,
    /// Steps left to walk, the next one last.
    todo: Vec<Step>,
    links: usize,
    made: usize,
    /// The walk refuses protected paths.
    writing: bool,
}

pub(super) struct Level {
    pub name: OsString,
    id: Id,
}

enum Step {
    Up,
    Down(OsString),
}

/// Result of a walk.
pub(super) enum End {
    /// The walk's current directory.
    Directory,
    /// Anything that is neither a directory nor a symlink, in the current directory.
    Object { name: OsString, fd: OwnedFd, stat: Stat },
    /// `name` does not exist in the current directory; `rest` would be below it.
    Missing { name: OsString, rest: Vec<OsString> },
}

impl<'w> Walk<'w> {
    /// Starts a walk to a path that is to be read.
    pub fn new(workspace: &'w Workspace, asked: &'w str) -> Result<Walk<'w>> {
        check_text(asked)?;
        let here = reopen_base(workspace, asked)?;
        let mut walk = Walk {
            workspace,
            asked,
            here,
            levels: Vec::new(),
            todo: Vec::new(),
            links: 0,
            made: 0,
            writing: false,
        };
        walk.queue(Path::new(asked))?;
        Ok(walk)
    }

    /// Starts a walk to a path that is to be written.
    pub fn to_write(workspace: &'w Workspace, asked: &'w str) -> Result<Walk<'w>> {
        Ok(Walk { writing: true, ..Walk::new(workspace, asked)? })
    }

    /// Walks to the end, creating missing directories on the way if `create` is set.
    pub fn run(mut self, create: bool) -> Result<(Walk<'w>, End)> {
        while let Some(step) = self.todo.pop() {
            let end = match step {
                Step::Up => self.climb()?,
                Step::Down(name) => self.enter(name, create)?,
            };
            if let Some(end) = end {
                return Ok((self, end));
            }
        }
        Ok((self, End::Directory))
    }

    /// Returns the current directory's descriptor.
    pub fn into_dir(self) -> OwnedFd {
        self.here
    }

    /// Returns the names from the workspace down to the current directory, and its descriptor.
    pub fn into_parts(self) -> (Vec<OsString>, OwnedFd) {
        (self.levels.into_iter().map(|level| level.name).collect(), self.here)
    }

    /// Returns the error for a name that does not exist in the current directory, with similar
    /// names.
    pub fn no_such(&self, name: &OsStr, last: bool) -> Error {
        let near = near::names(self.workspace, &self.levels, &self.here, name);
        let near = near.iter().map(|near| self.shown(Some(near))).collect();
        near::not_found(self.asked, last, near)
    }

    /// Returns the current directory's path (and `name` in it), relative to the workspace.
    pub fn shown(&self, name: Option<&OsStr>) -> String {
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
    fn queue(&mut self, path: &Path) -> Result<()> {
        let relative =
            if path.is_absolute() { self.workspace.strip(path).ok_or_else(outside)? } else { path };
        let mut steps = Vec::new();
        for component in relative.components() {
            match component {
                Component::Normal(name) => steps.push(Step::Down(name.to_owned())),
                Component::ParentDir => steps.push(Step::Up),
                Component::CurDir => {}
                Component::RootDir | Component::Prefix(_) => return Err(outside()),
            }
        }
        self.todo.extend(steps.into_iter().rev());
        Ok(())
    }

    fn enter(&mut self, name: OsString, create: bool) -> Result<Option<End>> {
        // Check the name first: the directory may not exist yet, and a caller must not create it
        // either.
        if let Some(refusal) = self.workspace.shut_name(&self.levels, &name) {
            return Err(refusal);
        }
        if self.writing
            && let Some(refusal) = self.workspace.protects(&self.levels, &name, self.asked)
        {
            return Err(refusal);
        }
        let fd = match self.workspace.step(self.here.as_fd(), &name) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return self.missing(name, create),
            Err(errno) => return Err(self.failed(errno)),
        };
        let stat = fstat(&fd).map_err(|errno| self.failed(errno))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::Symlink
            && let Some(refusal) = self.workspace.shut_object(Id::of(&stat))
        {
            return Err(refusal);
        }
        match kind {
            FileType::Symlink => self.follow(&fd).map(|()| None),
            FileType::Directory => {
                self.levels.push(Level { name, id: Id::of(&stat) });
                self.here = fd;
                Ok(None)
            }
            _ if self.todo.is_empty() => {
                self.check_writable(&name)?;
                Ok(Some(End::Object { name, fd, stat }))
            }
            _ => Err(self.failed(Errno::NOTDIR)),
        }
    }

    fn follow(&mut self, link: &OwnedFd) -> Result<()> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(outside().source(Errno::LOOP));
        }
        let target = link_target(link).map_err(|errno| self.failed(errno))?;
        if target.is_absolute() {
            self.here = reopen_base(self.workspace, self.asked)?;
            self.levels.clear();
        }
        self.queue(&target)
    }

    /// Goes up one level. If the directory has been moved in the meantime, `..` may lead elsewhere,
    /// so the directory it opens has to be the parent that we came through.
    fn climb(&mut self) -> Result<Option<End>> {
        if self.levels.pop().is_none() {
            return Err(outside());
        }
        let Some(level) = self.levels.last() else {
            self.here = reopen_base(self.workspace, self.asked)?;
            return Ok(None);
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let up =
            openat(&self.here, "..", flags, Mode::empty()).map_err(|errno| self.failed(errno))?;
        let stat = fstat(&up).map_err(|errno| self.failed(errno))?;
        if Id::of(&stat) != level.id {
            return Err(outside());
        }
        self.here = up;
        Ok(None)
    }

    /// Refuses to write or create something where only reading is allowed.
    fn check_writable(&self, name: &OsStr) -> Result<()> {
        let refusal = self
            .writing
            .then(|| self.workspace.read_only(&self.levels, name, self.asked))
            .flatten();
        refusal.map_or(Ok(()), Err)
    }

    fn missing(&mut self, name: OsString, create: bool) -> Result<Option<End>> {
        if self.writing && self.workspace.keeps_missing(&self.levels, &name) {
            return Err(protected(self.asked));
        }
        if self.todo.iter().any(|step| matches!(step, Step::Up)) {
            // `new/../x` refers to nothing while `new` does not exist, and nothing is created to
            // find out where it leads.
            return Err(if self.leaves() { outside() } else { self.failed(Errno::NOENT) });
        }
        self.check_writable(&name)?;
        if self.todo.is_empty() || !create {
            let rest = self.todo.drain(..).rev().filter_map(|step| match step {
                Step::Down(name) => Some(name),
                Step::Up => None,
            });
            return Ok(Some(End::Missing { name, rest: rest.collect() }));
        }
        // Fail before the first directory is created, where the failure is predictable.
        let names = self
            .todo
            .iter()
            .filter_map(|step| if let Step::Down(name) = step { Some(name) } else { None });
        if names.chain([&name]).any(|name| name.len() > MAX_NAME) {
            return Err(self.failed(Errno::NAMETOOLONG));
        }
        self.made += 1;
        match mkdirat(&self.here, &name, Mode::from_raw_mode(0o777)) {
            // If another process was faster, the walk inspects its directory like any other.
            Ok(()) | Err(Errno::EXIST) if self.made <= MAX_MADE => {}
            Ok(()) | Err(Errno::EXIST) => return Err(self.failed(Errno::BUSY)),
            Err(errno) => return Err(self.failed(errno)),
        }
        self.todo.push(Step::Down(name));
        Ok(None)
    }

    /// Returns whether the remaining steps lead above the workspace, counted by name from a missing
    /// one.
    fn leaves(&self) -> bool {
        let mut depth = Some(self.levels.len() + 1);
        for step in self.todo.iter().rev() {
            depth = depth.and_then(|depth| match step {
                Step::Down(_) => Some(depth + 1),
                Step::Up => depth.checked_sub(1),
            });
        }
        depth.is_none()
    }

    fn failed(&self, errno: Errno) -> Error {
        os_error(errno, self.asked)
    }
}

fn reopen_base(workspace: &Workspace, asked: &str) -> Result<OwnedFd> {
    workspace.base.try_clone().map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        os_error(errno, asked)
    })
}
