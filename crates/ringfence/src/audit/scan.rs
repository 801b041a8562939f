//! Reads one file of the log from start to end: which of its records are verified, and how it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};

use serde_json::Value;

use super::chain::{self, FIRST_MAC, Mac, RecordLink};
use super::store::{AuditDirectory, MAX_LINE, head_name, open_regular, read_line};
use crate::base::ids::to_hex;

/// State of a log file, judged by how it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFileState {
    /// It ends with its closing record.
    Closed,
    /// A process is writing it.
    Open,
    /// Its process ended without closing it; `torn` bytes of an unfinished record follow the last
    /// complete one.
    Crashed {
        /// Number of bytes of the unfinished record.
        torn: u64,
    },
    /// It is not as it was written.
    Broken,
}

/// Deviation of the log from what was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogProblem {
    /// Name of the file.
    pub file: String,
    /// Line number, counted from 1; for something missing, the line it would have.
    pub line: u64,
    /// Sequence number, if the problem concerns a record.
    pub seq: Option<u64>,
    /// Description for people.
    pub description: String,
}

impl std::fmt::Display for LogProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} line {}", self.file, self.line)?;
        if let Some(seq) = self.seq {
            write!(f, " (seq {seq})")?;
        }
        write!(f, ": {}", self.description)
    }
}

/// Returns the links to records of other files in a header.
pub(super) fn header_links(header: &Value) -> Vec<RecordLink> {
    ["predecessor", "continues"]
        .iter()
        .filter_map(|name| RecordLink::from_json(&header[name]))
        .collect()
}

/// Returns whether a process is writing this file: it holds a lock on it as long as it lives.
pub(super) fn is_in_use(file: &File) -> bool {
    matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock))
}

/// Result of reading one file.
pub(super) struct FileScan {
    pub(super) records: u64,
    pub(super) state: LogFileState,
    pub(super) problem: Option<LogProblem>,
    /// Macs of the verified records with a `wanted` number.
    macs: BTreeMap<u64, Mac>,
    /// First verified record.
    pub(super) header: Option<Value>,
    /// Last verified record.
    pub(super) last: Value,
    pub(super) last_mac: Mac,
    /// The head as it was when reading started.
    pub(super) head: Option<(u64, Mac)>,
}

impl FileScan {
    fn new() -> FileScan {
        FileScan {
            records: 0,
            state: LogFileState::Broken,
            problem: None,
            macs: BTreeMap::new(),
            header: None,
            last: Value::Null,
            last_mac: FIRST_MAC,
            head: None,
        }
    }

    /// Returns whether the record that a link names exists and is verified. Only `wanted` records
    /// are known.
    pub(super) fn holds_link(&self, link: &RecordLink) -> bool {
        let is_recorded = |(seq, mac): &(u64, String)| {
            self.macs.get(seq).is_some_and(|recorded_mac| to_hex(recorded_mac) == *mac)
        };
        link.record.as_ref().is_none_or(is_recorded)
    }

    /// Reads a file and keeps the macs of the records with a `wanted_seqs` number.
    pub(super) fn scan_file(
        store: &AuditDirectory,
        name: &str,
        mut wanted_seqs: BTreeSet<u64>,
    ) -> io::Result<FileScan> {
        let file = match open_regular(&store.file_path(name)) {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::NotFound) =>
            {
                let description = match error.kind() {
                    io::ErrorKind::NotFound => "it was removed while the log was read".to_owned(),
                    _ => error.to_string(),
                };
                let problem = LogProblem { file: name.into(), line: 1, seq: None, description };
                return Ok(FileScan { problem: Some(problem), ..FileScan::new() });
            }
            file => file?,
        };
        // Read before the records: a file in use may grow, but what the head says now must be in
        // it.
        let head = store.read_head(name);
        wanted_seqs.extend(head.as_ref().ok().map(|(seq, _)| *seq));
        let in_use = is_in_use(&file);

