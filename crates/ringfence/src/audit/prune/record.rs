//! The sealed record of a pruning, and the combined history of all such records in a log.
//!
//! A record names every file that it removes, with its number of records and its last mac. It also
//! contains each link to a removed file that does not point to that last record, or that an older
//! pruning had left. So the newest record alone accounts for everything that is missing, files with
//! older prune records can be pruned too, and a record never contains more links than there are
//! files.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::audit::chain::RecordLink;
use crate::audit::store::{HEAD_SUFFIX, LOG_SUFFIX};

/// Event name of the record.
pub(in crate::audit) const PRUNE_EVENT: &str = "prune";

/// File that was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrunedFile {
    /// Name of the file.
    pub file: String,
    /// Number of records, which is also the `seq` of the last one.
    pub records: u64,
    /// Time of its first record.
    pub first: String,
    /// Time of its last record.
    pub last: String,
    /// Mac of its last record.
    pub mac: String,
}

impl PrunedFile {
    fn link_to_last(&self) -> RecordLink {
        RecordLink { file: self.file.clone(), record: Some((self.records, self.mac.clone())) }
    }
}

/// Sum of everything pruned from a log so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PruneTotal {
    /// Number of files.
    pub files: u64,
    /// Number of records.
    pub records: u64,
    /// Time of the first of these records.
    pub first: String,
    /// Time before which all of them were written.
    pub before: String,
}

impl PruneTotal {
    pub(in crate::audit) fn add_files(
        mut self,
        removed: &[PrunedFile],
        before: &str,
    ) -> PruneTotal {
        if self.files == 0 {
            self.first = removed.first().map(|file| file.first.clone()).unwrap_or_default();
        }
        self.files += removed.len() as u64;
        self.records += removed.iter().map(|file| file.records).sum::<u64>();
        self.before = self.before.max(before.to_owned());
        self
    }
}

/// Record of one pruning, as it is stored in the log.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::audit) struct PruneRecord {
    #[serde(skip_serializing)]
    ts: String,
    /// Command or setting that asked for it.
    by: String,
    before: String,
    removed: Vec<PrunedFile>,
    links: Vec<Value>,
    total: PruneTotal,
}

impl PruneRecord {
    /// Creates the record that accounts for `removed`. `links` are the links of all files to files
    /// that are removed, now or earlier.
    pub(in crate::audit) fn new(
        (pruned_by, before): (&str, &str),
        removed: Vec<PrunedFile>,
        mut links: BTreeSet<RecordLink>,
        total: PruneTotal,
    ) -> PruneRecord {
        for file in &removed {
            links.remove(&file.link_to_last());
        }
        let links = links.iter().map(RecordLink::to_json).collect();
        PruneRecord {
            ts: String::new(),
            by: pruned_by.to_owned(),
            before: before.to_owned(),
            removed,
            links,
            total,
        }
    }

    pub(in crate::audit) fn to_fields(&self) -> serde_json::Result<Map<String, Value>> {
        match serde_json::to_value(self)? {
            Value::Object(fields) => Ok(fields),
            _ => Ok(Map::new()),
        }
    }

    /// Parses a prune record; returns None for any other record.
    pub(in crate::audit) fn from_line(line: &[u8]) -> Option<PruneRecord> {
        #[derive(Deserialize)]
        struct AnyRecord {
            event: String,
        }
        let record: AnyRecord = serde_json::from_slice(line).ok()?;
        if record.event == PRUNE_EVENT { serde_json::from_slice(line).ok() } else { None }
    }
}

/// Newest pruning and the sum of all, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PruneSummary {
    /// Sum of all prunings.
    pub total: PruneTotal,
    /// Time at which the newest was recorded.
    pub ts: String,
    /// Command or setting that asked for the newest.
    pub by: String,
}

/// Combined content of all verified prune records.
#[derive(Debug, Default)]
pub(in crate::audit) struct PruneHistory {
    files: BTreeSet<String>,
    links: BTreeSet<RecordLink>,
    newest: Option<PruneSummary>,
}

impl PruneHistory {
    pub(in crate::audit) fn add_record(&mut self, record: PruneRecord) {
        self.links.extend(record.links.iter().filter_map(RecordLink::from_json));
        self.links.extend(record.removed.iter().map(PrunedFile::link_to_last));
        self.files.extend(record.removed.into_iter().map(|file| file.file));
        // Each pruning adds to the previous sum, so the largest sum is the newest.
        if self.newest.as_ref().is_none_or(|newest| newest.total.files < record.total.files) {
            self.newest = Some(PruneSummary { total: record.total, ts: record.ts, by: record.by });
        }
    }

    /// Returns whether the record that this link names was pruned.
    pub(in crate::audit) fn covers_link(&self, link: &RecordLink) -> bool {
        self.links.contains(link)
    }

    /// Returns whether this file was pruned, as far as the record that says so still exists.
    pub(in crate::audit) fn names_file(&self, file: &str) -> bool {
        self.files.contains(file)
    }

    pub(in crate::audit) fn summary(&self) -> Option<&PruneSummary> {
        self.newest.as_ref()
    }

    /// Returns files that were recorded as pruned but still exist, in whole or in part, oldest
    /// first.
    pub(in crate::audit) fn find_leftovers(&self, names: &[String]) -> Vec<String> {
        let logs = names.iter().filter_map(|name| {
            name.strip_suffix(LOG_SUFFIX).or_else(|| name.strip_suffix(HEAD_SUFFIX))
        });
        let leftovers: BTreeSet<String> = logs
            .map(|stem| format!("{stem}{LOG_SUFFIX}"))
            .filter(|log| self.names_file(log))
            .collect();
        leftovers.into_iter().collect()
    }
}
