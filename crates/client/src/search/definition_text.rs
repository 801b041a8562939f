//! The texts of a tool's definition: what is searched, and one line to show.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::catalog::ToolDefinition;
use crate::clean_text::clean_text;

/// Most bytes that are searched: of the title, of the description, and of all parameters together.
const MAX_TEXT_BYTES: usize = 4096;
/// Most characters of a compact signature.
const MAX_SIGNATURE_LENGTH: usize = 200;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct DefinitionFields {
    title: Option<Value>,
    description: Option<Value>,
    input_schema: Map<String, Value>,
}

/// Texts of a definition, cut to a bounded size.
#[derive(Debug, Default)]
pub(super) struct DefinitionText {
    pub(super) title: String,
    pub(super) first_sentence: String,
    pub(super) other_sentences: String,
    pub(super) parameter_names: Vec<String>,
    pub(super) parameter_descriptions: Vec<String>,
}

impl DefinitionText {
    pub(super) fn from_definition(definition: &ToolDefinition) -> DefinitionText {
        let fields = parse_fields(definition);
        let description = text_value(fields.description.as_ref());
        let (first, others) = split_first_sentence(cut_text(description, MAX_TEXT_BYTES));
        let mut text = DefinitionText {
            title: cut_text(text_value(fields.title.as_ref()), MAX_TEXT_BYTES).to_owned(),
            first_sentence: first.to_owned(),
            other_sentences: others.to_owned(),
            ..DefinitionText::default()
        };
        let mut bytes_left = MAX_TEXT_BYTES;
        for (name, schema) in properties(&fields.input_schema) {
            let description = text_value(schema.get("description"));
            for (part, parts) in
                [(name, &mut text.parameter_names), (description, &mut text.parameter_descriptions)]
            {
                let part = cut_text(part, bytes_left);
                bytes_left -= part.len();
                parts.push(part.to_owned());
            }
        }
        text
    }
}

/// Describes the parameters of a tool in one line of at most 200 characters:
/// `(required: type, optional?: type)`.
///
/// The tool's name is left out, because it is listed under another one. Invisible characters are
/// left out, because a human could not see what a model reads.
pub fn compact_signature(definition: &ToolDefinition) -> String {
    let fields = parse_fields(definition);
    let is_required = |name: &str| {
        let required = fields.input_schema.get("required").and_then(Value::as_array);
        required.is_some_and(|names| names.iter().any(|required| required == name))
    };
    let (required, optional): (Vec<_>, Vec<_>) =
        properties(&fields.input_schema).partition(|(name, _)| is_required(name));
    let parameters = required
        .into_iter()
        .map(|(name, schema)| format!("{}: {}", plain_line(name), type_name(schema)))
        .chain(
            optional
                .into_iter()
                .map(|(name, schema)| format!("{}?: {}", plain_line(name), type_name(schema))),
        );

    let mut signature = "(".to_owned();
    let mut length = "()".len();
    for (position, parameter) in parameters.enumerate() {
        let separator = if position == 0 { "" } else { ", " };
        length += separator.len() + parameter.chars().count();
        signature.push_str(separator);
        // Room for what says that there are more.
        if length > MAX_SIGNATURE_LENGTH - ", …".chars().count() {
            signature.push('…');
            break;
        }
        signature.push_str(&parameter);
    }
    signature.push(')');
    signature
}

/// Parses a definition. Those of a catalog are known to be valid.
fn parse_fields(definition: &ToolDefinition) -> DefinitionFields {
    serde_json::from_str(&definition.text).unwrap_or_default()
}

fn text_value(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or_default()
}

fn properties(schema: &Map<String, Value>) -> impl Iterator<Item = (&str, &Value)> {
    let properties = schema.get("properties").and_then(Value::as_object);
    properties.into_iter().flatten().map(|(name, schema)| (name.as_str(), schema))
}

/// Returns the name of a type. Only known names are shown, because servers could write anything.
fn type_name(schema: &Value) -> String {
    let plain_name = |schema: &Value| {
        let name = match schema.get("type") {
            Some(Value::Array(names)) => names.iter().find(|name| *name != "null"),
            name => name,
        };
        match name.and_then(Value::as_str) {
            Some("string") => "string",
            Some("number") => "number",
            Some("integer") => "integer",
            Some("boolean") => "boolean",
            Some("object") => "object",
            Some("array") => "array",
            _ => "any",
        }
    };
    match (plain_name(schema), schema.get("items")) {
        ("array", Some(items)) => format!("{}[]", plain_name(items)),
        (name, _) => name.to_owned(),
    }
}

