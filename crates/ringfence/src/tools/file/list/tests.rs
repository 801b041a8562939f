use std::fs;
use std::os::unix::fs::symlink;
use std::time::SystemTime;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;

use super::*;
use crate::base::workspace::tests::Scratch;

fn job(arguments: Value) -> Result<ListJob> {
    let Value::Object(map) = arguments else { panic!("an object") };
    FileList::new().spec.parse_arguments::<Args>(&map)?.build_job(&map)
}

fn try_list(scratch: &Scratch, arguments: Value) -> Result<Reply> {
    list_directory(&Arc::new(scratch.workspace()), &job(arguments)?, 24_000, &CancelToken::new())
}

fn listed(scratch: &Scratch, arguments: Value) -> Reply {
    try_list(scratch, arguments).unwrap()
}

fn paths(reply: &Reply) -> Vec<&str> {
    reply.entries.iter().map(|item| item.path.as_str()).collect()
}

fn with(files: &[&str]) -> Scratch {
    let scratch = Scratch::new();
    for file in files {
        let path = scratch.ws().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
    scratch
}

#[test]
fn one_level_is_the_default_and_every_kind_is_named() {
    let scratch = with(&["src/main.rs", "README.md", ".hidden", "out.log"]);
    let ws = scratch.ws();
    fs::write(ws.join(".gitignore"), "*.log\n").unwrap();
    symlink("/etc", ws.join("link")).unwrap();
    mknodat(CWD, ws.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let reply = listed(&scratch, json!({}));
    let seen: Vec<_> = reply.entries.iter().map(|item| (item.path.as_str(), item.kind)).collect();
    assert_eq!(
        seen,
        [("README.md", "file"), ("link", "symlink"), ("pipe", "fifo"), ("src", "directory")]
    );
    assert_eq!(reply.entries[1].target.as_deref(), Some("/etc"));
    assert_eq!((reply.total, reply.ignored, reply.truncated), (4, 3, false));
    assert_eq!(
        top_entries::render_list(&reply),
        "README.md\nlink -> /etc\npipe (fifo)\nsrc/\n[4 entries; 3 ignored or hidden]"
    );
    let all = listed(&scratch, json!({"gitignore": false, "hidden": true}));
    assert_eq!(
        paths(&all),
        [".gitignore", ".hidden", "README.md", "link", "out.log", "pipe", "src"]
    );
}

#[test]
fn depth_globs_and_kinds_choose() {
    let scratch = with(&["a/b/c/d.rs", "a/b/e.txt", "a/f.rs", "g.rs", ".github/ci.yml"]);
    assert_eq!(paths(&listed(&scratch, json!({"depth": 2}))), ["a", "a/b", "a/f.rs", "g.rs"]);
    let all = ["a", "a/b", "a/b/c", "a/b/c/d.rs", "a/b/e.txt", "a/f.rs", "g.rs"];
    assert_eq!(paths(&listed(&scratch, json!({"depth": 0}))), all);
    assert_eq!(
        paths(&listed(&scratch, json!({"glob": ["*.rs"]}))),
        ["a/b/c/d.rs", "a/f.rs", "g.rs"]
    );
    assert_eq!(paths(&listed(&scratch, json!({"glob": ["*.rs"], "depth": 1}))), ["g.rs"]);
    assert_eq!(
        paths(&listed(&scratch, json!({"glob": ["*.rs"], "exclude": ["b/"]}))),
        ["a/f.rs", "g.rs"]
    );
    assert_eq!(paths(&listed(&scratch, json!({"path": "a", "glob": ["b/*.txt"]}))), ["a/b/e.txt"]);
    assert_eq!(
        paths(&listed(&scratch, json!({"depth": 0, "type": "directory"}))),
        ["a", "a/b", "a/b/c"]
    );
    assert_eq!(paths(&listed(&scratch, json!({"path": "a/b", "type": "file"}))), ["a/b/e.txt"]);
    // A glob that names a dot means it.
    assert_eq!(paths(&listed(&scratch, json!({"glob": [".github/**"]}))), [".github/ci.yml"]);
}

#[test]
fn a_large_directory_below_is_one_entry_unless_it_is_asked_for() {
    let scratch = with(&["few/x"]);
    fs::create_dir_all(scratch.ws().join("many")).unwrap();
    for number in 0..101 {
        fs::write(scratch.ws().join(format!("many/{number:03}")), "").unwrap();
    }
    let reply = listed(&scratch, json!({"depth": 0}));
    assert_eq!(paths(&reply), ["few", "few/x", "many"]);
    assert_eq!((reply.entries[2].children, reply.total), (Some(101), 3));
    assert!(top_entries::render_list(&reply).contains("many/ (101 entries)"));
    assert_eq!(listed(&scratch, json!({"path": "many", "depth": 0})).total, 101);
    assert_eq!(listed(&scratch, json!({"glob": ["many/*"]})).total, 101);
    fs::remove_file(scratch.ws().join("many/000")).unwrap();
    assert_eq!(listed(&scratch, json!({"depth": 0})).total, 103);
}

#[test]
fn pages_give_the_whole_list_once() {
    let names: Vec<String> =
        (0..500).map(|number| format!("d{}/file-{number:04}", number % 7)).collect();
    let scratch = with(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let (mut seen, mut cursor, mut pages) = (Vec::new(), None::<String>, 0);
    loop {
        let mut arguments = json!({"depth": 0, "type": "file", "limit": 60 + pages});
        if let Some(cursor) = &cursor {
            arguments["cursor"] = json!(cursor);
        }
        let reply = listed(&scratch, arguments);
        assert_eq!(reply.total, 500);
        assert_eq!(reply.truncated, reply.next_cursor.is_some());
        seen.extend(reply.entries.into_iter().map(|item| item.path));
        pages += 1;
        cursor = reply.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    let mut expected = names;
    expected.sort();
    assert_eq!(seen, expected);
    assert!(pages > 5, "{pages}");
}

#[test]
fn a_cursor_that_is_not_ours_is_refused() {
    let scratch = with(&["a", "b", "c"]);
    let cursor = listed(&scratch, json!({"limit": 1})).next_cursor.unwrap();
    assert_eq!(paths(&listed(&scratch, json!({"limit": 1, "cursor": cursor}))), ["b"]);
    for wrong in [
        json!({"cursor": "a"}),
        json!({"cursor": "../../etc"}),
        json!({"cursor": cursor, "hidden": true}),
        json!({"cursor": cursor, "sort": "size"}),
    ] {
        assert_eq!(
            try_list(&scratch, wrong.clone()).unwrap_err().kind(),
            Kind::InvalidArguments,
            "{wrong}"
        );
    }
}

#[test]
fn newest_and_largest_come_first() {
    let scratch = with(&["old-large", "new"]);
    fs::write(scratch.ws().join("old-large"), vec![b'x'; 1000]).unwrap();
    let old = fs::File::options().write(true).open(scratch.ws().join("old-large")).unwrap();
    old.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
    let reply = listed(&scratch, json!({"sort": "mtime", "details": true}));
    assert_eq!(paths(&reply), ["new", "old-large"]);
    assert_eq!(reply.entries[1].mtime.as_deref().map(|time| &time[..10]), Some("2001-09-09"));
    assert_eq!(reply.entries[1].size, Some(1000));
    assert_eq!(paths(&listed(&scratch, json!({"sort": "size"}))), ["old-large", "new"]);
    // The first of many, whatever order they are met in.
    for number in 0..300 {
        fs::write(scratch.ws().join(format!("{number}")), vec![b'x'; number]).unwrap();
    }
    let reply = listed(&scratch, json!({"sort": "size", "limit": 3}));
    assert_eq!(paths(&reply), ["old-large", "299", "298"]);
    assert_eq!((reply.truncated, reply.next_cursor), (true, None));
}

#[test]
fn a_result_fits_its_budget_and_a_name_its_line() {
    let long = "x".repeat(200);
    let names: Vec<String> = (0..300).map(|number| format!("{number:03}{long}")).collect();
    let scratch = with(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let job = job(json!({"limit": 5000})).unwrap();
    let reply =
        list_directory(&Arc::new(scratch.workspace()), &job, 10_000, &CancelToken::new()).unwrap();
    let bytes = serde_json::to_string(&reply).unwrap().len();
    assert!((8000..=10_000).contains(&bytes), "{bytes}");
    assert!(reply.truncated && reply.next_cursor.is_some());
    assert!(top_entries::render_list(&reply).len() <= 10_000);
    let scratch = with(&["two\nlines"]);
    assert_eq!(top_entries::render_list(&listed(&scratch, json!({}))), "two\\nlines\n[1 entries]");
}

#[test]
fn what_cannot_be_listed_is_explained() {
    let scratch = with(&["src/main.rs", "file", "build/x"]);
    let error = try_list(&scratch, json!({"path": "file"})).unwrap_err();
    assert_eq!(error.reason_name(), Some("not_a_directory"));
    let error = try_list(&scratch, json!({"path": "scr"})).unwrap_err();
    assert_eq!((error.kind(), error.hint_text()), (Kind::NotFound, Some("Did you mean `src`?")));
    let error = try_list(&scratch, json!({"path": "../outside"})).unwrap_err();
    assert_eq!(error.reason_name(), Some("outside_workspace"));
    let error = try_list(&scratch, json!({"glob": ["[a"]})).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidArguments);
    fs::write(scratch.ws().join(".gitignore"), "build/\n").unwrap();
    let reply = listed(&scratch, json!({"glob": ["build"]}));
    assert!(reply.warnings[0].contains("gitignore: false"), "{reply:?}");
    let cancel = CancelToken::new();
    cancel.cancel(CancelCause::Client);
    let error =
        list_directory(&Arc::new(scratch.workspace()), &job(json!({})).unwrap(), 10_000, &cancel)
            .unwrap_err();
    assert_eq!(error.kind(), Kind::Cancelled);
}

#[test]
fn a_list_that_was_halted_has_no_cursor() {
    let scratch = with(&["a", "b", "c"]);
    let job = job(json!({"limit": 1})).unwrap();
    let workspace = Arc::new(scratch.workspace());
    let halt = WalkStop::new(CancelToken::new(), None);
    assert!(
        list_until_halted(&workspace, &job, 10_000, &halt, &CancelToken::new())
            .unwrap()
            .next_cursor
            .is_some()
    );
    halt.stop();
    let reply = list_until_halted(&workspace, &job, 10_000, &halt, &CancelToken::new()).unwrap();
    assert_eq!(
        (paths(&reply), reply.truncated, reply.next_cursor.is_none()),
        (vec!["a"], true, true)
    );
    assert!(reply.warnings[0].contains("listed only in part"), "{:?}", reply.warnings);
}
