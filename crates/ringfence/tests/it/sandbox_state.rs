//! A client's own sandbox, told in every way that there has been: it narrows what commands and file tools may do, on
//! every transport and in both eras, and never widens it.

use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::client::HANDLE;
use crate::support::matrix::{eras, on_cell};
use crate::support::subset::assert_holds;
use crate::support::{Client, Options, SESSIONS, Server, Transport, eventually};

const UPDATE: &str = "codex/sandbox-state/update";

macro_rules! generations {
    ($($name:literal)*) => { &[$(($name, include_str!(concat!("sandbox_state/", $name, ".json"))),)*] };
}

/// What Codex really sends, oldest first.
const GENERATIONS: &[(&str, &str)] = generations! {
    "0_64_notification" "0_76_request" "0_97_bwrap" "0_115_landlock"
    "0_121_meta" "0_125_both" "0_142_profile" "0_163_two_keys"
};

fn special(kind: &str, access: &str) -> Value {
    json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access})
}

fn entry(path: impl AsRef<Path>, access: &str) -> Value {
    json!({"path": {"type": "path", "path": path.as_ref()}, "access": access})
}

/// A profile that is enforced, with these entries.
fn managed(entries: &[Value]) -> Value {
    let system = json!({"type": "restricted", "entries": entries});
    json!({"permissionProfile": {"type": "managed", "network": "restricted", "file_system": system}})
}

/// A call that carries a state.
fn call_with(client: &mut Client, state: &Value, tool: &str, arguments: Value) -> Value {
    call(client, &json!({"codex/sandbox-state-meta": state}), tool, arguments)
}

fn call(client: &mut Client, meta: &Value, tool: &str, arguments: Value) -> Value {
    let id =
        client.start("tools/call", json!({"name": tool, "arguments": arguments, "_meta": meta}));
    client.finish(id, tool, &arguments)["result"].clone()
}

fn run_with(client: &mut Client, state: &Value, command: &str) -> Value {
    call_with(client, state, "shell.exec", json!({"command": command}))
}

/// Pushes a state, as a request unless told otherwise. On 2026-07-28 over HTTP only the handle says to which session.
fn push(client: &mut Client, state: &Value) -> Value {
    client.request(UPDATE, with_handle(client, state))
}

fn with_handle(client: &Client, state: &Value) -> Value {
    let mut state = state.clone();
    if let Some(handle) = &client.handle {
        state["_meta"][HANDLE] = json!(handle);
    }
    state
}

#[track_caller]
fn exit_code(result: &Value) -> i64 {
    result["structuredContent"]["exit_code"].as_i64().unwrap_or_else(|| panic!("{result:#}"))
}

#[track_caller]
fn assert_reason(result: &Value, reason: &str) {
    assert_eq!(result["isError"], true, "{result:#}");
    assert_holds(
        json!({"kind": "permission_denied", "reason": reason}),
        &result["structuredContent"]["error"],
    );
}

/// Says it the way this generation does; what goes with each call is given back.
fn tell(client: &mut Client, fixture: &Value, state: &Value) -> Value {
    match fixture["delivery"].as_str().unwrap() {
        "notification" => {
            let state = with_handle(client, state);
            client.notify(UPDATE, state);
            json!({})
        }
        "request" => {
            assert_eq!(push(client, state)["result"], json!({}));
            json!({})
        }
        _ => fixture["keys"]
            .as_array()
            .unwrap()
            .iter()
            .map(|key| (key.as_str().unwrap(), state.clone()))
            .collect(),
    }
}

/// As the README of Codex's shell server prints it: without `jsonrpc`.
#[test]
fn a_pushed_state_needs_no_jsonrpc_member() {
    let printed = json!({
        "type": "workspace-write",
        "writable_roots": ["/home/user/code/codex"],
        "network_access": false,
        "exclude_tmpdir_env_var": false,
        "exclude_slash_tmp": false
    });
    for cell in eras() {
        on_cell(
            cell,
            |options| options,
            |server, client| {
                let mut params = json!({});
                for (id, policy) in
                    [("req-42", &printed), ("req-43", &json!({"type": "read-only"}))]
                {
                    params = client
                        .dressed(UPDATE, with_handle(client, &json!({"sandboxPolicy": policy})));
                    client.send(&json!({"id": id, "method": UPDATE, "params": params}));
                    assert_eq!(client.wait(id), json!({"jsonrpc": "2.0", "id": id, "result": {}}));
                }
                let refused =
                    call(client, &json!({}), "file.write", json!({"path": "x", "content": "x"}));
                assert_reason(&refused, "client_read_only");
                assert!(!server.workspace().join("x").exists());
                // No other method, and no other version.
                for message in [
                    json!({"id": "a", "method": "tools/list", "params": client.dressed("tools/list", json!({}))}),
                    json!({"jsonrpc": "1.0", "id": "b", "method": UPDATE, "params": params}),
                ] {
                    client.send(&message);
                    let id = message["id"].as_str().unwrap();
                    assert_eq!(client.wait(id)["error"]["data"]["kind"], "invalid_request");
                }
            },
        );
    }
}

