//! What is worth a second look in rules that are sound.

use std::path::Path;

use ::policy::{Decision, Origin, PrefixRule, Table, Token};

use super::unasked;

/// Programs that run what others say, with a reason each. It explains, and decides nothing that leaves.
const LIST: &str = include_str!("lint.list");

/// One thing to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Where the rule stands in the table.
    pub rule: usize,
    pub what: String,
}

/// Everything that is worth a look, in the order of the rules.
pub fn lint(table: &Table) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for (at, rule) in table.prefixes.iter().enumerate() {
        let found = [
            lets_out(rule),
            hides(table, rule),
            never_decides(table, rule),
            leads_nowhere(table, rule),
        ];
        warnings.extend(found.into_iter().flatten().map(|what| Warning { rule: at, what }));
    }
    warnings
}

/// The other `allow` rules that do not let out every command they match, in their order: nothing is wrong with them.
pub fn notes(table: &Table) -> Vec<Warning> {
    let asks = |rule: &PrefixRule| {
        rule.decision == Decision::Allow
            && reason(rule).is_none()
            && !unasked::is_harmless(&rule.program)
            && leads_nowhere(table, rule).is_none()
    };
    let rules = table.prefixes.iter().enumerate().filter(|(_, rule)| asks(rule));
    rules
        .map(|(at, rule)| Warning {
            rule: at,
            what: format!("`{}` {}", words(rule), unasked_words(rule)),
        })
        .collect()
}

/// Which commands of an `allow` rule leave unasked, and what to write so that others do.
fn unasked_words(rule: &PrefixRule) -> &'static str {
    match unasked::lets_exact_words_out(rule) {
        true => {
            "leaves unasked with exactly these words; for a longer command, name every word of it in a rule"
        }
        false => "never leaves unasked; name every word of a command in a rule to let that one out",
    }
}

/// A rule as one would say it: `git push|fetch`.
pub fn words(rule: &PrefixRule) -> String {
    let mut text = rule.program.clone();
    for token in &rule.rest {
        text.push(' ');
        text.push_str(&token.0.join("|"));
    }
    text
}

fn name(program: &str) -> &str {
    Path::new(program).file_name().and_then(|name| name.to_str()).unwrap_or(program)
}

/// What is allowed may run outside the fence, and some programs run whatever they are told to.
fn lets_out(rule: &PrefixRule) -> Option<String> {
    let reason = reason(rule).filter(|_| rule.decision == Decision::Allow)?;
    let (words, unasked) = (words(rule), unasked_words(rule));
    Some(format!(
        "`{words}` is allowed, and with it what others tell it to do: {reason}. It {unasked}"
    ))
}

/// Why a command that begins with these words may run what others say, if it may.
pub fn reason_for_words(prefix: &[String]) -> Option<&'static str> {
    let (program, rest) = prefix.split_first()?;
    reason(&PrefixRule {
        program: program.clone(),
        rest: rest.iter().map(|word| Token(vec![word.clone()])).collect(),
        decision: Decision::Allow,
        justification: None,
        origin: Origin { file: String::new(), line: 0 },
        project: false,
    })
}

/// The reason of the longest line that fits.
pub fn reason(rule: &PrefixRule) -> Option<&'static str> {
    let lines =
        LIST.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once("  "));
    let fitting = lines.filter(|(words, _)| fits(words, rule));
    // The first of the longest: `max_by_key` would take the last.
    fitting
        .min_by_key(|(words, _)| std::cmp::Reverse(words.split(' ').count()))
        .map(|(_, reason)| reason.trim())
}

fn fits(line: &str, rule: &PrefixRule) -> bool {
    let one = |names: &str, word: &str| {
        names.split('|').any(|name| match name.strip_suffix('*') {
            Some(start) => word.starts_with(start),
            None => word == name,
        })
    };
    let mut places = line.split(' ');
    places.next().is_some_and(|names| one(names, name(&rule.program)))
        && places.enumerate().all(|(at, names)| {
            rule.rest.get(at).is_some_and(|token| token.0.iter().any(|word| one(names, word)))
        })
}

/// As text a rule on a path hides stricter ones on its name.
fn hides(table: &Table, rule: &PrefixRule) -> Option<String> {
    let hidden = |other: &&PrefixRule| {
        rule.program.contains('/')
            && other.program == name(&rule.program)
            && other.decision > rule.decision
            && other
                .rest
                .iter()
                .zip(&rule.rest)
                .all(|(one, two)| one.0.iter().any(|word| two.0.contains(word)))
    };
    let other = table.prefixes.iter().find(hidden)?;
    Some(format!(
        "`{}` hides `{}` (line {} of {}) when a command is checked as text; at run time the stricter one counts",
        words(rule),
        words(other),
        other.origin.line,
        other.origin.file
    ))
}

