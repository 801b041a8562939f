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
    pub fn from_set(secrets: Arc<KnownSecrets>) -> StreamRedactor {
        StreamRedactor::with_set(Some(secrets))
    }

    fn with_set(secrets: Option<Arc<KnownSecrets>>) -> StreamRedactor {
        let state = secrets.as_ref().map_or_else(StateID::default, |secrets| secrets.start_state());
        StreamRedactor {
            secrets,
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
        let Some(secrets) = self.secrets.clone() else { return Cow::Borrowed(bytes) };
        self.search_bytes(&secrets, bytes);
        let pending = secrets.pending_bytes(self.state);
        if self.held_bytes.is_empty()
            && self.matches.is_empty()
            && pending == 0
            && self.covered_until <= self.held_offset
        {
            self.held_offset += bytes.len() as u64;
            return Cow::Borrowed(bytes);
        }
        self.held_bytes.extend_from_slice(bytes);
        Cow::Owned(self.take_ready(&secrets, pending))
    }

    /// Returns the rest at the end of the stream.
    pub fn finish(&mut self) -> Vec<u8> {
        let Some(secrets) = self.secrets.clone() else { return Vec::new() };
        self.state = secrets.start_state();
        self.take_ready(&secrets, 0)
    }

    /// Redacts a complete text.
    pub fn redact_all(mut self, bytes: &[u8]) -> Cow<'_, [u8]> {
        match self.push(bytes) {
            Cow::Borrowed(bytes) => Cow::Borrowed(bytes),
            Cow::Owned(mut redacted) => {
                redacted.extend(self.finish());
                if redacted == bytes { Cow::Borrowed(bytes) } else { Cow::Owned(redacted) }
            }
        }
    }

    /// Switches to the current set of values. Bytes that are held back are searched again.
    fn refresh_set(&mut self) {
        if self.set_version.is_none_or(|version| version == known_secrets::set_version()) {
            return;
        }
        self.set_version = Some(known_secrets::set_version());
        let Some(secrets) = known_secrets::current_set() else { return };
        self.state = secrets.start_state();
        self.matches.clear();
        self.last_value = None;
        let held_bytes = std::mem::take(&mut self.held_bytes);
        self.search_bytes(&secrets, &held_bytes);
        self.held_bytes = held_bytes;
        self.secrets = Some(secrets);
    }

    /// Finds the values that end in these bytes, which follow the undecided ones.
    fn search_bytes(&mut self, secrets: &KnownSecrets, bytes: &[u8]) {
        let offset = self.held_offset + self.held_bytes.len() as u64;
        let matches = &mut self.matches;
        self.state = secrets.scan_bytes(self.state, bytes, |end, length, value| {
            let end = offset + end as u64;
            matches.push(SecretMatch { start: end - length as u64, end, value });
        });
    }

    /// Returns the decided bytes: all but the last `pending` ones. No value found later can begin
    /// before those.
    fn take_ready(&mut self, secrets: &KnownSecrets, pending: usize) -> Vec<u8> {
        let ready_until = self.held_offset + (self.held_bytes.len() - pending) as u64;
        self.matches
            .sort_unstable_by_key(|secret_match| (secret_match.start, Reverse(secret_match.end)));
        let ready_count =
            self.matches.partition_point(|secret_match| secret_match.start < ready_until);
        let mut output = Vec::with_capacity(self.held_bytes.len());
        for secret_match in self.matches.drain(..ready_count).collect::<Vec<_>>() {
            if secret_match.end <= self.covered_until {
                continue;
            }
            let is_separate = secret_match.start >= self.covered_until;
            if is_separate {
                output.extend_from_slice(self.text_before(secret_match.start));
            }
            if is_separate || self.last_value != Some(secret_match.value) {
                output.extend_from_slice(
                    format!("[secret:{}]", secrets.secret_name(secret_match.value)).as_bytes(),
                );
            }
            (self.covered_until, self.last_value) = (secret_match.end, Some(secret_match.value));
        }
        output.extend_from_slice(self.text_before(ready_until));
        self.held_bytes.drain(..self.held_bytes.len() - pending);
        self.held_offset = ready_until;
        output
    }

    /// Returns the bytes from the last output up to `end`, except those that a replaced value
    /// covers.
    fn text_before(&self, end: u64) -> &[u8] {
        let start = self.covered_until.max(self.held_offset).min(end);
        let to_index = |offset: u64| {
            usize::try_from(offset.saturating_sub(self.held_offset))
                .unwrap_or(self.held_bytes.len())
        };
        self.held_bytes.get(to_index(start)..to_index(end)).unwrap_or_default()
    }
}

impl Default for StreamRedactor {
    fn default() -> Self {
        StreamRedactor::new()
    }
}

#[cfg(test)]
mod tests;
