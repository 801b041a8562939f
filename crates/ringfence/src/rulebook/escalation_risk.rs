//! Decides what an `allow` rule lets leave the sandbox without approval.
//!
//! A list of dangerous programs is never complete: `sort --compress-program` runs a program,
//! `date -f` reads a file. So a command leaves without approval only if its program is known to be
//! harmless with any arguments, or if the rule names every word of it. The [list of programs that
//! can be made to run other code](super::lint) only gives reasons, and decides only about rules of
//! one word.

use ::policy::PrefixRule;

use super::lint;

/// Programs that are harmless with any arguments, each with a reason.
const HARMLESS_PROGRAMS: &str = include_str!("harmless.list");

/// Directories of the listed programs if a rule names them by path. A file of the same name
/// elsewhere is a different program.
const SYSTEM_DIRS: [&str; 2] = ["/usr/bin/", "/bin/"];

/// Reason if nothing else is known about a program.
const NOT_KNOWN: &str = "it is not known to be harmless with any arguments";

/// Returns whether a program, given by the first word of a rule, is harmless with any arguments.
pub fn is_harmless(program: &str) -> bool {
    let name = SYSTEM_DIRS.iter().find_map(|dir| program.strip_prefix(dir)).unwrap_or(program);
    let lines = HARMLESS_PROGRAMS
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once("  "));
    lines.into_iter().any(|(names, _)| names.split('|').any(|listed| listed == name))
}

/// Returns whether a command of exactly the words of this rule leaves without approval. A rule of a
/// single word does not cover what a shell reads from its input, or `make` from the workspace.
pub fn allows_exact_command(rule: &PrefixRule) -> bool {
    !rule.rest.is_empty() || lint::risk_reason(rule).is_none()
}

/// Returns why approval is required before a command of `word_count` words leaves under an `allow`
/// rule that names `prefix`. Returns `None` if the rule is sufficient.
pub fn reason_to_ask(prefix: &[String], word_count: usize) -> Option<&'static str> {
    let program = prefix.first().map(String::as_str).unwrap_or_default();
    if is_harmless(program) {
        return None;
    }
    let reason = lint::risk_reason_for_words(prefix);
    match (word_count <= prefix.len(), prefix.len()) {
        (true, 1) => reason,
        (true, _) => None,
        (false, _) => Some(reason.unwrap_or(NOT_KNOWN)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(prefix: &[&str], words: usize) -> Option<&'static str> {
        let prefix: Vec<String> = prefix.iter().map(|word| (*word).to_owned()).collect();
        reason_to_ask(&prefix, words)
    }

    #[test]
    fn every_line_of_the_list_has_names_and_a_reason() {
        let lines: Vec<&str> = HARMLESS_PROGRAMS
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .collect();
        assert!(!lines.is_empty());
        for line in lines {
            let (names, reason) = line.split_once("  ").unwrap_or_else(|| panic!("{line}"));
            assert!(
                !names.contains(' ') && !names.contains('*') && reason.trim().len() > 10,
                "{line}"
            );
            for name in names.split('|') {
                assert_eq!(
                    lint::risk_reason_for_words(&[name.to_owned()]),
                    None,
                    "{name} is on both lists"
                );
            }
        }
    }

    #[test]
    fn only_what_is_known_to_be_harmless_leaves_with_any_words() {
        for program in ["true", "id", "/usr/bin/id", "/bin/echo", "nproc"] {
            assert_eq!(asks(&[program], 9), None, "{program}");
        }
        for program in [
            "cat",
            "grep",
            "sort",
            "rg",
            "split",
            "date",
            "ls",
            "eslint",
            "jest",
            "git",
            "./id",
            "/opt/x/id",
            "bin/id",
            "",
        ] {
            assert!(asks(&[program], 2).is_some(), "{program}");
        }
        assert_eq!(asks(&["rg", "x"], 3), Some(NOT_KNOWN));
    }

    #[test]
    fn a_rule_with_every_word_is_enough() {
        for rule in
            [&["git", "push", "origin"][..], &["make", "all"], &["npm", "ci"], &["/opt/deploy"]]
        {
            assert_eq!(asks(rule, rule.len()), None, "{rule:?}");
            assert!(asks(rule, rule.len() + 1).is_some(), "{rule:?}");
        }
        // Without arguments these programs do what their input or the workspace says.
        for program in ["sh", "python3", "make", "git", "npm"] {
            assert!(asks(&[program], 1).is_some(), "{program}");
        }
    }
}
