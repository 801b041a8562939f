//! What an entry does not declare, the fence does not allow.

use std::io::{Read, Write};
use std::net::TcpListener;

use serde_json::json;

use super::{said, with};

const WRITE: &str = "command = \"sh\"\nargs = [\"-c\", \"echo x > made && echo written; touch /tmp/x ~/x && echo own\"]";

#[test]
fn without_filesystem_write_the_workspace_is_read_only() {
    let (server, mut client) = with(&format!(
        "[mcp.reads]\n{WRITE}\nrequires_approval = false\n[mcp.writes]\n{WRITE}\nside_effects = [\"filesystem_write\"]"
    ));
    assert_eq!(said(&client.call("reads", json!({}))), "own\n");
    assert!(!server.workspace().join("made").exists());
    assert_eq!(std::fs::read_dir(server.workspace()).unwrap().count(), 0, "nothing is left behind");
    assert_eq!(said(&client.call("writes", json!({}))), "written\nown\n");
    assert!(server.workspace().join("made").exists());
}

/// Says hello to everybody who connects.
fn greeter() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(
                b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nhello\n",
            );
        }
    });
    port
}

#[test]
fn without_network_there_is_none() {
    let port = greeter();
    let get = format!(
        "command = \"python3\"\nargs = [\"-c\", '''\nimport os, urllib.request\nos.environ[\"no_proxy\"] = os.environ[\"NO_PROXY\"] = \"\"\ntry:\n    print(urllib.request.urlopen(\"http://127.0.0.1:{port}/\", timeout=5).read().decode(), end=\"\")\nexcept Exception as e:\n    print(\"refused\")\n''']"
    );
    let (_server, mut client) = with(&format!(
        "[mcp.off]\n{get}\nrequires_approval = false\n\
         [mcp.says]\n{get}\nside_effects = [\"network\"]\n\
         [mcp.all]\n{get}\nallow_network = true\n\
         [mcp.one]\n{get}\nallow_addresses = [\"127.0.0.1:{port}\"]\n\
         [mcp.other]\n{get}\nallow_addresses = [\"127.0.0.1:1\"]\n\
         [mcp.names]\n{get}\nallow_domains = [\"example.com\"]"
    ));
    // Saying so opens nothing yet; a key has to.
    for tool in ["off", "says", "other", "names"] {
        assert_eq!(said(&client.call(tool, json!({}))), "refused\n", "{tool}");
    }
    for tool in ["all", "one"] {
        assert_eq!(said(&client.call(tool, json!({}))), "hello\n", "{tool}");
    }
}

/// A server that the agent started in its own fence is not for a command that has no network.
#[test]
fn the_sessions_own_network_is_not_the_entrys() {
    let (_server, mut client) = with(
        "[mcp.look]\ncommand = \"python3\"\nargs = [\"-c\", '''\nimport socket\ns = socket.socket()\nprint(s.connect_ex((\"127.0.0.1\", 8765)) == 0)\n''']\nrequires_approval = false",
    );
    let serve = "python3 -m http.server 8765 --bind 127.0.0.1 & for i in $(seq 100); do (exec 3<>/dev/tcp/127.0.0.1/8765) 2>/dev/null && break; sleep 0.05; done; echo up; wait";
    let message = client.call("shell.exec", json!({"command": serve, "yield_ms": 3000}));
    assert!(
        message["result"]["structuredContent"]["stdout"].as_str().unwrap().contains("up"),
        "{message:#}"
    );
    assert_eq!(said(&client.call("look", json!({}))), "False\n");
}

#[test]
fn home_and_tmp_are_the_entrys_own() {
    let (_server, mut client) = with(
        "[mcp.look]\ncommand = \"sh\"\nargs = [\"-c\", \"cat ~/planted /tmp/planted 2>/dev/null; echo looked\"]\nrequires_approval = false",
    );
    let message =
        client.call("shell.exec", json!({"command": "echo x | tee ~/planted > /tmp/planted"}));
    assert_eq!(message["result"]["isError"], false);
    assert_eq!(said(&client.call("look", json!({}))), "looked\n");
}

