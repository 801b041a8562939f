use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::*;
use crate::base::CancelCause;
use crate::base::workspace::tests::{Scratch, while_swapping};

fn args(arguments: Value) -> Args {
    let spec = FileWrite::new().spec;
    let Value::Object(map) = arguments else { panic!("an object") };
    spec.parse_arguments(&map).unwrap()
}

fn try_write(scratch: &Scratch, arguments: Value) -> Result<Value> {
    let output = write_with_retries(&scratch.workspace(), &args(arguments), &CancelToken::new())?
        .into_output();
    Ok(output.structured.unwrap())
}

fn put(scratch: &Scratch, arguments: Value) -> Value {
    try_write(scratch, arguments).unwrap()
}

fn refusal(scratch: &Scratch, arguments: Value) -> Error {
    try_write(scratch, arguments).unwrap_err()
}

fn bytes(scratch: &Scratch, path: &str) -> Vec<u8> {
    fs::read(scratch.ws().join(path)).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// Every name in the workspace, so that a left-over shows.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_new_file_is_made_with_its_directories() {
    let scratch = Scratch::new();
    let reply = put(&scratch, json!({"path": "a/b/c.txt", "content": "one\ntwo\n"}));
    assert_eq!(bytes(&scratch, "a/b/c.txt"), b"one\ntwo\n");
    assert_eq!(
        reply,
        json!({
            "path": "a/b/c.txt", "created": true, "etag": etag_from_bytes(b"one\ntwo\n"), "bytes": 8,
            "lines_added": 2, "lines_removed": 0, "encoding": "utf-8", "atomic": true, "dry_run": false,
        })
    );
    assert_eq!(names(&scratch.ws().join("a/b")), ["c.txt"]);
    fs::write(scratch.ws().join("plain"), "").unwrap();
    assert_eq!(
        mode(&scratch.ws().join("a/b/c.txt")),
        mode(&scratch.ws().join("plain")),
        "the umask holds"
    );
    put(&scratch, json!({"path": "run.sh", "content": "#!/bin/sh\n", "executable": true}));
    assert_eq!(mode(&scratch.ws().join("run.sh")) & 0o100, 0o100);
}

#[test]
fn a_replaced_file_keeps_what_it_was() {
    let scratch = Scratch::new();
    let script = scratch.ws().join("run.sh");
    fs::write(&script, "old\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o4755)).unwrap();
    let tagged =
        rustix::fs::setxattr(&script, "user.note", b"kept", rustix::fs::XattrFlags::empty())
            .is_ok();
    let root = rustix::process::geteuid().is_root();
    if root {
        std::os::unix::fs::chown(&script, Some(1234), Some(1235)).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o4755)).unwrap();
    }
    let before = fs::metadata(&script).unwrap();
    let reply =
        put(&scratch, json!({"path": "run.sh", "content": "new\nmore\n", "diff": "unified"}));
    let after = fs::metadata(&script).unwrap();
    assert_eq!(
        (after.mode() & 0o7777, after.uid(), after.gid()),
        (0o755, before.uid(), before.gid())
    );
    assert_ne!(after.ino(), before.ino(), "it was replaced, not rewritten");
    assert_eq!(reply["previous_etag"], etag_from_bytes(b"old\n"));
    assert_eq!(
        (&reply["lines_added"], &reply["lines_removed"], &reply["created"]),
        (&json!(2), &json!(1), &json!(false))
    );
    assert!(reply["diff"].as_str().unwrap().contains("-old\n+new\n+more\n"), "{reply}");
    if tagged {
        let mut value = [0; 16];
        let len = rustix::fs::getxattr(&script, "user.note", &mut value[..]).unwrap();
        assert_eq!(&value[..len], b"kept");
    }
    put(&scratch, json!({"path": "run.sh", "content": "x", "executable": false}));
    assert_eq!(mode(&script), 0o644);
    assert_eq!(names(&scratch.ws()), ["run.sh"]);
}

