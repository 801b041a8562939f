use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};

use rustix::fs::{CWD, FileType, Mode as FileMode, mknodat};
use serde_json::json;

use super::*;
use crate::base::workspace::tests::{Scratch, while_swapping};

fn job(arguments: Value) -> Result<SearchJob> {
    let Value::Object(map) = arguments else { panic!("an object") };
    FileSearch::new().spec.parse_arguments::<Args>(&map)?.build_job(&map)
}

fn try_search(scratch: &Scratch, arguments: Value) -> Result<Reply> {
    search_workspace(
        &Arc::new(scratch.workspace()),
        None,
        &job(arguments)?,
        24_000,
        &CancelToken::new(),
    )
}

fn searched(scratch: &Scratch, arguments: Value) -> Reply {
    try_search(scratch, arguments).unwrap()
}

fn with(files: &[(&str, &[u8])]) -> Scratch {
    let scratch = Scratch::new();
    for (file, bytes) in files {
        let path = scratch.ws().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    scratch
}

/// `path:line` of each hit.
fn places(reply: &Reply) -> Vec<String> {
    reply.matches.iter().map(|hit| format!("{}:{}", hit.path, hit.line.unwrap_or(0))).collect()
}

#[test]
fn matches_come_in_order_with_their_place_and_text() {
    let scratch = with(&[
        ("b.rs", b"one\n\tlet needle = 1; // needle\n"),
        ("a/z.txt", "grün needle\r\nno\nneedle".as_bytes()),
        ("a-b", b"needle\n"),
    ]);
    let reply = searched(&scratch, json!({"pattern": "needle"}));
    assert_eq!(places(&reply), ["a/z.txt:1", "a/z.txt:3", "a-b:1", "b.rs:2"]);
    assert_eq!(
        (reply.matches[0].column, reply.matches[0].text.as_deref()),
        (Some(6), Some("grün needle"))
    );
    assert_eq!(
        (reply.matches[3].column, reply.matches[3].text.as_deref()),
        (Some(6), Some("\tlet needle = 1; // needle"))
    );
    assert_eq!((reply.total_matches, reply.files_matched, reply.files_searched), (Some(4), 3, 3));
    assert!(!reply.truncated && !reply.timed_out && reply.next_cursor.is_none());
    assert_eq!(
        render::render_results(&reply),
        "a/z.txt\n1: grün needle\n3: needle\na-b\n1: needle\nb.rs\n2: \tlet needle = 1; // needle\n\
         [4 matches in 3 of 3 files]"
    );
}

#[test]
fn the_pattern_is_taken_as_it_is_meant() {
    let scratch = with(&[("f", b"a.b\naxb\nA.B\na.bc\nstart\nend\n")]);
    let lines = |arguments: Value| {
        searched(&scratch, arguments).matches.iter().filter_map(|hit| hit.line).collect::<Vec<_>>()
    };
    assert_eq!(lines(json!({"pattern": "a.b"})), [1, 2, 4]);
    assert_eq!(lines(json!({"pattern": "a.b", "literal": true})), [1, 4]);
    assert_eq!(lines(json!({"pattern": "a.b", "ignore_case": true})), [1, 2, 3, 4]);
    assert_eq!(lines(json!({"pattern": "a.b", "word": true})), [1, 2]);
    assert_eq!(lines(json!({"pattern": "^end$"})), [6]);
    assert_eq!(lines(json!({"pattern": "start\\nend", "multiline": true})), [5]);
    let error = try_search(&scratch, json!({"pattern": "a(b"})).unwrap_err();
    assert_eq!(error.reason_name(), Some("bad_pattern"));
}

#[test]
fn context_stands_with_its_match_and_once() {
    let scratch = with(&[("f", b"1\n2\nhit 3\n4\nhit 5\n6\n7\n8\n9\nhit 10\n")]);
    let reply = searched(&scratch, json!({"pattern": "hit", "before": 1, "after": 2}));
    let context: Vec<_> =
        reply.matches.iter().map(|hit| (hit.before.join(","), hit.after.join(","))).collect();
    let own = |before: &str, after: &str| (before.to_owned(), after.to_owned());
    assert_eq!(context, [own("2", "4"), own("", "6,7"), own("9", "")]);
    assert!(
        render::render_results(&reply)
            .starts_with("f\n2- 2\n3: hit 3\n4- 4\n5: hit 5\n6- 6\n7- 7\n9- 9\n10: hit 10\n"),
        "{}",
        render::render_results(&reply)
    );
}

#[test]
fn files_and_counts_are_lists_of_paths() {
    let scratch = with(&[("a", b"x\nx\n"), ("b", b"y\n"), ("c", b"x\n")]);
    let reply = searched(&scratch, json!({"pattern": "x", "output": "files"}));
    assert_eq!(
        serde_json::to_value(&reply.matches).unwrap(),
        json!([{"path": "a"}, {"path": "c"}])
    );
    assert_eq!((reply.total_matches, reply.files_matched), (None, 2));
    assert_eq!(render::render_results(&reply), "a\nc\n[2 of 3 files match]");
    let reply = searched(&scratch, json!({"pattern": "x", "output": "count"}));
    assert_eq!(
        serde_json::to_value(&reply.matches).unwrap(),
        json!([{"path": "a", "count": 2}, {"path": "c", "count": 1}])
    );
    assert_eq!(reply.total_matches, Some(3));
}

#[test]
fn files_are_chosen_by_glob_type_and_rules() {
    let scratch = with(&[
        ("src/a.rs", b"x\n"),
        ("src/b.py", b"x\n"),
        ("vendor/c.rs", b"x\n"),
        ("out.log", b"x\n"),
        (".env", b"x\n"),
        (".gitignore", b"*.log\n"),
    ]);
    let found = |arguments: Value| places(&searched(&scratch, arguments));
    assert_eq!(found(json!({"pattern": "x"})), ["src/a.rs:1", "src/b.py:1", "vendor/c.rs:1"]);
    assert_eq!(
        found(json!({"pattern": "x", "glob": ["*.rs"], "exclude": ["vendor/"]})),
        ["src/a.rs:1"]
    );
    assert_eq!(found(json!({"pattern": "x", "type": "py"})), ["src/b.py:1"]);
    assert_eq!(found(json!({"pattern": "x", "path": "src", "glob": ["*.rs"]})), ["src/a.rs:1"]);
    assert_eq!(found(json!({"pattern": "x", "path": "out.log"})), ["out.log:1"]);
    assert_eq!(found(json!({"pattern": "x", "gitignore": false, "hidden": true})).len(), 5);
    // A glob is no way around the rules.
    assert_eq!(found(json!({"pattern": "x", "glob": ["*"]})).len(), 3);
    let reply = searched(&scratch, json!({"pattern": "x", "glob": ["*.zig"]}));
    assert!(reply.warnings[0].contains("no file was searched"), "{reply:?}");
    let error = try_search(&scratch, json!({"pattern": "x", "type": "pythn"})).unwrap_err();
    assert_eq!(error.hint_text(), Some("Did you mean `python`?"));
    let error = try_search(&scratch, json!({"pattern": "x", "path": "scr"})).unwrap_err();
    assert_eq!((error.kind(), error.hint_text()), (Kind::NotFound, Some("Did you mean `src`?")));
}

#[test]
fn a_miss_says_when_what_was_left_out_would_have_matched() {
    let scratch = with(&[
        ("a", b"nothing\n"),
        (".gitignore", b"build/\n"),
        ("build/made.js", b"needle\n"),
        (".env", b"needle\n"),
        (".git/objects/x", b"needle\n"),
    ]);
    let reply = searched(&scratch, json!({"pattern": "needle"}));
    assert_eq!(reply.files_matched, 0);
    assert!(
        reply.warnings[0].starts_with(
            "2 files that are ignored by git or hidden match, such as `.env`, `build/made.js`"
        ),
        "{reply:?}"
    );
    assert!(searched(&scratch, json!({"pattern": "nowhere"})).warnings.is_empty());
    assert!(searched(&scratch, json!({"pattern": "nothing"})).warnings.is_empty());
}

#[test]
fn other_encodings_and_binaries_are_as_ripgrep_has_them() {
    let utf16 = |text: &str| {
        [0xff, 0xfe].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect()
    };
    let wide: Vec<u8> = utf16("eins\nnadel grün\n");
    let scratch = with(&[
        ("wide.txt", &wide),
        ("bin", b"\x7fELF\0\0nadel\n"),
        ("late", &[b"x\nnadel\n".as_slice(), &b"x\n".repeat(500_000), b"\0\n"].concat()),
        ("latin", b"nadel gr\xfcn\n"),
    ]);
    let reply = searched(&scratch, json!({"pattern": "nadel"}));
    assert_eq!(places(&reply), ["late:2", "latin:1", "wide.txt:2"]);
    assert_eq!(reply.matches[1].text.as_deref(), Some("nadel gr\u{fffd}n"));
    assert_eq!(reply.matches[2].text.as_deref(), Some("nadel grün"));
    assert_eq!(reply.skipped.binary, 2);
    // One that is named is searched.
    let reply = searched(&scratch, json!({"pattern": "nadel", "path": "bin"}));
    assert_eq!(reply.files_matched, 1);
    assert!(reply.warnings[0].contains("binary"), "{reply:?}");
}

#[test]
fn pages_give_every_match_once() {
    let lines: String = (0..250).map(|line| format!("hit {line}\n")).collect();
    let scratch = with(&[
        ("a/1", lines.as_bytes()),
        ("a/2", b"hit\n"),
        ("b", lines.as_bytes()),
        ("c", b"hit\n"),
    ]);
    for output in ["content", "files", "count"] {
        let (mut seen, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let mut arguments = json!({"pattern": "hit", "output": output, "max_results": 70});
            if output != "content" {
                arguments["max_results"] = json!(1);
            }
            if let Some(cursor) = &cursor {
                arguments["cursor"] = json!(cursor);
            }
            let reply = searched(&scratch, arguments);
            assert_eq!(reply.files_matched, 4);
            assert_eq!(reply.truncated, reply.next_cursor.is_some());
            seen.extend(places(&reply));
            cursor = reply.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        let expected: Vec<String> = match output {
            "content" => {
                let of = |path: &'static str, count: u64| {
                    (1..=count).map(move |line| format!("{path}:{line}"))
                };
                of("a/1", 250).chain(of("a/2", 1)).chain(of("b", 250)).chain(of("c", 1)).collect()
            }
            _ => ["a/1:0", "a/2:0", "b:0", "c:0"].map(str::to_owned).into(),
        };
        assert_eq!(seen, expected, "{output}");
    }
    let error = try_search(&scratch, json!({"pattern": "hit", "cursor": "a/1"})).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidArguments);
}

