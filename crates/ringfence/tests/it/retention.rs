//! Pruning the audit log: what is removed is accounted for by a sealed record, and everything else still has to be there.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::aged_log::{age_by_a_year, log_files};
use crate::support::server::{Scratch, audit, ringfence, verify};
use crate::support::subset::assert_holds;
use crate::support::{DEADLINE, Options, SESSIONS, Transport, eventually};

/// Runs a server on this directory that makes two calls and ends in order: one closed file.
fn run_server(scratch: &Arc<Scratch>) {
    let mut server = Options::new(Transport::Stdio).on(scratch).spawn();
    let mut client = server.connect(SESSIONS);
    for _ in 0..2 {
        client.call("file.list", json!({}));
    }
    client.hang_up();
    assert!(server.ended().success());
}

/// A log of so many closed files.
fn log_of(files: usize) -> Arc<Scratch> {
    let scratch = Scratch::new();
    (0..files).for_each(|_| run_server(&scratch));
    assert_eq!(log_files(&scratch).len(), files);
    scratch
}

/// Exit code and text of `ringfence audit prune`.
fn prune(scratch: &Scratch, words: &[&str]) -> (i32, String) {
    let mut command = ringfence(scratch);
    let output = command
        .args(["audit", "prune", "--root"])
        .arg(scratch.path().join("root"))
        .args(words)
        .output();
    let output = output.unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
}

#[track_caller]
fn assert_verified(scratch: &Scratch, says: &str) {
    let (code, text) = verify(scratch);
    assert!(code == 0 && text.contains("chain intact") && text.contains(says), "{code}: {text}");
}

#[track_caller]
fn assert_broken(scratch: &Scratch, says: &str) {
    let (code, text) = verify(scratch);
    assert!(code == 1 && text.contains("BROKEN") && text.contains(says), "{code}: {text}");
}

/// A log file and its head with their contents, to put back later.
fn take_away(file: &Path) -> [(PathBuf, Vec<u8>); 2] {
    [file.to_owned(), file.with_extension("head")].map(|path| {
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        (path, bytes)
    })
}

fn put_back(taken: &[(PathBuf, Vec<u8>)]) {
    taken.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
}

fn name(file: &Path) -> &str {
    file.file_name().unwrap().to_str().unwrap()
}

#[test]
fn a_prune_leaves_a_sealed_record_that_verify_accepts() {
    let scratch = log_of(3);
    let before = log_files(&scratch);
    let (code, text) = prune(&scratch, &["--before", "0s", "--dry-run"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(name(&before[0])) && text.contains(name(&before[1])), "{text}");
    assert!(text.contains("2 files (") && text.contains("nothing was removed"), "{text}");
    assert_eq!(log_files(&scratch), before, "a dry run removes and writes nothing");

    let records = audit(&scratch).len();
    let (code, text) = prune(&scratch, &["--before", "0s"]);
    assert_eq!(code, 0, "{text}");
    let after = log_files(&scratch);
    assert_eq!(after.len(), 2, "the newest file and the record: {text}");
    assert_eq!(after[0], before[2]);
    assert!(
        !before[0].with_extension("head").exists() && !before[1].with_extension("head").exists()
    );
    assert_verified(&scratch, "2 files (");

    let events = audit(&scratch);
    let record = events.iter().find(|event| event["event"] == "prune").unwrap();
    let removed = record["removed"].as_array().unwrap();
    let names: Vec<&Value> = removed.iter().map(|file| &file["file"]).collect();
    assert_eq!(names, [name(&before[0]), name(&before[1])]);
    let gone: u64 = removed.iter().map(|file| file["records"].as_u64().unwrap()).sum();
    // The new file has its header, the record and its end.
    assert_eq!(u64::try_from(records + 3 - events.len()).unwrap(), gone);
    assert_holds(
        json!({"by": "ringfence audit prune", "before": "*", "total": {"files": 2, "records": gone}}),
        record,
    );
    let shown = ringfence(&scratch)
        .args(["audit", "--root"])
        .arg(scratch.path().join("root"))
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.lines().any(|line| line.contains("prune") && line.contains("2 files")),
        "{shown}"
    );

    let (code, text) = prune(&scratch, &["--before", "2020-01-01"]);
    assert!(code == 0 && text.contains("nothing to prune"), "{text}");
    assert_eq!(log_files(&scratch), after);
}

