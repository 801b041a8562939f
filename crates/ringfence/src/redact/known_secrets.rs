//! Search for the values of all secrets that this process has looked up, to redact them from
//! everything it emits.
//!
//! Values that were replaced stay known, up to a limit on their number: a running command or a file
//! may still contain them. Values shorter than [`MIN_SECRET_BYTES`] occur in ordinary text by
//! chance and cannot be searched for.

mod encodings;
mod registered;
mod utf16;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use aho_corasick::Anchored;
use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use serde_json::{Map, Value};

use self::registered::RegisteredSecrets;
use super::secret::Secret;
use super::stream::StreamRedactor;
use jail::IgnorePoison;

/// Minimum length in bytes of a value that can be searched for.
pub const MIN_SECRET_BYTES: usize = 8;

/// Number of changes to the set, so that frequent readers need no lock.
static SET_VERSION: AtomicUsize = AtomicUsize::new(0);
static REGISTERED: Mutex<RegisteredSecrets> = Mutex::new(RegisteredSecrets::new());
static CURRENT_SET: RwLock<Option<Arc<KnownSecrets>>> = RwLock::new(None);

/// Set of values, with the automaton that finds all of them in one pass.
pub struct KnownSecrets {
    values: Vec<(Vec<u8>, String)>,
    automaton: NFA,
    start: StateID,
    /// Bytes that a value can begin with: any other byte leaves the automaton in its start state.
    first_bytes: [bool; 256],
    /// For each state: how many of the last bytes could be the beginning of an incomplete value.
    pending: HashMap<StateID, usize>,
    longest_value: usize,
}

impl KnownSecrets {
    /// Builds the automaton; `None` if there is nothing to search for.
    pub fn from_values(values: Vec<(Vec<u8>, String)>) -> Option<KnownSecrets> {
        if values.is_empty() {
            return None;
        }
        let result = NFA::builder().prefilter(false).build(values.iter().map(|(value, _)| value));
        let automaton = match result {
            Ok(automaton) => automaton,
            // Happens only with more states than the automaton can number; the limits of all
            // sources are far below.
            Err(error) => {
                tracing::error!("cannot build the search for secret values: {error}");
                return None;
            }
        };
        let start = automaton.start_state(Anchored::No).ok()?;
        let mut first_bytes = [false; 256];
        for (value, _) in &values {
            first_bytes[usize::from(value[0])] = true;
        }
        let pending = compute_pending(&automaton, start, &values);
        let longest_value = values.iter().map(|(value, _)| value.len()).max().unwrap_or(0);
        Some(KnownSecrets { values, automaton, start, first_bytes, pending, longest_value })
    }

    /// Returns the automaton's start state.
    pub fn start_state(&self) -> StateID {
        self.start
    }

    /// Returns how many of the last bytes could be the beginning of an incomplete value.
    pub fn pending_bytes(&self, state: StateID) -> usize {
        self.pending.get(&state).copied().unwrap_or(0)
    }

    /// Returns the name of the secret that a value belongs to.
    pub fn secret_name(&self, value: usize) -> &str {
        &self.values[value].1
    }

    /// Scans bytes, and calls `found(end, length, value)` for each value that ends in them.
    pub fn scan_bytes(
        &self,
        mut state: StateID,
        bytes: &[u8],
        mut on_match: impl FnMut(usize, usize, usize),
    ) -> StateID {
        let mut offset = 0;
        while offset < bytes.len() {
            if state == self.start {
                match bytes[offset..].iter().position(|byte| self.first_bytes[usize::from(*byte)]) {
                    Some(skipped) => offset += skipped,
                    None => break,
                }
            }
            state = self.automaton.next_state(Anchored::No, state, bytes[offset]);
            offset += 1;
            if self.automaton.is_special(state) && self.automaton.is_match(state) {
                for index in 0..self.automaton.match_len(state) {
                    let value = self.automaton.match_pattern(state, index).as_usize();
                    on_match(offset, self.values[value].0.len(), value);
                }
            }
        }
        state
    }
}