#[test]
fn the_first_of_many_are_the_first_however_they_are_found() {
    let scratch = Scratch::new();
    for number in 0..3000 {
        let path = scratch.ws().join(format!("{}/{number:04}", number % 40));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "hit\nhit\n").unwrap();
    }
    let first = searched(&scratch, json!({"pattern": "hit", "max_results": 5}));
    assert_eq!(places(&first), ["0/0000:1", "0/0000:2", "0/0040:1", "0/0040:2", "0/0080:1"]);
    assert_eq!((first.total_matches, first.files_matched), (Some(6000), 3000));
    for _ in 0..5 {
        assert_eq!(
            searched(&scratch, json!({"pattern": "hit", "max_results": 5})).matches,
            first.matches
        );
    }
    let few = searched(&scratch, json!({"pattern": "hit", "max_per_file": 1}));
    assert_eq!((few.total_matches, few.matches.len()), (Some(3000), 100));
}

#[test]
fn a_result_fits_its_budget() {
    let long = format!("{}hit{}\n", "\u{1}".repeat(5000), "ü".repeat(5000)).repeat(400);
    let scratch = with(&[("f", long.as_bytes())]);
    for (max_bytes, budget) in [(None, 10_000), (Some(3000), 24_000), (Some(262_144), 10_000)] {
        let mut arguments = json!({"pattern": "hit", "before": 3, "max_results": 2000});
        if let Some(bytes) = max_bytes {
            arguments["max_bytes"] = json!(bytes);
        }
        let job = job(arguments).unwrap();
        let reply = search_workspace(
            &Arc::new(scratch.workspace()),
            None,
            &job,
            budget,
            &CancelToken::new(),
        )
        .unwrap();
        let bytes = serde_json::to_string(&reply).unwrap().len();
        assert!(bytes <= max_bytes.unwrap_or(budget), "{bytes} of {max_bytes:?}");
        assert!(reply.truncated && reply.total_matches == Some(400));
    }
}

