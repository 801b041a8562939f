//! Judges a program that the kernel is about to execute.
//!
//! A name does not identify a program: a program of that name can be placed first in the search
//! path, be a link, a copy, or another name of a multi-call binary. So a rule that restricts
//! applies to everything that has its name or is its file under any name, while a rule that allows
//! applies only to the exact file that the operator's own search path leads to.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::rule::{Decision, File, Origin, PrefixRule, Program, Table};

/// One candidate for what is about to run: the program itself, the script that it was started for,
/// or the program that a dynamic loader was asked to load.
#[derive(Debug, Clone, Copy, Default)]
pub struct View<'a> {
    /// Real path of the file.
    pub path: &'a str,
    /// Absolute path by which it was called.
    pub called: &'a str,
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

impl View<'_> {
    fn is(&self, file: &File) -> bool {
        (self.device, self.inode) == (file.device, file.inode)
    }

    fn name(&self) -> &str {
        base(self.path)
    }

    fn called_name(&self) -> &str {
        base(self.called)
    }

    fn argv_name(&self) -> &[u8] {
        let first = self.argv.first().copied().unwrap_or_default();
        first.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }
}

/// How a program was recognized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Seen {
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
pub struct Verdict {
    pub decision: Decision,
    /// The words of the matching rule.
    pub prefix: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub justification: Option<String>,
    pub origin: Origin,
    /// How the program was recognized.
    pub seen: Seen,
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
pub struct Judge {
    rules: HashMap<String, Vec<PrefixRule>>,
    programs: HashMap<String, Program>,
    /// Program names by file, and by file size for programs that a rule restricts.
    files: HashMap<(u64, u64), Vec<String>>,
    sizes: HashMap<u64, Vec<String>>,
    /// First words that are paths, by their last component.
    paths: HashMap<String, Vec<String>>,
    /// Require approval for commands known to be destructive.
    heuristics: bool,
}

/// Origin of a verdict that comes from a heuristic instead of a file.
pub const HEURISTICS: &str = "heuristics";

impl Judge {
    /// Indexes the rules. With `heuristics`, destructive commands that no rule matches require
    /// approval.
    pub fn new(table: Table, heuristics: bool) -> Judge {
        let mut judge = Judge { heuristics, ..Judge::default() };
        for rule in table.prefixes {
            if rule.program.starts_with('/') {
                let known = judge.paths.entry(base(&rule.program).to_owned()).or_default();
                if !known.contains(&rule.program) {
                    known.push(rule.program.clone());
                }
            }
            judge.rules.entry(rule.program.clone()).or_default().push(rule);
        }
        for (name, program) in table.programs {
            let Some(rules) = judge.rules.get(&name) else { continue };
            let tightens = rules.iter().any(|rule| rule.decision > Decision::Allow);
            for file in program.all() {
                judge.files.entry((file.device, file.inode)).or_default().push(name.clone());
                if tightens && file.size > 0 {
                    judge.sizes.entry(file.size).or_default().push(name.clone());
                }
            }
            judge.programs.insert(name, program);
        }
        judge
    }

    /// Returns whether there are neither rules nor heuristics.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && !self.heuristics
    }