#[test]
fn encoding_and_line_ends_are_kept() {
    let chinese = "这是一个用来测试编码检测的中文文件。内容要足够长才能判断。\r\n第二行\r\n";
    let japanese = "日本語のテキストです。これは文字コードの判定を試すための文章です。\n二行目\n";
    let utf16 = |text: &str| {
        [b"\xfe\xff".to_vec(), text.encode_utf16().flat_map(u16::to_be_bytes).collect()].concat()
    };
    let samples: [(Vec<u8>, &str, Vec<u8>); 5] = [
        (b"a\r\nb\r\n".to_vec(), "x\ny\r\nz\n", b"x\r\ny\r\nz\r\n".to_vec()),
        (
            encoding_rs::GBK.encode(chinese).0.into_owned(),
            "中文\n",
            b"\xd6\xd0\xce\xc4\r\n".to_vec(),
        ),
        (
            encoding_rs::SHIFT_JIS.encode(japanese).0.into_owned(),
            "日本\n",
            b"\x93\xfa\x96\x7b\n".to_vec(),
        ),
        (utf16("alt\r\n"), "neu ü\n", utf16("neu ü\r\n")),
        (b"\xef\xbb\xbfalt\n".to_vec(), "neu\n", b"\xef\xbb\xbfneu\n".to_vec()),
    ];
    for (old, content, expected) in samples {
        let scratch = Scratch::new();
        fs::write(scratch.ws().join("f"), &old).unwrap();
        put(&scratch, json!({"path": "f", "content": content}));
        assert_eq!(bytes(&scratch, "f"), expected, "{content}");
        put(&scratch, json!({"path": "f", "content": "ü\r\n", "encoding": "utf-8", "eol": "lf"}));
        assert_eq!(bytes(&scratch, "f"), "ü\n".as_bytes());
    }
    let scratch = Scratch::new();
    let old = encoding_rs::SHIFT_JIS.encode(japanese).0.into_owned();
    fs::write(scratch.ws().join("f"), &old).unwrap();
    let error = refusal(&scratch, json!({"path": "f", "content": "😀"}));
    assert_eq!(
        (error.kind(), error.reason_name()),
        (Kind::InvalidArguments, Some("encoding_error"))
    );
    assert_eq!(bytes(&scratch, "f"), old);
}

#[test]
fn base64_writes_bytes() {
    let scratch = Scratch::new();
    let all: Vec<u8> = (0..=255).collect();
    let reply = put(
        &scratch,
        json!({"path": "b", "content": STANDARD.encode(&all), "encoding": "base64", "eol": "crlf"}),
    );
    assert_eq!(bytes(&scratch, "b"), all);
    assert_eq!((reply.get("lines_added"), &reply["bytes"]), (None, &json!(256)));
    assert_eq!(
        refusal(&scratch, json!({"path": "b", "content": "%%", "encoding": "base64"})).kind(),
        Kind::InvalidArguments
    );
    assert_eq!(bytes(&scratch, "b"), all);
}

#[test]
fn preconditions_are_kept_and_leave_the_bytes_alone() {
    let scratch = Scratch::new();
    fs::write(scratch.ws().join("f"), "old").unwrap();
    let error = refusal(&scratch, json!({"path": "f", "content": "x", "mode": "create"}));
    assert_eq!((error.kind(), error.reason_name()), (Kind::Conflict, Some("already_exists")));
    let error = refusal(&scratch, json!({"path": "f", "content": "x", "if_match": "b3:00"}));
    assert_eq!((error.kind(), error.reason_name()), (Kind::Conflict, Some("stale")));
    assert_eq!(error.to_body(&crate::base::TraceId::generate())["etag"], etag_from_bytes(b"old"));
    assert_eq!(bytes(&scratch, "f"), b"old");
    let error = refusal(&scratch, json!({"path": "d/new", "content": "x", "if_match": "b3:00"}));
    assert_eq!(error.reason_name(), Some("stale"));
    assert_eq!(names(&scratch.ws()), ["f"], "not even the directory was made");
    put(&scratch, json!({"path": "f", "content": "new", "if_match": etag_from_bytes(b"old")}));
    assert_eq!(bytes(&scratch, "f"), b"new");
    put(&scratch, json!({"path": "d/new", "content": "x", "mode": "create"}));
    let error = refusal(&scratch, json!({"path": "d", "content": "x"}));
    assert_eq!((error.kind(), error.reason_name()), (Kind::InvalidArguments, Some("is_directory")));
    let error = refusal(&scratch, json!({"path": "../outside/x", "content": "x"}));
    assert_eq!(error.reason_name(), Some("outside_workspace"));
}

