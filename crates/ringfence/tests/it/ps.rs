//! `ringfence ps`: every server of a root is shown while it runs, and only to its user.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::screen::{at_screen, wide_lines};
use crate::support::server::{Scratch, Server, ringfence};
use crate::support::subset::assert_holds;
use crate::support::{DEADLINE, MODERN, Options, SESSIONS, Transport, eventually};

fn ps(scratch: &Scratch, args: &[&str]) -> std::process::Command {
    let mut command = ringfence(scratch);
    command.args(["ps", "--root"]).arg(scratch.path().join("root")).args(args);
    command
}

fn servers(scratch: &Scratch) -> Vec<Value> {
    let output = ps(scratch, &["--json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    value["servers"].as_array().unwrap().clone()
}

fn sockets(root: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root.join("run")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn status_of(server: &Server) -> Value {
    let pid = json!(server.pid());
    let found = servers(&server.scratch).into_iter().find(|status| status["pid"] == pid);
    found.unwrap_or_else(|| panic!("{pid} is not shown"))
}

#[test]
fn no_server_is_said_and_no_error() {
    let scratch = Scratch::new();
    let output = ps(&scratch, &[]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.starts_with("No server runs in this root ("), "{said}");
    assert_eq!(servers(&scratch), [Value::Null; 0]);
}

#[test]
fn servers_of_both_kinds_are_shown_with_their_clients() {
    for version in [SESSIONS, MODERN] {
        let mut local = Options::new(Transport::Stdio).spawn();
        let mut network = Options::new(Transport::Http).on(&local.scratch).spawn();
        let mut clients = [local.connect(version), network.connect(version)];
        for client in &mut clients {
            client.call("file.list", json!({}));
        }
        let want = json!({"transport": "stdio", "address": null, "calls": 0,
            "workspace": local.workspace(), "sessions": [{"client": "it/1", "principal": "local"}]});
        assert_holds(want, &status_of(&local));
        let address = format!("http://{}/mcp", network.address());
        assert_holds(json!({"transport": "http", "address": address}), &status_of(&network));
        let table = String::from_utf8(ps(&local.scratch, &[]).output().unwrap().stdout).unwrap();
        assert_eq!(table.lines().count(), 3, "{table}");
        for text in
            [&network.address().to_string(), "stdio", "it/1", local.workspace().to_str().unwrap()]
        {
            assert!(table.contains(text), "{text}: {table}");
        }
        let (code, screen) = at_screen(&ps(&local.scratch, &[]));
        assert!(code == 0 && screen.contains("WORKSPACE"), "{screen}");
        assert_eq!(wide_lines(&screen), [""; 0], "{screen}");
    }
}

#[test]
fn a_call_in_flight_is_counted() {
    let mut server = Options::new(Transport::Http).spawn();
    let mut client = server.connect(SESSIONS);
    let arguments = json!({"command": "until [ -e go ]; do sleep 0.02; done"});
    let id = client.start_call("shell.exec", &arguments);
    eventually(DEADLINE, "the call is counted", || status_of(&server)["calls"] == 1);
    std::fs::write(server.workspace().join("go"), "").unwrap();
    client.finish(id, "shell.exec", &arguments);
    eventually(DEADLINE, "no call is left", || status_of(&server)["calls"] == 0);
    assert_eq!(status_of(&server)["sessions"].as_array().unwrap().len(), 1);
    client.delete();
    eventually(DEADLINE, "the session is gone", || status_of(&server)["sessions"] == json!([]));
}

#[test]
fn a_server_that_ended_is_not_shown_and_leaves_no_socket() {
    let mut killed = Options::new(Transport::Stdio).spawn();
    killed.connect(SESSIONS);
    let root = killed.root();
    assert_eq!(sockets(&root).len(), 1);
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    assert_eq!(servers(&killed.scratch), [Value::Null; 0]);
    assert_eq!(sockets(&root).len(), 0);

    // The next server removes what a killed one left, too.
    let mut killed = Options::new(Transport::Stdio).on(&killed.scratch).spawn();
    killed.connect(SESSIONS);
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    let mut next = Options::new(Transport::Stdio).on(&killed.scratch).spawn();
    let client = next.connect(SESSIONS);
    let own = root.join("run").join(format!("server-{}.sock", next.pid()));
    eventually(DEADLINE, "only its own socket is left", || sockets(&root) == [own.clone()]);
    drop(client);
    next.ended();
    assert_eq!(sockets(&root).len(), 0, "it removes its own");
}

/// Whoever reached the socket from a run could read about other sessions, and with terminal approvals ask to answer.
#[test]
fn no_run_reaches_the_socket() {
    for profile in ["default", "contained"] {
        let config = format!("[sandbox]\nprofile = \"{profile}\"");
        let mut server = Options::new(Transport::Stdio).config(&config).spawn();
        let mut client = server.connect(SESSIONS);
        let socket = server.root().join("run").join(format!("server-{}.sock", server.pid()));
        let code = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.send(b'{\"status\":{}}\\n'); print(s.recv(9).decode())";
        let outside =
            std::process::Command::new("python3").args(["-c", code]).arg(&socket).output();
        assert_eq!(outside.unwrap().stdout, b"{\"status\"\n", "it can be reached from outside");
        let message = client.call("shell.exec", json!({"argv": ["python3", "-c", code, socket]}));
        let reply = &message["result"]["structuredContent"];
        assert!(reply["exit_code"].as_i64().unwrap() != 0, "{profile}: {message:#}");
        assert_eq!(reply["stdout"], "", "{profile}: {message:#}");
    }
}
