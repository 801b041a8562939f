//! Pruning as a whole: what a record accounts for, and what it must never cover up.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::{KeepReason, has_files_before, plan_prune, prune_in_batches, prune_log};
use crate::audit::store::{head_name, list_names};
use crate::audit::testing::Dir;
use crate::audit::verify::{LogFileState, VerifyReport, verify_log};
use crate::audit::{AuditLog, read};
use crate::base::Kind;

const LARGE: u64 = 1 << 30;
/// After every time stamp.
const EVERYTHING: &str = "9999";

/// One closed file with a record in it; its name.
fn write_file(root: &Dir) -> String {
    AuditLog::open(root.path(), LARGE).unwrap().write_event("test", json!({})).unwrap();
    root.logs().pop().unwrap()
}

#[track_caller]
fn intact(root: &Path) -> VerifyReport {
    let report = verify_log(root).unwrap();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
    report
}

fn pruned_files(root: &Path) -> u64 {
    intact(root).pruned.map_or(0, |pruned| pruned.total.files)
}

fn refused(root: &Path) -> String {
    let error = prune_log(root, EVERYTHING, "test").unwrap_err();
    assert_eq!((error.kind(), error.reason_name()), (Kind::Conflict, Some("audit_broken")));
    error.message().to_owned()
}

/// The one line of a file that records a pruning.
fn prune_record(root: &Dir) -> (String, Value) {
    let found = root.logs().into_iter().rev().find_map(|name| {
        let text = fs::read_to_string(root.audit(&name)).unwrap();
        let value: Value = serde_json::from_str(text.lines().nth(1)?).unwrap();
        (value["event"] == "prune").then_some((name, value))
    });
    found.unwrap()
}

#[test]
fn only_old_closed_files_before_the_newest_go() {
    let root = Dir::new();
    let files: Vec<String> = (0..4).map(|_| write_file(&root)).collect();
    let opened = |name: &String| {
        let text = fs::read_to_string(root.audit(name)).unwrap();
        let header: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        header["ts"].as_str().unwrap().to_owned()
    };
    let kept = |before: &str| plan_prune(root.path(), before).unwrap();
    assert_eq!(kept("2000").kept_from, Some((files[0].clone(), KeepReason::NotOldEnough)));
    let plan = kept(&opened(&files[2]));
    assert_eq!(
        plan.removed.iter().map(|file| &file.file).collect::<Vec<_>>(),
        [&files[0], &files[1]]
    );
    assert_eq!(plan.kept_from, Some((files[2].clone(), KeepReason::NotOldEnough)));
    let plan = kept(EVERYTHING);
    assert_eq!(
        (plan.removed.len(), plan.kept_from),
        (3, Some((files[3].clone(), KeepReason::Newest)))
    );
    assert_eq!(root.logs(), files, "a plan changes nothing");
    // A record that is not old enough keeps a file whose header is.
    let text = fs::read_to_string(root.audit(&files[0])).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert!(kept(last["ts"].as_str().unwrap()).removed.is_empty());

    assert!(has_files_before(root.path(), EVERYTHING) && !has_files_before(root.path(), "2000"));
    let report = prune_log(root.path(), &opened(&files[2]), "test").unwrap();
    assert_eq!((report.removed.len(), report.leftovers), (2, 0));
    let (name, record) = prune_record(&root);
    assert_eq!(root.logs(), [files[2].clone(), files[3].clone(), name]);
    assert_eq!(intact(root.path()).files.last().unwrap().state, LogFileState::Closed);
    let total = &record["total"];
    assert_eq!([&total["files"], &total["records"]], [&json!(2), &json!(6)]);
    assert_eq!(record["removed"][0]["records"], 3);
    assert!(prune_log(Dir::new().path(), EVERYTHING, "test").is_err());
}

/// Two processes rotate in turns, so that files continue others that are not their predecessors.
#[test]
fn links_of_every_kind_survive_many_prunes_and_records_stay_small() {
    let root = Dir::new();
    let (one, two) =
        (AuditLog::open(root.path(), 600).unwrap(), AuditLog::open(root.path(), 900).unwrap());
    let mut largest = 0;
    for round in 0..30 {
        for n in 0..(round % 7) {
            one.write_event("test", json!({"n": n})).unwrap();
            two.write_event("test", json!({"n": n})).unwrap();
        }
        prune_log(root.path(), EVERYTHING, "test").unwrap();
        intact(root.path());
        if round > 5 {
            let (name, record) = prune_record(&root);
            largest = largest.max(fs::metadata(root.audit(&name)).unwrap().len());
            assert!(
                record["links"].as_array().unwrap().len() <= 2 * root.logs().len() + 20,
                "{record}"
            );
        }
    }
    drop((one, two));
    prune_log(root.path(), EVERYTHING, "test").unwrap();
    assert!(pruned_files(root.path()) > 50, "{}", pruned_files(root.path()));
    assert!(
        root.logs().len() < 10 && largest < 20_000,
        "{} files, {largest} bytes",
        root.logs().len()
    );
}