#[test]
fn links_lead_to_what_is_written() {
    let scratch = Scratch::new();
    let ws = scratch.ws();
    fs::create_dir(ws.join("d")).unwrap();
    fs::write(ws.join("d/target"), "old").unwrap();
    symlink(ws.join("d/target"), ws.join("link")).unwrap();
    symlink("d/made", ws.join("dangling")).unwrap();
    symlink(scratch.dir.join("outside/secret"), ws.join("out")).unwrap();
    symlink(scratch.dir.join("outside/new"), ws.join("out-new")).unwrap();
    assert_eq!(put(&scratch, json!({"path": "link", "content": "new"}))["path"], "d/target");
    assert_eq!(put(&scratch, json!({"path": "dangling", "content": "made"}))["path"], "d/made");
    assert_eq!(
        (bytes(&scratch, "d/target"), bytes(&scratch, "d/made")),
        (b"new".to_vec(), b"made".to_vec())
    );
    assert!(ws.join("link").is_symlink() && ws.join("dangling").is_symlink());
    for path in ["out", "out-new"] {
        assert_eq!(
            refusal(&scratch, json!({"path": path, "content": "x"})).reason_name(),
            Some("outside_workspace")
        );
    }
    assert_eq!(fs::read(scratch.dir.join("outside/secret")).unwrap(), b"OUTSIDE");
    assert_eq!(names(&scratch.dir.join("outside")), ["secret"]);

    // Another name of the same file keeps showing the same bytes.
    fs::write(ws.join("one"), "a long old content").unwrap();
    fs::hard_link(ws.join("one"), ws.join("two")).unwrap();
    let reply = put(&scratch, json!({"path": "one", "content": "short"}));
    assert_eq!(
        (&reply["atomic"], &reply["etag"]),
        (&json!(false), &json!(etag_from_bytes(b"short")))
    );
    assert_eq!(bytes(&scratch, "two"), b"short");
}

#[test]
fn append_adds_to_the_end() {
    let scratch = Scratch::new();
    let reply = put(&scratch, json!({"path": "log", "content": "one\r\n", "mode": "append"}));
    assert_eq!((&reply["created"], &reply["atomic"]), (&json!(true), &json!(true)));
    let reply = put(
        &scratch,
        json!({"path": "log", "content": "two\n", "mode": "append", "diff": "unified"}),
    );
    assert_eq!(bytes(&scratch, "log"), b"one\r\ntwo\r\n");
    assert_eq!(
        (&reply["atomic"], &reply["bytes"], &reply["lines_added"]),
        (&json!(false), &json!(5), &json!(1))
    );
    assert_eq!(reply["etag"], etag_from_bytes(b"one\r\ntwo\r\n"));
    let utf16 = b"\xff\xfea\0".to_vec();
    fs::write(scratch.ws().join("wide"), &utf16).unwrap();
    put(&scratch, json!({"path": "wide", "content": "ü", "mode": "append"}));
    assert_eq!(bytes(&scratch, "wide"), b"\xff\xfea\0\xfc\0", "no second mark");
}

#[test]
fn a_dry_run_touches_nothing() {
    let scratch = Scratch::new();
    fs::write(scratch.ws().join("f"), "old\n").unwrap();
    let before = fs::metadata(scratch.ws().join("f")).unwrap();
    let reply =
        put(&scratch, json!({"path": "f", "content": "new\n", "dry_run": true, "diff": "unified"}));
    assert_eq!(
        (&reply["dry_run"], &reply["etag"]),
        (&json!(true), &json!(etag_from_bytes(b"new\n")))
    );
    assert!(reply["diff"].as_str().unwrap().contains("+new"), "{reply}");
    let reply = put(&scratch, json!({"path": "a/b", "content": "new\n", "dry_run": true}));
    assert_eq!((&reply["created"], &reply["path"]), (&json!(true), &json!("a/b")));
    let reply =
        put(&scratch, json!({"path": "f", "content": "x", "mode": "append", "dry_run": true}));
    assert_eq!(reply["etag"], etag_from_bytes(b"old\nx"));
    let after = fs::metadata(scratch.ws().join("f")).unwrap();
    assert_eq!((after.ctime_nsec(), after.ino()), (before.ctime_nsec(), before.ino()));
    assert_eq!(
        (bytes(&scratch, "f"), names(&scratch.ws())),
        (b"old\n".to_vec(), vec!["f".to_owned()])
    );
}

