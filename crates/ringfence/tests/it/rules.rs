//! `ringfence rules` on the real binary, as somebody at a terminal meets it.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{CWD, Mode, mkfifoat};

use crate::support::DEADLINE;
use crate::support::server::{Scratch, binary};

/// A home with rules, and a project to stand in.
struct House(Arc<Scratch>);

impl House {
    fn new() -> House {
        House(Scratch::new())
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// With one file of the operator's.
    fn with(rules: &str) -> House {
        let house = House::new();
        house.write("home/.codex/rules/my.rules", rules);
        house
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(binary());
        command.arg("rules").args(words).current_dir(self.0.path().join("workspace")).env_clear();
        command.env("HOME", self.0.path().join("home")).env("PATH", "/usr/bin:/bin");
        command.output().unwrap()
    }

    /// Exit code, standard output and standard error.
    fn told(&self, words: &[&str]) -> (i32, String, String) {
        let output = self.run(words);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }
}

#[test]
fn check_uses_the_rules_of_the_home_directory_and_what_the_project_tightens() {
    let house = House::with("prefix_rule(['git'])\n");
    house.write(
        "workspace/.codex/rules/p.rules",
        "prefix_rule(['git', 'push'], 'forbidden')\nprefix_rule(['ls'])\n",
    );
    let (code, out, err) = house.told(&["check", "git", "push"]);
    assert_eq!((code, out.contains("\"decision\":\"forbidden\"}\n")), (0, true), "{out}{err}");
    assert!(err.contains("p.rules:2: a project's rules cannot allow `ls`"), "{err}");
    assert_eq!(house.told(&["check", "--", "ls"]).1, "{\"matchedRules\":[]}\n");
}

#[test]
fn check_with_files_of_its_own_reads_no_others() {
    let house = House::with("prefix_rule(['git'], 'forbidden')\n");
    let file = house.write("tmp/x.rules", "prefix_rule(['git'])\n");
    let (code, out, _) = house.told(&["check", "-r", file.to_str().unwrap(), "git"]);
    assert_eq!(code, 0);
    assert!(out.contains("\"decision\":\"allow\""), "{out}");
    assert_eq!(house.told(&["check", "--rules", "/nonexistent", "git"]).0, 1);
    assert_eq!(house.told(&["check"]).0, 2, "without a command it is used wrongly");
}

#[test]
fn a_broken_file_is_shown_with_line_and_caret() {
    let house = House::with("prefix_rule(['git'])\nprefix_rule(['ls'], decision = 'maybe')\n");
    for words in [&["check", "git"][..], &["test"], &["lint"], &["explain", "git"]] {
        let (code, _, err) = house.told(words);
        assert_eq!(code, 1, "{words:?}");
        let place = format!("{}:2:1", house.0.path().join("home/.codex/rules/my.rules").display());
        assert!(
            err.contains(&place) && err.contains("\n2 | prefix_rule") && err.contains("| ^^^^"),
            "{err}"
        );
    }
    assert_eq!(house.told(&["check", "git"]).1, "", "no verdict from rules that are not sound");
}

#[test]
fn test_tries_the_examples() {
    let house = House::with(
        "prefix_rule(['git', 'push'], match = ['git push x'], not_match = ['git pull'])\n",
    );
    let (code, out, _) = house.told(&["test"]);
    assert_eq!(code, 0, "{out}");
    assert!(
        out.contains("1 rule, 2 examples passed")
            && out.ends_with("ok: 1 valid rule, 2 examples\n"),
        "{out}"
    );

    house.write(
        "home/.codex/rules/my.rules",
        "prefix_rule(['git', 'push'], match = ['git pull'], not_match = ['git push'])\n",
    );
    let (code, out, err) = house.told(&["test"]);
    assert_eq!(code, 1);
    assert!(out.contains("my.rules: BROKEN"), "{out}");
    assert!(
        err.contains("`match` lists `git pull`") && err.contains("`not_match` lists `git push`"),
        "{err}"
    );
}

#[test]
fn explain_names_the_rule_that_decides_and_what_would_happen() {
    let house = House::with(
        "prefix_rule(['sh'])\n\nprefix_rule(['sh', '-c'], 'forbidden', justification = 'Write a script.')\n",
    );
    let (code, out, _) = house.told(&["explain", "--", "sh", "-c", "ls; id"]);
    assert_eq!(code, 0);
    assert!(out.starts_with("sh -c 'ls; id': forbidden\n"), "{out}");
    let rule = |line: &str| {
        out.lines().find(|other| other.contains(line)).unwrap_or_else(|| panic!("{out}")).to_owned()
    };
    assert!(rule("my.rules:3").starts_with("> forbidden  sh -c"), "{out}");
    assert!(rule("my.rules:1").starts_with("  allow"), "{out}");
    for told in [
        "Write a script.",
        "exit code 1",
        "the strictest of 2 matching rules",
        "one by one",
        "rules apply to the executable file itself",
    ] {
        assert!(out.contains(told), "{told}: {out}");
    }
    let (_, out, _) = house.told(&["explain", "--", "/bin/sh", "-c", "id"]);
    assert!(out.starts_with("/bin/sh -c id: forbidden\n"), "another path to the same file: {out}");
    let (_, out, _) = house.told(&["explain", "id"]);
    assert!(out.contains("no rule") && out.contains("It runs in the sandbox"), "{out}");
}

/// An `allow` for a program that does what its arguments say is no promise that the command leaves.
#[test]
fn explain_and_lint_say_what_an_allow_means_for_a_command_with_more_words() {
    let house = House::with(
        "prefix_rule(['mkdir'])\nprefix_rule(['id'])\nprefix_rule(['find', '.', '-delete'])\nprefix_rule(['ls', '-l'])\n",
    );
    let (_, out, _) = house.told(&["explain", "mkdir", "-p", "x"]);
    for told in [
        "someone is asked whether to run it outside or inside",
        "if no one can be asked, it runs inside",
        "escalate_risky",
    ] {
        assert!(out.contains(told), "{told}: {out}");
    }
    for plain in [&["explain", "id", "-u"][..], &["explain", "find", ".", "-delete"]] {
        let (_, out, _) = house.told(plain);
        assert!(
            !out.contains("escalate_risky")
                && out.contains("A command that cannot leave runs in the sandbox"),
            "{out}"
        );
    }
    let (_, out, _) = house.told(&["explain", "find", ".", "-delete", "-quit"]);
    assert!(
        out.contains("does not list every word of the command") && out.contains("escalate_risky"),
        "{out}"
    );
    let (_, out, _) = house.told(&["lint"]);
    assert!(
        out.contains("escalate_risky") && out.contains("not at all if no one can be asked"),
        "{out}"
    );
    for told in [
        ":1: `mkdir` is risky to allow: it writes, ",
        "It never leaves the sandbox without approval; list every word of a command in a rule to let that command leave",
        "It leaves the sandbox without approval only with exactly these words; to let a longer command leave, write a rule that lists all of its words",
        ":4: note: `ls -l` leaves the sandbox without approval only with exactly these words",
        "2 warnings",
    ] {
        assert!(out.contains(told), "{told}: {out}");
    }
    assert!(!out.contains("`id`"), "{out}");
    let (_, out, _) = house.told(&["explain", "ls", "-l", "/etc"]);
    assert!(
        out.contains("not known to be harmless")
            && out.contains("A rule of two or more words that lists the whole command"),
        "{out}"
    );
    let house = House::with("prefix_rule(['mkdir'], 'prompt')\n");
    let (_, out, _) = house.told(&["explain", "mkdir", "x"]);
    assert!(
        out.contains(
            "If it is denied, not answered, or no one can be asked, it fails with exit code 1."
        ),
        "{out}"
    );
}

#[test]
fn at_run_time_no_allow_on_a_path_hides_what_is_forbidden_on_the_name() {
    let house = House::with("prefix_rule(['/usr/bin/env'])\nprefix_rule(['env'], 'forbidden')\n");
    let (_, out, _) = house.told(&["explain", "/usr/bin/env"]);
    assert!(out.starts_with("/usr/bin/env: forbidden\n"), "{out}");
    assert!(out.contains("Text match, as in Codex: allow, by one rule"), "{out}");
}

#[test]
fn lint_warns_about_rules_that_let_out_what_others_say() {
    let house =
        House::with("prefix_rule(['env'])\nprefix_rule(['ls'])\nprefix_rule(['nosuchprogram'])\n");
    let (code, out, _) = house.told(&["lint"]);
    assert_eq!(code, 1, "{out}");
    assert!(
        out.contains("my.rules:1: `env` is risky to allow: it runs the program its arguments name"),
        "{out}"
    );
    assert!(out.contains("my.rules:3: `nosuchprogram` matches no program"), "{out}");
    assert!(
        out.contains("my.rules:2: note: `ls` leaves the sandbox without approval")
            && out.contains("2 warnings"),
        "{out}"
    );
    assert_eq!(out.matches("nosuchprogram").count(), 1, "what leads nowhere does not leave: {out}");
    let house = House::with("prefix_rule(['uname'])\nprefix_rule(['env'], 'prompt')\n");
    assert_eq!(
        house.told(&["lint"]),
        (0, "2 rules, nothing to warn about\n".to_owned(), String::new())
    );
    let (code, out, _) = House::with("prefix_rule(['ls', '-l'])\n").told(&["lint"]);
    assert!(code == 0 && out.contains("note: `ls -l`"), "a note is no warning: {out}");
}

#[test]
fn without_rules_it_says_where_they_would_be() {
    let (code, out, err) = House::new().told(&["check", "ls"]);
    assert_eq!((code, out.as_str()), (0, "{\"matchedRules\":[]}\n"));
    assert!(err.contains("home/.codex/rules/*.rules"), "{err}");
}

#[test]
fn a_hostile_file_is_bounded_and_explained() {
    let nested = format!("x = {}{}\n", "[".repeat(300_000), "]".repeat(300_000));
    let cases = [
        ("time", "x = 1 << 30000000\ny = [str(x) for _ in range(1000)]\n"),
        (
            "loops",
            "def f():\n    for a in range(1000000):\n        for b in range(1000000):\n            pass\nf()\n",
        ),
        ("memory", "x = 'a' * (1 << 34)\n"),
        ("lists", "x = [[0] * 1000000 for _ in range(1000000)]\n"),
        ("nesting", &nested),
        ("rules", "x = [prefix_rule(['a' * 1000]) for _ in range(10000000)]\n"),
    ];
    for (name, text) in cases {
        let house = House::with(text);
        let begun = Instant::now();
        let (code, out, err) = house.told(&["check", "ls"]);
        assert!(begun.elapsed() < DEADLINE, "{name}: {:?}", begun.elapsed());
        assert_eq!((code, out.as_str()), (1, ""), "{name}: {err}");
        assert!(err.contains("my.rules"), "{name}: {err}");
    }
}

#[test]
fn names_in_a_file_cannot_drive_the_terminal() {
    let house = House::with(
        "prefix_rule(['ls', '\\x1b[2J'], 'prompt', justification = '\\x1b]0;x\\x07')\nprefix_rule(['env', '\\x1b[2J'])",
    );
    for words in [&["explain", "ls", "\u{1b}[2J"][..], &["lint"]] {
        let (_, out, err) = house.told(words);
        assert!(!out.contains('\u{1b}') && !err.contains('\u{1b}'), "{out:?}");
    }
}

#[test]
fn a_rules_file_may_be_a_pipe() {
    let house = House::new();
    let pipe = house.0.path().join("tmp/pipe");
    mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
    let writer = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::write(pipe, "prefix_rule(['ls'], 'prompt')").unwrap()
    });
    let (code, out, err) = house.told(&["check", "--rules", pipe.to_str().unwrap(), "ls"]);
    writer.join().unwrap();
    assert!(code == 0 && out.contains("prompt"), "{out}{err}");
}
