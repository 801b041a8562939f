//! Pruning: removes the oldest files and leaves a sealed record of them.
//!
//! Only whole files are removed, in the order in which they were opened, up to the first that is in
//! use, holds a newer record or is the newest of all. Files are verified before they are removed:
//! one that is not as it was written, or that links something missing, is evidence and stays. The
//! record is on disk before the first file is removed, so a crash leaves files that are recorded as
//! removed; the next pruning removes them.
//!
//! Files are verified without holding the directory lock, so that servers can start in the
//! meantime. Everything the decision depends on is checked again under the lock.

pub(super) mod record;
mod selection;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

pub use self::record::PrunedFile;
use self::record::{PRUNE_EVENT, PruneRecord};
pub use self::selection::KeepReason;
use self::selection::{PruneSelection, broken_log_error, check_links, select_files};
use super::chain::{AuditEntry, RecordLink, RecordMembers};
use super::read::opened_at;
use super::scan::{FileScan, LogProblem, header_links};
use super::sink::LogFile;
use super::store::{
    AuditDirectory, HEAD_SUFFIX, LOG_SUFFIX, head_name, list_names, remove_if_exists,
};
use super::survey::LogSurvey;
use super::verify::unreadable_error;
use crate::base::ids::to_hex;
use crate::base::{Error, Kind, Result};

/// Maximum number of files in one record, so that it stays far below the longest line that can be
/// read back.
const FILES_PER_RECORD: usize = 10_000;

/// Result of a pruning: what it removed, or would remove.
#[derive(Debug, Default)]
pub struct PruneReport {
    /// Files that were, or would be, removed.
    pub removed: Vec<PrunedFile>,
    /// Number of files that an interrupted pruning had recorded but not removed.
    pub leftovers: usize,
    /// First file that is kept, and why.
    pub kept_from: Option<(String, KeepReason)>,
}

/// Returns whether a file was opened before this time, judging by names alone; if so, there may be
/// something to prune. Servers start often, and most of them have nothing to prune.
pub fn has_files_before(root: &Path, before: &str) -> bool {
    let is_ours = |name: &String| name.ends_with(LOG_SUFFIX) || name.ends_with(HEAD_SUFFIX);
    // If the directory cannot be read, let the pruning report it.
    list_names(&super::log_directory(root)).map_or(true, |names| {
        names.iter().filter(|name| is_ours(name)).any(|name| opened_at(name).as_str() < before)
    })
}

/// Returns what [`prune_log`] would remove, without changing anything.
pub fn plan_prune(root: &Path, before: &str) -> Result<PruneReport> {
    let store = AuditDirectory::open_existing(root).map_err(unreadable_error)?;
    let selection = select_files(&store, before, usize::MAX)?;
    let removed =
        selection.files.iter().map(|(name, scan)| describe_pruned_file(name, scan)).collect();
    Ok(PruneReport { removed, leftovers: selection.leftovers, kept_from: selection.kept_from })
}

/// Removes the oldest files whose records were all written before this time, and records the
/// removal under the name of the command or setting that asked for it.
pub fn prune_log(root: &Path, before: &str, pruned_by: &str) -> Result<PruneReport> {
    prune_in_batches(root, before, pruned_by, FILES_PER_RECORD)
}

fn prune_in_batches(
    root: &Path,
    before: &str,
    pruned_by: &str,
    max_files: usize,
) -> Result<PruneReport> {
    let store = AuditDirectory::open_existing(root).map_err(unreadable_error)?;
    if !store.is_owned_by_us().map_err(unreadable_error)? {
        // The server could not read files created by another user, and would treat `latest` as
        // damaged.
        return Err(Error::permission_denied(
            "other_user",
            "the audit log belongs to another user",
        )
        .with_hint("Run this as the user who runs the server."));
    }
    let mut report = PruneReport::default();
    loop {
        let mut selection = select_files(&store, before, max_files)?;
        report.kept_from = selection.kept_from.take();
        let is_last = report.kept_from.is_some() || selection.files.is_empty();
        let (removed, leftovers) = record_and_remove(&store, selection, (pruned_by, before))?;
        report.removed.extend(removed);
        report.leftovers += leftovers;
        if is_last {
            return Ok(report);
        }
    }
}

