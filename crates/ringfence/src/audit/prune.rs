//! Pruning: the oldest files go, and a sealed record stays.
//!
//! Only whole files are removed, in the order in which they were opened, up to the first that is in use, holds a newer
//! record or is the newest of all. What is removed is read through first: a file that is not as it was written, or that
//! links something that is missing, is evidence and stays. The record is on the disk before the first file goes, so a
//! crash leaves files that are recorded as removed; the next pruning removes them.
//!
//! Files are read through without the lock of the directory, so that servers can start meanwhile. What decides is
//! looked at again under it.

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

/// One record names no more files than this, so that it stays far below the longest line that can be read back.
const FILES_PER_RECORD: usize = 10_000;

/// What a pruning removed, or would remove.
#[derive(Debug, Default)]
pub struct PruneReport {
    pub removed: Vec<PrunedFile>,
    /// Files that an interrupted pruning had recorded and left.
    pub leftovers: usize,
    /// The first file that stays.
    pub kept_from: Option<(String, KeptBecause)>,
}

/// Whether a file was opened before this time, judged by names alone: a pruning may have something to do. Servers
/// start often, and most of them have nothing to prune.
pub fn has_files_before(root: &Path, before: &str) -> bool {
    let is_ours = |name: &String| name.ends_with(LOG) || name.ends_with(HEAD);
    // A directory that cannot be read is for the pruning to report.
    names(&root.join("audit")).map_or(true, |names| {
        names.iter().filter(|name| is_ours(name)).any(|name| opened_at(name).as_str() < before)
    })
}

/// Finds what [`prune`] would remove, and changes nothing.
pub fn plan_prune(root: &Path, before: &str) -> Result<PruneReport> {
    let store = Store::existing(root).map_err(unreadable)?;
    let selection = select(&store, before, usize::MAX)?;
    let removed = selection.files.iter().map(|(name, scan)| pruned_file(name, scan)).collect();
    Ok(PruneReport { removed, leftovers: selection.leftovers, kept_from: selection.kept_from })
}

/// Removes the oldest files whose records were all written before this time, and records it under the name of the
/// command or setting that asked for it.
pub fn prune(root: &Path, before: &str, by: &str) -> Result<PruneReport> {
    prune_in_batches(root, before, by, FILES_PER_RECORD)
}

fn prune_in_batches(root: &Path, before: &str, by: &str, at_most: usize) -> Result<PruneReport> {
    let store = Store::existing(root).map_err(unreadable)?;
    if !store.is_owned_by_us().map_err(unreadable)? {
        // The server could not read what another user leaves there, and would take `latest` for damaged.
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

/// Records the removal and removes. Returns what went, and how many files an earlier pruning had left.
fn carry_out(
    store: &Store,
    mut selection: PruneSelection,
    (by, before): (&str, &str),
) -> Result<(Vec<PrunedFile>, usize)> {
    let _lock = store.lock().map_err(unrecorded)?;
    let names = store.contents().map_err(unreadable)?.names;
    let survey = LogSurvey::read(store, &names);
    let leftovers = survey.pruned.leftovers(&names);
    // They are accounted for. The record that does so may be about to go itself, so they go first.
    remove(store, &leftovers)?;
    // Another pruning may have been quicker: what it recorded is not recorded again.
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

/// Every link of a file that is there now to one that will not be.
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

/// A file of its own that is safely on the disk. The caller holds the lock.
fn write_record(store: &Store, record: &PruneRecord) -> io::Result<LogFile> {
    let fields = record.to_fields()?;
    let mut file = LogFile::open(store)?;
    file.write(store, &Entry { ts: now_utc(), event: EVENT.to_owned(), fields })?;
    file.sync(store)?;
    Ok(file)
}

/// Oldest first, and each before its head: what a crash leaves is the end of the history.
fn remove(store: &Store, files: &[String]) -> Result<()> {
    let unremoved = |error: io::Error| {
        Error::new(Kind::Unavailable, "the pruning is recorded, but some of its files could not be removed")
            .hint("Check the rights of the directory `audit` and prune again; `ringfence audit verify` accepts both states.")
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
        .hint("Make room on the disk and check the rights of the directory `audit`; then prune again.")
        .source(error)
}
