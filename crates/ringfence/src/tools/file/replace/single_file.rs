//! Edits in one file.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::document::TextDocument;
use super::edit::{CompiledEdit, MatchTally, apply_edits};
use super::{Args, MAX_BYTES, ReplaceDiffMode, Reply};
use crate::base::workspace::{Workspace, WriteTarget, quote_path};
use crate::base::{CancelToken, Error, Kind, Result};
use crate::tools::file::atomic_write;
use crate::tools::file::content::{check_cancelled, etag_from_bytes};
use crate::tools::file::diff::{LineChanges, diff_lines};
use crate::tools::file::old_file::{OldFile, stale_error};

/// Attempts before giving up because another process keeps changing the file.
const MAX_ATTEMPTS: usize = 8;

/// Edits the file in `args`, and starts over if it is changed in the meantime.
pub fn replace_in_file(workspace: &Workspace, args: &Args, cancel: &CancelToken) -> Result<Reply> {
    let edits = args.compile_edits()?;
    for _ in 0..MAX_ATTEMPTS {
        check_cancelled(cancel)?;
        let file = EditTarget::open(workspace, &args.path, cancel)?;
        if args
            .if_match
            .as_ref()
            .is_some_and(|expected_etag| *expected_etag != file.old.survey.etag)
        {
            return Err(stale_error(&file.old.object.path, Some(&file.old.survey.etag)));
        }
        let outcome = file.preview_edits(&edits, true, cancel)?;
        args.check_total(outcome.total_matches())?;
        let reply = outcome.build_reply(&file.old, args);
        if args.is_dry_run() && outcome.bytes.is_some() {
            OldFile::check_writable(&file.old.object)?;
        }
        if args.is_dry_run() || outcome.bytes.is_none() || file.write_back(&outcome, cancel)? {
            return Ok(reply);
        }
    }
    Err(busy_error(&args.path))
}

/// Returns the error for a file that keeps changing.
pub fn busy_error(path: &str) -> Error {
    Error::new(
        Kind::Conflict,
        format!("{} keeps changing while it is being edited", quote_path(path)),
    )
    .with_reason("busy")
    .with_hint("Nothing was written. Stop the process that writes to it, or try again.")
}

/// Text file to edit.
pub struct EditTarget {
    pub dir: Arc<OwnedFd>,
    pub name: OsString,
    pub old: OldFile,
}

/// Result of applying edits to a file in memory.
pub struct EditOutcome {
    /// New bytes; `None` if nothing changes.
    pub bytes: Option<Vec<u8>>,
    pub etag: String,
    pub tallies: Vec<MatchTally>,
    before: String,
    after: String,
}

impl EditTarget {
    /// Opens a file that may turn out to need no change.
    pub fn open(workspace: &Workspace, path: &str, cancel: &CancelToken) -> Result<EditTarget> {
        EditTarget::open_with(workspace, path, false, cancel)
    }

    /// Opens a file that is certain to be written: checks that it may be written before reading it.
    pub fn open_to_write(
        workspace: &Workspace,
        path: &str,
        cancel: &CancelToken,
    ) -> Result<EditTarget> {
        EditTarget::open_with(workspace, path, true, cancel)
    }

    fn open_with(
        workspace: &Workspace,
        path: &str,
        for_writing: bool,
        cancel: &CancelToken,
    ) -> Result<EditTarget> {
        let WriteTarget::Ready { dir, name, existing: Some(object), .. } =
            workspace.find_write_target(path, false)?
        else {
            return Err(workspace.not_found_error(path));
        };
        if for_writing {
            OldFile::check_writable(&object)?;
        }
        let old = OldFile::inspect(object, MAX_BYTES as u64, cancel)?;
        let shown_path = quote_path(&old.object.path);
        if old.content.snapshot_bytes().is_none() {
            return Err(Error::new(
                Kind::TooLarge,
                format!("{shown_path} is larger than {MAX_BYTES} bytes"),
            )
            .with_hint("Edit it with a command (sed, a script) through shell.exec."));
        }
        if !old.is_text() {
            return Err(Error::invalid_arguments(format!("{shown_path} is not a text file"))
                .with_reason("binary_file")
                .with_hint(
                    "Use file.write with encoding base64, or a command through shell.exec.",
                ));
        }
        Ok(EditTarget { dir: Arc::new(dir), name, old })
    }

    /// Applies the edits to the bytes that were read. Does not touch the file.
    pub fn preview_edits(
        &self,
        edits: &[CompiledEdit],
        strict: bool,
        cancel: &CancelToken,
    ) -> Result<EditOutcome> {
        let survey = &self.old.survey;
        let bytes = self.old.content.snapshot_bytes().unwrap_or_default();
        let document = TextDocument::new(
            Cow::Borrowed(bytes),
            survey.bom_len,
            survey.format.encoding,
            survey.format.eol,
        );
        let before = document.text().to_owned();
        let (document, tallies) = apply_edits(document, edits, strict, MAX_BYTES, cancel)?;
        let changed = document.bytes() != bytes;
        let etag = if changed { etag_from_bytes(document.bytes()) } else { survey.etag.clone() };
        let after = document.text().to_owned();
        Ok(EditOutcome {
            bytes: changed.then(|| document.into_bytes()),
            etag,
            tallies,
            before,
            after,
        })
    }

    /// Writes the new bytes. Returns false, with nothing changed, if the file is no longer what was
    /// read.
    fn write_back(&self, outcome: &EditOutcome, cancel: &CancelToken) -> Result<bool> {
        let (old, bytes) = (&self.old, outcome.bytes.as_deref().unwrap_or_default());
        let mode = old.permission_bits();
        if old.content.stat.st_nlink > 1 {
            let write = |file: &std::fs::File| {
                atomic_write::overwrite_in_place(
                    file,
                    old.content.snapshot_bytes(),
                    bytes,
                    &old.object.path,
                )
            };
            return Ok(old.write_in_place(mode, cancel, write)?.is_some());
        }
        let temporary = old.stage_replacement(&self.dir, &self.name, bytes, mode, cancel)?;
        let Some(exchanged) = temporary.exchange_with(&self.name, &old.content.stat)? else {
            return Ok(false);
        };
        Ok(exchanged.confirm_or_restore(old.is_unchanged())?.is_some())
    }
}

impl EditOutcome {
    /// Returns the number of matches of all edits.
    pub fn total_matches(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.count).sum()
    }

    /// Returns the changed lines, or `None` if they were not requested or the texts are too long to
    /// compare.
    pub fn line_changes(&self, path: &str, diff: ReplaceDiffMode) -> Option<LineChanges> {
        match diff {
            ReplaceDiffMode::None => None,
            ReplaceDiffMode::Stat => diff_lines(path, &self.before, &self.after, false),
            ReplaceDiffMode::Unified => diff_lines(path, &self.before, &self.after, true),
        }
    }

    fn build_reply(&self, old: &OldFile, args: &Args) -> Reply {
        let path = old.object.path.clone();
        let changes = self.line_changes(&path, args.diff.unwrap_or_default());
        Reply {
            etag: Some(self.etag.clone()),
            previous_etag: Some(old.survey.etag.clone()),
            replacements: self.total_matches(),
            edits: self.tallies.iter().cloned().map(Into::into).collect(),
            lines_added: changes.as_ref().map(|changes| changes.added),
            lines_removed: changes.as_ref().map(|changes| changes.removed),
            diff: changes.and_then(|changes| changes.unified_diff),
            dry_run: args.is_dry_run(),
            path,
            ..Reply::default()
        }
    }
}
