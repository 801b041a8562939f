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

use super::atomic_write::{self, TempFile};
use super::content::{ContentSurvey, FileContent, check_cancelled, etag_from_bytes, is_same_state};
use crate::base::workspace::{HeldFile, os_error, quote_path};
use crate::base::{CancelToken, Error, Kind, Result};

/// Longer than the timestamp granularity of any file system.
const RECENT_CHANGE: Duration = Duration::from_secs(3);

/// Existing file, as it was when it was read.
pub struct OldFile {
    pub object: HeldFile,
    pub content: FileContent,
    pub survey: ContentSurvey,
    /// The file was modified shortly before it was read.
    recently_modified: bool,
}

impl OldFile {
    /// Reads a file and keeps its bytes if there are at most `max_snapshot`.
    pub fn inspect(object: HeldFile, max_snapshot: u64, cancel: &CancelToken) -> Result<OldFile> {
        let content = FileContent::new(object.open_read()?, object.path.clone(), max_snapshot)?;
        let survey = content.inspect_text(None, cancel)?;
        let recently_modified =
            SystemTime::now().duration_since(content.modified()).unwrap_or_default()
                < RECENT_CHANGE;
        Ok(OldFile { object, content, survey, recently_modified })
    }

    /// Checks that the file may be written.
    ///
    /// On an overlay file system, opening for writing copies the file up, which gives it another
    /// identity. So this must come before the read whose state is compared later, or not be
    /// followed by a comparison.
    pub fn check_writable(object: &HeldFile) -> Result<()> {
        match object.open_write() {
            // A running program cannot be opened for writing, but it can be replaced.
            Ok(_) | Err(Errno::TXTBSY) => Ok(()),
            Err(errno) => Err(os_error(errno, &object.path)),
        }
    }

    /// Drops the bytes and keeps only what is needed to detect a change.
    pub fn into_fingerprint(self) -> FileFingerprint {
        let length =
            self.content.snapshot_bytes().filter(|_| self.recently_modified).map(<[u8]>::len);
        FileFingerprint {
            object: self.object,
            stat: self.content.stat,
            etag: self.survey.etag,
            compare_len: length,
        }
    }

    /// Reads the same file again. Returns `None` if it has become longer than `max_snapshot`.
    pub fn inspect_again(
        &self,
        max_snapshot: u64,
        cancel: &CancelToken,
    ) -> Result<Option<OldFile>> {
        let current = OldFile::inspect(self.object.try_clone()?, max_snapshot, cancel)?;
        Ok(current.content.snapshot_bytes().is_some().then_some(current))
    }

    /// Returns whether the content is text.
    pub fn is_text(&self) -> bool {
        !self.survey.format.is_binary
    }

    /// Returns the decoded text, if the file is text and its bytes were kept.
    pub fn decoded_text(&self) -> Option<String> {
        let bytes = self.content.snapshot_bytes().filter(|_| self.is_text())?;
        Some(
            self.survey
                .format
                .encoding
                .decode_without_bom_handling(&bytes[self.survey.bom_len..])
                .0
                .into_owned(),
        )
    }

    /// Returns the mode for the new content. Set-user-id and similar bits are dropped, as the
    /// kernel does when an ordinary user writes a file.
    pub fn permission_bits(&self) -> u32 {
        self.content.stat.st_mode & 0o777
    }

    /// Creates a file with these bytes next to this one, with all other properties copied, ready to
    /// replace it.
    pub fn stage_replacement(
        &self,
        dir: &Arc<OwnedFd>,
        name: &OsStr,
        bytes: &[u8],
        mode: u32,
        cancel: &CancelToken,
    ) -> Result<TempFile> {
        let path = &self.object.path;
        // A rename needs no permission on the file itself, so check that here.
        OldFile::check_writable(&self.object)?;
        // A user who could not read the old file must not be able to read the new one, even while
        // it is being written.
        let mut temporary = TempFile::create(dir, name, path, 0o600)?;
        temporary.write(bytes, cancel)?;
        temporary.inherit_metadata(self.content.file(), &self.content.stat, mode)?;
        Ok(temporary)
    }

    /// Changes the content in place through `write`, for a file that has other hard links. Returns
    /// its new etag, or `None` if the file has changed since it was read.
    pub fn write_in_place(
        &self,
        mode: u32,
        cancel: &CancelToken,
        write: impl FnOnce(&File) -> Result<()>,
    ) -> Result<Option<String>> {
        let path = &self.object.path;
        let failed = |errno| os_error(errno, path);
        let file = self.object.open_write().map_err(failed)?;
        let _one_at_a_time = atomic_write::commit_lock();
        if !is_same_state(&fstat(&file).map_err(failed)?, &self.content.stat)
            || !self.is_unchanged()?
        {
            return Ok(None);
        }
        check_cancelled(cancel)?;
        if mode != self.content.stat.st_mode & 0o7777 {
            fchmod(&file, Mode::from_raw_mode(mode)).map_err(failed)?;
        }
        write(&file)?;
        // The bytes are written, so even a cancelled call gets the correct etag.
        let written = FileContent::new(self.object.open_read()?, path.clone(), 0)?;
        Ok(Some(written.inspect_text(None, &CancelToken::new())?.etag))
    }

    /// Returns whether the bytes are still the ones that were read. A change within the same tick
    /// of the file system's clock is visible only in the bytes themselves, so the bytes of a
    /// recently modified file are compared.
    pub fn is_unchanged(&self) -> Result<bool> {
        let Some(old_bytes) = self.content.snapshot_bytes().filter(|_| self.recently_modified)
        else {
            return Ok(true);
        };
        let current = FileContent::new(
            self.object.open_read()?,
            self.object.path.clone(),
            old_bytes.len() as u64,
        )?;
        Ok(current.snapshot_bytes() == Some(old_bytes))
    }
}

/// Identity and state of a file that was read, without its bytes.
pub struct FileFingerprint {
    object: HeldFile,
    pub stat: Stat,
    etag: String,
    /// Number of bytes to compare, if a comparison is needed.
    compare_len: Option<usize>,
}

impl FileFingerprint {
    /// Returns whether the file is unchanged; see [`OldFile::is_unchanged`].
    pub fn is_unchanged(&self) -> Result<bool> {
        let Some(length) = self.compare_len else { return Ok(true) };
        let current =
            FileContent::new(self.object.open_read()?, self.object.path.clone(), length as u64)?;
        Ok(current.snapshot_bytes().is_some_and(|bytes| etag_from_bytes(bytes) == self.etag))
    }
}

/// Returns the error for a file that no longer matches the caller's etag.
pub fn stale_error(path: &str, current: Option<&str>) -> Error {
    let message = match current {
        Some(_) => format!("{} has changed since it had this etag", quote_path(path)),
        None => format!("{} no longer exists", quote_path(path)),
    };
    Error::new(Kind::Conflict, message)
        .with_reason("stale")
        .with_hint("Read the file again and retry with its current etag.")
        .with_fact("etag", current.map_or(Value::Null, Value::from))
}
