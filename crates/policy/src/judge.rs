//! Judges a program that the kernel is about to execute.
//!
//! A name does not identify a program: a program of that name can be placed first in the search
//! path, be a link, a copy, or another name of a multi-call binary. So a rule that restricts
//! applies to everything that has its name or is its file under any name, while a rule that allows
//! applies only to the exact file that the operator's own search path leads to.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::rule::{Decision, HostFile, HostProgram, PrefixRule, RuleOrigin, RuleTable};

/// One candidate for what is about to run: the program itself, the script that it was started for,
/// or the program that a dynamic loader was asked to load.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExecCandidate<'a> {
    /// Real path of the file.
    pub real_path: &'a str,
    /// Absolute path by which it was called.
    pub called_path: &'a str,
    /// Together with the inode, the identity of the file.
    pub device: u64,
    pub inode: u64,
    pub size: u64,
    /// Arguments, starting with the one that names the program.
    pub argv: &'a [&'a [u8]],
    /// It is the program being started and not merely mentioned in the arguments. Nothing else may
    /// run outside the sandbox.
    pub is_started: bool,
}

impl ExecCandidate<'_> {
    fn is_file(&self, file: &HostFile) -> bool {
        (self.device, self.inode) == (file.device, file.inode)
    }

    fn real_name(&self) -> &str {
        base_name(self.real_path)
    }

    fn called_name(&self) -> &str {
        base_name(self.called_path)
    }

    fn argv0_name(&self) -> &[u8] {
        let first = self.argv.first().copied().unwrap_or_default();
        first.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }
}

/// How a program was recognized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MatchBasis {
    /// It has the rule's name or path.
    Name,
    /// It is the rule's file under another name.
    File,
    /// It has the same contents as the rule's file.
    Copy,
    /// It is the exact file that the rule's name refers to, called by that name: it may run outside
    /// the sandbox.
    Itself,
}

/// The decision about a program, and the rule that made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecVerdict {
    pub decision: Decision,
    /// The words of the matching rule.
    pub prefix: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub justification: Option<String>,
    pub origin: RuleOrigin,
    /// How the program was recognized.
    pub seen: MatchBasis,
    /// Index of the candidate that matched.
    pub view: usize,
    /// First word of the operator's rule that may let the program run outside the sandbox: a rule
    /// that does not forbid, and that matches this exact file under its own name. Without one the
    /// program stays inside, whatever other rules say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out: Option<String>,
}

/// A rule table indexed for fast lookups.
#[derive(Debug, Default)]
pub struct ExecJudge {
    rules_by_program: HashMap<String, Vec<PrefixRule>>,
    programs: HashMap<String, HostProgram>,
    /// Program names by file, and by file size for programs that a rule restricts.
    names_by_file: HashMap<(u64, u64), Vec<String>>,
    names_by_size: HashMap<u64, Vec<String>>,
    /// First words that are paths, by their last component.
    paths_by_name: HashMap<String, Vec<String>>,
    /// Require approval for commands known to be destructive.
    heuristics: bool,
}

/// Origin of a verdict that comes from a heuristic instead of a file.
pub const HEURISTICS_ORIGIN: &str = "heuristics";

impl ExecJudge {
    /// Indexes the rules. With `heuristics`, destructive commands that no rule matches require
    /// approval.
    pub fn new(table: RuleTable, heuristics: bool) -> ExecJudge {
        let mut judge = ExecJudge { heuristics, ..ExecJudge::default() };
        for rule in table.prefixes {
            if rule.program.starts_with('/') {
                let known =
                    judge.paths_by_name.entry(base_name(&rule.program).to_owned()).or_default();
                if !known.contains(&rule.program) {
                    known.push(rule.program.clone());
                }
            }
            judge.rules_by_program.entry(rule.program.clone()).or_default().push(rule);
        }
        for (name, program) in table.programs {
            let Some(rules) = judge.rules_by_program.get(&name) else { continue };
            let restricts = rules.iter().any(|rule| rule.decision > Decision::Allow);
            for file in program.all_files() {
                judge
                    .names_by_file
                    .entry((file.device, file.inode))
                    .or_default()
                    .push(name.clone());
                if restricts && file.size > 0 {
                    judge.names_by_size.entry(file.size).or_default().push(name.clone());
                }
            }
            judge.programs.insert(name, program);
        }
        judge
    }

