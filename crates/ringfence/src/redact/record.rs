//! Redacts an audit record just before it is written, whatever put the content there.
//!
//! Callers pass names, hashes and counts; this is a second line of defence. A member that holds
//! arguments or an environment, or whose name says that it is a secret, is replaced, and so is
//! every value of a known secret. No string may be longer than a path, so that a hostile client
//! cannot fill the disk with its own name.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;

use crate::redact::known_secrets;
use crate::redact::secret::{ends_with_ignoring_case, is_sensitive};

const TEXT_LIMIT: usize = 4096;
const REDACTED: &str = "[redacted]";

/// Members that hold a caller's input as a whole.
const CALLER_INPUT: [&str; 7] =
    ["arguments", "args", "argv", "env", "environment", "headers", "input"];

/// Suffixes of names that look sensitive but do not hold a secret.
const SAFE_SUFFIXES: [&str; 2] = ["_hash", "_bytes"];

/// Appends the members of a record as JSON (`,"name":value` for each), with secrets and caller
/// input replaced.
pub fn write_redacted_members<'a>(
    json: &mut Vec<u8>,
    members: impl IntoIterator<Item = (&'a str, &'a Value)>,
) {
    for (name, value) in members {
        json.push(b',');
        write_json(json, &*known_secrets::redact_str(name));
        json.push(b':');
        let replaces_text = is_caller_input(name) || is_sensitive(name) && !is_safe(name);
        write_redacted_value(json, value, replaces_text);
    }
}

fn is_caller_input(name: &str) -> bool {
    CALLER_INPUT.iter().any(|input| name.eq_ignore_ascii_case(input))
}

fn is_safe(name: &str) -> bool {
    SAFE_SUFFIXES.iter().any(|suffix| ends_with_ignoring_case(name.as_bytes(), suffix))
}

/// Appends a value. `replaces_text` says that its name does not allow texts to be shown.
fn write_redacted_value(json: &mut Vec<u8>, value: &Value, replaces_text: bool) {
    match value {
        // A number or boolean under such a name is a count or a switch.
        Value::Null | Value::Bool(_) | Value::Number(_) => write_json(json, value),
        _ if replaces_text => write_json(json, REDACTED),
        Value::Object(map) => {
            let start = json.len();
            write_redacted_members(json, map.iter().map(|(name, value)| (name.as_str(), value)));
            // The brace takes the place of the first comma.
            match json.get_mut(start) {
                Some(comma) => *comma = b'{',
                None => json.push(b'{'),
            }
            json.push(b'}');
        }
        Value::Array(items) => {
            json.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    json.push(b',');
                }
                write_redacted_value(json, item, replaces_text);
            }
            json.push(b']');
        }
        Value::String(text) => {
            write_json(json, &*truncate_text(known_secrets::redact_str(text)));
        }
    }
}

/// Appends a value as it is. Writing to memory does not fail, and JSON has a form for each of these
/// values.
fn write_json<T: Serialize + ?Sized>(json: &mut Vec<u8>, value: &T) {
    let _ = serde_json::to_writer(json, value);
}

fn truncate_text(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.len() <= TEXT_LIMIT {
        return text;
    }
    let end = (0..=TEXT_LIMIT).rfind(|index| text.is_char_boundary(*index)).unwrap_or(0);
    Cow::Owned(format!("{}…", &text[..end]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn redact(fields: &Value) -> Value {
        let fields = fields.as_object().unwrap();
        let mut json = Vec::new();
        write_redacted_members(
            &mut json,
            fields.iter().map(|(name, value)| (name.as_str(), value)),
        );
        json[0] = b'{';
        json.push(b'}');
        serde_json::from_slice(&json).unwrap()
    }

    #[test]
    fn values_and_secrets_go_names_hashes_and_counts_stay() {
        let redacted = redact(&json!({
            "tool": "shell.exec", "arguments_hash": "sha256:00", "token_hash": "ab", "tokens": 3,
            "arguments": {"command": "hunter2"}, "argv": ["hunter2"], "nested": [{"GITHUB_TOKEN": "hunter2", "n": 1}],
            "env": {"HOME": "hunter2"}, "Authorization": "Bearer hunter2", "SIGNING_KEY": "hunter2",
            "Token_Hash": "cd", "empty": {}, "list": [], "null": null, "yes": [true, 1.5, "\"\n"],
        }));
        assert!(!redacted.to_string().contains("hunter2"), "{redacted}");
        assert_eq!(redacted["tool"], "shell.exec");
        assert_eq!(redacted["arguments_hash"], "sha256:00");
        assert_eq!(redacted["token_hash"], "ab");
        assert_eq!(redacted["tokens"], 3);
        assert_eq!(redacted["nested"][0]["n"], 1);
        assert_eq!(redacted["Token_Hash"], "cd");
        assert_eq!(redacted["empty"], json!({}));
        assert_eq!(redacted["list"], json!([]));
        assert_eq!(redacted["null"], Value::Null);
        assert_eq!(redacted["yes"], json!([true, 1.5, "\"\n"]));
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        let redacted = redact(&json!({"client": "ü".repeat(5000)}));
        let cut = redacted["client"].as_str().unwrap();
        assert!(cut.len() < 4200 && cut.ends_with("ü…"));
    }
}