#[test]
fn every_generation_of_the_state_narrows_on_every_transport() {
    assert_eq!(GENERATIONS.len(), 8);
    for cell in eras() {
        on_cell(
            cell,
            |options| options,
            |server, client| {
                let workspace = server.workspace().display().to_string();
                for (name, text) in GENERATIONS {
                    let fixture: Value =
                        serde_json::from_str(&text.replace("${WS}", &workspace)).unwrap();
                    let write = json!({"path": "written", "content": name});
                    let meta = tell(client, &fixture, &fixture["read_only"]);
                    let touched = call(
                        client,
                        &meta,
                        "shell.exec",
                        json!({"command": "touch made || exit 9"}),
                    );
                    assert_eq!(exit_code(&touched), 9, "{name}: {touched:#}");
                    assert_eq!(
                        touched["_meta"]["dev.ringfence/client_sandbox"]["mode"], "read-only",
                        "{name}"
                    );
                    let refused = call(client, &meta, "file.write", write.clone());
                    assert_reason(&refused, "client_read_only");
                    let hint = refused["structuredContent"]["error"]["hint"].as_str().unwrap();
                    assert!(hint.contains("`read-only`"), "{name}: {hint}");
                    assert!(
                        !server.workspace().join("made").exists()
                            && !server.workspace().join("written").exists()
                    );

                    let meta = tell(client, &fixture, &fixture["workspace_write"]);
                    let command = json!({"command": "touch made || exit 9"});
                    assert_eq!(
                        exit_code(&call(client, &meta, "shell.exec", command.clone())),
                        0,
                        "{name}"
                    );
                    assert_eq!(
                        call(client, &meta, "file.write", write.clone())["isError"],
                        false,
                        "{name}"
                    );
                    std::fs::remove_file(server.workspace().join("made")).unwrap();
                    std::fs::remove_file(server.workspace().join("written")).unwrap();

                    let meta = tell(client, &fixture, &fixture["off"]);
                    assert_eq!(exit_code(&call(client, &meta, "shell.exec", command)), 0, "{name}");
                    std::fs::remove_file(server.workspace().join("made")).unwrap();
                }
            },
        );
    }
}

#[test]
fn both_capabilities_are_declared_in_both_eras() {
    for cell in crate::support::CELLS {
        let mut server = Options::new(cell.transport).spawn();
        let hello = server.client(cell.version).shake_hands();
        let declared =
            json!({"codex/sandbox-state": {"version": "1.0.0"}, "codex/sandbox-state-meta": {}});
        assert_holds(declared, &hello["capabilities"]["experimental"]);
    }
}

/// Word for word what the documentation of the shell tool shows, and the answer that it shows.
#[test]
fn the_documented_update_is_acknowledged_and_the_next_message_sees_it() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let id = client.start(
        UPDATE,
        json!({"sandboxPolicy": {"type": "workspace-write",
        "writable_roots": ["/home/user/code/codex"], "network_access": false, "exclude_tmpdir_env_var": false,
        "exclude_slash_tmp": false}}),
    );
    let answer = client.wait(&id);
    assert_eq!(answer, json!({"jsonrpc": "2.0", "id": id, "result": {}}));
    let result = client.call("shell.exec", json!({"command": "true"}))["result"].clone();
    assert_holds(
        json!({"mode": "workspace-write", "ignored": ["~/home/user/code/codex is outside the workspace"]}),
        &result["_meta"]["dev.ringfence/client_sandbox"],
    );
}

/// Nobody waits for an answer in between, and each call sees the state that was sent before it.
#[test]
fn a_call_sees_the_state_that_was_sent_before_it() {
    for cell in eras().filter(|cell| cell.transport != Transport::Http) {
        on_cell(
            cell,
            |options| options,
            |_, client| {
                let states = [
                    json!({"sandboxPolicy": {"type": "read-only"}}),
                    json!({"sandboxPolicy": {"type": "workspace-write"}}),
                ];
                let write = json!({"path": "file", "content": "x", "dry_run": true});
                let mut sent = Vec::new();
                for round in 0..20 {
                    match round % 4 {
                        0 | 1 => client.notify(UPDATE, states[round % 2].clone()),
                        _ => drop(client.start(UPDATE, states[round % 2].clone())),
                    }
                    sent.push((client.start_call("file.write", &write), round % 2 == 0));
                    // What was sent later is not seen by what came before only if that is done.
                    let (id, refused) = sent.last().unwrap();
                    assert_eq!(client.wait(id)["result"]["isError"], *refused, "round {round}");
                }
            },
        );
    }
}