        let mut scan = FileScan { head: head.as_ref().ok().copied(), ..FileScan::new() };
        let torn_line = scan.read_records(store, name, &wanted_seqs, BufReader::new(file))?;
        if scan.problem.is_none() {
            let end_state = scan.check_end(store, name, head, in_use, &torn_line);
            match end_state {
                Ok(state) => scan.state = state,
                Err(problem) => scan.problem = Some(problem),
            }
        }
        Ok(scan)
    }

    /// Reads records up to the first that does not verify. Returns the bytes after the last
    /// newline.
    fn read_records(
        &mut self,
        store: &AuditDirectory,
        name: &str,
        wanted_seqs: &BTreeSet<u64>,
        mut file: impl BufRead,
    ) -> io::Result<Vec<u8>> {
        let (mut line, mut last_line) = (Vec::new(), Vec::new());
        loop {
            line.clear();
            read_line(&mut file, &mut line)?;
            let seq = self.records + 1;
            if line.len() == MAX_LINE && line.last() != Some(&b'\n') {
                let description =
                    format!("this line is not a record: it has more than {MAX_LINE} bytes");
                self.problem =
                    Some(LogProblem { file: name.into(), line: seq, seq: Some(seq), description });
                return Ok(Vec::new());
            }
            if line.pop_if(|end| *end == b'\n').is_none() {
                self.last = serde_json::from_slice(&last_line).unwrap_or_default();
                return Ok(line);
            }
            match chain::check_line(&store.key, &self.last_mac, seq, &line) {
                Ok(mac) => self.last_mac = mac,
                Err(description) => {
                    self.problem = Some(LogProblem {
                        file: name.into(),
                        line: seq,
                        seq: Some(seq),
                        description,
                    });
                    return Ok(Vec::new());
                }
            }
            self.records = seq;
            if wanted_seqs.contains(&seq) {
                self.macs.insert(seq, self.last_mac);
            }
            if seq == 1 {
                let header: Value = serde_json::from_slice(&line).unwrap_or_default();
                if header["file"] != name {
                    let description = format!("this is file {} under another name", header["file"]);
                    self.problem =
                        Some(LogProblem { file: name.into(), line: 1, seq: Some(1), description });
                    return Ok(Vec::new());
                }
                self.header = Some(header);
            }
            std::mem::swap(&mut line, &mut last_line);
        }
    }

    /// Checks that the file ends where its head says it does.
    fn check_end(
        &self,
        store: &AuditDirectory,
        name: &str,
        head: std::result::Result<(u64, Mac), String>,
        in_use: bool,
        torn_line: &[u8],
    ) -> std::result::Result<LogFileState, LogProblem> {
        let next_seq = self.records + 1;
        let log_problem = |description: String| LogProblem {
            file: name.into(),
            line: next_seq,
            seq: Some(next_seq),
            description,
        };
        let head_problem = |description: String| LogProblem {
            file: head_name(name),
            line: 1,
            seq: None,
            description,
        };
        let (seq, mac) = head
            .map_err(|description| head_problem(format!("the head of this file: {description}")))?;
        if seq > self.records {
            let part = if torn_line.is_empty() { "" } else { ", and part of the next one" };
            return Err(log_problem(format!(
                "the tail was cut off: {seq} records were written, {} remain{part}",
                self.records
            )));
        }
        // One record may be newer than the head, if the process died between the two writes; if
        // there are more, the head is outdated.
        if self.macs.get(&seq) != Some(&mac)
            || (seq + 1 < self.records
                && !store.read_head(name).is_ok_and(|(head_seq, _)| head_seq + 1 >= self.records))
        {
            return Err(head_problem(format!(
                "the head of this file is not its newest: it says {seq} of {}",
                self.records
            )));
        }
        let closed = self.last["event"] == "close";
        // In a file in use, the next record may be half written right now; its head is written
        // after it.
        let is_record = match in_use {
            true => !closed && chain::is_being_written(torn_line, next_seq),
            false => !closed && seq == self.records && chain::begins_record(torn_line, next_seq),
        };
        if !torn_line.is_empty() && !is_record {
            return Err(log_problem("something that is not a record was added".into()));
        }
        Ok(match (closed, in_use) {
            (true, _) => LogFileState::Closed,
            (false, true) => LogFileState::Open,
            (false, false) => LogFileState::Crashed { torn: torn_line.len() as u64 },
        })
    }
}