/// Wherever it matches, a stricter one does too.
fn never_decides(table: &Table, rule: &PrefixRule) -> Option<String> {
    let stronger = |other: &&PrefixRule| {
        other.program == rule.program
            && other.decision > rule.decision
            && other.rest.len() <= rule.rest.len()
            && other
                .rest
                .iter()
                .zip(&rule.rest)
                .all(|(one, two)| two.0.iter().all(|word| one.0.contains(word)))
    };
    let other = table.prefixes.iter().find(stronger)?;
    Some(format!(
        "`{}` never decides: `{}` (line {} of {}) matches too and is stricter",
        words(rule),
        words(other),
        other.origin.line,
        other.origin.file
    ))
}

/// A rule about a program that is not here. What is forbidden may well not be.
fn leads_nowhere(table: &Table, rule: &PrefixRule) -> Option<String> {
    let program = table.programs.get(&rule.program)?;
    let nowhere = rule.decision != Decision::Forbidden && program.files.is_empty();
    let why =
        match (rule.program.starts_with('/'), table.host_executables.contains_key(&rule.program)) {
            _ if rule.program.contains('/') && !rule.program.starts_with('/') => {
                "a relative path stands for no program at run time"
            }
            (true, _) => "there is no such program here",
            (_, true) => "none of the files that host_executable lists is a program here",
            _ => "no program of that name is on the search path",
        };
    nowhere.then(|| format!("`{}` leads nowhere: {why}", words(rule)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::{Source, parse};

    fn warnings(text: &str) -> Vec<String> {
        let table = parse(&[Source { name: "a.rules".into(), text: text.into() }]).unwrap();
        lint(&table).into_iter().map(|warning| warning.what).collect()
    }

    #[test]
    fn every_line_of_the_list_has_words_and_a_reason() {
        let lines: Vec<&str> =
            LIST.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        assert!(lines.len() > 40);
        for line in lines {
            let (words, reason) = line.split_once("  ").unwrap_or_else(|| panic!("{line}"));
            assert!(!words.is_empty() && reason.trim().len() > 10, "{line}");
        }
    }

    #[test]
    fn programs_that_run_what_others_say_are_told_of() {
        for program in [
            "git",
            "npm",
            "make",
            "cargo",
            "python",
            "python3.12",
            "bash",
            "env",
            "sudo",
            "xargs",
            "ssh",
            "docker",
            "find",
            "tar",
            "rsync",
            "/usr/bin/git",
            "node",
            "vim",
        ] {
            assert_eq!(warnings(&format!("prefix_rule([{program:?}])")).len(), 1, "{program}");
            assert!(
                warnings(&format!("prefix_rule([{program:?}], 'forbidden')")).is_empty(),
                "{program}"
            );
        }
        assert!(warnings("prefix_rule(['ls', '-l'])\nprefix_rule(['uname'])").is_empty());
    }

    #[test]
    fn every_allow_that_asks_says_how_to_write_it_in_full() {
        let text = "prefix_rule(['ls', '-l'])\nprefix_rule(['uname'])\nprefix_rule(['deploy'])\nprefix_rule(['cat'], 'prompt')";
        let table = parse(&[Source { name: "a.rules".into(), text: text.into() }]).unwrap();
        let notes: Vec<(usize, String)> =
            notes(&table).into_iter().map(|note| (note.rule, note.what)).collect();
        let says = |words: &str| {
            format!(
                "`{words}` leaves unasked with exactly these words; for a longer command, name every word of it in a rule"
            )
        };
        assert_eq!(notes, [(0, says("ls -l")), (2, says("deploy"))]);
        assert!(
            warnings("prefix_rule(['make'])")[0]
                .contains("It never leaves unasked; name every word")
        );
        assert!(
            warnings("prefix_rule(['make', 'all'])")[0]
                .contains("It leaves unasked with exactly these words")
        );
    }

    #[test]
    fn the_longest_line_that_fits_gives_the_reason() {
        assert!(warnings("prefix_rule(['git', ['pull', 'push']])")[0].contains("--receive-pack="));
        assert!(warnings("prefix_rule(['git', 'status'])")[0].contains("core.fsmonitor, filters"));
        assert!(warnings("prefix_rule(['git', 'frobnicate'])")[0].contains("--exec-path"));
    }

    #[test]
    fn a_rule_that_hides_or_never_decides_is_told_of() {
        let found = warnings("prefix_rule(['/bin/ls'])\nprefix_rule(['ls', '-R'], 'forbidden')");
        assert!(
            found.len() == 1 && found[0].starts_with("`/bin/ls` hides `ls -R` (line 2"),
            "{found:?}"
        );
        let found = warnings(
            "prefix_rule(['ls', ['a', 'b']])\nprefix_rule(['ls', ['a', 'b', 'c']], 'prompt')",
        );
        assert!(found.len() == 1 && found[0].starts_with("`ls a|b` never decides"), "{found:?}");
        assert!(warnings("prefix_rule(['ls'])\nprefix_rule(['ls', 'a'], 'prompt')").is_empty());
    }
}
