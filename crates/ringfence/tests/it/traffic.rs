//! What goes over the wire when nothing is wrong: the same everywhere, side by side, and in both directions.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::mpsc::channel;

use serde_json::{Value, json};

use crate::support::http::{Events, Exchange, Request};
use crate::support::matrix::{eras, on_cell};
use crate::support::process::status_kb;
use crate::support::server::ringfence;
use crate::support::{
    Approve, Client, DEADLINE, MODERN, Options, SESSIONS, Transport, eventually, on_every_transport,
};

/// What differs from run to run is taken out; what is left must be the same.
fn settled(value: &mut Value, base: &str) {
    match value {
        Value::Object(map) => {
            map.retain(|key, _| {
                ![
                    "trace_id",
                    "dev.ringfence/trace_id",
                    "dev.ringfence/session",
                    "duration_ms",
                    "mtime",
                    "resultType",
                ]
                .contains(&key.as_str())
            });
            map.values_mut().for_each(|value| settled(value, base));
            // Only 2026-07-28 has a session handle there, and then nothing else is left.
            map.retain(|key, value| {
                !(key == "_meta" && value.as_object().is_some_and(|meta| meta.is_empty()))
            });
        }
        Value::Array(items) => items.iter_mut().for_each(|value| settled(value, base)),
        Value::String(text) => {
            *text = text.replace(base, "BASE");
            let volatile = |line: &&str| {
                !line.starts_with("trace_id: ") && !line.ends_with(" ms") && !line.contains("mtime")
            };
            *text = text.split('\n').filter(volatile).collect::<Vec<_>>().join("\n");
        }
        _ => {}
    }
}

#[test]
fn the_same_call_has_the_same_result_everywhere() {
    let seen: RefCell<Option<Value>> = RefCell::new(None);
    on_every_transport(
        |options| options,
        |server, client| {
            let mut results = Vec::new();
            for (tool, arguments) in [
                (
                    "file.write",
                    json!({"path": "a/b.txt", "content": "one\ntwo\n", "diff": "unified"}),
                ),
                ("file.read", json!({"path": "a/b.txt"})),
                ("file.read", json!({"path": "a/none.txt"})),
                ("file.read", json!({"path": "../out"})),
                ("shell.exec", json!({"command": "cat; echo err >&2; exit 5", "stdin": "in\n"})),
                ("shell.exec", json!({"argv": ["no-such-program"]})),
                ("shell.exec", json!({"command": 1})),
                ("no.such", json!({})),
            ] {
                let mut message = client.call(tool, arguments);
                message.as_object_mut().unwrap().remove("id");
                settled(&mut message, server.scratch.path().to_str().unwrap());
                results.push(message);
            }
            let results = Value::from(results);
            let mut seen = seen.borrow_mut();
            let first = seen.get_or_insert_with(|| results.clone());
            assert_eq!(*first, results, "{} differs from the first", client.at());
        },
    );
}

#[test]
fn calls_do_not_wait_for_each_other() {
    for cell in eras() {
        on_cell(
            cell,
            |options| options,
            |server, client| {
                client.approve = Approve::Session;
                client.call("shell.exec", json!({"command": "true"}));
                let slow = client.start_call(
                    "shell.exec",
                    &json!({"command": "while [ ! -e go ]; do sleep 0.02; done; echo slow"}),
                );
                eventually(DEADLINE, "it runs", || server.events("call.start").len() == 2);
                for _ in 0..5 {
                    let quick = client.call("shell.exec", json!({"command": "echo quick"}));
                    assert_eq!(
                        quick["result"]["structuredContent"]["stdout"],
                        "quick\n",
                        "{}: {quick}",
                        client.at()
                    );
                }
                std::fs::write(server.workspace().join("go"), "").unwrap();
                let message = client.wait(&slow);
                assert_eq!(
                    message["result"]["structuredContent"]["stdout"],
                    "slow\n",
                    "{}: {message}",
                    client.at()
                );
            },
        );
    }
}

