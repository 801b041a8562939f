//! Reads and replaces a client's file.
//!
//! The user's own file may be a symbolic link into a directory of dotfiles: it is followed, and the
//! file that it leads to is replaced. A project may be hostile, so its links are followed only
//! while they stay inside. Both are walked by descriptor, and nothing is opened by name afterwards.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Stat, fstat, unlinkat};

use crate::base::workspace::{HeldFile, Workspace, WriteTarget, os_error, quote_path};
use crate::base::{CancelToken, Error, Kind, Result};
use crate::tools::file::atomic_write::TempFile;

/// Claude Code keeps histories in its file; no client's file is larger.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Place of a client's file.
#[derive(Debug, Clone)]
pub enum FileLocation {
    /// Absolute path of a file of the user.
    User(PathBuf),
    /// Path relative to the project's directory.
    Project { project: PathBuf, path: &'static str },
}

impl FileLocation {
    /// Returns the path for people.
    pub fn display_path(&self) -> String {
        match self {
            FileLocation::User(path) => path.display().to_string(),
            FileLocation::Project { path, .. } => (*path).to_owned(),
        }
    }
}

/// A client's file, which may not exist yet.
pub struct ClientFile {
    location: FileLocation,
    workspace: Workspace,
    path: String,
    /// `None` while its directory does not exist.
    place: Option<FilePlace>,
    old: Option<OldState>,
}

/// Directory of the file, and its name there; symbolic links are resolved.
struct FilePlace {
    dir: Arc<OwnedFd>,
    name: OsString,
}

struct OldState {
    file: File,
    stat: Stat,
    bytes: Vec<u8>,
}

impl ClientFile {
    /// Opens and reads a file; changes nothing.
    pub fn open(location: FileLocation) -> Result<ClientFile> {
        let (root, path) = match &location {
            FileLocation::User(path) => (Path::new("/"), path.as_path()),
            FileLocation::Project { project, path } => (project.as_path(), Path::new(path)),
        };
        let path = path.to_str().ok_or_else(|| {
            Error::invalid_arguments(format!("{} is not UTF-8", location.display_path()))
                .with_hint("Use a home directory with a name in UTF-8.")
        })?;
        let mut file = ClientFile {
            workspace: Workspace::open(root, &[])?,
            path: path.to_owned(),
            location,
            place: None,
            old: None,
        };
        if let Some((place, existing)) = file.find_place(false)? {
            file.old = existing.map(|held| OldState::read(&held)).transpose()?;
            file.place = Some(place);
        }
        Ok(file)
    }

    fn find_place(&self, create: bool) -> Result<Option<(FilePlace, Option<HeldFile>)>> {
        let target = self.workspace.find_write_target(&self.path, create);
        match target.map_err(|error| self.explain_error(error))? {
            WriteTarget::Ready { dir, name, existing, .. } => {
                Ok(Some((FilePlace { dir: Arc::new(dir), name }, existing)))
            }
            WriteTarget::NoParent { .. } => Ok(None),
        }
    }

    fn explain_error(&self, error: Error) -> Error {
        let path = quote_path(&self.location.display_path());
        if error.reason_name() == Some("outside_workspace") {
            return Error::permission_denied(
                "outside_workspace",
                format!("{path} leads out of the project through a symbolic link"),
            )
            .with_hint(
                "Nothing was written. Replace the link by a file, or connect without `--project`.",
            );
        }
        error
    }

    /// Returns the path for people.
    pub fn display_path(&self) -> String {
        self.location.display_path()
    }

    /// Returns the bytes that were read, or `None` if the file does not exist.
    pub fn old_bytes(&self) -> Option<&[u8]> {
        self.old.as_ref().map(|old| old.bytes.as_slice())
    }

    /// Returns the text that was read; empty if the file does not exist.
    pub fn old_text(&self) -> Result<&str> {
        let bytes = self.old_bytes().unwrap_or_default();
        std::str::from_utf8(bytes).map_err(|error| {
            let before = &bytes[..error.valid_up_to()];
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            let path = self.display_path();
            Error::new(Kind::ParseError, format!("{path}, line {line}: this is not UTF-8"))
                .with_hint("Nothing was written. Fix that line, then run the command again.")
        })
    }

