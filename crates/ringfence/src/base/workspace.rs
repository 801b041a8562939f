//! The workspace: the only code that opens paths named by a caller.
//!
//! A path is never checked first and opened later. It is walked one component at a time from a
//! directory descriptor that was opened with the workspace, each step relative to the descriptor of
//! the previous one (`walk.rs`), and the object at the end is held by its descriptor from then on.
//! Whatever is renamed or swapped in the meantime, the object that was checked is the object that
//! is used.

mod client_limits;
mod path_resolver;
mod path_walk;
pub mod quick_read;
pub mod snapshot;
mod suggest_path;
pub mod tree;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jail::rights::Rights;
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat};
use rustix::io::Errno;

use super::error::{Error, Kind, Result};
use client_limits::ClientLimits;
use path_resolver::PathResolver;
use path_walk::{PathWalk, WalkEnd};

/// Linux's PATH_MAX. A component-wise walk alone has no such limit.
const MAX_PATH_BYTES: usize = 4096;

/// Directory to which callers' paths are confined, with the rights that apply in it.
pub struct Workspace {
    /// Everything is opened beneath this descriptor. It need not have been opened by `path`: a
    /// clone of a session's own mount tree works as well, since device and inode numbers are the
    /// same there.
    base: Arc<OwnedFd>,
    /// Canonical path.
    path: PathBuf,
    /// Absolute path as the operator wrote it: callers may use this name too.
    given_path: PathBuf,
    closed_paths: Vec<Arc<ClosedPath>>,
    /// Rights of the sandbox, which apply to the file tools as well.
    rights: Rights,
    /// Restrictions of a client's sandbox, for one call.
    client_limits: Option<Arc<ClientLimits>>,
    /// Cleared if the kernel or a seccomp filter refuses openat2.
    openat2: AtomicBool,
    /// No other machine or process is needed to open what is in it.
    is_local: bool,
}

/// Identity of a file system object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ObjectId {
    dev: u64,
    ino: u64,
}

impl ObjectId {
    fn from_stat(stat: &Stat) -> ObjectId {
        ObjectId { dev: stat.st_dev, ino: stat.st_ino }
    }
}

/// A path in the workspace that no tool may enter.
struct ClosedPath {
    /// Names from the workspace down. They apply even before the path exists.
    names: Vec<OsString>,
    /// Applies wherever the object is moved. The open descriptor keeps its inode number from being
    /// reused.
    object: Option<(OwnedFd, ObjectId)>,
}

/// A regular file, held by a descriptor that can neither read nor write yet.
pub struct HeldFile {
    fd: OwnedFd,
    /// Relative to the workspace, symlinks resolved.
    pub path: String,
}

/// A file open for reading.
pub struct OpenedFile {
    pub file: File,
    pub path: String,
}

/// Destination of a file to be written.
pub enum WriteTarget {
    /// The directory exists and is held open.
    Ready { dir: OwnedFd, name: OsString, path: String, existing: Option<HeldFile> },
    /// The directory has yet to be created.
    NoParent { path: String },
}