    /// Returns whether there are neither rules nor heuristics.
    pub fn is_empty(&self) -> bool {
        self.rules_by_program.is_empty() && !self.heuristics
    }

    /// Returns the strictest decision of any rule about any candidate. `has_same_bytes` compares a
    /// candidate with a file byte by byte, and is called only if their sizes are equal.
    pub fn judge_exec(
        &self,
        candidates: &[ExecCandidate<'_>],
        mut has_same_bytes: impl FnMut(usize, &HostFile) -> bool,
    ) -> Option<ExecVerdict> {
        if self.is_empty() {
            return None;
        }
        let mut verdict: Option<ExecVerdict> = None;
        let mut outside_rule: Option<(usize, &str)> = None;
        for (index, candidate) in candidates.iter().enumerate() {
            for program_name in self.candidate_programs(candidate) {
                let Some(rules) = self.rules_by_program.get(program_name) else { continue };
                let program = self.programs.get(program_name);
                let mut copy_result = None;
                for rule in rules {
                    let Some(prefix) = match_arguments(rule, candidate.argv) else { continue };
                    let decides = |seen: MatchBasis, verdict: &Option<ExecVerdict>| {
                        verdict
                            .as_ref()
                            .is_none_or(|verdict| takes_precedence(rule, &prefix, seen, verdict))
                    };
                    let may_let_out = rule.decision < Decision::Forbidden
                        && !rule.project
                        && candidate.is_started;
                    if !may_let_out && !decides(MatchBasis::Itself, &verdict) {
                        continue;
                    }
                    let mut is_copy = || {
                        let mut matches_file = |file: &HostFile| {
                            candidate.size == file.size && has_same_bytes(index, file)
                        };
                        *copy_result.get_or_insert_with(|| {
                            program
                                .is_some_and(|program| program.all_files().any(&mut matches_file))
                        })
                    };
                    let Some(seen) = self.recognize_program(rule, candidate, &mut is_copy) else {
                        continue;
                    };
                    if may_let_out
                        && seen == MatchBasis::Itself
                        && outside_rule.is_none_or(|(length, _)| length < prefix.len())
                    {
                        outside_rule = Some((prefix.len(), &rule.program));
                    }
                    if decides(seen, &verdict) {
                        verdict = Some(ExecVerdict {
                            decision: rule.decision,
                            prefix,
                            justification: rule.justification.clone(),
                            origin: rule.origin.clone(),
                            seen,
                            view: index,
                            out: None,
                        });
                    }
                }
            }
        }
        if let Some(verdict) = &mut verdict {
            verdict.out = outside_rule.map(|(_, program_name)| program_name.to_owned());
        }
        verdict.or_else(|| self.apply_heuristics(candidates))
    }

    /// Returns the first words of all rules that may apply to this candidate.
    fn candidate_programs<'a>(&'a self, candidate: &'a ExecCandidate<'_>) -> HashSet<&'a str> {
        let mut programs = HashSet::new();
        for name in [candidate.real_name(), candidate.called_name()] {
            programs.insert(name);
            programs.extend(self.paths_by_name.get(name).into_iter().flatten().map(String::as_str));
        }
        let by_file =
            self.names_by_file.get(&(candidate.device, candidate.inode)).into_iter().flatten();
        let by_size = self.names_by_size.get(&candidate.size).into_iter().flatten();
        programs.extend(by_file.chain(by_size).map(String::as_str));
        programs
    }

    /// Returns how this rule recognizes the candidate, if it does. `is_copy` compares file contents
    /// and is called only if needed.
    fn recognize_program(
        &self,
        rule: &PrefixRule,
        candidate: &ExecCandidate<'_>,
        is_copy: &mut impl FnMut() -> bool,
    ) -> Option<MatchBasis> {
        let program_name = rule.program.as_str();
        let program = self.programs.get(program_name);
        let is_own =
            program.is_some_and(|program| program.files.iter().any(|file| candidate.is_file(file)));
        let is_file =
            program.is_some_and(|program| program.all_files().any(|file| candidate.is_file(file)));
        let has_name = match program_name.starts_with('/') {
            true => program_name == candidate.real_path || program_name == candidate.called_path,
            false => {
                program_name == candidate.real_name() || program_name == candidate.called_name()
            }
        };
        // A multi-call binary acts according to its first argument, whatever its file is called.
        let has_argv0 = candidate.argv0_name() == base_name(program_name).as_bytes();
        if candidate.is_started && is_own && has_name && has_argv0 {
            return Some(MatchBasis::Itself);
        }
        if rule.decision == Decision::Allow {
            return None;
        }
        let is_planted = || {
            program.is_some_and(|program| {
                !program.paths.iter().any(|path| path == candidate.called_path)
            })
        };
        if has_name {
            Some(MatchBasis::Name)
        } else if is_file
            && (has_argv0 || match_dashed_name(rule, candidate.argv).is_some() || is_planted())
        {
            Some(MatchBasis::File)
        } else if !is_file && is_copy() {
            Some(MatchBasis::Copy)
        } else {
            None
        }
    }

    /// Applies the heuristics: destructive commands require approval.
    fn apply_heuristics(&self, candidates: &[ExecCandidate<'_>]) -> Option<ExecVerdict> {
        let is_dangerous = |view: &ExecCandidate<'_>| {
            let is_forced = |word: &&[u8]| {
                *word == b"--force".as_slice()
                    || word.starts_with(b"-") && !word.starts_with(b"--") && word.contains(&b'f')
            };
            let options = || view.argv.iter().skip(1).take_while(|word| **word != b"--".as_slice());
            [view.real_name(), view.called_name()].contains(&"rm") && options().any(is_forced)
        };
        let view = self.heuristics.then(|| candidates.iter().position(is_dangerous)).flatten()?;
        Some(ExecVerdict {
            decision: Decision::Prompt,
            prefix: vec!["rm".to_owned(), "-f".to_owned()],
            justification: Some("it deletes files without asking".to_owned()),
            origin: RuleOrigin { file: HEURISTICS_ORIGIN.to_owned(), line: 0 },
            seen: MatchBasis::Name,
            view,
            out: None,
        })
    }
}

