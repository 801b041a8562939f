//! The words of a call: what was prepared, and what came out of it.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::ids::TraceId;
use crate::redact::known;

/// What will run, frozen. Nothing after this point reads the request again, so what a human approves is what
/// happens.
#[derive(Debug)]
pub struct Prepared {
    pub trace_id: TraceId,
    pub tool: String,
    pub description: String,
    /// Hash of the tool's definition: trust given to one definition never covers another.
    pub definition: String,
    /// What of a tool's reach this call uses, where calls of one tool may do more or less.
    pub extent: Option<String>,
    pub generation: u64,
    pub arguments: Map<String, Value>,
    pub arguments_hash: String,
    /// The arguments as they may be shown, without secrets.
    pub shown_arguments: Value,
    /// What would be run, in our words.
    pub shown_command: Option<String>,
    /// The arguments that `shown_command` shows whole.
    pub command_covers: &'static [&'static str],
    pub cwd: String,
    /// The environment as it may be shown: of a sensitive variable only that it is set.
    pub shown_env: Vec<String>,
    pub profile: &'static str,
    pub effects: Vec<&'static str>,
    pub limit: Duration,
    /// Why a human has to be asked, when one has.
    pub asks: Option<String>,
}

/// How a call ended, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Completed,
    /// It goes on after the call.
    Running,
    Failed,
    TimedOut,
    Cancelled,
    Denied,
}

impl Status {
    pub fn name(self) -> &'static str {
        match self {
            Status::Completed => "completed",
            Status::Running => "running",
            Status::Failed => "failed",
            Status::TimedOut => "timed_out",
            Status::Cancelled => "cancelled",
            Status::Denied => "denied",
        }
    }
}

/// One block of a result's `content`.
#[derive(Debug, Clone)]
pub enum Block {
    Text(String),
    /// Base64 text and its MIME type.
    Image {
        data: String,
        mime: String,
    },
    /// Anything else MCP knows, already in its wire form.
    Wire(Value),
}

/// What a tool gives back.
#[derive(Debug, Default)]
pub struct Output {
    pub content: Vec<Block>,
    /// Everything the model needs, since Codex shows it this alone when it is there. None beside an image.
    pub structured: Option<Map<String, Value>>,
    pub is_error: bool,
    /// `_meta` of the result.
    pub meta: Map<String, Value>,
    /// For the audit record.
    pub facts: Facts,
}

/// What the audit record says about how it went.
#[derive(Debug, Default, Clone)]
pub struct Facts {
    pub status: Option<Status>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout_bytes: Option<u64>,
    pub stderr_bytes: Option<u64>,
    /// What a run was refused.
    pub denials: Vec<Value>,
    /// The programs that it ran and no rule names: how many, and a digest of all their names and arguments.
    pub execs: Option<Value>,
    /// That the report about a run is not whole, and how.
    pub report: Option<&'static str>,
    /// What git on the host would execute otherwise than before.
    pub git_changed: Vec<String>,
}

impl Output {
    /// A result whose text block and structured content say the same.
    pub fn of(text: impl Into<String>, structured: Value) -> Self {
        let structured = match structured {
            Value::Object(map) => map,
            other => Map::from_iter([("value".to_owned(), other)]),
        };
        Output {
            content: vec![Block::Text(text.into())],
            structured: Some(structured),
            ..Output::default()
        }
    }

    pub fn text(text: impl Into<String>) -> Self {
        Output { content: vec![Block::Text(text.into())], ..Output::default() }
    }

    /// Without the values of secrets, whoever put them in.
    #[must_use]
    pub fn redacted(mut self) -> Self {
        for block in &mut self.content {
            match block {
                Block::Text(text) => known::redact_text(text),
                Block::Wire(value) => known::redact_value(value),
                Block::Image { .. } => {}
            }
        }
        self.structured.as_mut().map(known::redact_map);
        known::redact_map(&mut self.meta);
        self.facts.denials.iter_mut().for_each(known::redact_value);
        self
    }

    pub fn with_meta(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.meta.insert(key.to_owned(), value.into());
        self
    }
}

/// SHA-256 of a JSON value in canonical form (sorted keys), as `sha256:<hex>`.
pub fn digest(value: &Value) -> String {
    fn canonical(value: &Value, out: &mut String) {
        match value {
            Value::Object(map) => {
                let mut keys: Vec<_> = map.keys().collect();
                keys.sort_unstable();
                out.push('{');
                for (at, key) in keys.into_iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    out.push_str(&json!(key).to_string());
                    out.push(':');
                    canonical(&map[key], out);
                }
                out.push('}');
            }
            Value::Array(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    canonical(item, out);
                }
                out.push(']');
            }
            scalar => out.push_str(&scalar.to_string()),
        }
    }
    let mut text = String::new();
    canonical(value, &mut text);
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    format!("sha256:{}", super::ids::hex(hash.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_does_not_depend_on_key_order() {
        let one = json!({"a": [1, {"x": 1, "y": "ü"}], "b": null});
        let two = json!({"b": null, "a": [1, {"y": "ü", "x": 1}]});
        assert_eq!(digest(&one), digest(&two));
        assert_ne!(digest(&one), digest(&json!({"a": [1], "b": null})));
    }
}
