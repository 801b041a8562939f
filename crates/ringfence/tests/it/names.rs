//! Tool names in both spellings: which client is shown which, and that policy, trust and the audit log know one tool by
//! either.

use serde_json::{Value, json};

use crate::support::matrix::{eras, on_cell};
use crate::support::server::ringfence;
use crate::support::subset::assert_holds;
use crate::support::{Approve, Client, Options, SESSIONS, Server, Transport};

/// A client that names itself so, after its handshake; and what the handshake told it.
fn greet(server: &mut Server, version: &'static str, name: &str) -> (Client, Value) {
    let mut client = server.client(version);
    client.name = name.to_owned();
    let hello = client.shake_hands();
    (client, hello)
}

fn listed(client: &mut Client) -> Vec<Value> {
    client.request("tools/list", json!({}))["result"]["tools"].as_array().unwrap().clone()
}

fn names(tools: &[Value]) -> Vec<&str> {
    tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

/// Names as real clients were seen to send them.
#[test]
fn a_client_is_shown_names_that_it_can_use_and_told_the_others() {
    for cell in eras() {
        for (name, dots) in
            [("mcp", false), ("@langchain/mcp-adapters", false), ("codex-mcp-client", true)]
        {
            let mut server = Options::new(cell.transport).arg("--tools").arg("all").spawn();
            let (mut client, hello) = greet(&mut server, cell.version, name);
            let at = format!("{name} {}", client.at());
            let tools = listed(&mut client);
            for tool in &tools {
                let (spelled, own) =
                    (tool["name"].as_str().unwrap(), tool["_meta"]["dev.ringfence/name"].as_str());
                let own = own.unwrap_or(spelled);
                let expected = if dots { own.to_owned() } else { own.replace('.', "_") };
                assert_eq!(spelled, expected, "{at}");
                for title in [&tool["title"], &tool["annotations"]["title"]] {
                    let tells = title.as_str().unwrap().ends_with(&format!(" ({own})"));
                    assert_eq!(tells, spelled != own, "{at}: {title}");
                }
            }
            let spell =
                |dotted: &str| if dots { dotted.to_owned() } else { dotted.replace('.', "_") };
            // Whatever names a tool names it as the list does.
            let text = json!([tools, hello["instructions"]]).to_string();
            for other in ["file.read", "file.write", "shell.exec", "browser.navigate"] {
                let unspelled = text.matches(other).count();
                let own = text.matches(&format!("\"{other}\"")).count()
                    + text.matches(&format!("({other})")).count();
                assert_eq!(unspelled > own, dots, "{at}: {other} in {text}");
            }
            assert!(hello["instructions"].as_str().unwrap().contains(&spell("file.read")), "{at}");
            let known = client.request("mcp.capabilities", json!({}))["result"]["tools"].clone();
            assert!(
                known.as_array().unwrap().iter().any(|tool| tool["name"] == "file.read"),
                "{at}: the dotted name"
            );
            let missing = client.call("file.read", json!({"path": "absent"}));
            let hint = missing["result"]["structuredContent"]["error"]["hint"]
                .as_str()
                .unwrap()
                .to_owned();
            assert!(hint.contains(&format!("`{}`", spell("file.list"))), "{at}: {hint}");
        }
    }
}

/// A file may be called like a tool.
#[test]
fn names_of_files_in_a_hint_are_left_alone() {
    let mut server = Options::new(Transport::Stdio).spawn();
    std::fs::write(server.workspace().join("file.list"), "x").unwrap();
    let (mut client, _) = greet(&mut server, SESSIONS, "mcp");
    let message = client.call("file_read", json!({"path": "file.lis"}));
    let error = &message["result"]["structuredContent"]["error"];
    assert_eq!(
        (&error["hint"], &error["nearest"]),
        (&json!("Did you mean `file.list`?"), &json!(["file.list"]))
    );
}

#[test]
fn deny_and_allow_take_either_spelling() {
    for client_name in ["codex-mcp-client", "mcp"] {
        for spelling in ["file.read", "file_read"] {
            for (list, is_shown) in [("deny", false), ("allow", true)] {
                let mut server = Options::new(Transport::Stdio)
                    .config(&format!("[surface]\n{list} = [\"{spelling}\"]"))
                    .spawn();
                let (mut client, _) = greet(&mut server, SESSIONS, client_name);
                let tools = listed(&mut client);
                let shown =
                    names(&tools).iter().any(|name| ["file.read", "file_read"].contains(name));
                assert_eq!(shown, is_shown, "{list} {spelling}: {:?}", names(&tools));
                assert_eq!(tools.len() == 1, is_shown, "{list} {spelling}");
                std::fs::write(server.workspace().join("a"), "text").unwrap();
                for called in ["file.read", "file_read"] {
                    let message = client.call(called, json!({"path": "a"}));
                    match is_shown {
                        true => assert_eq!(message["result"]["isError"], false, "{message:#}"),
                        false => assert_holds(
                            json!({"data": {"kind": "unknown_tool"}}),
                            &message["error"],
                        ),
                    }
                }
            }
        }
    }
}

/// An operator who wants to be asked about one tool is asked, however it is written and called.
#[test]
fn own_tools_takes_either_spelling() {
    for spelling in ["file.read", "file_read", "file_*"] {
        let mut server = Options::new(Transport::Stdio)
            .config(&format!("[approval]\nown_tools = [\"{spelling}\"]"))
            .spawn();
        std::fs::write(server.workspace().join("a"), "text").unwrap();
        let (mut client, _) = greet(&mut server, SESSIONS, "mcp");
        client.approve = Approve::Decline;
        for (asked, called) in ["file.read", "file_read"].into_iter().enumerate() {
            let message = client.call(called, json!({"path": "a"}));
            assert_eq!(
                message["result"]["structuredContent"]["error"]["kind"], "approval_denied",
                "{message:#}"
            );
            assert_eq!(client.questions.len(), asked + 1, "{spelling} {called}");
        }
        let message = client.call("shell_exec", json!({"command": "true"}));
        assert_eq!(message["result"]["isError"], false, "{message:#}");
        let read =
            listed(&mut client).into_iter().find(|tool| tool["name"] == "file_read").unwrap();
        assert_eq!(read["_meta"]["dev.ringfence/requires_approval"], true, "{read:#}");
    }
}

/// Trust is for the tool, and the question names it as the operator knows it.
#[test]
fn trust_is_for_a_tool_in_either_spelling() {
    for cell in eras() {
        on_cell(
            cell,
            |options| options.unfenced(),
            |_, client| {
                client.approve = Approve::Session;
                client.call("shell_exec", json!({"command": "true"}));
                assert!(client.questions[0]["message"].as_str().unwrap().contains("`shell.exec`"));
                client.approve = Approve::Decline;
                let message = client.call("shell.exec", json!({"command": "true"}));
                assert_eq!(message["result"]["isError"], false, "{message:#}");
                assert_eq!(client.questions.len(), 1);
            },
        );
    }
}

/// Also of a call that was refused before anything was known of it but its name.
#[test]
fn the_record_has_the_dotted_name() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let (mut client, _) = greet(&mut server, SESSIONS, "mcp");
    std::fs::write(server.workspace().join("a"), "text").unwrap();
    client.call("file_read", json!({"path": "a"}));
    client.call("file_read", json!({"path": "../a"}));
    client.call("file_read", json!({"no_such_argument": 1}));
    let stops = server.stops(3);
    assert!(stops.iter().all(|stop| stop["tool"] == "file.read"), "{stops:#?}");
    for spelling in ["file.read", "file_read"] {
        let mut command = ringfence(&server.scratch);
        let output = command
            .args(["audit", "--json", "--tool", spelling, "--root"])
            .arg(server.root())
            .output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        assert_eq!(
            text.lines().filter(|line| line.contains("\"call.stop\"")).count(),
            3,
            "{spelling}: {text}"
        );
    }
}
