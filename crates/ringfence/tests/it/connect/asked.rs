//! The question before a change, on a terminal and without one.

use std::process::Command;

use super::{Place, Said, names};

/// Runs a command on a terminal, and types an answer when it is asked.
const ON_A_TERMINAL: &str = r#"
import os, pty, sys
answer, command = sys.argv[1], sys.argv[2:]
child, terminal = pty.fork()
if child == 0:
    os.execv(command[0], command)
shown, answered = b"", False
while True:
    try:
        data = os.read(terminal, 4096)
    except OSError:
        break
    if not data:
        break
    shown += data
    if not answered and b"[y/N]" in shown:
        answered = True
        os.write(terminal, answer.encode() + b"\n")
sys.stdout.buffer.write(shown)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"#;

fn answer(place: &Place, answer: &str, args: &str) -> Said {
    let asked = place.command(args);
    let mut command = Command::new("python3");
    command.args(["-c", ON_A_TERMINAL, answer]).arg(asked.get_program()).args(asked.get_args());
    command.env_clear().current_dir(place.project(""));
    command.envs(asked.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("PATH", std::env::var_os("PATH").unwrap());
    Said::from(command.output().unwrap())
}

#[test]
fn a_terminal_is_asked_and_no_means_no() {
    for no in ["", "n", "maybe"] {
        let place = Place::new();
        let said = answer(&place, no, "connect codex");
        assert_eq!(said.code, Some(75), "{said:?}");
        assert!(said.stdout.contains("mcp_servers.ringfence"), "{said:?}");
        assert!(said.stdout.contains("nothing was changed"), "{said:?}");
        assert_eq!(names(&place.home("")), [""; 0]);
    }
}

#[test]
fn yes_on_a_terminal_writes() {
    let place = Place::new();
    let said = answer(&place, "y", "connect codex");
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(place.home(".codex/config.toml").is_file());
    // Added lines are green there.
    assert!(said.stdout.contains("\x1b[32m+[mcp_servers.ringfence]"), "{said:?}");
}

#[test]
fn without_a_terminal_the_change_is_shown_and_the_flag_named() {
    let place = Place::new();
    let said = place.run("connect codex");
    assert_eq!(said.code, Some(64), "{said:?}");
    assert!(said.stdout.contains("+[mcp_servers.ringfence]"), "{said:?}");
    assert!(said.stderr.contains("--yes"), "{said:?}");
    assert_eq!(names(&place.home("")), [""; 0]);
}

#[test]
fn a_dry_run_changes_nothing() {
    let place = Place::new();
    let said = place.done("connect claude --replace-shell --dry-run");
    for part in [".claude.json", "settings.json", "+", "mcp__ringfence", "Nothing was written"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(names(&place.home("")), [""; 0]);
    place.done("connect codex --yes");
    let before = names(&place.home(".codex"));
    place.done("disconnect codex --dry-run");
    assert_eq!(names(&place.home(".codex")), before);
}
