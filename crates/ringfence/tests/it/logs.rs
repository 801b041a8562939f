//! The server's own log: what is in it, where it goes, and that what is in it alone does not reach a client.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::place::visible_folder;
use crate::support::process::{parent, with_argument};
use crate::support::server::Scratch;
use crate::support::{
    Client, DEADLINE, Options, SESSIONS, Server, Transport, eventually, on_every_transport,
};

/// A server whose log goes to a file as JSON, all of it.
fn logging(options: Options, scratch: &Arc<Scratch>) -> Options {
    options.on(scratch).arg("--log-file").arg(scratch.path().join("log").to_str().unwrap()).args(&[
        "--log-level",
        "info",
        "--log-format",
        "json",
    ])
}

fn lines(server: &Server) -> Vec<Value> {
    let text = std::fs::read_to_string(server.scratch.path().join("log")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

fn trace_of(answer: &Value) -> &str {
    let found = [
        &answer["result"]["structuredContent"]["error"]["trace_id"],
        &answer["error"]["data"]["trace_id"],
        &answer["result"]["_meta"]["dev.ringfence/trace_id"],
    ];
    found.into_iter().find_map(Value::as_str).unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn the_end_of_a_call_is_logged_as_it_is_on_record() {
    on_every_transport(
        |options| logging(options, &Scratch::new()).unfenced(),
        |server, client| {
            client.call("shell.exec", json!({"command": "echo out; echo err >&2; exit 3"}));
            client.call("file.read", json!({"path": "missing"}));
            client.approve = crate::support::Approve::Decline;
            client.call("shell.exec", json!({"command": "true"}));
            let stops = server.stops(3);
            let mut ends = Vec::new();
            eventually(DEADLINE, "the calls are in the log", || {
                ends = lines(server)
                    .into_iter()
                    .filter(|line| line["message"] == "a call ended")
                    .collect();
                ends.len() == 3
            });
            for (end, stop) in ends.iter().zip(&stops) {
                let fields = [
                    "trace_id",
                    "session",
                    "principal",
                    "tool",
                    "arguments_hash",
                    "cwd",
                    "profile",
                    "timeout_ms",
                ];
                let more = [
                    "approval",
                    "started",
                    "stopped",
                    "duration_ms",
                    "status",
                    "error",
                    "reason",
                    "exit_code",
                ];
                for name in
                    fields.iter().chain(&more).chain(&["stdout_bytes", "stderr_bytes", "signal"])
                {
                    assert_eq!(end[name], stop[name], "{name} of {end:#}\nand {stop:#}");
                }
                for name in ["trace_id", "session", "tool"] {
                    assert_eq!(
                        end["span"][name], stop[name],
                        "every line about a call has its {name}: {end:#}"
                    );
                }
            }
            let [ran, failed, denied] = &ends[..] else { unreachable!() };
            assert_eq!((&ran["exit_code"], &ran["approval"]), (&json!(3), &json!("approved")));
            assert_eq!((&ran["stdout_bytes"], &ran["stderr_bytes"]), (&json!(4), &json!(4)));
            assert_eq!(
                (&failed["error"], &failed["approval"]),
                (&json!("not_found"), &json!("not_needed"))
            );
            assert_eq!(
                (&denied["status"], &denied["approval"]),
                (&json!("denied"), &json!("denied"))
            );
            assert!(denied["started"].is_null() && ran["started"].is_string());
        },
    );
}

#[test]
fn the_log_is_one_line_each_in_either_form_and_the_environment_has_its_say() {
    let run = |options: Options| {
        let mut server = options.env("RINGFENCE_LOG", "info").spawn();
        let mut client = server.connect(SESSIONS);
        client.call("file.read\nERROR forged", json!({}));
        client.call("file.read", json!({"path": "a\nERROR forged"}));
        client.hang_up();
        assert!(server.ended().success());
        server.log()
    };
    let pretty = run(Options::new(Transport::Stdio));
    assert!(pretty.contains("trace_id=") && pretty.contains("a call ended"), "{pretty}");
    assert!(
        pretty.lines().all(|line| !line.starts_with("ERROR") && !line.starts_with('{')),
        "{pretty}"
    );
    let json = run(Options::new(Transport::Stdio).env("RINGFENCE_LOG_FORMAT", "json"));
    assert!(
        json.lines().count() >= 2
            && json.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()),
        "{json}"
    );
    // A flag wins over the environment.
    let quiet = run(Options::new(Transport::Stdio).args(&["--log-level", "error"]));
    assert_eq!(quiet, "");
}

#[test]
fn a_log_file_is_private_is_appended_to_and_is_hidden_from_commands() {
    // Not in /tmp, of which every run has its own.
    let scratch = Scratch::within(visible_folder());
    let log = scratch.path().join("log");
    std::fs::write(&log, "{\"message\":\"from before\"}\n").unwrap();
    std::fs::set_permissions(&log, PermissionsExt::from_mode(0o644)).unwrap();
    let mut server = logging(Options::new(Transport::Stdio), &scratch).spawn();
    let mut client = server.connect(SESSIONS);
    let seen = client.call("shell.exec", json!({"command": format!("cat '{}'", log.display())}));
    let seen = &seen["result"]["structuredContent"];
    assert!(seen["exit_code"] != 0 && !seen.to_string().contains("from before"), "{seen}");
    server.stops(1);
    let written = lines(&server);
    assert_eq!(written[0]["message"], "from before");
    assert!(written.iter().any(|line| line["message"] == "a call ended"), "{written:?}");
    assert_eq!(log.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(server.log(), "", "nothing goes to standard error then");
}

#[test]
fn a_log_that_cannot_be_used_stops_the_start() {
    let refused = |options: Options| {
        let output = options.refuse();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    // Relative to where the server is started, which is the workspace here.
    let inside = refused(Options::new(Transport::Stdio).args(&["--log-file", "my.log"]));
    assert!(
        inside.contains("a directory that contains the log file") && inside.contains("hint: "),
        "{inside}"
    );
    for file in ["/nowhere/log", "/dev/full", "/"] {
        let said = refused(Options::new(Transport::Stdio).env("RINGFENCE_LOG_FILE", file));
        assert!(said.contains("cannot be used") && said.contains("--log-file"), "{file}: {said}");
    }
    let said = refused(Options::new(Transport::Stdio).env("RINGFENCE_LOG_FORMAT", "xml"));
    assert!(said.contains("RINGFENCE_LOG_FORMAT") && said.contains("pretty, json"), "{said}");
}

/// What is said about the config before the log that it describes is open.
#[test]
fn warnings_from_before_the_log_are_in_it() {
    let scratch = Scratch::new();
    let secret = scratch.path().join("secret");
    std::fs::write(&secret, "a secret that is long enough").unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o644)).unwrap();
    let config = format!("[auth]\nenabled = true\njwt_secret_file = '{}'", secret.display());
    let server = logging(Options::new(Transport::Http), &scratch).config(&config).spawn();
    let said = lines(&server);
    assert!(
        said.iter().any(|line| line["message"].as_str().unwrap().contains("can be read by others")),
        "{said:?}"
    );
}

/// Everything in a message that a client might show, except what a command itself has printed.
fn texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(members) => members.values().for_each(|member| texts(member, found)),
        _ => {}
    }
}

