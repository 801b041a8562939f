//! The log as a whole: what is written, what is refused, and that nothing done to it goes unseen.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Instant;

use serde_json::{Map, Value, json};

use super::testing::{Dir, again, child_root};
use super::verify::{LogFileReport, LogFileState, VerifyReport, verify_log};
use super::*;
use crate::base::call::{CallFacts, CallStatus};
use crate::base::{CancelCause, TraceId};
use crate::redact::known_secrets;
use crate::redact::secret::Secret;

const LARGE: u64 = 1 << 30;

fn records(root: &Path) -> Vec<Value> {
    let mut records = Vec::new();
    read::LogReader::new(root)
        .read(|event| {
            records.push(event.parse().unwrap());
            Ok(())
        })
        .unwrap();
    records
}

fn of<'a>(records: &'a [Value], event: &str) -> Vec<&'a Value> {
    records.iter().filter(|record| record["event"] == event).collect()
}

fn intact(root: &Path) -> VerifyReport {
    let report = verify_log(root).unwrap();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
    report
}

fn call_fields() -> Map<String, Value> {
    to_object(json!({
        "session": "s-1", "principal": "alice", "workspace": "w", "transport": "stdio", "protocol": "2025-06-18",
        "client": "codex/1", "tool": "shell.exec", "arguments_hash": "sha256:00", "cwd": ".", "profile": "default",
        "timeout_ms": 1000,
    }))
}

/// What `call.start` has is reused for `call.stop`, but not if the search for secrets has changed.
#[test]
fn a_secret_that_becomes_known_while_a_call_runs_is_not_in_its_end() {
    let root = Dir::new();
    let audit = AuditLog::open(root.path(), LARGE).unwrap();
    let value = "known-while-the-call-runs";
    let mut record = CallRecord::open(&audit, &TraceId::generate(), call_fields());
    record.set_field("cwd", value);
    record.write_start().unwrap();
    known_secrets::register_secrets([("LATE", &Secret::new(value))]);
    record.finish(&CallFacts::default(), None, None);
    let records = records(root.path());
    assert_eq!(of(&records, "call.start")[0]["cwd"], value);
    assert_eq!(of(&records, "call.stop")[0]["cwd"], "[secret:LATE]");
    assert_eq!(of(&records, "call.stop")[0]["status"], "completed");
    intact(root.path());
}

#[test]
fn a_call_gives_start_approval_and_stop_with_every_field() {
    let root = Dir::new();
    let audit = AuditLog::open(root.path(), LARGE).unwrap();
    let trace = TraceId::generate();
    let mut record = CallRecord::open(
        &audit,
        &trace,
        [("timeout_ms", 1000.into()), ("tool", "shell.exec".into()), ("extra", 1.into())],
    );
    record.set_fields(call_fields());
    record.set_field("trace_id", "forged");
    record.set_field("arguments", json!({"command": "hunter2"}));
    record.call_events().write_approval("approved", "client", "session").unwrap();
    record.write_start().unwrap();
    let facts = CallFacts {
        git_changed: vec!["a repository was made: sub/.git".to_owned()],
        status: Some(CallStatus::TimedOut),
        exit_code: Some(3),
        signal: Some(15),
        stdout_bytes: Some(10),
        stderr_bytes: Some(20),
        denials: vec![json!({"kind": "syscall", "name": "mount", "count": 1})],
        unruled_execs: Some(json!({"count": 2, "digest": "blake3:00"})),
        report_gap: None,
        weaker_tier: None,
    };
    let error = Error::new(Kind::DeadlineExceeded, "hunter2").with_reason("slow");
    record.finish(&facts, Some(&error), Some(CancelCause::Deadline));

    let records = records(root.path());
    let keys =
        |record: &Value| record.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    let call = "seq ts event trace_id session principal workspace transport protocol client tool arguments_hash cwd \
                profile timeout_ms extra arguments";
    let [start] = of(&records, "call.start")[..] else { panic!("{records:?}") };
    assert_eq!(keys(start), format!("{call} mac"));
    let [approval] = of(&records, "approval")[..] else { panic!("{records:?}") };
    assert_eq!(
        keys(approval),
        "seq ts event trace_id session principal tool arguments_hash outcome by mode mac",
    );
    assert_eq!(
        [&approval["outcome"], &approval["by"], &approval["mode"]],
        ["approved", "client", "session"]
    );
    let [stop] = of(&records, "call.stop")[..] else { panic!("{records:?}") };
    assert_eq!(
        keys(stop),
        format!(
            "{call} status error reason cause exit_code signal stdout_bytes stderr_bytes denials git_changed execs started stopped duration_ms mac"
        )
    );
    assert_eq!(stop["status"], "timed_out");
    assert_eq!(
        [&stop["error"], &stop["reason"], &stop["cause"]],
        ["deadline_exceeded", "slow", "deadline"]
    );
    assert_eq!(
        [&stop["exit_code"], &stop["signal"], &stop["stdout_bytes"], &stop["stderr_bytes"]],
        [3, 15, 10, 20]
    );
    assert!(stop["started"].as_str() <= stop["stopped"].as_str() && stop["started"].is_string());
    for record in [start, approval, stop] {
        assert_eq!(record["trace_id"], trace.as_str());
        assert!(!record.to_string().contains("hunter2"));
    }
    drop(audit);
    intact(root.path());
}

