//! `file.search` on the real binary, and beside ripgrep itself.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};

use crate::support::{Client, Options, Transport};

const VERSION: &str = "2025-11-25";

/// Every (path, line), page by page.
fn found(client: &mut Client, mut arguments: Value) -> BTreeSet<(String, u64)> {
    let mut all = BTreeSet::new();
    arguments["max_results"] = json!(2000);
    arguments["max_bytes"] = json!(262_144);
    arguments["timeout_ms"] = json!(60_000);
    loop {
        let answer = client.call("file.search", arguments.clone());
        let reply = &answer["result"]["structuredContent"];
        assert_eq!(reply["timed_out"], false, "{answer:#}");
        for hit in reply["matches"].as_array().unwrap_or_else(|| panic!("{answer:#}")) {
            let new = all
                .insert((hit["path"].as_str().unwrap().to_owned(), hit["line"].as_u64().unwrap()));
            assert!(new, "{hit} twice");
        }
        match reply["next_cursor"].as_str() {
            Some(cursor) => arguments["cursor"] = json!(cursor),
            None => {
                assert_eq!(reply["total_matches"], json!(all.len()));
                return all;
            }
        }
    }
}

/// The same by ripgrep.
fn by_ripgrep(at: &Path, arguments: &[&str]) -> BTreeSet<(String, u64)> {
    let output = Command::new("rg")
        .args([
            "--no-config",
            "--no-heading",
            "--with-filename",
            "--line-number",
            "--null",
            "--color=never",
        ])
        // Ours reads no ignore file outside the workspace, and heeds `.gitignore` without a repository, too.
        .args(["--no-ignore-global", "--no-ignore-parent", "--no-require-git"])
        .args(arguments)
        .current_dir(at)
        .output()
        .expect("rg is missing: run conformance/packages.sh");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter_map(|line| line.split_once('\0'));
    let place = |(path, rest): (&str, &str)| {
        let line = rest.split(':').next()?.parse().ok()?;
        Some((path.strip_prefix("./").unwrap_or(path).to_owned(), line))
    };
    lines.filter_map(place).collect()
}

/// A tree with everything that decides what is searched.
fn grow(at: &Path) {
    let put = |path: &str, bytes: &[u8]| {
        let path = at.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    let words = ["needle", "Needle", "haystack", "needles", "straw needle", "x"];
    for number in 0..400usize {
        let text: String = (0..number % 17)
            .map(|line| format!("{} {line}\n", words[(number + line) % 6]))
            .collect();
        put(
            &format!(
                "pack{}/src/file{number}.{}",
                number % 9,
                ["rs", "py", "log", "txt"][number % 4]
            ),
            text.as_bytes(),
        );
    }
    put(".gitignore", b"*.log\n/pack1/\n!pack2/src/file2.log\nbuild*/\n**/deep/secret\n");
    put("pack3/.gitignore", b"*.txt\n!*7.txt\n*.py\n");
    put("pack3/src/.ignore", b"!*.py\n");
    put("pack4/.git/HEAD", b"ref: x\n");
    put("pack4/kept.log", b"needle in another repository\n");
    put("pack5/build-it/x.rs", b"needle\n");
    put("pack5/deep/secret", b"needle\n");
    put(".hidden/x.rs", b"needle\n");
    put(".git/info/exclude", b"pack6/src/file6.log\nexcluded.txt\n");
    put(".git/HEAD", b"ref: needle\n");
    put("pack7/excluded.txt", b"needle\n");
    let wide: Vec<u8> =
        "\u{feff}eins\nneedle\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    put("wide.txt", &wide);
    let wide: Vec<u8> = "\u{feff}needle\n".encode_utf16().flat_map(u16::to_be_bytes).collect();
    put("wide-be.txt", &wide);
    put("crlf.txt", b"needle\r\nx\r\nneedle\r\n");
    put("latin.txt", b"gr\xfcn needle\n");
    put("binary", b"\0\0needle\n");
    put("late-binary", &[vec![b'y'; 300_000].as_slice(), b"\nneedle\n\0\nneedle\n"].concat());
    put("no-end", b"x\nneedle");
    put("empty", b"");
    put("long", format!("{}needle\n", "z".repeat(3_000_000)).as_bytes());
    symlink("crlf.txt", at.join("link.txt")).unwrap();
    symlink("pack2", at.join("linked")).unwrap();
}

#[test]
fn ripgrep_finds_the_same() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let workspace = server.workspace();
    grow(&workspace);
    let mut client = server.connect(VERSION);
    let cases: &[(Value, &[&str])] = &[
        (json!({"pattern": "needle"}), &["needle"]),
        (json!({"pattern": "needle", "ignore_case": true}), &["-i", "needle"]),
        (json!({"pattern": "needle", "word": true}), &["-w", "needle"]),
        (json!({"pattern": "needle$"}), &["--crlf", "needle$"]),
        (json!({"pattern": "^(straw|hay)"}), &["^(straw|hay)"]),
        (json!({"pattern": "w n", "literal": true}), &["-F", "w n"]),
        (json!({"pattern": "needle", "type": "py"}), &["-tpy", "needle"]),
        (json!({"pattern": "needle", "glob": ["*.rs"]}), &["-g", "*.rs", "needle"]),
        (json!({"pattern": "needle", "exclude": ["pack2/"]}), &["-g", "!pack2/", "needle"]),
        (json!({"pattern": "needle", "path": "pack3"}), &["needle", "pack3"]),
        (json!({"pattern": "needle", "gitignore": false}), &["--no-ignore", "needle"]),
        (json!({"pattern": "needle", "hidden": true}), &["--hidden", "-g", "!.git", "needle"]),
        (json!({"pattern": "grün|\\bx\\b"}), &["grün|\\bx\\b"]),
    ];
    let mut hits = 0;
    for (ours, theirs) in cases {
        // Where there is no ripgrep there is nothing to compare with.
        let expected = by_ripgrep(&workspace, theirs);
        let mut theirs_from_above = theirs.to_vec();
        // Rules above the path that is searched hold for ours without a parent's leave.
        if ours.get("path").is_some() {
            theirs_from_above.insert(0, "--ignore-parent");
        }
        let expected = if ours.get("path").is_some() {
            by_ripgrep(&workspace, &theirs_from_above)
        } else {
            expected
        };
        assert!(!expected.is_empty(), "{theirs:?} finds nothing");
        let ours_found = found(&mut client, ours.clone());
        let more: Vec<_> = ours_found.difference(&expected).take(5).collect();
        let less: Vec<_> = expected.difference(&ours_found).take(5).collect();
        assert!(
            more.is_empty() && less.is_empty(),
            "{ours}: only ours {more:?}, only ripgrep's {less:?}"
        );
        hits += expected.len();
    }
    assert!(hits > 3000, "{hits} hits in all say little");
}

