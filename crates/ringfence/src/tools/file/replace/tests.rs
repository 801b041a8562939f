use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::*;
use crate::base::workspace::tests::{Scratch, while_swapping};
use crate::base::{CancelCause, CancelToken, TraceId};
use crate::tools::file::content::etag_from_bytes;

fn args(arguments: Value) -> Args {
    let spec = FileReplace::new().spec;
    let Value::Object(map) = arguments else { panic!("an object") };
    spec.parse_arguments(&map).unwrap()
}

fn attempt(scratch: &Scratch, arguments: Value) -> Result<Value> {
    let args = args(arguments);
    let output =
        replace_text(&Arc::new(scratch.workspace()), &args, &CancelToken::new())?.into_output();
    Ok(output.structured.unwrap())
}

fn edit(scratch: &Scratch, edits: Value) -> Value {
    attempt(scratch, json!({"path": "f", "edits": edits})).unwrap()
}

/// The error of edits that must not be made, and the proof that they were not.
fn refusal(scratch: &Scratch, edits: Value) -> Value {
    let before = (
        fs::read(scratch.ws().join("f")).unwrap(),
        fs::metadata(scratch.ws().join("f")).unwrap().ino(),
    );
    let error = attempt(scratch, json!({"path": "f", "edits": edits})).unwrap_err();
    let after = (
        fs::read(scratch.ws().join("f")).unwrap(),
        fs::metadata(scratch.ws().join("f")).unwrap().ino(),
    );
    assert_eq!(before, after, "{error:?}");
    let body = error.to_body(&TraceId::generate());
    assert!(body.to_string().len() < 4096, "{} bytes", body.to_string().len());
    body
}

fn with(bytes: impl AsRef<[u8]>) -> Scratch {
    let scratch = Scratch::new();
    fs::write(scratch.ws().join("f"), bytes).unwrap();
    scratch
}