/// Two clients on one server see nothing of each other.
#[test]
fn sessions_keep_their_outputs_to_themselves() {
    for transport in [Transport::Http, Transport::Sse] {
        for version in [SESSIONS, MODERN] {
            let mut server = Options::new(transport).spawn();
            let mut one = server.connect(version);
            let mut two = server.connect(version);
            let long = one.call("shell.exec", json!({"command": "seq 100000", "max_bytes": 300}));
            let arguments =
                json!({"path": long["result"]["structuredContent"]["output"], "limit": 1});
            assert_eq!(one.call("file.read", arguments.clone())["result"]["isError"], false);
            let other = two.call("file.read", arguments);
            assert_eq!(
                other["result"]["structuredContent"]["error"]["kind"], "not_found",
                "{other}"
            );
        }
    }
}

/// A session is gone with its trust and its outputs; the next one starts from nothing.
#[test]
fn nothing_is_left_of_a_session_that_has_ended() {
    let mut server = Options::new(Transport::Http).unfenced().spawn();
    let mut client = server.connect(SESSIONS);
    client.approve = Approve::Session;
    let long = client.call("shell.exec", json!({"command": "seq 100000", "max_bytes": 300}));
    let path = long["result"]["structuredContent"]["output"].clone();
    let outputs = server.root().join("outputs");
    // Its directory, and the lock that shows that its owner lives.
    assert_eq!(
        std::fs::read_dir(&outputs)
            .unwrap()
            .flatten()
            .filter(|entry| entry.path().is_dir())
            .count(),
        1
    );
    assert!((200..300).contains(&client.delete()));
    eventually(DEADLINE, "its outputs are removed", || {
        std::fs::read_dir(&outputs).unwrap().count() == 0
    });
    client.shake_hands();
    client.approve = Approve::Decline;
    let read = client.call("file.read", json!({"path": path}));
    assert_eq!(read["result"]["structuredContent"]["error"]["kind"], "not_found", "{read}");
    let run = client.call("shell.exec", json!({"command": "true"}));
    assert_eq!(run["result"]["structuredContent"]["error"]["kind"], "approval_denied", "{run}");
}

/// Answers go out while a session's own stream is open, and it ends with the session.
#[test]
fn a_session_has_one_stream_of_its_own() {
    let mut server = Options::new(Transport::Http).spawn();
    let mut client = server.connect(SESSIONS);
    client.listen();
    assert!(client.request("tools/list", json!({}))["result"]["tools"].is_array());
    assert!((200..300).contains(&client.delete()));
    assert_eq!(client.delete(), 404);
}

/// Calls a tool over HTTP; the body of the answer has not been read.
fn post_call(client: &Client, address: SocketAddr, params: Value) -> Exchange {
    let params = client.dressed("tools/call", params);
    let message = json!({"jsonrpc": "2.0", "id": "x", "method": "tools/call", "params": params});
    let exchange =
        client.post_request(message.to_string().as_bytes(), Some(&message)).send(address).unwrap();
    exchange.stream.set_read_timeout(Some(DEADLINE)).unwrap();
    exchange
}

/// A stream is for what comes before an answer. Where nothing does, it would only cost.
#[test]
fn a_call_that_says_nothing_is_answered_with_one_json_body() {
    for version in ["2025-06-18", SESSIONS, MODERN] {
        let mut server = Options::new(Transport::Http).arg("--conformance-fixtures").spawn();
        let client = server.connect(version);
        for name in ["test_simple_text", "test_error_handling", "no_such_tool"] {
            let mut answer = None;
            // On a busy machine even this call may take so long that it gets a stream.
            eventually(DEADLINE, "a call is answered with JSON", || {
                let exchange = post_call(&client, server.address(), json!({"name": name}));
                answer = (!exchange.is_stream()).then(|| exchange.whole());
                answer.is_some()
            });
            let answer = answer.unwrap();
            assert_eq!(answer.header("content-type"), Some("application/json"), "{version}");
            assert_eq!(answer.header("content-length"), Some(&*answer.body.len().to_string()));
            let message: Value = serde_json::from_slice(&answer.body).unwrap();
            assert_eq!(message["id"], "x", "{version} {name}: {message}");
        }
    }
}