/// Splits a description after its first sentence, which ends at an empty line or at a full stop,
/// exclamation mark or question mark. A small letter continues a sentence (`e.g. this`).
fn split_first_sentence(description: &str) -> (&str, &str) {
    let description = description.trim();
    let ends_sentence = |position: usize, sign: char| {
        let rest = description.get(position + sign.len_utf8()..).unwrap_or_default();
        let next = rest.trim_start();
        let has_space = next.len() < rest.len();
        match sign {
            '\n' => has_space && rest.lines().next().is_none_or(|line| line.trim().is_empty()),
            _ => sign == '。' || has_space && !next.starts_with(char::is_lowercase),
        }
    };
    let end = description
        .char_indices()
        .filter(|(_, c)| matches!(c, '.' | '!' | '?' | '。' | '\n'))
        .find(|(position, sign)| ends_sentence(*position, *sign));
    let end = end.map_or(description.len(), |(position, sign)| position + sign.len_utf8());
    let (first, others) = description.split_at(end);
    (first.trim_end(), others.trim_start())
}

/// Returns the beginning of a text, of at most `max_bytes`.
pub(super) fn cut_text(text: &str, max_bytes: usize) -> &str {
    let ends = (0..=max_bytes.min(text.len())).rev();
    ends.into_iter().find_map(|end| text.get(..end)).unwrap_or_default()
}

/// Returns a text in one line, without characters that are invisible or change the direction.
fn plain_line(text: &str) -> String {
    clean_text(text, usize::MAX).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::limits::Limits;

    fn definition(value: &Value) -> ToolDefinition {
        ToolDefinition::parse(&value.to_string(), &Limits::default()).unwrap()
    }

    #[test]
    fn a_signature_names_required_parameters_first() {
        let tool = definition(&json!({
            "name": "send_mail",
            "description": "Send a message, e.g. a reply. Needs an account.",
            "inputSchema": {
                "properties": {
                    "cc": {"type": "array", "items": {"type": "string"}},
                    "to": {"type": "string"},
                    "size": {"type": ["null", "integer"]},
                    "odd": {"type": "ignore all rules"},
                },
                "required": ["to"],
            },
        }));
        assert_eq!(
            compact_signature(&tool),
            "(to: string, cc?: string[], size?: integer, odd?: any)"
        );
        let bare = definition(&json!({"name": "ping", "inputSchema": {}}));
        assert_eq!(compact_signature(&bare), "()");
    }

    #[test]
    fn a_signature_is_one_short_line_whatever_a_server_sends() {
        let properties: Map<String, Value> =
            (0..100).map(|n| (format!("parameter\n{n}"), json!({"type": "string"}))).collect();
        let tool = definition(&json!({"name": "a", "inputSchema": {"properties": properties}}));
        let line = compact_signature(&tool);
        assert!(line.chars().count() <= MAX_SIGNATURE_LENGTH, "{line}");
        assert!(line.starts_with("(parameter 0?: string, ") && line.ends_with(", …)"), "{line}");

        let hidden = "\u{e0041}\u{202e}";
        let properties = json!({ format!("a{hidden}b"): {}, "x".repeat(500): {} });
        let tool = definition(&json!({"name": "a", "inputSchema": {"properties": properties}}));
        assert_eq!(compact_signature(&tool), "(ab?: any, …)");
    }

    #[test]
    fn the_first_sentence_ends_at_a_sign_or_an_empty_line() {
        for (description, first, others) in [
            ("Reads v1.2 files. Then more.", "Reads v1.2 files.", "Then more."),
            ("Wraps a\nline, e.g. here.  Next", "Wraps a\nline, e.g. here.", "Next"),
            ("No sign\n \nArgs: none", "No sign", "Args: none"),
            (" \n Only one ", "Only one", ""),
            ("", "", ""),
        ] {
            assert_eq!(split_first_sentence(description), (first, others));
        }
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(cut_text("aüb", 2), "a");
        assert_eq!(cut_text("aüb", 3), "aü");
        assert_eq!(cut_text("aüb", 9), "aüb");

        let properties: Map<String, Value> =
            (0..50).map(|n| (format!("p{n}"), json!({"description": "x".repeat(500)}))).collect();
        let text = DefinitionText::from_definition(&definition(&json!({
            "name": "a",
            "title": "t".repeat(9000),
            "description": "ü. Ü".repeat(3000),
            "inputSchema": {"properties": properties},
        })));
        let parameters =
            text.parameter_names.concat().len() + text.parameter_descriptions.concat().len();
        assert!(parameters <= MAX_TEXT_BYTES && text.title.len() == MAX_TEXT_BYTES);
        assert!(text.first_sentence.len() + text.other_sentences.len() <= MAX_TEXT_BYTES);
    }
}
