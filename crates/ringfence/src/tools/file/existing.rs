//! An existing file that is about to be written: its content, and the properties that must be
//! preserved.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{Mode, Stat, fchmod, fstat};
use rustix::io::Errno;
use serde_json::Value;

use super::content::{Content, Survey, check, etag_of, same};
use super::store::{self, Temporary};
use crate::base::workspace::{Object, os_error, quoted};
use crate::base::{Cancel, Error, Kind, Result};

/// Longer than the timestamp granularity of any file system.
const JUST_NOW: Duration = Duration::from_secs(3);

/// Existing file, as it was when it was read.
pub struct Existing {
    pub object: Object,
    pub content: Content,
    pub survey: Survey,
    /// The file was modified shortly before it was read.
    fresh: bool,
}

impl Existing {
    /// Reads a file and keeps its bytes if there are at most `hold`.
    pub fn look(object: Object, hold: u64, cancel: &Cancel) -> Result<Existing> {
        let content = Content::new(object.open_read()?, object.path.clone(), hold)?;
        let survey = content.survey(None, cancel)?;
        let fresh =
            SystemTime::now().duration_since(content.modified()).unwrap_or_default() < JUST_NOW;
        Ok(Existing { object, content, survey, fresh })
    }

    /// Checks that the file may be written.
    ///
    /// On an overlay file system, opening for writing copies the file up, which gives it another
    /// identity. So this must come before the read whose state is compared later, or not be
    /// followed by a comparison.
    pub fn check_writable(object: &Object) -> Result<()> {
        match object.open_write() {
            // A running program cannot be opened for writing, but it can be replaced.
            Ok(_) | Err(Errno::TXTBSY) => Ok(()),
            Err(errno) => Err(os_error(errno, &object.path)),
        }
    }

    /// Drops the bytes and keeps only what is needed to detect a change.
    pub fn watch(self) -> Watch {
        let length = self.content.bytes().filter(|_| self.fresh).map(<[u8]>::len);
        Watch { object: self.object, stat: self.content.stat, etag: self.survey.etag, length }
    }

    /// Reads the same file again. Returns `None` if it has become longer than `hold`.
    pub fn again(&self, hold: u64, cancel: &Cancel) -> Result<Option<Existing>> {
        let now = Existing::look(self.object.again()?, hold, cancel)?;
        Ok(now.content.bytes().is_some().then_some(now))
    }

    /// Returns whether the content is text.
    pub fn is_text(&self) -> bool {
        !self.survey.found.binary
    }

    /// Returns the decoded text, if the file is text and its bytes were kept.
    pub fn text(&self) -> Option<String> {
        let bytes = self.content.bytes().filter(|_| self.is_text())?;
        Some(
            self.survey
                .found
                .encoding
                .decode_without_bom_handling(&bytes[self.survey.bom..])
                .0
                .into_owned(),
        )
    }

    /// Returns the mode for the new content. Set-user-id and similar bits are dropped, as the
    /// kernel does when an ordinary user writes a file.
    pub fn plain_mode(&self) -> u32 {
        self.content.stat.st_mode & 0o777
    }

    /// Creates a file with these bytes next to this one, with all other properties copied, ready to
    /// replace it.
    pub fn stage(
        &self,
        dir: &Arc<OwnedFd>,
        name: &OsStr,
        bytes: &[u8],
        mode: u32,
        cancel: &Cancel,
    ) -> Result<Temporary> {
        let path = &self.object.path;
        // A rename needs no permission on the file itself, so check that here.
        Existing::check_writable(&self.object)?;
        // A user who could not read the old file must not be able to read the new one, even while
        // it is being written.
        let mut temporary = Temporary::create(dir, name, path, 0o600)?;
        temporary.write(bytes, cancel)?;
        temporary.inherit(self.content.file(), &self.content.stat, mode)?;
        Ok(temporary)
    }

    /// Changes the content in place through `write`, for a file that has other hard links. Returns
    /// its new etag, or `None` if the file has changed since it was read.
    pub fn write_in_place(
        &self,
        mode: u32,
        cancel: &Cancel,
        write: impl FnOnce(&File) -> Result<()>,
    ) -> Result<Option<String>> {
        let path = &self.object.path;
        let failed = |errno| os_error(errno, path);
        let file = self.object.open_write().map_err(failed)?;
        let _one_at_a_time = store::commit_lock();
        if !same(&fstat(&file).map_err(failed)?, &self.content.stat) || !self.holds_still()? {
            return Ok(None);
        }
        check(cancel)?;
        if mode != self.content.stat.st_mode & 0o7777 {
            fchmod(&file, Mode::from_raw_mode(mode)).map_err(failed)?;
        }
        write(&file)?;
        // The bytes are written, so even a cancelled call gets the correct etag.
        let written = Content::new(self.object.open_read()?, path.clone(), 0)?;
        Ok(Some(written.survey(None, &Cancel::new())?.etag))
    }

    /// Returns whether the bytes are still the ones that were read. A change within the same tick
    /// of the file system's clock is visible only in the bytes themselves, so the bytes of a
    /// recently modified file are compared.
    pub fn holds_still(&self) -> Result<bool> {
        let Some(seen) = self.content.bytes().filter(|_| self.fresh) else { return Ok(true) };
        let now =
            Content::new(self.object.open_read()?, self.object.path.clone(), seen.len() as u64)?;
        Ok(now.bytes() == Some(seen))
    }
}

/// Identity and state of a file that was read, without its bytes.
pub struct Watch {
    object: Object,
    pub stat: Stat,
    etag: String,
    /// Number of bytes to compare, if a comparison is needed.
    length: Option<usize>,
}

impl Watch {
    /// Returns whether the file is unchanged; see [`Existing::holds_still`].
    pub fn holds_still(&self) -> Result<bool> {
        let Some(length) = self.length else { return Ok(true) };
        let now = Content::new(self.object.open_read()?, self.object.path.clone(), length as u64)?;
        Ok(now.bytes().is_some_and(|bytes| etag_of(bytes) == self.etag))
    }
}

/// Returns the error for a file that no longer matches the caller's etag.
pub fn stale(path: &str, current: Option<&str>) -> Error {
    let message = match current {
        Some(_) => format!("{} has changed since it had this etag", quoted(path)),
        None => format!("{} no longer exists", quoted(path)),
    };
    Error::new(Kind::Conflict, message)
        .reason("stale")
        .hint("Read the file again and retry with its current etag.")
        .with("etag", current.map_or(Value::Null, Value::from))
}