#[test]
fn every_way_to_end_has_its_word_and_one_stop() {
    let root = Dir::new();
    let audit = AuditLog::open(root.path(), LARGE).unwrap();
    let error = |kind| Some(Error::new(kind, "x"));
    let facts = |status| CallFacts { status, ..CallFacts::default() };
    let cases = [
        ("completed", facts(None), None, None),
        ("failed", facts(Some(CallStatus::Failed)), None, None),
        ("failed", facts(Some(CallStatus::Completed)), error(Kind::Internal), None),
        ("cancelled", facts(None), error(Kind::Cancelled), Some(CancelCause::Client)),
        ("timed_out", facts(None), error(Kind::DeadlineExceeded), Some(CancelCause::Deadline)),
        ("timed_out", facts(None), error(Kind::Cancelled), Some(CancelCause::Deadline)),
        ("denied", facts(None), error(Kind::ApprovalExpired), None),
        ("denied", facts(None), error(Kind::PermissionDenied), None),
        ("failed", facts(None), error(Kind::InvalidArguments), None),
    ];
    for (_, facts, error, cause) in &cases {
        // Refused before the start: there is a stop all the same.
        CallRecord::open(&audit, &TraceId::generate(), call_fields()).finish(
            facts,
            error.as_ref(),
            *cause,
        );
    }
    let records = records(root.path());
    let found: Vec<_> =
        of(&records, "call.stop").iter().map(|stop| stop["status"].as_str().unwrap()).collect();
    assert_eq!(found, cases.iter().map(|case| case.0).collect::<Vec<_>>());
    assert_eq!(of(&records, "call.start").len(), 0);
}

