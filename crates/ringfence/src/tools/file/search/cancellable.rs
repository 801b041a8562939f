//! Matcher that can be interrupted.
//!
//! The regex engine itself cannot be, so it is given only small pieces at a time, or text that was
//! measured to be cheap.

use std::cell::Cell;
use std::ops::Range;
use std::time::{Duration, Instant};

use grep_matcher::{ByteSet, LineMatchKind, LineTerminator, Match, Matcher, NoCaptures};
use grep_regex::RegexMatcher;

use crate::base::workspace::tree::WalkStop;
use crate::tools::file::chunk_size::{ChunkSize, MAX_CHUNK_BYTES, WHOLE_COST_FACTOR};

/// A probe that took less than this is not compared with the time left.
const CHEAP_PROBE: Duration = Duration::from_millis(50);

/// Matcher that stops when the search is halted.
pub struct CancellableMatcher<'m> {
    matcher: &'m RegexMatcher,
    halt: &'m WalkStop,
    /// A match is within one line.
    by_line: bool,
    chunk_size: Cell<ChunkSize>,
    /// Text that was already probed. With multiline, all searches are in parts of the same text.
    probed: Cell<Option<Range<*const u8>>>,
}

/// Error of a search that was halted.
#[derive(Debug)]
pub struct SearchHalted;

impl std::fmt::Display for SearchHalted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the search has to end")
    }
}

impl<'m> CancellableMatcher<'m> {
    /// Wraps a matcher. `by_line` says that a match cannot span lines.
    pub fn new(
        matcher: &'m RegexMatcher,
        by_line: bool,
        halt: &'m WalkStop,
    ) -> CancellableMatcher<'m> {
        CancellableMatcher {
            matcher,
            halt,
            by_line,
            chunk_size: Cell::default(),
            probed: Cell::new(None),
        }
    }

    fn check_halt(&self) -> Result<(), SearchHalted> {
        if self.halt.is_stopped() { Err(SearchHalted) } else { Ok(()) }
    }

    /// Calls `search` with one range of the text after another until it finds something.
    fn search_in_parts<T>(
        &self,
        text: &[u8],
        start: usize,
        mut search: impl FnMut(usize, usize) -> Option<T>,
    ) -> Result<Option<T>, SearchHalted> {
        let mut from = start;
        loop {
            self.check_halt()?;
            let to = if self.by_line {
                find_line_end(text, from.saturating_add(self.chunk_size.get().bytes()))
            } else {
                text.len()
            };
            self.probe_cost(&text[from.min(to)..to])?;
            let started_at = Instant::now();
            let found = search(from, to);
            self.chunk_size.set(self.chunk_size.get().adjusted_since(started_at));
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
    fn probe_cost(&self, text: &[u8]) -> Result<(), SearchHalted> {
        if text.len() <= 2 * MAX_CHUNK_BYTES {
            return Ok(());
        }
        // With multiline, each search covers the rest of the text that the first one covered.
        let range = text.as_ptr_range();
        if !self.by_line
            && let Some(probed_range) = self.probed.take()
        {
            let is_covered = probed_range.start <= range.start && range.end <= probed_range.end;
            self.probed.set(Some(probed_range));
            if is_covered {
                return Ok(());
            }
        }
        let started_at = Instant::now();
        let mut chunk_size = ChunkSize::default();
        let mut rest = text;
        while !rest.is_empty() {
            let (slice, after) = rest.split_at(chunk_size.bytes().min(rest.len()));
            rest = after;
            let chunk_started = Instant::now();
            let mut position = 0;
            while position <= slice.len() {
                self.check_halt()?;
                let Ok(Some(found)) = self.matcher.find_at(slice, position) else { break };
                position = found.end().max(position + 1);
            }
            chunk_size = chunk_size.adjusted_since(chunk_started);
        }
        let elapsed = started_at.elapsed();
        if elapsed > CHEAP_PROBE
            && self
                .halt
                .time_left()
                .is_some_and(|time_left| elapsed * WHOLE_COST_FACTOR > time_left)
        {
            self.halt.stop();
            return Err(SearchHalted);
        }
        self.probed.set(Some(range));
        Ok(())
    }
}

/// Returns the position just after the first line ending at or after `offset`.
fn find_line_end(text: &[u8], offset: usize) -> usize {
    let Some(rest) = text.get(offset..) else { return text.len() };
    rest.iter().position(|byte| *byte == b'\n').map_or(text.len(), |found| offset + found + 1)
}

impl Matcher for CancellableMatcher<'_> {
    type Captures = NoCaptures;
    type Error = SearchHalted;

    fn find_at(&self, text: &[u8], at: usize) -> Result<Option<Match>, SearchHalted> {
        self.search_in_parts(text, at, |from, to| {
            self.matcher.find_at(&text[..to], from).ok().flatten()
        })
    }

    fn new_captures(&self) -> Result<NoCaptures, SearchHalted> {
        Ok(NoCaptures::new())
    }

    fn shortest_match_at(&self, text: &[u8], at: usize) -> Result<Option<usize>, SearchHalted> {
        self.search_in_parts(text, at, |from, to| {
            self.matcher.shortest_match_at(&text[..to], from).ok().flatten()
        })
    }

    fn is_match_at(&self, text: &[u8], at: usize) -> Result<bool, SearchHalted> {
        Ok(self.shortest_match_at(text, at)?.is_some())
    }

    fn non_matching_bytes(&self) -> Option<&ByteSet> {
        self.matcher.non_matching_bytes()
    }

    fn line_terminator(&self) -> Option<LineTerminator> {
        self.matcher.line_terminator()
    }

    fn find_candidate_line(&self, text: &[u8]) -> Result<Option<LineMatchKind>, SearchHalted> {
        self.search_in_parts(text, 0, |from, to| {
            let found = self.matcher.find_candidate_line(&text[from..to]).ok().flatten()?;
            Some(match found {
                LineMatchKind::Confirmed(at) => LineMatchKind::Confirmed(from + at),
                LineMatchKind::Candidate(at) => LineMatchKind::Candidate(from + at),
            })
        })
    }
}
