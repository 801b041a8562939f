//! The walk from the workspace's descriptor to what a path names.
//!
//! Symlinks are read and their text is walked in turn, so the kernel never follows one for us and a link's
//! target is held to the same rules as a caller's path. Only the current directory is held: a deep path costs
//! no more descriptors than a shallow one.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, mkdirat, openat};
use rustix::io::Errno;

use super::{Id, Workspace, check_text, link_target, near, os_error, outside, protected};
use crate::base::error::{Error, Result};

/// As many symlinks as the kernel itself follows.
const MAX_LINKS: usize = 40;
/// Of one name, in bytes, on every file system of Linux.
const MAX_NAME: usize = 255;
/// More directories than a path can name: somebody removes them under our hands as fast as we make them.
const MAX_MADE: usize = 4096;

pub(super) struct Walk<'w> {
    workspace: &'w Workspace,
    /// The caller's path, for messages.
    asked: &'w str,
    here: OwnedFd,
    /// From the workspace (exclusive) down to `here`.
    levels: Vec<Level>,
    /// What is left to walk, next step last.
    todo: Vec<Step>,
    links: usize,
    made: usize,
    /// What is protected is not walked to.
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

/// What stands at the end of a path.
pub(super) enum End {
    /// The walk's own directory.
    Directory,
    /// Anything that is neither a directory nor a symlink, in the walk's directory.
    Object { name: OsString, fd: OwnedFd, stat: Stat },
    /// `name` is not in the walk's directory; `rest` would stand below it.
    Missing { name: OsString, rest: Vec<OsString> },
}

impl<'w> Walk<'w> {
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

    /// A walk to what is to be written.
    pub fn to_write(workspace: &'w Workspace, asked: &'w str) -> Result<Walk<'w>> {
        Ok(Walk { writing: true, ..Walk::new(workspace, asked)? })
    }

    /// Walks to the end, making missing directories on the way when told to.
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

    pub fn into_dir(self) -> OwnedFd {
        self.here
    }

    /// The names from the workspace down to the walk's directory, and that.
    pub fn into_parts(self) -> (Vec<OsString>, OwnedFd) {
        (self.levels.into_iter().map(|level| level.name).collect(), self.here)
    }

    /// Says that there is no such name in the walk's directory, and which ones are near.
    pub fn no_such(&self, name: &OsStr, last: bool) -> Error {
        let near = near::names(self.workspace, &self.levels, &self.here, name);
        let near = near.iter().map(|near| self.shown(Some(near))).collect();
        near::not_found(self.asked, last, near)
    }

    /// Where the walk is (and `name` in it), relative to the workspace.
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

    /// Puts a path before what is left to walk. An absolute one starts at the workspace again, or is refused.
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
        // By name first: the directory may not exist yet, and must not be made by a caller either.
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

    /// Goes up one level. `..` may lead elsewhere than we came from when the directory has been moved
    /// meanwhile, so what it opens has to be the parent we know.
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

    /// Refuses to write or make something where only reading is allowed.
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
            // `new/../x` names nothing while `new` is not there, and nothing is made to find out where it leads.
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
        // What can be known to fail does so before the first directory is made.
        let names = self
            .todo
            .iter()
            .filter_map(|step| if let Step::Down(name) = step { Some(name) } else { None });
        if names.chain([&name]).any(|name| name.len() > MAX_NAME) {
            return Err(self.failed(Errno::NAMETOOLONG));
        }
        self.made += 1;
        match mkdirat(&self.here, &name, Mode::from_raw_mode(0o777)) {
            // Where somebody was faster, what they made is looked at as anything else is.
            Ok(()) | Err(Errno::EXIST) if self.made <= MAX_MADE => {}
            Ok(()) | Err(Errno::EXIST) => return Err(self.failed(Errno::BUSY)),
            Err(errno) => return Err(self.failed(errno)),
        }
        self.todo.push(Step::Down(name));
        Ok(None)
    }

    /// Whether the steps left lead above the workspace, going by their names, from a name that is missing here.
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