#[test]
fn what_comes_with_a_call_counts_for_that_call_and_the_newer_form_before_the_older() {
    for cell in eras() {
        on_cell(
            cell,
            |options| options,
            |server, client| {
                assert_eq!(
                    push(client, &json!({"sandboxPolicy": {"type": "read-only"}}))["result"],
                    json!({})
                );
                let write = json!({"sandboxPolicy": {"type": "workspace-write"}});
                assert_eq!(exit_code(&run_with(client, &write, "touch one")), 0);
                assert_eq!(
                    exit_code(
                        &client.call("shell.exec", json!({"command": "touch two"}))["result"]
                    ),
                    1
                );
                let mut both = managed(&[special("root", "read")]);
                both["sandboxPolicy"] = json!({"type": "danger-full-access"});
                assert_eq!(exit_code(&run_with(client, &both, "touch three")), 1);
                let differ =
                    json!({"codex/sandbox-state": both, "codex/sandbox-state-meta": write});
                assert_eq!(
                    exit_code(&call(
                        client,
                        &differ,
                        "shell.exec",
                        json!({"command": "touch four"})
                    )),
                    1
                );
                assert!(server.workspace().join("one").exists());
                for name in ["two", "three", "four"] {
                    assert!(!server.workspace().join(name).exists(), "{name}");
                }
            },
        );
    }
}

#[test]
fn a_state_belongs_to_its_session() {
    for transport in [Transport::Http, Transport::Sse] {
        let mut server = Options::new(transport).spawn();
        let (mut narrow, mut wide) = (server.connect(SESSIONS), server.connect(SESSIONS));
        push(&mut narrow, &json!({"sandboxPolicy": {"type": "read-only"}}));
        assert_eq!(
            exit_code(&narrow.call("shell.exec", json!({"command": "touch one"}))["result"]),
            1
        );
        assert_eq!(
            exit_code(&wide.call("shell.exec", json!({"command": "touch two"}))["result"]),
            0
        );
    }
}

#[test]
fn a_state_that_cannot_be_read_is_refused_and_the_session_is_read_only() {
    for cell in eras() {
        on_cell(
            cell,
            |options| options,
            |server, client| {
                for (at, bad) in [
                    json!({}),
                    json!({"sandboxPolicy": {"type": "new"}}),
                    json!({"sandboxPolicy": 3}),
                ]
                .iter()
                .enumerate()
                {
                    assert_eq!(
                        push(client, &json!({"sandboxPolicy": {"type": "workspace-write"}}))["result"],
                        json!({})
                    );
                    let answer = push(client, bad);
                    assert_holds(
                        json!({"code": -32602, "data": {"kind": "invalid_arguments", "reason": "bad_sandbox_state"}}),
                        &answer["error"],
                    );
                    assert_eq!(
                        exit_code(
                            &client.call("shell.exec", json!({"command": format!("touch f{at}")}))
                                ["result"]
                        ),
                        1
                    );
                }
                push(client, &json!({"sandboxPolicy": {"type": "workspace-write"}}));
                let told =
                    server.log.lock().unwrap().matches("sandbox state cannot be read").count();
                let bad = with_handle(client, &json!({"sandboxPolicy": "bad"}));
                client.notify(UPDATE, bad);
                let refused =
                    client.call("file.write", json!({"path": "f", "content": ""}))["result"]
                        .clone();
                assert_reason(&refused, "client_read_only");
                let log = server.log.clone();
                eventually(Duration::from_secs(5), "a line in the log", || {
                    log.lock().unwrap().matches("sandbox state cannot be read").count() > told
                });
                assert_reason(
                    &call_with(
                        client,
                        &json!([]),
                        "file.write",
                        json!({"path": "f", "content": ""}),
                    ),
                    "client_read_only",
                );
            },
        );
    }
}

#[test]
fn without_a_session_a_pushed_state_is_refused() {
    let mut server = Options::new(Transport::Http).spawn();
    let mut client = server.connect("2026-07-28");
    let answer = client.request(UPDATE, json!({"sandboxPolicy": {"type": "read-only"}}));
    assert_holds(
        json!({"data": {"kind": "invalid_request", "reason": "no_session"}}),
        &answer["error"],
    );
}

