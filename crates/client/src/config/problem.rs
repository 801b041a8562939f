//! Problems found in a configuration, and the error that lists them.

use super::source::ConfigSource;
use crate::{ClientError, ErrorKind, Result};

/// Maximum number of problems that an error lists.
const MAX_LISTED: usize = 20;
/// Maximum number of problems in memory. A hostile text can contain one in every few bytes.
const MAX_STORED: usize = 1000;
/// Maximum length of a name or value that an error quotes.
const MAX_QUOTED_CHARS: usize = 64;

/// Where a value was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ValuePosition {
    /// Index in the list of sources.
    pub source: usize,
    /// From 1; `None` if the problem is about the whole source.
    pub line: Option<usize>,
}

/// One problem. Neither reason nor hint may contain a value that could be a secret.
#[derive(Debug)]
pub(super) struct ConfigProblem {
    pub position: ValuePosition,
    /// Full path of the key; empty if the problem is about the whole source.
    pub path: String,
    /// What is wrong, without a full stop.
    pub reason: String,
    /// What to do, as sentences.
    pub hint: String,
}

impl ConfigProblem {
    /// Creates a problem with a whole source.
    pub fn with_source(
        source: usize,
        reason: impl Into<String>,
        hint: impl Into<String>,
    ) -> ConfigProblem {
        let position = ValuePosition { source, line: None };
        ConfigProblem { position, path: String::new(), reason: reason.into(), hint: hint.into() }
    }

    fn to_line(&self, sources: &[ConfigSource]) -> String {
        let location = sources
            .get(self.position.source)
            .map(|source| source.format_location(self.position.line))
            .unwrap_or_default();
        let separator = if self.path.is_empty() { "" } else { ": " };
        format!("{location}{}{separator}{}", self.path, self.reason)
    }
}

/// All problems of one configuration, so that a user can fix them in one go.
#[derive(Debug, Default)]
pub(super) struct ProblemList {
    problems: Vec<ConfigProblem>,
    dropped: usize,
}

impl ProblemList {
    /// Adds a problem.
    pub fn add(&mut self, problem: ConfigProblem) {
        if self.problems.len() < MAX_STORED {
            self.problems.push(problem);
        } else {
            self.dropped += 1;
        }
    }

    /// Returns the value if there is no problem, and an error that lists the problems otherwise.
    pub fn into_result<T>(mut self, value: T, sources: &[ConfigSource]) -> Result<T> {
        // In the order of the texts, as a compiler reports errors.
        self.problems.sort_by_key(|problem| problem.position);
        let listed = match self.problems.as_slice() {
            [] => return Ok(value),
            [problem] => {
                let line = problem.to_line(sources);
                let error = ClientError::new(ErrorKind::InvalidConfig, line);
                return Err(error.with_hint(problem.hint.clone()));
            }
            problems => problems.iter().take(MAX_LISTED),
        };
        let mut lines: Vec<String> = listed
            .map(|problem| format!("{}. {}", problem.to_line(sources), problem.hint))
            .collect();
        match (self.problems.len() + self.dropped).saturating_sub(lines.len()) {
            0 => {}
            1 => lines.push("... and 1 more problem".to_owned()),
            more => lines.push(format!("... and {more} more problems")),
        }
        Err(ClientError::new(ErrorKind::InvalidConfig, lines.join("\n"))
            .with_hint("Fix these problems and load the configuration again."))
    }
}

/// Returns the path of a key. A name that could be mistaken for a path is quoted.
pub(super) fn child_path(path: &str, key: &str) -> String {
    let is_bare =
        !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    let key = if is_bare { shorten_text(key) } else { quote_text(key) };
    if path.is_empty() { key } else { format!("{path}.{key}") }
}

/// Returns the path of a list item.
pub(super) fn item_path(path: &str, index: usize) -> String {
    format!("{path}[{index}]")
}

/// Returns text in quotes, shortened and with control characters escaped: a terminal shows it.
pub(super) fn quote_text(text: &str) -> String {
    format!("{:?}", shorten_text(text))
}

fn shorten_text(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list_problems(count: usize) -> ClientError {
        let mut problems = ProblemList::default();
        for line in (1..=count).rev() {
            problems.add(ConfigProblem {
                position: ValuePosition { source: 0, line: Some(line) },
                path: "servers".to_owned(),
                reason: "this is wrong".to_owned(),
                hint: "Fix it.".to_owned(),
            });
        }
        problems.into_result((), &[ConfigSource::new_unnamed()]).unwrap_err()
    }

    #[test]
    fn a_single_problem_has_its_own_hint() {
        let error = list_problems(1);
        assert_eq!(error.message(), "line 1: servers: this is wrong");
        assert_eq!(error.hint(), Some("Fix it."));
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    }

    #[test]
    fn several_problems_are_listed_in_the_order_of_the_text_with_their_hints() {
        assert_eq!(
            list_problems(2).message(),
            "line 1: servers: this is wrong. Fix it.\nline 2: servers: this is wrong. Fix it."
        );
    }

    #[test]
    fn twenty_problems_are_listed_and_the_rest_is_counted() {
        for (count, lines, last) in [
            (20, 20, "line 20: servers: this is wrong. Fix it."),
            (21, 21, "... and 1 more problem"),
            (1005, 21, "... and 985 more problems"),
        ] {
            let error = list_problems(count);
            assert_eq!(error.message().lines().count(), lines, "{count}");
            assert_eq!(error.message().lines().last(), Some(last), "{count}");
        }
    }

    #[test]
    fn names_that_look_like_a_path_are_quoted() {
        assert_eq!(child_path("", "servers"), "servers");
        assert_eq!(child_path("servers", "a-b_c"), "servers.a-b_c");
        assert_eq!(child_path("bundles", "a.b"), "bundles.\"a.b\"");
        assert_eq!(child_path("servers", ""), "servers.\"\"");
        assert_eq!(child_path("servers", "a\n\u{1b}"), "servers.\"a\\n\\u{1b}\"");
    }

    #[test]
    fn long_names_are_shortened() {
        assert_eq!(child_path("a", &"x".repeat(65)), format!("a.{}…", "x".repeat(64)));
        assert_eq!(quote_text(&"ä".repeat(65)), format!("\"{}…\"", "ä".repeat(64)));
        assert_eq!(quote_text(&"ä".repeat(64)), format!("\"{}\"", "ä".repeat(64)));
    }
}
