//! What the rules say about a program that the kernel is about to run.
//!
//! A name is not a program: it can be put in front of the search path, be a link, a copy or a multi-call binary's
//! other name. So a rule that tightens holds for everything that goes by its name or is its file, under whatever
//! name; and a rule that loosens holds only for the very file that the operator's own search path leads to.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::rule::{Decision, File, Origin, PrefixRule, Program, Table};

/// One way to look at what is about to run: the program itself, the script that it was started for, or the program
/// that a dynamic loader was asked to load.
#[derive(Debug, Clone, Copy, Default)]
pub struct View<'a> {
    /// The real path of the file.
    pub path: &'a str,
    /// The path it was called by, made absolute.
    pub called: &'a str,
    pub device: u64,
    pub inode: u64,
    pub size: u64,
    /// The arguments, from the one that names the program.
    pub argv: &'a [&'a [u8]],
    /// It is what was started, and not only something that is named in its words. Nothing else is let out.
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

/// How it was recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Seen {
    /// It goes by the rule's name or path.
    Name,
    /// It is the rule's file, under another name.
    File,
    /// It holds the same bytes as the rule's file.
    Copy,
    /// It is the very file that the rule's name stands for, and goes by that name: it may be let out.
    Itself,
}

/// What was decided, and by which rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    pub decision: Decision,
    /// The words of the rule that fitted.
    pub prefix: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub justification: Option<String>,
    pub origin: Origin,
    pub seen: Seen,
    /// Which of the views it was.
    pub view: usize,
    /// The first word of the operator's rule that may let it out: one that does not forbid, and that is about this very
    /// file under its own name. Without one it stays, whatever else a rule has asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out: Option<String>,
}

/// A table made ready for many questions.
#[derive(Debug, Default)]
pub struct Judge {
    rules: HashMap<String, Vec<PrefixRule>>,
    programs: HashMap<String, Program>,
    /// Names of programs by their files, and by the sizes of the files of those that a rule tightens.
    files: HashMap<(u64, u64), Vec<String>>,
    sizes: HashMap<u64, Vec<String>>,
    /// First words that are paths, by their last part.
    paths: HashMap<String, Vec<String>>,
    /// Ask about commands that are known to destroy.
    heuristics: bool,
}

/// Where the verdict of a heuristic comes from, in place of a file.
pub const HEURISTICS: &str = "heuristics";

impl Judge {
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

    /// Whether there is anything to decide by.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && !self.heuristics
    }

    /// The strictest that any rule says of any view. `same` compares a view with a file, byte by byte; it is asked
    /// only where the sizes agree.
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

    /// First words of rules that may be about this.
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
        // A program that acts by its first argument is what that says, whatever file it is in.
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

    /// What destroys without a question is asked about, where the operator wants that.
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
            justification: Some("it removes without asking".to_owned()),
            origin: Origin { file: HEURISTICS.to_owned(), line: 0 },
            seen: Seen::Name,
            view,
            out: None,
        })
    }
}

/// The later of two equally strict rules does not count, but the longer does: it says more. A script goes by the name
/// that its interpreter was called by, so that the one that is the rule's own file counts before one that has its name.
fn is_stricter(rule: &PrefixRule, prefix: &[String], seen: Seen, found: &Verdict) -> bool {
    let rank = |decision, length, seen| (decision, length, seen == Seen::Itself);
    rank(rule.decision, prefix.len(), seen) > rank(found.decision, found.prefix.len(), found.seen)
}

/// The words with which it fits, if it does. The first is the rule's own: what the program calls itself is not asked.
fn fits(rule: &PrefixRule, argv: &[&[u8]]) -> Option<Vec<String>> {
    begins(rule, argv.get(1..).unwrap_or_default()).or_else(|| as_dashed(rule, argv))
}

/// The same, for a program that may know each of its commands under a name of its own: `git-push` is `git push`.
fn as_dashed(rule: &PrefixRule, argv: &[&[u8]]) -> Option<Vec<String>> {
    let (first, rest) = argv.split_first()?;
    let name = first.rsplit(|byte| *byte == b'/').next()?;
    let command = name.strip_prefix(base(&rule.program).as_bytes())?.strip_prefix(b"-")?;
    // Nothing is let out by such a name.
    if rule.decision == Decision::Allow { None } else { begins(rule, &[&[command], rest].concat()) }
}

fn begins(rule: &PrefixRule, words: &[&[u8]]) -> Option<Vec<String>> {
    let mut prefix = vec![rule.program.clone()];
    for (at, token) in rule.rest.iter().enumerate() {
        let word = words.get(at)?;
        prefix.push(token.0.iter().find(|one| one.as_bytes() == *word)?.clone());
    }
    Some(prefix)
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests;
