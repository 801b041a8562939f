//! Walks every file of the log and says which record is the first that is not as it was written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use serde_json::Value;

use super::chain::{self, Link, Mac, START};
use super::store::{HEAD, LATEST, LOG, MAX_LINE, Snapshot, Store, head_of, open_regular, read_line};
use crate::base::ids::hex;
use crate::base::{Error, Kind, Result};

/// What [`verify`] found.
#[derive(Debug)]
pub struct Report {
    pub files: Vec<FileReport>,
    /// Records that are proven to be as they were written.
    pub records: u64,
    /// In the order of the log: the first is where trust ends.
    pub problems: Vec<Problem>,
    /// What a crash left behind, beside the files that end with one.
    pub notes: Vec<String>,
}

#[derive(Debug)]
pub struct FileReport {
    pub name: String,
    pub records: u64,
    pub state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Ends with its closing record.
    Closed,
    /// A process is writing it.
    Open,
    /// Its process ended without closing it; `torn` bytes of an unfinished record follow the last whole one.
    Crashed {
        torn: u64,
    },
    Broken,
}

/// One thing that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    pub file: String,
    /// Counted from 1; where something is missing, the line it would have.
    pub line: u64,
    pub seq: Option<u64>,
    pub what: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} line {}", self.file, self.line)?;
        if let Some(seq) = self.seq {
            write!(f, " (seq {seq})")?;
        }
        write!(f, ": {}", self.what)
    }
}

pub fn verify(root: &Path) -> Result<Report> {
    let store = Store::existing(root).map_err(unreadable)?;
    let Snapshot { names, latest } = store.snapshot().map_err(unreadable)?;
    let logs: Vec<&String> = names.iter().filter(|name| name.ends_with(LOG)).collect();

    // Which records of which file the headers of other files link. Not believed yet, only looked for.
    let mut wanted: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for name in &logs {
        for link in first_line(&store, name).iter().flat_map(links) {
            wanted.entry(link.file).or_default().extend(link.at.map(|(seq, _)| seq));
        }
    }
    let mut scans = BTreeMap::new();
    for name in &logs {
        let wanted = wanted.remove(name.as_str()).unwrap_or_default();
        scans.insert(name.as_str(), Scan::run(&store, name, wanted).map_err(unreadable)?);
    }

    let mut problems: Vec<Problem> = scans.values().flat_map(|scan| scan.problem.clone()).collect();
    let mut notes = Vec::new();
    check_links(&scans, &mut problems);
    check_order(&scans, &mut problems);
    check_rotations(&scans, &mut notes);
    check_latest(&scans, latest, &mut problems, &mut notes);
    check_lone_heads(&store, &names, &scans, &mut problems, &mut notes);
    problems.sort();
    problems.dedup_by(|later, first| later.file == first.file && later.line == first.line);
    let files: Vec<_> = scans
        .iter()
        .map(|(name, scan)| FileReport { name: (*name).to_owned(), records: scan.records, state: scan.state })
        .collect();
    Ok(Report { records: files.iter().map(|file| file.records).sum(), files, problems, notes })
}

fn unreadable(error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound {
        return Error::new(Kind::NotFound, "there is no audit log, or its key is missing")
            .hint("Check --root; the log and its key are in the directory `audit` below it.")
            .source(error);
    }
    Error::new(Kind::Unavailable, "the audit log cannot be read")
        .hint("Run this as the user who runs the server.")
        .source(error)
}

fn first_line(store: &Store, name: &str) -> Option<Value> {
    let mut line = Vec::new();
    read_line(&mut BufReader::new(open_regular(&store.path(name)).ok()?), &mut line).ok()?;
    serde_json::from_slice(&line).ok()
}

fn links(header: &Value) -> Vec<Link> {
    ["predecessor", "continues"].iter().filter_map(|name| Link::from_json(&header[name])).collect()
}

/// One file, read through once.
struct Scan {
    records: u64,
    state: State,
    problem: Option<Problem>,
    /// Proven records that others ask about, and their macs.
    macs: BTreeMap<u64, Mac>,
    /// The first and the last proven record.
    header: Option<Value>,
    last: Value,
    last_mac: Mac,
}

impl Scan {
    fn new() -> Scan {
        Scan {
            records: 0,
            state: State::Broken,
            problem: None,
            macs: BTreeMap::new(),
            header: None,
            last: Value::Null,
            last_mac: START,
        }
    }

