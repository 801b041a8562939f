//! Errors in config files, reported with file, line, column, a caret and the likely intended word.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::parse::key_spans::line_number;
use crate::base::suggest::suggest_name;
use crate::base::{Error, Kind};
use crate::redact::secret::is_sensitive;

/// Key of the error fact that names the config key it is about.
pub(super) const KEY_FACT: &str = "key";

/// An error at a position in a config file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    pub file: PathBuf,
    pub line: usize,
    pub column: usize,
    /// Path of the key that it is about; empty if the text cannot be parsed that far.
    pub key: String,
    /// The tool that is not available because of it, if that is the only consequence.
    pub tool: Option<String>,
    pub message: String,
    pub hint: String,
    /// Message and hint without any value of the file, for readers other than its owner.
    pub without_value: ValueFreeText,
    /// The line with a caret under it.
    pub picture: String,
}

/// Message and hint that quote no value of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueFreeText {
    pub message: String,
    pub hint: String,
}

impl ValueFreeText {
    /// Returns texts for an error whose own message may quote the file.
    fn new_generic() -> Self {
        ValueFreeText {
            message: "this is not valid".to_owned(),
            hint: "Fix the config file.".to_owned(),
        }
    }
}

impl ConfigError {
    /// Creates an error about the text at `span`.
    pub fn at_span(
        path: &Path,
        text: &str,
        span: Range<usize>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        ConfigError::about_key("", (path, text), span, message, hint)
    }

    /// Creates an error about a key, whose name also decides whether its value may be shown.
    pub fn about_key(
        key: &str,
        (path, text): (&Path, &str),
        span: Range<usize>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        let position = FilePosition::from_span(text, span, key);
        ConfigError {
            file: path.to_owned(),
            line: position.line,
            column: position.column,
            key: key.to_owned(),
            tool: None,
            message: message.into(),
            hint: hint.into(),
            without_value: ValueFreeText::new_generic(),
            picture: position.picture,
        }
    }

    /// Creates an error from one that the TOML parser reported at a key.
    pub fn from_toml(
        key: &str,
        (path, text): (&Path, &str),
        span: Range<usize>,
        error: &toml::de::Error,
    ) -> Self {
        let (message, hint) = translate_message(
            key,
            error.message(),
            FilePosition::from_span(text, span.clone(), key).is_secret,
        );
        let without_value = translate_message(key, error.message(), true);
        ConfigError {
            without_value: ValueFreeText { message: without_value.0, hint: without_value.1 },
            ..ConfigError::about_key(key, (path, text), span, message, hint)
        }
    }

    /// Formats position and message on one line.
    pub fn to_line(&self) -> String {
        format!("{}:{}:{}: {}", self.file.display(), self.line, self.column, self.message)
    }

    /// Converts it to an error for the caller.
    pub fn into_error(self) -> Error {
        let error =
            Error::new(Kind::InvalidArguments, format!("{}\n{}", self.to_line(), self.picture));
        let error = if self.key.is_empty() { error } else { error.with_fact("key", self.key) };
        error
            .with_reason("bad_config")
            .with_fact("summary", self.without_value.message)
            .with_fact("remedy", self.without_value.hint)
            .with_fact("file", self.file.display().to_string())
            .with_fact("line", self.line)
            .with_fact("column", self.column)
            .with_fact("fault", self.message)
            .with_hint(self.hint)
    }
}

/// Position of a span in a config file, with its line drawn.
pub(super) struct FilePosition {
    pub line: usize,
    pub column: usize,
    pub picture: String,
    is_secret: bool,
}

impl FilePosition {
    /// Locates a span and draws its line.
    pub fn from_span(text: &str, span: std::ops::Range<usize>, key: &str) -> FilePosition {
        let start = (0..=span.start.min(text.len()))
            .rev()
            .find(|index| text.is_char_boundary(*index))
            .unwrap_or(0);
        let line_start = text[..start].rfind('\n').map_or(0, |index| index + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |index| start + index);
        let line = line_number(text, line_start);
        let line_text = &text[line_start..line_end];
        let is_secret =
            mentions_secret(line_text) || mentions_secret(key) || is_variable_key(key) || {
                // In a multi-line string or list, the key is on an earlier line.
                let opening = text[..line_start].lines().rev().find(|line| line.contains('='));
                !line_text.contains('=')
                    && !line_text.trim_start().starts_with('[')
                    && opening.is_some_and(mentions_secret)
            };
        // A line that may contain a secret is shown only up to its key: errors end up in logs.
        let shown_line = match line_text.find('=') {
            _ if !is_secret || line_text.trim_start().starts_with('[') => line_text.to_owned(),
            Some(equals) => format!("{}= …", &line_text[..equals]),
            None => format!("{}…", &line_text[..line_text.len() - line_text.trim_start().len()]),
        };
        let shown_line: String =
            shown_line.chars().take(160).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let prefix_width = text[line_start..start].chars().count();
        let span_end = (start..=span.end.clamp(start, line_end))
            .rev()
            .find(|index| text.is_char_boundary(*index));
        let width = text[start..span_end.unwrap_or(start)].chars().count().max(1);
        let indent = prefix_width.min(shown_line.chars().count());
        let carets = width.min(shown_line.chars().count().saturating_sub(indent).max(1));
        let gutter = " ".repeat(line.to_string().len());
        let picture = format!(
            "{line} | {shown_line}\n{gutter} | {}{}",
            " ".repeat(indent),
            "^".repeat(carets)
        );
        FilePosition { line, column: prefix_width + 1, picture, is_secret }
    }
}