    /// Returns the directory and the name in it, once the directory exists.
    pub fn place(&self) -> Option<(&Arc<OwnedFd>, &OsStr)> {
        self.place.as_ref().map(|place| (&place.dir, place.name.as_os_str()))
    }

    /// Creates the missing directories above the file.
    pub fn create_directory(&mut self) -> Result<()> {
        if self.place.is_some() {
            return Ok(());
        }
        match self.find_place(true)? {
            Some((place, None)) => {
                self.place = Some(place);
                Ok(())
            }
            _ => Err(self.changed_error()),
        }
    }

    /// Returns the mode of the file, or of a new one: clients keep tokens in their files.
    pub fn mode(&self) -> u32 {
        match (&self.old, &self.location) {
            (Some(old), _) => old.stat.st_mode & 0o7777,
            (None, FileLocation::User(_)) => 0o600,
            (None, FileLocation::Project { .. }) => 0o644,
        }
    }

    /// Writes a file next to this one, with its owner and mode.
    pub fn write_sibling(&self, name: &OsStr, bytes: &[u8]) -> Result<()> {
        if self.create_temporary(bytes)?.publish_new(name)? {
            return Ok(());
        }
        self.remove_sibling(name)?;
        match self.create_temporary(bytes)?.publish_new(name)? {
            true => Ok(()),
            false => Err(self.changed_error()),
        }
    }

    /// Removes a file next to this one.
    pub fn remove_sibling(&self, name: &OsStr) -> Result<()> {
        let (dir, _) = self.place().ok_or_else(|| self.changed_error())?;
        let path = name.to_string_lossy();
        unlinkat(dir, name, AtFlags::empty()).map_err(|errno| os_error(errno, &path))
    }

    fn create_temporary(&self, bytes: &[u8]) -> Result<TempFile> {
        let (dir, name) = self.place().ok_or_else(|| self.changed_error())?;
        let mut temporary = TempFile::create(dir, name, &self.display_path(), 0o600)?;
        temporary.write(bytes, &CancelToken::new())?;
        match &self.old {
            Some(old) => temporary.inherit_metadata(&old.file, &old.stat, self.mode())?,
            None => temporary.set_mode(self.mode())?,
        }
        Ok(temporary)
    }

    /// Replaces the file, unless someone has changed it since it was read.
    pub fn replace(&self, bytes: &[u8]) -> Result<()> {
        let (_, name) = self.place().ok_or_else(|| self.changed_error())?;
        let temporary = self.create_temporary(bytes)?;
        let is_written = match &self.old {
            Some(old) => temporary.exchange_with(name, &old.stat)?.is_some(),
            None => temporary.publish_new(name)?,
        };
        if is_written { Ok(()) } else { Err(self.changed_error()) }
    }

    /// Removes the file, unless someone has changed it since it was read.
    pub fn remove(&self) -> Result<()> {
        let (dir, name) = self.place().ok_or_else(|| self.changed_error())?;
        let current = ClientFile::open(self.location.clone())?;
        if current.old_bytes() != self.old_bytes() {
            return Err(self.changed_error());
        }
        unlinkat(dir, name, AtFlags::empty()).map_err(|errno| os_error(errno, &self.path))
    }

    fn changed_error(&self) -> Error {
        let path = quote_path(&self.display_path());
        Error::new(Kind::Conflict, format!("{path} was changed in the meantime"))
            .with_hint("Nothing was written. Close the client, then run the command again.")
    }
}

impl OldState {
    fn read(held: &HeldFile) -> Result<OldState> {
        let failed = |errno| os_error(errno, &held.path);
        let mut file = held.open_read()?;
        let stat = fstat(&file).map_err(failed)?;
        let mut bytes = Vec::new();
        let read = Read::by_ref(&mut file).take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(|error| {
            Error::new(Kind::Unavailable, format!("cannot read {}", quote_path(&held.path)))
                .with_source(error)
        })?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(Error::new(
                Kind::TooLarge,
                format!("{} is too large", quote_path(&held.path)),
            )
            .with_hint("Is this the client's settings file?"));
        }
        Ok(OldState { file, stat, bytes })
    }
}
