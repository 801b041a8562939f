//! What an `allow` rule lets out without a question.
//!
//! A list of dangerous programs is never complete: `sort --compress-program` runs a program, `date -f` reads a file. So
//! what leaves unasked is what is known to be harmless with any arguments, or what the rule names word by word. The
//! [list of programs that run what others say](super::lint) only gives reasons, and decides about rules of one word.

use ::policy::PrefixRule;

use super::lint;

/// Programs that are harmless with any arguments, with a reason each.
const HARMLESS: &str = include_str!("harmless.list");

/// Where the programs on the list are when a rule names them by a path. A file of such a name elsewhere is another one.
const SYSTEM_DIRS: [&str; 2] = ["/usr/bin/", "/bin/"];

/// The reason where nothing else is known about a program.
const NOT_KNOWN: &str = "it is not known to be harmless with any arguments";

/// Whether a program, by the first word of a rule, is harmless with any arguments.
pub fn is_harmless(program: &str) -> bool {
    let name = SYSTEM_DIRS.iter().find_map(|dir| program.strip_prefix(dir)).unwrap_or(program);
    let lines = HARMLESS
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once("  "));
    lines.into_iter().any(|(names, _)| names.split('|').any(|listed| listed == name))
}

/// Whether a command of exactly the words of this rule leaves unasked. A single word does not name what a shell reads
/// from its input, or `make` from the workspace.
pub fn lets_exact_words_out(rule: &PrefixRule) -> bool {
    !rule.rest.is_empty() || lint::reason(rule).is_none()
}

/// Why someone is asked before a command of `words` words leaves under an `allow` rule that names these. `None` where
/// the rule is enough.
pub fn reason_to_ask(prefix: &[String], words: usize) -> Option<&'static str> {
    let program = prefix.first().map(String::as_str).unwrap_or_default();
    if is_harmless(program) {
        return None;
    }
    let reason = lint::reason_for_words(prefix);
    match (words <= prefix.len(), prefix.len()) {
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
        let lines: Vec<&str> =
            HARMLESS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        assert!(!lines.is_empty());
        for line in lines {
            let (names, reason) = line.split_once("  ").unwrap_or_else(|| panic!("{line}"));
            assert!(
                !names.contains(' ') && !names.contains('*') && reason.trim().len() > 10,
                "{line}"
            );
            for name in names.split('|') {
                assert_eq!(
                    lint::reason_for_words(&[name.to_owned()]),
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
        // What these do alone is in their input or in the workspace.
        for program in ["sh", "python3", "make", "git", "npm"] {
            assert!(asks(&[program], 1).is_some(), "{program}");
        }
    }
}