fn bytes(scratch: &Scratch) -> Vec<u8> {
    fs::read(scratch.ws().join("f")).unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn an_edit_says_what_it_did() {
    let scratch = with("one\ntwo\nthree\n");
    let reply = attempt(
        &scratch,
        json!({"path": "f", "edits": [{"old": "two", "new": "zwei"}], "diff": "unified", "if_match": etag_from_bytes(b"one\ntwo\nthree\n")}),
    )
    .unwrap();
    assert_eq!(bytes(&scratch), b"one\nzwei\nthree\n");
    assert_eq!(
        reply,
        json!({
            "path": "f", "etag": etag_from_bytes(b"one\nzwei\nthree\n"), "previous_etag": etag_from_bytes(b"one\ntwo\nthree\n"),
            "replacements": 1, "edits": [{"count": 1, "lines": [2]}], "lines_added": 1, "lines_removed": 1,
            "diff": "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n one\n-two\n+zwei\n three\n", "dry_run": false,
        })
    );
    assert_eq!(names(&scratch.ws()), ["f"]);
}

/// Everything but the words themselves stays, in every encoding and with every kind of line end.
#[test]
fn not_one_byte_outside_is_changed() {
    let utf16 = |text: &str| {
        [b"\xff\xfe".to_vec(), text.encode_utf16().flat_map(u16::to_le_bytes).collect()].concat()
    };
    let chinese =
        "这是一个用来测试编码检测的中文文件。内容要足够长才能判断。\r\n\t第二行 old \r\n最后";
    let japanese =
        "日本語のテキストです。これは文字コードの判定を試すための文章です。\n二行目 old\r\nない";
    let gbk = |text: &str| encoding_rs::GBK.encode(text).0.into_owned();
    let sjis = |text: &str| encoding_rs::SHIFT_JIS.encode(text).0.into_owned();
    let samples: [(Vec<u8>, Vec<u8>); 8] = [
        (b"a\r\n\told  \r\nb\n\n c".to_vec(), b"a\r\n\tn1\r\nn2  \r\nb\n\n c".to_vec()),
        (b"\xef\xbb\xbfold".to_vec(), b"\xef\xbb\xbfn1\nn2".to_vec()),
        (b"old\r\n".to_vec(), b"n1\r\nn2\r\n".to_vec()),
        (utf16("ü\r\nold\r\n"), utf16("ü\r\nn1\r\nn2\r\n")),
        (gbk(chinese), gbk(&chinese.replace("old", "n1\r\nn2"))),
        (sjis(japanese), sjis(&japanese.replace("old", "n1\r\nn2"))),
        (b"\x93old\x94 caf\xe9 \xff\n".to_vec(), b"\x93n1\nn2\x94 caf\xe9 \xff\n".to_vec()),
        (
            "grün \u{fffd} old ".to_owned().into_bytes(),
            "grün \u{fffd} n1\nn2 ".to_owned().into_bytes(),
        ),
    ];
    for (before, after) in samples {
        let scratch = with(&before);
        edit(&scratch, json!([{"old": "old", "new": "n1\nn2"}]));
        assert_eq!(bytes(&scratch).escape_ascii().to_string(), after.escape_ascii().to_string());
    }
    // Mostly UTF-8 is UTF-8, though a byte of it is not.
    let scratch = with(b"gr\xc3\xbcn \xff \xc3\xa4rger \xe6\xbc\xa2\xe5\xad\x97 old\n");
    edit(&scratch, json!([{"old": "ärger 漢字", "new": "größe"}]));
    assert_eq!(bytes(&scratch), b"gr\xc3\xbcn \xff gr\xc3\xb6\xc3\x9fe old\n");
}

#[test]
fn text_that_the_encoding_cannot_hold_is_refused() {
    let japanese =
        "日本語のテキストです。これは文字コードの判定を試すための文章です。\n二行目 old\n";
    let scratch = with(encoding_rs::SHIFT_JIS.encode(japanese).0);
    let error = refusal(&scratch, json!([{"old": "old", "new": "😀"}]));
    assert_eq!(
        (&error["kind"], &error["reason"]),
        (&json!("invalid_arguments"), &json!("encoding_error"))
    );
    assert!(error["message"].as_str().unwrap().contains("U+1F600"), "{error}");
    edit(&scratch, json!([{"old": "old", "new": "新しい"}]));
    assert_eq!(
        bytes(&scratch),
        encoding_rs::SHIFT_JIS.encode(&japanese.replace("old", "新しい")).0.into_owned()
    );
    // What only shows as U+FFFD must not be written as that.
    let scratch = with(b"gr\xc3\xbcn \xff \xc3\xa4\xc3\xa4\xc3\xa4rger\n");
    let error = refusal(&scratch, json!([{"old": "n \u{fffd}", "new": "N \u{fffd}"}]));
    assert_eq!(error["reason"], "encoding_error");
    edit(&scratch, json!([{"old": "n \u{fffd}", "new": "N"}]));
    assert_eq!(bytes(&scratch), b"gr\xc3\xbcN \xc3\xa4\xc3\xa4\xc3\xa4rger\n");
}

#[test]
fn line_ends_are_matched_whatever_they_are() {
    for (file, expected) in
        [("a\r\nb\r\nc\r\n", "a\r\nX\r\nY\r\nc\r\n"), ("a\nb\nc\n", "a\nX\nY\nc\n")]
    {
        for (old, new) in [("a\nb", "a\nX\nY"), ("a\r\nb", "a\r\nX\r\nY")] {
            let scratch = with(file);
            edit(&scratch, json!([{"old": old, "new": new}]));
            assert_eq!(bytes(&scratch), expected.as_bytes());
        }
    }
}

#[test]
fn the_count_must_be_right() {
    let scratch = with("x\ny x\n\nx\n");
    let error = refusal(&scratch, json!([{"old": "x", "new": "z"}]));
    assert_eq!((&error["kind"], &error["reason"]), (&json!("conflict"), &json!("ambiguous_match")));
    assert_eq!(
        (&error["lines"], &error["count"], &error["expected"]),
        (&json!([1, 2, 4]), &json!(3), &json!(1))
    );
    assert_eq!(
        refusal(&scratch, json!([{"old": "x", "new": "z", "expect": 4}]))["reason"],
        "ambiguous_match"
    );
    let error = attempt(
        &scratch,
        json!({"path": "f", "edits": [{"old": "x", "new": "z", "expect": 0}], "total_expected": 2}),
    );
    assert_eq!(error.unwrap_err().reason_name(), Some("ambiguous_match"));
    assert_eq!(bytes(&scratch), b"x\ny x\n\nx\n");
    assert_eq!(
        edit(&scratch, json!([{"old": "x", "new": "z", "expect": 3}]))["edits"],
        json!([{"count": 3, "lines": [1, 2, 4]}])
    );
    let ino = fs::metadata(scratch.ws().join("f")).unwrap().ino();
    let reply = edit(&scratch, json!([{"old": "x", "new": "z", "expect": 0}]));
    assert_eq!((&reply["replacements"], &reply["etag"]), (&json!(0), &reply["previous_etag"]));
    assert_eq!(
        fs::metadata(scratch.ws().join("f")).unwrap().ino(),
        ino,
        "nothing to write, nothing written"
    );
    assert_eq!(edit(&scratch, json!([{"old": "z", "new": "x", "expect": 0}]))["replacements"], 3);
}

/// Each edit sees what the one before left, and one that fails takes all of them with it.
#[test]
fn edits_apply_in_order_and_all_or_none() {
    let scratch = with("a b c\n");
    edit(&scratch, json!([{"old": "a b", "new": "b b"}, {"old": "b b c", "new": "d"}]));
    assert_eq!(bytes(&scratch), b"d\n");
    let error = refusal(&scratch, json!([{"old": "d", "new": "e"}, {"old": "d", "new": "f"}]));
    assert_eq!((&error["reason"], &error["edit"]), (&json!("no_match"), &json!(1)));
    assert!(error["message"].as_str().unwrap().contains("the previous ones"), "{error}");
    // Matches do not overlap: from the left, each after the one before.
    let scratch = with("aaaa a");
    edit(&scratch, json!([{"old": "aa", "new": "b", "expect": 2}]));
    assert_eq!(bytes(&scratch), b"bb a");
}

#[test]
fn a_dollar_is_a_dollar_unless_it_is_a_pattern() {
    let scratch = with("price: 5\ncost: 7\n");
    edit(&scratch, json!([{"old": "price", "new": "$1 ${1} $$ $name"}]));
    assert_eq!(bytes(&scratch), b"$1 ${1} $$ $name: 5\ncost: 7\n");
    edit(
        &scratch,
        json!([{"old": r"(?m)^(?P<what>co\w+): (\d)$", "new": "${2}€ $what $$1", "regex": true}]),
    );
    assert_eq!(bytes(&scratch), "$1 ${1} $$ $name: 5\n7€ cost $1\n".as_bytes());
    let scratch = with("A\r\nb\r\nC");
    edit(&scratch, json!([{"old": "(?im)^([a-c])$", "new": "<$1>", "regex": true, "expect": 3}]));
    assert_eq!(bytes(&scratch), b"<A>\r\n<b>\r\n<C>");
    edit(&scratch, json!([{"old": "(?s)<A>.<b>", "new": "x\ny", "regex": true}]));
    assert_eq!(bytes(&scratch), b"x\r\ny\r\n<C>");
    edit(&scratch, json!([{"old": "(?m)^", "new": "> ", "regex": true, "expect": 0}]));
    assert_eq!(bytes(&scratch), b"> x\r\n> y\r\n> <C>");
}

#[test]
fn a_bad_pattern_or_edit_is_explained() {
    let scratch = with("x");
    let error = refusal(&scratch, json!([{"old": "(", "new": "", "regex": true}]));
    assert_eq!(
        (&error["kind"], &error["reason"]),
        (&json!("invalid_arguments"), &json!("bad_pattern"))
    );
    let error = refusal(&scratch, json!([{"old": r"\w{1000}{1000}", "new": "", "regex": true}]));
    assert_eq!(error["reason"], "bad_pattern");
    for edits in [json!([]), json!([{"old": "", "new": "y"}]), json!([{"old": "x", "new": "x"}])] {
        assert_eq!(refusal(&scratch, edits)["kind"], "invalid_arguments");
    }
}

#[test]
fn a_pattern_cannot_take_the_server_down() {
    let scratch = with("a".repeat(50_000));
    let begun = Instant::now();
    let error = refusal(&scratch, json!([{"old": "(a*)*b", "new": "", "regex": true}]));
    assert_eq!(error["reason"], "no_match");
    // Growing without bound is refused before it is done.
    let error = refusal(&scratch, json!([{"old": "a", "new": "b".repeat(10_000), "expect": 0}]));
    assert_eq!(error["kind"], "too_large");
    let error =
        refusal(&scratch, json!([{"old": "(a+)", "new": "$1".repeat(5000), "regex": true}]));
    assert_eq!(error["kind"], "too_large");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn no_match_names_the_cause_and_the_nearest() {
    let file = "fn main() {\n\tlet total = add(1, 2);\n    print(total);\n}\n\nfn other() {\n\tlet sum = sub(1, 2);\n}\n";
    let scratch = with(file);
    let cases = [
        (json!({"old": "    let total = add(1, 2);", "new": ""}), "tabs", 2),
        (json!({"old": "\tprint(total);", "new": ""}), "spaces, not tabs", 3),
        (json!({"old": "let  total = add(1, 2);", "new": ""}), "whitespace", 2),
        (
            json!({"old": "fn main() { \n\tlet total", "new": ""}),
            "whitespace at the end of a line",
            1,
        ),
        (json!({"old": "Fn Main() {", "new": ""}), "case", 1),
        (json!({"old": "fn main()\u{2009}{\n\tLet total", "new": ""}), "whitespace and case", 1),
    ];
    for (edit, cause, line) in cases {
        let error = refusal(&scratch, json!([edit]));
        assert_eq!((&error["kind"], &error["reason"]), (&json!("not_found"), &json!("no_match")));
        assert!(error["cause"].as_str().unwrap_or_default().contains(cause), "{cause}: {error:#}");
        assert_eq!(error["nearest"][0]["line"], line, "{error:#}");
    }
    let error = refusal(&scratch, json!([{"old": "\tlet total = add(1, 3);", "new": ""}]));
    assert_eq!(error.get("cause"), None, "{error:#}");
    assert_eq!(
        error["nearest"][0],
        json!({
            "line": 2, "end_line": 2, "diff": "-\tlet total = add(1, 3);\n+\tlet total = add(1, 2);\n"
        })
    );
    let error = refusal(
        &scratch,
        json!([{"old": "fn main() {\n\tlet total = add(7, 7);\n    print(total);\n", "new": ""}]),
    );
    assert_eq!(
        (&error["nearest"][0]["line"], &error["nearest"][0]["end_line"]),
        (&json!(1), &json!(3)),
        "{error:#}"
    );
    for (edit, cause) in [
        (json!({"old": "1\tfn main() {\n2\t\tlet total", "new": ""}), "line numbers"),
        (json!({"old": "fn main() {\\n\\tlet total", "new": ""}), "backslash"),
        (json!({"old": r"fn \w+\(\) \{", "new": ""}), "set regex to true"),
        (json!({"old": "add(1, 2)", "new": "", "regex": true}), "set regex to false"),
        (json!({"old": r"\{\r\n", "new": "", "regex": true}), r"leave \r out"),
        (json!({"old": r"FN \w+ain", "new": "", "regex": true}), "(?i)"),
        (json!({"old": r"^fn other", "new": "", "regex": true}), "(?m)"),
        (json!({"old": r"main.*other", "new": "", "regex": true}), "(?s)"),
    ] {
        let error = refusal(&scratch, json!([edit]));
        assert!(error["cause"].as_str().unwrap_or_default().contains(cause), "{cause}: {error:#}");
    }
    assert!(
        refusal(&scratch, json!([{"old": "nothing like it anywhere", "new": ""}]))
            .get("nearest")
            .is_none()
    );
    // However long the lines are, the error is short.
    let scratch = with(format!("{}x\n{}y\n", "long ".repeat(9000), "line ".repeat(9000)).repeat(4));
    refusal(&scratch, json!([{"old": format!("{}z", "long ".repeat(9000)), "new": ""}]));
}

#[test]
fn what_the_file_was_it_stays() {
    let scratch = with("old\n");
    let ws = scratch.ws();
    fs::set_permissions(ws.join("f"), fs::Permissions::from_mode(0o751)).unwrap();
    let root = rustix::process::geteuid().is_root();
    if root {
        std::os::unix::fs::chown(ws.join("f"), Some(1234), Some(1235)).unwrap();
    }
    let before = fs::metadata(ws.join("f")).unwrap();
    symlink("f", ws.join("link")).unwrap();
    let reply = attempt(&scratch, json!({"path": "link", "edits": [{"old": "old", "new": "new"}]}))
        .unwrap();
    let after = fs::metadata(ws.join("f")).unwrap();
    assert_eq!(reply["path"], "f");
    assert_eq!(
        (after.mode(), after.uid(), after.gid()),
        (before.mode(), before.uid(), before.gid())
    );
    assert!(ws.join("link").is_symlink());
    // Another name of the same file shows the same bytes.
    fs::hard_link(ws.join("f"), ws.join("g")).unwrap();
    edit(&scratch, json!([{"old": "new", "new": "newer and longer"}]));
    assert_eq!(fs::read(ws.join("g")).unwrap(), b"newer and longer\n");
    assert_eq!(names(&ws), ["f", "g", "link"]);
    symlink(scratch.dir.join("outside/secret"), ws.join("out")).unwrap();
    let error = attempt(&scratch, json!({"path": "out", "edits": [{"old": "OUT", "new": "IN"}]}))
        .unwrap_err();
    assert_eq!(error.reason_name(), Some("outside_workspace"));
}

#[test]
fn what_cannot_be_edited_is_explained() {
    let scratch = with(b"\x7fELF\0\0old");
    let error = refusal(&scratch, json!([{"old": "old", "new": "new"}]));
    assert_eq!(error["reason"], "binary_file");
    let large = fs::File::create(scratch.ws().join("f")).unwrap();
    large.set_len(MAX_BYTES as u64 + 1).unwrap();
    let error = attempt(&scratch, json!({"path": "f", "edits": [{"old": "old", "new": "new"}]}))
        .unwrap_err();
    assert_eq!(error.kind(), Kind::TooLarge);
    for path in ["none", "none/none"] {
        let error =
            attempt(&scratch, json!({"path": path, "edits": [{"old": "old", "new": "new"}]}))
                .unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
    }
    assert_eq!(names(&scratch.ws()), ["f"], "no directory was made");
    let error = attempt(&scratch, json!({"path": ".", "edits": [{"old": "old", "new": "new"}]}))
        .unwrap_err();
    assert_eq!(error.reason_name(), Some("is_directory"));
}

#[test]
fn a_dry_run_and_a_stale_etag_touch_nothing() {
    let scratch = with("old\n");
    let before = fs::metadata(scratch.ws().join("f")).unwrap();
    let dry = json!({"path": "f", "edits": [{"old": "old", "new": "new"}], "dry_run": true, "diff": "unified"});
    let reply = attempt(&scratch, dry).unwrap();
    assert_eq!(
        (&reply["dry_run"], &reply["etag"]),
        (&json!(true), &json!(etag_from_bytes(b"new\n")))
    );
    assert!(reply["diff"].as_str().unwrap().contains("-old\n+new\n"), "{reply}");
    let stale = json!({"path": "f", "edits": [{"old": "old", "new": "new"}], "if_match": "b3:00"});
    let error = attempt(&scratch, stale).unwrap_err();
    assert_eq!((error.kind(), error.reason_name()), (Kind::Conflict, Some("stale")));
    let after = fs::metadata(scratch.ws().join("f")).unwrap();
    assert_eq!(
        (after.ctime_nsec(), after.ino(), names(&scratch.ws())),
        (before.ctime_nsec(), before.ino(), vec!["f".to_owned()])
    );
}

/// Writers that edit one file at once: no edit is lost, and each is made once.
#[test]
fn no_edit_is_lost_when_many_edit_at_once() {
    let words: Vec<String> = (0..8)
        .flat_map(|writer| (0..12).map(move |turn| format!("w{writer:02}t{turn:02}")))
        .collect();
    let scratch = with(words.join("\n"));
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let scratch = &scratch;
            scope.spawn(move || {
                for turn in 0..12 {
                    let word = format!("w{writer:02}t{turn:02}");
                    let edits = json!([{"old": word, "new": format!("done-{word}")}]);
                    loop {
                        match attempt(scratch, json!({"path": "f", "edits": edits})) {
                            Ok(_) => break,
                            Err(error) => {
                                assert_eq!(error.reason_name(), Some("busy"), "{error:?}")
                            }
                        }
                    }
                }
            });
        }
    });
    let expected: Vec<String> = words.iter().map(|word| format!("done-{word}")).collect();
    assert_eq!(String::from_utf8(bytes(&scratch)).unwrap(), expected.join("\n"));
    assert_eq!(names(&scratch.ws()), ["f"]);
}

