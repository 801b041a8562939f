//! `ringfence upstream`: what an operator sees of servers, and how changes are accepted.

use std::process::{Command, Output};

use serde_json::{Value, json};

use super::{Gateway, listed, script};
use crate::support::{SESSIONS, Transport};

const HIDDEN: &str = "Reads.\u{e0049}\u{e0067}\u{e006e}\u{e006f}\u{e0072}\u{e0065}";

/// A server that reads its changes from the workspace.
fn gateway() -> Gateway {
    Gateway::new().stdio("pipe25", &["--definitions", "changes.json"])
}

fn change(gateway: &Gateway, changes: &Value) {
    let workspace = gateway.scratch.path().join("workspace");
    std::fs::create_dir_all(&workspace).unwrap();
    std::fs::write(workspace.join("changes.json"), changes.to_string()).unwrap();
}

/// Runs `ringfence upstream` on the files of the gateway.
fn upstream(gateway: &Gateway, args: &[&str]) -> Output {
    gateway.write_upstreams();
    let at = |name: &str| gateway.scratch.path().join(name).display().to_string();
    std::fs::create_dir_all(at("workspace")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
    command.arg("upstream").args(args).env_clear().env("PATH", "/usr/bin:/bin");
    command.env("HOME", at("home")).args(["--root", &at("root")]);
    if args[0] != "trust" {
        let file = gateway.folder().join("upstreams.json");
        command.args(["--workspace", &at("workspace"), "--upstreams", file.to_str().unwrap()]);
    }
    command.output().unwrap()
}

#[track_caller]
fn text(output: &Output) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[track_caller]
fn failure(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_change_is_shown_and_accepted() {
    let gateway = gateway();
    gateway.write_upstreams();
    gateway.accept(&gateway.locked);
    assert!(text(&upstream(&gateway, &["list"])).contains("tools accepted, direct"));
    assert!(text(&upstream(&gateway, &["diff", "pipe25"])).contains("exactly what is accepted"));
    change(&gateway, &json!({"echo": {"description": "Repeats\u{200b} the text, loudly."}}));
    let shown = text(&upstream(&gateway, &["diff", "pipe25"]));
    assert!(shown.contains("tool `echo` has changed (description)"), "{shown}");
    assert!(shown.contains("Repeats<U+200B> the text, loudly."), "{shown}");
    let all = text(&upstream(&gateway, &["list", "--connect", "--json"]));
    let all: Value = serde_json::from_str(&all).unwrap();
    assert_eq!(all["servers"][0]["state"]["changes"], 1, "{all}");
    // No one is there to be asked, and nothing has changed.
    let before = std::fs::read(gateway.lock_path()).unwrap();
    assert!(failure(&upstream(&gateway, &["accept", "pipe25"])).contains("--yes"));
    assert_eq!(std::fs::read(gateway.lock_path()).unwrap(), before);
    text(&upstream(&gateway, &["accept", "pipe25", "--yes"]));
    assert!(text(&upstream(&gateway, &["diff", "pipe25"])).contains("exactly what is accepted"));
    assert!(failure(&upstream(&gateway, &["diff", "pipe52"])).contains("Did you mean `pipe25`?"));
    assert!(gateway.processes().is_empty());
}

#[test]
fn a_dangerous_tool_is_neither_learned_nor_accepted_by_the_way() {
    let gateway = gateway().unlocked();
    change(&gateway, &json!({"echo": {"description": HIDDEN}}));
    let mut server = gateway.spawn(Transport::Http);
    let mut client = server.connect(SESSIONS);
    client.listen();
    super::wait_for_list(&mut client, |names| !names.is_empty());
    let names = listed(&mut client);
    assert!(names.iter().any(|name| name == "pipe25__write"), "{names:?}");
    assert!(!names.iter().any(|name| name == "pipe25__echo"), "{names:?}");
    let shown = text(&upstream(&gateway, &["accept", "pipe25", "--yes"]));
    assert!(shown.contains("DANGEROUS in `echo`"), "{shown}");
    let locked = std::fs::read_to_string(gateway.lock_path()).unwrap();
    assert!(!locked.contains("\"echo\""), "{locked}");
    text(&upstream(&gateway, &["accept", "pipe25", "--yes", "--with-findings"]));
    super::wait_for_list(&mut client, |names| names.iter().any(|name| name == "pipe25__echo"));
}

#[test]
fn a_file_in_a_project_shows_what_it_starts_before_it_is_trusted() {
    let gateway = Gateway::new();
    let workspace = gateway.scratch.path().join("workspace");
    std::fs::create_dir_all(&workspace).unwrap();
    let file = workspace.join("codex-toolloop.mcp.json");
    let script = script("server.py").display().to_string();
    let transport = json!({"type": "stdio", "command": "python3", "args": [script]});
    let servers = json!({"s": {"trust": "untrusted", "transport": transport}});
    std::fs::write(&file, json!({"servers": servers}).to_string()).unwrap();
    let path = file.display().to_string();
    assert!(failure(&upstream(&gateway, &["trust", &path])).contains("no one can be asked"));
    let shown = text(&upstream(&gateway, &["trust", &path, "--yes"]));
    assert!(shown.contains("runs `python3 ") && shown.contains("server.py"), "{shown}");
    assert!(shown.contains("exactly these contents"), "{shown}");
}