fn mentions_secret(line: &str) -> bool {
    // Checks the whole line, since an inline table has keys on both sides of its first `=`.
    let lower = line.to_ascii_lowercase();
    is_sensitive(&lower) || lower.contains("key")
}

/// Returns whether a key is a variable of a command: whatever its name, its value may be a secret.
fn is_variable_key(key: &str) -> bool {
    key.starts_with("mcp.") && key.contains(".env.")
}

/// Translates the parser's message: it speaks of fields and variants, an operator of keys and
/// values.
fn translate_message(key: &str, message: &str, is_secret: bool) -> (String, String) {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let first_line = message.lines().next().unwrap_or_default();
    let expected = first_line.split_once(", expected ").map(|(_, expected)| expected);
    match quoted.split_first() {
        Some((name, known)) if first_line.starts_with("unknown field") => (
            format!("there is no key `{}` here", shorten_name(name)),
            unknown_key_hint(key, name, known),
        ),
        Some((name, known)) if first_line.starts_with("unknown variant") => {
            let problem = if is_secret {
                "the value does not fit".to_owned()
            } else {
                format!("`{}` is not a value of this key", shorten_name(name))
            };
            (problem, suggestion_hint(name, known))
        }
        _ if first_line.starts_with("duplicate field") => {
            let problem = format!(
                "`{}` is set twice, in two spellings",
                quoted.first().copied().unwrap_or_default()
            );
            (problem, "Keep one of them.".to_owned())
        }
        _ => match (expected, is_secret) {
            (Some(expected), true) => {
                ("the value does not fit".to_owned(), expected_value_hint(key, expected))
            }
            (None, true) => ("the value does not fit".to_owned(), key_hint(key)),
            (Some(expected), false) => {
                let found_value = first_line.split(", expected ").next().unwrap_or(first_line);
                let found_value = found_value
                    .split_once(": ")
                    .map_or(found_value, |(_, found_value)| found_value);
                (
                    format!("{} is not what this key takes", shorten_name(found_value)),
                    expected_value_hint(key, expected),
                )
            }
            (None, false) => (first_line.to_owned(), key_hint(key)),
        },
    }
}

/// Describes the expected kind of value in ordinary words.
fn expected_value_hint(key: &str, expected: &str) -> String {
    let expected = match expected.trim_start_matches("a ") {
        "i64" | "u64" => "a whole number",
        "path string" => "a path, in quotes",
        "string" => "text, in quotes",
        "boolean" => "`true` or `false`",
        "sequence" => "a list, `[…]`",
        type_name if type_name.starts_with("struct ") || type_name == "map" => "a table",
        _ => expected,
    };
    match super::key_docs::describe_key(key) {
        Some(meaning) => format!("It takes {expected}. {meaning}"),
        None => format!("It takes {expected}."),
    }
}

fn key_hint(key: &str) -> String {
    super::key_docs::describe_key(key).unwrap_or_else(|| "Correct the value.".to_owned())
}

fn unknown_key_hint(key: &str, name: &str, known: &[&str]) -> String {
    if name == "jwt_secret" {
        return "Secrets are not kept in config.toml: set MCP_AUTH_JWT_SECRET, or name a file with `jwt_secret_file`."
            .to_owned();
    }
    // At the top level there are also the tables of commands, which are parsed separately.
    let mut known = known.to_vec();
    if !key.contains('.') {
        known.push(super::parse::raw::COMMANDS_TABLE);
    }
    match (suggest_name(name, &known), super::key_docs::sections_with_key(name).as_slice()) {
        (None, [section]) => format!("It belongs under [{section}]."),
        (None, [one, other]) => format!("It belongs under [{one}] or [{other}]."),
        _ => suggestion_hint(name, &known),
    }
}

fn suggestion_hint(name: &str, known: &[&str]) -> String {
    match suggest_name(name, known) {
        Some(suggestion) => format!("Did you mean `{suggestion}`?"),
        None => format!("Known here: {}.", known.join(", ")),
    }
}

