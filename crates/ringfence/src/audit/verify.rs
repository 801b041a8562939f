//! Checks every file of the log and reports the first record that is not as it was written.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use super::prune::record::PruneHistory;
pub use super::prune::record::PruneSummary;
use super::scan::{FileScan, header_links};
pub use super::scan::{LogFileState, LogProblem};
use super::store::{AuditDirectory, DirectorySnapshot, HEAD_SUFFIX, LATEST, LOG_SUFFIX};
use super::survey::LogSurvey;
use crate::base::{Error, Kind, Result};

/// Result of [`verify_log`].
#[derive(Debug)]
pub struct VerifyReport {
    /// State of every file.
    pub files: Vec<LogFileReport>,
    /// Number of records verified to be as they were written.
    pub records: u64,
    /// Problems in the order of the log; trust ends at the first one.
    pub problems: Vec<LogProblem>,
    /// Remains of crashes, other than files that end with one.
    pub notes: Vec<String>,
    /// Files that sealed records account for.
    pub pruned: Option<PruneSummary>,
}

/// State of one log file.
#[derive(Debug)]
pub struct LogFileReport {
    /// Name of the file.
    pub name: String,
    /// Number of verified records.
    pub records: u64,
    /// How the file ends.
    pub state: LogFileState,
}

/// Number of attempts to read the log while files are being removed from it.
const ATTEMPTS: usize = 5;

/// Checks every record, head and link of the log below `root`.
pub fn verify_log(root: &Path) -> Result<VerifyReport> {
    let store = AuditDirectory::open_existing(root).map_err(unreadable_error)?;
    for _ in 1..ATTEMPTS {
        // A prune may remove files after the directory was listed and before they are read.
        let names = store.list_contents().map_err(unreadable_error)?.names;
        let report = verify_once(&store)?;
        if report.problems.is_empty() || !store.has_lost_files(&names).map_err(unreadable_error)? {
            return Ok(report);
        }
    }
    verify_once(&store)
}

fn verify_once(store: &AuditDirectory) -> Result<VerifyReport> {
    let DirectorySnapshot { names, latest } = store.take_snapshot().map_err(unreadable_error)?;
    let survey = LogSurvey::read(store, &names);
    let mut wanted_seqs = survey.wanted_records();
    let mut scans = BTreeMap::new();
    for name in survey.headers.keys() {
        let wanted_seqs = wanted_seqs.remove(name).unwrap_or_default();
        scans.insert(
            name.as_str(),
            FileScan::scan_file(store, name, wanted_seqs).map_err(unreadable_error)?,
        );
    }

    let mut problems: Vec<LogProblem> =
        scans.values().flat_map(|scan| scan.problem.clone()).collect();
    let mut notes = Vec::new();
    check_links(&scans, &survey.pruned, &mut problems);
    check_order(&scans, &mut problems);
    check_rotations(&scans, &mut notes);
    check_latest(&scans, latest, &mut problems, &mut notes);
    check_lone_heads(store, &names, &survey, &mut problems, &mut notes);
    let leftovers = survey.pruned.find_leftovers(&names).len();
    if leftovers > 0 {
        notes.push(format!(
            "crash: pruned files not yet removed: {leftovers}; the next prune removes them"
        ));
    }
    problems.sort();
    problems.dedup_by(|later, first| later.file == first.file && later.line == first.line);
    let files: Vec<_> = scans
        .iter()
        .map(|(name, scan)| LogFileReport {
            name: (*name).to_owned(),
            records: scan.records,
            state: scan.state,
        })
        .collect();
    let records = files.iter().map(|file| file.records).sum();
    Ok(VerifyReport { records, files, problems, notes, pruned: survey.pruned.summary().cloned() })
}

pub(super) fn unreadable_error(error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound {
        return Error::new(Kind::NotFound, "no audit log found, or its key is missing")
            .with_hint("Check --root; the log and its key are in its subdirectory `audit`.")
            .with_source(error);
    }
    Error::new(Kind::Unavailable, "the audit log cannot be read")
        .with_hint("Run this as the user who runs the server.")
        .with_source(error)
}

pub(super) fn missing_file(file: &str, evidence: String) -> LogProblem {
    LogProblem {
        file: file.to_owned(),
        line: 1,
        seq: Some(1),
        description: format!("the file is missing: {evidence}"),
    }
}

