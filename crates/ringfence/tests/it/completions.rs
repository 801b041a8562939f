//! `ringfence completions` and `ringfence man`: made from the definitions that `--help` shows.

use std::process::Command;

use crate::support::server::{Scratch, ringfence};

/// The commands that `--help` lists.
fn commands(scratch: &Scratch) -> Vec<String> {
    let help = ringfence(scratch).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, rest) = help.split_once("Commands:\n").unwrap();
    let lines = rest.lines().take_while(|line| !line.is_empty());
    // Their descriptions continue on lines that are indented further.
    let lines = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = lines.map(|line| line.split_whitespace().next().unwrap().to_owned());
    names.filter(|name| name != "help").collect()
}

#[test]
fn completions_know_every_command() {
    let scratch = Scratch::new();
    let commands = commands(&scratch);
    assert!(commands.len() > 12 && commands.contains(&"serve".to_owned()), "{commands:?}");
    for shell in ["bash", "zsh", "fish"] {
        let output = ringfence(&scratch).args(["completions", shell]).output().unwrap();
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success());
        for command in &commands {
            assert!(script.contains(command.as_str()), "{shell}: {command}");
        }
        assert!(!script.contains("conformance-fixtures"), "{shell} offers what --help hides");
    }
    let other = ringfence(&scratch).args(["completions", "tcsh"]).output().unwrap();
    assert_eq!(other.status.code(), Some(2));
}

/// What a person gets who presses Tab.
#[test]
fn bash_completes_commands_and_flags() {
    let scratch = Scratch::new();
    let script = ringfence(&scratch).args(["completions", "bash"]).output().unwrap().stdout;
    let file = scratch.path().join("ringfence.bash");
    std::fs::write(&file, script).unwrap();
    let complete = |words: &str, count: usize| {
        let line = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD={count}; _ringfence ringfence \"${{COMP_WORDS[{count}]}}\" \"${{COMP_WORDS[{}]}}\"; echo \"${{COMPREPLY[@]}}\"",
            file.display(),
            count - 1
        );
        let output = Command::new("bash").args(["-c", &line]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(complete("ringfence comp", 1), "completions");
    assert_eq!(complete("ringfence token --new", 2), "--new-secret");
    assert_eq!(complete("ringfence upstream ac", 2), "accept");
}

#[test]
fn every_command_has_a_manual_page() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("man/man1");
    let output = ringfence(&scratch).arg("man").arg(&dir).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let page = |name: &str| {
        std::fs::read_to_string(dir.join(format!("{name}.1"))).unwrap_or_else(|_| panic!("{name}"))
    };
    assert!(page("ringfence").contains(".TH ringfence 1"));
    for command in commands(&scratch) {
        let text = page(&format!("ringfence-{command}"));
        assert!(text.contains(&format!(".TH ringfence-{command} 1")), "{text}");
    }
    assert!(page("ringfence-serve").contains("\\-\\-workspace"));
    assert!(!page("ringfence-serve").contains("conformance"), "a hidden flag");
    page("ringfence-upstream-accept");
    let file = scratch.path().join("file");
    std::fs::write(&file, "").unwrap();
    let failed = ringfence(&scratch).arg("man").arg(&file).output().unwrap();
    assert_eq!(failed.status.code(), Some(69), "{failed:?}");
}