/// Returns whether a rule takes precedence over the verdict found so far.
///
/// Of two equally strict rules the longer one wins, because it is more specific; otherwise the
/// first one stays. The interpreter of a script is called by the name of the script, so a match on
/// the rule's own file takes precedence over a match on its name.
fn takes_precedence(
    rule: &PrefixRule,
    prefix: &[String],
    basis: MatchBasis,
    verdict: &ExecVerdict,
) -> bool {
    let rank = |decision, length, basis| (decision, length, basis == MatchBasis::Itself);
    rank(rule.decision, prefix.len(), basis)
        > rank(verdict.decision, verdict.prefix.len(), verdict.seen)
}

/// Returns the words with which the rule matches. The first is the rule's own, because a program
/// can choose its own first argument.
fn match_arguments(rule: &PrefixRule, argv: &[&[u8]]) -> Option<Vec<String>> {
    match_words(rule, argv.get(1..).unwrap_or_default()).or_else(|| match_dashed_name(rule, argv))
}

/// Matches a program that offers each of its commands under a name of its own: `git-push` is `git
/// push`.
fn match_dashed_name(rule: &PrefixRule, argv: &[&[u8]]) -> Option<Vec<String>> {
    let (first, rest) = argv.split_first()?;
    let name = first.rsplit(|byte| *byte == b'/').next()?;
    let command = name.strip_prefix(base_name(&rule.program).as_bytes())?.strip_prefix(b"-")?;
    // Such a name never lets a program run outside the sandbox.
    if rule.decision == Decision::Allow {
        None
    } else {
        match_words(rule, &[&[command], rest].concat())
    }
}

/// Matches the words after the program.
fn match_words(rule: &PrefixRule, words: &[&[u8]]) -> Option<Vec<String>> {
    let mut prefix = vec![rule.program.clone()];
    for (index, token) in rule.rest.iter().enumerate() {
        let word = words.get(index)?;
        prefix.push(token.0.iter().find(|one| one.as_bytes() == *word)?.clone());
    }
    Some(prefix)
}

/// Returns the last component of a path.
fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests;