/// The words of a text that are absolute paths of a host.
fn paths(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| c.is_whitespace() || "`'\"()[]{},;=<>".contains(c));
    let words = words.map(|word| word.trim_end_matches(['.', ':', '…']));
    words
        .filter(|word| {
            word.len() > 2 && word.starts_with('/') && word[1..].starts_with(char::is_alphanumeric)
        })
        .collect()
}

fn assert_tells_nothing(server: &Server, message: &Value) {
    let workspace = server.workspace().canonicalize().unwrap_or_else(|_| server.workspace());
    let mut all = Vec::new();
    texts(message, &mut all);
    for text in all {
        for word in ["src/", "panicked", "RUST_BACKTRACE", "stack backtrace", ".rs:"] {
            assert!(!text.contains(word), "{word} in {text:?}\nof {message:#}");
        }
        for path in paths(&text) {
            assert!(Path::new(path).starts_with(&workspace), "{path} in {text:?}\nof {message:#}");
        }
    }
}

const ENTRIES: &str = "
browser.program = '/nowhere/chromium'
[mcp.gone]
command = '/nowhere/program'
requires_approval = false
[mcp.locked]
command = '/etc/passwd'
requires_approval = false
[mcp.secret]
command = 'true'
env.API_TOKEN = '${NOT_SET_ANYWHERE}'
requires_approval = false
[mcp.slow]
command = 'sleep'
args = ['60']
timeout_ms = 100
requires_approval = false
";

/// Kills the zygote of a server while a command runs.
fn lose_zygote(server: &Server, client: &mut Client) -> Value {
    let arguments = json!({"command": "touch begun; sleep 60"});
    let id = client.start_call("shell.exec", &arguments);
    let zygotes = || {
        with_argument("__zygote")
            .into_iter()
            .filter(|pid| parent(*pid) == server.pid())
            .collect::<Vec<_>>()
    };
    // A zygote of an earlier call is there before this one runs, and would only be started again.
    eventually(DEADLINE, "it runs", || server.workspace().join("begun").exists());
    for pid in zygotes() {
        let _ = kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL);
    }
    client.finish(id, "shell.exec", &arguments)
}

