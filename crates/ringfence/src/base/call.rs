//! A call before and after it runs: the prepared call, and the output of its tool.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use super::ids::TraceId;
use crate::redact::known_secrets;

/// A call that is ready to run, frozen. Nothing after this point reads the request again, so a
/// human approves exactly what will run.
#[derive(Debug)]
pub struct Prepared {
    pub trace_id: TraceId,
    pub tool: String,
    pub description: String,
    /// Hash of the tool's definition: trust given to one definition never covers another.
    pub definition_hash: String,
    /// The part of the tool's reach that this call uses, for tools whose calls differ in reach.
    pub trust_scope: Option<String>,
    /// What the tool parsed the arguments into; it is what runs.
    pub args: ParsedArgs,
    pub arguments_hash: String,
    /// Arguments with secrets redacted, safe to show; `Null` if no one is asked.
    pub shown_arguments: Value,
    /// The command that would run, as the tool describes it.
    pub shown_command: Option<String>,
    /// Server and tool that the call is passed on to.
    pub target: Option<String>,
    /// Names of the arguments that `shown_command` already shows in full.
    pub arguments_in_command: &'static [&'static str],
    pub cwd: String,
    /// Environment, safe to show: for a sensitive variable only the fact that it is set.
    pub shown_env: Vec<String>,
    pub profile: &'static str,
    pub effects: Vec<&'static str>,
    pub time_limit: Duration,
    /// Why a human has to approve the call; `None` if no approval is needed.
    pub approval_reason: Option<String>,
}

/// The arguments of a call as its tool has parsed them. The type is known to the tool alone.
#[derive(Default)]
pub struct ParsedArgs(Option<Box<dyn Any + Send + Sync>>);

impl ParsedArgs {
    /// Keeps parsed arguments.
    pub fn new<T: Send + Sync + 'static>(args: T) -> ParsedArgs {
        ParsedArgs(Some(Box::new(args)))
    }

    /// Takes the arguments out, if they are of this type and have not been taken yet.
    pub fn take<T: 'static>(&mut self) -> Option<T> {
        self.0.take()?.downcast().ok().map(|args| *args)
    }
}

/// Says nothing about the arguments, which may be secret.
impl fmt::Debug for ParsedArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ParsedArgs")
    }
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallStatus {
    Completed,
    /// The run continues after the call.
    Running,
    Failed,
    TimedOut,
    Cancelled,
    Denied,
}

impl CallStatus {
    /// Returns the name used on the wire and in the audit log.
    pub fn name(self) -> &'static str {
        match self {
            CallStatus::Completed => "completed",
            CallStatus::Running => "running",
            CallStatus::Failed => "failed",
            CallStatus::TimedOut => "timed_out",
            CallStatus::Cancelled => "cancelled",
            CallStatus::Denied => "denied",
        }
    }
}

/// One block of a result's `content`.
#[derive(Debug, Clone)]
pub enum OutputBlock {
    Text(String),
    /// Base64 text and its MIME type.
    Image {
        data: String,
        mime: String,
    },
    /// Any other MCP content, already in its wire form.
    Wire(Value),
}

/// Output of a tool call.
#[derive(Debug, Default)]
pub struct ToolOutput {
    pub content: Vec<OutputBlock>,
    /// Everything the model needs: Codex shows the model only this if it is present. `None` next to
    /// an image. Our own tools return an object; a server of 2026-07-28 may return any JSON.
    pub structured: Option<Value>,
    pub is_error: bool,
    /// `_meta` of the result.
    pub meta: Map<String, Value>,
    /// Facts for the audit record.
    pub facts: CallFacts,
}

