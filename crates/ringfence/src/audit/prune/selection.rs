//! Selects the files that may be pruned: the oldest ones, verified to be as they were written.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::audit::scan::{FileScan, LogFileState, LogProblem, header_links, is_in_use};
use crate::audit::store::{AuditDirectory, DirectorySnapshot, LATEST, open_regular};
use crate::audit::survey::LogSurvey;
use crate::audit::verify::{missing_file, unreadable_error};
use crate::base::{Error, Kind, Result};

/// Reason why a file and all files after it are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepReason {
    /// It is the newest file.
    Newest,
    /// A process is writing it.
    InUse,
    /// It contains a record that is not old enough.
    NotOldEnough,
}

/// Number of attempts to read the log while other prunings remove files from it.
const ATTEMPTS: usize = 5;

/// Selects at most `max_files` files and verifies them.
pub(super) fn select_files(
    store: &AuditDirectory,
    before: &str,
    max_files: usize,
) -> Result<PruneSelection> {
    for _ in 1..ATTEMPTS {
        let names = store.list_contents().map_err(unreadable_error)?.names;
        match PruneSelection::read(store, before, max_files) {
            Err(_) if store.has_lost_files(&names).map_err(unreadable_error)? => {}
            result => return result,
        }
    }
    PruneSelection::read(store, before, max_files)
}

/// Verified files that may be removed, oldest first.
#[derive(Default)]
pub(super) struct PruneSelection {
    pub(super) files: Vec<(String, FileScan)>,
    pub(super) leftovers: usize,
    /// None if there are too many files for one record, or no files at all.
    pub(super) kept_from: Option<(String, KeepReason)>,
}

impl PruneSelection {
    fn read(store: &AuditDirectory, before: &str, max_files: usize) -> Result<PruneSelection> {
        let DirectorySnapshot { names, latest } =
            store.take_snapshot().map_err(unreadable_error)?;
        let survey = LogSurvey::read(store, &names);
        let mut selection = PruneSelection {
            leftovers: survey.pruned.find_leftovers(&names).len(),
            ..PruneSelection::default()
        };
        let latest = match latest {
            Some(Ok(latest)) => latest,
            None if survey.headers.is_empty() => return Ok(selection),
            damaged => {
                let description = damaged
                    .and_then(std::result::Result::err)
                    .unwrap_or_else(|| "it is missing".into());
                return Err(broken_log_error(&LogProblem {
                    file: LATEST.into(),
                    line: 1,
                    seq: None,
                    description,
                }));
            }
        };
        let mut wanted_seqs = survey.wanted_records();
        for name in
            survey.files_in_order().into_iter().filter(|name| !survey.pruned.names_file(name))
        {
            if selection.files.len() == max_files {
                break;
            }
            let wanted_seqs = wanted_seqs.remove(name).unwrap_or_default();
            match examine_file(store, name, (&survey, &latest, before), wanted_seqs)? {
                Ok(scan) => selection.files.push((name.to_owned(), scan)),
                Err(reason) => {
                    selection.kept_from = Some((name.to_owned(), reason));
                    break;
                }
            }
        }
        check_links(store, &survey, &selection.by_name())?;
        Ok(selection)
    }

    pub(super) fn by_name(&self) -> BTreeMap<&str, &FileScan> {
        self.files.iter().map(|(name, scan)| (name.as_str(), scan)).collect()
    }
}

/// Verifies a file, or returns why it is kept.
fn examine_file(
    store: &AuditDirectory,
    name: &str,
    (survey, latest, before): (&LogSurvey, &str, &str),
    wanted_seqs: BTreeSet<u64>,
) -> Result<std::result::Result<FileScan, KeepReason>> {
    let is_newer = |ts: &Value| ts.as_str().is_some_and(|ts| ts >= before);
    if name == latest {
        return Ok(Err(KeepReason::Newest));
    }
    // Checked before the file is verified, which may take long.
    if open_regular(&store.file_path(name)).is_ok_and(|file| is_in_use(&file)) {
        return Ok(Err(KeepReason::InUse));
    }
    if survey.headers.get(name).is_some_and(|header| is_newer(&header["ts"])) {
        return Ok(Err(KeepReason::NotOldEnough));
    }
    let scan = FileScan::scan_file(store, name, wanted_seqs).map_err(unreadable_error)?;
    Ok(match (&scan.problem, scan.state) {
        (Some(problem), _) => return Err(broken_log_error(problem)),
        (None, LogFileState::Open) => Err(KeepReason::InUse),
        (None, _) if is_newer(&scan.last["ts"]) => Err(KeepReason::NotOldEnough),
        (None, _) => Ok(scan),
    })
}

/// Checks the links from and to the selected files. After the removal, a link into a removed file
/// counts as accounted for, and the removed file's own links are gone with it. Both must be correct
/// before that, or the prune record would hide what `verify` reports.
pub(super) fn check_links(
    store: &AuditDirectory,
    survey: &LogSurvey,
    selected: &BTreeMap<&str, &FileScan>,
) -> Result<()> {
    let problem = |file: &str, description: String| {
        broken_log_error(&LogProblem { file: file.to_owned(), line: 1, seq: Some(1), description })
    };
    for (linking_file, header) in &survey.headers {
        for link in header_links(header) {
            match selected.get(link.file.as_str()) {
                Some(scan) if !scan.holds_link(&link) => {
                    return Err(problem(
                        &link.file,
                        format!("the record that {linking_file} line 1 links does not exist"),
                    ));
                }
                None if selected.contains_key(linking_file.as_str())
                    && !survey.headers.contains_key(&link.file)
                    && !survey.pruned.covers_link(&link) =>
                {
                    return Err(broken_log_error(&missing_file(
                        &link.file,
                        format!("{linking_file} line 1 links it"),
                    )));
                }
                _ => {}
            }
        }
    }
    let has_records = |name: &str| match selected.get(name) {
        Some(scan) => scan.records > 1,
        None => store.read_head(name).is_ok_and(|(seq, _)| seq > 1),
    };
    let mut successors: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, header) in &survey.headers {
        if selected.contains_key(name.as_str()) && !header["latest_damaged"].is_null() {
            return Err(problem(
                name,
                format!("when this file was opened, `{LATEST}` was damaged or missing"),
            ));
        }
        if let Some(file) = header["predecessor"]["file"].as_str() {
            successors.entry(file).or_default().push(name);
        }
    }
    for (file, names) in successors.iter().filter(|(_, names)| names.len() > 1) {
        let used_files: Vec<&str> =
            names.iter().copied().filter(|name| has_records(name)).collect();
        if let [first, second, ..] = used_files[..]
            && used_files.iter().any(|name| selected.contains_key(*name))
        {
            return Err(problem(
                second,
                format!("it links {file}, as {first} does: `{LATEST}` was rolled back"),
            ));
        }
    }
    Ok(())
}

/// Returns the error for a broken log. Nothing is pruned from one, because it is evidence.
pub(super) fn broken_log_error(problem: &LogProblem) -> Error {
    Error::new(Kind::Conflict, format!("nothing was pruned, because the log is broken: {problem}"))
        .with_reason("audit_broken")
        .with_hint("Run `ringfence audit verify`. To start a new log and keep this one as evidence, stop all servers and move the directory `audit` away.")
}