/// Friendly words for the client, the rest for the log, and one id that leads from the one to the other.
#[test]
fn errors_tell_clients_nothing_of_the_host_and_the_log_everything() {
    on_every_transport(
        |options| logging(options, &Scratch::new()).config(ENTRIES).arg("--conformance-fixtures"),
        |server, client| {
            let workspace = server.workspace();
            std::fs::create_dir(workspace.join("folder")).unwrap();
            std::os::unix::fs::symlink("/etc/hostname", workspace.join("out")).unwrap();
            std::fs::write(workspace.join("latin"), b"\xff\xfe\x00").unwrap();
            let calls = [
                ("gone", json!({})),
                ("locked", json!({})),
                ("secret", json!({})),
                ("slow", json!({})),
                ("slow", json!({"no": "such argument"})),
                ("test_panic", json!({})),
                ("file.read", json!({"path": "missing/file"})),
                ("file.read", json!({"path": "folder"})),
                ("file.read", json!({"path": "out"})),
                ("file.read", json!({"path": "../root/audit/key"})),
                ("file.read", json!({"path": "latin", "start_line": 900})),
                ("file.write", json!({"path": "folder", "content": "x"})),
                ("file.write", json!({"path": "out/x", "content": "x"})),
                ("file.list", json!({"path": "missing"})),
                ("file.search", json!({"pattern": "("})),
                ("file.replace", json!({"path": "missing", "old": "a", "new": "b"})),
                ("shell.exec", json!({"command": "true", "cwd": "missing"})),
                ("shell.exec", json!({"command": "true", "cwd": "../root"})),
                ("shell.exec", json!({"command": "yes", "timeout_ms": 300})),
                ("shell.exec", json!({})),
                ("shell.exec", json!({"argv": ["no-such-program"]})),
                ("code.exec", json!({"language": "cobol", "code": "x"})),
                ("browser.navigate", json!({"url": "http://127.0.0.1:1/"})),
                ("browser.screenshot", json!({"path": "x.png"})),
                ("no.such.tool", json!({})),
            ];
            for (tool, arguments) in &calls {
                let answer = client.call(tool, arguments.clone());
                let failed = answer["result"]["isError"] == true || answer["error"].is_object();
                assert!(failed, "{tool} {arguments}: {answer:#}");
                if failed {
                    assert_tells_nothing(server, &answer);
                    assert!(!trace_of(&answer).is_empty());
                }
            }
            let lost = lose_zygote(server, client);
            assert_tells_nothing(server, &lost);
            for (method, params) in [
                ("tools/call", json!({"name": 5})),
                ("no/method", json!({})),
                ("tools/call", json!({})),
            ] {
                assert_tells_nothing(server, &client.request(method, params)["error"]);
            }
            // The log has what the client has not, under the same id.
            for (tool, detail) in
                [("test_panic", "panicked at "), ("gone", "program"), ("locked", "passwd")]
            {
                let answer = client.call(tool, json!({}));
                let trace = trace_of(&answer).to_owned();
                assert_eq!(
                    answer["result"]["structuredContent"]["error"]["kind"], "internal",
                    "{answer:#}"
                );
                let about: Vec<Value> = lines(server)
                    .into_iter()
                    .filter(|line| line["span"]["trace_id"] == trace.as_str())
                    .collect();
                let has = |line: &Value| line["message"].as_str().unwrap().contains(detail);
                assert!(about.iter().any(has), "{tool}: {about:#?}");
                assert!(about.iter().any(|line| line["level"] == "ERROR"), "{tool}: {about:#?}");
            }
            // What the server needs for itself is gone, one after the other.
            let root = server.root();
            let _ = std::fs::remove_dir_all(root.join("outputs"));
            std::fs::write(root.join("outputs"), "").unwrap();
            assert_tells_nothing(
                server,
                &client.call("shell.exec", json!({"command": "yes | head -c 300000"}))["result"]["structuredContent"]
                    ["error"],
            );
            let rules = server.scratch.path().join("home/.codex/rules");
            std::fs::create_dir_all(&rules).unwrap();
            std::fs::write(rules.join("mine.rules"), "prefix_rule(").unwrap();
            let said = client.call("shell.exec", json!({"command": "true"}));
            if said["result"]["isError"] == true {
                assert_tells_nothing(server, &said);
            }
            std::fs::write(
                server.scratch.path().join("config.toml"),
                "root = '/nowhere'\nworkspace = '/nowhere/else'",
            )
            .unwrap();
            assert_tells_nothing(
                server,
                &client.request("mcp.capabilities", json!({}))["result"]["config"],
            );
            std::fs::rename(&workspace, server.scratch.path().join("moved")).unwrap();
            assert_tells_nothing(
                server,
                &client.call("file.write", json!({"path": "a/b", "content": "x"})),
            );
            std::fs::rename(server.scratch.path().join("moved"), &workspace).unwrap();
            std::fs::remove_dir_all(root.join("audit")).unwrap();
            std::fs::write(root.join("audit"), "").unwrap();
            let refused = client.call("file.list", json!({"path": "."}));
            assert_tells_nothing(server, &refused);
            for message in client.notifications.iter().chain(&client.questions) {
                assert_tells_nothing(server, message);
            }
        },
    );
}