#[test]
fn a_cancelled_write_leaves_the_old_bytes_and_no_other_file() {
    let scratch = Scratch::new();
    fs::write(scratch.ws().join("f"), "old").unwrap();
    let cancel = CancelToken::new();
    cancel.cancel(CancelCause::Client);
    let workspace = scratch.workspace();
    let WriteTarget::Ready { dir, name, path, existing } =
        workspace.find_write_target("f", false).unwrap()
    else {
        panic!("it is there")
    };
    let old = OldFile::inspect(existing.unwrap(), MAX_OLD_BYTES, &CancelToken::new()).unwrap();
    let args = args(json!({"path": "f", "content": "new"}));
    let job = WriteJob::new(&args, &WriteInput::Text("new"), path, Some(old)).unwrap();
    // Cancelled when the temporary file is there already.
    assert_eq!(job.write_file(&Arc::new(dir), &name, &cancel).unwrap_err().kind(), Kind::Cancelled);
    assert_eq!(
        (bytes(&scratch, "f"), names(&scratch.ws())),
        (b"old".to_vec(), vec!["f".to_owned()])
    );
}

#[test]
fn a_change_by_somebody_else_is_not_overwritten_unseen() {
    let scratch = Scratch::new();
    fs::write(scratch.ws().join("f"), "old").unwrap();
    let workspace = scratch.workspace();
    let look = || {
        let WriteTarget::Ready { dir, name, path, existing } =
            workspace.find_write_target("f", false).unwrap()
        else {
            panic!("it is there")
        };
        (
            dir,
            name,
            path,
            OldFile::inspect(existing.unwrap(), MAX_OLD_BYTES, &CancelToken::new()).unwrap(),
        )
    };
    let args = args(json!({"path": "f", "content": "mine"}));
    let (dir, name, path, old) = look();
    fs::write(scratch.ws().join("f"), "theirs").unwrap();
    let job = WriteJob::new(&args, &WriteInput::Text("mine"), path, Some(old)).unwrap();
    assert!(
        job.write_file(&Arc::new(dir), &name, &CancelToken::new()).unwrap().is_none(),
        "it has to start over"
    );
    assert_eq!(
        (bytes(&scratch, "f"), names(&scratch.ws())),
        (b"theirs".to_vec(), vec!["f".to_owned()])
    );
}

/// Of writers that all saw the same etag, one wins; and of creators likewise.
#[test]
fn one_of_many_writers_wins() {
    let scratch = Scratch::new();
    fs::write(scratch.ws().join("f"), "old").unwrap();
    for (path, extra) in
        [("f", json!({"if_match": etag_from_bytes(b"old")})), ("g", json!({"mode": "create"}))]
    {
        let winners: usize = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..8)
                .map(|writer| {
                    let mut arguments =
                        json!({"path": path, "content": format!("writer {writer}")});
                    arguments.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
                    let scratch = &scratch;
                    scope.spawn(move || match try_write(scratch, arguments) {
                        Ok(_) => 1,
                        Err(error) => {
                            assert_eq!(error.kind(), Kind::Conflict, "{error:?}");
                            0
                        }
                    })
                })
                .collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).sum()
        });
        assert_eq!(winners, 1, "{path}");
    }
    assert_eq!(names(&scratch.ws()), ["f", "g"]);
}

#[test]
fn no_race_writes_outside() {
    let scratch = Scratch::new();
    let ws = scratch.ws();
    fs::create_dir(ws.join("real")).unwrap();
    symlink(scratch.dir.join("outside"), ws.join("swap")).unwrap();
    let (mut written, mut refused) = (0u64, 0u64);
    while_swapping(&ws.join("real"), &ws.join("swap"), || {
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            match try_write(
                &scratch,
                json!({"path": "real/secret", "content": format!("{written}")}),
            ) {
                Ok(_) => written += 1,
                Err(error) => {
                    assert_eq!(error.reason_name(), Some("outside_workspace"), "{error:?}");
                    refused += 1;
                }
            }
        }
    });
    assert!(written > 0 && refused > 0, "{written} written, {refused} refused");
    assert_eq!(names(&scratch.dir.join("outside")), ["secret"]);
    assert_eq!(fs::read(scratch.dir.join("outside/secret")).unwrap(), b"OUTSIDE");
}

