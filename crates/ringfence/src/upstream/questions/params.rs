//! Parameters of a question as our client gets them: with the name of the server, without anything
//! that a human could not see, and no longer than a human could read.
//!
//! Texts are cleaned. What the answer is made of (names of fields, values to choose from, addresses,
//! ids) cannot be changed without changing what is answered, so a question with hidden characters in
//! these is not asked at all.

use ringfence_client::{clean_line, clean_text};
use serde_json::{Map, Value, json};
use url::Url;

/// Longest text of a question.
const MAX_MESSAGE_CHARS: usize = 4_000;
/// Longest text in a form, such as the description of a field.
const MAX_FIELD_CHARS: usize = 2_000;
/// Largest schema of a form.
const MAX_SCHEMA_BYTES: usize = 16 << 10;
const MAX_URL_CHARS: usize = 2_000;
const MAX_ID_CHARS: usize = 200;
/// Members of a question to the model that are passed on. `includeContext` is not: our client takes
/// all servers behind us for one, and no server must learn what the others said.
const SAMPLING_MEMBERS: [&str; 9] = [
    "messages",
    "modelPreferences",
    "systemPrompt",
    "maxTokens",
    "temperature",
    "stopSequences",
    "metadata",
    "tools",
    "toolChoice",
];
/// Members of a schema whose values an answer repeats or must match.
const EXACT_MEMBERS: [&str; 6] = ["enum", "const", "pattern", "required", "$ref", "$id"];

/// Why a question is not asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuestionFault {
    /// The answer would contain characters that no one sees.
    HiddenCharacters,
    TooLong,
    /// The address is not one of the web, or names a user in front of its host.
    BadAddress,
}

impl QuestionFault {
    /// Returns the name of the reason in the audit log.
    pub fn name(self) -> &'static str {
        match self {
            QuestionFault::HiddenCharacters => "hidden_characters",
            QuestionFault::TooLong => "too_long",
            QuestionFault::BadAddress => "bad_address",
        }
    }
}

/// Returns the parameters of a form.
pub fn form_params(server_id: &str, mut params: Value) -> Result<Value, QuestionFault> {
    let mut schema = match params.get_mut("requestedSchema").map(Value::take) {
        Some(schema @ Value::Object(_)) => schema,
        _ => json!({"type": "object", "properties": {}}),
    };
    clean_value(&mut schema, MAX_FIELD_CHARS)?;
    if schema.to_string().len() > MAX_SCHEMA_BYTES {
        return Err(QuestionFault::TooLong);
    }
    Ok(json!({"message": attribute_message(server_id, &params), "requestedSchema": schema}))
}

/// Returns the parameters of a question whose answer is given on a page.
pub fn url_params(server_id: &str, params: &Value) -> Result<Value, QuestionFault> {
    let written = params["url"].as_str().unwrap_or_default();
    let id = params["elicitationId"].as_str().unwrap_or_default();
    check_exact(written)?;
    check_exact(id)?;
    // As a browser reads it: with the letters of the host that it really has.
    let url = Url::parse(written).map_err(|_| QuestionFault::BadAddress)?;
    let is_web = matches!(url.scheme(), "https" | "http");
    // Before the host, a name that is known could stand for the host.
    if !is_web || !url.username().is_empty() || url.password().is_some() {
        return Err(QuestionFault::BadAddress);
    }
    if url.as_str().len() > MAX_URL_CHARS || id.chars().count() > MAX_ID_CHARS {
        return Err(QuestionFault::TooLong);
    }
    Ok(json!({
        "mode": "url",
        "message": attribute_message(server_id, params),
        "url": url.as_str(),
        "elicitationId": id,
    }))
}

/// Returns the parameters of a question to the model. Its length is bounded by the connection.
pub fn sampling_params(server_id: &str, params: Value) -> Result<Value, QuestionFault> {
    let mut members = match params {
        Value::Object(members) => members,
        _ => Map::new(),
    };
    members.retain(|name, _| SAMPLING_MEMBERS.contains(&name.as_str()));
    let mut params = Value::Object(members);
    clean_value(&mut params, usize::MAX)?;
    let prompt = params["systemPrompt"].as_str().unwrap_or_default();
    params["systemPrompt"] = attribute_text(server_id, prompt).into();
    Ok(params)
}

fn attribute_message(server_id: &str, params: &Value) -> String {
    let message = params["message"].as_str().unwrap_or_default();
    attribute_text(server_id, &clean_text(message, MAX_MESSAGE_CHARS))
}

fn attribute_text(server_id: &str, text: &str) -> String {
    format!("The MCP server `{server_id}` asks (Ringfence only passes this on):\n{text}")
}

