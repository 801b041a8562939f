//! What a human may see of the arguments of a call.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::known;
use super::secret::is_sensitive;

/// Text longer than this is cut in the middle of a prompt, which says so; the hash covers the whole.
const SHOWN_CHARS: usize = 15_000;
const SHOWN_TAIL: usize = 3_000;

/// Arguments as a prompt may show them: nothing under a sensitive name, no endless text.
pub fn shown(arguments: &Map<String, Value>, hidden: &BTreeSet<String>) -> Value {
    fn show(value: &Value, hidden: &BTreeSet<String>) -> Value {
        match value {
            Value::String(text) if text.chars().nth(SHOWN_CHARS).is_some() => {
                let (head, count): (String, usize) =
                    (text.chars().take(SHOWN_CHARS - SHOWN_TAIL).collect(), text.chars().count());
                let tail: String = text.chars().skip(count - SHOWN_TAIL).collect();
                json!(format!("{head}\n… [{} CHARACTERS ARE NOT SHOWN HERE] …\n{tail}", count - SHOWN_CHARS))
            }
            Value::Object(map) => {
                let hide = |name: &str, value: &Value| match value {
                    _ if hidden.contains(name) => json!("[not shown]"),
                    Value::String(text) if is_sensitive(name) => {
                        json!(format!("[not shown, {} characters given by this call]", text.chars().count()))
                    }
                    _ if is_sensitive(name) => json!("[not shown]"),
                    value => show(value, hidden),
                };
                map.iter().map(|(name, value)| (name.clone(), hide(name, value))).collect()
            }
            Value::Array(items) => items.iter().map(|item| show(item, hidden)).collect(),
            other => other.clone(),
        }
    }
    // Before anything is cut: half of a value is not found any more.
    let mut arguments = arguments.clone();
    known::redact_map(&mut arguments);
    show(&Value::Object(arguments), hidden)
}
