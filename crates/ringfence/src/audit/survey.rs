//! Reads the start of every file: enough to know how files are linked and what was pruned, without
//! reading them in full.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufReader;

use serde_json::Value;

use super::chain::{self, FIRST_MAC};
use super::prune::record::{PruneHistory, PruneRecord};
use super::scan::header_links;
use super::store::{AuditDirectory, LOG_SUFFIX, open_regular, read_line};

/// Content of the first records of every file.
pub(super) struct LogSurvey {
    /// Header of each file; null if it cannot be verified. Reading the file in full shows why.
    pub(super) headers: BTreeMap<String, Value>,
    pub(super) pruned: PruneHistory,
}

impl LogSurvey {
    pub(super) fn read(store: &AuditDirectory, names: &[String]) -> LogSurvey {
        let mut survey = LogSurvey { headers: BTreeMap::new(), pruned: PruneHistory::default() };
        for name in names.iter().filter(|name| name.ends_with(LOG_SUFFIX)) {
            let (header, record) = read_beginning(store, name).unwrap_or_default();
            survey.headers.insert(name.clone(), header);
            if let Some(record) = record {
                survey.pruned.add_record(record);
            }
        }
        survey
    }

    /// Returns, per file, the records that the headers of other files link.
    pub(super) fn wanted_records(&self) -> BTreeMap<String, BTreeSet<u64>> {
        let mut seqs_by_file: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        for link in self.headers.values().flat_map(header_links) {
            seqs_by_file.entry(link.file).or_default().extend(link.record.map(|(seq, _)| seq));
        }
        seqs_by_file
    }

    /// Returns the files in the order in which they were opened: each after the one it links, and
    /// by name where that leaves a choice.
    pub(super) fn files_in_order(&self) -> Vec<&str> {
        let mut successors: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut ready = BTreeSet::new();
        for (name, header) in &self.headers {
            match header["predecessor"]["file"]
                .as_str()
                .filter(|file| self.headers.contains_key(*file))
            {
                Some(predecessor) => successors.entry(predecessor).or_default().push(name),
                None => drop(ready.insert(name.as_str())),
            }
        }
        let mut order = Vec::new();
        while let Some(name) = ready.pop_first() {
            order.push(name);
            ready.extend(successors.remove(name).into_iter().flatten());
        }
        order
    }
}

/// Returns the verified header of a file, and the prune record if one follows it. A prune record
/// has a file of its own, so it is nowhere else.
fn read_beginning(store: &AuditDirectory, name: &str) -> Option<(Value, Option<PruneRecord>)> {
    let mut file = BufReader::new(open_regular(&store.file_path(name)).ok()?);
    let mut next_record = |previous, seq| {
        let mut line = Vec::new();
        read_line(&mut file, &mut line).ok()?;
        line.pop_if(|end| *end == b'\n')?;
        let mac = chain::check_line(&store.key, previous, seq, &line).ok()?;
        Some((line, mac))
    };
    let (line, mac) = next_record(&FIRST_MAC, 1)?;
    let header: Value = serde_json::from_slice(&line).ok()?;
    if header["file"] != name {
        return None;
    }
    let record = next_record(&mac, 2).and_then(|(line, _)| PruneRecord::from_line(&line));
    Some((header, record))
}
