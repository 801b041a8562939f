//! The values of all secrets that this process has ever looked up, to take them out of whatever it says.
//!
//! A value that was replaced is still known: a run may hold it, and so may a file. What is shorter than [`SHORTEST`]
//! stands in ordinary text by chance and cannot be searched for.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use aho_corasick::Anchored;
use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use serde_json::{Map, Value};

use super::secret::Secret;
use super::sieve::Sieve;

/// Bytes of a value that can be searched for.
pub const SHORTEST: usize = 8;

/// How many values there are, so that those who look often need no lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static KNOWN: RwLock<Option<Arc<Known>>> = RwLock::new(None);

/// Values and the machine that finds all of them in one pass.
pub struct Known {
    values: Vec<(Vec<u8>, String)>,
    machine: NFA,
    start: StateID,
    /// What a value can begin with: anything else leaves the start where it is.
    first: [bool; 256],
    /// For each state: how many of the last bytes could be the beginning of a value that is not complete.
    pending: HashMap<StateID, usize>,
}

impl Known {
    /// None when there is nothing to search for.
    pub fn of(values: Vec<(Vec<u8>, String)>) -> Option<Known> {
        if values.is_empty() {
            return None;
        }
        let built = NFA::builder().prefilter(false).build(values.iter().map(|(value, _)| value));
        let machine = match built {
            Ok(machine) => machine,
            // Only for more than the machine can number, which the bounds of all sources are far below.
            Err(error) => {
                tracing::error!("values of secrets cannot be searched for: {error}");
                return None;
            }
        };
        let start = machine.start_state(Anchored::No).ok()?;
        let mut first = [false; 256];
        for (value, _) in &values {
            first[usize::from(value[0])] = true;
        }
        let pending = pending(&machine, start, &values);
        Some(Known { values, machine, start, first, pending })
    }

    pub(super) fn start(&self) -> StateID {
        self.start
    }

    pub(super) fn pending(&self, state: StateID) -> usize {
        self.pending.get(&state).copied().unwrap_or(0)
    }

    pub(super) fn name(&self, value: usize) -> &str {
        &self.values[value].1
    }

    /// Goes over the bytes, and tells where in them each value ends and how long it is.
    pub(super) fn scan(&self, mut state: StateID, bytes: &[u8], mut found: impl FnMut(usize, usize, usize)) -> StateID {
        let mut at = 0;
        while at < bytes.len() {
            if state == self.start {
                match bytes[at..].iter().position(|byte| self.first[usize::from(*byte)]) {
                    Some(skipped) => at += skipped,
                    None => break,
                }
            }
            state = self.machine.next_state(Anchored::No, state, bytes[at]);
            at += 1;
            if self.machine.is_special(state) && self.machine.is_match(state) {
                for index in 0..self.machine.match_len(state) {
                    let value = self.machine.match_pattern(state, index).as_usize();
                    found(at, self.values[value].0.len(), value);
                }
            }
        }
        state
    }
}

/// The state after each beginning of a value stands for exactly these bytes. After a whole value that is not the
/// beginning of a longer one, only its own end can be the beginning of another.
fn pending(machine: &NFA, start: StateID, values: &[(Vec<u8>, String)]) -> HashMap<StateID, usize> {
    let step = |state, byte: &u8| machine.next_state(Anchored::No, state, *byte);
    let mut pending = HashMap::new();
    let mut whole = Vec::new();
    for (value, _) in values {
        let mut state = start;
        for (at, byte) in value.iter().enumerate() {
            state = step(state, byte);
            if at + 1 < value.len() {
                pending.insert(state, at + 1);
            }
        }
        whole.push((value, state));
    }
    // The shorter first: the end of one may be the whole of another.
    whole.sort_by_key(|(value, _)| value.len());
    for (value, state) in whole {
        if !pending.contains_key(&state) {
            let end = value[1..].iter().fold(start, step);
            let open = pending.get(&end).copied().unwrap_or(0);
            pending.insert(state, open);
        }
    }
    pending
}

/// Whether there is anything to look for.
pub fn any() -> bool {
    COUNT.load(Ordering::Acquire) > 0
}

/// A number that changes with the set.
pub(super) fn count() -> usize {
    COUNT.load(Ordering::Acquire)
}