/// What each run may write is its own: the next one may have more again, and /tmp and HOME are the session's.
#[test]
fn a_read_only_run_changes_nothing_of_the_workspace() {
    let mut server = Options::new(Transport::Stdio).spawn();
    std::fs::write(server.workspace().join("file"), "before").unwrap();
    let mut client = server.connect(SESSIONS);
    let state = managed(&[special("root", "read")]);
    let script = "echo x > file && echo overwritten; echo x >> file && echo appended; chmod 777 file && echo mode
        touch -d 2001-01-01 file && echo time; mv file other && echo moved; rm -f file && echo removed
        mkdir folder && echo made; ln file link && echo linked; cp file /tmp/copy && cat /tmp/copy; echo y > ~/kept && cat ~/kept";
    let result = run_with(&mut client, &state, script);
    assert_eq!(result["structuredContent"]["stdout"], "beforey\n", "{result:#}");
    assert_eq!(
        exit_code(&run_with(
            &mut client,
            &json!({"sandboxPolicy": {"type": "workspace-write"}}),
            "cat /tmp/copy; echo after > file"
        )),
        0
    );
    assert_eq!(std::fs::read_to_string(server.workspace().join("file")).unwrap(), "after\n");
}

#[test]
fn parts_of_the_workspace_can_be_all_that_is_writable() {
    for cell in eras() {
        on_cell(
            cell,
            |options| options,
            |server, client| {
                for folder in ["src/generated/keep", "docs"] {
                    std::fs::create_dir_all(server.workspace().join(folder)).unwrap();
                }
                let at = server.workspace().join("src");
                let state = managed(&[
                    special("root", "read"),
                    entry(&at, "write"),
                    entry(at.join("generated"), "read"),
                    entry(at.join("generated/keep"), "write"),
                    entry("/opt/elsewhere", "write"),
                ]);
                let script = "for at in . docs src src/generated src/generated/keep; do touch $at/made 2>/dev/null && echo $at; done";
                let result = run_with(client, &state, script);
                assert_eq!(
                    result["structuredContent"]["stdout"], "src\nsrc/generated/keep\n",
                    "{result:#}"
                );
                assert_holds(
                    json!({"workspace": "parts", "ignored": ["~/opt/elsewhere"]}),
                    &result["_meta"]["dev.ringfence/client_sandbox"],
                );
                for (path, refused) in [
                    ("made", true),
                    ("docs/made", true),
                    ("new/made", true),
                    ("src/a/b/made", false),
                    ("src/generated/made", true),
                    ("src/generated/keep/deep/made", false),
                ] {
                    let result = call_with(
                        client,
                        &state,
                        "file.write",
                        json!({"path": path, "content": "x"}),
                    );
                    assert_eq!(result["isError"], refused, "{path}: {result:#}");
                    assert!(!(server.workspace().join(path).exists() && refused), "{path}");
                    if refused {
                        assert_reason(&result, "client_read_only");
                    }
                }
            },
        );
    }
}

/// As in the client's own sandbox: the repository itself is out of reach, listed or not.
#[test]
fn the_repository_is_read_only_under_a_clients_sandbox() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let git = |args: &[&str]| {
        assert!(
            std::process::Command::new("git")
                .args(args)
                .current_dir(server.workspace())
                .status()
                .unwrap()
                .success()
        )
    };
    git(&["init", "-q"]);
    let mut client = server.connect(SESSIONS);
    let state = json!({"sandboxPolicy": {"type": "workspace-write"}});
    let result = run_with(
        &mut client,
        &state,
        "git status --short; touch .git/index.lock && echo wrote; touch file && echo ok",
    );
    assert_eq!(result["structuredContent"]["stdout"], "ok\n", "{result:#}");
    assert_reason(
        &call_with(&mut client, &state, "file.write", json!({"path": ".git/x", "content": ""})),
        "client_read_only",
    );
    let explicit = managed(&[
        special("root", "read"),
        special("project_roots", "write"),
        entry(server.workspace().join(".git"), "write"),
    ]);
    assert_eq!(
        exit_code(&run_with(
            &mut client,
            &explicit,
            "touch .git/index.lock && ! touch .git/config && rm .git/index.lock"
        )),
        0
    );
}