/// A server runs after the prune, so that the record's file is linked as every other.
#[test]
fn whatever_else_is_missing_or_changed_is_still_broken() {
    let scratch = log_of(3);
    assert_eq!(prune(&scratch, &["--before", "0s"]).0, 0);
    let record = log_files(&scratch).pop().unwrap();
    let latest = std::fs::read(record.with_file_name("latest")).unwrap();
    run_server(&scratch);
    let files = log_files(&scratch);
    assert_eq!(files.len(), 3);
    assert_verified(&scratch, "2 files (");
    for file in &files {
        let taken = take_away(file);
        assert_broken(&scratch, name(file));
        put_back(&taken);
    }
    // The record itself, changed in every part of it that matters.
    let whole = std::fs::read_to_string(&record).unwrap();
    for (from, to) in
        [("\"prune\"", "\"prunE\""), ("\"records\":", "\"records\":1"), ("2026", "2025")]
    {
        std::fs::write(&record, whole.replacen(from, to, 3)).unwrap();
        assert_ne!(std::fs::read_to_string(&record).unwrap(), whole, "{from}");
        assert_broken(&scratch, name(&record));
    }
    std::fs::write(&record, &whole).unwrap();
    assert_verified(&scratch, "2 files (");
    // Everything after the prune taken away with `latest` turned back: what was pruned is missing again.
    let taken = [take_away(&files[2]), take_away(&record)].concat();
    let newest = std::fs::read(record.with_file_name("latest")).unwrap();
    std::fs::write(record.with_file_name("latest"), latest).unwrap();
    assert_broken(&scratch, "the file is missing");
    std::fs::write(record.with_file_name("latest"), newest).unwrap();
    put_back(&taken);
    assert_verified(&scratch, "2 files (");
}

#[test]
fn many_prunes_add_up_and_leave_few_files() {
    let scratch = log_of(2);
    let mut pruned = 0;
    for round in 0..5 {
        let before = log_files(&scratch).len();
        let (code, text) = prune(&scratch, &["--before", "0s"]);
        assert_eq!(code, 0, "{text}");
        pruned += before - (log_files(&scratch).len() - 1);
        assert_verified(&scratch, &format!("{pruned} file"));
        assert!(log_files(&scratch).len() <= 2, "round {round}: {:?}", log_files(&scratch));
        run_server(&scratch);
        assert_verified(&scratch, &format!("{pruned} file"));
    }
}

/// Every state that a crash between the record and the end of the removal can leave.
#[test]
fn a_crash_in_the_middle_is_harmless_and_the_next_prune_finishes() {
    let scratch = log_of(3);
    let before = log_files(&scratch);
    let copies: Vec<(PathBuf, Vec<u8>)> = before[..2]
        .iter()
        .flat_map(|file| [file.clone(), file.with_extension("head")])
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect();
    assert_eq!(prune(&scratch, &["--before", "0s"]).0, 0);
    let after = log_files(&scratch);
    // Files are removed oldest first, each before its head.
    for left in 0..=copies.len() {
        put_back(&copies[copies.len() - left..]);
        assert_verified(&scratch, "2 files (");
        // Nothing is older than this, but what was recorded as removed is removed.
        let (code, text) = prune(&scratch, &["--before", "2020-01-01"]);
        assert_eq!(code, 0, "{text}");
        assert_eq!(log_files(&scratch), after, "{left} left: {text}");
        assert!(copies.iter().all(|(path, _)| !path.exists()), "{left} left: {text}");
        assert_verified(&scratch, "2 files (");
    }
}

#[test]
fn a_file_in_use_and_all_after_it_stay() {
    let scratch = log_of(1);
    let mut server = Options::new(Transport::Http).on(&scratch).spawn();
    run_server(&scratch);
    let before = log_files(&scratch);
    let (code, text) = prune(&scratch, &["--before", "0s"]);
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("1 file (") && text.contains(name(&before[1])) && text.contains("in use"),
        "{text}"
    );
    assert_eq!(log_files(&scratch)[..2], before[1..]);
    let mut client = server.connect(SESSIONS);
    client.call("file.list", json!({}));
    assert_verified(&scratch, "1 file (");
    server.signal(Signal::TERM);
    assert!(server.ended().success());
    assert_verified(&scratch, "1 file (");
}

