//! Starts and ends: a server that cannot start tells its client why, one that was started by hand tells what it waits
//! for, and none leaves processes or files behind.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::channel;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::matrix::{eras, on_cell};
use crate::support::process::{parent, with_argument};
use crate::support::server::{Scratch, ringfence};
use crate::support::subset::assert_holds;
use crate::support::{Client, DEADLINE, MODERN, Options, SESSIONS, Server, Transport, eventually};

/// Starts the command, writes to its standard input, and waits for its end. The input stays open, so that the server
/// ends by itself or not at all.
fn run(command: &mut Command, input: &str) -> Output {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // It may have ended before it has read this.
    let _ = stdin.write_all(input.as_bytes());
    let (sender, output) = channel();
    std::thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
    let output = output.recv_timeout(DEADLINE).expect("the server ends by itself");
    drop(stdin);
    output
}

struct FailedStart {
    options: Options,
    /// Fields of the error's data.
    data: Value,
    /// A part of what standard error says.
    stderr: &'static str,
}

fn failed_starts(scratch: &Scratch) -> Vec<FailedStart> {
    let stdio = || Options::new(Transport::Stdio);
    let at_home = Options { workspace: false, ..stdio() };
    let home = scratch.path().join("home").display().to_string();
    let config = |line: u32, key: &str| {
        let file = scratch.path().join("config.toml");
        json!({"kind": "invalid_arguments", "reason": "bad_config", "file": file, "line": line, "key": key})
    };
    vec![
        FailedStart {
            options: at_home.args(&["--workspace", &home]),
            data: json!({"kind": "invalid_arguments", "reason": "bad_workspace"}),
            stderr: "home directory",
        },
        FailedStart {
            options: stdio().config("\n[approval]\nexpiry_s = \"planted-value\""),
            data: config(3, "approval.expiry_s"),
            stderr: "planted-value",
        },
        FailedStart {
            options: stdio().config("tools = \"planted-value\""),
            data: config(1, "tools"),
            stderr: "planted-value",
        },
        FailedStart {
            options: stdio().config("[limits]\ngrace = \"planted-value\""),
            data: config(2, "limits.grace"),
            stderr: "there is no key `grace` here",
        },
        FailedStart {
            options: stdio().config("tools = planted-value"),
            data: json!({"kind": "invalid_arguments", "reason": "bad_config", "line": 1}),
            stderr: "config.toml:1:",
        },
        FailedStart {
            options: stdio().arg("--no-such-flag"),
            data: json!({"kind": "invalid_arguments", "reason": "bad_flag"}),
            stderr: "--no-such-flag",
        },
    ]
}

#[test]
fn a_failed_start_answers_the_first_request_with_the_reason() {
    let scratch = Scratch::new();
    let initialize = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "it", "version": "1"}});
    let requests = [
        json!({"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": initialize}),
        json!({"jsonrpc": "2.0", "id": "d", "method": "server/discover", "params": {}}),
        json!({"jsonrpc": "2.0", "id": 0, "method": "no/such/method"}),
        json!({"jsonrpc": "2.0", "id": "t", "method": "tools/list"}),
    ];
    for failed in failed_starts(&scratch) {
        for request in &requests {
            let notification = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
            let input = format!("{notification}\n{request}\n{request}\n");
            let output = run(&mut failed.options.command(&scratch), &input);
            let (out, err) = (
                String::from_utf8(output.stdout).unwrap(),
                String::from_utf8(output.stderr).unwrap(),
            );
            assert!(
                output.status.code().is_some_and(|code| code != 0),
                "{:?}\n{err}",
                output.status
            );
            assert!(err.contains(failed.stderr), "{err}");
            assert_eq!(out.lines().count(), 1, "one answer: {out}\n{err}");
            let answer: Value = serde_json::from_str(&out).unwrap();
            assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &request["id"]));
            let error = &answer["error"];
            assert_holds(failed.data.clone(), &error["data"]);
            assert!(
                error["message"].as_str().unwrap().starts_with("ringfence cannot start: "),
                "{out}"
            );
            assert!(error["code"].is_i64() && error["data"]["trace_id"].is_string(), "{out}");
            assert!(error["data"]["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{out}");
            assert!(!out.contains("planted"), "a value of the config file: {out}");
        }
    }
}

#[test]
fn a_failed_start_without_a_request_ends_without_a_word_on_standard_output() {
    let bad = |transport| Options::new(transport).config("tools = 3");
    // The end of input, then an open pipe on which no request comes.
    let mut outputs = vec![bad(Transport::Stdio).refuse()];
    for input in ["", "{\"jsonrpc\": \"2.0\", \"method\": \"notifications/initialized\"}\nnoise\n"]
    {
        outputs.push(run(&mut bad(Transport::Stdio).command(&Scratch::new()), input));
    }
    // A server for the network has no client there.
    let request = "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"ping\"}\n";
    outputs.push(run(&mut bad(Transport::Http).command(&Scratch::new()), request));
    for output in outputs {
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{output:?}");
    }
}