/// Another process writes the same file all the time without coordination: its changes are never
/// undone.
#[test]
fn a_change_by_somebody_else_is_not_overwritten() {
    let scratch = with("count 0 tail\n");
    let file = scratch.ws().join("f");
    let (mut won, mut lost) = (0, 0);
    for round in 0..200u32 {
        let theirs = format!("count {round} theirs\n");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let new = file.with_extension("theirs");
                fs::write(&new, &theirs).unwrap();
                fs::rename(&new, &file).unwrap();
            });
            let result = attempt(
                &scratch,
                json!({"path": "f", "edits": [{"old": " tail", "new": " edited"}]}),
            );
            writer.join().unwrap();
            let now = fs::read_to_string(&file).unwrap();
            match result {
                // We were first, and the other process overwrote our edit: its text is in place.
                Ok(_) => won += 1,
                Err(error) => {
                    assert_eq!(error.reason_name(), Some("no_match"), "{error:?}");
                    lost += 1;
                }
            }
            assert_eq!(now, theirs, "round {round}");
        });
        fs::write(&file, "count x tail\n").unwrap();
    }
    println!("{won} first, {lost} second");
    assert_eq!(names(&scratch.ws()), ["f"]);
}

#[test]
fn a_change_within_the_same_tick_is_seen() {
    let scratch = with("old one\n");
    let found =
        single_file::EditTarget::open(&scratch.workspace(), "f", &CancelToken::new()).unwrap();
    assert!(found.old.is_unchanged().unwrap());
    use std::os::unix::fs::FileExt;
    fs::File::options()
        .write(true)
        .open(scratch.ws().join("f"))
        .unwrap()
        .write_all_at(b"OLD", 0)
        .unwrap();
    assert!(!found.old.is_unchanged().unwrap());
}

