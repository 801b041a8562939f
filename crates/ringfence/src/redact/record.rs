//! Redacts an audit record just before it is written, whatever put the content there.
//!
//! Callers pass names, hashes and counts; this is a second line of defence. A member that holds
//! arguments or an environment, or whose name says that it is a secret, is replaced, and so is
//! every value of a known secret. No string may be longer than a path, so that a hostile client
//! cannot fill the disk with its own name.

use serde_json::{Map, Value};

use crate::redact::known_secrets;
use crate::redact::secret::is_sensitive;

const TEXT_LIMIT: usize = 4096;
const REDACTED: &str = "[redacted]";

/// Members that hold a caller's input as a whole.
const CALLER_INPUT: [&str; 7] =
    ["arguments", "args", "argv", "env", "environment", "headers", "input"];

/// Suffixes of names that look sensitive but do not hold a secret.
const SAFE_SUFFIXES: [&str; 2] = ["_hash", "_bytes"];

/// Returns the fields with secrets and caller input replaced.
pub fn redact_fields(fields: Map<String, Value>) -> Map<String, Value> {
    let member = |(name, value): (String, Value)| {
        (known_secrets::redact_str(&name).into_owned(), redact_member(&name, value))
    };
    fields.into_iter().map(member).collect()
}

fn redact_member(name: &str, value: Value) -> Value {
    let name = name.to_ascii_lowercase();
    let is_safe = SAFE_SUFFIXES.iter().any(|end| name.ends_with(end));
    let is_secret = is_sensitive(&name);
    match value {
        // A number or boolean under such a name is a count or a switch.
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
        _ if CALLER_INPUT.contains(&name.as_str()) || is_secret && !is_safe => REDACTED.into(),
        Value::Object(map) => Value::Object(redact_fields(map)),
        Value::Array(items) => items.into_iter().map(|item| redact_member(&name, item)).collect(),
        Value::String(mut text) => {
            known_secrets::redact_text(&mut text);
            Value::String(truncate_text(text))
        }
    }
}

fn truncate_text(mut text: String) -> String {
    if text.len() > TEXT_LIMIT {
        let end = (0..=TEXT_LIMIT).rfind(|index| text.is_char_boundary(*index)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_and_secrets_go_names_hashes_and_counts_stay() {
        let Value::Object(fields) = json!({
            "tool": "shell.exec", "arguments_hash": "sha256:00", "token_hash": "ab", "tokens": 3,
            "arguments": {"command": "hunter2"}, "argv": ["hunter2"], "nested": [{"GITHUB_TOKEN": "hunter2", "n": 1}],
            "env": {"HOME": "hunter2"}, "Authorization": "Bearer hunter2", "SIGNING_KEY": "hunter2",
        }) else {
            unreachable!()
        };
        let redacted = Value::Object(redact_fields(fields));
        assert!(!redacted.to_string().contains("hunter2"), "{redacted}");
        assert_eq!(redacted["tool"], "shell.exec");
        assert_eq!(redacted["arguments_hash"], "sha256:00");
        assert_eq!(redacted["token_hash"], "ab");
        assert_eq!(redacted["tokens"], 3);
        assert_eq!(redacted["nested"][0]["n"], 1);
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        let Value::Object(fields) = json!({"client": "ü".repeat(5000)}) else { unreachable!() };
        let cut = redact_fields(fields)["client"].as_str().unwrap().to_owned();
        assert!(cut.len() < 4200 && cut.ends_with("ü…"));
    }
}
