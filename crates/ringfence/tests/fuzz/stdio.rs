//! The same messages to the real binary on its standard input: one answer where there must be one, none where there
//! must be none, and a sound server at the end.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::envelope::{Fate, any_message, check, sound_messages};
use crate::{Shown, Stage, assert_error_body, each_case};

const PING: &[u8] = br#"{"jsonrpc":"2.0","id":"fuzz-ping","method":"ping"}"#;
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Server {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    pub stage: Stage,
}

impl Server {
    pub fn start() -> Self {
        let stage = Stage::new();
        let log = std::fs::File::create(stage.path().join("log")).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_ringfence"))
            .args(["serve", "--root"])
            .arg(stage.root())
            .arg("--workspace")
            .arg(stage.workspace())
            .env_clear()
            .env("HOME", stage.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (found, lines) = channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| found.send(line))
        });
        Server { input: child.stdin.take(), child, lines, stage }
    }

    pub fn send(&mut self, bytes: &[u8], about: &dyn std::fmt::Debug) {
        let input = self.input.as_mut().unwrap();
        let sent = input
            .write_all(bytes)
            .and_then(|()| input.write_all(b"\n"))
            .and_then(|()| input.flush());
        sent.unwrap_or_else(|error| panic!("the server is gone ({error}) before {about:?}"));
    }

    /// The next answer. Its questions are declined, so that nothing ever runs; what it announces is passed over.
    pub fn answer(&mut self, about: &dyn std::fmt::Debug) -> Value {
        loop {
            let line = self
                .lines
                .recv_timeout(PATIENCE)
                .unwrap_or_else(|error| panic!("{error}: {about:?}"));
            let message: Value =
                serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            match (message.get("method"), message.get("id")) {
                (Some(_), Some(id)) => {
                    let no = json!({"jsonrpc": "2.0", "id": id, "result": {"action": "decline"}});
                    self.send(no.to_string().as_bytes(), about);
                }
                (Some(_), None) => {}
                (None, _) => return message,
            }
        }
    }

    fn ping(&mut self, about: &dyn std::fmt::Debug) {
        self.send(PING, about);
        // Whatever else comes first was an answer to something that must not have one.
        let answer = self.answer(about);
        assert_eq!(answer["id"], "fuzz-ping", "an answer to {about:?}: {answer}");
    }

    pub fn end(mut self) {
        self.input = None;
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => panic!("after everything was answered: {line}"),
            Err(RecvTimeoutError::Timeout) => panic!("the server does not end with its input"),
            Err(RecvTimeoutError::Disconnected) => {}
        }
        let status = self.child.wait().unwrap();
        let log = std::fs::read_to_string(self.stage.path().join("log")).unwrap();
        assert!(status.success() && !log.contains("panicked"), "{status}: {log}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn check_answer(answer: &Value, about: &Shown<'_>) {
    assert_eq!(answer["jsonrpc"], "2.0", "{answer} for {about:?}");
    match (answer.get("result"), answer.get("error")) {
        (None, Some(error)) => {
            assert!(error["code"].is_i64(), "{answer} for {about:?}");
            assert_error_body(&error["data"], about);
        }
        (Some(result), None) if result["isError"] == true => {
            assert_error_body(&result["structuredContent"]["error"], about);
            assert_ne!(
                result["structuredContent"]["error"]["kind"], "internal",
                "{answer} for {about:?}"
            );
        }
        (Some(_), None) => {}
        _ => panic!("neither a result nor an error: {answer} for {about:?}"),
    }
}

/// Found by the cases below: the engine repeats a version whole in its refusal.
#[test]
fn a_refused_version_is_not_repeated_at_length() {
    let mut server = Server::start();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "9".repeat(50_000),
        "io.modelcontextprotocol/clientInfo": {"name": "fuzz", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let message =
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}})
            .to_string();
    let about = Shown(message.as_bytes());
    server.send(message.as_bytes(), &about);
    let answer = server.answer(&about);
    assert_eq!(answer["error"]["data"]["kind"], "unsupported_version", "{answer}");
    check_answer(&answer, &about);
    server.end();
}

#[test]
fn the_server_answers_by_the_rules_and_lives_on() {
    let sound = sound_messages();
    let mut server = Server::start();
    let (mut answers, mut silences) = (0u64, 0u64);
    each_case("stdio", 3_000, |rng| {
        let mut bytes = any_message(rng, &sound);
        bytes.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b' ');
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let about = Shown(&bytes);
        let fate = check(&bytes);
        server.send(&bytes, &about);
        match fate {
            Fate::Silence => {
                silences += 1;
                server.ping(&about);
            }
            Fate::Perhaps => {
                silences += 1;
                server.send(PING, &about);
                let mut answer = server.answer(&about);
                if answer.get("id").is_none() {
                    check_answer(&answer, &about);
                    answer = server.answer(&about);
                }
                assert_eq!(answer["id"], "fuzz-ping", "an answer to {about:?}: {answer}");
            }
            Fate::Refused(id) => {
                let answer = server.answer(&about);
                assert_eq!(answer.get("id"), id.as_ref(), "{answer} for {about:?}");
                assert!(answer.get("error").is_some(), "{answer} for {about:?}");
                check_answer(&answer, &about);
                answers += 1;
            }
            Fate::Answer(id) => {
                let answer = server.answer(&about);
                assert_eq!(answer["id"], id, "{answer} for {about:?}");
                check_answer(&answer, &about);
                answers += 1;
            }
        }
    });
    println!("stdio: {answers} answers, {silences} messages without one");
    assert!(answers > 0 && silences > 0, "the cases are one-sided");
    server.ping(&"the end");
    server.end();
}