impl Workspace {
    /// Opens the workspace at `path`. Paths of `closed_paths` (absolute) inside it are closed to
    /// every tool.
    pub fn open(path: &Path, closed_paths: &[PathBuf]) -> Result<Workspace> {
        let failed = |error: std::io::Error| {
            Error::new(Kind::NotFound, "cannot open the workspace")
                .with_hint("Name an existing directory with `--workspace`.")
                .with_source(error)
        };
        let given_path = std::path::absolute(path).map_err(failed)?;
        let path = std::fs::canonicalize(path).map_err(failed)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let base =
            openat(CWD, &path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        Self::from_base(base, path, given_path, closed_paths)
    }

    fn from_base(
        base: OwnedFd,
        path: PathBuf,
        given_path: PathBuf,
        closed_paths: &[PathBuf],
    ) -> Result<Workspace> {
        let mut resolver = PathResolver::default();
        let closed_paths = closed_paths
            .iter()
            .filter_map(|closed| ClosedPath::find_in_workspace(&mut resolver, &path, closed))
            .map(|closed_path| closed_path.map(Arc::new));
        Ok(Workspace {
            is_local: quick_read::is_on_local_file_system(&base),
            base: Arc::new(base),
            closed_paths: closed_paths.collect::<Result<_>>()?,
            path,
            given_path,
            rights: Rights::default(),
            client_limits: None,
            openat2: AtomicBool::new(true),
        })
    }

    /// Applies these rights to every path from now on: protected paths are not written, hidden ones
    /// not opened.
    pub fn with_rights(mut self, rights: Rights) -> Result<Workspace> {
        let mut resolver = PathResolver::default();
        for hidden in rights.hidden.iter().filter(|hidden| **hidden != self.path) {
            if let Some(closed_path) =
                ClosedPath::find_in_workspace(&mut resolver, &self.path, hidden)
            {
                self.closed_paths.push(Arc::new(closed_path?));
            }
        }
        self.rights = rights;
        Ok(self)
    }

    /// Returns the same workspace with further restrictions on writing.
    pub fn with_restrictions(&self, restrict: impl FnOnce(&mut Rights)) -> Workspace {
        let mut rights = self.rights.clone();
        restrict(&mut rights);
        Workspace {
            base: Arc::clone(&self.base),
            path: self.path.clone(),
            given_path: self.given_path.clone(),
            closed_paths: self.closed_paths.clone(),
            rights,
            client_limits: self.client_limits.clone(),
            openat2: AtomicBool::new(self.openat2.load(Ordering::Relaxed)),
            is_local: self.is_local,
        }
    }

    /// Returns the rights that apply in the workspace.
    pub fn rights(&self) -> &Rights {
        &self.rights
    }

    /// Returns the canonical path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the canonical path as text.
    pub fn display_path(&self) -> String {
        self.path.display().to_string()
    }

    /// Opens a regular file for reading.
    pub fn open_read(&self, path: &str) -> Result<OpenedFile> {
        let held_file = match PathWalk::new(self, path)?.run(false)? {
            (walk, WalkEnd::Object { name, fd, stat }) => {
                HeldFile::from_regular(fd, &stat, walk.display_path(Some(&name)))?
            }
            (_, WalkEnd::Directory) => return Err(directory_error(path)),
            (walk, WalkEnd::Missing { name, rest }) => {
                return Err(walk.not_found_error(&name, rest.is_empty()));
            }
        };
        Ok(OpenedFile { file: held_file.open_read()?, path: held_file.path })
    }

    /// Opens a directory as a descriptor to work beneath, and returns its path from the workspace.
    pub fn open_dir(&self, path: &str) -> Result<(OwnedFd, String)> {
        match PathWalk::new(self, path)?.run(false)? {
            (walk, WalkEnd::Directory) => {
                let display_path = walk.display_path(None);
                Ok((walk.into_dir(), display_path))
            }
            (_, WalkEnd::Object { .. }) => Err(os_error(Errno::NOTDIR, path)),
            (walk, WalkEnd::Missing { name, rest }) => {
                Err(walk.not_found_error(&name, rest.is_empty()))
            }
        }
    }

    /// Returns the error for a file that does not exist, with suggestions of similar names; for
    /// callers that learnt of it from [`Workspace::find_write_target`].
    pub fn not_found_error(&self, path: &str) -> Error {
        match PathWalk::new(self, path).and_then(|walk| walk.run(false)) {
            Ok((walk, WalkEnd::Missing { name, rest })) => {
                walk.not_found_error(&name, rest.is_empty())
            }
            // It exists by now, or the lookup fails differently: report the original finding.
            Ok(_) => os_error(Errno::NOENT, path),
            Err(error) => error,
        }
    }

    /// Finds the destination for writing `path`, through symlinks that stay inside. With
    /// `create_parents` missing directories are created; otherwise nothing is changed.
    pub fn find_write_target(&self, path: &str, create_parents: bool) -> Result<WriteTarget> {
        let names_directory = path.ends_with('/') || path.ends_with("/.") || path.ends_with("/..");
        match PathWalk::for_writing(self, path)?.run(create_parents && !names_directory)? {
            _ if names_directory => Err(directory_error(path)),
            (_, WalkEnd::Directory) => Err(directory_error(path)),
            (walk, WalkEnd::Object { name, fd, stat }) => {
                let display_path = walk.display_path(Some(&name));
                let existing = HeldFile::from_regular(fd, &stat, display_path.clone())?;
                Ok(WriteTarget::Ready {
                    dir: walk.into_dir(),
                    name,
                    path: display_path,
                    existing: Some(existing),
                })
            }
            (walk, WalkEnd::Missing { name, rest }) if rest.is_empty() => {
                let display_path = walk.display_path(Some(&name));
                Ok(WriteTarget::Ready {
                    dir: walk.into_dir(),
                    name,
                    path: display_path,
                    existing: None,
                })
            }
            (walk, WalkEnd::Missing { name, rest }) => {
                let mut display_path = walk.display_path(Some(&name));
                for name in rest {
                    display_path.push('/');
                    display_path.push_str(&name.to_string_lossy());
                }
                Ok(WriteTarget::NoParent { path: display_path })
            }
        }
    }

    /// Returns the part of an absolute path below the workspace, by either of its names.
    fn strip_root<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        path.strip_prefix(&self.path).or_else(|_| path.strip_prefix(&self.given_path)).ok()
    }

