//! Errors in text that is not TOML, and duplicate keys.

use std::path::Path;

use toml::de::{DeTable, Error};

use super::key_spans::{KeySpans, child_path, line_number};
use crate::config::fault::ConfigError;

const DUPLICATE_PREFIX: &str = "duplicate key";

/// Maximum number of errors to report.
const MAX_ERRORS: usize = 50;

/// Returns whether the error is about a duplicate key.
pub fn is_duplicate_key(error: &Error) -> bool {
    error.message().starts_with(DUPLICATE_PREFIX)
}

/// Converts the parser's errors, one for each line: later ones on the same line result from the
/// first.
pub fn convert_errors(path: &Path, text: &str, errors: &[Error]) -> Vec<ConfigError> {
    let mut config_errors: Vec<ConfigError> = Vec::new();
    for error in errors.iter().take(MAX_ERRORS) {
        let span = error.span().unwrap_or(0..0);
        let config_error = match is_duplicate_key(error) {
            true => duplicate_error(path, text, span),
            false => {
                let (message, hint) = reword_message(text, span.start, error.message());
                ConfigError::at_span(path, text, span, message, hint)
            }
        };
        // A list that is not closed causes an error on every following line, and a duplicate table
        // duplicates its keys.
        let is_consequence = |other: &ConfigError| {
            other.line == config_error.line
                || other.message == UNCLOSED_LIST
                || !other.key.is_empty() && config_error.key.starts_with(&format!("{}.", other.key))
        };
        if !config_errors.iter().any(is_consequence) {
            config_errors.push(config_error);
        }
    }
    config_errors
}

const UNCLOSED_LIST: &str = "a list is not closed, or a comma is missing in it";

/// Rewords the parser's message, without its internal terms.
fn reword_message(text: &str, offset: usize, message: &str) -> (String, &'static str) {
    let first_line = message.lines().next().unwrap_or_default();
    let problem = first_line.split(", expected").next().unwrap_or(first_line);
    let is_line_end = text
        .get(offset..)
        .and_then(|rest| rest.lines().next())
        .is_none_or(|rest| rest.trim().is_empty());
    match () {
        () if problem.contains("must be quoted") && is_line_end => {
            ("there is no value".to_owned(), "Write one after `=`, or remove the line.")
        }
        () if problem.contains("must be quoted") => {
            (problem.to_owned(), "Put text in quotes: `key = \"value\"`.")
        }
        () if problem.contains("missing comma") || problem.contains("array") => {
            (UNCLOSED_LIST.to_owned(), "Write items between `[` and `]`, separated by commas.")
        }
        () if problem.contains("string") => {
            ("the text is not closed".to_owned(), "End it with the quote that it began with.")
        }
        () if problem.contains("escape") => {
            (problem.to_owned(), "In \"…\" a backslash begins an escape; use '…' for literal text.")
        }
        () => (problem.to_owned(), "Correct the line."),
    }
}

/// Reports a duplicate key with the line of the first one.
fn duplicate_error(path: &Path, text: &str, span: std::ops::Range<usize>) -> ConfigError {
    let name = text.get(span.clone()).unwrap_or_default();
    let key = key_path_at(text, span.start, name);
    // The file as it was before the duplicate.
    let earlier_spans = KeySpans::from_text(&text[..find_line_start(text, span.start)]);
    let first = key
        .as_deref()
        .and_then(|key| earlier_spans.key_span(key))
        .map(|first| line_number(text, first.start));
    let message = match key.as_deref().and_then(|key| key.strip_prefix("mcp.")) {
        Some(tool) if !tool.contains('.') => {
            format!("there is already a tool named `{tool}`")
        }
        _ if is_table_header(text, span.start) => {
            format!("the table `{}` already exists", key.as_deref().unwrap_or(name))
        }
        _ => format!("`{name}` is already set"),
    };
    let hint = match first {
        Some(line) => {
            format!("The first is on line {line}: remove or rename one of them.")
        }
        None => "Remove or rename one of them.".to_owned(),
    };
    ConfigError::about_key(&key.unwrap_or_default(), (path, text), span, message, hint)
}