#[test]
fn what_the_client_denies_is_neither_read_nor_written() {
    for cell in eras() {
        on_cell(
            cell,
            |options| options,
            |server, client| {
                let at = server.workspace();
                std::fs::create_dir_all(at.join("secret")).unwrap();
                std::fs::create_dir_all(at.join("deep/er")).unwrap();
                for name in ["secret/key", "deep/er/.env", ".env", "plain"] {
                    std::fs::write(at.join(name), "hunter2").unwrap();
                }
                let pattern = json!({"path": {"type": "glob_pattern", "pattern": at.join("**/*.env")}, "access": "deny"});
                let state = managed(&[
                    special("root", "read"),
                    entry(&at, "write"),
                    entry(at.join("secret"), "deny"),
                    pattern,
                ]);
                let result = run_with(
                    client,
                    &state,
                    "cat secret/key .env deep/er/.env; mv .env x; mv secret y; mv deep z; cat plain; ls -A",
                );
                let said = result["structuredContent"]["stdout"].as_str().unwrap();
                assert_eq!(said.matches("hunter2").count(), 1, "{result:#}");
                assert!(
                    at.join(".env").exists()
                        && at.join("secret/key").exists()
                        && at.join("deep/er/.env").exists()
                );
                // A file that comes later has the name all the same.
                std::fs::write(at.join("later.env"), "hunter2").unwrap();
                for path in
                    ["secret/key", ".env", "deep/er/.env", "later.env", "secret/new", "new.env"]
                {
                    assert_reason(
                        &call_with(client, &state, "file.read", json!({"path": path})),
                        "client_denied",
                    );
                    assert_reason(
                        &call_with(
                            client,
                            &state,
                            "file.write",
                            json!({"path": path, "content": ""}),
                        ),
                        "client_denied",
                    );
                }
                assert_eq!(
                    call_with(client, &state, "file.read", json!({"path": "plain"}))["isError"],
                    false
                );
                std::fs::remove_file(at.join("later.env")).unwrap();
            },
        );
    }
}

/// Without a word about the rest of the machine, nothing of it but the system can be seen.
#[test]
fn reads_that_the_client_does_not_allow_see_nothing() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let outside = server.scratch.path().join("outside");
    std::fs::create_dir_all(&outside).unwrap();
    let places = ["/root", "/home", "/opt", "/srv", "/mnt", "/sys", "/var/log"];
    let script = format!(
        "for at in {}; do ls -A $at 2>/dev/null; done; cat /etc/passwd > /dev/null && echo system; echo x > made && cat made; echo y > ~/f && cat ~/f; echo z > /var/tmp/f && cat /var/tmp/f",
        places.join(" ")
    );
    let seen = run_with(
        &mut client,
        &managed(&[special("root", "read"), special("project_roots", "write")]),
        &script,
    );
    assert!(seen["structuredContent"]["stdout"].as_str().unwrap().lines().count() > 4, "{seen:#}");
    let state = managed(&[special("minimal", "read"), special("project_roots", "write")]);
    let result = run_with(&mut client, &state, &script);
    assert_eq!(result["structuredContent"]["stdout"], "system\nx\ny\nz\n", "{result:#}");
    let elsewhere = managed(&[special("minimal", "read"), entry("/opt", "write")]);
    for (tool, arguments) in
        [("shell.exec", json!({"command": "true"})), ("file.read", json!({"path": "made"}))]
    {
        assert_reason(&call_with(&mut client, &elsewhere, tool, arguments), "client_denied");
    }
    // A place that is denied around the workspace, which is not.
    let around = managed(&[
        special("root", "read"),
        entry("/var", "deny"),
        entry("/var/log", "read"),
        special("project_roots", "write"),
    ]);
    let result = run_with(&mut client, &around, "ls /var/lib; ls -d /var/log /var/tmp");
    assert_eq!(result["structuredContent"]["stdout"], "/var/log\n/var/tmp\n", "{result:#}");
}

/// Another directory that the operator lets be written needs the client's word too.
#[test]
fn other_writable_places_are_narrowed_as_well() {
    let scratch = crate::support::server::Scratch::new();
    let data = scratch.path().join("data");
    std::fs::create_dir_all(data.join("sub")).unwrap();
    let mut server = Options::new(Transport::Stdio)
        .on(&scratch)
        .config(&format!("[sandbox]\nwritable = [{:?}]", data.display().to_string()))
        .spawn();
    let mut client = server.connect(SESSIONS);
    let script = format!(
        "cd {}; touch a && echo a; chmod 777 . && echo mode; touch sub/b && echo b; true",
        data.display()
    );
    let stdout = |client: &mut Client, state: &Value| {
        run_with(client, state, &script)["structuredContent"]["stdout"].clone()
    };
    let excluding =
        json!({"sandboxPolicy": {"type": "workspace-write", "exclude_slash_tmp": true}});
    assert_eq!(stdout(&mut client, &excluding), "");
    let part = managed(&[
        special("root", "read"),
        special("project_roots", "write"),
        entry(data.join("sub"), "write"),
    ]);
    assert_eq!(stdout(&mut client, &part), "b\n");
    let whole = json!({"sandboxPolicy": {"type": "workspace-write", "exclude_slash_tmp": true, "writable_roots": [data]}});
    assert_eq!(stdout(&mut client, &whole), "a\nmode\nb\n");
}