#[test]
fn a_cancelled_edit_leaves_nothing_behind() {
    let scratch = with("old\n");
    let cancel = CancelToken::new();
    cancel.cancel(CancelCause::Client);
    let args = args(json!({"path": "f", "edits": [{"old": "old", "new": "new"}]}));
    assert_eq!(
        single_file::replace_in_file(&scratch.workspace(), &args, &cancel).err().unwrap().kind(),
        Kind::Cancelled
    );
    assert_eq!((bytes(&scratch), names(&scratch.ws())), (b"old\n".to_vec(), vec!["f".to_owned()]));
}

#[test]
fn no_race_edits_outside() {
    let scratch = Scratch::new();
    let ws = scratch.ws();
    fs::create_dir(ws.join("real")).unwrap();
    fs::write(ws.join("real/secret"), "OUTSIDE").unwrap();
    symlink(scratch.dir.join("outside"), ws.join("swap")).unwrap();
    let (mut edited, mut refused) = (0u64, 0u64);
    while_swapping(&ws.join("real"), &ws.join("swap"), || {
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            let edits = json!([{"old": "^.*", "new": format!("{edited}"), "regex": true}]);
            match attempt(&scratch, json!({"path": "real/secret", "edits": edits})) {
                Ok(_) => edited += 1,
                Err(error) => {
                    assert_eq!(error.reason_name(), Some("outside_workspace"), "{error:?}");
                    refused += 1;
                }
            }
        }
    });
    assert!(edited > 0 && refused > 0, "{edited} edited, {refused} refused");
    assert_eq!(fs::read(scratch.dir.join("outside/secret")).unwrap(), b"OUTSIDE");
    assert_eq!(names(&scratch.dir.join("outside")), ["secret"]);
}