/// What a call says arrives before its answer, in the order in which it was said.
#[test]
fn a_call_that_says_something_is_answered_with_a_stream() {
    for version in ["2025-06-18", SESSIONS, MODERN] {
        let mut server = Options::new(Transport::Http).arg("--conformance-fixtures").spawn();
        let client = server.connect(version);
        let call = json!({"name": "test_tool_with_progress", "_meta": {"progressToken": "p"}});
        let exchange = post_call(&client, server.address(), call);
        assert!(exchange.is_stream(), "{version}");
        let mut events = Events(BufReader::new(exchange.body));
        let messages: Vec<Value> = std::iter::from_fn(|| events.next())
            .filter_map(|event| serde_json::from_str(&event.data).ok())
            .collect();
        let said: Vec<&Value> = messages.iter().map(|it| &it["params"]["progress"]).collect();
        assert_eq!(said, [&json!(0.0), &json!(50.0), &json!(100.0), &Value::Null], "{version}");
        assert_eq!(messages[3]["id"], "x", "{version}: {messages:?}");
    }
}

/// A 2025 client that waits for the head of an answer is not left in doubt by a call that takes long.
#[test]
fn the_head_of_an_answer_does_not_wait_for_a_slow_call() {
    let mut server = Options::new(Transport::Http).arg("--conformance-fixtures").spawn();
    let client = server.connect(SESSIONS);
    let call = json!({"name": "test_sleep", "arguments": {"ms": 60_000}});
    let exchange = post_call(&client, server.address(), call);
    assert!(exchange.is_stream());
    assert!(server.events("call.stop").is_empty(), "the call has not ended");
}

/// An operator watches calls as they happen.
#[test]
fn the_log_can_be_followed() {
    let mut server = Options::new(Transport::Stdio).unfenced().spawn();
    let mut client = server.connect(SESSIONS);
    let mut follow = ringfence(&server.scratch)
        .args(["audit", "--follow", "--json", "--tool", "shell.exec", "--root"])
        .arg(server.root())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (sender, lines) = channel();
    let stdout = BufReader::new(follow.stdout.take().unwrap());
    std::thread::spawn(move || {
        stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    client.call("file.read", json!({"path": "missing"}));
    let message = client.call("shell.exec", json!({"command": "true"}));
    let trace = &message["result"]["structuredContent"]["trace_id"];
    for event in ["approval", "call.start", "call.stop"] {
        let line = lines.recv_timeout(DEADLINE).expect("a line as it happens");
        let record: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&record["event"], &record["trace_id"]), (&json!(event), trace));
    }
    follow.kill().unwrap();
    follow.wait().unwrap();
}

/// What a client sees of a fault inside is its kind and its trace, and nothing of this machine.
#[test]
fn errors_show_no_path_outside_the_workspace() {
    on_every_transport(
        |options| options,
        |server, client| {
            let root = server.root().display().to_string();
            let home = server.scratch.path().join("home").display().to_string();
            for (tool, arguments) in [
                ("file.read", json!({"path": "../root/audit/key"})),
                ("file.read", json!({"path": root})),
                ("file.write", json!({"path": "/proc/self/environ", "content": ""})),
                ("shell.exec", json!({"command": "true", "cwd": "../home"})),
                ("shell.exec", json!({"argv": ["./no-such-program"]})),
                ("file.read", json!({"path": "output:../../audit/key"})),
            ] {
                let asked = arguments.to_string();
                let text = client.call(tool, arguments)["result"].to_string();
                assert!(text.contains("trace_id"), "{text}");
                for path in [&root, &home] {
                    assert!(
                        !text.contains(path.as_str()) || asked.contains(path.as_str()),
                        "{}: {text}",
                        client.at()
                    );
                }
            }
        },
    );
}

/// The second would take the answer, and the cancellation, of the first. On 2026-07-28 over HTTP each request stands
/// alone, so there is no first.
#[test]
fn an_id_in_flight_is_not_used_twice() {
    for cell in eras().filter(|cell| (cell.transport, cell.version) != (Transport::Http, MODERN)) {
        on_cell(
            cell,
            |options| options.arg("--conformance-fixtures"),
            |server, client| {
                let arguments = json!({"ms": 60_000});
                let id = client.start_call("test_sleep", &arguments);
                eventually(DEADLINE, "the call has started", || {
                    server.events("call.start").len() == 1
                });
                let mut params = json!({"name": "test_sleep", "arguments": arguments});
                if client.is_modern() {
                    params["_meta"] = client.meta();
                }
                client.send(
                    &json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}),
                );
                assert_eq!(
                    client.wait(&id)["error"]["data"]["reason"],
                    "duplicate_id",
                    "{}",
                    client.at()
                );
                client.cancel(&id);
                eventually(DEADLINE, "the first has ended", || {
                    server.events("call.stop").len() == 1
                });
                assert_eq!(server.events("call.stop")[0]["cause"], "client");
                assert!(client.request("tools/list", json!({}))["result"]["tools"].is_array());
            },
        );
    }
}