/// Computes the incomplete bytes for each state. The state after a proper prefix of a value
/// represents exactly these bytes. After a complete value that is not a prefix of a longer one,
/// only a suffix of it can be the beginning of another.
fn compute_pending(
    automaton: &NFA,
    start: StateID,
    values: &[(Vec<u8>, String)],
) -> HashMap<StateID, usize> {
    let step = |state, byte: &u8| automaton.next_state(Anchored::No, state, *byte);
    let mut pending = HashMap::new();
    let mut final_states = Vec::new();
    for (value, _) in values {
        let mut state = start;
        for (index, byte) in value.iter().enumerate() {
            state = step(state, byte);
            if index + 1 < value.len() {
                pending.insert(state, index + 1);
            }
        }
        final_states.push((value, state));
    }
    // Shorter values first: the suffix of one may be the whole of another.
    final_states.sort_by_key(|(value, _)| value.len());
    for (value, state) in final_states {
        if !pending.contains_key(&state) {
            let end = value[1..].iter().fold(start, step);
            let pending_bytes = pending.get(&end).copied().unwrap_or(0);
            pending.insert(state, pending_bytes);
        }
    }
    pending
}

/// Returns whether there is anything to search for.
pub fn has_secrets() -> bool {
    SET_VERSION.load(Ordering::Acquire) > 0
}

/// Returns a number that changes whenever the set changes.
pub fn set_version() -> usize {
    SET_VERSION.load(Ordering::Acquire)
}

/// Returns the current set, if there is anything to search for.
pub fn current_set() -> Option<Arc<KnownSecrets>> {
    CURRENT_SET.read().ignore_poison().clone()
}

/// Adds these values. Each is also found as it is written in JSON (as logs and many programs write
/// it), in URLs and in base64, and its lines are found one by one.
pub fn register_secrets<'a>(secrets: impl IntoIterator<Item = (&'a str, &'a Secret)>) {
    // Writers wait for each other; readers do not wait for writers.
    let mut registered = REGISTERED.lock().ignore_poison();
    let change = registered.add_secrets(secrets);
    if change.is_changed {
        replace_set(&registered);
    }
    if change.dropped > 0 {
        tracing::warn!(
            "{} secret values that were replaced long ago are no longer redacted",
            change.dropped
        );
    }
}

/// Adds tokens of a login, which replace only older tokens of the same login. `name` is shown in
/// their place.
pub fn register_tokens(login: &str, name: &str, tokens: &[Secret]) {
    let mut registered = REGISTERED.lock().ignore_poison();
    if registered.add_tokens(login, name, tokens) {
        replace_set(&registered);
    }
}

/// Builds the search for all registered values.
fn replace_set(registered: &RegisteredSecrets) {
    let mut seen_encodings = HashSet::new();
    let mut values = Vec::new();
    for (name, secret) in registered.values() {
        for form in encodings::all_encodings(secret.expose()) {
            if seen_encodings.insert(form.clone()) {
                values.push((form, name.to_owned()));
            }
        }
    }
    let secret_set = KnownSecrets::from_values(values).map(Arc::new);
    *CURRENT_SET.write().ignore_poison() = secret_set;
    SET_VERSION.fetch_add(1, Ordering::AcqRel);
}

/// Returns whether the value is long enough to be searched for.
pub fn is_searchable(secret: &Secret) -> bool {
    secret.expose().len() >= MIN_SECRET_BYTES
}

/// Returns how many bytes around a part have to be read to find values that are only partly in it.
pub fn max_overlap() -> usize {
    current_set().map_or(0, |secrets| secrets.longest_value.saturating_sub(1))
}