/// Facts about a call's outcome for the audit record.
#[derive(Debug, Default, Clone)]
pub struct CallFacts {
    pub status: Option<CallStatus>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout_bytes: Option<u64>,
    pub stderr_bytes: Option<u64>,
    /// Accesses that the run was denied.
    pub denials: Vec<Value>,
    /// The programs that ran without a rule naming them: their number, and a digest of all names
    /// and arguments.
    pub unruled_execs: Option<Value>,
    /// How the report about a run is incomplete, if it is.
    pub report_gap: Option<&'static str>,
    /// The sandbox's tier, if it keeps fewer promises than the others.
    pub weaker_tier: Option<&'static str>,
    /// Things that git on the host would now execute differently than before the run.
    pub git_changed: Vec<String>,
}

impl ToolOutput {
    /// Creates an output whose text block and structured content say the same.
    pub fn from_structured(text: impl Into<String>, structured: Value) -> Self {
        let structured = match structured {
            Value::Object(_) => structured,
            other => Value::Object(Map::from_iter([("value".to_owned(), other)])),
        };
        ToolOutput {
            content: vec![OutputBlock::Text(text.into())],
            structured: Some(structured),
            ..ToolOutput::default()
        }
    }

    /// Creates an output with a text block and no structured content.
    pub fn from_text(text: impl Into<String>) -> Self {
        ToolOutput { content: vec![OutputBlock::Text(text.into())], ..ToolOutput::default() }
    }

    /// Removes the values of known secrets, whichever tool put them in.
    #[must_use]
    pub fn without_secrets(mut self) -> Self {
        for block in &mut self.content {
            match block {
                OutputBlock::Text(text) => known_secrets::redact_text(text),
                OutputBlock::Wire(value) => known_secrets::redact_value(value),
                OutputBlock::Image { .. } => {}
            }
        }
        self.structured.iter_mut().for_each(known_secrets::redact_value);
        known_secrets::redact_map(&mut self.meta);
        self.facts.denials.iter_mut().for_each(known_secrets::redact_value);
        self
    }

    /// Adds a member to the result's `_meta`.
    pub fn with_meta(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.meta.insert(key.to_owned(), value.into());
        self
    }
}

/// Returns the SHA-256 of a JSON value in canonical form (sorted keys), as `sha256:<hex>`.
pub fn digest_json(value: &Value) -> String {
    fn write_canonical(value: &Value, out: &mut Vec<u8>) {
        match value {
            Value::Object(map) => {
                let mut members: Vec<_> = map.iter().collect();
                members.sort_unstable_by_key(|(name, _)| *name);
                out.push(b'{');
                for (index, (name, value)) in members.into_iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    write_scalar(name, out);
                    out.push(b':');
                    write_canonical(value, out);
                }
                out.push(b'}');
            }
            Value::Array(items) => {
                out.push(b'[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    write_canonical(item, out);
                }
                out.push(b']');
            }
            scalar => write_scalar(scalar, out),
        }
    }
    fn write_scalar(scalar: &impl Serialize, out: &mut Vec<u8>) {
        // Writing to memory does not fail, and every scalar has a form in JSON.
        let _ = serde_json::to_writer(out, scalar);
    }
    let mut text = Vec::new();
    write_canonical(value, &mut text);
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &text);
    format!("sha256:{}", super::ids::to_hex(hash.as_ref()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_digest_does_not_depend_on_key_order() {
        let one = json!({"a": [1, {"x": 1, "y": "ü"}], "b": null});
        let two = json!({"b": null, "a": [1, {"y": "ü", "x": 1}]});
        assert_eq!(digest_json(&one), digest_json(&two));
        assert_ne!(digest_json(&one), digest_json(&json!({"a": [1], "b": null})));
        // Approvals and records of earlier versions contain these digests.
        let text = r#"{"a":[1.5,{"x\n":true}],"b":"ü\""}"#;
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
        let value = json!({"b": "ü\"", "a": [1.5, {"x\n": true}]});
        assert_eq!(
            digest_json(&value),
            format!("sha256:{}", crate::base::ids::to_hex(hash.as_ref()))
        );
    }
}
