//! A call's arguments as a human may see them.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::known_secrets;
use super::secret::is_sensitive;

/// Replaces secrets: known values, and everything under a sensitive name. Nothing else is left out.
/// If the question becomes too long to read, the gate refuses it instead.
pub fn redact_arguments(arguments: &Map<String, Value>, hidden: &BTreeSet<String>) -> Value {
    fn redact_json(value: &Value, hidden: &BTreeSet<String>) -> Value {
        match value {
            Value::Object(map) => {
                let hide =
                    |name: &str, value: &Value| match hidden.contains(name) || is_sensitive(name) {
                        true => json!(describe_hidden(value)),
                        false => redact_json(value, hidden),
                    };
                map.iter().map(|(name, value)| (name.clone(), hide(name, value))).collect()
            }
            Value::Array(items) => items.iter().map(|item| redact_json(item, hidden)).collect(),
            other => other.clone(),
        }
    }
    let mut arguments = arguments.clone();
    known_secrets::redact_map(&mut arguments);
    redact_json(&Value::Object(arguments), hidden)
}

/// Describes a value that is not shown. The length tells a password from a page of text, and helps
/// no one to guess the value.
fn describe_hidden(value: &Value) -> String {
    let count = match value {
        Value::String(text) => text.chars().count(),
        other => other.to_string().chars().count(),
    };
    format!("[not shown, {count} characters given by this call]")
}
