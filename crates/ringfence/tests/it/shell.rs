//! The `shell` tool: what codex-shell-tool-mcp had, on every transport and in both eras.

use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::matrix::{eras, on_cell};
use crate::support::subset::assert_holds;
use crate::support::{Approve, Client, Options, SESSIONS, Server, Transport, on_every_transport};

/// A call in the workspace: the whole result, and the JSON in its one text block.
fn shell(server: &Server, client: &mut Client, mut arguments: Value) -> (Value, Value) {
    if arguments.get("workdir").is_none() {
        arguments["workdir"] = json!(server.workspace());
    }
    let result = client.call("shell", arguments)["result"].clone();
    let said = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result:#}"));
    let said = serde_json::from_str(said).unwrap_or(Value::Null);
    (result, said)
}

#[test]
fn an_agent_that_must_see_one_shell_sees_one_with_the_known_schema() {
    on_every_transport(
        |options| options.arg("--tools").arg("shell"),
        |server, client| {
            let listed = client.request("tools/list", json!({}))["result"]["tools"].clone();
            assert_eq!(listed.as_array().unwrap().len(), 1);
            assert_eq!(listed[0]["name"], "shell");
            assert!(listed[0].get("outputSchema").is_none());
            let start = "Runs a shell command and returns its output. You MUST provide the workdir as an absolute path.";
            assert!(listed[0]["description"].as_str().unwrap().starts_with(start));
            assert_eq!(
                listed[0]["inputSchema"],
                json!({
                    "$schema": "https://json-schema.org/draft/2020-12/schema",
                    "title": "ExecParams",
                    "type": "object",
                    "properties": {
                        "command": {"description": "The bash string to execute.", "type": "string"},
                        "login": {"description": "Launch Bash with -lc instead of -c: defaults to true.", "nullable": true, "type": "boolean"},
                        "timeout_ms": {"description": "The timeout for the command in milliseconds.", "format": "uint64", "minimum": 0, "nullable": true, "type": "integer"},
                        "workdir": {"description": "The working directory to execute the command in. Must be an absolute path.", "type": "string"},
                    },
                    "required": ["command", "workdir"],
                })
            );
            for other in ["shell.exec", "file.read", "file_write"] {
                let answer = client.call(other, json!({"path": "x", "command": "true"}));
                assert_holds(
                    json!({"code": -32602, "data": {"kind": "unknown_tool"}}),
                    &answer["error"],
                );
            }
            let (_, said) = shell(server, client, json!({"command": "echo here"}));
            assert_holds(json!({"exit_code": 0, "output": "here\n", "timed_out": false}), &said);
            let known = client.request("mcp.capabilities", json!({}))["result"]["tools"].clone();
            assert_eq!(known.as_array().unwrap().len(), 1);
        },
    );
}

#[test]
fn the_words_of_the_handshake_name_what_is_listed_and_nothing_else() {
    for (tools, has, has_not) in [
        ("shell", " shell (", "file"),
        ("core", "file.read", " shell ("),
        ("all", " shell (", "never"),
    ] {
        let mut server = Options::new(Transport::Stdio).arg("--tools").arg(tools).spawn();
        let mut client = server.client(SESSIONS);
        let hello = client.shake_hands();
        let words = hello["instructions"].as_str().unwrap();
        assert!(words.contains(has) && !words.contains(has_not), "{tools}: {words}");
    }
}

/// Flag over environment over file over default.
#[test]
fn the_set_of_tools_is_chosen_by_flag_environment_and_file() {
    let listed = |options: Options| {
        let mut server = options.spawn();
        let mut client = server.connect(SESSIONS);
        let tools = client.request("tools/list", json!({}))["result"]["tools"].clone();
        tools
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| tool["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let file = || Options::new(Transport::Stdio).config("tools = \"shell\"");
    assert_eq!(listed(file()), ["shell"]);
    assert!(listed(file().env("RINGFENCE_TOOLS", "all")).contains(&"shell.exec".to_owned()));
    assert!(
        !listed(file().env("RINGFENCE_TOOLS", "all").arg("--tools").arg("core"))
            .contains(&"shell".to_owned())
    );
    let refused = Options::new(Transport::Stdio).env("RINGFENCE_TOOLS", "shel").refuse();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("RINGFENCE_TOOLS") && said.contains("`shell`"), "{said}");
}