/// Records the removal, then removes the files. Returns the removed files, and the number of files
/// that an earlier pruning had left behind.
fn record_and_remove(
    store: &AuditDirectory,
    mut selection: PruneSelection,
    (pruned_by, before): (&str, &str),
) -> Result<(Vec<PrunedFile>, usize)> {
    let _lock = store.lock().map_err(unrecorded_error)?;
    let names = store.list_contents().map_err(unreadable_error)?.names;
    let survey = LogSurvey::read(store, &names);
    let leftovers = survey.pruned.find_leftovers(&names);
    // Remove these first: the record that accounts for them may itself be removed below.
    remove_files(store, &leftovers)?;
    // A concurrent pruning may have been faster: do not record again what it has recorded.
    selection
        .files
        .retain(|(name, _)| survey.headers.contains_key(name) && !survey.pruned.names_file(name));
    let selected = selection.by_name();
    for (name, scan) in &selected {
        if store.read_head(name).ok() != scan.head {
            let description = "it was changed while the log was read".to_owned();
            return Err(broken_log_error(&LogProblem {
                file: head_name(name),
                line: 1,
                seq: None,
                description,
            }));
        }
    }
    check_links(store, &survey, &selected)?;
    let removed: Vec<PrunedFile> =
        selection.files.iter().map(|(name, scan)| describe_pruned_file(name, scan)).collect();
    if removed.is_empty() {
        return Ok((removed, leftovers.len()));
    }
    let total = survey.pruned.summary().map(|summary| summary.total.clone()).unwrap_or_default();
    let record = PruneRecord::new(
        (pruned_by, before),
        removed.clone(),
        links_to_removed(&survey, &selected),
        total.add_files(&removed, before),
    );
    let file = write_prune_record(store, &record).map_err(unrecorded_error)?;
    let names: Vec<String> = removed.iter().map(|file| file.file.clone()).collect();
    remove_files(store, &names)?;
    file.close(store).map_err(unrecorded_error)?;
    Ok((removed, leftovers.len()))
}

/// Returns every link from an existing file to one that is, or is about to be, removed.
fn links_to_removed(
    survey: &LogSurvey,
    selected: &BTreeMap<&str, &FileScan>,
) -> BTreeSet<RecordLink> {
    let is_gone = |link: &RecordLink| {
        selected.contains_key(link.file.as_str()) || survey.pruned.covers_link(link)
    };
    survey.headers.values().flat_map(header_links).filter(is_gone).collect()
}

fn describe_pruned_file(name: &str, scan: &FileScan) -> PrunedFile {
    let time = |record: Option<&serde_json::Value>| {
        record.and_then(|record| record["ts"].as_str()).unwrap_or_default().to_owned()
    };
    PrunedFile {
        file: name.to_owned(),
        records: scan.records,
        first: time(scan.header.as_ref()),
        last: time(Some(&scan.last)),
        mac: to_hex(&scan.last_mac),
    }
}

/// Writes the record to a file of its own and syncs it to disk. The caller holds the lock.
fn write_prune_record(store: &AuditDirectory, record: &PruneRecord) -> io::Result<LogFile> {
    let fields = record.to_fields()?;
    let mut file = LogFile::open(store)?;
    file.write(store, &AuditEntry::new(PRUNE_EVENT, RecordMembers::unredacted(&fields)))?;
    file.sync(store)?;
    Ok(file)
}

/// Removes files, oldest first, and each before its head, so that a crash leaves the end of the
/// history intact.
fn remove_files(store: &AuditDirectory, files: &[String]) -> Result<()> {
    let unremoved = |error: io::Error| {
        Error::new(Kind::Unavailable, "the pruning was recorded, but some files could not be removed")
            .with_hint("Check the permissions of the directory `audit` and prune again; `ringfence audit verify` accepts both states.")
            .with_source(error)
    };
    for file in files {
        remove_if_exists(&store.file_path(file)).map_err(unremoved)?;
        remove_if_exists(&store.file_path(&head_name(file))).map_err(unremoved)?;
    }
    store.sync_directory().map_err(unremoved)
}

fn unrecorded_error(error: io::Error) -> Error {
    Error::new(Kind::Unavailable, "the pruning could not be recorded")
        .with_reason("audit_unwritable")
        .with_hint("Free some disk space and check the permissions of the directory `audit`; then prune again.")
        .with_source(error)
}
