//! Redacts secret values from a stream that arrives in pieces.
//!
//! Every byte that belongs to a value is removed, even where values overlap: the remainder of one
//! must not reveal part of another. Only bytes that could be the beginning of a value are held
//! back, so output is delayed no longer than it takes to decide.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::Arc;

use aho_corasick::automaton::StateID;

use super::known::{self, Known};

/// Redactor for one stream.
pub struct Sieve {
    known: Option<Arc<Known>>,
    /// Version of the process-wide set that is searched for; `None` for a fixed set.
    count: Option<usize>,
    state: StateID,
    /// Undecided bytes, starting at the offset below.
    held: Vec<u8>,
    from: u64,
    /// Values found in the undecided bytes that are not replaced yet.
    finds: Vec<Find>,
    /// End of the last replaced value, and which one it was.
    covered: u64,
    last: Option<usize>,
}

#[derive(Clone, Copy)]
struct Find {
    start: u64,
    end: u64,
    value: usize,
}

impl Sieve {
    /// Creates a redactor for all values that the process knows, including those added later.
    pub fn new() -> Sieve {
        Sieve { count: Some(0), ..Sieve::of(None) }
    }

    /// Creates a redactor for a fixed set.
    pub fn over(known: Arc<Known>) -> Sieve {
        Sieve::of(Some(known))
    }

    fn of(known: Option<Arc<Known>>) -> Sieve {
        let state = known.as_ref().map_or_else(StateID::default, |known| known.start());
        Sieve {
            known,
            count: None,
            state,
            held: Vec::new(),
            from: 0,
            finds: Vec::new(),
            covered: 0,
            last: None,
        }
    }

    /// Consumes the next piece, and returns what can be shown by now.
    pub fn push<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        self.refresh();
        let Some(known) = self.known.clone() else { return Cow::Borrowed(bytes) };
        self.search(&known, bytes);
        let open = known.pending(self.state);
        if self.held.is_empty() && self.finds.is_empty() && open == 0 && self.covered <= self.from {
            self.from += bytes.len() as u64;
            return Cow::Borrowed(bytes);
        }
        self.held.extend_from_slice(bytes);
        Cow::Owned(self.give(&known, open))
    }

    /// Returns the rest at the end of the stream.
    pub fn finish(&mut self) -> Vec<u8> {
        let Some(known) = self.known.clone() else { return Vec::new() };
        self.state = known.start();
        self.give(&known, 0)
    }

    /// Redacts a complete text.
    pub fn whole(mut self, bytes: &[u8]) -> Cow<'_, [u8]> {
        match self.push(bytes) {
            Cow::Borrowed(bytes) => Cow::Borrowed(bytes),
            Cow::Owned(mut shown) => {
                shown.extend(self.finish());
                if shown == bytes { Cow::Borrowed(bytes) } else { Cow::Owned(shown) }
            }
        }
    }

    /// Switches to the current set of values. Bytes that are held back are searched again.
    fn refresh(&mut self) {
        if self.count.is_none_or(|count| count == known::count()) {
            return;
        }
        self.count = Some(known::count());
        let Some(known) = known::current() else { return };
        self.state = known.start();
        self.finds.clear();
        self.last = None;
        let held = std::mem::take(&mut self.held);
        self.search(&known, &held);
        self.held = held;
        self.known = Some(known);
    }

    /// Finds the values that end in these bytes, which follow the undecided ones.
    fn search(&mut self, known: &Known, bytes: &[u8]) {
        let at = self.from + self.held.len() as u64;
        let finds = &mut self.finds;
        self.state = known.scan(self.state, bytes, |end, length, value| {
            let end = at + end as u64;
            finds.push(Find { start: end - length as u64, end, value });
        });
    }

    /// Returns the decided bytes: all but the last `open` ones. No value found later can begin
    /// before those.
    fn give(&mut self, known: &Known, open: usize) -> Vec<u8> {
        let until = self.from + (self.held.len() - open) as u64;
        self.finds.sort_unstable_by_key(|find| (find.start, Reverse(find.end)));
        let decided = self.finds.partition_point(|find| find.start < until);
        let mut shown = Vec::with_capacity(self.held.len());
        for find in self.finds.drain(..decided).collect::<Vec<_>>() {
            if find.end <= self.covered {
                continue;
            }
            let apart = find.start >= self.covered;
            if apart {
                shown.extend_from_slice(self.plain(find.start));
            }
            if apart || self.last != Some(find.value) {
                shown.extend_from_slice(format!("[secret:{}]", known.name(find.value)).as_bytes());
            }
            (self.covered, self.last) = (find.end, Some(find.value));
        }
        shown.extend_from_slice(self.plain(until));
        self.held.drain(..self.held.len() - open);
        self.from = until;
        shown
    }

    /// Returns the bytes from the last output up to `until`, except those that a replaced value
    /// covers.
    fn plain(&self, until: u64) -> &[u8] {
        let from = self.covered.max(self.from).min(until);
        let place =
            |at: u64| usize::try_from(at.saturating_sub(self.from)).unwrap_or(self.held.len());
        self.held.get(place(from)..place(until)).unwrap_or_default()
    }
}

impl Default for Sieve {
    fn default() -> Self {
        Sieve::new()
    }
}

#[cfg(test)]
#[path = "sieve_tests.rs"]
mod tests;