/// The kernel's own device that is always full stands in for a disk that is.
#[test]
fn a_full_disk_says_so() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let error =
        atomic_write::append_in_place(&full, 0, b"x", "f", &CancelToken::new()).unwrap_err();
    assert_eq!((error.kind(), error.reason_name()), (Kind::ResourceExhausted, Some("no_space")));
}

#[test]
fn a_write_in_place_that_fails_puts_the_old_bytes_back() {
    let scratch = Scratch::new();
    fs::write(scratch.ws().join("f"), "old").unwrap();
    let file = fs::File::options().write(true).open(scratch.ws().join("f")).unwrap();
    let cancel = CancelToken::new();
    cancel.cancel(CancelCause::Client);
    // What half of an append would have left is cut off again.
    file.set_len(10).unwrap();
    assert_eq!(
        atomic_write::append_in_place(&file, 3, b"more", "f", &cancel).unwrap_err().kind(),
        Kind::Cancelled
    );
    assert_eq!(bytes(&scratch, "f"), b"old");
}

#[test]
fn the_schemas_are_flat() {
    let spec = FileWrite::new().spec;
    for schema in [Some(spec.input_schema), spec.output_schema] {
        let text = serde_json::to_string(&schema).unwrap();
        for word in ["anyOf", "oneOf", "allOf", "$ref", "\"null\"", "[\"string\""] {
            assert!(!text.contains(word), "{word} in {text}");
        }
    }
}

/// Another process puts another file in place without coordination: its change is never undone.
#[test]
fn a_change_between_look_and_write_is_not_lost() {
    let scratch = Scratch::new();
    let file = scratch.ws().join("f");
    for round in 0..200u32 {
        fs::write(&file, "old").unwrap();
        let theirs = format!("theirs {round}");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let new = file.with_extension("theirs");
                fs::write(&new, &theirs).unwrap();
                fs::rename(&new, &file).unwrap();
            });
            let result = try_write(
                &scratch,
                json!({"path": "f", "content": "mine", "if_match": etag_from_bytes(b"old")}),
            );
            writer.join().unwrap();
            if let Err(error) = result {
                assert_eq!(error.reason_name(), Some("stale"), "{error:?}");
            }
        });
        assert_eq!(fs::read_to_string(&file).unwrap(), theirs);
    }
    assert_eq!(names(&scratch.ws()), ["f"]);
}

#[test]
fn text_of_another_encoding_is_not_appended() {
    let scratch = Scratch::new();
    let wide: Vec<u8> = [0xff, 0xfe]
        .into_iter()
        .chain("eins\n".encode_utf16().flat_map(u16::to_le_bytes))
        .collect();
    fs::write(scratch.ws().join("f"), &wide).unwrap();
    let append = |encoding| json!({"path": "f", "content": "zwei\n", "mode": "append", "encoding": encoding});
    assert_eq!(refusal(&scratch, append("utf-8")).reason_name(), Some("encoding_error"));
    assert_eq!(bytes(&scratch, "f"), wide);
    put(&scratch, append("keep"));
    assert!(bytes(&scratch, "f").ends_with(b"z\0w\0e\0i\0\n\0"));
    fs::write(scratch.ws().join("f"), "ascii\n").unwrap();
    put(&scratch, append("utf-8"));
    assert_eq!(bytes(&scratch, "f"), b"ascii\nzwei\n");
}

#[test]
fn a_path_that_cannot_be_makes_no_directory() {
    let scratch = Scratch::new();
    let long = format!("new/deeper/{}", "n".repeat(256));
    assert_eq!(
        refusal(&scratch, json!({"path": long, "content": ""})).kind(),
        Kind::InvalidArguments
    );
    for directory in ["nd/.", "nd/", "a/nd/."] {
        assert_eq!(
            refusal(&scratch, json!({"path": directory, "content": ""})).reason_name(),
            Some("is_directory")
        );
    }
    assert_eq!(names(&scratch.ws()), Vec::<String>::new());
}