    /// Returns whether a missing name must not be created: a new repository would bring its own
    /// hooks.
    fn forbids_creating(&self, levels: &[path_walk::WalkLevel], name: &OsStr) -> bool {
        self.rights.repositories.contains(&self.absolute_path(levels, name))
    }

    fn absolute_path(&self, levels: &[path_walk::WalkLevel], name: &OsStr) -> PathBuf {
        let parent: PathBuf = levels.iter().map(|level| level.name.as_os_str()).collect();
        self.path.join(parent).join(name)
    }

    /// Opens one name in `dir` without following it, as an O_PATH descriptor without side effects:
    /// a FIFO does not block, a device is not opened.
    fn open_step(&self, dir: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
        use rustix::fs::{ResolveFlags, openat2};
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if self.openat2.load(Ordering::Relaxed) {
            // O_PATH with O_NOFOLLOW yields a symlink itself; NO_SYMLINKS would refuse it.
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            match openat2(dir, name, flags, Mode::empty(), resolve) {
                Err(Errno::NOSYS | Errno::PERM) => self.openat2.store(false, Ordering::Relaxed),
                // The kernel saw a concurrent rename or mount; decide with the plain step below.
                Err(Errno::AGAIN) => {}
                result => return result,
            }
        }
        // A single name that is neither `..` nor followed cannot leave its directory, so this is no
        // weaker.
        openat(dir, name, flags, Mode::empty())
    }
}

impl ClosedPath {
    /// Returns `None` if `path` is elsewhere (for example, with a workspace below the runtime
    /// root).
    fn find_in_workspace(
        resolver: &mut PathResolver,
        workspace: &Path,
        path: &Path,
    ) -> Option<Result<ClosedPath>> {
        let names: Vec<OsString> = match resolver.resolve(path).strip_prefix(workspace) {
            Ok(relative_path) => relative_path.iter().map(OsStr::to_owned).collect(),
            Err(_) => return None,
        };
        if names.is_empty() {
            return Some(Err(Error::invalid_arguments(
                "the workspace must not be the runtime directory",
            )
            .with_hint("Choose another `--workspace` or `--root`.")));
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let object = openat(CWD, path, flags, Mode::empty())
            .and_then(|fd| fstat(&fd).map(|stat| (fd, ObjectId::from_stat(&stat))));
        match object {
            Ok(object) => Some(Ok(ClosedPath { names, object: Some(object) })),
            Err(Errno::NOENT) => Some(Ok(ClosedPath { names, object: None })),
            // An object that cannot be inspected cannot be kept closed.
            Err(errno) => {
                Some(Err(Error::internal("cannot inspect a closed directory").with_source(errno)))
            }
        }
    }
}

impl HeldFile {
    fn from_regular(fd: OwnedFd, stat: &Stat, path: String) -> Result<HeldFile> {
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Error::permission_denied(
                "not_a_regular_file",
                format!("{} is not a regular file", quote_path(&path)),
            )
            .with_hint("Devices, pipes and sockets are not opened; name a regular file."));
        }
        Ok(HeldFile { fd, path })
    }

    /// Duplicates the hold on the same object.
    pub fn try_clone(&self) -> Result<HeldFile> {
        let fd = self.fd.try_clone().map_err(|error| {
            os_error(Errno::from_io_error(&error).unwrap_or(Errno::IO), &self.path)
        })?;
        Ok(HeldFile { fd, path: self.path.clone() })
    }

    /// Opens the object for reading.
    pub fn open_read(&self) -> Result<File> {
        self.reopen_with(OFlags::RDONLY).map_err(|errno| os_error(errno, &self.path))
    }

    /// Opens the same object for writing, without changing its contents.
    pub fn open_write(&self) -> rustix::io::Result<File> {
        self.reopen_with(OFlags::WRONLY)
    }

    /// Reopens through /proc/self/fd, whose entry leads to this object and nowhere else, whatever
    /// has happened to its name since.
    fn reopen_with(&self, access: OFlags) -> rustix::io::Result<File> {
        let proc_path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        match openat(CWD, proc_path, flags, Mode::empty()) {
            // The object is held open, so it must be /proc that is missing.
            Err(Errno::NOENT) => Err(Errno::OPNOTSUPP),
            result => result.map(File::from),
        }
    }
}

