//! `ringfence try` on the real binary: what a stranger sees first must be true.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::process::{Command, Output};

/// Runs it with a home and a temporary directory of its own; both must be as empty afterwards as before.
fn run() -> Output {
    let place = std::env::temp_dir().join(ringfence::short_id("ringfence-try-test"));
    let (home, temporary) = (place.join("home"), place.join("tmp"));
    std::fs::create_dir_all(&home).unwrap();
    std::fs::create_dir_all(&temporary).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_ringfence"))
        .arg("try")
        .env_clear()
        .env("HOME", &home)
        .env("TMPDIR", &temporary)
        .output()
        .unwrap();
    for dir in [&home, &temporary] {
        assert_eq!(
            std::fs::read_dir(dir).unwrap().count(),
            0,
            "something was left in {}",
            dir.display()
        );
    }
    std::fs::remove_dir_all(&place).unwrap();
    output
}

#[test]
fn it_ends_in_a_denied_command_and_its_audit_line() {
    let output = run();
    let (text, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}\n{errors}");
    // In this order.
    let mut rest = &*text;
    for part in [
        "on MCP 2025-11-25",
        "shell.exec",
        "etag b3:",
        "Hello from the sandbox.",
        "permission_denied (outside_workspace)",
        "rm -rf \"$1\"",
        "The build is done.",
        "Read-only file system",
        "\"name\":\"unshare\"",
        "Allow `shell.exec`?",
        "command: rm -rf ",
        "approval_denied",
        "call.stop     shell.exec        denied",
        "chain intact",
        "Done in",
    ] {
        let at = rest
            .find(part)
            .unwrap_or_else(|| panic!("{part:?} is missing or out of order in:\n{text}"));
        rest = &rest[at + part.len()..];
    }
    assert!(!text.contains('\x1b'), "no colour where there is no terminal");
    // The last line can be copied: it names this executable.
    let last = text.lines().last().unwrap().trim();
    let executable = std::fs::canonicalize(env!("CARGO_BIN_EXE_ringfence")).unwrap();
    assert_eq!(last, format!("{} connect codex", executable.display()));
}
