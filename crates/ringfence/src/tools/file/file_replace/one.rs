//! Edits in one file.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::document::Document;
use super::edit::{Edit, Tally, apply};
use super::{Args, Diff, MAX_BYTES, Reply};
use crate::base::workspace::{Place, Workspace, quoted};
use crate::base::{Cancel, Error, Kind, Result};
use crate::tools::file::content::{check, etag_of};
use crate::tools::file::diff::{Changes, changes};
use crate::tools::file::existing::{Existing, stale};
use crate::tools::file::store;

/// Attempts before giving up because another process keeps changing the file.
const TRIES: usize = 8;

/// Edits the file in `args`, and starts over if it is changed in the meantime.
pub fn replace(workspace: &Workspace, args: &Args, cancel: &Cancel) -> Result<Reply> {
    let edits = args.compile()?;
    for _ in 0..TRIES {
        check(cancel)?;
        let file = Found::open(workspace, &args.path, cancel)?;
        if args.if_match.as_ref().is_some_and(|wanted| *wanted != file.old.survey.etag) {
            return Err(stale(&file.old.object.path, Some(&file.old.survey.etag)));
        }
        let edited = file.edit(&edits, true, cancel)?;
        args.check_total(edited.total())?;
        let reply = edited.reply(&file.old, args);
        if args.dry_run() && edited.bytes.is_some() {
            Existing::check_writable(&file.old.object)?;
        }
        if args.dry_run() || edited.bytes.is_none() || file.put(&edited, cancel)? {
            return Ok(reply);
        }
    }
    Err(busy(&args.path))
}

/// Returns the error for a file that keeps changing.
pub fn busy(path: &str) -> Error {
    Error::new(Kind::Conflict, format!("{} keeps changing while it is being edited", quoted(path)))
        .reason("busy")
        .hint("Nothing was written. Stop the process that writes to it, or try again.")
}

/// Text file to edit.
pub struct Found {
    pub dir: Arc<OwnedFd>,
    pub name: OsString,
    pub old: Existing,
}

/// Result of applying edits to a file in memory.
pub struct Edited {
    /// New bytes; `None` if nothing changes.
    pub bytes: Option<Vec<u8>>,
    pub etag: String,
    pub tallies: Vec<Tally>,
    before: String,
    after: String,
}

impl Found {
    /// Opens a file that may turn out to need no change.
    pub fn open(workspace: &Workspace, path: &str, cancel: &Cancel) -> Result<Found> {
        Found::at(workspace, path, false, cancel)
    }

    /// Opens a file that is certain to be written: checks that it may be written before reading it.
    pub fn open_to_write(workspace: &Workspace, path: &str, cancel: &Cancel) -> Result<Found> {
        Found::at(workspace, path, true, cancel)
    }

    fn at(workspace: &Workspace, path: &str, write: bool, cancel: &Cancel) -> Result<Found> {
        let Place::Ready { dir, name, existing: Some(object), .. } =
            workspace.place(path, false)?
        else {
            return Err(workspace.no_such(path));
        };
        if write {
            Existing::check_writable(&object)?;
        }
        let old = Existing::look(object, MAX_BYTES as u64, cancel)?;
        let shown = quoted(&old.object.path);
        if old.content.bytes().is_none() {
            return Err(Error::new(
                Kind::TooLarge,
                format!("{shown} is larger than {MAX_BYTES} bytes"),
            )
            .hint("Edit it with a command (sed, a script) through shell.exec."));
        }
        if !old.is_text() {
            return Err(Error::invalid_arguments(format!("{shown} is not a text file"))
                .reason("binary_file")
                .hint("Use file.write with encoding base64, or a command through shell.exec."));
        }
        Ok(Found { dir: Arc::new(dir), name, old })
    }

    /// Applies the edits to the bytes that were read. Does not touch the file.
    pub fn edit(&self, edits: &[Edit], strict: bool, cancel: &Cancel) -> Result<Edited> {
        let survey = &self.old.survey;
        let bytes = self.old.content.bytes().unwrap_or_default();
        let document = Document::new(
            Cow::Borrowed(bytes),
            survey.bom,
            survey.found.encoding,
            survey.found.eol,
        );
        let before = document.text().to_owned();
        let (document, tallies) = apply(document, edits, strict, MAX_BYTES, cancel)?;
        let changed = document.bytes() != bytes;
        let etag = if changed { etag_of(document.bytes()) } else { survey.etag.clone() };
        let after = document.text().to_owned();
        Ok(Edited { bytes: changed.then(|| document.into_bytes()), etag, tallies, before, after })
    }

    /// Writes the new bytes. Returns false, with nothing changed, if the file is no longer what was
    /// read.
    fn put(&self, edited: &Edited, cancel: &Cancel) -> Result<bool> {
        let (old, bytes) = (&self.old, edited.bytes.as_deref().unwrap_or_default());
        let mode = old.plain_mode();
        if old.content.stat.st_nlink > 1 {
            let write = |file: &std::fs::File| {
                store::overwrite(file, old.content.bytes(), bytes, &old.object.path)
            };
            return Ok(old.write_in_place(mode, cancel, write)?.is_some());
        }
        let temporary = old.stage(&self.dir, &self.name, bytes, mode, cancel)?;
        let Some(exchanged) = temporary.exchange(&self.name, &old.content.stat)? else {
            return Ok(false);
        };
        Ok(exchanged.if_still(old.holds_still())?.is_some())
    }
}

impl Edited {
    /// Returns the number of matches of all edits.
    pub fn total(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.count).sum()
    }

    /// Returns the changed lines, or `None` if they were not requested or the texts are too long to
    /// compare.
    pub fn changes(&self, path: &str, diff: Diff) -> Option<Changes> {
        match diff {
            Diff::None => None,
            Diff::Stat => changes(path, &self.before, &self.after, false),
            Diff::Unified => changes(path, &self.before, &self.after, true),
        }
    }

    fn reply(&self, old: &Existing, args: &Args) -> Reply {
        let path = old.object.path.clone();
        let changes = self.changes(&path, args.diff.unwrap_or_default());
        Reply {
            etag: Some(self.etag.clone()),
            previous_etag: Some(old.survey.etag.clone()),
            replacements: self.total(),
            edits: self.tallies.iter().cloned().map(Into::into).collect(),
            lines_added: changes.as_ref().map(|changes| changes.added),
            lines_removed: changes.as_ref().map(|changes| changes.removed),
            diff: changes.and_then(|changes| changes.unified),
            dry_run: args.dry_run(),
            path,
            ..Reply::default()
        }
    }
}
