//! `ringfence secret`.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{secret, set, text};
use crate::support::server::{Scratch, binary};

fn list(scratch: &Scratch) -> Value {
    let output = secret(scratch, &["list", "--json"], "");
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice::<Value>(&output.stdout).unwrap()["secrets"].clone()
}

#[test]
fn secrets_are_set_listed_and_removed_and_never_shown() {
    let scratch = Scratch::new();
    let config = "[mcp.query]\ncommand = \"true\"\nargs = [\"${secret:DB}\"]\nenv = { B = \"${secret:DB}\", C = \"${secret:WANTED}\" }\n";
    std::fs::write(scratch.path().join("config.toml"), config).unwrap();
    assert!(
        text(&secret(&scratch, &["set", "DB", "--expires", "2999-12-31"], "hunter2hunter2\n"))
            .contains("2999-12-31")
    );
    set(&scratch, "UNUSED", "other-value\r\n");
    let short = secret(&scratch, &["set", "SHORT"], "1234567");
    assert!(text(&short).contains("shorter than 8 bytes"), "{short:?}");
    let listed = list(&scratch);
    let row = |name: &str| {
        listed.as_array().unwrap().iter().find(|row| row["name"] == name).unwrap().clone()
    };
    assert_eq!(row("DB")["expires"], "2999-12-31T00:00:00Z");
    assert_eq!((&row("DB")["place"], &row("DB")["used_by"]), (&json!("store"), &json!(["query"])));
    assert_eq!(
        (&row("WANTED")["place"], &row("WANTED")["used_by"]),
        (&json!("missing"), &json!(["query"]))
    );
    assert_eq!((&row("UNUSED")["used_by"], &row("UNUSED")["expired"]), (&json!([]), &json!(false)));
    let table = text(&secret(&scratch, &["list"], ""));
    assert_eq!(table.lines().count(), 5, "{table}");
    for shown in [&table, &listed.to_string()] {
        assert!(!shown.contains("hunter2") && !shown.contains("other-value"), "{shown}");
    }
    // Neither the value nor how long it is: another one of another length looks the same.
    set(&scratch, "UNUSED", &"long".repeat(100));
    let again = text(&secret(&scratch, &["list"], ""));
    assert_eq!(again.len(), table.len(), "{again}");
    assert!(secret(&scratch, &["rm", "UNUSED"], "").status.success());
    let gone = secret(&scratch, &["rm", "UNUSED"], "");
    assert!(!gone.status.success() && text(&gone).contains("ringfence secret list"), "{gone:?}");
}

#[test]
fn what_is_no_secret_is_refused_with_what_to_do() {
    let scratch = Scratch::new();
    for (words, input) in [
        (&["set", "not-a-name"][..], "value-of-it"),
        (&["set", "EMPTY"], ""),
        (&["set", "EMPTY"], "\n"),
        (&["set", "NUL"], "a\0b"),
        (&["set", "LARGE"], &"x".repeat((64 << 10) + 1)),
        (&["set", "PAST", "--expires", "2020-01-01"], "value-of-it"),
        (&["set", "BAD", "--expires-in", "soon"], "value-of-it"),
        // Never from the command line.
        (&["set", "DB", "value-of-it"], ""),
        (&["set", "DB", "--value-of-it"], ""),
        (&["set", "DB", "--keyring"], "value-of-it"),
    ] {
        let output = secret(&scratch, words, input);
        assert!(!output.status.success(), "{words:?}: {output:?}");
        let said = text(&output);
        assert!(
            said.contains("hint:") || said.contains("Usage") || said.contains("--help"),
            "{words:?}: {said}"
        );
        assert!(!said.contains("value-of-it"), "{words:?}: {said}");
    }
    assert!(!scratch.path().join("root/secrets/store").exists());
    // Just as large as one may be.
    set(&scratch, "LARGE", &"x".repeat(64 << 10));
    assert!(!text(&secret(&scratch, &["--help"], "")).is_empty());
}

/// `script` gives it a terminal and shows everything that appears there.
#[test]
fn a_value_that_is_typed_is_not_shown() {
    let scratch = Scratch::new();
    let line = format!(
        "{} secret set DB --root {}",
        binary().display(),
        scratch.path().join("root").display()
    );
    let mut script = Command::new("script")
        .args(["-q", "-e", "-c", &line, "/dev/null"])
        .env("HOME", scratch.path().join("home"))
        .env_remove("RINGFENCE_CONFIG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = script.stdout.take().unwrap();
    let mut stdin = script.stdin.take().unwrap();
    let mut screen = Vec::new();
    // What is typed before the question is there would be shown by the terminal, as at any prompt.
    let mut byte = [0];
    while !screen.ends_with(b"(not shown): ") {
        std::io::Read::read_exact(&mut stdout, &mut byte)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&screen)));
        screen.push(byte[0]);
    }
    stdin.write_all(b"hunter2hunter2X\x7f\r").unwrap();
    stdin.flush().unwrap();
    std::io::Read::read_to_end(&mut stdout, &mut screen).unwrap();
    assert!(script.wait().unwrap().success(), "{}", String::from_utf8_lossy(&screen));
    let screen = String::from_utf8(screen).unwrap();
    assert!(screen.contains("Stored `DB` in the store") && !screen.contains("hunter2"), "{screen}");
    assert_eq!(list(&scratch)[0]["name"], "DB");
}

#[test]
fn a_config_that_is_broken_keeps_nobody_from_setting_a_secret() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path().join("config.toml"), "tools = \n").unwrap();
    set(&scratch, "DB", "value-for-later");
    let output = secret(&scratch, &["list"], "");
    assert!(output.status.success() && text(&output).contains("DB"), "{output:?}");
}

/// Every command may hold a value, so none leaves a core.
#[test]
fn a_command_that_takes_a_value_leaves_no_core() {
    let scratch = Scratch::new();
    // Whoever starts it may want cores.
    let raise = "ulimit -S -c $(ulimit -H -c); exec \"$@\"";
    let mut command = std::process::Command::new("bash");
    command.args(["-c", raise, "raised"]).arg(crate::support::server::binary());
    command.args(["secret", "set", "DB", "--root"]).arg(scratch.path().join("root"));
    let mut child = command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let limits = format!("/proc/{}/limits", child.id());
    crate::support::eventually(crate::support::DEADLINE, "it has lowered the limit", || {
        let limits = std::fs::read_to_string(&limits).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        // Before the shell has raised it, it is the shell's.
        let name = std::fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap();
        name.trim() == "ringfence" && matches!(core.split_whitespace().nth(4), Some("0" | "1"))
    });
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"a-value").unwrap();
    assert!(child.wait().unwrap().success());
}