fn find_line_start(text: &str, offset: usize) -> usize {
    text[..offset].rfind('\n').map_or(0, |end| end + 1)
}

fn is_table_header(text: &str, offset: usize) -> bool {
    text[find_line_start(text, offset)..].trim_start().starts_with('[')
}

/// Returns the path of a duplicate key: below the last header before it, or in a header itself.
fn key_path_at(text: &str, offset: usize, name: &str) -> Option<String> {
    let header_path = |line: &str| {
        let table = DeTable::parse(line.trim()).ok()?.into_inner();
        let (mut path, mut table) = (String::new(), table);
        while let Some((key, value)) = table.into_iter().next() {
            path = child_path(&path, key.get_ref());
            let toml::de::DeValue::Table(inner) = value.into_inner() else { break };
            table = inner;
        }
        Some(path)
    };
    let start = find_line_start(text, offset);
    if is_table_header(text, offset) {
        return header_path(text[start..].lines().next()?);
    }
    let section = text[..start].lines().rev().find(|line| line.trim_start().starts_with('['));
    let section = section.map_or(Some(String::new()), header_path)?;
    Some(child_path(&section, name.trim_matches(['"', '\''])))
}

/// The phrases above are English text of the `toml` crate, not part of its interface. If an update
/// changes one, these tests fail instead of a hint getting lost.
#[cfg(test)]
mod tests {
    use super::*;

    fn first_message(text: &str) -> String {
        let (_, errors) = DeTable::parse_recoverable(text);
        errors.first().unwrap_or_else(|| panic!("{text}")).message().to_owned()
    }

    fn reworded(text: &str) -> (String, String) {
        let (_, errors) = DeTable::parse_recoverable(text);
        let faults = convert_errors(Path::new("/x.toml"), text, &errors);
        (faults[0].message.clone(), faults[0].hint.clone())
    }

    fn assert_phrase(text: &str, phrase: &str, message: &str, hint: &str) {
        let original = first_message(text);
        assert!(original.contains(phrase), "{text}: {original}");
        assert_eq!(reworded(text), (message.to_owned(), hint.to_owned()), "{original}");
    }

    #[test]
    fn duplicate_key_is_a_phrase_of_the_parser() {
        for text in ["a = 1\na = 2\n", "[a]\n[a]\n", "a = { b = 1, b = 2 }\n"] {
            let (_, errors) = DeTable::parse_recoverable(text);
            assert!(errors.iter().any(is_duplicate_key), "{errors:?}");
        }
        assert!(!DeTable::parse_recoverable("a = b\n").1.iter().any(is_duplicate_key));
    }

    #[test]
    fn must_be_quoted_is_a_phrase_of_the_parser() {
        let phrase = "must be quoted";
        let hint = "Write one after `=`, or remove the line.";
        assert_phrase("a = \n", phrase, "there is no value", hint);
        let hint = "Put text in quotes: `key = \"value\"`.";
        assert_phrase("a = b\n", phrase, "string values must be quoted", hint);
    }

    #[test]
    fn missing_comma_and_array_are_phrases_of_the_parser() {
        let hint = "Write items between `[` and `]`, separated by commas.";
        assert_phrase("a = [\"x\" \"y\"]\n", "missing comma", UNCLOSED_LIST, hint);
        assert_phrase("a = [1\n", "array", UNCLOSED_LIST, hint);
    }

    #[test]
    fn string_is_a_phrase_of_the_parser() {
        let hint = "End it with the quote that it began with.";
        for text in ["a = \"b\n", "a = 'b\n", "a = \"\"\"b\n"] {
            assert_phrase(text, "string", "the text is not closed", hint);
        }
    }

    #[test]
    fn escape_is_a_phrase_of_the_parser() {
        let hint = "In \"…\" a backslash begins an escape; use '…' for literal text.";
        assert_phrase("a = \"\\q\"\n", "escape", "missing escaped value", hint);
    }

    #[test]
    fn expected_ends_the_part_that_is_shown() {
        let original = first_message("a = \"\\q\"\n");
        assert!(original.contains(", expected"), "{original}");
        assert!(!reworded("a = \"\\q\"\n").0.contains("expected"));
    }
}