#[test]
fn a_dropped_record_is_aborted_even_in_a_panic() {
    let root = Dir::new();
    let audit = AuditLog::open(root.path(), LARGE).unwrap();
    CallRecord::open(&audit, &TraceId::generate(), call_fields()).write_start().unwrap();
    let inside = audit.clone();
    let panicked = std::thread::spawn(move || {
        let mut record = CallRecord::open(&inside, &TraceId::generate(), call_fields());
        record.write_start().unwrap();
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    drop(audit);
    let records = records(root.path());
    let stops = of(&records, "call.stop");
    assert_eq!(stops.len(), 2);
    assert!(stops.iter().all(|stop| stop["status"] == "aborted"));
    intact(root.path());
}

/// Whether they are on record by themselves or counted, the log accounts for all of them, whoever
/// ends it.
#[test]
fn refused_calls_are_recorded_or_counted_until_the_end() {
    let root = Dir::new();
    let audit = AuditLog::open(root.path(), LARGE).unwrap();
    let error = Error::new(Kind::ApprovalDenied, "x");
    let refuse = |principal: &str| {
        let mut record = CallRecord::open(&audit, &TraceId::generate(), call_fields());
        record.set_field("principal", principal);
        record.call_events().write_approval("denied", "nobody", "once").unwrap();
        match record.admit_refusal() {
            Ok(()) => record.finish(&CallFacts::default(), Some(&error), None),
            Err(_) => drop(record.count_refusal(&error)),
        }
    };
    for _ in 0..500 {
        refuse("alice");
        refuse("bob");
    }
    // One that runs is on record with all its answers, however many were refused.
    let mut running = CallRecord::open(&audit, &TraceId::generate(), call_fields());
    running.call_events().write_approval("approved", "client", "once").unwrap();
    running.write_start().unwrap();
    running.call_events().write_approval("denied", "client", "once").unwrap();
    assert!(running.admit_refusal().is_ok());
    running.finish(&CallFacts::default(), Some(&error), None);
    refuse("alice");
    drop(audit);

    let records = records(root.path());
    let of_whom = |event: &str, who: &str| {
        of(&records, event).into_iter().filter(|r| r["principal"] == who).count()
    };
    for (who, calls) in [("alice", 501), ("bob", 500)] {
        let counts =
            of(&records, "call.refused").into_iter().filter(|record| record["principal"] == who);
        let counted: u64 = counts.map(|record| record["count"].as_u64().unwrap()).sum();
        let stops = of_whom("call.stop", who) - usize::from(who == "alice");
        assert_eq!(stops as u64 + counted, calls, "{who}");
        assert!((100..200).contains(&stops), "{who}: {stops}");
        assert_eq!(of_whom("approval", who), stops + if who == "alice" { 2 } else { 0 });
    }
    intact(root.path());
}

#[test]
fn files_are_private_and_begin_with_a_header_that_links_the_one_before() {
    let root = Dir::new();
    drop(AuditLog::open(root.path(), LARGE).unwrap());
    drop(AuditLog::open(root.path(), LARGE).unwrap());
    let logs = root.logs();
    assert_eq!(logs.len(), 2);
    let mode = |name: &str| fs::metadata(root.audit(name)).unwrap().permissions().mode() & 0o777;
    for name in super::store::list_names(&root.audit("")).unwrap() {
        assert_eq!(mode(&name), 0o600, "{name}");
    }
    let lines = |name: &String| -> Vec<Value> {
        let text = fs::read_to_string(root.audit(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (first, second) = (lines(&logs[0]), lines(&logs[1]));
    assert_eq!(first[0]["event"], "open");
    assert_eq!(first[0]["predecessor"], Value::Null);
    assert_eq!(
        [&first[0]["pid"], &first[0]["file"]],
        [&json!(std::process::id()), &json!(logs[0])]
    );
    assert_eq!(first[0]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(first[1]["event"], "close");
    assert_eq!(
        second[0]["predecessor"],
        json!({"file": logs[0], "seq": 2, "mac": first[1]["mac"]})
    );
    let report = intact(root.path());
    assert!(
        report.files.iter().all(|file| file.state == LogFileState::Closed && file.records == 2)
    );
}

#[test]
fn two_handles_on_one_root_interleave() {
    let root = Dir::new();
    let (one, two) =
        (AuditLog::open(root.path(), LARGE).unwrap(), AuditLog::open(root.path(), LARGE).unwrap());
    for n in 0..100 {
        one.write_event("test", json!({"n": n})).unwrap();
        two.write_event("test", json!({"n": n})).unwrap();
    }
    let report = intact(root.path());
    assert_eq!((report.records, report.files.len()), (202, 2));
    assert!(report.files.iter().all(|file| file.state == LogFileState::Open));
    drop((one, two));
    assert!(intact(root.path()).files.iter().all(|file| file.state == LogFileState::Closed));
}

#[test]
fn processes_on_one_root_write_and_rotate_at_the_same_time() {
    const NAME: &str = "audit::tests::processes_on_one_root_write_and_rotate_at_the_same_time";
    if let Some(root) = child_root() {
        let audit = AuditLog::open(&root, 5000).unwrap();
        for n in 0..300 {
            audit.write_event("test", json!({"n": n})).unwrap();
        }
        return;
    }
    let root = Dir::new();
    let children: Vec<_> = (0..4).map(|_| again(NAME, root.path())).collect();
    let mut seen = 0;
    for mut child in children {
        // Reading while they write must find nothing wrong either.
        while child.try_wait().unwrap().is_none() {
            if let Ok(report) = verify_log(root.path()) {
                assert!(report.problems.is_empty(), "{:#?}", report.problems);
                seen += 1;
            }
        }
        assert!(child.wait().unwrap().success());
    }
    assert!(seen > 0);
    let report = intact(root.path());
    // Where another holds the lock a rotation waits for the next record, so their number varies.
    assert!(report.files.len() > 8, "{} files", report.files.len());
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    let records = records(root.path());
    assert_eq!(of(&records, "test").len(), 1200);
    // Every file but the newest is the predecessor of exactly one other.
    let mut linked: Vec<_> = of(&records, "open")
        .iter()
        .filter_map(|open| open["predecessor"]["file"].as_str())
        .collect();
    linked.sort_unstable();
    let before = linked.len();
    linked.dedup();
    assert_eq!((linked.len(), before), (report.files.len() - 1, report.files.len() - 1));
}

#[test]
fn rotation_closes_links_and_carries_running_calls_over() {
    let root = Dir::new();
    let audit = AuditLog::open(root.path(), 2000).unwrap();
    let mut record = CallRecord::open(&audit, &TraceId::generate(), call_fields());
    record.write_start().unwrap();
    for n in 0..30 {
        audit.write_event("test", json!({"n": n})).unwrap();
    }
    record.finish(&CallFacts::default(), None, None);
    drop(audit);

    let (report, records) = (intact(root.path()), records(root.path()));
    assert!(report.files.len() >= 3);
    assert!(report.files.iter().all(|file| file.state == LogFileState::Closed));
    let logs = root.logs();
    let (opens, closes) = (of(&records, "open"), of(&records, "close"));
    assert_eq!((opens.len(), closes.len()), (logs.len(), logs.len()));
    for at in 1..logs.len() {
        let (close, open) = (closes[at - 1], opens[at]);
        assert_eq!([&close["reason"], &close["next"]], ["rotate", logs[at].as_str()]);
        let link = json!({"file": logs[at - 1], "seq": close["seq"], "mac": close["mac"]});
        assert_eq!([&open["continues"], &open["predecessor"]], [&link, &link]);
        let size = fs::metadata(root.audit(&logs[at - 1])).unwrap().len();
        assert!((2000..3500).contains(&size), "{size}");
    }
    assert_eq!(of(&records, "call.start").len(), 1);
    assert_eq!(of(&records, "call.stop").len(), 1);
}

/// A small log of several files, some closed, some crashed; and what it looked like.
fn small_log() -> (Dir, Vec<String>) {
    let root = Dir::new();
    let one = AuditLog::open(root.path(), 900).unwrap();
    for n in 0..6 {
        one.write_event("test", json!({"n": n})).unwrap();
    }
    drop(one);
    let two = AuditLog::open(root.path(), LARGE).unwrap();
    for n in 0..4 {
        two.write_event("test", json!({"n": n})).unwrap();
    }
    drop(two);
    intact(root.path());
    let logs = root.logs();
    assert_eq!(logs.len(), 3);
    (root, logs)
}

#[test]
fn one_changed_byte_anywhere_is_found_and_named() {
    let (root, logs) = small_log();
    let names = super::store::list_names(&root.audit("")).unwrap();
    let mut changed = 0;
    for name in names.iter().filter(|name| *name != "lock") {
        let original = fs::read(root.audit(name)).unwrap();
        for at in 0..original.len() {
            // Another letter, another case of it, and a newline.
            for byte in [original[at] ^ 1, if at % 3 == 0 { b'\n' } else { original[at] ^ 0x20 }] {
                if byte == original[at] {
                    continue;
                }
                let mut bytes = original.clone();
                bytes[at] = byte;
                fs::write(root.audit(name), &bytes).unwrap();
                let report = verify_log(root.path()).unwrap();
                let first =
                    report.problems.first().unwrap_or_else(|| panic!("{name} byte {at} to {byte}"));
                if logs.contains(name) {
                    let line =
                        original[..at].iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
                    assert_eq!(
                        (&first.file, first.line),
                        (name, line),
                        "{name} byte {at}: {first}"
                    );
                } else if name != "key" {
                    assert_eq!(&first.file, name, "{first}");
                }
                changed += 1;
            }
        }
        fs::write(root.audit(name), &original).unwrap();
    }
    assert!(changed > 5000, "{changed}");
    intact(root.path());
}

#[test]
fn lines_removed_inserted_swapped_or_repeated_are_found_and_named() {
    let (root, logs) = small_log();
    for name in &logs {
        let original = fs::read(root.audit(name)).unwrap();
        let lines: Vec<&[u8]> = original.split_inclusive(|byte| *byte == b'\n').collect();
        let expect = |lines: &[&[u8]], at: usize, what: &str| {
            fs::write(root.audit(name), lines.concat()).unwrap();
            let report = verify_log(root.path()).unwrap();
            let first = report.problems.first().unwrap_or_else(|| panic!("{what} line {}", at + 1));
            let place = at as u64 + 1;
            assert_eq!(
                (&first.file, first.line, first.seq),
                (name, place, Some(place)),
                "{what}: {first}"
            );
        };
        for at in 0..lines.len() {
            let mut removed = lines.clone();
            removed.remove(at);
            expect(&removed, at, "removed");

            let mut repeated = lines.clone();
            repeated.insert(at, lines[at]);
            expect(&repeated, at + 1, "repeated");

            for insert in [
                &b"\n"[..],
                b"{}\n",
                b"{\"seq\":3,\"ts\":\"x\",\"event\":\"test\",\"mac\":\"00\"}\n",
            ] {
                for place in [at, at + 1] {
                    let mut inserted = lines.clone();
                    inserted.insert(place, insert);
                    expect(&inserted, place, "inserted");
                }
            }
            for other in at + 1..lines.len() {
                let mut swapped = lines.clone();
                swapped.swap(at, other);
                expect(&swapped, at, "swapped");
            }
        }
        fs::write(root.audit(name), &original).unwrap();
    }
    intact(root.path());
}

#[test]
fn a_cut_tail_is_found_at_every_length() {
    let (root, logs) = small_log();
    for name in &logs {
        let original = fs::read(root.audit(name)).unwrap();
        for length in 0..original.len() {
            fs::write(root.audit(name), &original[..length]).unwrap();
            let report = verify_log(root.path()).unwrap();
            let first = report.problems.first().unwrap_or_else(|| panic!("{name} cut to {length}"));
            let whole = original[..length].iter().filter(|byte| **byte == b'\n').count() as u64;
            assert_eq!((&first.file, first.line), (name, whole + 1), "{first}");
            assert!(first.description.contains("the tail was cut"), "{first}");
        }
        fs::write(root.audit(name), &original).unwrap();
    }
}

#[test]
fn a_removed_file_is_found_and_named() {
    let (root, logs) = small_log();
    let names = super::store::list_names(&root.audit("")).unwrap();
    for name in names.iter().filter(|name| !["lock", "key"].contains(&name.as_str())) {
        let original = fs::read(root.audit(name)).unwrap();
        fs::remove_file(root.audit(name)).unwrap();
        let report = verify_log(root.path()).unwrap();
        assert_eq!(report.problems.first().map(|problem| &problem.file), Some(name));
        fs::write(root.audit(name), &original).unwrap();
    }
    // With its head as well: then a later header names it, or `latest` does.
    for name in &logs {
        let head = super::store::head_name(name);
        let originals = [fs::read(root.audit(name)).unwrap(), fs::read(root.audit(&head)).unwrap()];
        fs::remove_file(root.audit(name)).unwrap();
        fs::remove_file(root.audit(&head)).unwrap();
        let report = verify_log(root.path()).unwrap();
        let first = report.problems.first().unwrap();
        assert_eq!(&first.file, name);
        assert!(first.description.contains("the file is missing"), "{first}");
        fs::write(root.audit(name), &originals[0]).unwrap();
        fs::write(root.audit(&head), &originals[1]).unwrap();
    }
    // A file under another name, and one file in the place of another.
    fs::copy(root.audit(&logs[0]), root.audit("20200101T000000.000000Z-1-00.jsonl")).unwrap();
    assert!(
        verify_log(root.path()).unwrap().problems[0].description.contains("under another name")
    );
    fs::remove_file(root.audit("20200101T000000.000000Z-1-00.jsonl")).unwrap();
    intact(root.path());
    assert!(verify_log(Dir::new().path()).is_err());
}

#[test]
fn turning_back_a_file_with_its_head_or_latest_is_found_by_the_next_link() {
    let root = Dir::new();
    let one = AuditLog::open(root.path(), LARGE).unwrap();
    one.write_event("test", json!({"n": 1})).unwrap();
    let name = root.logs().remove(0);
    let head = super::store::head_name(&name);
    let old = [&name, &head, "latest"]
        .map(|name| (root.audit(name), fs::read(root.audit(name)).unwrap()));
    one.write_event("test", json!({"n": 2})).unwrap();
    drop(one);
    let two = AuditLog::open(root.path(), LARGE).unwrap();
    two.write_event("test", json!({"n": 3})).unwrap();
    intact(root.path());
    let new = old.clone().map(|(path, _)| (path.clone(), fs::read(path).unwrap()));

    // The head alone, then the file with it, then `latest` alone.
    fs::write(&old[1].0, &old[1].1).unwrap();
    assert_eq!(verify_log(root.path()).unwrap().problems[0].file, head);
    fs::write(&old[0].0, &old[0].1).unwrap();
    let report = verify_log(root.path()).unwrap();
    assert_eq!(
        (&report.problems[0].file, report.problems[0].seq),
        (&name, Some(4)),
        "{:?}",
        report.problems
    );
    for (path, bytes) in &new {
        fs::write(path, bytes).unwrap();
    }
    fs::write(&old[2].0, &old[2].1).unwrap();
    assert_eq!(verify_log(root.path()).unwrap().problems[0].file, "latest");
}

#[test]
fn a_torn_tail_is_a_crash_and_garbage_is_not() {
    let root = Dir::new();
    let audit = AuditLog::open(root.path(), LARGE).unwrap();
    for n in 0..3 {
        audit.write_event("test", json!({"n": n})).unwrap();
    }
    let name = root.logs().remove(0);
    let head = fs::read(root.audit(&super::store::head_name(&name))).unwrap();
    let whole = fs::read(root.audit(&name)).unwrap();
    audit.write_event("test", json!({"n": 3})).unwrap();
    let all = fs::read(root.audit(&name)).unwrap();
    drop(audit);
    // What a kill in the middle of the fifth record leaves, at every length.
    fs::write(root.audit(&super::store::head_name(&name)), &head).unwrap();
    for length in whole.len()..all.len() {
        fs::write(root.audit(&name), &all[..length]).unwrap();
        let report = intact(root.path());
        let torn = (length - whole.len()) as u64;
        assert_eq!((report.records, report.files[0].state), (4, LogFileState::Crashed { torn }));
    }
    // Killed between the record and the head.
    fs::write(root.audit(&name), &all).unwrap();
    assert_eq!(intact(root.path()).files[0].state, LogFileState::Crashed { torn: 0 });

    fs::write(root.audit(&name), [&whole[..], b"{\"seq\":5,\"ts\":"].concat()).unwrap();
    let next = AuditLog::open(root.path(), LARGE).unwrap();
    let report = intact(root.path());
    assert_eq!(
        [report.files[0].state, report.files[1].state],
        [LogFileState::Crashed { torn: 14 }, LogFileState::Open]
    );
    let records = records(root.path());
    assert_eq!(
        [&records[4]["predecessor"]["file"], &records[4]["predecessor"]["seq"]],
        [&json!(name), &json!(4)]
    );
    drop(next);

    for garbage in [&b"x"[..], b"{\"seq\":6,", b"\x00\x00"] {
        fs::write(root.audit(&name), [&whole[..], garbage].concat()).unwrap();
        let report = verify_log(root.path()).unwrap();
        assert_eq!((&report.problems[0].file, report.problems[0].line), (&name, 5));
    }
}

#[test]
fn a_killed_process_leaves_a_log_that_is_a_crash_and_nothing_worse() {
    const NAME: &str =
        "audit::tests::a_killed_process_leaves_a_log_that_is_a_crash_and_nothing_worse";
    if let Some(root) = child_root() {
        let audit = AuditLog::open(&root, 50_000).unwrap();
        for n in 0.. {
            audit.write_event("test", json!({"n": n})).unwrap();
            if n == 500 {
                std::io::stdout().write_all(b"\nwriting\n").unwrap();
            }
        }
    }
    let root = Dir::new();
    for _ in 0..5 {
        let mut child = again(NAME, root.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "writing"));
        child.kill().unwrap();
        child.wait().unwrap();
        let report = intact(root.path());
        assert!(report.records > 500);
    }
    let audit = AuditLog::open(root.path(), LARGE).unwrap();
    audit.write_event("test", json!({"n": 0})).unwrap();
    let report = intact(root.path());
    let is_crash = |file: &&LogFileReport| matches!(file.state, LogFileState::Crashed { .. });
    let crashes = report.files.iter().filter(is_crash).count();
    // One that was killed between two files leaves a closed one.
    assert!((1..=5).contains(&crashes), "{crashes} crashes");
    assert!(
        !super::store::list_names(&root.audit(""))
            .unwrap()
            .iter()
            .any(|name| name.starts_with("tmp-"))
    );
}

fn refused(result: Result<()>) {
    let error = result.unwrap_err();
    assert_eq!((error.kind(), error.reason_name()), (Kind::Unavailable, Some("audit_unwritable")));
    assert!(error.hint_text().unwrap().contains("audit directory"));
    assert!(!error.message().contains('/'));
}

/// The disk is full in the middle of a line. A file-size limit does it on every host: the kernel
/// writes what fits and refuses the rest, as it does on a full disk, and raising the limit is what
/// making room is.
#[test]
fn a_full_disk_refuses_calls_and_breaks_nothing() {
    const NAME: &str = "audit::tests::a_full_disk_refuses_calls_and_breaks_nothing";
    let Some(root) = child_root() else {
        let root = Dir::new();
        let done = again(NAME, root.path()).wait_with_output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
        let report = intact(root.path());
        assert_eq!(report.files.len(), 1);
        assert_eq!(report.files[0].state, LogFileState::Closed);
        let records = records(root.path());
        // One of the calls was running when the disk filled up: its stop was written when there was
        // room.
        assert_eq!((of(&records, "call.start").len(), of(&records, "call.stop").len()), (2, 3));
        assert_eq!(of(&records, "filler").len(), 0);
        return;
    };
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = |bytes| {
        let maximum = getrlimit(Resource::Fsize).maximum;
        setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum }).unwrap();
    };
    let audit = AuditLog::open(&root, LARGE).unwrap();
    let mut running = CallRecord::open(&audit, &TraceId::generate(), call_fields());
    running.write_start().unwrap();
    let mut names = super::store::list_names(&root.join("audit")).unwrap();
    names.retain(|name| name.ends_with(".jsonl"));
    let path = root.join("audit").join(&names[0]);
    let whole = fs::read(&path).unwrap();
    // Every number of bytes that may still fit, none and all but one among them.
    for room in 0..300 {
        limit(Some(whole.len() as u64 + room));
        refused(audit.write_event("filler", json!({"text": "x".repeat(300)})));
        limit(None);
        assert_eq!(fs::read(&path).unwrap(), whole, "room for {room} bytes");
    }
    limit(Some(whole.len() as u64 + 50));
    running.finish(&CallFacts::default(), None, None);
    let mut second = CallRecord::open(&audit, &TraceId::generate(), call_fields());
    refused(second.write_start());
    refused(second.call_events().write_approval("approved", "client", "once"));
    second.finish(&CallFacts::default(), None, None);
    refused(audit.close());
    assert_eq!(fs::read(&path).unwrap(), whole);
    limit(None);
    CallRecord::open(&audit, &TraceId::generate(), call_fields()).write_start().unwrap();
}

#[test]
fn a_rotation_without_room_goes_on_in_the_old_file() {
    const NAME: &str = "audit::tests::a_rotation_without_room_goes_on_in_the_old_file";
    let Some(root) = child_root() else {
        let root = Dir::new();
        let done = again(NAME, root.path()).wait_with_output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
        let report = intact(root.path());
        assert!(report.notes.is_empty(), "{:?}", report.notes);
        assert!(
            !super::store::list_names(&root.audit(""))
                .unwrap()
                .iter()
                .any(|name| name.starts_with("tmp-"))
        );
        assert_eq!(of(&records(root.path()), "test").len(), 20);
        assert!(report.files.len() > 1);
        return;
    };
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = |bytes| {
        let maximum = getrlimit(Resource::Fsize).maximum;
        setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum }).unwrap();
    };
    let audit = AuditLog::open(&root, 800).unwrap();
    let mut written = 0;
    // The limit moves through every stage of a rotation: no head, no `latest`, no header, no
    // closing record.
    for room in [0, 100, 250, 300, 600, 850, 900, 1000, 1050, 1100] {
        limit(Some(room));
        written += usize::from(audit.write_event("test", json!({"n": written})).is_ok());
    }
    limit(None);
    while written < 20 {
        audit.write_event("test", json!({"n": written})).unwrap();
        written += 1;
    }
}

#[test]
fn a_removed_replaced_or_changed_log_refuses_calls() {
    let root = Dir::new();
    let audit = AuditLog::open(root.path(), LARGE).unwrap();
    let start = || CallRecord::open(&audit, &TraceId::generate(), call_fields()).write_start();
    start().unwrap();
    let (dir, away) = (root.path().join("audit"), root.path().join("away"));
    fs::rename(&dir, &away).unwrap();
    refused(start());
    fs::create_dir(&dir).unwrap();
    refused(start());
    fs::remove_dir(&dir).unwrap();
    fs::rename(&away, &dir).unwrap();
    start().unwrap();
    intact(root.path());

    let log = root.audit(&root.logs()[0]);
    let original = fs::read(&log).unwrap();
    fs::write(&log, &original[..original.len() - 10]).unwrap();
    refused(start());
    fs::write(&log, &original).unwrap();
    start().unwrap();
    fs::copy(&log, root.path().join("copy")).unwrap();
    fs::rename(root.path().join("copy"), &log).unwrap();
    refused(start());
    fs::remove_dir_all(&dir).unwrap();
    refused(start());
}

#[test]
fn a_root_that_cannot_be_written_does_not_open() {
    let root = Dir::new();
    fs::write(root.path().join("audit"), b"").unwrap();
    refused(AuditLog::open(root.path(), LARGE).map(drop));
    // Nobody, root included, can make anything there.
    refused(AuditLog::open(Path::new("/proc/self"), LARGE).map(drop));
}

#[test]
fn after_close_nothing_is_written() {
    let root = Dir::new();
    let audit = AuditLog::open(root.path(), LARGE).unwrap();
    audit.close().unwrap();
    audit.close().unwrap();
    refused(audit.write_event("test", json!({})));
    drop(audit);
    assert_eq!(intact(root.path()).records, 2);
}

#[test]
fn a_latest_turned_back_or_damaged_shows_after_it_was_replaced() {
    let root = Dir::new();
    let open_and_write =
        || AuditLog::open(root.path(), LARGE).unwrap().write_event("test", json!({})).unwrap();
    open_and_write();
    let old = fs::read(root.audit("latest")).unwrap();
    open_and_write();
    let turned_back = |latest: Option<&[u8]>, what: &str| {
        let good = fs::read(root.audit("latest")).unwrap();
        match latest {
            Some(latest) => fs::write(root.audit("latest"), latest).unwrap(),
            None => fs::remove_file(root.audit("latest")).unwrap(),
        }
        open_and_write();
        let report = verify_log(root.path()).unwrap();
        let name = root.logs().pop().unwrap();
        assert_eq!((&report.problems[0].file, report.problems[0].line), (&name, 1));
        assert!(report.problems[0].description.contains(what), "{}", report.problems[0]);
        fs::remove_file(root.audit(&name)).unwrap();
        fs::remove_file(root.audit(&super::store::head_name(&name))).unwrap();
        fs::write(root.audit("latest"), good).unwrap();
        intact(root.path());
    };
    turned_back(Some(&old), "rolled back");
    turned_back(Some(b"{}"), "damaged or missing");
    turned_back(None, "damaged or missing");
}

/// Not asserted, since it depends on the host: read it with `--no-capture`, and
/// `RINGFENCE_AUDIT_RECORDS=100000`.
#[test]
fn figures() {
    let root = Dir::new();
    let audit = AuditLog::open(root.path(), 16 << 20).unwrap();
    let count: u32 =
        std::env::var("RINGFENCE_AUDIT_RECORDS").map_or(10_000, |count| count.parse().unwrap());
    let fields = call_fields();
    let begin = Instant::now();
    for _ in 0..count {
        audit.write_event("call.start", Value::Object(fields.clone())).unwrap();
    }
    let took = begin.elapsed();
    drop(audit);
    println!(
        "{:.1} µs per record, {:.0} records/s",
        took.as_secs_f64() * 1e6 / f64::from(count),
        f64::from(count) / took.as_secs_f64()
    );
    let begin = Instant::now();
    let report = intact(root.path());
    println!(
        "verified {} records in {} files in {:?}",
        report.records,
        report.files.len(),
        begin.elapsed()
    );
    assert!(report.records > u64::from(count));
}

#[test]
fn garbage_on_a_file_in_use_is_found_and_a_record_being_written_is_not() {
    let garbage = [
        &b"x"[..],
        b"no record at all",
        b"\0\0\0\0",
        b"{\"seq\":9,\"ts\":\"",
        b"{\"seq\":3,\"event\":\"",
        b"{\"seq\":3,\"ts\":\"2026\0\0",
    ];
    let begun = [&b"{"[..], b"{\"seq\":3,\"ts\":\"2026"];
    for added in garbage.into_iter().chain(begun) {
        let is_garbage = garbage.contains(&added);
        let root = Dir::new();
        let audit = AuditLog::open(root.path(), LARGE).unwrap();
        audit.write_event("test", json!({"n": 1})).unwrap();
        let name = root.logs().remove(0);
        let mut file = fs::OpenOptions::new().append(true).open(root.audit(&name)).unwrap();
        file.write_all(added).unwrap();
        let report = verify_log(root.path()).unwrap();
        let shown = String::from_utf8_lossy(added);
        assert_eq!(!report.problems.is_empty(), is_garbage, "{shown}: {:#?}", report.problems);
        if is_garbage {
            assert_eq!(
                (report.problems[0].file.as_str(), report.problems[0].line),
                (name.as_str(), 3),
                "{shown}"
            );
            assert_eq!(report.files[0].state, LogFileState::Broken, "{shown}");
        }
    }
}

#[test]
fn what_is_no_regular_file_is_named_and_neither_blocks_nor_ends_a_check() {
    let fifo = |path: &Path| {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success())
    };
    let root = Dir::new();
    let audit = AuditLog::open(root.path(), LARGE).unwrap();
    fifo(&root.audit("a-pipe.jsonl"));
    fs::create_dir(root.audit("b-directory.jsonl")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", root.audit("c-device.jsonl")).unwrap();
    fifo(&root.audit("e-head.head"));
    let report = verify_log(root.path()).unwrap();
    let named: Vec<&str> = report.problems.iter().map(|problem| problem.file.as_str()).collect();
    let irregular = ["a-pipe.jsonl", "b-directory.jsonl", "c-device.jsonl", "e-head.head"];
    assert_eq!(named, irregular);
    assert!(
        report.problems.iter().all(|problem| problem.description.contains("not a regular file")),
        "{report:#?}"
    );
    assert_eq!(records(root.path()).len(), 1, "what is a record is still shown");
    drop(audit);

    fs::remove_file(root.audit("latest")).unwrap();
    fifo(&root.audit("latest"));
    assert!(
        verify_log(root.path()).unwrap().problems.iter().any(|problem| problem.file == "latest")
    );
    fs::remove_file(root.audit("key")).unwrap();
    fifo(&root.audit("key"));
    assert!(verify_log(root.path()).is_err());
}

/// It has holes, so it takes no room; a reader that wants the whole line does.
#[test]
fn a_line_of_gigabytes_is_broken_and_not_read_whole() {
    let root = Dir::new();
    let audit = AuditLog::open(root.path(), LARGE).unwrap();
    let name = root.logs().remove(0);
    let file = fs::OpenOptions::new().write(true).open(root.audit(&name)).unwrap();
    file.set_len(64 << 30).unwrap();
    let report = verify_log(root.path()).unwrap();
    assert_eq!((report.problems[0].line, report.records), (2, 1));
    assert!(report.problems[0].description.contains("more than 16777216 bytes"), "{report:#?}");
    drop(audit);
}

/// The end of a line that is too long may look like a record.
#[test]
fn a_line_that_is_too_long_is_shown_as_unreadable() {
    let root = Dir::new();
    fs::create_dir(root.path().join("audit")).unwrap();
    let line = [&vec![b' '; super::store::MAX_LINE][..], b"{\"n\":1}\n{\"n\":2}\n"].concat();
    fs::write(root.audit("a.jsonl"), line).unwrap();
    let mut seen = Vec::new();
    let read = read::LogReader::new(root.path()).read(|event| {
        seen.push((event.line, event.parse().map(|value| value["n"].clone())));
        Ok(())
    });
    read.unwrap();
    assert_eq!(seen, [(1, None), (2, Some(json!(2)))]);
}