    fn run(store: &Store, name: &str, mut wanted: BTreeSet<u64>) -> io::Result<Scan> {
        let file = match open_regular(&store.path(name)) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let what = error.to_string();
                let problem = Problem { file: name.into(), line: 1, seq: None, what };
                return Ok(Scan { problem: Some(problem), ..Scan::new() });
            }
            file => file?,
        };
        // Before the records are read: a file in use may grow, but what the head says now must be in it.
        let head = store.head(name);
        wanted.extend(head.as_ref().ok().map(|(seq, _)| *seq));
        let in_use = matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock));

        let mut scan = Scan::new();
        let torn = scan.read_records(store, name, &wanted, BufReader::new(file))?;
        if scan.problem.is_none() {
            let ended = scan.check_end(store, name, head, in_use, &torn);
            match ended {
                Ok(state) => scan.state = state,
                Err(problem) => scan.problem = Some(problem),
            }
        }
        Ok(scan)
    }

    /// Up to the first record that does not fit. Returns what follows the last newline.
    fn read_records(
        &mut self,
        store: &Store,
        name: &str,
        wanted: &BTreeSet<u64>,
        mut file: impl BufRead,
    ) -> io::Result<Vec<u8>> {
        let (mut line, mut whole) = (Vec::new(), Vec::new());
        loop {
            line.clear();
            read_line(&mut file, &mut line)?;
            let seq = self.records + 1;
            if line.len() == MAX_LINE && line.last() != Some(&b'\n') {
                let what = format!("this line is no record: it has more than {MAX_LINE} bytes");
                self.problem = Some(Problem { file: name.into(), line: seq, seq: Some(seq), what });
                return Ok(Vec::new());
            }
            if line.pop_if(|end| *end == b'\n').is_none() {
                self.last = serde_json::from_slice(&whole).unwrap_or_default();
                return Ok(line);
            }
            match chain::check(&store.key, &self.last_mac, seq, &line) {
                Ok(mac) => self.last_mac = mac,
                Err(what) => {
                    self.problem = Some(Problem { file: name.into(), line: seq, seq: Some(seq), what });
                    return Ok(Vec::new());
                }
            }
            self.records = seq;
            if wanted.contains(&seq) {
                self.macs.insert(seq, self.last_mac);
            }
            if seq == 1 {
                let header: Value = serde_json::from_slice(&line).unwrap_or_default();
                if header["file"] != name {
                    let what = format!("this is the file {}, under another name", header["file"]);
                    self.problem = Some(Problem { file: name.into(), line: 1, seq: Some(1), what });
                    return Ok(Vec::new());
                }
                self.header = Some(header);
            }
            std::mem::swap(&mut line, &mut whole);
        }
    }

    /// Does the file end where its head says it does?
    fn check_end(
        &self,
        store: &Store,
        name: &str,
        head: std::result::Result<(u64, Mac), String>,
        in_use: bool,
        torn: &[u8],
    ) -> std::result::Result<State, Problem> {
        let next = self.records + 1;
        let broken = |what: String| Problem { file: name.into(), line: next, seq: Some(next), what };
        let damaged = |what: String| Problem { file: head_of(name), line: 1, seq: None, what };
        let (seq, mac) = head.map_err(|what| damaged(format!("the head of this file: {what}")))?;
        if seq > self.records {
            let part = if torn.is_empty() { "" } else { ", and a part of the next one" };
            return Err(broken(format!(
                "the tail was cut: {seq} records were written, {} are there{part}",
                self.records
            )));
        }
        // One record may be newer than the head, when the process died between the two; more, and the head is old.
        if self.macs.get(&seq) != Some(&mac)
            || (seq + 1 < self.records && !store.head(name).is_ok_and(|(now, _)| now + 1 >= self.records))
        {
            return Err(damaged(format!(
                "the head of this file is not its own newest: it says {seq} of {}",
                self.records
            )));
        }
        let closed = self.last["event"] == "close";
        // In a file in use, the next record may be half written at this moment, and its head is written after it.
        let is_record = match in_use {
            true => !closed && chain::is_being_written(torn, next),
            false => !closed && seq == self.records && chain::begins_record(torn, next),
        };
        if !torn.is_empty() && !is_record {
            return Err(broken("something that is not a record was added".into()));
        }
        Ok(match (closed, in_use) {
            (true, _) => State::Closed,
            (false, true) => State::Open,
            (false, false) => State::Crashed { torn: torn.len() as u64 },
        })
    }
}

fn missing(file: &str, what: String) -> Problem {
    Problem { file: file.to_owned(), line: 1, seq: Some(1), what: format!("the file is missing: {what}") }
}

