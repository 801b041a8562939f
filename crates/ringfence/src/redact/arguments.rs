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
                let hide = |name: &str, value: &Value| match value {
                    _ if hidden.contains(name) => json!("[not shown]"),
                    Value::String(text) if is_sensitive(name) => {
                        json!(format!(
                            "[not shown, {} characters given by this call]",
                            text.chars().count()
                        ))
                    }
                    _ if is_sensitive(name) => json!("[not shown]"),
                    value => redact_json(value, hidden),
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