#[test]
fn a_result_is_one_text_of_json_and_a_failed_command_is_one_too() {
    for cell in eras() {
        on_cell(
            cell,
            |options| options,
            |server, client| {
                let (result, said) =
                    shell(server, client, json!({"command": "echo hi; echo there >&2; exit 3"}));
                assert_eq!(result["isError"], false);
                assert!(result.get("structuredContent").is_none_or(Value::is_null), "{result:#}");
                assert_eq!(result["content"].as_array().unwrap().len(), 1);
                assert_holds(
                    json!({"exit_code": 3, "output": "hi\nthere\n", "timed_out": false}),
                    &said,
                );
                let keys: Vec<&String> = said.as_object().unwrap().keys().collect();
                assert_eq!(keys.len(), 4, "{keys:?}");
                assert!(said["duration"]["secs"].is_u64() && said["duration"]["nanos"].is_u64());
                assert_eq!(
                    shell(server, client, json!({"command": "kill -9 $$"})).1["exit_code"],
                    137
                );
            },
        );
    }
}

/// Standard output and standard error go into one pipe, so what was said first stands first.
#[test]
fn both_streams_are_one_in_their_true_order() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let script = "for i in $(seq 200); do echo out $i; echo err $i >&2; done";
    let (_, said) = shell(&server, &mut client, json!({"command": script}));
    let expected: String = (1..=200).map(|i| format!("out {i}\nerr {i}\n")).collect();
    assert_eq!(said["output"], expected);
}

#[test]
fn a_command_that_runs_out_of_time_says_what_it_had_said() {
    for cell in eras() {
        on_cell(
            cell,
            |options| options.config("[limits]\ngrace_ms = 200"),
            |server, client| {
                let begun = Instant::now();
                let (result, said) = shell(
                    server,
                    client,
                    json!({"command": "echo begun; sleep 60", "timeout_ms": 300}),
                );
                assert_eq!(result["isError"], false, "{result:#}");
                assert_holds(
                    json!({"exit_code": 124, "output": "begun\n", "timed_out": true}),
                    &said,
                );
                assert!(begun.elapsed() < Duration::from_secs(10));
            },
        );
    }
}

#[test]
fn arguments_that_cannot_be_used_are_explained() {
    on_every_transport(
        |options| options,
        |server, client| {
            let gone = server.workspace().join("gone");
            for (arguments, message) in [
                (json!({"command": "true", "workdir": "."}), "~is not an absolute path"),
                (json!({"command": "true", "workdir": gone}), "~does not exist"),
                (json!({"command": "true"}), "~`workdir` is missing"),
                (json!({"workdir": "/"}), "~`command` is missing"),
            ] {
                let result = client.call("shell", arguments)["result"].clone();
                assert_eq!(result["isError"], true);
                assert_holds(
                    json!({"kind": "invalid_arguments", "message": message, "hint": "*"}),
                    &result["structuredContent"]["error"],
                );
            }
            let outside =
                client.call("shell", json!({"command": "true", "workdir": "/etc"}))["result"]
                    .clone();
            assert_holds(
                json!({"kind": "permission_denied", "reason": "outside_workspace"}),
                &outside["structuredContent"]["error"],
            );
        },
    );
}

#[test]
fn a_login_shell_is_the_default_and_the_workdir_is_where_it_runs() {
    let mut server = Options::new(Transport::Stdio).spawn();
    std::fs::create_dir_all(server.workspace().join("sub")).unwrap();
    let mut client = server.connect(SESSIONS);
    let script = "shopt -q login_shell && echo login; pwd";
    let sub = server.workspace().join("sub");
    for (login, first) in [(json!(null), "login\n"), (json!(true), "login\n"), (json!(false), "")] {
        let (_, said) =
            shell(&server, &mut client, json!({"command": script, "login": login, "workdir": sub}));
        assert_eq!(said["output"], format!("{first}{}\n", sub.display()));
    }
}

