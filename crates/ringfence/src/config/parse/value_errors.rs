//! Errors about keys and values that the TOML parser rejects, in an operator's words: the parser
//! speaks of fields, variants and sequences.

use serde_json::Value;
use toml::de::DeValue;

use super::raw::COMMANDS_TABLE;
use super::upstream_section::UPSTREAMS_TABLE;
use crate::base::suggest::suggest_name;
use crate::config::key_docs::{describe_key, find_key, sections_with_key};
use crate::config::values::ProfileSetting;

/// Type of a value in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    Text,
    Integer,
    Float,
    Boolean,
    Date,
    List,
    Table,
}

impl ValueType {
    /// Returns the type of a parsed value.
    pub fn from_toml(value: &DeValue<'_>) -> ValueType {
        match value {
            DeValue::String(_) => ValueType::Text,
            DeValue::Integer(_) => ValueType::Integer,
            DeValue::Float(_) => ValueType::Float,
            DeValue::Boolean(_) => ValueType::Boolean,
            DeValue::Datetime(_) => ValueType::Date,
            DeValue::Array(_) => ValueType::List,
            DeValue::Table(_) => ValueType::Table,
        }
    }
}

/// How an error shows the value that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueDisplay<'a> {
    AsWritten(&'a str),
    /// It may be a secret: the message says that it is not shown, and why.
    Secret,
    /// The reader is not the file's owner, and does not expect it.
    Omitted,
}

/// The value that the parser rejected.
#[derive(Debug, Clone, Copy)]
pub struct FoundValue<'a> {
    pub value_type: ValueType,
    pub display: ValueDisplay<'a>,
}

impl FoundValue<'_> {
    /// Describes the value with its type.
    fn describe(self) -> String {
        let (article, noun) = match self.value_type {
            ValueType::List => return "a list".to_owned(),
            ValueType::Table => return "a table".to_owned(),
            ValueType::Text => ("", "text"),
            ValueType::Integer => ("an ", "integer"),
            ValueType::Float => ("a ", "number"),
            ValueType::Boolean => ("a ", "boolean"),
            ValueType::Date => ("a ", "date"),
        };
        match self.display {
            // Text is written in quotes already.
            ValueDisplay::AsWritten(value) if noun == "text" => {
                format!("{noun} {}", shorten_name(value))
            }
            ValueDisplay::AsWritten(value) => format!("{noun} `{}`", shorten_name(value)),
            ValueDisplay::Secret | ValueDisplay::Omitted => format!("{article}{noun}"),
        }
    }

    /// Returns the end of a message that leaves the value out.
    fn secrecy_note(self) -> &'static str {
        match self.display {
            ValueDisplay::Secret => " (not shown, because it may be a secret)",
            ValueDisplay::AsWritten(_) | ValueDisplay::Omitted => "",
        }
    }
}

/// Translates the parser's message about a key to a message and a hint.
pub fn translate_message(key: &str, message: &str, found: FoundValue<'_>) -> (String, String) {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let first_line = message.lines().next().unwrap_or_default();
    let expected = first_line.split_once(", expected ").map(|(_, expected)| expected);
    let is_as_written = matches!(found.display, ValueDisplay::AsWritten(_));
    match (quoted.split_first(), expected) {
        (Some((name, known)), _) if first_line.starts_with("unknown field") => (
            format!("there is no key `{}` here", shorten_name(name)),
            unknown_key_hint(key, name, known),
        ),
        (Some((name, known)), _) if first_line.starts_with("unknown variant") => {
            let problem = match is_as_written {
                true => format!("`{}` is not a value of this key", shorten_name(name)),
                false => format!("this value is not valid{}", found.secrecy_note()),
            };
            (problem, suggestion_hint(name, "Valid values", &offered_values(known)))
        }
        (Some((name, _)), _) if first_line.starts_with("duplicate field") => {
            (format!("`{name}` is set twice, in two spellings"), "Keep one of them.".to_owned())
        }
        // A value that must be one of a few words has another type.
        _ if first_line.starts_with("wanted ") => wrong_type("a string", key, found),
        (_, Some(expected)) => wrong_type(expected, key, found),
        (_, None) if is_as_written => (first_line.to_owned(), key_hint(key)),
        (_, None) => (format!("this value is not valid{}", found.secrecy_note()), key_hint(key)),
    }
}

/// Returns message and hint for a list in place of a section.
pub fn listed_section(key: &str) -> (String, String) {
    let found = FoundValue { value_type: ValueType::List, display: ValueDisplay::Omitted };
    wrong_type("a map", key, found)
}

