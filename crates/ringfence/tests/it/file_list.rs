//! `file.list` on the real binary.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};

use crate::support::server::Scratch;
use crate::support::{Options, Transport};

const VERSION: &str = "2025-11-25";

fn paths(answer: &Value) -> Vec<String> {
    let entries = answer["result"]["structuredContent"]["entries"].as_array();
    let entries = entries.unwrap_or_else(|| panic!("{answer:#}"));
    entries.iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect()
}

/// The operator's hidden places and the runtime files are not there for a list, by whatever name.
#[test]
fn what_is_closed_is_not_listed() {
    let scratch = Scratch::new();
    let workspace = scratch.path().join("workspace");
    fs::create_dir_all(workspace.join("secrets")).unwrap();
    fs::create_dir_all(workspace.join("open")).unwrap();
    fs::write(workspace.join("secrets/key"), "SECRET").unwrap();
    let mut server = Options::new(Transport::Stdio).on(&scratch).spawn();
    let mut client = server.connect(VERSION);
    assert_eq!(
        paths(&client.call("file.list", json!({"depth": 0}))),
        ["open", "secrets", "secrets/key"]
    );
    drop((client, server));

    let mut server = Options::new(Transport::Stdio)
        .on(&scratch)
        .config("[sandbox]\nhide = [\"secrets\"]")
        .spawn();
    let mut client = server.connect(VERSION);
    // Whatever has been found by now: the name, and the directory under another name.
    assert_eq!(paths(&client.call("file.list", json!({"depth": 0, "hidden": true}))), ["open"]);
    fs::rename(workspace.join("secrets"), workspace.join("open/moved")).unwrap();
    assert_eq!(paths(&client.call("file.list", json!({"depth": 0, "hidden": true}))), ["open"]);
    let found = client
        .call("file.search", json!({"pattern": "SECRET", "hidden": true, "gitignore": false}));
    assert_eq!(found["result"]["structuredContent"]["files_matched"], 0, "{found:#}");
    for (near, closed) in [("secret", "secrets"), ("open/move", "moved")] {
        let answer = client.call("file.read", json!({"path": near}));
        let error = &answer["result"]["structuredContent"]["error"];
        assert_eq!(error["kind"], "not_found", "{answer:#}");
        assert!(!error["hint"].as_str().unwrap().contains(closed), "{answer:#}");
    }
}

/// A directory is swapped with a symlink that leads out while it is listed: nothing outside is ever named.
#[test]
fn no_race_lists_what_is_outside() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let workspace = server.workspace();
    let outside = workspace.parent().unwrap().join("home");
    fs::create_dir_all(workspace.join("real/deep")).unwrap();
    fs::create_dir_all(outside.join("deep")).unwrap();
    fs::write(workspace.join("real/deep/inside"), "").unwrap();
    fs::write(outside.join("deep/OUTSIDE"), "").unwrap();
    symlink(&outside, workspace.join("swap")).unwrap();
    let mut client = server.connect(VERSION);
    let until = Instant::now() + Duration::from_secs(2);
    let (mut whole, mut refused, mut naive_leaks) = (0, 0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while Instant::now() < until {
                let (one, two) = (workspace.join("real"), workspace.join("swap"));
                renameat_with(CWD, one, CWD, two, RenameFlags::EXCHANGE).unwrap();
            }
        });
        scope.spawn(|| {
            // What looking first and opening then would do.
            while Instant::now() < until {
                for name in ["real", "swap"] {
                    let at = workspace.join(name);
                    if at.symlink_metadata().is_ok_and(|found| found.is_dir())
                        && fs::read_dir(at.join("deep")).is_ok_and(|found| {
                            found.flatten().any(|entry| entry.file_name() == "OUTSIDE")
                        })
                    {
                        naive_leaks += 1;
                    }
                }
            }
        });
        while Instant::now() < until {
            for arguments in [json!({"depth": 0}), json!({"path": "real/deep"})] {
                let answer = client.call("file.list", arguments);
                assert!(!answer.to_string().contains("OUTSIDE"), "{answer:#}");
                match answer["result"]["isError"].as_bool() {
                    Some(true) => refused += 1,
                    _ => whole += usize::from(answer.to_string().contains("deep/inside")),
                }
            }
        }
    });
    assert!(naive_leaks > 0, "the race is no race");
    assert!(whole > 0 && refused > 0, "{whole} seen, {refused} refused");
}

/// Trees that are meant to do harm end soon, and the server lives on.
#[test]
fn a_hostile_tree_is_listed_in_bounds() {
    // In memory, where there is such a place: a disk takes long for so many.
    let memory = Path::new("/dev/shm");
    let scratch = if memory.is_dir() { Scratch::within(memory) } else { Scratch::new() };
    let mut server = Options::new(Transport::Stdio).on(&scratch).spawn();
    let workspace = server.workspace();
    let script =
        "import os\nfor i in range(3000):\n  os.mkdir('e'); os.mkdir('d'); os.chdir('d')\n";
    let made = std::process::Command::new("python3")
        .arg("-c")
        .arg(script)
        .current_dir(&workspace)
        .status()
        .unwrap();
    assert!(made.success());
    let mut client = server.connect(VERSION);
    let start = Instant::now();
    let answer = client.call("file.list", json!({"depth": 0}));
    let reply = &answer["result"]["structuredContent"];
    assert_eq!((&reply["total"], &reply["truncated"]), (&json!(4096), &json!(true)), "{answer:#}");
    assert!(reply["warnings"][0].as_str().unwrap().contains("too long to be named"), "{answer:#}");
    assert!(answer.to_string().len() < 64_000);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(paths(&client.call("file.list", json!({}))), ["d", "e"]);
    // The standard library would recurse on this.
    let removed =
        std::process::Command::new("rm").arg("-rf").arg(workspace.join("d")).status().unwrap();
    assert!(removed.success());
}
