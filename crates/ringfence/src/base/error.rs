//! One error type and one table of kinds.
//!
//! `message` and `hint` are for the caller and may be shown to a model. `source` is for the log
//! only, since it may name paths outside the workspace. There is no blanket `From<io::Error>`: code
//! that converts an OS error has to say what it means for the caller.

use std::fmt;

use serde_json::{Map, Value, json};

use super::ids::TraceId;
use super::visible;
use crate::redact::known_secrets;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Kind of an error, for callers and operators. The table below maps each to the wire and to an
/// exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    ParseError,
    InvalidRequest,
    MethodNotFound,
    UnknownTool,
    UnsupportedVersion,
    Unauthenticated,
    InvalidArguments,
    PermissionDenied,
    ApprovalDenied,
    ApprovalExpired,
    NotFound,
    Conflict,
    TooLarge,
    DeadlineExceeded,
    Cancelled,
    Unavailable,
    ResourceExhausted,
    Internal,
}

/// Row of the table: the kind's name on the wire, JSON-RPC code, HTTP status and exit code.
pub struct ErrorKindRow {
    pub kind: Kind,
    pub name: &'static str,
    pub code: i64,
    pub http: u16,
    pub exit: u8,
}

macro_rules! kinds {
    ($($kind:ident $name:literal $code:literal $http:literal $exit:literal;)*) => {
        /// The table of all kinds.
        pub const KINDS: &[ErrorKindRow] = &[$(ErrorKindRow { kind: Kind::$kind, name: $name, code: $code, http: $http, exit: $exit },)*];
    };
}

// Custom codes would have to be outside -32768..-32000, and no client knows them. The standard
// codes are enough on the wire; `data.kind` carries the rest.
kinds! {
    ParseError         "parse_error"         -32700 400 65;
    InvalidRequest     "invalid_request"     -32600 400 65;
    MethodNotFound     "method_not_found"    -32601 404 65;
    UnknownTool        "unknown_tool"        -32602 200 65;
    UnsupportedVersion "unsupported_version" -32602 400 65;
    Unauthenticated    "unauthenticated"     -32600 401 77;
    InvalidArguments   "invalid_arguments"   -32602 200 64;
    PermissionDenied   "permission_denied"   -32600 403 77;
    ApprovalDenied     "approval_denied"     -32600 403 77;
    ApprovalExpired    "approval_expired"    -32600 403 77;
    NotFound           "not_found"           -32602 404 66;
    Conflict           "conflict"            -32600 409 75;
    TooLarge           "too_large"           -32600 413 65;
    DeadlineExceeded   "deadline_exceeded"   -32603 504 75;
    Cancelled          "cancelled"           -32603 499 75;
    Unavailable        "unavailable"         -32603 503 69;
    ResourceExhausted  "resource_exhausted"  -32603 429 75;
    Internal           "internal"            -32603 500 70;
}

impl Kind {
    /// Returns this kind's row of the table.
    pub fn table_row(self) -> &'static ErrorKindRow {
        // The table is total (a unit test checks it), so the fallback is never used.
        KINDS.iter().find(|row| row.kind == self).unwrap_or(&KINDS[0])
    }

    /// Returns the name used on the wire.
    pub fn name(self) -> &'static str {
        self.table_row().name
    }

    /// Returns the kind for a bare JSON-RPC code, for errors that the protocol engine itself
    /// created.
    pub fn from_code(code: i64) -> Kind {
        match code {
            -32700 => Kind::ParseError,
            -32601 => Kind::MethodNotFound,
            -32602 => Kind::InvalidArguments,
            -32022 => Kind::UnsupportedVersion,
            -32600 | -32020 | -32021 => Kind::InvalidRequest,
            -32002 => Kind::NotFound,
            _ => Kind::Internal,
        }
    }
}

/// Error of any operation. Boxed, so that a `Result` on the hot path stays one pointer wide.
pub struct Error(Box<ErrorInner>);

