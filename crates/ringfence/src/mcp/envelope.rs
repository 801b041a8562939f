//! Envelope validation: what a message must look like before anything else is done with it. The
//! rules are the same on every transport, because a client that sends a malformed message must
//! learn what is wrong with it, wherever it sends it.

use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::codex;
use super::message_limits::MessageOutline;
use super::methods::REMOVED_IN_STATELESS;
use super::version;
use crate::base::{Error, Kind, Result, TraceId};

/// Verdict on the bytes that a client sent as one message.
pub enum EnvelopeVerdict {
    /// Valid message.
    Pass(Map<String, Value>),
    /// Answer with this error, whose kind decides the HTTP status.
    Refuse(Kind, Value),
    /// Do not answer: a request with a null id, or a malformed notification.
    Ignore,
}

/// Validates one message.
pub fn judge_message(bytes: &[u8]) -> EnvelopeVerdict {
    let outline = MessageOutline::scan_bytes(bytes);
    if let Err(error) = outline.check_size() {
        // Check the syntax without building a tree.
        if let Err(error) = serde_json::from_slice::<IgnoredAny>(bytes) {
            return refuse_message(None, not_json_error(&error));
        }
        if outline.is_notification() {
            tracing::warn!("a notification was ignored: {}", error.log_line());
            return EnvelopeVerdict::Ignore;
        }
        return refuse_message(outline.request_id(bytes).filter(is_id), error);
    }
    let mut value: Value = match serde_json::from_slice(bytes) {
        Ok(value) => value,
        Err(error) => {
            return refuse_message(None, not_json_error(&error));
        }
    };
    if !normalize_numbers(&mut value) {
        return refuse_message(
            None,
            Error::new(Kind::ParseError, "this is not JSON: a number is out of range"),
        );
    }
    let Value::Object(mut message) = value else {
        return refuse_message(None, not_object_error(&value));
    };
    // The README of Codex's shell server shows this one request without `jsonrpc`.
    if !message.contains_key("jsonrpc")
        && message.get("method").is_some_and(|method| method == codex::UPDATE_METHOD)
    {
        message.insert("jsonrpc".to_owned(), json!("2.0"));
    }
    if message.get("id").is_some_and(Value::is_null) && message.contains_key("method") {
        tracing::warn!("a request with a null id was ignored");
        return EnvelopeVerdict::Ignore;
    }
    let id = request_id(&message);
    match check_message(&message) {
        Ok(()) => EnvelopeVerdict::Pass(message),
        Err(error)
            if id.is_none()
                && !message.contains_key("id")
                && message.get("method").is_some_and(Value::is_string) =>
        {
            // A notification is never answered, not even a malformed one.
            tracing::info!("a broken notification was ignored: {}", error.log_line());
            EnvelopeVerdict::Ignore
        }
        Err(error) => refuse_message(id, error),
    }
}

