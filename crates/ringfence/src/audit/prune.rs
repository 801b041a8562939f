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
use self::record::{EVENT, PruneRecord};
pub use self::selection::KeptBecause;
use self::selection::{PruneSelection, broken_log, check_links, select};
use super::chain::{Entry, Link};
use super::read::opened_at;
use super::scan::{Problem, Scan, links};
use super::sink::LogFile;
use super::store::{HEAD, LOG, Store, head_of, names, remove_if_there};
use super::survey::LogSurvey;
use super::verify::unreadable;
use crate::base::clock::now_utc;
use crate::base::ids::hex;
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
    pub kept_from: Option<(String, KeptBecause)>,
}

/// Returns whether a file was opened before this time, judging by names alone; if so, there may be
/// something to prune. Servers start often, and most of them have nothing to prune.
pub fn has_files_before(root: &Path, before: &str) -> bool {
    let is_ours = |name: &String| name.ends_with(LOG) || name.ends_with(HEAD);
    // If the directory cannot be read, let the pruning report it.
    names(&root.join("audit")).map_or(true, |names| {
        names.iter().filter(|name| is_ours(name)).any(|name| opened_at(name).as_str() < before)
    })
}

/// Returns what [`prune`] would remove, without changing anything.
pub fn plan_prune(root: &Path, before: &str) -> Result<PruneReport> {
    let store = Store::existing(root).map_err(unreadable)?;
    let selection = select(&store, before, usize::MAX)?;
    let removed = selection.files.iter().map(|(name, scan)| pruned_file(name, scan)).collect();
    Ok(PruneReport { removed, leftovers: selection.leftovers, kept_from: selection.kept_from })
}

/// Removes the oldest files whose records were all written before this time, and records the
/// removal under the name of the command or setting that asked for it.
pub fn prune(root: &Path, before: &str, by: &str) -> Result<PruneReport> {
    prune_in_batches(root, before, by, FILES_PER_RECORD)
}

fn prune_in_batches(root: &Path, before: &str, by: &str, at_most: usize) -> Result<PruneReport> {
    let store = Store::existing(root).map_err(unreadable)?;
    if !store.is_owned_by_us().map_err(unreadable)? {
        // The server could not read files created by another user, and would treat `latest` as
        // damaged.
        return Err(Error::permission_denied(
            "other_user",
            "the audit log belongs to another user",
        )
        .hint("Run this as the user who runs the server."));
    }
    let mut report = PruneReport::default();
    loop {
        let mut selection = select(&store, before, at_most)?;
        report.kept_from = selection.kept_from.take();
        let is_last = report.kept_from.is_some() || selection.files.is_empty();
        let (removed, leftovers) = carry_out(&store, selection, (by, before))?;
        report.removed.extend(removed);
        report.leftovers += leftovers;
        if is_last {
            return Ok(report);
        }
    }
}

/// Records the removal, then removes the files. Returns the removed files, and the number of files
/// that an earlier pruning had left behind.
fn carry_out(
    store: &Store,
    mut selection: PruneSelection,
    (by, before): (&str, &str),
) -> Result<(Vec<PrunedFile>, usize)> {
    let _lock = store.lock().map_err(unrecorded)?;
    let names = store.contents().map_err(unreadable)?.names;
    let survey = LogSurvey::read(store, &names);
    let leftovers = survey.pruned.leftovers(&names);
    // Remove these first: the record that accounts for them may itself be removed below.
    remove(store, &leftovers)?;
    // A concurrent pruning may have been faster: do not record again what it has recorded.
    selection
        .files
        .retain(|(name, _)| survey.headers.contains_key(name) && !survey.pruned.names(name));
    let selected = selection.by_name();
    for (name, scan) in &selected {
        if store.head(name).ok() != scan.head {
            let what = "it was changed while the log was read".to_owned();
            return Err(broken_log(&Problem { file: head_of(name), line: 1, seq: None, what }));
        }
    }
    check_links(store, &survey, &selected)?;
    let removed: Vec<PrunedFile> =
        selection.files.iter().map(|(name, scan)| pruned_file(name, scan)).collect();
    if removed.is_empty() {
        return Ok((removed, leftovers.len()));
    }
    let total = survey.pruned.summary().map(|summary| summary.total.clone()).unwrap_or_default();
    let record = PruneRecord::new(
        (by, before),
        removed.clone(),
        links_to_gone(&survey, &selected),
        total.add(&removed, before),
    );
    let file = write_record(store, &record).map_err(unrecorded)?;
    let names: Vec<String> = removed.iter().map(|file| file.file.clone()).collect();
    remove(store, &names)?;
    file.close(store).map_err(unrecorded)?;
    Ok((removed, leftovers.len()))
}

/// Returns every link from an existing file to one that is, or is about to be, removed.
fn links_to_gone(survey: &LogSurvey, selected: &BTreeMap<&str, &Scan>) -> BTreeSet<Link> {
    let is_gone =
        |link: &Link| selected.contains_key(link.file.as_str()) || survey.pruned.covers(link);
    survey.headers.values().flat_map(links).filter(is_gone).collect()
}

fn pruned_file(name: &str, scan: &Scan) -> PrunedFile {
    let time = |record: Option<&serde_json::Value>| {
        record.and_then(|record| record["ts"].as_str()).unwrap_or_default().to_owned()
    };
    PrunedFile {
        file: name.to_owned(),
        records: scan.records,
        first: time(scan.header.as_ref()),
        last: time(Some(&scan.last)),
        mac: hex(&scan.last_mac),
    }
}

/// Writes the record to a file of its own and syncs it to disk. The caller holds the lock.
fn write_record(store: &Store, record: &PruneRecord) -> io::Result<LogFile> {
    let fields = record.to_fields()?;
    let mut file = LogFile::open(store)?;
    file.write(store, &Entry { ts: now_utc(), event: EVENT.to_owned(), fields })?;
    file.sync(store)?;
    Ok(file)
}

/// Removes files, oldest first, and each before its head, so that a crash leaves the end of the
/// history intact.
fn remove(store: &Store, files: &[String]) -> Result<()> {
    let unremoved = |error: io::Error| {
        Error::new(Kind::Unavailable, "the pruning was recorded, but some files could not be removed")
            .hint("Check the permissions of the directory `audit` and prune again; `ringfence audit verify` accepts both states.")
            .source(error)
    };
    for file in files {
        remove_if_there(&store.path(file)).map_err(unremoved)?;
        remove_if_there(&store.path(&head_of(file))).map_err(unremoved)?;
    }
    store.sync().map_err(unremoved)
}

fn unrecorded(error: io::Error) -> Error {
    Error::new(Kind::Unavailable, "the pruning could not be recorded")
        .reason("audit_unwritable")
        .hint("Free some disk space and check the permissions of the directory `audit`; then prune again.")
        .source(error)
}