struct ErrorInner {
    kind: Kind,
    code: Option<i64>,
    reason: Option<&'static str>,
    message: String,
    hint: Option<String>,
    data: Map<String, Value>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// Creates an error.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Error(Box::new(ErrorInner {
            kind,
            code: None,
            reason: None,
            message: message.into(),
            hint: None,
            data: Map::new(),
            source: None,
        }))
    }

    /// Creates an error of kind [`Kind::Internal`].
    pub fn internal(message: impl Into<String>) -> Self {
        Error::new(Kind::Internal, message)
    }

    /// Creates an error of kind [`Kind::InvalidArguments`].
    pub fn invalid_arguments(message: impl Into<String>) -> Self {
        Error::new(Kind::InvalidArguments, message)
    }

    /// Creates an error of kind [`Kind::PermissionDenied`] with its reason.
    pub fn permission_denied(reason: &'static str, message: impl Into<String>) -> Self {
        Error::new(Kind::PermissionDenied, message).with_reason(reason)
    }

    /// Overrides the table's code where the protocol reserves one (-32020 to -32022).
    #[must_use]
    pub fn with_code(mut self, code: i64) -> Self {
        self.0.code = Some(code);
        self
    }

    /// Sets the reason, which programs may match on.
    #[must_use]
    pub fn with_reason(mut self, reason: &'static str) -> Self {
        self.0.reason = Some(reason);
        self
    }

    /// Sets the hint: what the caller can do next.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Sets the hint unless the code that failed already set one.
    #[must_use]
    pub fn with_fallback_hint(mut self, hint: &str) -> Self {
        self.0.hint.get_or_insert_with(|| hint.to_owned());
        self
    }

    /// Adds a machine-readable fact next to the message: `supported`, `nearest`, `partial` …
    #[must_use]
    pub fn with_fact(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.data.insert(key.to_owned(), value.into());
        self
    }

    /// Sets the underlying error, which is only logged.
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Returns the kind.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Returns the reason, if one was set.
    pub fn reason_name(&self) -> Option<&'static str> {
        self.0.reason
    }

    /// Returns the message without hint or source.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the hint, if one was set.
    pub fn hint_text(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// Returns one of the machine-readable facts.
    pub fn get_fact(&self, key: &str) -> Option<&Value> {
        self.0.data.get(key)
    }

    /// Returns the JSON-RPC code.
    pub fn wire_code(&self) -> i64 {
        self.0.code.unwrap_or(self.0.kind.table_row().code)
    }

    /// Removes the values of known secrets from everything the caller sees, whichever code put them
    /// in.
    #[must_use]
    pub fn without_secrets(mut self) -> Self {
        known_secrets::redact_text(&mut self.0.message);
        self.0.hint.as_mut().map(known_secrets::redact_text);
        known_secrets::redact_map(&mut self.0.data);
        self
    }

    /// Returns the message and the chain of sources, for the log.
    pub fn message_chain(&self) -> String {
        use std::fmt::Write;
        let mut text = self.0.message.clone();
        let mut next: Option<&dyn std::error::Error> = self.0.source.as_deref().map(|e| e as _);
        while let Some(error) = next {
            let _ = write!(text, ": {error}");
            next = error.source();
        }
        known_secrets::redact_text(&mut text);
        text
    }

    /// Returns the detail as one line: text from a caller must not be able to forge a log line.
    pub fn log_line(&self) -> String {
        self.message_chain()
            .chars()
            .flat_map(|c| {
                if visible::is_hidden_char(c) { c.escape_default().collect() } else { vec![c] }
            })
            .collect()
    }

    /// Builds the body that every caller gets: `{code, kind, reason?, message, hint, trace_id}` and
    /// the facts.
    pub fn to_body(&self, trace_id: &TraceId) -> Value {
        let mut body = Map::new();
        body.insert("code".into(), json!(self.wire_code()));
        body.insert("kind".into(), json!(self.0.kind.name()));
        if let Some(reason) = self.0.reason {
            body.insert("reason".into(), json!(reason));
        }
        body.insert("message".into(), json!(self.0.message));
        body.insert(
            "hint".into(),
            json!(self.0.hint.as_deref().unwrap_or_else(|| self.0.kind.default_hint())),
        );
        body.insert("trace_id".into(), json!(trace_id.as_str()));
        for (key, value) in &self.0.data {
            body.insert(key.clone(), value.clone());
        }
        Value::Object(body)
    }
}

impl Kind {
    /// Returns the hint used when the code that failed did not set one.
    pub fn default_hint(self) -> &'static str {
        match self {
            Kind::ParseError => "Send one JSON-RPC 2.0 object per message.",
            Kind::InvalidRequest => {
                "Check the envelope: jsonrpc \"2.0\", a method, and an id that is a string or a number."
            }
            Kind::MethodNotFound => {
                "Call `mcp.capabilities` or `server/discover` to see what this server offers."
            }
            Kind::UnknownTool => "List the available tools with `tools/list`.",
            Kind::UnsupportedVersion => "Use one of the versions in `supported`.",
            Kind::Unauthenticated => {
                "Send `Authorization: Bearer <token>` with a token made for this server."
            }
            Kind::InvalidArguments => "Correct what the message names, then try again.",
            Kind::PermissionDenied => {
                "The operator's policy does not allow this; do it another way or ask the operator."
            }
            Kind::ApprovalDenied => "The call was not approved; do not repeat it unchanged.",
            Kind::ApprovalExpired => {
                "Tell the user that a question is coming, then repeat the call."
            }
            Kind::NotFound => "Check the name.",
            Kind::Conflict => "Read the current state and try again.",
            Kind::TooLarge => "Ask for less at a time.",
            Kind::DeadlineExceeded => "Do less in one call.",
            Kind::Cancelled => "The call was stopped before it finished.",
            Kind::Unavailable => "Try again later, or ask the operator.",
            Kind::ResourceExhausted => "Wait for running calls to end.",
            Kind::Internal => "Look up the trace_id with `ringfence audit --trace`.",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind.name(), self.message_chain())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|e| e as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_row() {
        for row in KINDS {
            assert_eq!(row.kind.table_row().name, row.name);
        }
        let mut names: Vec<_> = KINDS.iter().map(|row| row.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KINDS.len());
    }

    #[test]
    fn a_body_has_what_every_error_promises_and_no_source() {
        let error = Error::permission_denied("outside_workspace", "no")
            .with_source(std::io::Error::other("/etc/shadow"));
        let body = error.to_body(&TraceId::generate());
        for key in ["code", "kind", "reason", "message", "hint", "trace_id"] {
            assert!(body.get(key).is_some(), "{key} missing in {body}");
        }
        assert!(!body.to_string().contains("shadow"));
        assert!(error.message_chain().contains("shadow"));
    }
}
