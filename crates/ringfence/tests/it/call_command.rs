//! `ringfence call`: one call by a person, through the same gate and log as a call of an agent.

use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use serde_json::Value;

use crate::support::screen::{Screen, at_screen};
use crate::support::server::{Scratch, audit, ringfence};
use crate::support::token::{self, SECRET};
use crate::support::{Options, Server, Transport};

fn call(scratch: &Scratch, args: &[&str]) -> Command {
    let mut command = ringfence(scratch);
    command
        .args(["call", "--root"])
        .arg(scratch.path().join("root"))
        .args(args)
        .stdin(Stdio::null());
    command
}

fn remote(server: &Server, args: &[&str]) -> Command {
    let mut command = ringfence(&server.scratch);
    command.args(["call", "--url", &format!("http://{}/mcp", server.address())]).args(args);
    command.stdin(Stdio::null());
    command
}

#[track_caller]
fn ends(output: &Output, code: i32, stdout: &str, stderr: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), stdout, "{said}");
    assert!(said.contains(stderr) && said.is_empty() == stderr.is_empty(), "{said}");
}

#[test]
fn arguments_have_the_types_of_the_schema() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path().join("draft"), "one\ntwo 2\nthree\n").unwrap();
    let draft = format!("content=@{}", scratch.path().join("draft").display());
    let written = call(&scratch, &["file.write", "path=notes.txt", &draft]).output().unwrap();
    assert!(written.status.success(), "{written:?}");
    let read = call(&scratch, &["file_read", "path=notes.txt", "offset=2", "limit=1"]);
    let read = { read }.output().unwrap();
    assert!(String::from_utf8_lossy(&read.stdout).contains("two 2"), "{read:?}");
    assert!(!String::from_utf8_lossy(&read.stdout).contains("three"), "{read:?}");
    let ran = call(&scratch, &["shell.exec", "command=echo $A", "env={\"A\": \"b c\"}"]);
    let ran = { ran }.output().unwrap();
    assert!(
        ran.status.success() && String::from_utf8_lossy(&ran.stdout).contains("b c"),
        "{ran:?}"
    );
    let whole =
        call(&scratch, &["shell.exec", r#"{"command": "echo x"}"#, "--json"]).output().unwrap();
    let whole: Value = serde_json::from_slice(&whole.stdout).unwrap();
    assert_eq!(whole["structuredContent"]["stdout"], "x\n", "{whole:#}");
    // Each was a call like any other.
    let stops: Vec<Value> =
        audit(&scratch).into_iter().filter(|record| record["event"] == "call.stop").collect();
    assert_eq!(stops.len(), 4);
    assert!(stops[0]["client"].as_str().unwrap().starts_with("ringfence-cli/"), "{:#}", stops[0]);
}

#[test]
fn exit_codes_tell_failure_from_misuse() {
    let scratch = Scratch::new();
    let run = |args: &[&str]| call(&scratch, args).output().unwrap();
    ends(&run(&["file.read", "path=missing"]), 1, "", "not_found: ");
    ends(&run(&["file.read", "path=../out"]), 1, "", "permission_denied: ");
    ends(&run(&["file.raed", "path=x"]), 2, "", "`file.read`");
    ends(&run(&["file.read", "pth=x"]), 2, "", "`path`");
    ends(&run(&["file.read"]), 2, "", "path=<string>");
    ends(&run(&["file.read", "path=x", "limit=many"]), 2, "", "`limit` must be");
    ends(&run(&["file.read", "{broken"]), 2, "", "not a JSON object");
    ends(&run(&[]), 2, "", "required");
    // A command that fails is a result, not a failure of the tool.
    let failed = run(&["shell.exec", "command=exit 3"]);
    assert_eq!(failed.status.code(), Some(0), "{failed:?}");
}

fn unsandboxed(scratch: &Scratch) -> String {
    let config = scratch.path().join("config.toml");
    std::fs::write(&config, "[sandbox]\nprofile = \"none\"\n").unwrap();
    config.to_str().unwrap().to_owned()
}

#[test]
fn without_a_terminal_no_one_is_asked_and_nothing_runs() {
    let scratch = Scratch::new();
    let config = unsandboxed(&scratch);
    let args = ["shell.exec", "command=touch ran", "--config", &config];
    let output = call(&scratch, &args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("approval_denied: ") && said.contains("note: no one was asked"),
        "{said}"
    );
    assert!(!scratch.path().join("workspace/ran").exists());
}

#[test]
fn a_question_is_answered_at_the_terminal() {
    let scratch = Scratch::new();
    let config = unsandboxed(&scratch);
    let args = ["shell.exec", "command=touch ran; echo d''one", "--config", &config];
    for (answer, code) in [("n", 1), ("1", 0)] {
        let mut screen = Screen::start(&call(&scratch, &args));
        screen.wait_for("command: touch ran; echo d''one");
        screen.wait_for("[1] Allow once");
        screen.wait_for("[n] Decline: ");
        assert!(!scratch.path().join("workspace/ran").exists());
        screen.type_line("");
        screen.wait_for("[n] Decline: ");
        screen.type_line(answer);
        let (exit, seen) = screen.finish();
        assert_eq!(exit, code, "{seen}");
        assert_eq!(seen.contains("\ndone"), code == 0, "{seen}");
        assert_eq!(scratch.path().join("workspace/ran").exists(), code == 0);
    }
    let outcomes: Vec<Value> =
        audit(&scratch).into_iter().filter(|record| record["event"] == "approval").collect();
    assert_eq!(
        (&outcomes[0]["outcome"], &outcomes[1]["outcome"]),
        (&"denied".into(), &"approved".into())
    );
}

fn fixtures() -> Server {
    Options::new(Transport::Http).arg("--conformance-fixtures").spawn()
}

#[test]
fn a_form_is_filled_in_at_the_terminal() {
    let server = fixtures();
    let mut screen = Screen::start(&remote(&server, &["test_elicitation", "message=Who are you?"]));
    screen.wait_for("Who are you?");
    screen.wait_for("[y] Answer  [n] Decline: ");
    screen.type_line("y");
    // A field that is required is asked for until it is there.
    screen.wait_for("username (User's response): ");
    screen.type_line("");
    screen.wait_for("username (User's response): ");
    screen.type_line("Ann");
    screen.wait_for("email (User's email address): ");
    screen.type_line("ann@example.com");
    let (code, seen) = screen.finish();
    assert!(code == 0 && seen.contains("accept") && seen.contains("Ann"), "{seen}");
    let declined = remote(&server, &["test_elicitation", "message=Who?"]).output().unwrap();
    assert_ne!(declined.status.code(), Some(0), "{declined:?}");
}

#[test]
fn progress_is_for_terminals_and_images_become_files() {
    let server = fixtures();
    let (code, seen) = at_screen(&remote(&server, &["test_tool_with_progress"]));
    assert!(code == 0 && seen.contains("\r\u{1b}[K"), "{seen:?}");
    let piped = remote(&server, &["test_tool_with_progress"]).output().unwrap();
    assert!(piped.status.success() && piped.stderr.is_empty(), "{piped:?}");
    for number in [1, 2] {
        let image = remote(&server, &["test_image_content"]).output().unwrap();
        let name = format!("test-image-content-{number}.png");
        assert_eq!(String::from_utf8_lossy(&image.stdout), format!("image: {name}\n"), "{image:?}");
        let stored = std::fs::read(server.workspace().join(name)).unwrap();
        assert!(stored.starts_with(b"\x89PNG"));
    }
    let nowhere = remote(&server, &["test_image_content", "--images", "/nosuch"]).output().unwrap();
    assert_eq!(nowhere.status.code(), Some(69), "{nowhere:?}");
    let failed = remote(&server, &["test_error_handling"]).output().unwrap();
    assert!(failed.status.code() == Some(1) && failed.stdout.is_empty(), "{failed:?}");
}

#[test]
fn a_running_server_is_used_with_a_token() {
    let options = Options::new(Transport::Http).env("MCP_AUTH_ENABLED", "true");
    let server = options.env("MCP_AUTH_JWT_SECRET", SECRET).spawn();
    std::fs::write(server.workspace().join("a.txt"), "hello\n").unwrap();
    let mut command = remote(&server, &["file.read", "path=a.txt"]);
    assert_eq!(command.output().unwrap().status.code(), Some(77));
    let read = command.env("RINGFENCE_TOKEN", token::of("ann")).output().unwrap();
    assert!(read.status.success(), "{read:?}");
    assert!(String::from_utf8_lossy(&read.stdout).starts_with("hello\n"), "{read:?}");
    assert_eq!(server.stops(1)[0]["principal"], "ann@");
}

/// Output of a tool must not drive the terminal of the person who reads it.
#[test]
fn escape_sequences_of_a_tool_are_shown_and_not_sent() {
    let scratch: Arc<Scratch> = Scratch::new();
    std::fs::write(scratch.path().join("workspace/evil"), "a\u{1b}]0;owned\u{7}b\ttab\n").unwrap();
    let command = call(&scratch, &["file.read", "path=evil"]);
    let (code, seen) = at_screen(&command);
    assert!(code == 0 && !seen.contains("\u{1b}]0;owned"), "{seen:?}");
    assert!(seen.contains("\\u{1b}]0;owned\\u{7}b"), "{seen:?}");
    let piped = { command }.output().unwrap();
    assert!(String::from_utf8_lossy(&piped.stdout).contains("owned\u{7}b"), "{piped:?}");
}
