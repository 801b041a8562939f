//! Checks a command as text, exactly as `codex execpolicy check` does.
//!
//! Its quirks are kept on purpose, because people test their files with it: a word is compared as a
//! whole and at its position; a rule on the first word as written hides all rules on its last
//! component; and a relative or `~` path is made absolute, starting from the current directory,
//! before its name is looked up.

use std::path::{Component, Path, PathBuf};

use serde::{Serialize, Serializer};

use crate::rule::{Decision, PrefixRule, RuleTable};

/// Result of a check. As JSON it equals the output of Codex.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckResult {
    /// Every matching rule, in the order in which the rules were read.
    #[serde(rename = "matchedRules")]
    pub matches: Vec<RuleMatch>,
    /// The strictest decision among them; absent if nothing matched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
}

/// A single matching rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleMatch {
    /// Index of the rule in [`RuleTable::prefixes`].
    pub rule_index: usize,
    /// The words of the command that matched; the first may have been reduced to its last
    /// component.
    pub matched_prefix: Vec<String>,
    pub decision: Decision,
    /// The path that was matched by its last component.
    pub resolved_program: Option<String>,
    pub justification: Option<String>,
}

impl Serialize for RuleMatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Inner<'a> {
            matched_prefix: &'a [String],
            decision: Decision,
            #[serde(skip_serializing_if = "Option::is_none")]
            resolved_program: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            justification: Option<&'a str>,
        }
        let inner = Inner {
            matched_prefix: &self.matched_prefix,
            decision: self.decision,
            resolved_program: self.resolved_program.as_deref(),
            justification: self.justification.as_deref(),
        };
        // Codex has a second kind of match, so the output names this one.
        serializer.serialize_newtype_variant("Match", 0, "prefixRuleMatch", &inner)
    }
}

impl PrefixRule {
    /// Returns whether a command of `program` and `rest` begins with this rule's words.
    pub fn matches_command(&self, program: &str, rest: &[String]) -> bool {
        self.program == program
            && rest.len() >= self.rest.len()
            && self.rest.iter().zip(rest).all(|(token, word)| token.0.contains(word))
    }
}

impl RuleTable {
    /// Checks a command as text. With `resolve_host_executables`, a path that no rule names is
    /// looked up by its last component, unless `host_executable` rules that out.
    pub fn check_command(&self, command: &[String], resolve_host_executables: bool) -> CheckResult {
        let mut matches = Vec::new();
        if let Some((program, rest)) = command.split_first() {
            matches = self.match_program(program, rest, None);
            if matches.is_empty() && resolve_host_executables {
                matches = self.match_by_base_name(program, rest);
            }
        }
        let decision = matches.iter().map(|found| found.decision).max();
        CheckResult { matches, decision }
    }

    fn match_program(
        &self,
        program: &str,
        rest: &[String],
        resolved: Option<&str>,
    ) -> Vec<RuleMatch> {
        let rules = self
            .prefixes
            .iter()
            .enumerate()
            .filter(|(_, rule)| rule.matches_command(program, rest));
        rules
            .map(|(index, rule)| RuleMatch {
                rule_index: index,
                matched_prefix: std::iter::once(program.to_owned())
                    .chain(rest[..rule.rest.len()].iter().cloned())
                    .collect(),
                decision: rule.decision,
                resolved_program: resolved.map(str::to_owned),
                justification: rule.justification.clone(),
            })
            .collect()
    }

    fn match_by_base_name(&self, program: &str, rest: &[String]) -> Vec<RuleMatch> {
        let Some(path) = make_absolute(program) else { return Vec::new() };
        let (Some(name), Some(path_text)) =
            (path.file_name().and_then(|name| name.to_str()), path.to_str())
        else {
            return Vec::new();
        };
        let listed = self.host_executables.get(name);
        if listed.is_some_and(|paths| {
            !paths.iter().any(|other| RuleTable::normalize_path(Path::new(other)) == path)
        }) {
            return Vec::new();
        }
        self.match_program(name, rest, Some(path_text))
    }

    /// Removes `.` and `..` from the text alone; links are not resolved.
    pub fn normalize_path(path: &Path) -> PathBuf {
        let mut normal = PathBuf::new();
        for component in path.components() {
            match component {
                Component::CurDir => {}
                Component::ParentDir => {
                    normal.pop();
                }
                Component::Prefix(_) | Component::RootDir | Component::Normal(_) => {
                    normal.push(component)
                }
            }
        }
        normal
    }
}