/// The same command with and without the client's word: the host's network, and a proxy's.
#[test]
fn a_network_that_the_client_takes_away_is_gone() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 1]);
        }
    });
    let script = format!(
        "(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo reached; echo ${{http_proxy:-none}} | cut -c1-4"
    );
    for (config, before) in [
        ("allow_network = true", "reached\nnone\n"),
        ("allow_domains = [\"example.org\"]", "http\n"),
    ] {
        let mut server =
            Options::new(Transport::Stdio).config(&format!("[sandbox]\n{config}")).spawn();
        let mut client = server.connect(SESSIONS);
        for (network, said, called) in [(true, before, "*"), (false, "none\n", "off")] {
            let state =
                json!({"sandboxPolicy": {"type": "workspace-write", "network_access": network}});
            let result = run_with(&mut client, &state, &script);
            assert_eq!(result["structuredContent"]["stdout"], said, "{config}: {result:#}");
            assert_holds(json!(called), &result["structuredContent"]["sandbox"]["network"]);
        }
    }
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let given =
        run_with(&mut client, &json!({"sandboxPolicy": {"type": "danger-full-access"}}), &script);
    assert_eq!(given["structuredContent"]["stdout"], "none\n", "a client gives no network");
}

/// The client's word opens nothing that the operator has closed.
/// A run that may do more serves whoever reaches it: on the loopback, by a socket or a pipe in /tmp, by its terminal, in
/// shared memory. A call that the client lets do less reaches none of that, and the run lives on.
#[test]
fn a_narrowed_call_reaches_no_wider_run_of_its_session() {
    const SERVE: &str = r#"
import os, pty, socket, threading
here, there = pty.openpty()
open('terminal', 'w').write(os.ttyname(there))
os.mkfifo('/tmp/pipe'); open('/dev/shm/common', 'w').write('wide')
tcp = socket.create_server(('127.0.0.1', 7070))
unix = socket.socket(socket.AF_UNIX); unix.bind('/tmp/socket'); unix.listen()
named = socket.socket(socket.AF_UNIX); named.bind('\0named'); named.listen()
in_workspace = socket.socket(socket.AF_UNIX); in_workspace.bind('socket'); in_workspace.listen()
def answer(server):
    while True:
        client = server.accept()[0]; client.sendall(b'wide'); client.close()
for server in (tcp, unix, named, in_workspace):
    threading.Thread(target=answer, args=(server,), daemon=True).start()
open('ready', 'w')
while not os.path.exists('over'):
    os.read(os.open('wait', os.O_RDONLY), 1)
"#;
    const REACH: &str = r#"
import os, socket
terminal = open('terminal').read()
def dial(family, address):
    with socket.socket(family) as client:
        client.settimeout(20); client.connect(address); return client.recv(4)
for name, way in [
    ('tcp', lambda: dial(socket.AF_INET, ('127.0.0.1', 7070))), ('unix', lambda: dial(socket.AF_UNIX, '/tmp/socket')),
    ('named', lambda: dial(socket.AF_UNIX, '\0named')), ('workspace', lambda: dial(socket.AF_UNIX, 'socket')),
    ('pipe', lambda: os.stat('/tmp/pipe')), ('terminal', lambda: os.open(terminal, os.O_RDWR | os.O_NOCTTY)),
    ('memory', lambda: open('/dev/shm/common').read()),
]:
    try: way(); print(name, 'reached')
    except OSError as error: print(name, 'refused')
"#;
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let workspace = server.workspace().to_owned();
    std::fs::write(workspace.join("serve.py"), SERVE).unwrap();
    std::fs::write(workspace.join("reach.py"), REACH).unwrap();
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        workspace.join("wait"),
        rustix::fs::Mode::from_raw_mode(0o600),
    )
    .unwrap();
    let wide = client.start_call("shell.exec", &json!({"command": "python3 serve.py"}));
    eventually(Duration::from_secs(60), "it serves", || workspace.join("ready").exists());
    let reach = "python3 reach.py";
    let all =
        client.call("shell.exec", json!({"command": reach}))["result"]["structuredContent"].clone();
    assert_eq!(all["stdout"].as_str().unwrap().matches("reached").count(), 7, "{all:#}");
    let states = [
        managed(&[special("root", "read")]),
        json!({"sandboxPolicy": {"type": "workspace-write", "writable_roots": [], "network_access": false}}),
    ];
    for state in &states {
        let result = run_with(&mut client, state, reach);
        let said = result["structuredContent"]["stdout"].as_str().unwrap();
        assert_eq!(said.matches("refused").count(), 7, "{state} {said}");
    }
    // Calls under the same word have what they leave in common, and others do not.
    run_with(&mut client, &states[0], "echo mine > /tmp/left");
    assert_eq!(exit_code(&run_with(&mut client, &states[0], "cat /tmp/left")), 0);
    assert_eq!(exit_code(&run_with(&mut client, &states[1], "cat /tmp/left")), 1);
    std::fs::write(workspace.join("over"), "").unwrap();
    std::fs::write(workspace.join("wait"), "x").unwrap();
    assert_eq!(exit_code(&client.wait(&wide)["result"]), 0, "the wider run lives on");
}