#[test]
fn many_files_are_pruned_in_several_records() {
    let root = Dir::new();
    for _ in 0..8 {
        write_file(&root);
    }
    let report = prune_in_batches(root.path(), EVERYTHING, "test", 3).unwrap();
    // Seven of the eight; then the newest of before is no longer the newest, and neither is the
    // first record's file.
    assert!(report.removed.len() >= 7, "{report:?}");
    assert_eq!(pruned_files(root.path()), report.removed.len() as u64);
    let distinct: BTreeSet<&String> = report.removed.iter().map(|file| &file.file).collect();
    assert_eq!(distinct.len(), report.removed.len());
}

#[test]
fn one_changed_byte_of_the_record_is_found() {
    let root = Dir::new();
    (0..3).for_each(|_| drop(write_file(&root)));
    prune_log(root.path(), EVERYTHING, "test").unwrap();
    write_file(&root);
    let (name, _) = prune_record(&root);
    for name in [&name, &head_name(&name)] {
        let original = fs::read(root.audit(name)).unwrap();
        for at in 0..original.len() {
            let mut bytes = original.clone();
            bytes[at] ^= 1;
            fs::write(root.audit(name), &bytes).unwrap();
            assert!(!verify_log(root.path()).unwrap().problems.is_empty(), "{name} byte {at}");
        }
        fs::write(root.audit(name), &original).unwrap();
    }
    assert_eq!(pruned_files(root.path()), 2);
}

/// A record accounts for the files that it names, with the macs that links have, and for no others.
#[test]
fn a_record_of_another_history_accounts_for_nothing() {
    let (root, other) = (Dir::new(), Dir::new());
    (0..3).for_each(|_| drop(write_file(&root)));
    fs::create_dir(other.path().join("audit")).unwrap();
    fs::copy(root.audit("key"), other.audit("key")).unwrap();
    (0..3).for_each(|_| drop(write_file(&other)));
    prune_log(other.path(), EVERYTHING, "test").unwrap();
    let (name, _) = prune_record(&other);
    for name in [&name, &head_name(&name)] {
        fs::copy(other.audit(name), root.audit(name)).unwrap();
    }
    let first = root.logs().remove(0);
    fs::remove_file(root.audit(&first)).unwrap();
    fs::remove_file(root.audit(&head_name(&first))).unwrap();
    let report = verify_log(root.path()).unwrap();
    assert!(
        report
            .problems
            .iter()
            .any(|problem| problem.file == first && problem.description.contains("missing"))
    );
}

/// What `verify` reports about a file must not be gone once the file is.
#[test]
fn nothing_that_verify_reports_is_covered_up() {
    let root = Dir::new();
    let one = AuditLog::open(root.path(), LARGE).unwrap();
    one.write_event("test", json!({"n": 1})).unwrap();
    let first = root.logs().remove(0);
    let old = [first.clone(), head_name(&first)]
        .map(|name| (root.audit(&name), fs::read(root.audit(&name)).unwrap()));
    let turned_back = fs::read(root.audit("latest")).unwrap();
    one.write_event("test", json!({"n": 2})).unwrap();
    drop(one);
    write_file(&root);
    write_file(&root);
    // An older state of the file with its head: only the link of the next file shows it.
    let new = old.clone().map(|(path, _)| (path.clone(), fs::read(path).unwrap()));
    old.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    assert!(refused(root.path()).contains(&first));
    new.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    // `latest` turned back: two files link the first one.
    fs::write(root.audit("latest"), turned_back).unwrap();
    write_file(&root);
    write_file(&root);
    assert!(refused(root.path()).contains("rolled back"));

    let root = Dir::new();
    write_file(&root);
    fs::write(root.audit("latest"), b"{}").unwrap();
    assert!(refused(root.path()).contains("latest"));
    write_file(&root);
    write_file(&root);
    assert!(refused(root.path()).contains("was damaged or missing"));
    assert!(
        plan_prune(root.path(), "2000").unwrap().removed.is_empty(),
        "what stays is not judged"
    );
}

