//! One edit: what it looks for, what it puts there, and how often that has to be possible.

use std::borrow::Cow;

use regex::{Regex, RegexBuilder};

use super::document::{Document, Splice};
use super::{RawEdit, teach};
use crate::base::{Cancel, Error, Kind, Result};
use crate::tools::content::check;

/// How large a pattern may be, and what it may become when it is compiled.
const MAX_PATTERN: usize = 64 << 10;
const MAX_PROGRAM: usize = 4 << 20;
pub const MAX_MATCHES: usize = 500_000;
/// How many line numbers a result or an error lists.
pub const MAX_LINES: usize = 20;
/// How often work without end looks whether anybody still waits for it.
const CHECK_EVERY: usize = 4096;

pub struct Edit {
    pattern: Pattern,
    new: String,
    /// None is any number.
    pub expect: Option<u64>,
}

enum Pattern {
    Literal(String),
    Regex(Regex),
}

/// How often an edit matched, and in which lines of the text that it was applied to.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    pub count: u64,
    pub lines: Vec<u64>,
}

impl Edit {
    /// `expect` is what holds where the caller says nothing.
    pub fn compile(raw: &RawEdit, at: usize, expect: u64) -> Result<Edit> {
        let wrong = |message: String| Error::invalid_arguments(message).with("edit", at);
        if raw.old.is_empty() {
            return Err(wrong(format!("`edits[{at}].old` is empty"))
                .hint("Name the text to replace. To write a whole file or add to its end, use file.write."));
        }
        // A file's line ends are not the caller's business: both sides are matched with `\n`.
        let old = raw.old.replace("\r\n", "\n");
        let pattern = if raw.regex.unwrap_or(false) {
            if old.len() > MAX_PATTERN {
                return Err(wrong(format!("the pattern of `edits[{at}]` is longer than {MAX_PATTERN} bytes")));
            }
            let built = RegexBuilder::new(&old).size_limit(MAX_PROGRAM).dfa_size_limit(2 * MAX_PROGRAM).build();
            Pattern::Regex(built.map_err(|error| {
                wrong(teach::bad_pattern(at, &error)).reason("bad_pattern").hint(
                "Rust regex syntax: no look-around, no back-references. Set regex to false to match the text as it is.",
            )
            })?)
        } else {
            if raw.old == raw.new {
                return Err(wrong(format!("`old` and `new` of `edits[{at}]` are the same")));
            }
            Pattern::Literal(old)
        };
        let expect = raw.expect.unwrap_or(expect);
        Ok(Edit { pattern, new: raw.new.clone(), expect: (expect > 0).then_some(expect) })
    }

    pub fn is_regex(&self) -> bool {
        matches!(self.pattern, Pattern::Regex(_))
    }

    /// What it looks for, as the caller wrote it (with `\n` for line ends).
    pub fn sought(&self) -> &str {
        match &self.pattern {
            Pattern::Literal(old) => old,
            Pattern::Regex(regex) => regex.as_str(),
        }
    }

    /// Every place where it matches, from left to right, none overlapping the one before.
    fn find<'a>(&'a self, text: &str, max: usize, cancel: &Cancel) -> Result<Vec<Splice<'a>>> {
        let mut found: Vec<Splice<'a>> = Vec::new();
        let mut room = max;
        let mut push = |range: std::ops::Range<usize>, new: Cow<'a, str>| -> Result<()> {
            if found.len() >= MAX_MATCHES {
                return Err(Error::new(Kind::TooLarge, format!("there are more than {MAX_MATCHES} matches"))
                    .hint("Look for something more specific."));
            }
            if found.len().is_multiple_of(CHECK_EVERY) {
                check(cancel)?;
            }
            room = room.checked_sub(new.len()).ok_or_else(|| {
                Error::new(Kind::TooLarge, format!("the new text comes to more than {max} bytes"))
                    .hint("Replace less, or with less text.")
            })?;
            found.push(Splice { range, new });
            Ok(())
        };
        match &self.pattern {
            Pattern::Literal(old) => {
                for (at, _) in text.match_indices(old.as_str()) {
                    push(at..at + old.len(), Cow::Borrowed(&self.new))?;
                }
            }
            Pattern::Regex(regex) => {
                for captures in regex.captures_iter(text) {
                    let Some(whole) = captures.get(0) else { continue };
                    let mut new = String::new();
                    captures.expand(&self.new, &mut new);
                    push(whole.range(), Cow::Owned(new))?;
                }
            }
        }
        Ok(found)
    }
}

/// The document after all edits, each applied to what the one before left, and how often each matched. With `strict`
/// each has to match as often as it expects.
pub fn apply<'b>(
    mut document: Document<'b>,
    edits: &[Edit],
    strict: bool,
    max: usize,
    cancel: &Cancel,
) -> Result<(Document<'b>, Vec<Tally>)> {
    let mut tallies = Vec::new();
    for (at, edit) in edits.iter().enumerate() {
        check(cancel)?;
        let splices = edit.find(document.text(), max, cancel)?;
        let tally = Tally { count: splices.len() as u64, lines: lines(document.text(), &splices) };
        if strict && edit.expect.is_some_and(|expect| expect != tally.count) {
            return Err(teach::mismatch(&document, edits, at, &tally, cancel)?);
        }
        tallies.push(tally);
        if !splices.is_empty() {
            document = document.splice(&splices, max)?;
        }
    }
    Ok((document, tallies))
}

/// The lines in which the first matches begin.
fn lines(text: &str, splices: &[Splice<'_>]) -> Vec<u64> {
    let (mut line, mut at) = (1, 0);
    let mut lines = Vec::new();
    for splice in splices.iter().take(MAX_LINES) {
        line += text.as_bytes()[at..splice.range.start].iter().filter(|byte| **byte == b'\n').count() as u64;
        at = splice.range.start;
        lines.push(line);
    }
    lines
}