const WORKSPACE_WRITE: &str = r#"{"sandboxPolicy": {"type": "workspace-write", "writable_roots": [], "network_access": false}}"#;

/// What stands in for a missing `.git` while something runs is not the client's business: its word decides.
#[test]
fn calls_under_the_same_word_have_one_sandbox_whatever_runs_meanwhile() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let state: Value = serde_json::from_str(WORKSPACE_WRITE).unwrap();
    let serve = "echo mine > /tmp/left; exec python3 -m http.server --bind 127.0.0.1 7071";
    let begun =
        call_with(&mut client, &state, "shell.exec", json!({"command": serve, "yield_ms": 1}));
    let id = begun["structuredContent"]["exec_id"]
        .as_str()
        .unwrap_or_else(|| panic!("{begun:#}"))
        .to_owned();
    let fetch = "python3 -c 'import time, urllib.request\nfor left in range(600, 0, -1):\n try: print(urllib.request.urlopen(\"http://127.0.0.1:7071/\").status); break\n except OSError:\n  if left == 1: raise\n  time.sleep(0.05)'; cat /tmp/left";
    let found = run_with(&mut client, &state, fetch);
    assert_holds(json!({"stdout": "200\nmine\n"}), &found["structuredContent"]);
    let session = |op: &str| json!({"op": op, "id": id, "signal": "KILL"});
    // Another word has no say in it, not even by a signal.
    let less = managed(&[special("root", "read")]);
    let refused = call_with(&mut client, &less, "shell.session", session("signal"));
    assert_reason(&refused, "client_sandbox");
    let read = call_with(&mut client, &state, "shell.session", session("read"));
    assert_holds(json!({"status": "running"}), &read["structuredContent"]);
    assert_eq!(
        call_with(&mut client, &state, "shell.session", session("signal"))["isError"],
        false
    );
}

/// Who may not write the workspace leaves nothing that a wider run would execute.
#[test]
fn a_call_that_only_reads_has_a_home_of_its_own() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    let read_only = managed(&[special("root", "read")]);
    assert_eq!(
        exit_code(&run_with(&mut client, &read_only, "echo mine > ~/planted && cat ~/planted")),
        0
    );
    let seen = client.call("shell.exec", json!({"command": "cat ~/planted"}));
    assert_eq!(exit_code(&seen["result"]), 1);
    let writes: Value = serde_json::from_str(WORKSPACE_WRITE).unwrap();
    assert_eq!(exit_code(&run_with(&mut client, &writes, "echo cache > ~/cached")), 0);
    let seen = client.call("shell.exec", json!({"command": "cat ~/cached"}));
    assert_eq!(exit_code(&seen["result"]), 0, "caches are common to those who write");
}

/// A page acts for the call that opened it, with its connections.
#[test]
fn pages_of_wider_calls_are_not_a_narrowed_calls() {
    let mut server = Options::new(Transport::Stdio).args(&["--tools", "all"]).spawn();
    let mut client = server.connect(SESSIONS);
    std::fs::write(server.workspace().join("index.html"), "<title>wide page</title>").unwrap();
    let serve =
        json!({"command": "exec python3 -m http.server --bind 127.0.0.1 7072", "yield_ms": 1});
    client.call("shell.exec", serve.clone());
    let open = json!({"url": "http://127.0.0.1:7072/"});
    let mut opened = Value::Null;
    eventually(Duration::from_secs(60), "the page is open", || {
        opened = client.call("browser.navigate", open.clone())["result"].clone();
        opened["isError"] == false
    });
    let state: Value = serde_json::from_str(WORKSPACE_WRITE).unwrap();
    let tabs = call_with(&mut client, &state, "browser.tabs", json!({}));
    assert_holds(json!({"pages": []}), &tabs["structuredContent"]);
    let reached = call_with(&mut client, &state, "browser.navigate", open.clone());
    assert_eq!(reached["isError"], true, "{reached:#}");
    // Its own server it does reach.
    call_with(&mut client, &state, "shell.exec", serve);
    eventually(Duration::from_secs(60), "its own page is open", || {
        call_with(&mut client, &state, "browser.navigate", open.clone())["isError"] == false
    });
    let wide = client.call("browser.tabs", json!({}))["result"]["structuredContent"].clone();
    assert_eq!(wide["pages"].as_array().map(Vec::len), Some(1), "{wide:#}");
}

