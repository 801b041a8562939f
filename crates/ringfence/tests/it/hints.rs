//! What a failed call says about the limit that it likely met, and which key opens it.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::support::subset::assert_holds;
use crate::support::{Client, Options, SESSIONS, Server, Transport, on_every_transport};

const LOOKUP: &str = "getent ahosts wanted.example.com || python3 -c 'import socket; socket.getaddrinfo(\"wanted.example.com\", 443)'";

/// The structured result of a command.
#[track_caller]
fn run(client: &mut Client, command: &str) -> Value {
    client.call("shell.exec", json!({"command": command}))["result"]["structuredContent"].clone()
}

#[track_caller]
fn assert_hint(result: &Value, parts: &[&str]) {
    let hint = result["hint"].as_str().unwrap_or_else(|| panic!("no hint: {result:#}"));
    assert!(hint.contains("Likely"), "{hint}");
    for part in parts {
        assert!(hint.contains(part), "{part:?} is not in {hint:?}");
    }
}

#[test]
fn a_wanted_host_is_on_record_and_in_the_hint_while_the_network_is_off() {
    on_every_transport(
        |options| options,
        |server, client| {
            let result = run(client, LOOKUP);
            assert_hint(&result, &["wanted.example.com", "allow_domains", "[sandbox]"]);
            let wanted = json!({"kind": "network", "name": "wanted.example.com", "count": "*"});
            let denials = result["sandbox"]["denials"].as_array().unwrap();
            assert_eq!(denials.len(), 1, "{denials:?}");
            assert_holds(wanted.clone(), &denials[0]);
            assert_holds(wanted, &server.stops(1)[0]["denials"][0]);
        },
    );
}

#[test]
fn an_address_without_a_name_is_on_record_too() {
    let (_server, mut client) = with("");
    let result = run(&mut client, "exec 3<>/dev/tcp/192.0.2.7/5432");
    assert_hint(&result, &["192.0.2.7:5432", "allow_addresses"]);
    assert_holds(
        json!([{"kind": "network", "name": "192.0.2.7:5432"}]),
        &result["sandbox"]["denials"],
    );
    let six = run(&mut client, "exec 3<>/dev/tcp/2001:db8::7/443");
    assert_holds(
        json!([{"kind": "network", "name": "[2001:db8::7]:443"}]),
        &six["sandbox"]["denials"],
    );
}

#[test]
fn each_of_several_runs_has_its_own_record_of_names() {
    let (_server, mut client) = with("");
    let arguments = |name: &str| json!({"command": format!("touch {name}; until [ -e one ] && [ -e two ]; do sleep 0.01; done; getent hosts {name}.example.com")});
    let ids = ["one", "two"].map(|name| (name, client.start_call("shell.exec", &arguments(name))));
    for (name, id) in ids {
        let result = client.wait(&id)["result"]["structuredContent"].clone();
        let names: Vec<&str> = result["sandbox"]["denials"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|denial| denial["name"].as_str())
            .collect();
        assert_eq!(names, [format!("{name}.example.com")], "{result:#}");
    }
}

/// Programs look these up without meaning to reach anything.
#[test]
fn a_lookup_of_the_machine_itself_is_no_denial() {
    let (_server, mut client) = with("");
    let result = run(
        &mut client,
        "getent hosts localhost; getent hosts \"$(hostname)\"; getent hosts 127.0.0.9; false",
    );
    assert_holds(json!({"denials": []}), &result["sandbox"]);
    assert_eq!(result["hint"], Value::Null);
}

#[test]
fn a_name_that_bypasses_the_proxy_is_on_record_with_the_names_it_refused() {
    let (_server, mut client) = with("[sandbox]\nallow_domains = [\"allowed.example.com\"]");
    let result = run(&mut client, &format!("{LOOKUP}; curl -sS https://refused.example.com"));
    assert_hint(
        &result,
        &["HTTPS_PROXY", "wanted.example.com", "refused.example.com", "[sandbox]"],
    );
}

