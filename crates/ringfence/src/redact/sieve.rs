//! Takes the values of secrets out of a stream that comes in pieces.
//!
//! Every byte that belongs to a value is taken out, where values overlap too: what is left of the one must not show the
//! rest of the other. Only what could be the beginning of a value is held back, so output is never late for longer than
//! it takes to tell.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::Arc;

use aho_corasick::automaton::StateID;

use super::known::{self, Known};

pub struct Sieve {
    known: Option<Arc<Known>>,
    /// Of the set that is looked for; None for one that stays what it is.
    count: Option<usize>,
    state: StateID,
    /// What has come and is not decided, from `from` on.
    held: Vec<u8>,
    from: u64,
    /// Values in `held`, not yet replaced.
    finds: Vec<Find>,
    /// The end of the last value that was replaced, and which one it was.
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
    /// For whatever this process knows, also what it learns meanwhile.
    pub fn new() -> Sieve {
        Sieve { count: Some(0), ..Sieve::of(None) }
    }

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

    /// Takes the next piece, and gives what can be shown by now.
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

    /// The rest, when nothing more comes.
    pub fn finish(&mut self) -> Vec<u8> {
        let Some(known) = self.known.clone() else { return Vec::new() };
        self.state = known.start();
        self.give(&known, 0)
    }

    pub fn whole(mut self, bytes: &[u8]) -> Cow<'_, [u8]> {
        match self.push(bytes) {
            Cow::Borrowed(bytes) => Cow::Borrowed(bytes),
            Cow::Owned(mut shown) => {
                shown.extend(self.finish());
                if shown == bytes { Cow::Borrowed(bytes) } else { Cow::Owned(shown) }
            }
        }
    }

    /// Looks for what was learnt since. What is held back is looked through again.
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

    /// Finds what ends in these bytes, which come after `held`.
    fn search(&mut self, known: &Known, bytes: &[u8]) {
        let at = self.from + self.held.len() as u64;
        let finds = &mut self.finds;
        self.state = known.scan(self.state, bytes, |end, length, value| {
            let end = at + end as u64;
            finds.push(Find { start: end - length as u64, end, value });
        });
    }

    /// What is decided: all but the last `open` bytes, which nothing that comes later can begin before.
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

    /// From what was given last up to there, unless a value covers it.
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