#[test]
fn a_broken_file_stops_the_prune() {
    let scratch = log_of(3);
    let files = log_files(&scratch);
    let whole = std::fs::read_to_string(&files[1]).unwrap();
    std::fs::write(&files[1], whole.replacen("file.list", "file.lost", 1)).unwrap();
    for words in [&["--before", "0s"][..], &["--before", "0s", "--dry-run"]] {
        let (code, text) = prune(&scratch, words);
        assert!(
            code != 0 && text.contains("nothing was pruned") && text.contains(name(&files[1])),
            "{code}: {text}"
        );
        assert!(text.contains("audit verify"), "{text}");
    }
    assert_eq!(log_files(&scratch), files);
    std::fs::write(&files[1], whole).unwrap();
    // A file that is missing without a record is not covered up by one.
    let taken = take_away(&files[0]);
    let (code, text) = prune(&scratch, &["--before", "0s"]);
    assert!(
        code != 0 && text.contains(name(&files[0])) && text.contains("missing"),
        "{code}: {text}"
    );
    put_back(&taken);
    assert_eq!(prune(&scratch, &["--before", "0s"]).0, 0);
}

#[test]
fn prune_needs_a_time_and_takes_no_filters() {
    let scratch = log_of(1);
    for words in [&[][..], &["--before", "yesterday"], &["--before", "0s", "--force"]] {
        assert_ne!(prune(&scratch, words).0, 0, "{words:?}");
    }
    let root = scratch.path().join("root");
    let mut command = ringfence(&scratch);
    let output = command
        .args(["audit", "--tool", "x", "prune", "--before", "0s", "--root"])
        .arg(root)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(64), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(log_files(&scratch).len(), 1);
}

#[test]
fn keep_prunes_when_a_server_starts() {
    for transport in [Transport::Stdio, Transport::Http] {
        let scratch = log_of(2);
        age_by_a_year(&scratch);
        assert_verified(&scratch, "2 files");
        let mut server =
            Options::new(transport).on(&scratch).config("[audit]\nkeep = \"90d\"").spawn();
        let mut client = server.connect(SESSIONS);
        assert_eq!(client.call("file.list", json!({}))["result"]["isError"], false);
        eventually(DEADLINE, "the old files are pruned", || server.events("prune").len() == 1);
        assert_holds(
            json!({"by": "audit.keep", "total": {"files": 2}}),
            &server.events("prune")[0],
        );
        eventually(DEADLINE, "the files are gone", || log_files(&scratch).len() == 2);
        assert_verified(&scratch, "2 files (");
        client.hang_up();
        server.signal(Signal::TERM);
        assert!(server.ended().success());
        assert_verified(&scratch, "2 files (");
    }
}

/// Without the key nothing is ever removed, and files that are younger stay.
#[test]
fn nothing_is_pruned_unasked_or_early() {
    let scratch = log_of(2);
    age_by_a_year(&scratch);
    run_server(&scratch);
    assert_eq!(log_files(&scratch).len(), 3);
    let mut server =
        Options::new(Transport::Stdio).on(&scratch).config("[audit]\nkeep = \"500d\"").spawn();
    let mut client = server.connect(SESSIONS);
    client.call("file.list", json!({}));
    client.hang_up();
    assert!(server.ended().success());
    assert_eq!(log_files(&scratch).len(), 4);
}

#[test]
fn a_prune_that_fails_is_a_warning_and_the_server_serves() {
    let scratch = log_of(2);
    age_by_a_year(&scratch);
    let files = log_files(&scratch);
    let text = std::fs::read_to_string(&files[0]).unwrap();
    std::fs::write(&files[0], text.replacen("file.list", "file.lost", 1)).unwrap();
    let mut server =
        Options::new(Transport::Stdio).on(&scratch).config("[audit]\nkeep = \"90d\"").spawn();
    let mut client = server.connect(SESSIONS);
    assert_eq!(client.call("file.list", json!({}))["result"]["isError"], false);
    eventually(DEADLINE, "the log has a warning", || server.log().contains("nothing was pruned"));
    server.wait_for_log("WARN");
    server.wait_for_log(name(&files[0]));
    assert!(files.iter().all(|file| file.exists()));
}

#[test]
fn a_bad_span_is_refused_with_its_place() {
    for (line, says) in [
        ("keep = \"soon\"", "a span of time"),
        ("keep = \"23h\"", "records are kept for at least a day"),
        ("keep = 90", "keep = 90"),
        ("kep = \"90d\"", "there is no key `kep` here"),
    ] {
        let output = Options::new(Transport::Http).config(&format!("[audit]\n{line}")).refuse();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && text.contains("config.toml:2") && text.contains(says),
            "{line}: {text}"
        );
    }
}