/// Returns the ranges within a part that belong to values reaching beyond it, and to values that
/// overlap those: none of them could be found in the part alone.
pub fn find_crossing(bytes: &[u8], part: Range<usize>) -> Vec<Range<usize>> {
    let Some(secrets) = current_set() else { return Vec::new() };
    let mut ranges = Vec::new();
    secrets
        .scan_bytes(secrets.start_state(), bytes, |end, length, _| ranges.push(end - length..end));
    let crosses = |range: &Range<usize>, edge: usize| range.start < edge && edge < range.end;
    let (mut crossing, mut rest): (Vec<_>, Vec<_>) = ranges
        .into_iter()
        .partition(|range| crosses(range, part.start) || crosses(range, part.end));
    loop {
        let touches = |range: &Range<usize>| {
            crossing.iter().any(|one| one.start < range.end && range.start < one.end)
        };
        let (touching, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(touches);
        if touching.is_empty() {
            break;
        }
        (crossing, rest) = (crossing.into_iter().chain(touching).collect(), others);
    }
    let inside = crossing.into_iter().map(|one| one.start.max(part.start)..one.end.min(part.end));
    inside.filter(|one| !one.is_empty()).collect()
}

/// Returns the bytes with every value replaced by as many stars, so that the result can be cut
/// anywhere: no offset changes.
pub fn mask_secrets(bytes: &[u8]) -> Cow<'_, [u8]> {
    let mut masked = Cow::Borrowed(bytes);
    let Some(secrets) = current_set() else { return masked };
    secrets.scan_bytes(secrets.start_state(), bytes, |end, length, _| {
        masked.to_mut()[end - length..end].fill(b'*')
    });
    masked
}

/// Replaces every value in this part of the bytes with stars, including values in UTF-16 and those
/// that reach beyond the part. For bytes that are returned in an encoding, where no later search
/// would find a value. `read_bytes` returns bytes from an offset on. Returns whether there was a
/// value.
pub fn mask_part<E>(
    offset: u64,
    part: &mut [u8],
    read_bytes: impl FnOnce(u64, usize) -> Result<Vec<u8>, E>,
) -> Result<bool, E> {
    let Some(secrets) = current_set().filter(|_| !part.is_empty()) else { return Ok(false) };
    // A UTF-16 code unit has two bytes.
    let margin = 2 * secrets.longest_value;
    let bytes_before = usize::try_from(offset).unwrap_or(usize::MAX).min(margin);
    let context = read_bytes(offset - bytes_before as u64, bytes_before + part.len() + margin)?;
    let mut ranges = utf16::find_utf16(&secrets, &context);
    secrets.scan_bytes(secrets.start_state(), &context, |end, length, _| {
        ranges.push(end - length..end)
    });
    let mut is_masked = false;
    for range in ranges {
        let inside = range.start.max(bytes_before) - bytes_before
            ..range.end.min(bytes_before + part.len()).saturating_sub(bytes_before);
        if let Some(hidden) = part.get_mut(inside).filter(|hidden| !hidden.is_empty()) {
            hidden.fill(b'*');
            is_masked = true;
        }
    }
    Ok(is_masked)
}

/// Replaces every value in the text with `[secret:NAME]`.
pub fn redact_str(text: &str) -> Cow<'_, str> {
    match redact_bytes(text.as_bytes()) {
        Cow::Borrowed(_) => Cow::Borrowed(text),
        Cow::Owned(bytes) => Cow::Owned(match String::from_utf8(bytes) {
            Ok(text) => text,
            // A value that is not text can end within a character.
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }),
    }
}

/// Replaces every value in the bytes with `[secret:NAME]`.
pub fn redact_bytes(bytes: &[u8]) -> Cow<'_, [u8]> {
    if !has_secrets() {
        return Cow::Borrowed(bytes);
    }
    let Some(secrets) = current_set() else { return Cow::Borrowed(bytes) };
    StreamRedactor::from_set(secrets).redact_all(bytes)
}

