//! A secret that cannot be had: what the caller is told, and that nothing runs and nobody is asked.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use super::{env_file, error_of, secret, serving, set};
use crate::escape::is_root;
use crate::support::{Client, SESSIONS, Server, Transport};

const SCRIPT: &str = "import os; print(os.environ['A'])";

fn start(
    keys: &str,
    more: &str,
    prepare: impl Fn(&crate::support::server::Scratch),
) -> (Server, Client) {
    let serving = serving(Transport::Stdio, SCRIPT, keys).config(more);
    prepare(&serving.scratch);
    let mut server = serving.options.spawn();
    let client = server.connect(SESSIONS);
    (server, client)
}

#[track_caller]
fn refused(server: &Server, client: &mut Client, reason: &str) -> Value {
    let message = client.call("tool", json!({"mode": "x"}));
    let error = error_of(&message);
    assert_eq!(
        (&error["kind"], &error["reason"]),
        (&json!("unauthenticated"), &json!(reason)),
        "{message:#}"
    );
    assert!(client.questions.is_empty() && server.events("call.start").is_empty());
    assert!(!message.to_string().contains(server.root().to_str().unwrap()), "no path: {message:#}");
    error.clone()
}

#[test]
fn a_missing_or_expired_secret_is_named_before_anybody_is_asked() {
    let stored = "env = { A = \"${secret:DB}\" }";
    let (server, mut client) = start(stored, "", |_| {});
    let error = refused(&server, &mut client, "missing_secret");
    assert!(error["message"].as_str().unwrap().contains("`DB`"), "{error:#}");
    assert!(error["hint"].as_str().unwrap().contains("ringfence secret set DB"), "{error:#}");

    let (server, mut client) = start("env = { A = \"x-${TOKEN_OF_MINE}\" }", "", |_| {});
    let error = refused(&server, &mut client, "missing_secret");
    assert!(error["message"].as_str().unwrap().contains("`TOKEN_OF_MINE`"), "{error:#}");

    let (server, mut client) = start(stored, "", |scratch| {
        let output = secret(scratch, &["set", "DB", "--expires-in", "1s"], "value-that-expires");
        assert!(output.status.success(), "{output:?}");
        crate::support::eventually(crate::support::DEADLINE, "it expires", || {
            super::text(&secret(scratch, &["list"], "")).contains("EXPIRED")
        });
    });
    let error = refused(&server, &mut client, "expired_secret");
    assert!(error["hint"].as_str().unwrap().contains("ringfence secret set DB"), "{error:#}");
}

#[test]
fn a_store_or_an_env_file_that_cannot_be_trusted_is_told_without_its_path() {
    let (server, mut client) = start("env = { A = \"${secret:DB}\" }", "", |scratch| {
        set(scratch, "DB", "value-of-the-store");
        let store = scratch.path().join("root/secrets/store");
        std::fs::set_permissions(store, std::fs::Permissions::from_mode(0o644)).unwrap();
    });
    let error = refused(&server, &mut client, "secret_store");
    assert!(error["hint"].as_str().unwrap().contains("ringfence secret list"), "{error:#}");
    let listed = secret(&server.scratch, &["list"], "");
    assert!(!listed.status.success() && super::text(&listed).contains("chmod 600"), "{listed:?}");
    // The path is in the log.
    server.wait_for_log("root/secrets/store");

    let (server, mut client) =
        start("env = { A = \"${A_TOKEN}\" }", "[secrets]\nenv_file = \"env\"", |scratch| {
            let path = env_file(scratch, "A_TOKEN=value-of-the-file\n");
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o604)).unwrap();
        });
    refused(&server, &mut client, "secret_store");
    server.wait_for_log("is open to other users");
}

/// A run reads nothing of where secrets are kept. Without a fence it would: the files belong to the same user.
#[test]
fn a_run_reads_neither_env_file_nor_store_nor_key() {
    let (server, mut client) =
        start("env = { A = \"${A_TOKEN}\" }", "[secrets]\nenv_file = \"env\"", |scratch| {
            env_file(scratch, "A_TOKEN=value-of-the-file\n");
            set(scratch, "DB", "value-of-the-store");
        });
    let path = server.scratch.path().display();
    let script = format!(
        "cat {path}/env {path}/root/secrets/store {path}/root/secrets/key; ls {path}/root/secrets"
    );
    let message = client.call("shell.exec", json!({"command": script}));
    assert_eq!(message["result"]["structuredContent"]["stdout"], "", "{message:#}");
    assert_ne!(message["result"]["structuredContent"]["exit_code"], 0, "{message:#}");
    let read = std::fs::read_to_string(server.scratch.path().join("env")).unwrap();
    assert!(read.contains("value-of-the-file") || !is_root());
    // The tool itself has what it was given.
    let message = client.call("tool", json!({"mode": "x"}));
    assert_eq!(
        message["result"]["structuredContent"]["stdout"], "[secret:A_TOKEN]\n",
        "{message:#}"
    );
}

#[test]
fn an_env_file_inside_the_workspace_stops_the_start() {
    let serving =
        serving(Transport::Stdio, SCRIPT, "").config("[secrets]\nenv_file = \"workspace/.env\"");
    std::fs::write(serving.scratch.path().join("workspace/.env"), "A=1\n").unwrap();
    let output = serving.options.command(&serving.scratch).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    assert!(super::text(&output).contains("contains the env file of secrets"), "{output:?}");
}