/// Checks that every record that a header links exists, or that a sealed record says that exactly
/// this record was pruned.
fn check_links(
    scans: &BTreeMap<&str, FileScan>,
    pruned: &PruneHistory,
    problems: &mut Vec<LogProblem>,
) {
    for (name, scan) in scans {
        for link in scan.header.iter().flat_map(header_links) {
            let Some(linked_scan) = scans.get(link.file.as_str()) else {
                if !pruned.covers_link(&link) {
                    problems.push(missing_file(&link.file, format!("{name} line 1 links it")));
                }
                continue;
            };
            if linked_scan.holds_link(&link) {
                continue;
            }
            let Some((seq, _)) = link.record else { continue };
            // If the linked file is already broken before that record, this adds nothing.
            if linked_scan.problem.is_none() || linked_scan.records >= seq {
                let description = format!("the record that {name} line 1 links does not exist");
                problems.push(LogProblem {
                    file: link.file,
                    line: seq,
                    seq: Some(seq),
                    description,
                });
            }
        }
    }
}

/// Checks the order of the files. They are opened one after the other, each linking the previous
/// one. If two link the same file, or a header says that it did not know which to link, `latest`
/// was rolled back or damaged. A file with nothing but its header is ignored: its process may have
/// died before it entered the file in `latest`.
fn check_order(scans: &BTreeMap<&str, FileScan>, problems: &mut Vec<LogProblem>) {
    let mut successors = BTreeMap::new();
    for (name, scan) in scans {
        let Some(header) = &scan.header else { continue };
        let mut add_problem = |description| {
            problems.push(LogProblem { file: (*name).into(), line: 1, seq: Some(1), description })
        };
        if let Some(description) = header["latest_damaged"].as_str() {
            add_problem(format!(
                "when this file was opened, `{LATEST}` was damaged or missing ({description}): earlier files may be gone"
            ));
        }
        if let Some(file) = header["predecessor"]["file"].as_str()
            && scan.records > 1
            && let Some(other) = successors.insert(file, name)
        {
            add_problem(format!(
                "it links {file}, as {other} does: `{LATEST}` was rolled back, earlier files may be gone"
            ));
        }
    }
}

/// Notes files whose successor is missing. A closing record is written before its successor gets
/// its name, so a successor that nothing else names may be missing after a crash.
fn check_rotations(scans: &BTreeMap<&str, FileScan>, notes: &mut Vec<String>) {
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
    scans: &BTreeMap<&str, FileScan>,
    latest: Option<std::result::Result<String, String>>,
    problems: &mut Vec<LogProblem>,
    notes: &mut Vec<String>,
) {
    let latest_problem =
        |description: String| LogProblem { file: LATEST.into(), line: 1, seq: None, description };
    let latest = match latest {
        Some(Ok(latest)) => latest,
        Some(Err(description)) => return problems.push(latest_problem(description)),
        None if scans.is_empty() => return,
        // The very first process may die before writing it.
        None if scans.len() == 1
            && scans.values().all(|scan| scan.records <= 1 && scan.problem.is_none()) =>
        {
            return notes.push("crash: the first file was opened and never used".into());
        }
        None => return problems.push(latest_problem("it is missing".into())),
    };
    if !scans.contains_key(latest.as_str()) {
        return problems.push(missing_file(&latest, format!("`{LATEST}` names it")));
    }
    // A file with more than its header was entered in `latest` when it was opened.
    let newer = scans.iter().find(|(_, scan)| {
        scan.records > 1
            && scan
                .header
                .as_ref()
                .is_some_and(|header| header["predecessor"]["file"] == latest.as_str())
    });
    if let Some((newer, _)) = newer {
        problems.push(latest_problem(format!(
            "it is out of date: it names {latest}, but {newer} was opened after that"
        )));
    }
}

/// Checks heads without a file. They remain only if a process died while opening the file, or while
/// pruning it.
fn check_lone_heads(
    store: &AuditDirectory,
    names: &[String],
    survey: &LogSurvey,
    problems: &mut Vec<LogProblem>,
    notes: &mut Vec<String>,
) {
    for head in names.iter().filter(|name| name.ends_with(HEAD_SUFFIX)) {
        let file = format!("{}{LOG_SUFFIX}", head.trim_end_matches(HEAD_SUFFIX));
        if survey.headers.contains_key(&file) || survey.pruned.names_file(&file) {
            continue;
        }
        let is_empty = fs::metadata(store.file_path(head))
            .is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0);
        match store.read_head(&file) {
            _ if is_empty => notes.push(format!("crash: {file} was never opened")),
            Ok((1, _)) => notes.push(format!("crash: {file} was never opened")),
            Ok((seq, _)) => problems
                .push(missing_file(&file, format!("its head says that it has {seq} records"))),
            Err(description) => {
                problems.push(LogProblem { file: head.clone(), line: 1, seq: None, description })
            }
        }
    }
}