/// Returns message and hint for a value of another type than the parser expects.
fn wrong_type(expected: &str, key: &str, found: FoundValue<'_>) -> (String, String) {
    let unquote_hint =
        if found.value_type == ValueType::Text { "Write it without quotes." } else { "" };
    let table_hint = format!("Write its keys below `[{key}]`.");
    let (expected, how_to_write) = match expected.trim_start_matches("a ") {
        "i64" | "u64" => ("a whole number", unquote_hint),
        "path string" => ("a path", "Write the path in quotes."),
        "string" => ("text", "Write text in quotes."),
        "boolean" => ("`true` or `false`", unquote_hint),
        "sequence" => ("a list", "Write items between `[` and `]`."),
        name if name.starts_with("struct ") || name == "map" => ("a table", &*table_hint),
        _ => (expected, ""),
    };
    let schema = find_key(key);
    let message = match (found.value_type, found.display) {
        // It does not fit into 64 bits.
        (ValueType::Integer, ValueDisplay::AsWritten(number)) if expected == "a whole number" => {
            let bound = |name| schema.and_then(|schema| schema.get(name)).and_then(Value::as_u64);
            let range = bound("minimum")
                .zip(bound("maximum"))
                .map_or("this range".to_owned(), |(low, high)| format!("{low} to {high}"));
            format!("{} is not a number from {range}", shorten_name(number))
        }
        _ => {
            let (description, note) = (found.describe(), found.secrecy_note());
            match key_name(key) {
                Some(name) => format!("`{name}` must be {expected}, not {description}{note}"),
                None => format!("expected {expected}, found {description}{note}"),
            }
        }
    };
    let words: Vec<&str> = (schema.into_iter())
        .flat_map(|schema| [schema.get("enum"), schema.pointer("/items/enum")])
        .flatten()
        .filter_map(Value::as_array)
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let instruction = match words.as_slice() {
        [] => how_to_write.to_owned(),
        words => format!("Valid values: {}.", offered_values(words).join(", ")),
    };
    let hint = match (instruction.as_str(), describe_key(key)) {
        ("", None) => "Correct the value.".to_owned(),
        ("", Some(meaning)) => meaning,
        (instruction, None) => instruction.to_owned(),
        (instruction, Some(meaning)) => format!("{instruction} {meaning}"),
    };
    (message, hint)
}

/// Returns the name of the key at a path; `None` for an item of a list.
fn key_name(path: &str) -> Option<&str> {
    if path.is_empty() || path.ends_with(']') {
        return None;
    }
    // A name in quotes may contain dots.
    match path.strip_suffix('"').and_then(|rest| rest.rfind(".\"")) {
        Some(start) => Some(&path[start + 1..]),
        None => path.rsplit('.').next(),
    }
}

fn key_hint(key: &str) -> String {
    describe_key(key).unwrap_or_else(|| "Correct the value.".to_owned())
}

fn unknown_key_hint(key: &str, name: &str, known: &[&str]) -> String {
    if name == "jwt_secret" {
        return "Secrets are not kept in config.toml: set MCP_AUTH_JWT_SECRET, or name a file with `jwt_secret_file`."
            .to_owned();
    }
    // At the top level there are also tables that are parsed separately.
    let mut known = known.to_vec();
    if !key.contains('.') {
        known.extend([COMMANDS_TABLE, UPSTREAMS_TABLE]);
    }
    match (suggest_name(name, &known), sections_with_key(name).as_slice()) {
        (None, [section]) => format!("It belongs under [{section}]."),
        (None, [one, other]) => format!("It belongs under [{one}] or [{other}]."),
        (None, [one, two, other]) => format!("It belongs under [{one}], [{two}] or [{other}]."),
        _ => suggestion_hint(name, "Valid keys", &known),
    }
}

/// Returns the values without those that this system refuses.
fn offered_values<'a>(known: &[&'a str]) -> Vec<&'a str> {
    let is_refused =
        |name: &str| cfg!(not(target_os = "macos")) && name == ProfileSetting::Seatbelt.name();
    known.iter().copied().filter(|name| !is_refused(name)).collect()
}

fn suggestion_hint(name: &str, heading: &str, known: &[&str]) -> String {
    match suggest_name(name, known) {
        Some(suggestion) => format!("Did you mean `{suggestion}`?"),
        None => format!("{heading}: {}.", known.join(", ")),
    }
}

