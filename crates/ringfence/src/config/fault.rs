//! Errors in config files, reported with file, line, column, a caret and the likely intended word.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::parse::key_spans::line_number;
use super::parse::value_errors::{FoundValue, ValueDisplay, ValueType, translate_message};
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

    /// Creates an error from one that the TOML parser reported at a key, about a value of this type.
    pub fn from_toml(
        key: &str,
        (path, text): (&Path, &str),
        span: Range<usize>,
        value_type: ValueType,
        error: &toml::de::Error,
    ) -> Self {
        let is_secret = FilePosition::from_span(text, span.clone(), key).is_secret;
        let display = match is_secret {
            true => ValueDisplay::Secret,
            false => ValueDisplay::AsWritten(text.get(span.clone()).unwrap_or_default()),
        };
        let translate =
            |display| translate_message(key, error.message(), FoundValue { value_type, display });
        let (message, hint) = translate(display);
        let without_value = translate(ValueDisplay::Omitted);
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

/// Returns whether a key is a variable of a command or server: whatever its name, its value may be
/// a secret.
fn is_variable_key(key: &str) -> bool {
    (key.starts_with("mcp.") || key.starts_with("upstream.")) && key.contains(".env.")
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
        let error = fault("[servers.x]\nurl = \"y\"\n");
        assert!(
            error.message().starts_with("/etc/rf.toml:1:2: there is no key `servers`"),
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
        assert_eq!(error.hint_text(), Some("Valid values: core, shell, all."));
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
}