/// Cleans all texts. Fails if a name, or a value that an answer repeats, has hidden characters.
fn clean_value(value: &mut Value, max_chars: usize) -> Result<(), QuestionFault> {
    match value {
        Value::Object(members) => members.iter_mut().try_for_each(|(name, value)| {
            check_exact(name)?;
            match EXACT_MEMBERS.contains(&name.as_str()) {
                true => check_exact_values(value, max_chars),
                false => clean_value(value, max_chars),
            }
        }),
        Value::Array(items) => items.iter_mut().try_for_each(|item| clean_value(item, max_chars)),
        Value::String(text) => {
            *text = clean_text(text, max_chars);
            Ok(())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

/// Checks a text, or the texts of a list, and leaves them as they are: neither cleaned nor cut. What
/// is no text is cleaned; a field may have the name of such a member.
fn check_exact_values(value: &mut Value, max_chars: usize) -> Result<(), QuestionFault> {
    match value {
        Value::String(text) => check_exact(text),
        Value::Array(items) => {
            items.iter_mut().try_for_each(|item| check_exact_values(item, max_chars))
        }
        value => clean_value(value, max_chars),
    }
}

fn check_exact(text: &str) -> Result<(), QuestionFault> {
    match clean_line(text, usize::MAX) == text {
        true => Ok(()),
        false => Err(QuestionFault::HiddenCharacters),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_names_its_server_and_hides_nothing() {
        let params = json!({
            "message": "Approve\u{202e}?\u{1b}[2J", "requestedSchema": {"type": "object"}, "_meta": {"x": 1},
        });
        let form = form_params("docs", params).unwrap();
        let message = form["message"].as_str().unwrap();
        assert!(message.starts_with("The MCP server `docs` asks"), "{message}");
        assert!(message.ends_with("Approve?"), "{message}");
        assert!(form.get("_meta").is_none());
        assert_eq!(
            form_params("docs", json!({"requestedSchema": 5})).unwrap()["requestedSchema"]["type"],
            "object"
        );
    }

    #[test]
    fn what_an_answer_repeats_is_never_changed() {
        let form = |property: Value| {
            let schema = json!({"type": "object", "properties": property});
            form_params("docs", json!({"message": "x", "requestedSchema": schema}))
        };
        for property in [
            json!({"a\u{200b}": {}}),
            json!({"a\nb": {}}),
            json!({"a": {"enum": ["b\u{202e}"]}}),
            json!({"a": {"oneOf": [{"const": "b\u{e0041}"}]}}),
            json!({"a": {"pattern": "b\u{200b}"}}),
        ] {
            assert_eq!(form(property.clone()), Err(QuestionFault::HiddenCharacters), "{property}");
        }
        // Letters of all languages are visible, and a field may have any name.
        let kept = json!({"نام": {"enum": ["می\u{200c}خواهم", "👩🏽\u{200d}💻"]}, "enum": {"title": "a\nb"}});
        assert_eq!(form(kept.clone()).unwrap()["requestedSchema"]["properties"], kept);
        let long = json!({"a": {"enum": ["x".repeat(MAX_SCHEMA_BYTES)]}});
        assert_eq!(form(long), Err(QuestionFault::TooLong));
        let described = json!({"a": {"description": "x".repeat(9_000), "default": "\u{202e}y"}});
        let described = form(described).unwrap()["requestedSchema"]["properties"]["a"].clone();
        assert!(described["description"].as_str().unwrap().len() < 3_000);
        assert_eq!(described["default"], "y");
    }

    #[test]
    fn only_plain_web_addresses_are_shown() {
        let with_url = |url: &str| url_params("docs", &json!({"mode": "url", "url": url}));
        for (url, shown) in [
            ("https://example.com/login?x=1", "https://example.com/login?x=1"),
            // Browsers go to the first host here.
            ("https://example.com\\@evil.example/", "https://example.com/@evil.example/"),
            ("https://ex\u{430}mple.com", "https://xn--exmple-4nf.com/"),
        ] {
            assert_eq!(with_url(url).unwrap()["url"], shown);
        }
        for url in [
            "javascript:alert(1)",
            "file:///etc/passwd",
            "https://a\u{202e}b/",
            "https://example.com@evil.example/",
            "https://:x@evil.example/",
            "https:///",
            "https://a/\nb",
            "",
        ] {
            assert!(with_url(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_question_to_the_model_is_clean_and_carries_no_context_of_others() {
        let asked = json!({
            "messages": [{"role": "user", "content": {"type": "text", "text": "a\u{1b}[2Jb"}}],
            "includeContext": "allServers", "maxTokens": 5,
        });
        let params = sampling_params("docs", asked).unwrap();
        assert_eq!(params["messages"][0]["content"]["text"], "ab");
        assert!(params.get("includeContext").is_none());
        assert!(params["systemPrompt"].as_str().unwrap().contains("`docs` asks"));
        assert!(sampling_params("docs", json!("x")).is_ok());
    }
}