fn shorten_name(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::super::parse::config_text;
    use super::*;

    fn fault(text: &str) -> Error {
        config_text::parse_strict(text, Path::new("/etc/rf.toml")).unwrap_err()
    }

    #[test]
    fn an_unknown_key_is_named_with_its_place_and_the_likely_word() {
        let error = fault("tools = \"all\"\n\n[approval]\nexpiry = 3\n");
        assert_eq!(
            error.message(),
            "/etc/rf.toml:4:1: there is no key `expiry` here\n4 | expiry = 3\n  | ^^^^^^"
        );
        assert_eq!(error.hint_text(), Some("Did you mean `expiry_s`?"));
        let error = fault("[upstreams.x]\nurl = \"y\"\n");
        assert!(
            error.message().starts_with("/etc/rf.toml:1:2: there is no key `upstreams`"),
            "{error}"
        );
    }

    #[test]
    fn a_bad_value_is_named_with_its_place() {
        let error = fault("tools = \"browser\"");
        assert!(
            error.message().starts_with("/etc/rf.toml:1:9: `browser` is not a value of this key"),
            "{error}"
        );
        assert_eq!(error.hint_text(), Some("Known here: core, shell, all."));
        let error = fault("[limits]\ngrace_ms = -4\n");
        assert!(
            error.message().starts_with("/etc/rf.toml:2:12: -4 is not a number from 0 to 60000"),
            "{error}"
        );
        let error = fault("[http]\nallowed_origins = [\"https://a\", \"*\"]\n");
        assert!(error.message().starts_with("/etc/rf.toml:2:33: an origin is written"), "{error}");
    }

    #[test]
    fn what_does_not_parse_gets_a_caret() {
        let error = fault("tools = \n");
        assert!(error.message().starts_with("/etc/rf.toml:1:"), "{error}");
        assert!(error.message().contains("1 | tools = \n  | "), "{error}");
        assert!(error.message().ends_with('^'), "{error}");
        let error = fault("[limits]\n[limits]\n");
        assert!(error.message().starts_with("/etc/rf.toml:2:"), "{error}");
        let error = fault("tools = \"ü\" x");
        assert!(error.message().starts_with("/etc/rf.toml:1:13:"), "{error}");
    }

    #[test]
    fn a_secret_written_into_the_file_is_not_repeated() {
        for text in [
            "[auth]\njwt_secret = \"hunter2hunter2\"\n",
            "[auth]\njwt_secret_file = [\"hunter2hunter2\"]\n",
            "[auth]\njwt_secret_file = \"hunter2hunter2\n",
            "auth = { jwt_secret = \"hunter2hunter2\" }\n",
        ] {
            let error = fault(text);
            assert!(
                !format!("{error:?}{}", error.hint_text().unwrap_or_default()).contains("hunter2"),
                "{error:?}"
            );
        }
        assert!(
            fault("[auth]\njwt_secret = \"x\"\n")
                .hint_text()
                .unwrap()
                .contains("MCP_AUTH_JWT_SECRET")
        );
    }

    #[derive(Debug, Default, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Sample {
        #[serde(alias = "amount")]
        number: u64,
        signed: i64,
        text: String,
        path: PathBuf,
        flag: bool,
        list: Vec<String>,
        table: std::collections::BTreeMap<String, String>,
        section: SampleSection,
        choice: SampleChoice,
    }

    #[derive(Debug, Default, PartialEq, serde::Deserialize)]
    #[serde(default)]
    struct SampleSection {
        key: String,
    }

    #[derive(Debug, Default, PartialEq, serde::Deserialize)]
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
                "Known here: one.",
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
                "string \"x\" is not what this key takes",
                "It takes a whole number.",
            ),
            (
                "signed = true",
                "expected i64",
                "boolean `true` is not what this key takes",
                "It takes a whole number.",
            ),
            (
                "text = 1",
                "expected a string",
                "integer `1` is not what this key takes",
                "It takes text, in quotes.",
            ),
            (
                "path = 1",
                "expected path string",
                "integer `1` is not what this key takes",
                "It takes a path, in quotes.",
            ),
            (
                "flag = 1",
                "expected a boolean",
                "integer `1` is not what this key takes",
                "It takes `true` or `false`.",
            ),
            (
                "list = 1",
                "expected a sequence",
                "integer `1` is not what this key takes",
                "It takes a list, `[…]`.",
            ),
            (
                "table = 1",
                "expected a map",
                "integer `1` is not what this key takes",
                "It takes a table.",
            ),
            (
                "section = 1",
                "expected struct ",
                "integer `1` is not what this key takes",
                "It takes a table.",
            ),
            (
                "choice = 1",
                "wanted string or table",
                "wanted string or table",
                "Correct the value.",
            ),
        ] {
            let error = toml::from_str::<Sample>(text).unwrap_err();
            assert!(error.message().contains(phrase), "{text}: {}", error.message());
            assert_eq!(
                translate_message("sample.key", error.message(), false),
                (message.to_owned(), hint.to_owned()),
                "{}",
                error.message()
            );
        }
    }
}