/// Returns the first line of a name or value, shortened: the next lines may contain secrets.
fn shorten_name(name: &str) -> String {
    const MAX_CHARS: usize = 64;
    let line = name.lines().next().unwrap_or_default();
    let ellipsis = if line != name || line.chars().nth(MAX_CHARS).is_some() { "…" } else { "" };
    let shown: String = line.chars().filter(|c| !c.is_control()).take(MAX_CHARS).collect();
    shown + ellipsis
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use serde::Deserialize;
    use toml::de::DeTable;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Sample {
        #[serde(alias = "amount")]
        number: u64,
        signed: i64,
        text: String,
        path: PathBuf,
        flag: bool,
        list: Vec<String>,
        table: BTreeMap<String, String>,
        section: SampleSection,
        choice: SampleChoice,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct SampleSection {
        key: String,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum SampleChoice {
        #[default]
        One,
    }

    /// The phrases are English text of `toml` and `serde`. If an update changes one, this test
    /// fails instead of a hint getting lost.
    #[test]
    fn phrases_of_the_parser_are_translated() {
        for (text, phrase, message, hint) in [
            (
                "nummer = 1",
                "unknown field",
                "there is no key `nummer` here",
                "Did you mean `number`?",
            ),
            (
                "choice = \"two\"",
                "unknown variant",
                "`two` is not a value of this key",
                "Valid values: one.",
            ),
            (
                "number = 1\namount = 1",
                "duplicate field",
                "`number` is set twice, in two spellings",
                "Keep one of them.",
            ),
            (
                "number = \"x\"",
                "expected u64",
                "`number` must be a whole number, not text \"x\"",
                "Write it without quotes.",
            ),
            (
                "signed = true",
                "expected i64",
                "`signed` must be a whole number, not boolean `true`",
                "Correct the value.",
            ),
            (
                "text = 0x10",
                "expected a string",
                "`text` must be text, not integer `0x10`",
                "Write text in quotes.",
            ),
            (
                "path = 1.50",
                "expected path string",
                "`path` must be a path, not number `1.50`",
                "Write the path in quotes.",
            ),
            (
                "flag = 2020-01-01",
                "expected a boolean",
                "`flag` must be `true` or `false`, not date `2020-01-01`",
                "Correct the value.",
            ),
            (
                "list = { a = 1 }",
                "expected a sequence",
                "`list` must be a list, not a table",
                "Write items between `[` and `]`.",
            ),
            (
                "table = [1]",
                "expected a map",
                "`table` must be a table, not a list",
                "Write its keys below `[table]`.",
            ),
            (
                "section = 1",
                "expected struct ",
                "`section` must be a table, not integer `1`",
                "Write its keys below `[section]`.",
            ),
            (
                "choice = 1",
                "wanted string or table",
                "`choice` must be text, not integer `1`",
                "Write text in quotes.",
            ),
            (
                "choice = {}",
                "wanted exactly 1 element",
                "`choice` must be text, not a table",
                "Write text in quotes.",
            ),
        ] {
            let error = toml::from_str::<Sample>(text).unwrap_err();
            assert!(error.message().contains(phrase), "{text}: {}", error.message());
            let table = DeTable::parse(text).unwrap();
            let (key, value) = table.get_ref().iter().next().unwrap();
            let found = FoundValue {
                value_type: ValueType::from_toml(value.get_ref()),
                display: ValueDisplay::AsWritten(&text[value.span()]),
            };
            assert_eq!(
                translate_message(key.get_ref(), error.message(), found),
                (message.to_owned(), hint.to_owned()),
                "{}",
                error.message()
            );
        }
    }

    #[test]
    fn a_secret_is_left_out_and_the_message_says_so() {
        let translate = |message: &str, display| {
            let found = FoundValue { value_type: ValueType::Text, display };
            translate_message("secrets.keyring", message, found).0
        };
        for (parser_message, secret, omitted) in [
            (
                "invalid type: string \"hunter2\", expected a boolean",
                "`keyring` must be `true` or `false`, not text (not shown, because it may be a secret)",
                "`keyring` must be `true` or `false`, not text",
            ),
            (
                "unknown variant `hunter2`, expected `one` or `two`",
                "this value is not valid (not shown, because it may be a secret)",
                "this value is not valid",
            ),
            (
                "hunter2 is not a name",
                "this value is not valid (not shown, because it may be a secret)",
                "this value is not valid",
            ),
        ] {
            assert_eq!(translate(parser_message, ValueDisplay::Secret), secret);
            assert_eq!(translate(parser_message, ValueDisplay::Omitted), omitted);
        }
    }

    #[test]
    fn only_the_first_line_of_a_value_is_shown() {
        assert_eq!(shorten_name("\"\"\"one\ntwo\"\"\""), "\"\"\"one…");
        assert_eq!(shorten_name(&"x".repeat(65)), format!("{}…", "x".repeat(64)));
        assert_eq!(shorten_name("x\u{1b}y"), "xy");
    }

    #[test]
    fn a_key_is_named_by_its_last_part() {
        for (path, name) in [
            ("tools", Some("tools")),
            ("limits.grace_ms", Some("grace_ms")),
            ("mcp.x.env.\"a.b\"", Some("\"a.b\"")),
            ("surface.allow[2]", None),
            ("", None),
        ] {
            assert_eq!(key_name(path), name, "{path}");
        }
    }
}
