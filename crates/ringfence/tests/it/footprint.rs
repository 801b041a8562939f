//! Nothing is written anywhere but under root, except what a caller asked for.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use serde_json::json;

use crate::support::place::{visible_binary, visible_folder};
use crate::support::server::Scratch;
use crate::support::{Approve, CELLS, Options, SESSIONS, Transport};

type Tree = BTreeMap<PathBuf, (u64, Option<SystemTime>)>;

/// Every file and folder beneath, with what changes when it is changed.
fn tree(at: &Path) -> Tree {
    let mut found = Tree::new();
    let mut folders = vec![at.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let about = entry.path().symlink_metadata().unwrap();
            if about.is_dir() {
                folders.push(entry.path());
            }
            let name = entry.path().strip_prefix(at).unwrap().to_owned();
            let changed = about.is_file().then(|| about.modified().ok()).flatten();
            found.insert(name, (about.len(), changed));
        }
    }
    found
}

fn changed(before: &Tree, after: &Tree) -> Vec<String> {
    let new =
        after.iter().filter(|(path, about)| before.get(*path) != Some(about)).map(|(path, _)| path);
    let gone = before.keys().filter(|path| !after.contains_key(*path));
    let mut names: Vec<String> = new.chain(gone).map(|path| path.display().to_string()).collect();
    names.sort();
    names.dedup();
    names
}

/// Starts the binary with another folder in the place of `/tmp`, where this user may do that. An ordinary user needs a
/// user namespace for it, from which a server on the network cannot identify its clients.
fn with_own_tmp(scratch: &Scratch, transport: Transport) -> Option<PathBuf> {
    let is_root = rustix::process::geteuid().is_root();
    let flags = if is_root { "-m" } else { "-rm" };
    let works = Command::new("unshare")
        .args([flags, "true"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !works || (!is_root && transport != Transport::Stdio) {
        return None;
    }
    let (wrapper, binary) = (scratch.path().join("with-own-tmp"), visible_binary());
    let tmp = scratch.path().join("tmp");
    let text = format!(
        "#!/bin/sh\nexec unshare {flags} sh -c 'mount --bind {} /tmp && exec {} \"$@\"' sh \"$@\"\n",
        tmp.display(),
        binary.display()
    );
    std::fs::write(&wrapper, text).unwrap();
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).unwrap();
    Some(wrapper)
}

#[test]
fn only_root_and_what_was_asked_for_has_changed() {
    // Not beneath /tmp, which is one of the places that are compared.
    let folder = visible_folder();
    for cell in CELLS {
        let terminal = "[approval]\nterminal = true\n[limits]\ngrace_ms = 300";
        let scratch = Scratch::within(folder);
        let mut options = Options::new(cell.transport).config(terminal).on(&scratch);
        options.through = with_own_tmp(&scratch, cell.transport);
        if options.through.is_none() {
            println!(
                "only_root_and_what_was_asked_for_has_changed: TMPDIR alone is compared, /tmp cannot be replaced here"
            );
        }
        let mut server = options.spawn();
        let base = server.scratch.path().to_owned();
        std::fs::write(base.join("workspace/old.txt"), "old\n").unwrap();
        std::fs::create_dir_all(base.join("home/.config")).unwrap();
        std::fs::write(base.join("home/.config/keep"), "").unwrap();
        let watched = ["home", "tmp", "workspace"];
        let before = watched.map(|part| tree(&base.join(part)));
        let beside: Vec<_> = names(&base);

        let mut client = server.connect(cell.version);
        client.approve = Approve::Once;
        for (tool, arguments) in [
            ("file.read", json!({"path": "old.txt"})),
            ("file.write", json!({"path": "new.txt", "content": "new\n"})),
            ("file.write", json!({"path": "dry.txt", "content": "new\n", "dry_run": true})),
            ("file.write", json!({"path": "../home/no.txt", "content": "no\n"})),
            ("file.read", json!({"path": "missing.txt"})),
            ("shell.exec", json!({"command": "echo made > made.txt"})),
            ("shell.exec", json!({"command": "seq 100000", "max_bytes": 300})),
            ("shell.exec", json!({"command": "sleep 5", "timeout_ms": 100})),
            ("shell.exec", json!({"command": "exit 7", "stdin": "x"})),
            // These places are the run's own, and go with the session.
            (
                "shell.exec",
                json!({"command": "echo own > /tmp/own.txt; echo own > ~/own.txt; echo own > /run/own.txt"}),
            ),
            ("no.such", json!({})),
        ] {
            client.call(tool, arguments);
        }
        client.request("mcp.capabilities", json!({}));
        client.request("tools/list", json!({}));
        if cell.transport == Transport::Stdio {
            client.hang_up();
        } else {
            server.signal(rustix::process::Signal::TERM);
        }
        assert!(server.ended().success(), "{}", server.log());

        let after = watched.map(|part| tree(&base.join(part)));
        let at = client.at();
        assert_eq!(changed(&before[0], &after[0]), Vec::<String>::new(), "{at}: HOME");
        assert_eq!(changed(&before[1], &after[1]), Vec::<String>::new(), "{at}: /tmp and TMPDIR");
        assert_eq!(changed(&before[2], &after[2]), ["made.txt", "new.txt"], "{at}: the workspace");
        assert_eq!(names(&base), beside, "{at}: beside root");
        // What was kept for the session went with it; the log and the caches of the workspace stay.
        let root = tree(&base.join("root"));
        let left: Vec<String> = root
            .iter()
            .filter(|(path, _)| base.join("root").join(path).is_file())
            .map(|(path, _)| path.display().to_string())
            .collect();
        assert!(
            left.iter().all(|path| path.starts_with("audit/") || path.starts_with("homes/")),
            "{at}: left under root: {left:?}"
        );
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

/// Every byte of a list is paid for by a model, in every conversation.
#[test]
fn the_default_list_is_small() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let listed = client.request("tools/list", json!({}));
    // Each tool names the workspace; how long its path is here says nothing.
    let text = listed["result"]
        .to_string()
        .replace(server.workspace().to_str().unwrap(), "/home/somebody/a-project");
    let bytes = text.len();
    println!("{bytes} bytes for {} tools", listed["result"]["tools"].as_array().unwrap().len());
    assert!(bytes <= 24 << 10, "the list has grown to {bytes} bytes");
}