/// Makes a path absolute as Codex does: `~` is the home directory, and relative paths start at the
/// current directory.
fn make_absolute(word: &str) -> Option<PathBuf> {
    let home = || std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
    let path = match word.strip_prefix('~').map(|rest| (rest, rest.strip_prefix('/'))) {
        Some(("", _)) => home().unwrap_or_else(|| word.into()),
        Some((_, Some(below))) => {
            home().map_or_else(|| word.into(), |home| home.join(below.trim_start_matches('/')))
        }
        _ => PathBuf::from(word),
    };
    let path = if path.is_absolute() { path } else { std::env::current_dir().ok()?.join(path) };
    Some(RuleTable::normalize_path(&path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::{PatternToken, RuleOrigin};

    fn rule(words: &[&[&str]], decision: Decision) -> PrefixRule {
        let token =
            |words: &[&str]| PatternToken(words.iter().map(|word| (*word).to_owned()).collect());
        PrefixRule {
            program: words[0][0].to_owned(),
            rest: words[1..].iter().map(|words| token(words)).collect(),
            decision,
            justification: None,
            origin: RuleOrigin { file: "a.rules".into(), line: 1 },
            project: false,
        }
    }

    fn table(prefixes: Vec<PrefixRule>) -> RuleTable {
        RuleTable { prefixes, ..RuleTable::default() }
    }

    fn words(command: &str) -> Vec<String> {
        command.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn a_rule_matches_whole_words_in_place() {
        let table = table(vec![rule(&[&["git"], &["push", "pull"]], Decision::Prompt)]);
        for (command, found) in [
            ("git push origin", Some(Decision::Prompt)),
            ("git pull", Some(Decision::Prompt)),
            ("git", None),
            ("git pushx", None),
            ("git -C x push", None),
            ("Git push", None),
        ] {
            assert_eq!(table.check_command(&words(command), false).decision, found, "{command}");
        }
        assert_eq!(table.check_command(&[], true).decision, None);
    }

    #[test]
    fn the_strictest_of_all_that_match_decides() {
        let table = table(vec![
            rule(&[&["git"]], Decision::Allow),
            rule(&[&["git"], &["push"]], Decision::Forbidden),
            rule(&[&["git"], &["push"]], Decision::Prompt),
        ]);
        let check = table.check_command(&words("git push"), false);
        assert_eq!(check.decision, Some(Decision::Forbidden));
        assert_eq!(
            check.matches.iter().map(|found| found.rule_index).collect::<Vec<_>>(),
            [0, 1, 2]
        );
    }

    #[test]
    fn a_rule_on_the_path_as_written_hides_the_rules_on_its_name() {
        let table = table(vec![
            rule(&[&["git"], &["status"]], Decision::Forbidden),
            rule(&[&["/usr/bin/git"], &["status"]], Decision::Allow),
        ]);
        assert_eq!(
            table.check_command(&words("/usr/bin/git status"), true).decision,
            Some(Decision::Allow)
        );
        assert_eq!(
            table.check_command(&words("/opt/git status"), true).decision,
            Some(Decision::Forbidden)
        );
        assert_eq!(table.check_command(&words("/opt/git status"), false).decision, None);
    }

    #[test]
    fn only_listed_paths_go_by_a_name_that_has_a_list() {
        let mut table = table(vec![rule(&[&["git"]], Decision::Allow)]);
        table.host_executables.insert("git".into(), vec!["/usr/bin/git".into()]);
        let check = table.check_command(&words("/usr/./lib/../bin//git x"), true);
        assert_eq!(check.matches[0].resolved_program.as_deref(), Some("/usr/bin/git"));
        assert_eq!(check.matches[0].matched_prefix, ["git"]);
        assert_eq!(table.check_command(&words("/opt/git x"), true).decision, None);
        table.host_executables.insert("git".into(), vec![]);
        assert_eq!(table.check_command(&words("/usr/bin/git x"), true).decision, None);
        assert_eq!(
            table.check_command(&words("git x"), true).decision,
            Some(Decision::Allow),
            "by its name as written"
        );
    }

    #[test]
    fn a_relative_path_starts_from_here_and_a_tilde_from_home() {
        let table = table(vec![rule(&[&["git"]], Decision::Allow)]);
        let resolved = |word: &str| {
            table.check_command(&words(word), true).matches[0]
                .resolved_program
                .clone()
                .map(PathBuf::from)
        };
        assert_eq!(resolved("./x/../git"), Some(std::env::current_dir().unwrap().join("git")));
        assert_eq!(resolved("~//git"), std::env::home_dir().map(|home| home.join("git")));
        assert!(table.check_command(&words("~x"), true).matches.is_empty());
        assert_eq!(resolved("/../../git"), Some("/git".into()));
    }
}