pub(super) fn current() -> Option<Arc<Known>> {
    KNOWN.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Adds these values. Each is also found as it stands in JSON, which is how logs and many programs write it.
pub fn learn<'a>(secrets: impl IntoIterator<Item = (&'a str, &'a Secret)>) {
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    let mut values = known.as_ref().map(|known| known.values.clone()).unwrap_or_default();
    let before = values.len();
    let mut all: HashSet<Vec<u8>> = values.iter().map(|(value, _)| value.clone()).collect();
    for (name, secret) in secrets.into_iter().filter(|(_, secret)| is_searchable(secret)) {
        for form in forms(secret.expose()) {
            if all.insert(form.clone()) {
                values.push((form, name.to_owned()));
            }
        }
    }
    if values.len() > before {
        let count = values.len();
        *known = Known::of(values).map(Arc::new);
        COUNT.store(count, Ordering::Release);
    }
}

/// Whether output can be searched for it.
pub fn is_searchable(secret: &Secret) -> bool {
    secret.expose().len() >= SHORTEST
}

fn forms(value: &[u8]) -> Vec<Vec<u8>> {
    let mut forms = vec![value.to_vec()];
    if let Ok(text) = std::str::from_utf8(value) {
        let quoted = Value::from(text).to_string();
        let inner = quoted.as_bytes()[1..quoted.len() - 1].to_vec();
        if inner != value {
            forms.push(inner);
        }
    }
    forms
}

/// The text with `[secret:NAME]` in place of every value.
pub fn redact(text: &str) -> Cow<'_, str> {
    match redact_bytes(text.as_bytes()) {
        Cow::Borrowed(_) => Cow::Borrowed(text),
        Cow::Owned(bytes) => Cow::Owned(match String::from_utf8(bytes) {
            Ok(text) => text,
            // A value that is no text can end within a character.
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }),
    }
}

pub fn redact_bytes(bytes: &[u8]) -> Cow<'_, [u8]> {
    if !any() {
        return Cow::Borrowed(bytes);
    }
    let Some(known) = current() else { return Cow::Borrowed(bytes) };
    Sieve::over(known).whole(bytes)
}

/// Every text in it, names of members too.
pub fn redact_value(value: &mut Value) {
    if !any() {
        return;
    }
    match value {
        Value::String(text) => redact_text(text),
        Value::Array(items) => items.iter_mut().for_each(redact_value),
        Value::Object(map) => redact_map(map),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

pub fn redact_map(map: &mut Map<String, Value>) {
    if !any() {
        return;
    }
    if map.keys().any(|name| matches!(redact(name), Cow::Owned(_))) {
        *map = std::mem::take(map).into_iter().map(|(name, value)| (redact(&name).into_owned(), value)).collect();
    }
    map.values_mut().for_each(redact_value);
}

pub fn redact_text(text: &mut String) {
    if let Cow::Owned(redacted) = redact(text) {
        *text = redacted;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The set belongs to the process, so these values are of this test alone.
    #[test]
    fn what_was_learnt_is_found_in_text_and_json_for_ever() {
        let value = Secret::new("known-\"quoted\"-value");
        learn([("FIRST", &value), ("SHORT", &Secret::new("7 bytes"))]);
        learn([("FIRST", &Secret::new("known-second-value"))]);
        assert_eq!(redact("nothing of it, 7 bytes"), "nothing of it, 7 bytes");
        assert!(matches!(redact("nothing of it"), Cow::Borrowed(_)));
        let told = "a known-\"quoted\"-value, known-second-value.";
        assert_eq!(redact(told), "a [secret:FIRST], [secret:FIRST].");
        assert_eq!(redact(&json!(told).to_string()), "\"a [secret:FIRST], [secret:FIRST].\"");
        let mut value = json!({"a": [told, 1, null], "known-second-value": {"b": told}});
        redact_value(&mut value);
        let clean = "a [secret:FIRST], [secret:FIRST].";
        assert_eq!(value, json!({"a": [clean, 1, null], "[secret:FIRST]": {"b": clean}}));
        assert!(is_searchable(&Secret::new("8 bytes!")) && !is_searchable(&Secret::new("7 bytes")));
    }
}