/// Quotes a caller's path for a message.
pub fn quote_path(path: &str) -> String {
    let mut shortened: String =
        path.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(200).collect();
    if path.chars().nth(200).is_some() {
        shortened.push('…');
    }
    format!("`{shortened}`")
}

fn outside_error() -> Error {
    Error::permission_denied("outside_workspace", "the path leads outside the workspace").with_hint(
        "Use a path relative to the workspace; symlinks are followed only while they stay inside.",
    )
}

fn closed_error() -> Error {
    Error::permission_denied("closed", "the path is closed to all tools")
        .with_hint("The operator has hidden it, or the server's own runtime files are kept there. Use another path.")
}

fn protected_error(path: &str) -> Error {
    Error::permission_denied("protected", format!("{} is protected: it may only be read", quote_path(path)))
        .with_hint("It decides what agents, editors or git run. Ask the user to change it, or work elsewhere in the workspace. The operator can allow this with `unprotect` under [sandbox].")
}

fn directory_error(path: &str) -> Error {
    Error::invalid_arguments(format!("{} is a directory", quote_path(path)))
        .with_reason("is_directory")
        .with_hint("Give the path of a file in it, or list it with `file.list`.")
}

/// Translates an OS error on a caller's path into its meaning for the caller.
pub fn os_error(errno: Errno, path: &str) -> Error {
    let path = quote_path(path);
    let error = match errno {
        Errno::NOENT => Error::new(Kind::NotFound, format!("there is no {path}")),
        Errno::NOTDIR => {
            Error::new(Kind::NotFound, format!("{path}, or a part of it, is not a directory"))
                .with_reason("not_a_directory")
                .with_hint("Every part of a path except the last must be a directory.")
        }
        Errno::ISDIR => {
            Error::invalid_arguments(format!("{path} is a directory")).with_reason("is_directory")
        }
        Errno::LOOP | Errno::XDEV => outside_error(),
        Errno::ACCESS | Errno::PERM => Error::permission_denied(
            "file_mode",
            format!("the permissions of {path} do not allow this"),
        ),
        Errno::ROFS => Error::permission_denied("read_only", format!("{path} is read-only here")),
        Errno::NAMETOOLONG => Error::invalid_arguments(format!("a name in {path} is too long")),
        Errno::NOSPC | Errno::DQUOT => {
            Error::new(Kind::ResourceExhausted, "there is no space left for the file")
                .with_reason("no_space")
        }
        Errno::FBIG => Error::new(Kind::TooLarge, format!("{path} would become too large")),
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => {
            Error::new(Kind::ResourceExhausted, "the server has too many files open")
        }
        Errno::TXTBSY | Errno::BUSY => {
            Error::new(Kind::Conflict, format!("{path} is in use")).with_reason("busy")
        }
        _ => Error::internal(format!("cannot use {path}")),
    };
    error.with_source(errno)
}

fn check_path_text(path: &str) -> Result<()> {
    if path.is_empty() || path.contains('\0') {
        return Err(Error::invalid_arguments(
            "`path` must not be empty or contain a NUL character",
        ));
    }
    if path.len() > MAX_PATH_BYTES {
        return Err(Error::invalid_arguments(format!(
            "`path` is longer than {MAX_PATH_BYTES} bytes"
        )));
    }
    Ok(())
}

fn read_link_target(link: &OwnedFd) -> rustix::io::Result<PathBuf> {
    let text = rustix::fs::readlinkat(link, "", Vec::new())?;
    Ok(PathBuf::from(OsStr::from_bytes(text.as_bytes())))
}

#[cfg(test)]
pub(crate) mod tests;
