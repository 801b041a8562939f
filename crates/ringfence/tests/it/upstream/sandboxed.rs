//! The sandbox of a local server: it has what its table declares and nothing else, and its secrets stay with it.

use std::net::TcpListener;
use std::path::Path;

use serde_json::{Value, json};

use super::{Gateway, error_of, said, said_json};
use crate::support::place::visible_folder;
use crate::support::server::Scratch;
use crate::support::subset::assert_holds;
use crate::support::{Approve, Client, SESSIONS, Transport};

const SECRET: &str = "value-of-the-secret-4711";

/// Its directories are where a sandbox could see them.
fn gateway(config: &str) -> Gateway {
    Gateway::on(Scratch::within(visible_folder())).stdio("pipe25", &[]).config(config)
}

/// The text of a result that the tool itself calls an error.
#[track_caller]
fn failed(message: &Value) -> &str {
    let result = &message["result"];
    assert_eq!(result["isError"], true, "{message:#}");
    result["content"][0]["text"].as_str().unwrap()
}

fn shell(client: &mut Client, script: &str) -> Value {
    client.call("pipe25__run", json!({"argv": ["sh", "-c", script]}))
}

#[test]
fn without_side_effects_a_server_reads_the_workspace_and_no_more() {
    let gateway = gateway("");
    let home = gateway.scratch.path().join("home");
    std::fs::create_dir_all(home.join(".ssh")).unwrap();
    std::fs::write(home.join(".ssh/id_ed25519"), "the key").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut server = gateway.spawn(Transport::Stdio);
    std::fs::write(server.workspace().join("plain"), "to be read").unwrap();
    let mut client = server.connect(SESSIONS);
    client.approve = Approve::Once;

    let outside = gateway.scratch.path().join("outside");
    for path in ["written".to_owned(), "plain".to_owned(), outside.display().to_string()] {
        let message = client.call("pipe25__write", json!({"path": path, "text": "x"}));
        assert!(failed(&message).contains("Error"), "{path}: {message:#}");
    }
    assert!(!server.workspace().join("written").exists() && !outside.exists());
    assert_eq!(said(&client.call("pipe25__read", json!({"path": "plain"}))), "to be read");
    for hidden in [
        home.join(".ssh/id_ed25519"),
        server.root().join("audit"),
        gateway.folder().join("upstreams.json"),
    ] {
        let message = client.call("pipe25__read", json!({"path": hidden}));
        assert!(failed(&message).contains("Error"), "{message:#}");
    }
    let port = listener.local_addr().unwrap().port();
    failed(&client.call("pipe25__connect", json!({"port": port})));
    assert!(listener.accept().is_err(), "it has reached the host");
}

#[test]
fn a_declared_side_effect_is_possible_and_every_write_asks() {
    let gateway = gateway("[upstream.pipe25]\nside_effects = ['filesystem_write']");
    let mut server = gateway.spawn(Transport::Stdio);
    let mut client = server.connect(SESSIONS);
    client.approve = Approve::Once;
    for asked in 1..=2 {
        let message = client.call("pipe25__write", json!({"path": "written", "text": "x"}));
        assert_eq!(said(&message), "done");
        assert_eq!(client.questions.len(), asked);
    }
    assert_eq!(std::fs::read_to_string(server.workspace().join("written")).unwrap(), "x");
    let outside = gateway.scratch.path().join("outside");
    failed(&client.call("pipe25__write", json!({"path": outside, "text": "x"})));
    assert!(!outside.exists());
    client.approve = Approve::Decline;
    let refused = client.call("pipe25__write", json!({"path": "refused", "text": "x"}));
    assert_eq!(error_of(&refused)["kind"], "approval_denied");
    assert!(!server.workspace().join("refused").exists());
}

