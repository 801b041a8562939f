//! Redacts secret values from a stream that arrives in pieces.
//!
//! Every byte that belongs to a value is removed, even where values overlap: the remainder of one
//! must not reveal part of another. Only bytes that could be the beginning of a value are held
//! back, so output is delayed no longer than it takes to decide.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::Arc;

use aho_corasick::automaton::StateID;

use super::known_secrets::{self, KnownSecrets};

/// Redactor for one stream.
pub struct StreamRedactor {
    secrets: Option<Arc<KnownSecrets>>,
    /// Version of the process-wide set that is searched for; `None` for a fixed set.
    set_version: Option<usize>,
    state: StateID,
    /// Undecided bytes, starting at the offset below.
    held_bytes: Vec<u8>,
    held_offset: u64,
    /// Values found in the undecided bytes that are not replaced yet.
    matches: Vec<SecretMatch>,
    /// End of the last replaced value, and which one it was.
    covered_until: u64,
    last_value: Option<usize>,
}

#[derive(Clone, Copy)]
struct SecretMatch {
    start: u64,
    end: u64,
    value: usize,
}

impl StreamRedactor {
    /// Creates a redactor for all values that the process knows, including those added later.
    pub fn new() -> StreamRedactor {
        StreamRedactor { set_version: Some(0), ..StreamRedactor::with_set(None) }
    }

    /// Creates a redactor for a fixed set.
    pub fn from_set(known: Arc<KnownSecrets>) -> StreamRedactor {
        StreamRedactor::with_set(Some(known))
    }

    fn with_set(known: Option<Arc<KnownSecrets>>) -> StreamRedactor {
        let state = known.as_ref().map_or_else(StateID::default, |known| known.start_state());
        StreamRedactor {
            secrets: known,
            set_version: None,
            state,
            held_bytes: Vec::new(),
            held_offset: 0,
            matches: Vec::new(),
            covered_until: 0,
            last_value: None,
        }
    }

    /// Consumes the next piece, and returns what can be shown by now.
    pub fn push<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        self.refresh_set();
        let Some(known) = self.secrets.clone() else { return Cow::Borrowed(bytes) };
        self.search_bytes(&known, bytes);
        let open = known.pending_bytes(self.state);
        if self.held_bytes.is_empty()
            && self.matches.is_empty()
            && open == 0
            && self.covered_until <= self.held_offset
        {
            self.held_offset += bytes.len() as u64;
            return Cow::Borrowed(bytes);
        }
        self.held_bytes.extend_from_slice(bytes);
        Cow::Owned(self.take_ready(&known, open))
    }

    /// Returns the rest at the end of the stream.
    pub fn finish(&mut self) -> Vec<u8> {
        let Some(known) = self.secrets.clone() else { return Vec::new() };
        self.state = known.start_state();
        self.take_ready(&known, 0)
    }

    /// Redacts a complete text.
    pub fn redact_all(mut self, bytes: &[u8]) -> Cow<'_, [u8]> {
        match self.push(bytes) {
            Cow::Borrowed(bytes) => Cow::Borrowed(bytes),
            Cow::Owned(mut shown) => {
                shown.extend(self.finish());
                if shown == bytes { Cow::Borrowed(bytes) } else { Cow::Owned(shown) }
            }
        }
    }

    /// Switches to the current set of values. Bytes that are held back are searched again.
    fn refresh_set(&mut self) {
        if self.set_version.is_none_or(|count| count == known_secrets::set_version()) {
            return;
        }
        self.set_version = Some(known_secrets::set_version());
        let Some(known) = known_secrets::current_set() else { return };
        self.state = known.start_state();
        self.matches.clear();
        self.last_value = None;
        let held = std::mem::take(&mut self.held_bytes);
        self.search_bytes(&known, &held);
        self.held_bytes = held;
        self.secrets = Some(known);
    }

    /// Finds the values that end in these bytes, which follow the undecided ones.
    fn search_bytes(&mut self, known: &KnownSecrets, bytes: &[u8]) {
        let at = self.held_offset + self.held_bytes.len() as u64;
        let finds = &mut self.matches;
        self.state = known.scan_bytes(self.state, bytes, |end, length, value| {
            let end = at + end as u64;
            finds.push(SecretMatch { start: end - length as u64, end, value });
        });
    }

    /// Returns the decided bytes: all but the last `open` ones. No value found later can begin
    /// before those.
    fn take_ready(&mut self, known: &KnownSecrets, open: usize) -> Vec<u8> {
        let until = self.held_offset + (self.held_bytes.len() - open) as u64;
        self.matches.sort_unstable_by_key(|find| (find.start, Reverse(find.end)));
        let decided = self.matches.partition_point(|find| find.start < until);
        let mut shown = Vec::with_capacity(self.held_bytes.len());
        for find in self.matches.drain(..decided).collect::<Vec<_>>() {
            if find.end <= self.covered_until {
                continue;
            }
            let apart = find.start >= self.covered_until;
            if apart {
                shown.extend_from_slice(self.text_before(find.start));
            }
            if apart || self.last_value != Some(find.value) {
                shown.extend_from_slice(
                    format!("[secret:{}]", known.secret_name(find.value)).as_bytes(),
                );
            }
            (self.covered_until, self.last_value) = (find.end, Some(find.value));
        }
        shown.extend_from_slice(self.text_before(until));
        self.held_bytes.drain(..self.held_bytes.len() - open);
        self.held_offset = until;
        shown
    }

    /// Returns the bytes from the last output up to `until`, except those that a replaced value
    /// covers.
    fn text_before(&self, until: u64) -> &[u8] {
        let from = self.covered_until.max(self.held_offset).min(until);
        let place = |at: u64| {
            usize::try_from(at.saturating_sub(self.held_offset)).unwrap_or(self.held_bytes.len())
        };
        self.held_bytes.get(place(from)..place(until)).unwrap_or_default()
    }
}

impl Default for StreamRedactor {
    fn default() -> Self {
        StreamRedactor::new()
    }
}

#[cfg(test)]
mod tests;