#[test]
fn a_read_only_place_is_explained_by_who_made_it_so() {
    let config = "[mcp.look]\ncommand = \"touch\"\nargs = [\"x\"]\nrequires_approval = false\n";
    let (_server, mut client) = with(config);
    assert_hint(&run(&mut client, "touch /usr/x"), &["`writable` under [sandbox]"]);
    let look = client.call("look", json!({}))["result"]["structuredContent"].clone();
    assert_hint(&look, &["filesystem_write", "[mcp.look]"]);
    let code =
        client.call("code.exec", json!({"language": "python", "code": "open('/usr/x', 'w')"}));
    let code: Value =
        serde_json::from_str(code["result"]["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_hint(&code, &["`writable` under [sandbox]"]);
    // In a shell that stays, too.
    let opened = client.call("shell.exec", json!({"command": "true", "session": "new"}))["result"]
        ["structuredContent"]
        .clone();
    let arguments = json!({"command": "touch /usr/x", "session": opened["session"]});
    assert_hint(
        &client.call("shell.exec", arguments)["result"]["structuredContent"],
        &["`writable` under [sandbox]"],
    );
}

#[test]
fn a_root_that_the_client_asked_for_and_did_not_get_is_named() {
    let (_server, mut client) = with("");
    let state = json!({"sandboxPolicy": {"type": "workspace-write", "writable_roots": ["/srv/asked-for"], "network_access": false}});
    let id = client.start(
        "tools/call",
        json!({"name": "shell.exec", "arguments": {"command": "touch /usr/x"}, "_meta": {"codex/sandbox-state-meta": state}}),
    );
    let result = client.wait(&id)["result"].clone();
    assert_hint(
        &result["structuredContent"],
        &["/srv/asked-for", "`writable = [\"/srv/asked-for\"]`"],
    );
}

#[test]
fn a_refused_connection_names_the_sandboxs_own_localhost() {
    let (_server, mut client) = with("");
    assert_hint(
        &run(&mut client, "exec 3<>/dev/tcp/127.0.0.1/5432"),
        &["localhost", "allow_addresses"],
    );
    // A command that succeeds needs no hint, whatever it says.
    assert_eq!(run(&mut client, "echo Connection refused")["hint"], Value::Null);
}

#[test]
fn the_shell_of_the_other_server_says_it_in_its_output() {
    let mut server = Options::new(Transport::Stdio).arg("--tools").arg("shell").spawn();
    let workspace = server.workspace().display().to_string();
    let mut client = server.connect(SESSIONS);
    let message = client.call("shell", json!({"command": "touch /usr/x", "workdir": workspace}));
    let text = message["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("[ringfence] Likely the sandbox"), "{text}");
}

#[test]
fn a_timeout_names_what_the_caller_can_set() {
    let config = "[mcp.slow]\ncommand = \"sleep\"\nargs = [\"60\"]\nrequires_approval = false\ntimeout_ms = 200\n\
                  [limits]\ntimeout_ms = 5000\ngrace_ms = 100";
    let (_server, mut client) = with(config);
    let hint = |message: &Value| {
        message["result"]["structuredContent"]["error"]["hint"].as_str().unwrap().to_owned()
    };
    let own = hint(&client.call("shell.exec", json!({"command": "sleep 60", "timeout_ms": 200})));
    assert!(own.contains("Raise `timeout_ms` (at most 5000)"), "{own}");
    let slow = hint(&client.call("slow", json!({})));
    assert!(
        slow.contains("operator") && slow.contains("`timeout_ms` (at most 5000) under [mcp.slow]"),
        "{slow}"
    );
    let meta = json!({"dev.ringfence/timeout_ms": 150});
    let id = client.start("tools/call", json!({"name": "slow", "arguments": {}, "_meta": meta}));
    let meta = hint(&client.wait(&id));
    assert!(meta.contains("Raise `dev.ringfence/timeout_ms` in `_meta`"), "{meta}");
}

#[test]
fn a_missing_program_is_told_in_discovery_and_by_the_call() {
    let config = "[mcp.gone]\ncommand = \"/opt/nowhere/tool\"\nrequires_approval = false\n\
                  [mcp.bare]\ncommand = \"no-such-program\"\nrequires_approval = false\n\
                  [mcp.here]\ncommand = \"true\"\nrequires_approval = false";
    let (_server, mut client) = with(config);
    let listed = client.request("tools/list", json!({}))["result"]["tools"].clone();
    for (tool, program) in [("gone", "tool"), ("bare", "no-such-program")] {
        let entry = listed.as_array().unwrap().iter().find(|entry| entry["name"] == tool).unwrap();
        let permission = &entry["_meta"]["dev.ringfence/permission"];
        assert_holds(json!({"allow": false}), permission);
        let reason = permission["reason"].as_str().unwrap();
        assert!(
            reason.contains(&format!("`{program}` was not found")) && !reason.contains('/'),
            "{reason}"
        );
        let error = client.call(tool, json!({}))["result"]["structuredContent"]["error"].clone();
        assert_holds(json!({"kind": "internal", "reason": "spawn_failed"}), &error);
        assert!(
            error["message"].as_str().unwrap().contains(&format!("`{program}` was not found")),
            "{error}"
        );
    }
    let here = listed.as_array().unwrap().iter().find(|entry| entry["name"] == "here").unwrap();
    assert_holds(json!({"allow": true}), &here["_meta"]["dev.ringfence/permission"]);
}

#[test]
fn a_missing_interpreter_is_named() {
    let (server, mut client) = with("");
    let script = server.workspace().join("run.py");
    std::fs::write(&script, "#!/opt/python9 -u\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let error =
        client.call("shell.exec", json!({"argv": ["./run.py"]}))["result"]["structuredContent"]["error"].clone();
    assert_holds(
        json!({"kind": "not_found", "reason": "spawn_failed", "interpreter": "/opt/python9"}),
        &error,
    );
    assert!(
        error["message"].as_str().unwrap().contains("`./run.py` is a script for `/opt/python9`"),
        "{error}"
    );
    let tmp = client.call("shell.exec", json!({"argv": ["/tmp/tool"]}))["result"]["structuredContent"]["error"].clone();
    assert!(tmp["hint"].as_str().unwrap().contains("/tmp"), "{tmp}");
}

fn with(config: &str) -> (Server, Client) {
    let mut server = Options::new(Transport::Stdio).config(config).spawn();
    let client = server.connect(SESSIONS);
    (server, client)
}