#[test]
fn time_that_is_up_leaves_a_part_and_a_cancelled_search_ends() {
    let scratch = Scratch::new();
    // Sparse: reading it takes longer than there is time.
    let file = fs::File::create(scratch.ws().join("huge")).unwrap();
    file.write_all_at(&[b'\n'; 4096], 0).unwrap();
    for number in 0..2000u64 {
        file.write_all_at(&vec![b'\n'; 1 << 16], number << 16).unwrap();
    }
    let start = Instant::now();
    let reply = searched(&scratch, json!({"pattern": "^x*$", "timeout_ms": 1, "output": "count"}));
    assert!(reply.timed_out && reply.truncated, "{reply:?}");
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(render::render_results(&reply).contains("timed out before all files were searched"));
    assert!(reply.next_cursor.is_none() && reply.warnings[0].contains("timeout_ms"), "{reply:?}");
    let cancel = CancelToken::new();
    cancel.cancel(CancelCause::Client);
    let job = job(json!({"pattern": "x"})).unwrap();
    let error =
        search_workspace(&Arc::new(scratch.workspace()), None, &job, 10_000, &cancel).unwrap_err();
    assert_eq!(error.kind(), Kind::Cancelled);
}

#[test]
fn nothing_blocks_and_what_cannot_be_read_is_counted() {
    let scratch = with(&[("a", b"x\n"), ("locked", b"x\n")]);
    let ws = scratch.ws();
    mknodat(CWD, ws.join("pipe"), FileType::Fifo, FileMode::from_raw_mode(0o600), 0).unwrap();
    symlink("/etc/passwd", ws.join("out")).unwrap();
    symlink("a", ws.join("in")).unwrap();
    fs::set_permissions(ws.join("locked"), fs::Permissions::from_mode(0o000)).unwrap();
    let reply = searched(&scratch, json!({"pattern": "x|root"}));
    if rustix::process::geteuid().is_root() {
        assert_eq!(places(&reply), ["a:1", "locked:1"]);
    } else {
        assert_eq!((places(&reply), reply.skipped.unreadable), (vec!["a:1".to_owned()], 1));
    }
    let error = try_search(&scratch, json!({"pattern": "x", "path": "out"})).unwrap_err();
    assert_eq!(error.reason_name(), Some("outside_workspace"));
}

