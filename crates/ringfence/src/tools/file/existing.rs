//! A file that is there already and is about to be written: what it holds, and what has to stay of it.

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

/// Longer than the tick of any file system's clock.
const JUST_NOW: Duration = Duration::from_secs(3);

pub struct Existing {
    pub object: Object,
    pub content: Content,
    pub survey: Survey,
    /// It was changed shortly before it was looked at.
    fresh: bool,
}

impl Existing {
    /// Looks at a file, holding its bytes when there are at most `hold`.
    pub fn look(object: Object, hold: u64, cancel: &Cancel) -> Result<Existing> {
        let content = Content::new(object.open_read()?, object.path.clone(), hold)?;
        let survey = content.survey(None, cancel)?;
        let fresh =
            SystemTime::now().duration_since(content.modified()).unwrap_or_default() < JUST_NOW;
        Ok(Existing { object, content, survey, fresh })
    }

    /// Whether it may be written at all. On a file system in layers this makes a copy of it, and it is another
    /// file's state from then on: so it comes before the look that is compared with, or before none.
    pub fn check_writable(object: &Object) -> Result<()> {
        match object.open_write() {
            // A program that is running cannot be opened for writing, but it can be replaced.
            Ok(_) | Err(Errno::TXTBSY) => Ok(()),
            Err(errno) => Err(os_error(errno, &object.path)),
        }
    }

    /// What it takes to see whether it is still the same, without its bytes.
    pub fn watch(self) -> Watch {
        let length = self.content.bytes().filter(|_| self.fresh).map(<[u8]>::len);
        Watch { object: self.object, stat: self.content.stat, etag: self.survey.etag, length }
    }

    /// The same file as it is now; None when it has become longer than `hold`.
    pub fn again(&self, hold: u64, cancel: &Cancel) -> Result<Option<Existing>> {
        let now = Existing::look(self.object.again()?, hold, cancel)?;
        Ok(now.content.bytes().is_some().then_some(now))
    }

    pub fn is_text(&self) -> bool {
        !self.survey.found.binary
    }

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

    /// Its mode as new bytes have it: set-user-id and the like do not survive them, as the kernel has it for
    /// ordinary users.
    pub fn plain_mode(&self) -> u32 {
        self.content.stat.st_mode & 0o777
    }

    /// A file of these bytes beside it that is otherwise what it is, ready to take its place.
    pub fn stage(
        &self,
        dir: &Arc<OwnedFd>,
        name: &OsStr,
        bytes: &[u8],
        mode: u32,
        cancel: &Cancel,
    ) -> Result<Temporary> {
        let path = &self.object.path;
        // A rename asks for no right to the file itself, so that is asked for here.
        Existing::check_writable(&self.object)?;
        // Nobody who could not read the old file may read the new one, not even while it is written.
        let mut temporary = Temporary::create(dir, name, path, 0o600)?;
        temporary.write(bytes, cancel)?;
        temporary.inherit(self.content.file(), &self.content.stat, mode)?;
        Ok(temporary)
    }

    /// Gives it other bytes without making another file of it, for one that has other names too. `write` does that; None
    /// when it is not what it was any more. Else its etag now.
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
        // The bytes are there now, so a cancelled call still gets its true etag.
        let written = Content::new(self.object.open_read()?, path.clone(), 0)?;
        Ok(Some(written.survey(None, &Cancel::new())?.etag))
    }

    /// Whether its bytes are still the ones that were seen. A change that comes within the same tick of the file
    /// system's clock leaves no trace but the bytes themselves, so those of a file changed just now are compared.
    pub fn holds_still(&self) -> Result<bool> {
        let Some(seen) = self.content.bytes().filter(|_| self.fresh) else { return Ok(true) };
        let now =
            Content::new(self.object.open_read()?, self.object.path.clone(), seen.len() as u64)?;
        Ok(now.bytes() == Some(seen))
    }
}

/// A file that was looked at, by what it was then.
pub struct Watch {
    object: Object,
    pub stat: Stat,
    etag: String,
    /// Of its bytes, where they have to be compared.
    length: Option<usize>,
}

impl Watch {
    /// As [`Existing::holds_still`].
    pub fn holds_still(&self) -> Result<bool> {
        let Some(length) = self.length else { return Ok(true) };
        let now = Content::new(self.object.open_read()?, self.object.path.clone(), length as u64)?;
        Ok(now.bytes().is_some_and(|bytes| etag_of(bytes) == self.etag))
    }
}

/// It is not what the caller thinks that it is.
pub fn stale(path: &str, current: Option<&str>) -> Error {
    let message = match current {
        Some(_) => format!("{} has changed since it had this etag", quoted(path)),
        None => format!("{} is not there any more", quoted(path)),
    };
    Error::new(Kind::Conflict, message)
        .reason("stale")
        .hint("Read the file again, and write with the etag it has now.")
        .with("etag", current.map_or(Value::Null, Value::from))
}