/// Runs a command with a terminal as its standard input, on which a request has been typed. When standard error says
/// `Ctrl-C`, it is pressed.
const ON_A_TERMINAL: &str = r#"
import os, pty, signal, subprocess, sys
master, slave = pty.openpty()
os.write(master, b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
child = subprocess.Popen(sys.argv[1:], stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
for line in child.stderr:
    sys.stderr.buffer.write(line)
    if b"Ctrl-C" in line:
        child.send_signal(signal.SIGINT)
sys.stdout.buffer.write(child.stdout.read())
sys.exit(child.wait())
"#;

fn on_a_terminal(options: &Options) -> (Option<i32>, String, String) {
    let scratch = Scratch::new();
    let server = options.command(&scratch);
    let mut command = Command::new("python3");
    command.args(["-c", ON_A_TERMINAL]).arg(server.get_program()).args(server.get_args());
    command.env_clear().current_dir(scratch.path().join("workspace"));
    command.envs(server.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = run(&mut command, "");
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_server_on_a_terminal_says_what_it_waits_for() {
    let (code, _, stderr) = on_a_terminal(&Options::new(Transport::Stdio));
    assert_eq!(code, Some(0), "{stderr}");
    for part in ["MCP client on standard input", "ringfence connect codex", "Ctrl-C"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
}

#[test]
fn a_failed_start_on_a_terminal_waits_for_nothing() {
    let (code, stdout, stderr) = on_a_terminal(&Options::new(Transport::Stdio).config("tools = 3"));
    assert_eq!((code, stdout.as_str()), (Some(64), ""), "{stderr}");
    assert!(stderr.contains("config.toml:1:9") && !stderr.contains("MCP client"), "{stderr}");
}

/// Runs a command whose output is stored, and gives back the handle of the output.
fn store_output(client: &mut Client) -> String {
    let result = client.call("shell.exec", json!({"command": "seq 1 100000"}))["result"].clone();
    result["structuredContent"]["output"]
        .as_str()
        .unwrap_or_else(|| panic!("{result:#}"))
        .to_owned()
}

#[test]
fn outputs_of_a_killed_server_are_removed_at_the_next_start() {
    let scratch = Scratch::new();
    let start = || Options::new(Transport::Stdio).on(&scratch).spawn();
    let stored = || {
        let entries = std::fs::read_dir(scratch.path().join("root/outputs")).into_iter().flatten();
        entries.filter(|entry| entry.as_ref().unwrap().file_type().unwrap().is_dir()).count()
    };
    let (mut alive, mut killed) = (start(), start());
    let mut client = alive.connect(SESSIONS);
    let output = store_output(&mut client);
    let mut other = killed.connect(SESSIONS);
    store_output(&mut other);
    assert_eq!(stored(), 2);
    killed.signal(Signal::KILL);
    killed.ended();
    assert_eq!(stored(), 2);
    let mut next = start();
    let _client = next.connect(SESSIONS);
    eventually(DEADLINE, "the outputs of the killed server are gone", || stored() == 1);
    let read = client.call("file.read", json!({"path": output}))["result"].clone();
    assert_ne!(read["isError"], true, "a live server's outputs are not touched: {read:#}");
}

/// The zygotes of a server, whatever stands between.
fn zygotes(server: &Server) -> Vec<u32> {
    let is_below = |pid: &u32| {
        let ancestors =
            std::iter::successors(Some(*pid), |pid| Some(parent(*pid)).filter(|pid| *pid > 1));
        ancestors.skip(1).any(|ancestor| ancestor == server.pid())
    };
    with_argument("__zygote").into_iter().filter(is_below).collect()
}

#[test]
fn no_zygote_outlives_its_server() {
    // On 2026-07-28 a request without a handle has no session that could keep one.
    for cell in eras().filter(|cell| cell.version != MODERN) {
        for signal in [Signal::TERM, Signal::INT] {
            on_cell(
                cell,
                |options| options,
                |server, client| {
                    client.call("shell.exec", json!({"command": "true"}));
                    let zygotes = zygotes(server);
                    assert!(!zygotes.is_empty(), "{:?} {}", cell.transport, cell.version);
                    server.signal(signal);
                    assert!(server.ended().success(), "{}", server.log());
                    let left =
                        zygotes.iter().filter(|pid| Path::new(&format!("/proc/{pid}")).exists());
                    assert_eq!(left.count(), 0, "{:?} {}", cell.transport, cell.version);
                },
            );
        }
    }
}

/// The first command that a new user types.
#[test]
fn the_version_is_one_line_with_name_and_number() {
    for flag in ["--version", "-V"] {
        let output = ringfence(&Scratch::new()).arg(flag).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let expected = format!("ringfence {}\n", env!("CARGO_PKG_VERSION"));
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }
}
