//! A call's arguments as a human may see them.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::known;
use super::secret::is_sensitive;

/// Replaces secrets: known values, and everything under a sensitive name. Nothing else is left out.
/// If the question becomes too long to read, the gate refuses it instead.
pub fn shown(arguments: &Map<String, Value>, hidden: &BTreeSet<String>) -> Value {
    fn show(value: &Value, hidden: &BTreeSet<String>) -> Value {
        match value {
            Value::Object(map) => {
                let hide = |name: &str, value: &Value| match value {
                    _ if hidden.contains(name) => json!("[not shown]"),
                    Value::String(text) if is_sensitive(name) => {
                        json!(format!(
                            "[not shown, {} characters given by this call]",
                            text.chars().count()
                        ))
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
    let mut arguments = arguments.clone();
    known::redact_map(&mut arguments);
    show(&Value::Object(arguments), hidden)
}
