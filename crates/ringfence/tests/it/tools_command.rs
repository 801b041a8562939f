//! `ringfence tools`: what a server offers, for people.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::screen::{at_screen, wide_lines};
use crate::support::server::{Scratch, ringfence};
use crate::support::token::{self, SECRET};
use crate::support::{Options, SESSIONS, Transport};

fn tools(scratch: &Scratch, args: &[&str]) -> Command {
    let mut command = ringfence(scratch);
    command.arg("tools").args(args);
    command
}

fn local(scratch: &Scratch, args: &[&str]) -> Command {
    let mut command = tools(scratch, args);
    command.arg("--root").arg(scratch.path().join("root"));
    command
}

#[track_caller]
fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_list_is_that_of_a_client() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let list = server.connect(SESSIONS).request("tools/list", json!({}));
    let mut names: Vec<&str> = list["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    let shown = text(&local(&server.scratch, &[]).output().unwrap());
    let first = |line: &str| line.split_whitespace().next().unwrap().to_owned();
    assert_eq!(shown.lines().map(first).collect::<Vec<_>>()[1..], names, "{shown}");
    assert!(shown.starts_with("TOOL"), "{shown}");
    let (code, screen) = at_screen(&local(&server.scratch, &[]));
    assert!(code == 0 && screen.contains("file.read"), "{screen}");
    assert_eq!(wide_lines(&screen), [""; 0]);
    let asked: Value =
        serde_json::from_slice(&local(&server.scratch, &["--json"]).output().unwrap().stdout)
            .unwrap();
    assert_eq!(asked.as_array().unwrap().len(), names.len());
    let all = text(&local(&server.scratch, &["--tools", "all"]).output().unwrap());
    assert!(all.lines().count() > shown.lines().count(), "{all}");
    let shell = text(&local(&server.scratch, &["--tools", "shell"]).output().unwrap());
    assert_eq!(shell.lines().skip(1).map(first).collect::<Vec<_>>(), ["shell"]);
}

#[test]
fn the_list_says_what_asks() {
    let scratch = Scratch::new();
    let config = scratch.path().join("config.toml");
    std::fs::write(&config, "[approval]\nown_tools = [\"file.write\"]\n").unwrap();
    let shown = text(&local(&scratch, &["--config", config.to_str().unwrap()]).output().unwrap());
    let asks = |tool: &str| {
        let line = shown.lines().find(|line| line.starts_with(&format!("{tool} "))).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!((asks("file.write").as_str(), asks("file.read").as_str()), ("yes", "no"), "{shown}");
}

#[test]
fn one_tool_is_explained_and_a_slip_is_recognised() {
    let scratch = Scratch::new();
    for name in ["file.search", "file_search"] {
        let shown = text(&local(&scratch, &[name]).output().unwrap());
        let pattern = shown.lines().find(|line| line.trim_start().starts_with("pattern ")).unwrap();
        assert!(pattern.contains("string, required"), "{pattern}");
        for part in [
            "Approval: not needed",
            "\nArguments\n",
            "\nResult",
            "ringfence call file.search pattern=",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let (_, screen) = at_screen(&local(&scratch, &[name]));
        assert_eq!(wide_lines(&screen), [""; 0]);
    }
    let one: Value = serde_json::from_slice(
        &local(&scratch, &["file.search", "--json"]).output().unwrap().stdout,
    )
    .unwrap();
    assert_eq!(one["name"], "file.search");
    let slip = local(&scratch, &["file.serch"]).output().unwrap();
    let said = String::from_utf8_lossy(&slip.stderr);
    assert!(slip.status.code() == Some(65) && said.contains("`file.search`"), "{said}");
}

#[test]
fn a_running_server_is_asked_with_a_token() {
    let options = Options::new(Transport::Http).env("MCP_AUTH_ENABLED", "true");
    let server = options.env("MCP_AUTH_JWT_SECRET", SECRET).spawn();
    let url = format!("http://{}", server.address());
    let mut command = tools(&server.scratch, &["--url", &url]);
    let refused = command.output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(77) && said.contains("RINGFENCE_TOKEN"), "{said}");
    let shown = text(&command.env("RINGFENCE_TOKEN", token::of("ann")).output().unwrap());
    assert!(shown.contains("file.read"), "{shown}");
    let bad = tools(&server.scratch, &["--url", "nonsense"]).output().unwrap();
    assert_eq!(bad.status.code(), Some(64));
    let both = tools(&server.scratch, &["--url", &url, "--workspace", "."]).output().unwrap();
    assert_eq!(both.status.code(), Some(2));
    let gone = tools(&server.scratch, &["--url", "http://127.0.0.1:9"]).output().unwrap();
    assert_eq!(gone.status.code(), Some(69), "{gone:?}");
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let scratch = Scratch::new();
    let config = scratch.path().join("config.toml");
    std::fs::write(&config, "tools = \"everything\"\n").unwrap();
    let output = local(&scratch, &["--config", config.to_str().unwrap()]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("config.toml"), "{said}");
}