/// A tree with matches in three files, a binary, an ignored one and one in another directory.
fn tree() -> Scratch {
    let scratch = Scratch::new();
    for (path, text) in [
        ("a.rs", "old old\n"),
        ("src/b.rs", "x\r\nold\r\n"),
        ("src/deep/c.rs", "old"),
        ("src/d.txt", "old\n"),
        ("gen/e.rs", "old\n"),
        (".gitignore", "gen/\n"),
        (".hidden.rs", "old\n"),
        ("bin.rs", "\0old\n"),
    ] {
        let path = scratch.ws().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    fs::create_dir(scratch.ws().join(".git")).unwrap();
    scratch
}

fn read(scratch: &Scratch, path: &str) -> String {
    String::from_utf8(fs::read(scratch.ws().join(path)).unwrap()).unwrap()
}

#[test]
fn many_files_are_edited_together() {
    let scratch = tree();
    let edits = json!([{"old": "old", "new": "new"}]);
    let error =
        attempt(&scratch, json!({"path": ".", "glob": ["*.rs"], "edits": edits})).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidArguments, "{error:?}");
    let dry = attempt(
        &scratch,
        json!({"path": ".", "glob": ["*.rs"], "edits": edits, "dry_run": true, "diff": "unified"}),
    )
    .unwrap();
    let paths: Vec<_> = dry["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["path"].as_str().unwrap())
        .collect();
    assert_eq!(paths, ["a.rs", "src/b.rs", "src/deep/c.rs"]);
    assert_eq!(
        (&dry["replacements"], &dry["skipped"], &dry["lines_added"]),
        (&json!(4), &json!(1), &json!(3))
    );
    assert!(dry["diff"].as_str().unwrap().contains("+++ b/src/deep/c.rs"), "{dry}");
    assert_eq!(read(&scratch, "a.rs"), "old old\n");
    let wrong = json!({"path": ".", "glob": ["*.rs"], "edits": edits, "total_expected": 3});
    assert_eq!(attempt(&scratch, wrong).unwrap_err().reason_name(), Some("ambiguous_match"));
    let strict = json!([{"old": "old", "new": "new", "expect": 3}]);
    let wrong = json!({"path": ".", "glob": ["*.rs"], "edits": strict, "total_expected": 4});
    assert_eq!(attempt(&scratch, wrong).unwrap_err().reason_name(), Some("ambiguous_match"));
    assert_eq!(read(&scratch, "a.rs"), "old old\n");
    let reply = attempt(
        &scratch,
        json!({"path": ".", "glob": ["*.rs"], "edits": edits, "total_expected": 4}),
    )
    .unwrap();
    assert_eq!(reply["files"], dry["files"], "it does what it said");
    assert_eq!(
        [read(&scratch, "a.rs"), read(&scratch, "src/b.rs"), read(&scratch, "src/deep/c.rs")],
        ["new new\n", "x\r\nnew\r\n", "new"]
    );
    for left in ["src/d.txt", "gen/e.rs", ".hidden.rs"] {
        assert_eq!(read(&scratch, left), "old\n", "{left}");
    }
    // The globs are about what is below the path.
    let reply = attempt(
        &scratch,
        json!({"path": "src", "glob": ["deep/*"], "edits": [{"old": "new", "new": "x"}], "total_expected": 1}),
    );
    assert_eq!(reply.unwrap()["files"][0]["path"], "src/deep/c.rs");
    assert_eq!(names(&scratch.ws().join("src")), ["b.rs", "d.txt", "deep"]);
    let error =
        attempt(&scratch, json!({"path": "a.rs", "glob": ["*"], "edits": edits, "dry_run": true}))
            .unwrap_err();
    assert_eq!(error.reason_name(), Some("not_a_directory"));
}

/// A change while files are being put in place: the ones already exchanged are restored, with the
/// same inode.
#[test]
fn when_one_of_many_fails_all_are_as_they_were() {
    let scratch = tree();
    let ws = scratch.ws();
    fs::write(ws.join("one"), "old").unwrap();
    fs::hard_link(ws.join("one"), ws.join("two")).unwrap();
    let workspace = Arc::new(scratch.workspace());
    let call = args(
        json!({"path": ".", "glob": ["a.rs", "one", "src/*.rs"], "edits": [{"old": "old", "new": "new"}], "dry_run": true}),
    );
    let files = multi_file::replace_in_files(&workspace, &call, &CancelToken::new()).unwrap().files;
    assert_eq!(files.len(), 3, "{files:?}");
    let before = fs::metadata(ws.join("a.rs")).unwrap();
    let stage = || {
        multi_file::stage_files(
            &workspace,
            &call.compile_edits().unwrap(),
            &files,
            &CancelToken::new(),
        )
        .unwrap()
    };
    let staged = stage();
    assert_eq!(
        names(&ws).iter().filter(|name| name.ends_with(".tmp")).count(),
        1,
        "{:?}",
        names(&ws)
    );
    fs::write(ws.join("src/b.rs"), "somebody else's").unwrap();
    let error = multi_file::commit_files(staged, &CancelToken::new()).unwrap_err();
    assert_eq!(error.reason_name(), Some("stale"));
    assert!(error.hint_text().unwrap().contains("Nothing was changed"), "{error:?}");
    let after = fs::metadata(ws.join("a.rs")).unwrap();
    assert_eq!(
        (after.ino(), after.mtime_nsec()),
        (before.ino(), before.mtime_nsec()),
        "it is the same file"
    );
    assert_eq!(
        [read(&scratch, "a.rs"), read(&scratch, "two"), read(&scratch, "src/b.rs")],
        ["old old\n", "old", "somebody else's"]
    );
    // A call that is cancelled halfway, and one that is stopped before anything is in place, leave
    // no trace either.
    fs::write(ws.join("src/b.rs"), "x\r\nold\r\n").unwrap();
    let staged = stage();
    let cancel = CancelToken::new();
    cancel.cancel(CancelCause::Client);
    assert_eq!(multi_file::commit_files(staged, &cancel).unwrap_err().kind(), Kind::Cancelled);
    drop(stage());
    assert!(!names(&ws).iter().chain(&names(&ws.join("src"))).any(|name| name.ends_with(".tmp")));
    multi_file::commit_files(stage(), &CancelToken::new()).unwrap();
    assert_eq!(
        [read(&scratch, "a.rs"), read(&scratch, "two"), read(&scratch, "src/b.rs")],
        ["new new\n", "new", "x\r\nnew\r\n"]
    );
    assert!(!names(&ws).iter().chain(&names(&ws.join("src"))).any(|name| name.ends_with(".tmp")));
}

#[test]
fn what_somebody_changed_at_once_is_not_put_back() {
    let scratch = with("old");
    let found =
        single_file::EditTarget::open(&scratch.workspace(), "f", &CancelToken::new()).unwrap();
    let stage = || {
        found
            .old
            .stage_replacement(&found.dir, &found.name, b"new", 0o644, &CancelToken::new())
            .unwrap()
    };
    let exchanged = stage().exchange_with(&found.name, &found.old.content.stat).unwrap().unwrap();
    fs::write(scratch.ws().join("f"), "theirs").unwrap();
    assert!(!exchanged.undo_exchange().unwrap());
    assert_eq!((bytes(&scratch), names(&scratch.ws())), (b"theirs".to_vec(), vec!["f".to_owned()]));
    assert!(stage().exchange_with(&found.name, &found.old.content.stat).unwrap().is_none());
    assert_eq!((bytes(&scratch), names(&scratch.ws())), (b"theirs".to_vec(), vec!["f".to_owned()]));
}

#[test]
fn a_group_that_the_pattern_lacks_is_not_nothing() {
    let scratch = with("width: 10\n");
    let error = refusal(&scratch, json!([{"old": r"(\d+)", "new": "$1px", "regex": true}]));
    assert_eq!(
        (&error["kind"], &error["reason"]),
        (&json!("invalid_arguments"), &json!("no_such_group"))
    );
    assert!(error["hint"].as_str().unwrap().contains("write `${1}px`"), "{error}");
    edit(&scratch, json!([{"old": r"(\d+)", "new": "${1}px", "regex": true}]));
    assert_eq!(bytes(&scratch), b"width: 10px\n");
}

#[test]
fn too_many_chosen_files_end_the_walk() {
    let scratch = Scratch::new();
    for number in 0..=20_000 {
        fs::write(scratch.ws().join(format!("f{number}")), "").unwrap();
    }
    let call =
        json!({"path": ".", "glob": ["*"], "edits": [{"old": "a", "new": "b"}], "dry_run": true});
    let error = attempt(&scratch, call.clone()).unwrap_err();
    assert_eq!(error.kind(), Kind::TooLarge, "{error:?}");
    fs::remove_file(scratch.ws().join("f0")).unwrap();
    assert_eq!(attempt(&scratch, call).unwrap()["replacements"], 0);
}

#[test]
fn a_file_with_two_names_is_edited_once() {
    let scratch = Scratch::new();
    let ws = scratch.ws();
    fs::write(ws.join("one"), "old").unwrap();
    fs::hard_link(ws.join("one"), ws.join("two")).unwrap();
    let edits = json!([{"old": "old", "new": "old new"}]);
    let dry =
        attempt(&scratch, json!({"path": ".", "glob": ["*"], "edits": edits, "dry_run": true}))
            .unwrap();
    assert_eq!((&dry["replacements"], &dry["files"][0]["path"]), (&json!(1), &json!("one")));
    attempt(&scratch, json!({"path": ".", "glob": ["*"], "edits": edits, "total_expected": 1}))
        .unwrap();
    assert_eq!([read(&scratch, "one"), read(&scratch, "two")], ["old new", "old new"]);
}

#[test]
fn what_cannot_be_named_or_written_is_counted() {
    use std::os::unix::ffi::OsStrExt;
    let scratch = Scratch::new();
    let ws = scratch.ws();
    fs::write(ws.join("a"), "old").unwrap();
    fs::write(ws.join(std::ffi::OsStr::from_bytes(b"\xff")), "old").unwrap();
    let call = json!({"path": ".", "glob": ["*"], "edits": [{"old": "old", "new": "new"}], "dry_run": true});
    let reply = attempt(&scratch, call.clone()).unwrap();
    assert_eq!((&reply["replacements"], &reply["skipped"]), (&json!(1), &json!(1)));
    fs::set_permissions(ws.join("a"), fs::Permissions::from_mode(0o444)).unwrap();
    fs::create_dir(ws.join("shut")).unwrap();
    fs::set_permissions(ws.join("shut"), fs::Permissions::from_mode(0o000)).unwrap();
    // The superuser may do everything.
    if !rustix::process::geteuid().is_root() {
        let reply = attempt(&scratch, call).unwrap();
        assert_eq!((&reply["replacements"], &reply["skipped"]), (&json!(0), &json!(3)));
        let one = json!({"path": "a", "edits": [{"old": "old", "new": "new"}], "dry_run": true});
        assert_eq!(attempt(&scratch, one).unwrap_err().reason_name(), Some("file_mode"));
    }
    fs::set_permissions(ws.join("shut"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// A displaced file may be the only copy of another process's change: it is restored or, if that
/// fails, kept and named.
#[test]
fn bytes_of_somebody_else_are_never_thrown_away() {
    let scratch = with("old");
    let file = scratch.ws().join("f");
    let found =
        single_file::EditTarget::open(&scratch.workspace(), "f", &CancelToken::new()).unwrap();
    let stage = || {
        found
            .old
            .stage_replacement(&found.dir, &found.name, b"new", 0o644, &CancelToken::new())
            .unwrap()
    };
    let exchange = || stage().exchange_with(&found.name, &found.old.content.stat);
    use std::io::Write;
    let mut theirs = fs::File::options().append(true).open(&file).unwrap();
    let exchanged = exchange().unwrap().unwrap();
    assert_eq!(bytes(&scratch), b"new");
    theirs.write_all(b" and theirs").unwrap();
    assert!(exchanged.confirm_or_restore(found.old.is_unchanged()).unwrap().is_none());
    assert_eq!(
        (bytes(&scratch), names(&scratch.ws())),
        (b"old and theirs".to_vec(), vec!["f".to_owned()])
    );

    let found =
        single_file::EditTarget::open(&scratch.workspace(), "f", &CancelToken::new()).unwrap();
    let exchanged = found
        .old
        .stage_replacement(&found.dir, &found.name, b"new", 0o644, &CancelToken::new())
        .unwrap();
    let exchanged = exchanged.exchange_with(&found.name, &found.old.content.stat).unwrap().unwrap();
    theirs.write_all(b", again").unwrap();
    fs::write(&file, "a third").unwrap();
    let Err(error) = exchanged.confirm_or_restore(found.old.is_unchanged()) else {
        panic!("it cannot go back")
    };
    assert_eq!((error.kind(), error.reason_name()), (Kind::Conflict, Some("displaced")));
    let body = error.to_body(&TraceId::generate());
    let kept = body["kept"].as_str().unwrap();
    assert!(error.hint_text().unwrap().contains(kept), "{error:?}");
    assert_eq!(
        (bytes(&scratch), read(&scratch, kept)),
        (b"a third".to_vec(), "old and theirs, again".to_owned())
    );
}

#[test]
fn a_watched_file_shows_a_change_within_the_same_tick() {
    use std::os::unix::fs::FileExt;
    let scratch = with("old one\n");
    let watch = single_file::EditTarget::open(&scratch.workspace(), "f", &CancelToken::new())
        .unwrap()
        .old
        .into_fingerprint();
    assert!(watch.is_unchanged().unwrap());
    fs::File::options()
        .write(true)
        .open(scratch.ws().join("f"))
        .unwrap()
        .write_all_at(b"OLD", 0)
        .unwrap();
    assert!(!watch.is_unchanged().unwrap());
}

#[test]
fn a_list_of_many_files_fits_its_budget() {
    let file = |number| FileReply {
        path: format!("src/{}/{number}.rs", "deep".repeat(30)),
        replacements: 1,
        etag: etag_from_bytes(b"new"),
        previous_etag: etag_from_bytes(b"old"),
    };
    let mut reply =
        Reply { path: ".".to_owned(), files: (0..200).map(file).collect(), ..Reply::default() };
    let dir = std::env::temp_dir().join(crate::base::ids::short_id("files"));
    let outputs = OutputStore::new(dir);
    reply.fit_budget(1 << 20, &outputs);
    assert_eq!((reply.files.len(), reply.files_omitted), (200, 0));
    reply.fit_budget(10_000, &outputs);
    assert!(
        json_size(&reply) <= 10_000 && reply.files.len() > 20,
        "{} bytes, {} files",
        json_size(&reply),
        reply.files.len()
    );
    assert_eq!(reply.files.len() as u64 + reply.files_omitted, 200);
    let mut stored = String::new();
    let handle = reply.files_output.clone().unwrap();
    std::io::Read::read_to_string(&mut outputs.open_output(&handle).unwrap(), &mut stored).unwrap();
    assert_eq!(stored.lines().count(), 200);
    assert!(format!("{:?}", reply.into_output().content).contains(&handle));
}
