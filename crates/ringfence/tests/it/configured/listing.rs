//! What is told about entries, and which of them are there.

use serde_json::{Value, json};

use super::{error_of, listed, names, with};
use crate::support::subset::assert_holds;

#[test]
fn the_list_and_the_capabilities_tell_what_an_entry_is() {
    let (server, mut client) = with(
        r#"
[mcp.lint]
command = "true"
display_name = "Lint the project"
description = "Looks for mistakes."
version = "2.1"
side_effects = ["filesystem_write"]
timeout_ms = 5000
streaming = true
cwd = "src"
requires_approval = false

[mcp.lint.input_schema]
type = "object"
"$comment" = "word for word"
zebra = 1
properties = { path = { type = "string", "x-ours" = [1, { a = true }] } }
anyOf = [{ required = ["path"] }, { maxProperties = 0 }]
"#,
    );
    let tool = listed(&mut client).into_iter().find(|tool| tool["name"] == "lint").unwrap();
    assert_eq!(tool["title"], "Lint the project");
    assert_eq!(tool["description"], "Looks for mistakes.");
    assert_eq!(
        tool["inputSchema"],
        json!({"type": "object", "$comment": "word for word", "zebra": 1,
            "properties": {"path": {"type": "string", "x-ours": [1, {"a": true}]}},
            "anyOf": [{"required": ["path"]}, {"maxProperties": 0}]})
    );
    let cwd = server.workspace().canonicalize().unwrap().join("src").display().to_string();
    assert_holds(
        json!({
            "dev.ringfence/version": "2.1", "dev.ringfence/permission": {"allow": true, "scope": "exec"},
            "dev.ringfence/requires_approval": true, "dev.ringfence/sandbox_profile": "default",
            "dev.ringfence/default_timeout_ms": 5000, "dev.ringfence/allows_streaming": true,
            "dev.ringfence/side_effects": ["exec", "filesystem_write"],
            "dev.ringfence/session_defaults": {"cwd": cwd, "overrides": false},
        }),
        &tool["_meta"],
    );
    let all = client.request("mcp.capabilities", json!({}));
    let about = all["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .find(|tool| tool["name"] == "lint")
        .unwrap()
        .clone();
    assert_holds(
        json!({
            "display_name": "Lint the project", "description": "Looks for mistakes.", "version": "2.1",
            "requires_approval": true, "sandbox_profile": "default", "default_timeout_ms": 5000,
            "allows_streaming": true, "side_effects": ["exec", "filesystem_write"],
            "session_defaults": {"cwd": cwd, "env": {}, "overrides": false},
        }),
        &about,
    );
}

#[test]
fn deny_wins_over_allow_and_what_is_denied_does_not_exist() {
    let (_server, mut client) = with(
        "[surface]\nallow = [\"file.*\", \"d*\"]\ndeny = [\"*.write\", \"deploy\"]\n\
         [mcp.deploy]\ncommand = \"true\"\n[mcp.diff]\ncommand = \"true\"\n[mcp.other]\ncommand = \"true\"",
    );
    assert_eq!(
        names(&mut client),
        ["file.read", "file.list", "file.search", "file.replace", "diff"]
    );
    for tool in ["deploy", "other", "file.write", "file_write", "shell.exec", "shell"] {
        let message = client.call(tool, json!({}));
        assert_eq!(message["error"]["data"]["kind"], "unknown_tool", "{tool}: {message:#}");
    }
    let all = client.request("mcp.capabilities", json!({}))["result"].to_string();
    assert!(!all.contains("\"deploy\"") && !all.contains("\"other\""), "{all}");
}

#[test]
fn a_tool_that_is_only_callable_is_listed_when_it_is_named() {
    let (_server, mut client) = with("[surface]\nallow = [\"*\", \"shell\"]");
    assert!(names(&mut client).contains(&"shell".to_owned()));
}

#[test]
fn an_entry_that_is_wrong_is_not_there_and_the_others_are() {
    let (server, mut client) = with(
        "[mcp.good]\ncommand = \"true\"\n[mcp.bad]\ncommand = \"true\"\ntimeout = 5\n[mcp.worse]\nargs = [\"{x}\"]\ncommand = \"true\"\n\
         [mcp.file_read]\ncommand = \"true\"\n[mcp.domain]\ncommand = \"true\"\nallow_domains = [\"not a name\"]",
    );
    let names = names(&mut client);
    assert!(names.contains(&"good".to_owned()));
    for bad in ["bad", "worse", "file_read", "domain"] {
        assert!(!names.contains(&bad.to_owned()), "{bad}");
    }
    let log = server.log();
    for part in [
        "config.toml:5:1: there is no key `timeout`",
        "`{x}` is not a property",
        "`file_read` is a built-in tool",
        "is not a DNS name",
    ] {
        assert!(log.contains(part), "{part} is not in:\n{log}");
    }
}

#[test]
fn two_entries_of_one_name_are_refused_with_the_line() {
    let refused = crate::support::Options::new(crate::support::Transport::Stdio)
        .config("[mcp.a]\ncommand = \"true\"\n[mcp.a]\ncommand = \"false\"")
        .refuse();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("config.toml:3:"), "{said}");
}