#[test]
fn no_state_widens_what_the_operator_allows() {
    let mut server = Options::new(Transport::Stdio)
        .config("[sandbox]\nprotect = [\"locked\"]\nhide = [\"secret\"]")
        .spawn();
    for name in ["locked", "secret", ".codex"] {
        std::fs::create_dir_all(server.workspace().join(name)).unwrap();
        std::fs::write(server.workspace().join(name).join("file"), "hunter2").unwrap();
    }
    let mut client = server.connect(SESSIONS);
    let at = server.workspace();
    let opened = managed(&[
        special("root", "write"),
        entry(at.join("locked"), "write"),
        entry(at.join("secret"), "write"),
        entry(at.join(".codex"), "write"),
    ]);
    let parts = managed(&[
        special("root", "read"),
        entry(at.join("locked"), "write"),
        entry(at.join("secret"), "write"),
        entry(at.join(".codex"), "write"),
        entry("/etc", "write"),
    ]);
    for state in [json!({"permissionProfile": {"type": "disabled"}}), opened, parts] {
        let script = "for at in locked secret .codex /etc; do touch $at/made && echo $at; done; cat secret/file; true";
        let result = run_with(&mut client, &state, script);
        assert_eq!(result["structuredContent"]["stdout"], "", "{state:#} {result:#}");
        for path in ["locked/x", "secret/x", ".codex/x"] {
            assert_eq!(
                call_with(&mut client, &state, "file.write", json!({"path": path, "content": ""}))
                    ["isError"],
                true
            );
        }
    }
}

/// A link that an earlier run has laid does not make a part of the workspace the whole of it.
#[test]
fn a_link_in_place_of_a_part_opens_nothing() {
    let mut server: Server = Options::new(Transport::Stdio).spawn();
    std::fs::create_dir_all(server.workspace().join("src")).unwrap();
    let mut client = server.connect(SESSIONS);
    let prepared =
        client.call("shell.exec", json!({"command": "mv src old && ln -s . src"}))["result"]
            .clone();
    assert_eq!(exit_code(&prepared), 0);
    let state = managed(&[special("root", "read"), entry(server.workspace().join("src"), "write")]);
    let result = run_with(&mut client, &state, "touch made src/made old/made && echo wrote; true");
    assert_eq!(result["structuredContent"]["stdout"], "", "{result:#}");
    assert_reason(
        &call_with(&mut client, &state, "file.write", json!({"path": "src/made", "content": ""})),
        "client_read_only",
    );
}

/// Landlock alone cannot take a part out of what is writable, nor hide anything.
#[test]
fn without_namespaces_writing_is_narrowed_and_what_cannot_be_kept_is_said() {
    let mut server =
        Options::new(Transport::Stdio).config("sandbox.profile = \"contained\"").spawn();
    std::fs::create_dir_all(server.workspace().join("sub")).unwrap();
    let mut client = server.connect(SESSIONS);
    let result = run_with(
        &mut client,
        &json!({"sandboxPolicy": {"type": "read-only"}}),
        "touch made sub/made",
    );
    assert_eq!(exit_code(&result), 1, "{result:#}");
    let part = managed(&[special("root", "read"), entry(server.workspace().join("sub"), "write")]);
    let result = run_with(&mut client, &part, "touch sub/made && ! touch made");
    assert_eq!(exit_code(&result), 0, "{result:#}");
    let closed = entry(server.workspace().join("sub"), "read");
    let result = run_with(&mut client, &managed(&[special("root", "write"), closed]), "true");
    assert_holds(
        json!(["~cannot keep parts of a writable directory read-only"]),
        &result["structuredContent"]["warnings"],
    );
    let denied =
        managed(&[special("root", "write"), entry(server.workspace().join("sub"), "deny")]);
    assert_reason(&run_with(&mut client, &denied, "touch made"), "client_sandbox");
    assert_reason(
        &run_with(&mut client, &managed(&[special("project_roots", "write")]), "touch made"),
        "client_sandbox",
    );
    assert!(!server.workspace().join("made").exists());
}