/// On what people really have: this very repository.
#[test]
fn ripgrep_finds_the_same_in_this_repository() {
    // A copy, which nobody edits meanwhile.
    let mut server = Options::new(Transport::Stdio).spawn();
    let project = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let copied = Command::new("cp")
        .arg("-r")
        .arg(project)
        .arg(server.workspace().join("crates"))
        .status()
        .unwrap();
    assert!(copied.success());
    let project = server.workspace();
    let mut client = server.connect(VERSION);
    for pattern in ["fn [a-z_]+_of", "workspace", "TODO|unsafe", "impl.*for"] {
        let expected = by_ripgrep(&project, &[pattern]);
        assert_eq!(found(&mut client, json!({"pattern": pattern})), expected, "{pattern}");
    }
}

#[test]
fn a_stored_output_is_searched_by_its_handle() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(VERSION);
    let answer =
        client.call("shell.exec", json!({"command": "seq 100000; echo needle; seq 100000"}));
    let handle = answer["result"]["structuredContent"]["output"]
        .as_str()
        .unwrap_or_else(|| panic!("{answer:#}"));
    let answer =
        client.call("file.search", json!({"pattern": "needle", "path": handle, "before": 1}));
    let hit = &answer["result"]["structuredContent"]["matches"][0];
    assert_eq!(
        (&hit["line"], &hit["before"], &hit["path"]),
        (&json!(100_001), &json!(["100000"]), &json!(handle))
    );
    let answer = client.call("file.search", json!({"pattern": "x", "path": "output:../../audit"}));
    assert_eq!(answer["result"]["structuredContent"]["error"]["kind"], "not_found", "{answer:#}");
}

/// A directory is swapped with a symlink that leads out while all is searched: nothing outside is ever found.
#[test]
fn no_race_finds_what_is_outside_on_the_wire() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let workspace = server.workspace();
    let outside = workspace.parent().unwrap().join("home");
    for (at, text) in [(workspace.join("real"), "word inside"), (outside.clone(), "word OUTSIDE")] {
        fs::create_dir_all(at.join("deep")).unwrap();
        fs::write(at.join("deep/secret"), text).unwrap();
    }
    symlink(&outside, workspace.join("swap")).unwrap();
    let mut client = server.connect(VERSION);
    let until = Instant::now() + Duration::from_secs(2);
    let (mut inside, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while Instant::now() < until {
                let (one, two) = (workspace.join("real"), workspace.join("swap"));
                renameat_with(CWD, one, CWD, two, RenameFlags::EXCHANGE).unwrap();
            }
        });
        while Instant::now() < until {
            for path in [".", "real/deep", "real/deep/secret"] {
                let answer = client.call("file.search", json!({"pattern": "word", "path": path}));
                assert!(!answer.to_string().contains("OUTSIDE"), "{answer:#}");
                inside += usize::from(answer.to_string().contains("word inside"));
                refused += usize::from(answer["result"]["isError"] == true);
            }
        }
    });
    assert!(inside > 0 && refused > 0, "{inside} inside, {refused} refused");
}

/// A search of much more than there is time for ends in time, with what it has; one that is cancelled ends at once.
#[test]
fn a_search_ends_in_time_and_when_cancelled() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let file = fs::File::create(server.workspace().join("huge")).unwrap();
    file.set_len(64 << 30).unwrap();
    let mut client = server.connect(VERSION);
    let slow = json!({"pattern": "needle", "path": "huge", "timeout_ms": 300});
    let start = Instant::now();
    let answer = client.call("file.search", slow);
    let reply = &answer["result"]["structuredContent"];
    assert_eq!(
        (&reply["timed_out"], &reply["truncated"]),
        (&json!(true), &json!(true)),
        "{answer:#}"
    );
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let id = client.start_call(
        "file.search",
        &json!({"pattern": "needle", "path": "huge", "timeout_ms": 100_000}),
    );
    client.cancel(&id);
    let start = Instant::now();
    let answer = client.call("file.list", json!({}));
    assert_eq!(answer["result"]["structuredContent"]["total"], 1, "{answer:#}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}
