//! Warnings about rules that are valid but may not mean what their author intended.

use std::path::Path;

use ::policy::{Decision, PatternToken, PrefixRule, RuleOrigin, RuleTable};

use super::escalation_risk;

/// Programs that can be made to run other code, each with a reason. The list only explains, except
/// that a rule of one word on a listed program never lets it leave the sandbox without approval.
const RISKY_PROGRAMS: &str = include_str!("lint.list");

/// Warning about one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleWarning {
    /// Index of the rule in the table.
    pub rule: usize,
    pub message: String,
}

/// Returns all warnings, in the order of the rules.
pub fn lint_rules(table: &RuleTable) -> Vec<RuleWarning> {
    let mut warnings = Vec::new();
    for (index, rule) in table.prefixes.iter().enumerate() {
        let candidates = [
            warn_risky_program(rule),
            warn_hidden_rule(table, rule),
            warn_overridden_rule(table, rule),
            warn_missing_program(table, rule),
        ];
        warnings.extend(
            candidates.into_iter().flatten().map(|message| RuleWarning { rule: index, message }),
        );
    }
    warnings
}

/// Returns notes on the other `allow` rules that do not let every command they match leave, in
/// order. Nothing is wrong with these rules.
pub fn collect_notes(table: &RuleTable) -> Vec<RuleWarning> {
    let needs_approval = |rule: &PrefixRule| {
        rule.decision == Decision::Allow
            && risk_reason(rule).is_none()
            && !escalation_risk::is_harmless(&rule.program)
            && warn_missing_program(table, rule).is_none()
    };
    let rules = table.prefixes.iter().enumerate().filter(|(_, rule)| needs_approval(rule));
    rules
        .map(|(index, rule)| RuleWarning {
            rule: index,
            message: format!("`{}` {}", format_rule(rule), describe_unapproved(rule)),
        })
        .collect()
}

/// Describes which commands of an `allow` rule leave without approval, and how to allow others.
fn describe_unapproved(rule: &PrefixRule) -> &'static str {
    match escalation_risk::allows_exact_command(rule) {
        true => {
            "leaves the sandbox without approval only with exactly these words; to let a longer command leave, write a rule that lists all of its words"
        }
        false => {
            "never leaves the sandbox without approval; list every word of a command in a rule to let that command leave"
        }
    }
}

/// Returns a rule in readable form: `git push|fetch`.
pub fn format_rule(rule: &PrefixRule) -> String {
    let mut text = rule.program.clone();
    for token in &rule.rest {
        text.push(' ');
        text.push_str(&token.0.join("|"));
    }
    text
}

fn program_name(program: &str) -> &str {
    Path::new(program).file_name().and_then(|name| name.to_str()).unwrap_or(program)
}

/// Warns about allowing a program that can be made to run other code, because what is allowed may
/// run outside the sandbox.
fn warn_risky_program(rule: &PrefixRule) -> Option<String> {
    let reason = risk_reason(rule).filter(|_| rule.decision == Decision::Allow)?;
    let (rule_text, approval_note) = (format_rule(rule), describe_unapproved(rule));
    Some(format!("`{rule_text}` is risky to allow: {reason}. It {approval_note}"))
}

/// Returns why a command that begins with these words can be made to run other code, if it can.
pub fn risk_reason_for_words(prefix: &[String]) -> Option<&'static str> {
    let (program, rest) = prefix.split_first()?;
    risk_reason(&PrefixRule {
        program: program.clone(),
        rest: rest.iter().map(|word| PatternToken(vec![word.clone()])).collect(),
        decision: Decision::Allow,
        justification: None,
        origin: RuleOrigin { file: String::new(), line: 0 },
        project: false,
    })
}

/// Returns the reason from the longest matching line of the list.
pub fn risk_reason(rule: &PrefixRule) -> Option<&'static str> {
    let lines = RISKY_PROGRAMS
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once("  "));
    let matching = lines.filter(|(pattern, _)| matches_rule(pattern, rule));
    // Take the first of the longest lines: `max_by_key` would return the last.
    matching
        .min_by_key(|(pattern, _)| std::cmp::Reverse(pattern.split(' ').count()))
        .map(|(_, reason)| reason.trim())
}