    /// Returns the strictest decision of any rule about any candidate. `same` compares a candidate
    /// with a file byte by byte, and is called only if their sizes are equal.
    pub fn judge(
        &self,
        views: &[View<'_>],
        mut same: impl FnMut(usize, &File) -> bool,
    ) -> Option<Verdict> {
        if self.is_empty() {
            return None;
        }
        let mut found: Option<Verdict> = None;
        let mut out: Option<(usize, &str)> = None;
        for (at, view) in views.iter().enumerate() {
            for word in self.words(view) {
                let Some(rules) = self.rules.get(word) else { continue };
                let program = self.programs.get(word);
                let mut copied = None;
                for rule in rules {
                    let Some(prefix) = fits(rule, view.argv) else { continue };
                    let decides = |seen: Seen, found: &Option<Verdict>| {
                        found.as_ref().is_none_or(|found| is_stricter(rule, &prefix, seen, found))
                    };
                    let may_let_out =
                        rule.decision < Decision::Forbidden && !rule.project && view.is_started;
                    if !may_let_out && !decides(Seen::Itself, &found) {
                        continue;
                    }
                    let mut is_copy = || {
                        let mut is_of = |file: &File| view.size == file.size && same(at, file);
                        *copied.get_or_insert_with(|| {
                            program.is_some_and(|program| program.all().any(&mut is_of))
                        })
                    };
                    let Some(seen) = self.recognise(rule, view, &mut is_copy) else { continue };
                    if may_let_out
                        && seen == Seen::Itself
                        && out.is_none_or(|(length, _)| length < prefix.len())
                    {
                        out = Some((prefix.len(), &rule.program));
                    }
                    if decides(seen, &found) {
                        found = Some(Verdict {
                            decision: rule.decision,
                            prefix,
                            justification: rule.justification.clone(),
                            origin: rule.origin.clone(),
                            seen,
                            view: at,
                            out: None,
                        });
                    }
                }
            }
        }
        if let Some(found) = &mut found {
            found.out = out.map(|(_, word)| word.to_owned());
        }
        found.or_else(|| self.suspect(views))
    }

    /// Returns the first words of all rules that may apply to this candidate.
    fn words<'a>(&'a self, view: &'a View<'_>) -> HashSet<&'a str> {
        let mut words = HashSet::new();
        for name in [view.name(), view.called_name()] {
            words.insert(name);
            words.extend(self.paths.get(name).into_iter().flatten().map(String::as_str));
        }
        let by_file = self.files.get(&(view.device, view.inode)).into_iter().flatten();
        let by_size = self.sizes.get(&view.size).into_iter().flatten();
        words.extend(by_file.chain(by_size).map(String::as_str));
        words
    }

    /// Returns how this rule recognizes the candidate, if it does. `copy` compares file contents
    /// and is called only if needed.
    fn recognise(
        &self,
        rule: &PrefixRule,
        view: &View<'_>,
        copy: &mut impl FnMut() -> bool,
    ) -> Option<Seen> {
        let word = rule.program.as_str();
        let program = self.programs.get(word);
        let is_own = program.is_some_and(|program| program.files.iter().any(|file| view.is(file)));
        let is_file = program.is_some_and(|program| program.all().any(|file| view.is(file)));
        let named = match word.starts_with('/') {
            true => word == view.path || word == view.called,
            false => word == view.name() || word == view.called_name(),
        };
        // A multi-call binary acts according to its first argument, whatever its file is called.
        let argued = view.argv_name() == base(word).as_bytes();
        if view.is_started && is_own && named && argued {
            return Some(Seen::Itself);
        }
        if rule.decision == Decision::Allow {
            return None;
        }
        let planted =
            || program.is_some_and(|program| !program.paths.iter().any(|path| path == view.called));
        if named {
            Some(Seen::Name)
        } else if is_file && (argued || as_dashed(rule, view.argv).is_some() || planted()) {
            Some(Seen::File)
        } else if !is_file && copy() {
            Some(Seen::Copy)
        } else {
            None
        }
    }

    /// Applies the heuristics: destructive commands require approval.
    fn suspect(&self, views: &[View<'_>]) -> Option<Verdict> {
        let dangerous = |view: &View<'_>| {
            let forced = |word: &&[u8]| {
                *word == b"--force".as_slice()
                    || word.starts_with(b"-") && !word.starts_with(b"--") && word.contains(&b'f')
            };
            let options = || view.argv.iter().skip(1).take_while(|word| **word != b"--".as_slice());
            [view.name(), view.called_name()].contains(&"rm") && options().any(forced)
        };
        let view = self.heuristics.then(|| views.iter().position(dangerous)).flatten()?;
        Some(Verdict {
            decision: Decision::Prompt,
            prefix: vec!["rm".to_owned(), "-f".to_owned()],
            justification: Some("it deletes files without asking".to_owned()),
            origin: Origin { file: HEURISTICS.to_owned(), line: 0 },
            seen: Seen::Name,
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
fn is_stricter(rule: &PrefixRule, prefix: &[String], seen: Seen, found: &Verdict) -> bool {
    let rank = |decision, length, seen| (decision, length, seen == Seen::Itself);
    rank(rule.decision, prefix.len(), seen) > rank(found.decision, found.prefix.len(), found.seen)
}

/// Returns the words with which the rule matches. The first is the rule's own, because a program
/// can choose its own first argument.
fn fits(rule: &PrefixRule, argv: &[&[u8]]) -> Option<Vec<String>> {
    begins(rule, argv.get(1..).unwrap_or_default()).or_else(|| as_dashed(rule, argv))
}

/// Matches a program that offers each of its commands under a name of its own: `git-push` is `git
/// push`.
fn as_dashed(rule: &PrefixRule, argv: &[&[u8]]) -> Option<Vec<String>> {
    let (first, rest) = argv.split_first()?;
    let name = first.rsplit(|byte| *byte == b'/').next()?;
    let command = name.strip_prefix(base(&rule.program).as_bytes())?.strip_prefix(b"-")?;
    // Such a name never lets a program run outside the sandbox.
    if rule.decision == Decision::Allow { None } else { begins(rule, &[&[command], rest].concat()) }
}

/// Matches the words after the program.
fn begins(rule: &PrefixRule, words: &[&[u8]]) -> Option<Vec<String>> {
    let mut prefix = vec![rule.program.clone()];
    for (at, token) in rule.rest.iter().enumerate() {
        let word = words.get(at)?;
        prefix.push(token.0.iter().find(|one| one.as_bytes() == *word)?.clone());
    }
    Some(prefix)
}

/// Returns the last component of a path.
fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests;