/// Every record that a header links must be there.
fn check_links(scans: &BTreeMap<&str, Scan>, problems: &mut Vec<Problem>) {
    for (name, scan) in scans {
        for link in scan.header.iter().flat_map(links) {
            let Some(linked) = scans.get(link.file.as_str()) else {
                problems.push(missing(&link.file, format!("{name} line 1 links it")));
                continue;
            };
            let Some((seq, mac)) = link.at else { continue };
            if linked.macs.get(&seq).is_some_and(|found| hex(found) == mac) {
                continue;
            }
            // Where the linked file is broken before that record, this says nothing new.
            if linked.problem.is_none() || linked.records >= seq {
                let what = format!("the record that {name} line 1 links is not there");
                problems.push(Problem { file: link.file, line: seq, seq: Some(seq), what });
            }
        }
    }
}

/// Files are opened one after the other, each linking the one before. Where two link the same, or a header says
/// that it did not know which to link, `latest` had been turned back or damaged. A file that has nothing but its
/// header does not count: its process may have died before it entered it in `latest`.
fn check_order(scans: &BTreeMap<&str, Scan>, problems: &mut Vec<Problem>) {
    let mut linked = BTreeMap::new();
    for (name, scan) in scans {
        let Some(header) = &scan.header else { continue };
        let mut broken = |what| problems.push(Problem { file: (*name).into(), line: 1, seq: Some(1), what });
        if let Some(what) = header["latest_damaged"].as_str() {
            broken(format!(
                "when this file was opened, `{LATEST}` was not right ({what}): files before it may be gone"
            ));
        }
        if let Some(file) = header["predecessor"]["file"].as_str()
            && scan.records > 1
            && let Some(other) = linked.insert(file, name)
        {
            broken(format!("it links {file} as {other} does: `{LATEST}` was turned back, files before it may be gone"));
        }
    }
}

/// A closing record is written before its successor has its name, so a successor that nothing else names may be
/// missing after a crash.
fn check_rotations(scans: &BTreeMap<&str, Scan>, notes: &mut Vec<String>) {
    for (name, scan) in scans {
        if let Some(next) = scan.last["next"].as_str()
            && scan.last["event"] == "close"
            && !scans.contains_key(next)
        {
            notes.push(format!("crash: {name} was rotated to {next}, which was never opened"));
        }
    }
}

fn check_latest(
    scans: &BTreeMap<&str, Scan>,
    latest: Option<std::result::Result<String, String>>,
    problems: &mut Vec<Problem>,
    notes: &mut Vec<String>,
) {
    let damaged = |what: String| Problem { file: LATEST.into(), line: 1, seq: None, what };
    let latest = match latest {
        Some(Ok(latest)) => latest,
        Some(Err(what)) => return problems.push(damaged(what)),
        None if scans.is_empty() => return,
        // The very first process may die before it has written it.
        None if scans.len() == 1 && scans.values().all(|scan| scan.records <= 1 && scan.problem.is_none()) => {
            return notes.push("crash: the first file was opened and never used".into());
        }
        None => return problems.push(damaged("it is missing".into())),
    };
    if !scans.contains_key(latest.as_str()) {
        return problems.push(missing(&latest, format!("`{LATEST}` names it")));
    }
    // A file that has more than its header was entered here when it was opened.
    let newer = scans.iter().find(|(_, scan)| {
        scan.records > 1 && scan.header.as_ref().is_some_and(|header| header["predecessor"]["file"] == latest.as_str())
    });
    if let Some((newer, _)) = newer {
        problems.push(damaged(format!("it is out of date: it names {latest}, but {newer} was opened after that")));
    }
}

/// A head outlives its file only where a process died while it opened the file.
fn check_lone_heads(
    store: &Store,
    names: &[String],
    scans: &BTreeMap<&str, Scan>,
    problems: &mut Vec<Problem>,
    notes: &mut Vec<String>,
) {
    for head in names.iter().filter(|name| name.ends_with(HEAD)) {
        let file = format!("{}{LOG}", head.trim_end_matches(HEAD));
        if scans.contains_key(file.as_str()) {
            continue;
        }
        let empty = fs::metadata(store.path(head)).is_ok_and(|found| found.is_file() && found.len() == 0);
        match store.head(&file) {
            _ if empty => notes.push(format!("crash: {file} was never opened")),
            Ok((1, _)) => notes.push(format!("crash: {file} was never opened")),
            Ok((seq, _)) => problems.push(missing(&file, format!("its head says that it holds {seq} records"))),
            Err(what) => problems.push(Problem { file: head.clone(), line: 1, seq: None, what }),
        }
    }
}
