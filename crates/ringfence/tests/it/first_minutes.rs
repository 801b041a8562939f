//! What someone meets who has just installed it: commands as one guesses them, errors that say what to do next, and
//! output that fits the terminal.

use std::process::{Command, Output};

use serde_json::json;

use crate::support::screen::{at_screen, wide_lines};
use crate::support::server::{Scratch, ringfence};
use crate::support::{Options, SESSIONS, Transport};

fn on_root(scratch: &Scratch, args: &[&str]) -> Command {
    let mut command = ringfence(scratch);
    command.arg(args[0]).arg("--root").arg(scratch.path().join("root")).args(&args[1..]);
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_command_in_the_sandbox_needs_no_dashes() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path().join("workspace/seen"), "").unwrap();
    let run = |words: &[&str]| {
        let output = on_root(&scratch, &[&["sandbox"], words].concat()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    assert_eq!(run(&["ls", "seen"]), (Some(0), "seen".to_owned()));
    assert_eq!(run(&["--", "ls", "seen"]), (Some(0), "seen".to_owned()));
    assert_eq!(run(&["--profile", "none", "ls", "-a", "--", "seen"]).1, "seen");
    assert_eq!(run(&["sh", "-c", "exit 3"]).0, Some(3));
    // Flags after the name belong to the program, those that we know too.
    assert_eq!(
        run(&["echo", "--profile", "x", "--", "-h", "--help"]).1,
        "--profile x -- -h --help"
    );
    assert_eq!(run(&["--", "echo", "--", "x"]).1, "-- x");
    assert_eq!(run(&["--nosuch", "ls"]).0, Some(2));
    assert_eq!(run(&[]).0, Some(2));
    assert_eq!(run(&["nosuch-program"]).0, Some(127));
}

#[test]
fn the_log_before_any_server_says_what_to_do() {
    let scratch = Scratch::new();
    let output = on_root(&scratch, &["audit"]).output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(66));
    let root = scratch.path().join("root");
    let text = format!("error: no server has used the root {} yet", root.display());
    assert!(said.starts_with(&text), "{said}");
    assert!(said.contains("hint: Start a server with `ringfence serve`"), "{said}");
}

#[test]
fn filters_that_match_nothing_say_so() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    client.call("file.list", json!({}));
    server.stops(1);
    let audit = |args: &[&str]| {
        let output = on_root(&server.scratch, &[&["audit"], args].concat()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        (String::from_utf8_lossy(&output.stdout).into_owned(), said(&output))
    };
    assert_eq!(audit(&["--tool", "file_list"]).1, "");
    for (args, text) in [
        (
            &["--tool", "file.lst"][..],
            "There is no tool `file.lst`, neither in the log nor built in. Did you mean `file.list`",
        ),
        (
            &["--tool", "zzz"],
            "There is no tool `zzz`, neither in the log nor built in. `ringfence tools` lists the tools.",
        ),
        (&["--tool", "shell.exec"], "There are no events of `shell.exec` in the log."),
        (
            &["--tool", "file.list", "--session", "x"],
            "No event of `file.list` matches the other filters.",
        ),
        (&["--session", "x"], "No event matches these filters."),
        (&["--since", "2999-01-01"], "No event matches these filters."),
        (
            &["--since", "2999-01-01", "--tool", "shell.exec"],
            "No event of `shell.exec` is that recent.",
        ),
        (
            &["--since", "2999-01-01", "--tool", "file.lst"],
            "No event of `file.lst` is that recent. Did you mean `file.list`",
        ),
    ] {
        let (out, said) = audit(args);
        assert!(out.is_empty() && said.starts_with(text), "{args:?}: {said}");
    }
}

#[test]
fn errors_are_coloured_at_a_terminal_alone() {
    let scratch = Scratch::new();
    let command = || on_root(&scratch, &["audit"]);
    let (code, screen) = at_screen(&command());
    assert!(code == 66 && screen.contains("\u{1b}[1;31merror:\u{1b}[0m no server"), "{screen:?}");
    for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let mut command = command();
        let (_, screen) = at_screen(command.env(name, value));
        assert!(screen.contains("error: no server") && !screen.contains('\u{1b}'), "{screen:?}");
    }
    assert!(!said(&command().output().unwrap()).contains('\u{1b}'));
}

#[test]
fn the_log_fits_the_terminal_and_is_whole_in_a_pipe() {
    let mut server = Options::new(Transport::Stdio).spawn();
    let mut client = server.connect(SESSIONS);
    client.call("file.read", json!({"path": "missing"}));
    client.call("shell.exec", json!({"command": "exit 3"}));
    let stops = server.stops(2);
    let (code, screen) = at_screen(&on_root(&server.scratch, &["audit"]));
    assert_eq!((code, wide_lines(&screen)), (0, Vec::new()), "{screen}");
    let trace = stops[0]["trace_id"].as_str().unwrap();
    assert!(screen.contains(&trace[..8]) && !screen.contains(trace), "{screen}");
    assert!(screen.contains("not_found") && screen.contains("exit 3"), "{screen}");
    let piped = on_root(&server.scratch, &["audit"]).output().unwrap();
    let piped = String::from_utf8(piped.stdout).unwrap();
    assert!(piped.contains(trace) && piped.lines().any(|line| line.len() > 120), "{piped}");
}

#[test]
fn the_findings_of_doctor_fit_the_terminal() {
    let scratch = Scratch::new();
    let (_, screen) = at_screen(&on_root(&scratch, &["doctor"]));
    assert!(screen.contains("Verdict: "), "{screen}");
    // A path is not broken.
    let wide = wide_lines(&screen).into_iter().filter(|line| !line.trim().contains('/'));
    assert_eq!(wide.collect::<Vec<_>>(), [""; 0], "{screen}");
}

#[test]
fn help_explains_the_sets_of_tools() {
    let scratch = Scratch::new();
    let help = ringfence(&scratch).args(["serve", "-h"]).output().unwrap();
    let help =
        String::from_utf8(help.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["core: those that most agents need", "shell: only `shell`", "all: every tool"] {
        assert!(help.contains(part), "{part}: {help}");
    }
}
