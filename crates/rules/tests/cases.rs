//! Whole files: valid ones are read completely, and errors are explained. A `cases/x.rules` with a
//! `cases/x.faults` next to it must produce exactly these errors; without one it must produce none.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

use std::path::{Path, PathBuf};

use policy::{Decision, RuleTable};
use rules::{RulesSource, parse_sources, read_rules};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

fn source(name: &str) -> RulesSource {
    RulesSource {
        name: name.to_owned(),
        text: std::fs::read_to_string(folder().join(name)).unwrap(),
    }
}

fn inline(text: &str) -> RulesSource {
    RulesSource { name: "inline.rules".to_owned(), text: text.to_owned() }
}

fn table(name: &str) -> RuleTable {
    parse_sources(&[source(name)]).unwrap_or_else(|faults| panic!("{faults:#?}"))
}

fn says(table: &RuleTable, command: &str) -> Option<Decision> {
    let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
    table.check_command(&words, true).decision
}

#[test]
fn every_case_gives_its_faults_and_no_others() {
    let (mut seen, mut wrong) = (0, String::new());
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "rules") {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        let expected = std::fs::read_to_string(path.with_extension("faults")).unwrap_or_default();
        let found: Vec<String> = parse_sources(&[source(name)])
            .err()
            .unwrap_or_default()
            .iter()
            .map(|fault| format!("{fault}\n"))
            .collect();
        if found.join("\n") != expected {
            wrong.push_str(&format!("== {name} gives\n{}", found.join("\n")));
        }
        seen += 1;
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(seen >= 8, "{seen} cases");
}

#[test]
fn rules_are_ordinary_programs() {
    let table = table("program.rules");
    assert_eq!(says(&table, "cargo build --release"), Some(Decision::Allow));
    assert_eq!(says(&table, "cargo publish"), Some(Decision::Forbidden));
    assert_eq!(says(&table, "kubectl delete pod"), Some(Decision::Prompt));
    assert_eq!(table.prefixes.iter().filter(|rule| rule.program == "kubectl").count(), 3);
}

#[test]
fn a_rule_knows_the_statement_that_made_it() {
    let table = table("program.rules");
    let line = |program: &str| {
        table.prefixes.iter().find(|rule| rule.program == program).unwrap().origin.line
    };
    assert_eq!(line("shutdown"), 17, "not the line inside the function that it calls");
    assert_eq!(line("cargo"), 4);
    assert_eq!(table.prefixes[0].origin.file, "program.rules");
}

#[test]
fn alternatives_of_the_first_word_are_rules_of_their_own() {
    let table = parse_sources(&[inline(r#"prefix_rule([["a", "b"], ["x", "y"]])"#)]).unwrap();
    let programs: Vec<&str> = table.prefixes.iter().map(|rule| rule.program.as_str()).collect();
    assert_eq!(programs, ["a", "b"]);
    assert_eq!(table.prefixes[0].rest[0].0, ["x", "y"]);
}

#[test]
fn examples_count_what_files_before_said_about_programs() {
    let first = inline(r#"host_executable(name = "git", paths = ["/usr/bin/git"])"#);
    let rule = |examples: &str| inline(&format!(r#"prefix_rule(["git"], {examples})"#));
    assert!(
        parse_sources(&[
            first.clone(),
            rule(r#"match = ["/usr/bin/git x"], not_match = ["/opt/git x"]"#)
        ])
        .is_ok()
    );
    assert!(parse_sources(&[first, rule(r#"match = ["/opt/git x"]"#)]).is_err());
    assert!(parse_sources(&[rule(r#"match = ["/opt/git x"]"#)]).is_ok());
}

#[test]
fn a_broken_file_does_not_hide_the_faults_of_another() {
    let faults =
        parse_sources(&[inline("x ="), source("program.rules"), inline("prefix_rule([])")])
            .unwrap_err();
    let messages: Vec<&str> = faults.iter().map(|fault| fault.message.as_str()).collect();
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert_eq!(messages[1], "pattern must not be empty");
}

#[test]
fn what_a_broken_file_forbids_still_holds_and_what_it_allows_does_not() {
    let text = r#"
prefix_rule(["rm"], "forbidden")
prefix_rule(["git"], "allow")
network_rule("a.example", "https", "allow")
network_rule("b.example", "https", "deny")
host_executable("rm", [])
prefix_rule(["x"], "maybe")
prefix_rule(["ssh"], "prompt")
fail("here")
prefix_rule(["never"], "forbidden")
"#;
    let reading = read_rules(&inline(text), &Default::default());
    assert_eq!(reading.faults.len(), 2, "{:?}", reading.faults);
    let programs: Vec<&str> =
        reading.table.prefixes.iter().map(|rule| rule.program.as_str()).collect();
    assert_eq!(programs, ["rm", "ssh"]);
    assert_eq!(reading.table.networks.len(), 1);
    assert!(reading.table.host_executables.is_empty());
}

#[test]
fn the_last_word_on_a_program_counts() {
    let text = r#"
host_executable("git", ["/a/git"])
host_executable("git", ["/b/git", "/b/./git"])
"#;
    assert_eq!(parse_sources(&[inline(text)]).unwrap().host_executables["git"], ["/b/git"]);
}

#[test]
fn work_without_end_is_ended() {
    for text in [
        "def f():\n    for a in range(100000):\n        for b in range(100000):\n            pass\nf()",
        "x = [prefix_rule([\"a\"]) for _ in range(1000000)]",
        "x = [prefix_rule([]) for _ in range(1000000)]",
        "def f():\n    f()\nf()",
    ] {
        let reading = read_rules(&inline(text), &Default::default());
        assert!(
            !reading.faults.is_empty() && reading.faults.len() <= 50,
            "{text}: {}",
            reading.faults.len()
        );
        assert!(reading.table.prefixes.is_empty());
    }
}

#[test]
fn faults_and_rules_survive_the_wire() {
    for text in [
        "prefix_rule([])",
        "prefix_rule([\"a\", [\"b\", \"c\"]], \"prompt\", justification = \"j\")\nnetwork_rule(\"h\", \"socks5_udp\", \"deny\")",
    ] {
        let reading = read_rules(&inline(text), &Default::default());
        let line = serde_json::to_string(&reading).unwrap();
        assert_eq!(serde_json::from_str::<rules::ParsedRules>(&line).unwrap(), reading);
    }
}