#[test]
fn long_output_of_shell_is_cut_and_read_on() {
    for cell in eras() {
        on_cell(
            cell,
            |options| options,
            |server, client| {
                let (result, said) = shell(server, client, json!({"command": "seq 20000"}));
                let output = said["output"].as_str().unwrap();
                assert!(
                    output.len() < 30_000
                        && output.starts_with("1\n2\n")
                        && output.ends_with("20000\n"),
                    "{result:#}"
                );
                let handle =
                    output.split("the whole is ").nth(1).unwrap().split(']').next().unwrap();
                let rest =
                    client.call("file.read", json!({"path": handle, "offset": 10_000, "limit": 1}))
                        ["result"]
                        .clone();
                assert!(
                    rest["content"][0]["text"].as_str().unwrap().starts_with("10000\n"),
                    "{rest:#}"
                );
            },
        );
    }
}

#[test]
fn shell_is_held_to_the_clients_sandbox_and_says_so_beside_the_result() {
    for cell in eras() {
        on_cell(
            cell,
            |options| options.arg("--tools").arg("shell"),
            |server, client| {
                let meta = json!({"codex/sandbox-state": {"sandboxPolicy": {"type": "read-only"}, "sandboxCwd": server.workspace()}});
                let arguments = json!({"command": "touch made; echo $?", "workdir": server.workspace(), "login": false});
                let id = client.start(
                    "tools/call",
                    json!({"name": "shell", "arguments": arguments, "_meta": meta}),
                );
                let result = client.finish(id, "shell", &arguments)["result"].clone();
                assert!(
                    result["content"][0]["text"]
                        .as_str()
                        .unwrap()
                        .contains("Read-only file system"),
                    "{result:#}"
                );
                assert_holds(
                    json!({"mode": "read-only", "workspace": "read", "network": "off"}),
                    &result["_meta"]["dev.ringfence/client_sandbox"],
                );
                assert!(!server.workspace().join("made").exists());
            },
        );
    }
}

/// Without a fence there is nothing to hold a command to; whoever is asked is told.
#[test]
fn without_a_fence_the_question_says_that_the_clients_sandbox_is_not_kept() {
    let mut server = Options::new(Transport::Stdio).unfenced().spawn();
    let mut client = server.connect(SESSIONS);
    let meta = json!({"codex/sandbox-state": {"sandboxPolicy": {"type": "read-only"}}});
    let arguments = json!({"command": "true", "workdir": server.workspace()});
    let id =
        client.start("tools/call", json!({"name": "shell", "arguments": arguments, "_meta": meta}));
    assert_eq!(client.finish(id, "shell", &arguments)["result"]["isError"], false);
    assert!(
        client.questions[0]["message"]
            .as_str()
            .unwrap()
            .contains("without a sandbox, the client's own included")
    );
}

/// Between the question and the run the directory is made a link to another one.
#[test]
fn an_approved_directory_that_was_swapped_meanwhile_is_not_used() {
    let mut server = Options::new(Transport::Stdio).unfenced().spawn();
    let mut client = server.connect(SESSIONS);
    let workspace = server.workspace();
    for folder in ["approved", "other"] {
        std::fs::create_dir(workspace.join(folder)).unwrap();
    }
    let calls = [
        ("shell.exec", json!({"command": "touch ran", "cwd": "approved"})),
        ("shell", json!({"command": "touch ran", "workdir": workspace.join("approved")})),
        ("code.exec", json!({"language": "bash", "code": "touch ran", "cwd": "approved"})),
    ];
    client.approve = Approve::Never;
    for (tool, arguments) in calls {
        let id = client.start("tools/call", json!({"name": tool, "arguments": arguments}));
        let (question, _) = client.wait_question();
        std::fs::rename(workspace.join("approved"), workspace.join("old")).unwrap();
        symlink("other", workspace.join("approved")).unwrap();
        client.reply(&question, Approve::Once.answer().unwrap());
        let message = client.wait(&id);
        assert!(message.to_string().contains("cwd_changed"), "{tool}: {message:#}");
        for folder in ["old", "other"] {
            assert!(!workspace.join(folder).join("ran").exists(), "{tool} in {folder}");
        }
        std::fs::remove_file(workspace.join("approved")).unwrap();
        std::fs::rename(workspace.join("old"), workspace.join("approved")).unwrap();
    }
}