/// Converts every number to a 64-bit integer or a floating-point number, as JSON is commonly read.
/// A crate that we use to read rules makes the parser keep all digits, and the engine cannot handle
/// such numbers. Returns false if one is too large.
fn normalize_numbers(value: &mut Value) -> bool {
    match value {
        Value::Number(number) => {
            let integer =
                number.as_i64().map(Into::into).or_else(|| number.as_u64().map(Into::into));
            let normalized =
                integer.or_else(|| number.as_f64().and_then(serde_json::Number::from_f64));
            normalized.map(|normalized| *number = normalized).is_some()
        }
        Value::Array(items) => items.iter_mut().all(normalize_numbers),
        Value::Object(members) => members.values_mut().all(normalize_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

/// Returns the id for an error answer. A client's response carries the id of one of our requests:
/// under that id the client would take our error for the answer to one of its own.
pub fn request_id(message: &Map<String, Value>) -> Option<Value> {
    let is_response = message.contains_key("result") || message.contains_key("error");
    if is_response && !message.contains_key("method") {
        return None;
    }
    message.get("id").filter(|id| is_id(id)).cloned()
}

/// Builds an error as a complete JSON-RPC message. Without a known id the member is left out, as
/// MCP's schema requires.
pub fn refusal_message(id: Option<Value>, error: &Error) -> Value {
    let trace_id = TraceId::generate();
    super::render::log_refusal(error, &trace_id);
    let mut message = json!({"jsonrpc": "2.0"});
    if let Some(id) = id {
        message["id"] = id;
    }
    message["error"] = json!({
        "code": error.wire_code(),
        "message": error.message(),
        "data": error.to_body(&trace_id),
    });
    message
}

fn not_json_error(error: &serde_json::Error) -> Error {
    Error::new(Kind::ParseError, format!("this is not JSON: {error}"))
}

/// Returns the verdict that refuses a message with this error.
pub fn refuse_message(id: Option<Value>, error: Error) -> EnvelopeVerdict {
    EnvelopeVerdict::Refuse(error.kind(), refusal_message(id, &error))
}

/// Adds the fields that all our errors have to an error that the engine produced.
pub fn complete_error(message: &mut Value) {
    let Some(error) = message.get_mut("error").and_then(Value::as_object_mut) else { return };
    let code = error.get("code").and_then(Value::as_i64).unwrap_or(-32603);
    let mut text = error.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
    // For some methods the engine's whole message is the name of the method.
    if Kind::from_code(code) == Kind::MethodNotFound && !text.contains(' ') {
        let method: String = text.chars().take(64).collect();
        text = format!("there is no method `{method}`");
        error.insert("message".to_owned(), json!(text));
    }
    let data = error.entry("data").or_insert_with(|| json!({}));
    if !data.is_object() {
        *data = json!({"detail": data.take()});
    }
    // The engine repeats the requested version, however long it is.
    if let Some(Value::String(requested)) = data.get_mut("requested")
        && let Some((end, _)) = requested.char_indices().nth(64)
    {
        requested.truncate(end);
    }
    if data.get("trace_id").is_some() {
        return;
    }
    let error = match code {
        -32602 if text.contains("request _meta") => Error::new(Kind::InvalidRequest, text)
            .with_hint("Carry protocolVersion and clientCapabilities (io.modelcontextprotocol/…) in each request's _meta."),
        -32020 => Error::new(Kind::InvalidRequest, text)
            .with_reason("header_mismatch")
            .with_hint("Make the headers MCP-Protocol-Version, Mcp-Method and Mcp-Name match the body."),
        _ => Error::new(Kind::from_code(code), text),
    };
    if let (Value::Object(body), Some(data)) =
        (error.with_code(code).to_body(&TraceId::generate()), data.as_object_mut())
    {
        for (key, value) in body {
            data.entry(key).or_insert(value);
        }
    }
}

fn not_object_error(value: &Value) -> Error {
    match value {
        Value::Array(_) => Error::new(Kind::InvalidRequest, "batches are not supported")
            .with_reason("batch")
            .with_hint("Send one message at a time; MCP dropped batches in 2025-06-18."),
        _ => Error::new(Kind::InvalidRequest, "a message must be a JSON object"),
    }
}

/// Returns whether this is an id: a string or an integer of 64 bits, as in MCP's schema.
fn is_id(id: &Value) -> bool {
    id.is_string() || id.is_i64()
}

fn check_message(message: &Map<String, Value>) -> Result<()> {
    let invalid = |text: &str| Error::new(Kind::InvalidRequest, text);
    if message.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err(invalid("`jsonrpc` must be \"2.0\""));
    }
    if message.get("id").is_some_and(|id| !is_id(id) && !id.is_null()) {
        return Err(invalid("`id` must be a string or a whole number"));
    }
    let Some(method) = message.get("method") else {
        return check_response(message);
    };
    let Some(method) = method.as_str() else {
        return Err(invalid("`method` must be a string"));
    };
    if message.contains_key("result") || message.contains_key("error") {
        return Err(invalid("a message has either a `method` or a `result` or an `error`"));
    }
    let no_params = Map::new();
    let params = match message.get("params") {
        None => &no_params,
        Some(Value::Object(params)) => params,
        Some(_) => {
            return Err(Error::invalid_arguments("`params` must be an object")
                .with_hint("MCP passes parameters by name."));
        }
    };
    if params.get("_meta").is_some_and(|meta| !meta.is_object()) {
        return Err(Error::invalid_arguments("`_meta` must be an object"));
    }
    // A request that states its protocol version must conform to it.
    let protocol_version = params.get("_meta").and_then(|meta| meta.get(version::VERSION_META));
    if protocol_version.is_some_and(|protocol_version| protocol_version == version::STATELESS)
        && REMOVED_IN_STATELESS.contains(&method)
    {
        return Err(Error::new(
            Kind::MethodNotFound,
            format!("{} has no `{method}`", version::STATELESS),
        ));
    }
    match method {
        "initialize" => check_initialize(params),
        "tools/call" => check_tools_call(params),
        _ => Ok(()),
    }
}

fn check_response(message: &Map<String, Value>) -> Result<()> {
    let has_outcome =
        message.contains_key("result") || message.get("error").is_some_and(Value::is_object);
    if has_outcome && message.contains_key("id") {
        return Ok(());
    }
    Err(Error::new(
        Kind::InvalidRequest,
        "there is neither a `method` nor a `result` nor an `error`",
    ))
}

fn check_initialize(params: &Map<String, Value>) -> Result<()> {
    match params.get("protocolVersion").and_then(Value::as_str) {
        Some(requested) => version::negotiate_version(requested).map(|_| ()),
        None => Err(Error::invalid_arguments("`protocolVersion` must be a string")
            .with_hint(format!("Ask for one of {}.", version::supported_versions().join(", ")))
            .with_fact("supported", json!(version::supported_versions()))),
    }?;
    if !params.get("capabilities").is_none_or(Value::is_object)
        || !params.get("clientInfo").is_none_or(Value::is_object)
    {
        return Err(Error::invalid_arguments("`capabilities` and `clientInfo` must be objects"));
    }
    Ok(())
}

fn check_tools_call(params: &Map<String, Value>) -> Result<()> {
    if !params.get("name").is_some_and(Value::is_string) {
        return Err(Error::invalid_arguments("`name` must be the name of a tool")
            .with_hint("Call `tools/list` for the available tools."));
    }
    if params
        .get("arguments")
        .is_some_and(|arguments| !arguments.is_object() && !arguments.is_null())
    {
        return Err(Error::invalid_arguments("`arguments` must be an object"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_everybody_reads_them() {
        let with = |number: &str| {
            judge_message(
                format!("{{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"n\":[{number}]}}").as_bytes(),
            )
        };
        for (number, read) in
            [("18446744073709551616", 18446744073709551616_f64), ("1e2", 100.0), ("2.50", 2.5)]
        {
            let EnvelopeVerdict::Pass(message) = with(number) else { panic!("{number}") };
            assert_eq!(message["n"][0], json!(read), "{number}");
        }
        for (number, read) in [("-9223372036854775808", i64::MIN), ("-0", 0)] {
            let EnvelopeVerdict::Pass(message) = with(number) else { panic!("{number}") };
            assert_eq!(message["n"][0], json!(read), "{number}");
        }
        assert!(matches!(with("1e400"), EnvelopeVerdict::Refuse(Kind::ParseError, _)));
    }

    #[test]
    fn an_error_of_the_engine_that_only_names_a_method_becomes_a_sentence() {
        let mut message = json!({"id": 1, "error": {"code": -32601, "message": "tasks/get"}});
        complete_error(&mut message);
        let error = &message["error"];
        assert_eq!(error["message"], "there is no method `tasks/get`");
        assert_eq!(error["data"]["message"], error["message"]);
        let sentence = "method not found: x";
        let mut message = json!({"error": {"code": -32601, "message": sentence}});
        complete_error(&mut message);
        assert_eq!(message["error"]["message"], sentence);
    }

    #[test]
    fn a_request_is_held_to_the_version_it_speaks() {
        let initialize = |version: &str| {
            let meta = json!({"io.modelcontextprotocol/protocolVersion": version});
            let params = json!({"protocolVersion": "2025-11-25", "_meta": meta});
            judge_message(
                json!({"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": params})
                    .to_string()
                    .as_bytes(),
            )
        };
        let EnvelopeVerdict::Refuse(Kind::MethodNotFound, refusal) = initialize(version::STATELESS)
        else {
            panic!("2026-07-28 has no initialize");
        };
        assert_eq!((&refusal["id"], &refusal["error"]["code"]), (&json!(7), &json!(-32601)));
        assert!(matches!(initialize("2025-11-25"), EnvelopeVerdict::Pass(_)));
    }
}
