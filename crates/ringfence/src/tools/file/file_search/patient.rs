//! Matcher that can be interrupted.
//!
//! The regex engine itself cannot be, so it is given only small pieces at a time, or text that was
//! measured to be cheap.

use std::cell::Cell;
use std::ops::Range;
use std::time::{Duration, Instant};

use grep_matcher::{ByteSet, LineMatchKind, LineTerminator, Match, Matcher, NoCaptures};
use grep_regex::RegexMatcher;

use crate::base::workspace::tree::Halt;
use crate::tools::file::stride::{DEARER, MOST, Stride};

/// A probe that took less than this is not compared with the time left.
const CHEAP: Duration = Duration::from_millis(50);

/// Matcher that stops when the search is halted.
pub struct Patient<'m> {
    matcher: &'m RegexMatcher,
    halt: &'m Halt,
    /// A match is within one line.
    by_line: bool,
    stride: Cell<Stride>,
    /// Text that was already probed. With multiline, all searches are in parts of the same text.
    tried: Cell<Option<Range<*const u8>>>,
}

/// Error of a search that was halted.
#[derive(Debug)]
pub struct Ended;

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the search has to end")
    }
}

impl<'m> Patient<'m> {
    /// Wraps a matcher. `by_line` says that a match cannot span lines.
    pub fn new(matcher: &'m RegexMatcher, by_line: bool, halt: &'m Halt) -> Patient<'m> {
        Patient { matcher, halt, by_line, stride: Cell::default(), tried: Cell::new(None) }
    }

    fn check(&self) -> Result<(), Ended> {
        if self.halt.is_called() { Err(Ended) } else { Ok(()) }
    }

    /// Calls `look` with one range of the text after another until it finds something.
    fn in_parts<T>(
        &self,
        text: &[u8],
        at: usize,
        mut look: impl FnMut(usize, usize) -> Option<T>,
    ) -> Result<Option<T>, Ended> {
        let mut from = at;
        loop {
            self.check()?;
            let to = if self.by_line {
                line_end(text, from.saturating_add(self.stride.get().bytes()))
            } else {
                text.len()
            };
            self.try_out(&text[from.min(to)..to])?;
            let begun = Instant::now();
            let found = look(from, to);
            self.stride.set(self.stride.get().after(begun));
            if let Some(found) = found {
                return Ok(Some(found));
            }
            if to >= text.len() {
                return Ok(None);
            }
            from = to;
        }
    }

    /// Estimates the cost of searching a long text. A single search cannot be interrupted, so the
    /// text is first searched in small pieces, between which we can stop.
    fn try_out(&self, text: &[u8]) -> Result<(), Ended> {
        if text.len() <= 2 * MOST {
            return Ok(());
        }
        // With multiline, each search covers the rest of the text that the first one covered.
        let here = text.as_ptr_range();
        if !self.by_line
            && let Some(tried) = self.tried.take()
        {
            let known = tried.start <= here.start && here.end <= tried.end;
            self.tried.set(Some(tried));
            if known {
                return Ok(());
            }
        }
        let begun = Instant::now();
        let mut stride = Stride::default();
        let mut rest = text;
        while !rest.is_empty() {
            let (slice, after) = rest.split_at(stride.bytes().min(rest.len()));
            rest = after;
            let step = Instant::now();
            let mut at = 0;
            while at <= slice.len() {
                self.check()?;
                let Ok(Some(found)) = self.matcher.find_at(slice, at) else { break };
                at = found.end().max(at + 1);
            }
            stride = stride.after(step);
        }
        let took = begun.elapsed();
        if took > CHEAP && self.halt.left().is_some_and(|left| took * DEARER > left) {
            self.halt.call();
            return Err(Ended);
        }
        self.tried.set(Some(here));
        Ok(())
    }
}

/// Returns the position just after the first line ending at or after `at`.
fn line_end(text: &[u8], at: usize) -> usize {
    let Some(rest) = text.get(at..) else { return text.len() };
    rest.iter().position(|byte| *byte == b'\n').map_or(text.len(), |found| at + found + 1)
}

impl Matcher for Patient<'_> {
    type Captures = NoCaptures;
    type Error = Ended;

    fn find_at(&self, text: &[u8], at: usize) -> Result<Option<Match>, Ended> {
        self.in_parts(text, at, |from, to| self.matcher.find_at(&text[..to], from).ok().flatten())
    }

    fn new_captures(&self) -> Result<NoCaptures, Ended> {
        Ok(NoCaptures::new())
    }

    fn shortest_match_at(&self, text: &[u8], at: usize) -> Result<Option<usize>, Ended> {
        self.in_parts(text, at, |from, to| {
            self.matcher.shortest_match_at(&text[..to], from).ok().flatten()
        })
    }

    fn is_match_at(&self, text: &[u8], at: usize) -> Result<bool, Ended> {
        Ok(self.shortest_match_at(text, at)?.is_some())
    }

    fn non_matching_bytes(&self) -> Option<&ByteSet> {
        self.matcher.non_matching_bytes()
    }

    fn line_terminator(&self) -> Option<LineTerminator> {
        self.matcher.line_terminator()
    }

    fn find_candidate_line(&self, text: &[u8]) -> Result<Option<LineMatchKind>, Ended> {
        self.in_parts(text, 0, |from, to| {
            let found = self.matcher.find_candidate_line(&text[from..to]).ok().flatten()?;
            Some(match found {
                LineMatchKind::Confirmed(at) => LineMatchKind::Confirmed(from + at),
                LineMatchKind::Candidate(at) => LineMatchKind::Candidate(from + at),
            })
        })
    }
}