#[test]
fn what_is_protected_and_hidden_for_all_is_so_for_an_entry() {
    let (server, mut client) = with(
        "[mcp.writes]\ncommand = \"sh\"\nargs = [\"-c\", \"mkdir -p .git .codex && echo x > .git/config; echo x > .codex/a; ls .git .codex\"]\nside_effects = [\"filesystem_write\"]",
    );
    client.call("writes", json!({}));
    assert!(!server.workspace().join(".codex/a").exists());
    let config = server.workspace().join(".git/config");
    assert!(std::fs::read_to_string(config).unwrap_or_default().is_empty());
}

#[test]
fn no_rule_lets_a_part_of_it_out() {
    let rules = "prefix_rule(pattern = [\"touch\"], decision = \"allow\")\nprefix_rule(pattern = [\"id\"], decision = \"forbidden\")\n";
    let scratch = crate::support::server::Scratch::new();
    let file = scratch.path().join("home/all.rules");
    std::fs::write(&file, rules).unwrap();
    let mut server = crate::support::Options::new(crate::support::Transport::Stdio)
        .on(&scratch)
        .arg("--rules")
        .arg(&file.display().to_string())
        .config("[policy]\nescalate = \"outside\"\n[mcp.run]\ncommand = \"sh\"\nargs = [\"-c\", \"touch out; id\"]\nrequires_approval = false")
        .spawn();
    let mut client = server.connect(crate::support::SESSIONS);
    let message = client.call("run", json!({}));
    assert!(!server.workspace().join("out").exists(), "{message:#}");
    assert!(
        !message["result"]["structuredContent"]["stdout"].as_str().unwrap().contains("uid="),
        "{message:#}"
    );
    let execs = server.events("exec");
    assert!(execs.iter().any(|exec| exec["verdict"] == "forbidden"), "{execs:#?}");
}

/// A client's own sandbox takes from an entry what the entry declares; it never gives.
#[test]
fn a_clients_sandbox_narrows_an_entry_too() {
    let port = greeter();
    let (server, mut client) = with(&format!(
        "[mcp.both]\ncommand = \"bash\"\nargs = [\"-c\", \"touch made 2>/dev/null && echo written; (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo reached; true\"]\n\
         side_effects = [\"filesystem_write\"]\nallow_network = true"
    ));
    let everything =
        json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"});
    let state = json!({"permissionProfile": {"type": "managed", "network": "restricted",
        "file_system": {"type": "restricted", "entries": [everything]}}});
    let params =
        json!({"name": "both", "arguments": {}, "_meta": {"codex/sandbox-state-meta": state}});
    let id = client.start("tools/call", params);
    assert_eq!(said(&client.wait(&id)), "");
    assert!(!server.workspace().join("made").exists());
    assert_eq!(said(&client.call("both", json!({}))), "written\nreached\n");
}

/// Where there are no namespaces, what can be kept is kept, and what cannot is not offered.
#[test]
fn beside_contained_an_entry_is_contained_and_holds_what_it_declares() {
    let (server, mut client) = with(&format!(
        "[sandbox]\nprofile = \"contained\"\n[mcp.reads]\n{WRITE}\nrequires_approval = false\n\
         [mcp.writes]\n{WRITE}\nside_effects = [\"filesystem_write\"]\n\
         [mcp.names]\ncommand = \"true\"\nallow_domains = [\"example.com\"]"
    ));
    let message = client.call("reads", json!({}));
    assert!(!said(&message).contains("written"), "{message:#}");
    assert_eq!(message["result"]["structuredContent"]["sandbox"]["profile"], "contained");
    assert!(!server.workspace().join("made").exists());
    assert!(said(&client.call("writes", json!({}))).contains("written"));
    assert_eq!(client.call("names", json!({}))["error"]["data"]["kind"], "unknown_tool");
    server.wait_for_log("cannot filter the network");
}