#[test]
fn a_stored_output_is_searched() {
    let scratch = with(&[("f", b"one\nneedle\n")]);
    let file = fs::File::open(scratch.ws().join("f")).unwrap();
    let job = job(json!({"pattern": "needle", "path": "output:o-1"})).unwrap();
    let reply = search_workspace(
        &Arc::new(scratch.workspace()),
        Some(file),
        &job,
        10_000,
        &CancelToken::new(),
    )
    .unwrap();
    assert_eq!(places(&reply), ["output:o-1:2"]);
}

/// One thread keeps swapping a directory with a symlink that leads outside while everything is
/// searched.
#[test]
fn no_race_finds_what_is_outside() {
    let scratch = with(&[("real/deep/secret", b"inside\n")]);
    fs::create_dir_all(scratch.dir.join("outside/deep")).unwrap();
    fs::write(scratch.dir.join("outside/deep/secret"), "OUTSIDE\n").unwrap();
    symlink(scratch.dir.join("outside"), scratch.ws().join("swap")).unwrap();
    let (mut inside, mut missed) = (0, 0);
    while_swapping(&scratch.ws().join("real"), &scratch.ws().join("swap"), || {
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            for path in [".", "real", "real/deep"] {
                match try_search(&scratch, json!({"pattern": "(?i)side", "path": path})) {
                    Ok(reply) => {
                        assert!(
                            reply.matches.iter().all(|hit| hit.text.as_deref() == Some("inside")),
                            "{reply:?}"
                        );
                        inside += reply.matches.len();
                    }
                    Err(error) => {
                        assert_eq!(error.reason_name(), Some("outside_workspace"), "{error:?}");
                        missed += 1;
                    }
                }
            }
        }
    });
    assert!(inside > 0 && missed > 0, "{inside} inside, {missed} refused");
}

/// Text of two letters on which a pattern that counts keeps thousands of states alive.
fn slow_text(line: usize) -> Vec<u8> {
    let mut seed = 7u32;
    let mut letter = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        b'a' + u8::try_from(seed >> 31).unwrap()
    };
    (0..300_000).map(|at| if at % line == line - 1 { b'\n' } else { letter() }).collect()
}

#[test]
fn a_slow_pattern_ends_when_its_time_is_up() {
    const SLOW: &str = "[ab]*a[ab]{900}[ab]{900}[ab]{900}c";
    for (line, multiline) in [(usize::MAX, false), (usize::MAX, true), (5000, false), (5000, true)]
    {
        let scratch = with(&[("f", &slow_text(line))]);
        let pattern = if multiline { SLOW.replace("[ab]", "[ab\\n]") } else { SLOW.to_owned() };
        let begun = Instant::now();
        let reply = searched(
            &scratch,
            json!({"pattern": pattern, "timeout_ms": 200, "multiline": multiline, "path": "f"}),
        );
        assert!(reply.timed_out && reply.truncated, "{reply:?}");
        // Without the limit it takes minutes.
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{line} {multiline}: {:?}",
            begun.elapsed()
        );
    }
    let error = job(json!({"pattern": "[ab]*a[ab]{900}{90}c"})).err().unwrap();
    assert_eq!(error.reason_name(), Some("bad_pattern"));
    assert!(error.hint_text().unwrap().starts_with("Simplify"), "{error:?}");
    // What is long and simple is found, wherever it stands.
    let mut long = slow_text(usize::MAX);
    long.extend_from_slice(b"needle\nneedle\n");
    let scratch = with(&[("f", &long)]);
    for multiline in [false, true] {
        let reply = searched(&scratch, json!({"pattern": "[ab]needle", "multiline": multiline}));
        assert_eq!(
            (places(&reply), reply.matches[0].column),
            (vec!["f:1".to_owned()], Some(300_000))
        );
    }
}