#[test]
fn a_missing_secret_stops_the_start_and_is_named() {
    for (value, name) in
        [("${secret:NO_SUCH_KEY}", "NO_SUCH_KEY"), ("Bearer ${EMPTY_KEY}", "EMPTY_KEY")]
    {
        let gateway = gateway(&format!("[upstream.pipe25]\nenv = {{ KEY_FOR_IT = '{value}' }}"));
        let mut server = gateway.options(Transport::Stdio).env("EMPTY_KEY", "").spawn();
        let mut client = server.connect(SESSIONS);
        for tool in ["count", "add"] {
            let message = client.call(&format!("pipe25__{tool}"), json!({}));
            let error = error_of(&message);
            let message = format!("~`{name}`");
            let expected =
                json!({"kind": "unauthenticated", "reason": "missing_secret", "message": message});
            assert_holds(expected, error);
        }
        assert!(client.questions.is_empty(), "told before anyone is asked");
        assert!(gateway.processes().is_empty() && server.events("upstream.connect").is_empty());
    }
}

#[test]
fn a_secret_reaches_its_server_and_nothing_that_we_write() {
    let gateway = gateway("[upstream.pipe25]\nenv = { KEY_FOR_IT = '${SECRET_ONE}' }");
    let mut server = gateway.options(Transport::Stdio).env("SECRET_ONE", SECRET).spawn();
    let mut client = server.connect(SESSIONS);
    let length = shell(&mut client, "printf %s \"$KEY_FOR_IT\" | wc -c");
    assert_eq!(said(&length).trim(), SECRET.len().to_string());
    let message = client.call("pipe25__env", json!({}));
    let env = said_json(&message);
    assert!(env["KEY_FOR_IT"].is_string(), "{message:#}");
    assert!(env["SECRET_ONE"].is_null(), "it has the environment of the gateway");
    shell(&mut client, "echo \"$KEY_FOR_IT\" >&2; echo \"$KEY_FOR_IT\"");
    client.hang_up();
    assert!(server.ended().success());
    let heard = String::from_utf8_lossy(&client.heard.lock().unwrap()).into_owned();
    let audit = Value::from(server.audit()).to_string();
    for (place, text) in [("answers", &heard), ("audit", &audit), ("log", &server.log())] {
        assert!(!text.contains(SECRET), "the secret is in the {place}");
    }
}

#[test]
fn what_a_server_starts_is_judged_by_the_rules() {
    let gateway = gateway("");
    let rules = gateway.scratch.path().join("home/.codex/rules");
    std::fs::create_dir_all(&rules).unwrap();
    std::fs::write(rules.join("my.rules"), "prefix_rule(['uname'], 'forbidden')\n").unwrap();
    let mut server = gateway.spawn(Transport::Stdio);
    let mut client = server.connect(SESSIONS);
    failed(&client.call("pipe25__run", json!({"argv": ["uname"]})));
    assert_eq!(said(&client.call("pipe25__run", json!({"argv": ["echo", "fine"]}))), "fine\n");
    let denied: Vec<Value> = server
        .audit()
        .into_iter()
        .filter(|record| record["upstream"] == "pipe25" && record.to_string().contains("uname"))
        .collect();
    assert_holds(json!([{"upstream": "pipe25"}]), &json!(denied));
}

/// An agent writes the workspace, and interpreters load modules from the directory that they start in.
#[test]
fn no_file_of_the_workspace_becomes_part_of_a_server_with_secrets() {
    let secret = "env = { KEY_FOR_IT = '${SECRET_ONE}' }";
    for (table, is_workspace) in
        [("", true), (secret, false), (&format!("{secret}\ncwd = '.'"), true)]
    {
        let gateway = gateway(&format!("[upstream.pipe25]\n{table}"));
        let mut server = gateway.options(Transport::Stdio).env("SECRET_ONE", SECRET).spawn();
        std::fs::write(server.workspace().join("json.py"), "raise SystemExit(7)").unwrap();
        let mut client = server.connect(SESSIONS);
        let place = said(&shell(&mut client, "pwd -P")).trim().to_owned();
        assert_eq!(Path::new(&place) == server.workspace(), is_workspace, "{table}: {place}");
        let module = shell(&mut client, "python3 -c 'import json; print(json.__name__)'");
        assert_eq!(said(&module), "json\n", "{table}");
    }
}