fn matches_rule(line: &str, rule: &PrefixRule) -> bool {
    let matches_word = |names: &str, word: &str| {
        names.split('|').any(|name| match name.strip_suffix('*') {
            Some(prefix) => word.starts_with(prefix),
            None => word == name,
        })
    };
    let mut patterns = line.split(' ');
    patterns.next().is_some_and(|names| matches_word(names, program_name(&rule.program)))
        && patterns.enumerate().all(|(index, names)| {
            rule.rest
                .get(index)
                .is_some_and(|token| token.0.iter().any(|word| matches_word(names, word)))
        })
}

/// Warns about a rule on a path that hides stricter rules on the name when commands are checked as
/// text.
fn warn_hidden_rule(table: &RuleTable, rule: &PrefixRule) -> Option<String> {
    let is_hidden = |other: &&PrefixRule| {
        rule.program.contains('/')
            && other.program == program_name(&rule.program)
            && other.decision > rule.decision
            && other
                .rest
                .iter()
                .zip(&rule.rest)
                .all(|(one, two)| one.0.iter().any(|word| two.0.contains(word)))
    };
    let other = table.prefixes.iter().find(is_hidden)?;
    Some(format!(
        "`{}` hides `{}` (line {} of {}) when a command is checked as text; at run time the stricter one applies",
        format_rule(rule),
        format_rule(other),
        other.origin.line,
        other.origin.file
    ))
}

/// Warns about a rule that is always overridden, because a stricter one matches wherever it does.
fn warn_overridden_rule(table: &RuleTable, rule: &PrefixRule) -> Option<String> {
    let is_stricter = |other: &&PrefixRule| {
        other.program == rule.program
            && other.decision > rule.decision
            && other.rest.len() <= rule.rest.len()
            && other
                .rest
                .iter()
                .zip(&rule.rest)
                .all(|(one, two)| two.0.iter().all(|word| one.0.contains(word)))
    };
    let other = table.prefixes.iter().find(is_stricter)?;
    Some(format!(
        "`{}` never takes effect: `{}` (line {} of {}) also matches and is stricter",
        format_rule(rule),
        format_rule(other),
        other.origin.line,
        other.origin.file
    ))
}

/// Warns about a rule on a program that does not exist here. Rules that forbid a missing program
/// are fine.
fn warn_missing_program(table: &RuleTable, rule: &PrefixRule) -> Option<String> {
    let program = table.programs.get(&rule.program)?;
    let is_missing = rule.decision != Decision::Forbidden && program.files.is_empty();
    let reason =
        match (rule.program.starts_with('/'), table.host_executables.contains_key(&rule.program)) {
            _ if rule.program.contains('/') && !rule.program.starts_with('/') => {
                "a relative path does not identify a program at run time"
            }
            (true, _) => "this program does not exist here",
            (_, true) => "none of the files listed in host_executable is a program here",
            _ => "no program of that name is on the search path",
        };
    is_missing.then(|| format!("`{}` matches no program: {reason}", format_rule(rule)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::{RulesSource, parse_sources};

    fn warnings(text: &str) -> Vec<String> {
        let table =
            parse_sources(&[RulesSource { name: "a.rules".into(), text: text.into() }]).unwrap();
        lint_rules(&table).into_iter().map(|warning| warning.message).collect()
    }

    #[test]
    fn every_line_of_the_list_has_words_and_a_reason() {
        let lines: Vec<&str> = RISKY_PROGRAMS
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .collect();
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
        let table =
            parse_sources(&[RulesSource { name: "a.rules".into(), text: text.into() }]).unwrap();
        let notes: Vec<(usize, String)> =
            collect_notes(&table).into_iter().map(|note| (note.rule, note.message)).collect();
        let says = |words: &str| {
            format!(
                "`{words}` leaves the sandbox without approval only with exactly these words; to let a longer command leave, write a rule that lists all of its words"
            )
        };
        assert_eq!(notes, [(0, says("ls -l")), (2, says("deploy"))]);
        assert!(
            warnings("prefix_rule(['make'])")[0]
                .contains("It never leaves the sandbox without approval; list every word")
        );
        assert!(
            warnings("prefix_rule(['make', 'all'])")[0]
                .contains("It leaves the sandbox without approval only with exactly these words")
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
        assert!(
            found.len() == 1 && found[0].starts_with("`ls a|b` never takes effect"),
            "{found:?}"
        );
        assert!(warnings("prefix_rule(['ls'])\nprefix_rule(['ls', 'a'], 'prompt')").is_empty());
    }
}
