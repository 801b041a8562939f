//! `ringfence upstream`: what an operator sees of servers, and how changes are accepted.

use std::process::{Command, Output};

use serde_json::{Value, json};

use super::{Gateway, listed, script};
use crate::support::server::{Scratch, audit, ringfence};
use crate::support::subset::assert_holds;
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

/// Its questions would read as if they were ours.
#[test]
fn a_server_with_our_name_is_refused() {
    let gateway = Gateway::new().stdio("Ringfence", &[]);
    let said = failure(&upstream(&gateway, &["list"]));
    assert!(said.contains("servers.Ringfence: this id is reserved"), "{said}");
    assert!(said.contains("Rename the server"), "{said}");
}

/// What is accepted must have been shown, or be said to be missing.
#[test]
fn nothing_of_a_new_server_is_left_out_unsaid() {
    let gateway = gateway().unlocked();
    let long = |end: &str| format!("{}{end}", "Reads a file. ".repeat(100));
    let schema = json!({"type": "object", "properties": {"text": {
        "type": "string", "description": long("End of the parameter."),
    }}});
    change(
        &gateway,
        &json!({
            "echo": {"description": long("End of the tool."), "inputSchema": schema},
            "big": {"description": "y".repeat(100_000)},
            "instructions": long("End of the instructions."),
        }),
    );
    for args in [["diff", "pipe25"].as_slice(), &["accept", "pipe25", "--yes"]] {
        let shown = text(&upstream(&gateway, args));
        for end in ["End of the tool.", "End of the parameter.", "End of the instructions."] {
            assert!(shown.contains(end), "{end} {args:?}: {shown}");
        }
        let is_cut = |line: &str| line.contains("more characters");
        assert_eq!(shown.lines().filter(|line| is_cut(line)).count(), 1, "{shown}");
    }
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
    let env = json!({"PYTHONSTARTUP": "./other\u{200b}\n.py"});
    let transport = json!({
        "type": "stdio", "command": "python3", "args": [script], "cwd": "sub", "env": env,
    });
    let servers = json!({"s": {"trust": "untrusted", "transport": transport}});
    std::fs::write(&file, json!({"servers": servers}).to_string()).unwrap();
    let path = file.display().to_string();
    assert!(failure(&upstream(&gateway, &["trust", &path])).contains("no one can be asked"));
    let shown = text(&upstream(&gateway, &["trust", &path, "--yes"]));
    assert!(shown.contains("runs `python3 ") && shown.contains("server.py"), "{shown}");
    let directory = format!("\n    directory: {}\n", workspace.join("sub").display());
    let variable = "\n    variable: PYTHONSTARTUP=./other<U+200B><U+000A>.py\n";
    assert!(shown.contains(&directory) && shown.contains(variable), "{shown}");
    assert!(shown.contains("exactly these contents"), "{shown}");
    let records = audit(&gateway.scratch).into_iter();
    let trusts: Vec<Value> = records.filter(|one| one["event"] == "upstream.trust").collect();
    assert_eq!(trusts.len(), 1, "a file that was only looked at is not trusted: {trusts:?}");
    assert_holds(json!({"file": path, "sha256": "*", "servers": ["s"]}), &trusts[0]);
}