#[test]
fn a_question_is_taken_back_when_its_call_is_cancelled() {
    for transport in [Transport::Stdio, Transport::Sse] {
        let mut server = Options::new(transport).unfenced().spawn();
        let mut client = server.connect(SESSIONS);
        client.approve = Approve::Never;
        let id = client.start_call("shell.exec", &json!({"command": "touch ran"}));
        let (question, _) = client.wait_question();
        client.cancel(&id);
        assert_eq!(
            client.wait_notification("notifications/cancelled")["params"]["requestId"],
            question
        );
        assert!(!server.workspace().join("ran").exists());
    }
}

/// A message of 2025 without a session runs nowhere: there would be nothing for its trust to end with.
#[test]
fn a_version_in_the_message_is_no_session() {
    let mut server = Options::new(Transport::Http).spawn();
    let client = server.connect(SESSIONS);
    let meta = json!({"io.modelcontextprotocol/protocolVersion": SESSIONS, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}});
    let params =
        json!({"name": "shell.exec", "arguments": {"command": "touch ran"}, "_meta": meta});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let mut request = client.post_request(message.to_string().as_bytes(), Some(&message));
    request.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("mcp-session-id"));
    let answer = request.fetch(server.address());
    assert_eq!(
        (answer.status, &answer.message()["error"]["data"]["reason"]),
        (400, &json!("not_initialized"))
    );
}

/// Answers nobody reads are counted: beyond a limit nothing more is taken in.
#[test]
fn a_client_that_only_sends_does_not_fill_our_memory() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    client.request("tools/list", json!({}));
    let before = status_kb(server.pid(), "VmRSS");
    client.pause(true);
    // Far more than the pipes hold. The server stops reading at some point, so this may not come to its end.
    let (sent, done) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for at in 0..20_000 {
                let list = json!({"jsonrpc": "2.0", "id": at, "method": "tools/list"});
                if client.try_send(&list).is_err() {
                    break;
                }
            }
            let _ = sent.send(());
        });
        let _ = done.recv_timeout(std::time::Duration::from_secs(3));
        let grown = status_kb(server.pid(), "VmRSS").saturating_sub(before);
        server.signal(rustix::process::Signal::KILL);
        assert!(grown < 40 * 1024, "{grown} KiB");
    });
}

/// A client may shut down its side once it has asked. It is answered all the same, early or late, whole or in a stream.
#[test]
fn a_client_that_has_said_all_is_answered() {
    let server = Options::new(Transport::Http).arg("--conformance-fixtures").spawn();
    let meta = json!({"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}});
    let post = |method: &str, name: &str, params: Value| {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        Request::post("/mcp", message.to_string())
            .header("MCP-Protocol-Version", MODERN)
            .header("Mcp-Method", method)
            .header("Mcp-Name", name)
    };
    let sleep = json!({"name": "test_sleep", "arguments": {"ms": 700}, "_meta": meta});
    let read = json!({"name": "file.read", "arguments": {"path": "long.txt"}, "_meta": meta});
    std::fs::write(server.workspace().join("long.txt"), "line\n".repeat(5000)).unwrap();
    for (request, word) in [
        (post("server/discover", "", json!({"_meta": meta})), "result"),
        (post("tools/call", "test_sleep", sleep), "result"),
        (post("tools/call", "file.read", read), "line"),
        (
            Request::post(
                "/mcp",
                json!({"jsonrpc": "2.0", "id": 1, "method": "mcp.capabilities"}).to_string(),
            ),
            "result",
        ),
    ] {
        let stream = request.begin(server.address()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut text = String::new();
        (&stream).read_to_string(&mut text).unwrap();
        // An interim answer may come before, to find out whether anybody is left.
        assert!(text.contains("HTTP/1.1 200") && text.contains(word), "{text}");
    }
    // A body that breaks off is none.
    let mut stream = std::net::TcpStream::connect(server.address()).unwrap();
    let head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{";
    stream.write_all(head.as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut text = String::new();
    let _ = (&stream).read_to_string(&mut text);
    assert!(!text.contains("HTTP/1.1 200"), "{text}");
}