/// Redacts every string in a JSON value, including member names.
pub fn redact_value(value: &mut Value) {
    if !has_secrets() {
        return;
    }
    match value {
        Value::String(text) => redact_text(text),
        Value::Array(items) => items.iter_mut().for_each(redact_value),
        Value::Object(map) => redact_map(map),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Redacts member names and values of a JSON object.
pub fn redact_map(map: &mut Map<String, Value>) {
    if !has_secrets() {
        return;
    }
    if map.keys().any(|name| matches!(redact_str(name), Cow::Owned(_))) {
        *map = std::mem::take(map)
            .into_iter()
            .map(|(name, value)| (redact_str(&name).into_owned(), value))
            .collect();
    }
    map.values_mut().for_each(redact_value);
}

/// Redacts a string in place.
pub fn redact_text(text: &mut String) {
    if let Cow::Owned(redacted) = redact_str(text) {
        *text = redacted;
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde_json::json;

    use super::registered::MAX_RETIRED;
    use super::*;

    /// The set belongs to the process, so these values are of this test alone.
    #[test]
    fn what_was_learnt_is_found_in_text_and_json_for_ever() {
        let value = Secret::new("known-\"quoted\"-value");
        register_secrets([("FIRST", &value), ("SHORT", &Secret::new("7 bytes"))]);
        register_secrets([("FIRST", &Secret::new("known-second-value"))]);
        assert_eq!(redact_str("nothing of it, 7 bytes"), "nothing of it, 7 bytes");
        assert!(matches!(redact_str("nothing of it"), Cow::Borrowed(_)));
        let told = "a known-\"quoted\"-value, known-second-value.";
        assert_eq!(redact_str(told), "a [secret:FIRST], [secret:FIRST].");
        assert_eq!(redact_str(&json!(told).to_string()), "\"a [secret:FIRST], [secret:FIRST].\"");
        let mut value = json!({"a": [told, 1, null], "known-second-value": {"b": told}});
        redact_value(&mut value);
        let clean = "a [secret:FIRST], [secret:FIRST].";
        assert_eq!(value, json!({"a": [clean, 1, null], "[secret:FIRST]": {"b": clean}}));
        assert!(is_searchable(&Secret::new("8 bytes!")) && !is_searchable(&Secret::new("7 bytes")));
    }

    #[test]
    fn a_value_in_a_url_and_in_basic_authentication_is_found() {
        register_secrets([("WEB", &Secret::new("w\u{e4}b p/ss:w+rd?"))]);
        for written in [
            "w%C3%A4b%20p%2Fss%3Aw%2Brd%3F",
            "w%c3%a4b%20p%2fss%3aw%2brd%3f",
            "w%C3%A4b+p%2Fss%3Aw%2Brd%3F",
        ] {
            assert_eq!(
                redact_str(&format!("https://h/?k={written}&x=1")),
                "https://h/?k=[secret:WEB]&x=1"
            );
        }
        for user in ["", "a", "me", "bob", "token", "x-access-token"] {
            let header = STANDARD.encode(format!("{user}:w\u{e4}b p/ss:w+rd?"));
            let shown = redact_str(&format!("Authorization: Basic {header}")).into_owned();
            let (before, after) =
                shown.split_once("[secret:WEB]").unwrap_or_else(|| panic!("{user}: {shown}"));
            let kept = before.trim_start_matches("Authorization: Basic ").len();
            // Of the user, of the colon, and of one character at either end.
            assert!(
                kept <= (user.len() + 1) * 4 / 3 + 1 && after.trim_end_matches('=').len() <= 1,
                "{user}: {shown}"
            );
        }
    }

    #[test]
    fn a_value_that_is_only_partly_there_is_told() {
        register_secrets([
            ("CUT", &Secret::new("0123456789-cut")),
            ("OVER", &Secret::new("-cut-and-more")),
        ]);
        let text = b"a 0123456789-cut-and-more b 0123456789-cut.";
        assert!(find_crossing(text, 0..text.len()).is_empty());
        assert_eq!(
            find_crossing(text, 10..25),
            [10..16, 12..25],
            "what overlaps one that is cut is told too"
        );
        assert_eq!(find_crossing(text, 0..4).first(), Some(&(2..4)));
        assert!(max_overlap() >= 13);
    }

    #[test]
    fn what_is_new_counts_and_what_is_oldest_is_forgotten() {
        let secret = |at: usize| Secret::new(format!("rotated-value-{at:05}"));
        let before = set_version();
        register_secrets([("KEPT", &secret(0)), ("ROTATED", &secret(1))]);
        assert_eq!(set_version(), before + 1);
        register_secrets([("KEPT", &secret(0)), ("ROTATED", &secret(1))]);
        assert_eq!(set_version(), before + 1, "nothing is new");
        for at in 2..=MAX_RETIRED + 2 {
            register_secrets([("KEPT", &secret(0)), ("ROTATED", &secret(at))]);
        }
        assert_eq!(redact_str("rotated-value-00000"), "[secret:KEPT]");
        assert_eq!(redact_str("rotated-value-00002"), "[secret:ROTATED]");
        assert_eq!(redact_str("rotated-value-00001"), "rotated-value-00001");
    }
}