/// Values of a schema reach the model like descriptions do, and a mark can hide arguments from whoever approves.
#[test]
fn a_review_shows_values_and_the_marks_that_hide_arguments() {
    for trust in ["trusted", "untrusted"] {
        let gateway = gateway().unlocked().edit("pipe25", |entry| entry["trust"] = json!(trust));
        let gateway = gateway.bundle("pipe25", "direct", json!({"allowTools": ["echo"]}));
        let schema = json!({"type": "object", "properties": {
            "text": {"type": "string", "enum": ["first choice"], "default": "the default"},
            "to": {"type": "string", "examples": ["an example"], "format": "password"},
            "deep": {"type": "object", "properties": {"body": {"writeOnly": true}}},
            "x\u{200b}y": {},
        }});
        let echo = json!({"inputSchema": schema, "_meta": {"vendor": {"note": "in the meta"}}});
        change(&gateway, &json!({ "echo": echo }));
        let shown = text(&upstream(&gateway, &["diff", "pipe25"]));
        for part in ["first choice", "the default", "an example", "in the meta", "x<U+200B>y"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let effect = match trust {
            "trusted" => "approvals do not show its value",
            _ => "approvals show its value, because the server is untrusted",
        };
        for mark in [
            format!(
                "inputSchema/properties/to: marked as secret (format \"password\"); {effect}\n"
            ),
            format!(
                "inputSchema/properties/deep/properties/body: marked as secret (writeOnly); {effect}\n"
            ),
        ] {
            assert!(shown.contains(&mark), "{mark}: {shown}");
        }
        assert_eq!(shown.matches("Repeats a text.").count(), 1, "{shown}");
    }
}

/// A long deletion must not leave out what takes its place.
#[test]
fn a_long_deletion_does_not_hide_what_is_new() {
    let gateway = gateway();
    let lines = |word: &str| format!("{word} line of a long text\n").repeat(1_500);
    let before = json!({"instructions": lines("old"), "identity": "scripted"});
    let mut locked = gateway.locked.clone();
    locked["pipe25"]["instructions"] = before["instructions"].clone();
    gateway.write_upstreams();
    gateway.accept(&locked);
    change(&gateway, &json!({"instructions": lines("new") + "End of the new text."}));
    let shown = text(&upstream(&gateway, &["diff", "pipe25"]));
    assert!(shown.contains("- old line") && shown.contains("+ new line"), "{shown}");
    let cuts: Vec<&str> = shown.lines().filter(|line| line.contains("more characters")).collect();
    assert_eq!(cuts.len(), 2, "each side says that it is cut: {cuts:?}");
    change(&gateway, &json!({"instructions": "Short and new."}));
    let shown = text(&upstream(&gateway, &["diff", "pipe25"]));
    assert!(shown.contains("+ Short and new."), "{shown}");
}

/// Every command on the page works with the files that it shows, up to the point where it would use a network.
#[test]
fn the_page_about_other_servers_agrees_with_itself() {
    let page = include_str!("../../../../../docs/gateway.md");
    let block = |kind: &str, part: &str| {
        let mut blocks = page.split("```").filter_map(|block| block.strip_prefix(kind));
        blocks.find(|block| block.contains(part)).unwrap_or_else(|| panic!("{kind} {part}"))
    };
    let scratch = Scratch::new();
    let folder = scratch.path().join("home/.config/ringfence");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("upstreams.json"), block("json\n", "\"servers\"")).unwrap();
    let settings = block("toml\n", "upstreams = ");
    let login = format!("upstreams = 'upstreams.json'\n{}", block("toml\n", "oauth_client_id"));
    let run = |args: &[&str]| {
        let mut command = ringfence(&scratch);
        command.args(args).arg("--root").arg(scratch.path().join("root"));
        command.env("PIP_INDEX_URL", "http://127.0.0.1:9/simple/").env("DOCS_CLIENT", "x");
        let output = command.output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    for config in [&login, settings] {
        std::fs::write(folder.join("config.toml"), config).unwrap();
        let checked = run(&["config", "check"]);
        assert!(checked.contains("config.toml: no errors"), "{checked}");
        assert!(checked.contains("upstreams.json: 2 servers"), "{checked}");
    }
    let listed = run(&["upstream", "list"]);
    assert!(listed.contains("docs  http   untrusted  nothing accepted yet, meta\n"), "{listed}");
    assert!(listed.contains("git   stdio  trusted  "), "{listed}");
    let installed = run(&["upstream", "install", "git"]);
    assert!(installed.contains("no one can be asked here"), "{installed}");
    let logins = run(&["auth", "status"]);
    assert!(logins.starts_with("docs  local  not logged in"), "{logins}");
}