#[test]
fn a_line_ends_before_a_carriage_return() {
    let scratch = with(&[("crlf", b"a foo\r\nfoo b\r\n  foo\r\n"), ("lf", b"foo\nfoo \n")]);
    let reply = searched(&scratch, json!({"pattern": "foo$"}));
    assert_eq!(places(&reply), ["crlf:1", "crlf:3", "lf:1"]);
    assert_eq!(
        (reply.matches[1].column, reply.matches[1].text.as_deref()),
        (Some(3), Some("  foo"))
    );
    assert_eq!(places(&searched(&scratch, json!({"pattern": "^foo$"}))), ["lf:1"]);
    assert_eq!(places(&searched(&scratch, json!({"pattern": "foo\\r"}))), ["crlf:1", "crlf:3"]);
    let reply = searched(&scratch, json!({"pattern": "foo$\\s+foo", "multiline": true}));
    assert_eq!(places(&reply), ["crlf:1", "lf:1"]);
    assert_eq!(reply.matches[0].column, Some(3));
    assert_eq!(
        searched(&scratch, json!({"pattern": " \\n", "multiline": true})).matches[0].column,
        Some(4)
    );
}

#[test]
fn a_search_that_was_halted_has_no_cursor() {
    for halted in [false, true] {
        let found = SearchResults::new(1, 10_000, None);
        for path in ["a", "b"] {
            let hits =
                vec![SearchHit { path: path.to_owned(), line: Some(1), ..SearchHit::default() }];
            found.add_file(
                path.as_bytes(),
                results::FileFinding { hits, count: 1, available: 1, binary: false },
            );
        }
        let mut reply = Reply::default();
        found.fill_reply(
            &mut reply,
            &CursorQuery::from_arguments(NAME, &Map::new()),
            SearchOutput::Content,
            halted,
        );
        assert_eq!(
            (reply.next_cursor.is_none(), reply.truncated, reply.timed_out),
            (halted, true, halted)
        );
    }
}

#[test]
fn the_context_of_a_first_match_fits_too() {
    let line = format!("{}\n", "\u{1}".repeat(300));
    let text = format!("{0}hit\n{0}", line.repeat(30));
    let scratch = with(&[("f", text.as_bytes())]);
    let job = job(json!({"pattern": "hit", "before": 20, "after": 20})).unwrap();
    let reply =
        search_workspace(&Arc::new(scratch.workspace()), None, &job, 10_000, &CancelToken::new())
            .unwrap();
    let bytes = serde_json::to_string(&reply).unwrap().len();
    let hit = &reply.matches[0];
    assert!(bytes <= 10_000 && !hit.before.is_empty() && !hit.after.is_empty(), "{bytes}");
    assert!(reply.warnings[0].contains("context"), "{:?}", reply.warnings);
}

#[test]
fn text_in_another_encoding_is_not_passed_over_in_silence() {
    let gbk = encoding_rs::GBK.encode("\u{4e2d}\u{6587} needle\n").0.into_owned();
    let wide: Vec<u8> = [0xff, 0xfe]
        .into_iter()
        .chain("\u{4e2d}\u{6587}\n".encode_utf16().flat_map(u16::to_le_bytes))
        .collect();
    let scratch =
        with(&[("gbk", &gbk), ("utf8", "\u{4e2d}\u{6587}\n".as_bytes()), ("wide", &wide)]);
    let reply = searched(&scratch, json!({"pattern": "\u{4e2d}"}));
    assert_eq!(places(&reply), ["utf8:1", "wide:1"]);
    assert!(reply.warnings[0].starts_with("1 files are not UTF-8"), "{:?}", reply.warnings);
    assert_eq!(searched(&scratch, json!({"pattern": "needle"})).warnings, Vec::<String>::new());
}