#[test]
fn an_entry_outside_the_allowed_directories_is_not_there() {
    let (_server, mut client) = with(
        "[surface]\ncwd = [\"src\"]\n[mcp.in]\ncommand = \"true\"\ncwd = \"src/a\"\n[mcp.at]\ncommand = \"true\"\ncwd = \"src\"\n\
         [mcp.near]\ncommand = \"true\"\ncwd = \"srcs\"\n[mcp.top]\ncommand = \"true\"\n[mcp.away]\ncommand = \"true\"\ncwd = \"/etc\"",
    );
    let names = names(&mut client);
    let theirs: Vec<&String> = names.iter().filter(|name| !name.contains('.')).collect();
    assert_eq!(theirs, ["in", "at"]);
    assert_eq!(client.call("top", json!({}))["error"]["data"]["kind"], "unknown_tool");
}

#[test]
fn a_path_that_the_operator_does_not_allow_is_refused() {
    let schema = |only: &str| {
        format!(
            "input_schema = '{{\"type\": \"object\", \"required\": [\"p\"], \"properties\": {{\"p\": {{\"type\": \"string\", \"format\": \"path\"{only}}}}}}}'"
        )
    };
    let (server, mut client) = with(&format!(
        "[surface]\narguments = [\"src\"]\n\
         [mcp.cat]\ncommand = \"cat\"\nargs = [\"--\", \"{{p}}\"]\nrequires_approval = false\n{}\n\
         [mcp.never]\ncommand = \"cat\"\n{}\n[mcp.ever]\ncommand = \"cat\"\n{}",
        schema(""),
        schema(", \"enum\": [\"/etc/passwd\", \"../x\"]"),
        schema(", \"const\": \"src/a\""),
    ));
    let names = names(&mut client);
    assert!(
        names.contains(&"ever".to_owned()) && !names.contains(&"never".to_owned()),
        "{names:?}"
    );
    let src = server.workspace().join("src");
    std::fs::create_dir(&src).unwrap();
    std::fs::write(src.join("a"), "inside\n").unwrap();
    std::fs::write(server.workspace().join("b"), "outside\n").unwrap();
    std::os::unix::fs::symlink("../b", src.join("link")).unwrap();
    assert_eq!(super::said(&client.call("cat", json!({"p": "src/a"}))), "inside\n");
    for path in ["b", "src/../b", "/etc/passwd", "src/link", "../x"] {
        let message = client.call("cat", json!({"p": path}));
        assert_eq!(error_of(&message)["reason"], "surface_path", "{path}: {message:#}");
    }
}

#[test]
fn an_entry_for_another_system_says_so() {
    let (_server, mut client) =
        with("[mcp.mac]\ncommand = \"true\"\nsandbox_profile = \"seatbelt\"");
    let tool = listed(&mut client).into_iter().find(|tool| tool["name"] == "mac").unwrap();
    let permission: &Value = &tool["_meta"]["dev.ringfence/permission"];
    assert_eq!(permission["allow"], cfg!(target_os = "macos"));
    assert!(permission["reason"].as_str().unwrap().contains("macOS"));
    assert_eq!(error_of(&client.call("mac", json!({})))["kind"], "unavailable");
}
