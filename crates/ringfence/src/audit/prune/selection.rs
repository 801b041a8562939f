//! Selects the files that may be pruned: the oldest ones, verified to be as they were written.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::audit::scan::{Problem, Scan, State, is_in_use, links};
use crate::audit::store::{LATEST, Snapshot, Store, open_regular};
use crate::audit::survey::LogSurvey;
use crate::audit::verify::{missing, unreadable};
use crate::base::{Error, Kind, Result};

/// Reason why a file and all files after it are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptBecause {
    /// It is the newest file.
    Newest,
    /// A process is writing it.
    InUse,
    /// It contains a record that is not old enough.
    NotOldEnough,
}

/// Number of attempts to read the log while other prunings remove files from it.
const ATTEMPTS: usize = 5;

/// Selects at most `at_most` files and verifies them.
pub(super) fn select(store: &Store, before: &str, at_most: usize) -> Result<PruneSelection> {
    for _ in 1..ATTEMPTS {
        let names = store.contents().map_err(unreadable)?.names;
        match PruneSelection::read(store, before, at_most) {
            Err(_) if store.has_lost(&names).map_err(unreadable)? => {}
            done => return done,
        }
    }
    PruneSelection::read(store, before, at_most)
}

/// Verified files that may be removed, oldest first.
#[derive(Default)]
pub(super) struct PruneSelection {
    pub(super) files: Vec<(String, Scan)>,
    pub(super) leftovers: usize,
    /// None if there are too many files for one record, or no files at all.
    pub(super) kept_from: Option<(String, KeptBecause)>,
}

impl PruneSelection {
    fn read(store: &Store, before: &str, at_most: usize) -> Result<PruneSelection> {
        let Snapshot { names, latest } = store.snapshot().map_err(unreadable)?;
        let survey = LogSurvey::read(store, &names);
        let mut selection = PruneSelection {
            leftovers: survey.pruned.leftovers(&names).len(),
            ..PruneSelection::default()
        };
        let latest = match latest {
            Some(Ok(latest)) => latest,
            None if survey.headers.is_empty() => return Ok(selection),
            damaged => {
                let what = damaged
                    .and_then(std::result::Result::err)
                    .unwrap_or_else(|| "it is missing".into());
                return Err(broken_log(&Problem { file: LATEST.into(), line: 1, seq: None, what }));
            }
        };
        let mut wanted = survey.wanted_records();
        for name in survey.in_order().into_iter().filter(|name| !survey.pruned.names(name)) {
            if selection.files.len() == at_most {
                break;
            }
            let wanted = wanted.remove(name).unwrap_or_default();
            match examine(store, name, (&survey, &latest, before), wanted)? {
                Ok(scan) => selection.files.push((name.to_owned(), scan)),
                Err(why) => {
                    selection.kept_from = Some((name.to_owned(), why));
                    break;
                }
            }
        }
        check_links(store, &survey, &selection.by_name())?;
        Ok(selection)
    }

    pub(super) fn by_name(&self) -> BTreeMap<&str, &Scan> {
        self.files.iter().map(|(name, scan)| (name.as_str(), scan)).collect()
    }
}

/// Verifies a file, or returns why it is kept.
fn examine(
    store: &Store,
    name: &str,
    (survey, latest, before): (&LogSurvey, &str, &str),
    wanted: BTreeSet<u64>,
) -> Result<std::result::Result<Scan, KeptBecause>> {
    let is_newer = |ts: &Value| ts.as_str().is_some_and(|ts| ts >= before);
    if name == latest {
        return Ok(Err(KeptBecause::Newest));
    }
    // Checked before the file is verified, which may take long.
    if open_regular(&store.path(name)).is_ok_and(|file| is_in_use(&file)) {
        return Ok(Err(KeptBecause::InUse));
    }
    if survey.headers.get(name).is_some_and(|header| is_newer(&header["ts"])) {
        return Ok(Err(KeptBecause::NotOldEnough));
    }
    let scan = Scan::run(store, name, wanted).map_err(unreadable)?;
    Ok(match (&scan.problem, scan.state) {
        (Some(problem), _) => return Err(broken_log(problem)),
        (None, State::Open) => Err(KeptBecause::InUse),
        (None, _) if is_newer(&scan.last["ts"]) => Err(KeptBecause::NotOldEnough),
        (None, _) => Ok(scan),
    })
}

/// Checks the links from and to the selected files. After the removal, a link into a removed file
/// counts as accounted for, and the removed file's own links are gone with it. Both must be correct
/// before that, or the prune record would hide what `verify` reports.
pub(super) fn check_links(
    store: &Store,
    survey: &LogSurvey,
    selected: &BTreeMap<&str, &Scan>,
) -> Result<()> {
    let problem = |file: &str, what: String| {
        broken_log(&Problem { file: file.to_owned(), line: 1, seq: Some(1), what })
    };
    for (holder, header) in &survey.headers {
        for link in links(header) {
            match selected.get(link.file.as_str()) {
                Some(scan) if !scan.holds(&link) => {
                    return Err(problem(
                        &link.file,
                        format!("the record that {holder} line 1 links does not exist"),
                    ));
                }
                None if selected.contains_key(holder.as_str())
                    && !survey.headers.contains_key(&link.file)
                    && !survey.pruned.covers(&link) =>
                {
                    return Err(broken_log(&missing(
                        &link.file,
                        format!("{holder} line 1 links it"),
                    )));
                }
                _ => {}
            }
        }
    }
    let has_records = |name: &str| match selected.get(name) {
        Some(scan) => scan.records > 1,
        None => store.head(name).is_ok_and(|(seq, _)| seq > 1),
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
        let opened: Vec<&str> = names.iter().copied().filter(|name| has_records(name)).collect();
        if let [first, second, ..] = opened[..]
            && opened.iter().any(|name| selected.contains_key(*name))
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
pub(super) fn broken_log(problem: &Problem) -> Error {
    Error::new(Kind::Conflict, format!("nothing was pruned, because the log is broken: {problem}"))
        .reason("audit_broken")
        .hint("Run `ringfence audit verify`. To start a new log and keep this one as evidence, stop all servers and move the directory `audit` away.")
}
