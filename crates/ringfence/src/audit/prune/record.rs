//! The sealed record of a pruning, and what all such records of a log say together.
//!
//! A record names every file that it removes, with its number of records and its last mac. It also holds each link to
//! a removed file that is not to that last record, or that an older pruning had left: so the newest record alone
//! accounts for everything that is missing, the files of older ones can be pruned too, and a record never holds more
//! links than there are files.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::audit::chain::Link;
use crate::audit::store::{HEAD, LOG};

/// The event under which it is in the log.
pub(in crate::audit) const EVENT: &str = "prune";

/// One file that was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrunedFile {
    pub file: String,
    /// Also the number of its last record.
    pub records: u64,
    /// When its first and its last record were written.
    pub first: String,
    pub last: String,
    /// Of its last record.
    pub mac: String,
}

impl PrunedFile {
    fn last_record(&self) -> Link {
        Link { file: self.file.clone(), at: Some((self.records, self.mac.clone())) }
    }
}

/// Everything that was pruned from a log so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PruneTotal {
    pub files: u64,
    pub records: u64,
    /// When the first of these records was written.
    pub first: String,
    /// All of them were written before this.
    pub before: String,
}

impl PruneTotal {
    pub(in crate::audit) fn add(mut self, removed: &[PrunedFile], before: &str) -> PruneTotal {
        if self.files == 0 {
            self.first = removed.first().map(|file| file.first.clone()).unwrap_or_default();
        }
        self.files += removed.len() as u64;
        self.records += removed.iter().map(|file| file.records).sum::<u64>();
        self.before = self.before.max(before.to_owned());
        self
    }
}

/// What one pruning removes, as it is in the log.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::audit) struct PruneRecord {
    #[serde(skip_serializing)]
    ts: String,
    /// The command or the setting that asked for it.
    by: String,
    before: String,
    removed: Vec<PrunedFile>,
    links: Vec<Value>,
    total: PruneTotal,
}

impl PruneRecord {
    /// Accounts for `removed`. `links` are those of all files to files that are gone, now or before.
    pub(in crate::audit) fn new(
        (by, before): (&str, &str),
        removed: Vec<PrunedFile>,
        mut links: BTreeSet<Link>,
        total: PruneTotal,
    ) -> PruneRecord {
        for file in &removed {
            links.remove(&file.last_record());
        }
        let links = links.iter().map(Link::to_json).collect();
        PruneRecord {
            ts: String::new(),
            by: by.to_owned(),
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

    /// None for every other record.
    pub(in crate::audit) fn from_line(line: &[u8]) -> Option<PruneRecord> {
        #[derive(Deserialize)]
        struct AnyRecord {
            event: String,
        }
        let any: AnyRecord = serde_json::from_slice(line).ok()?;
        if any.event == EVENT { serde_json::from_slice(line).ok() } else { None }
    }
}

/// The newest pruning and the sum of all, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PruneSummary {
    pub total: PruneTotal,
    /// When the newest was recorded, and what asked for it.
    pub ts: String,
    pub by: String,
}

/// What all proven records of prunings say.
#[derive(Debug, Default)]
pub(in crate::audit) struct PruneHistory {
    files: BTreeSet<String>,
    links: BTreeSet<Link>,
    newest: Option<PruneSummary>,
}

impl PruneHistory {
    pub(in crate::audit) fn add(&mut self, record: PruneRecord) {
        self.links.extend(record.links.iter().filter_map(Link::from_json));
        self.links.extend(record.removed.iter().map(PrunedFile::last_record));
        self.files.extend(record.removed.into_iter().map(|file| file.file));
        // Each pruning adds to the sum of the one before it, so the largest sum is the newest.
        if self.newest.as_ref().is_none_or(|newest| newest.total.files < record.total.files) {
            self.newest = Some(PruneSummary { total: record.total, ts: record.ts, by: record.by });
        }
    }

    /// Whether the record that this link names was pruned.
    pub(in crate::audit) fn covers(&self, link: &Link) -> bool {
        self.links.contains(link)
    }

    /// Whether this file was pruned, as far as the record that says so is still there.
    pub(in crate::audit) fn names(&self, file: &str) -> bool {
        self.files.contains(file)
    }

    pub(in crate::audit) fn summary(&self) -> Option<&PruneSummary> {
        self.newest.as_ref()
    }

    /// Files that were recorded as pruned and are still there, whole or in part, oldest first.
    pub(in crate::audit) fn leftovers(&self, names: &[String]) -> Vec<String> {
        let logs = names
            .iter()
            .filter_map(|name| name.strip_suffix(LOG).or_else(|| name.strip_suffix(HEAD)));
        let found: BTreeSet<String> =
            logs.map(|stem| format!("{stem}{LOG}")).filter(|log| self.names(log)).collect();
        found.into_iter().collect()
    }
}
