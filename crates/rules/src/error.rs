//! Errors in a rules file, with their location.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Maximum width of a displayed line, around the relevant position.
const MAX_WIDTH: usize = 120;

/// A single error. Its text contains nothing that could control a terminal or forge a log line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesError {
    /// Name of the source file.
    pub file: String,
    /// Starts at one; zero if the error concerns the whole file.
    pub line: u32,
    /// In characters, starting at one; zero if the error concerns the whole file.
    pub column: u32,
    /// Description of the error.
    pub message: String,
    /// The line with a caret below the position; empty if the error concerns the whole file.
    pub excerpt: String,
}

/// A position in a text, counted from zero as the interpreter does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextSpan {
    pub line: usize,
    pub column: usize,
    /// Number of characters it covers on that line.
    pub width: usize,
}

impl RulesError {
    /// Creates an error about the whole file.
    pub fn for_file(file: &str, message: &str) -> RulesError {
        RulesError {
            file: replace_unprintable(file),
            line: 0,
            column: 0,
            message: replace_unprintable(message),
            excerpt: String::new(),
        }
    }

    /// Creates an error at a position in this text.
    pub(crate) fn at_span(file: &str, text: &str, span: TextSpan, message: &str) -> RulesError {
        let one_based = |number: usize| u32::try_from(number + 1).unwrap_or(u32::MAX);
        RulesError {
            file: replace_unprintable(file),
            line: one_based(span.line),
            column: one_based(span.column),
            message: replace_unprintable(message),
            excerpt: render_excerpt(text, span),
        }
    }

    /// Returns the location as `file:line:column`.
    pub fn location(&self) -> String {
        match self.line {
            0 => self.file.clone(),
            line => format!("{}:{line}:{}", self.file, self.column),
        }
    }
}

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  --> {}", self.message, self.location())?;
        if !self.excerpt.is_empty() {
            write!(f, "\n{}", self.excerpt)?;
        }
        Ok(())
    }
}

/// Renders the line with its number, and carets below the affected characters.
fn render_excerpt(text: &str, span: TextSpan) -> String {
    let Some(line) = text.lines().nth(span.line) else { return String::new() };
    let line: Vec<char> = replace_unprintable(line).chars().collect();
    // A long line is shown from slightly before the position.
    let start =
        if span.column + 1 >= MAX_WIDTH { span.column.saturating_sub(MAX_WIDTH / 4) } else { 0 };
    let visible: String = line.iter().skip(start).take(MAX_WIDTH).collect();
    let offset = span.column.saturating_sub(start);
    let available = visible.chars().count().saturating_sub(offset).max(1);
    let carets = "^".repeat(span.width.clamp(1, available));
    let number = (span.line + 1).to_string();
    let margin = " ".repeat(number.len());
    format!(
        "{margin} |\n{number} | {}\n{margin} | {}{carets}",
        visible.trim_end(),
        " ".repeat(offset)
    )
}

/// Replaces control characters one for one, so that the caret stays below the right character.
fn replace_unprintable(text: &str) -> String {
    let hidden = |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    text.chars()
        .map(|c| match c {
            '\t' => ' ',
            c if c.is_control() || hidden(c) => '\u{fffd}',
            c => c,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caret_stands_beneath_the_place() {
        let fault = RulesError::at_span(
            "a.rules",
            "x = 1\n\tfoo(bär)\n",
            TextSpan { line: 1, column: 5, width: 3 },
            "no bear",
        );
        assert_eq!(
            fault.to_string(),
            "no bear\n  --> a.rules:2:6\n  |\n2 |  foo(bär)\n  |      ^^^"
        );
    }

    #[test]
    fn a_long_line_is_shown_around_the_place() {
        let text = format!("{}here{}", "x".repeat(5000), "y".repeat(5000));
        let fault =
            RulesError::at_span("a", &text, TextSpan { line: 0, column: 5000, width: 4 }, "m");
        let lines: Vec<&str> = fault.excerpt.lines().collect();
        assert!(lines[1].len() < 200, "{}", fault.excerpt);
        assert_eq!(lines[1].find("here"), lines[2].find('^'));
        assert_eq!(fault.column, 5001);
    }

    #[test]
    fn text_of_a_file_cannot_drive_a_terminal() {
        let fault = RulesError::at_span(
            "a\u{1b}[2J",
            "\u{1b}]0;x\u{7}\u{202e}",
            TextSpan { line: 0, column: 0, width: 900 },
            "m\n\u{9b}",
        );
        assert!(!fault.to_string().contains(['\u{1b}', '\u{7}', '\u{202e}', '\u{9b}']), "{fault}");
        assert!(!fault.message.contains('\n'));
    }

    #[test]
    fn a_place_beyond_the_text_has_no_excerpt() {
        assert_eq!(
            RulesError::at_span("a", "x", TextSpan { line: 7, column: 0, width: 1 }, "m").excerpt,
            ""
        );
        assert_eq!(RulesError::for_file("a", "m").to_string(), "m\n  --> a");
    }
}