/// Opens a file, writes to it, and leaves it as a killed process does.
fn leave_crashed(root: &Dir, events: usize, torn: &[u8]) -> String {
    let audit = AuditLog::open(root.path(), LARGE).unwrap();
    (0..events).for_each(|n| audit.write_event("test", json!({"n": n})).unwrap());
    let name = root.logs().pop().unwrap();
    let (log, head) =
        (fs::read(root.audit(&name)).unwrap(), fs::read(root.audit(&head_name(&name))).unwrap());
    drop(audit);
    fs::write(root.audit(&name), [&log[..], torn].concat()).unwrap();
    fs::write(root.audit(&head_name(&name)), head).unwrap();
    name
}

#[test]
fn what_crashes_left_is_pruned_too() {
    let root = Dir::new();
    let torn = leave_crashed(&root, 1, b"{\"seq\":3,\"ts");
    let latest = fs::read(root.audit("latest")).unwrap();
    // A process that dies before it has entered its file in `latest`: the next file links the same
    // one.
    let unused = leave_crashed(&root, 0, b"");
    fs::write(root.audit("latest"), latest).unwrap();
    let whole = write_file(&root);
    write_file(&root);
    assert_eq!(intact(root.path()).files[0].state, LogFileState::Crashed { torn: 12 });
    let removed = prune_log(root.path(), EVERYTHING, "test").unwrap().removed;
    assert_eq!(
        removed.into_iter().map(|file| file.file).collect::<Vec<_>>(),
        [torn, unused, whole]
    );
    assert_eq!(pruned_files(root.path()), 3);
}

/// Writers rotate, two prune, and one verifies, all at once.
#[test]
fn pruning_beside_servers_and_readers_breaks_nothing() {
    let root = Dir::new();
    drop(AuditLog::open(root.path(), LARGE).unwrap());
    let is_over = AtomicBool::new(false);
    let pruned = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..4 {
                        let audit = AuditLog::open(root.path(), 3000).unwrap();
                        (0..100).for_each(|n| audit.write_event("test", json!({"n": n})).unwrap());
                    }
                })
            })
            .collect();
        let pruners: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut removed = Vec::new();
                    while !is_over.load(Ordering::Acquire) {
                        removed.extend(prune_log(root.path(), EVERYTHING, "test").unwrap().removed);
                    }
                    removed
                })
            })
            .collect();
        while writers.iter().any(|writer| !writer.is_finished()) {
            intact(root.path());
            read::LogReader::new(root.path()).read(|_| Ok(())).unwrap();
        }
        is_over.store(true, Ordering::Release);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        pruners.into_iter().flat_map(|pruner| pruner.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(pruned.len() > 20, "{}", pruned.len());
    assert_eq!(pruned_files(root.path()), pruned.len() as u64, "each file is recorded once");
    let heads = list_names(&root.audit(""))
        .unwrap()
        .into_iter()
        .filter(|name| name.ends_with(".head"))
        .count();
    assert_eq!(heads, root.logs().len());
}

#[test]
fn a_record_that_cannot_be_written_removes_nothing() {
    let root = Dir::new();
    (0..3).for_each(|_| drop(write_file(&root)));
    let files = root.logs();
    // A directory in the place of a temporary file cannot be replaced.
    fs::create_dir(root.audit("tmp-log")).unwrap();
    let error = prune_log(root.path(), EVERYTHING, "test").unwrap_err();
    assert_eq!(error.reason_name(), Some("audit_unwritable"), "{error:?}");
    assert_eq!(root.logs(), files);
    fs::remove_dir(root.audit("tmp-log")).unwrap();
    assert_eq!(prune_log(root.path(), EVERYTHING, "test").unwrap().removed.len(), 2);
    intact(root.path());
}

#[test]
fn a_file_is_rotated_by_age_when_it_has_records() {
    let root = Dir::new();
    let audit = AuditLog::open(root.path(), LARGE).unwrap();
    audit.rotate_older_than(Duration::ZERO);
    assert_eq!(root.logs().len(), 1, "a header alone is nothing to rotate");
    audit.write_event("test", json!({})).unwrap();
    audit.rotate_older_than(Duration::from_secs(3600));
    assert_eq!(root.logs().len(), 1);
    audit.rotate_older_than(Duration::ZERO);
    assert_eq!(root.logs().len(), 2);
    audit.write_event("test", json!({})).unwrap();
    drop(audit);
    intact(root.path());
}
