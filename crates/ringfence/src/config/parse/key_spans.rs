//! Positions of keys and values in a config file.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Byte range of every key and list item, by its path: `mcp.lint.args[1]`. Only errors need them, so
/// the text is parsed for them with the first look-up.
#[derive(Debug, Clone, Default)]
pub struct KeySpans {
    text: String,
    spans: OnceLock<SpanMap>,
}

type SpanMap = HashMap<String, KeySpan>;

#[derive(Debug, Clone)]
struct KeySpan {
    /// Range of the key itself; a list item has none.
    key: Option<Range<usize>>,
    value: Range<usize>,
}

impl KeySpans {
    /// Returns the ranges of a file with this text.
    pub fn from_text(text: &str) -> KeySpans {
        KeySpans { text: text.to_owned(), spans: OnceLock::new() }
    }

    fn get(&self, path: &str) -> Option<&KeySpan> {
        let parse = || collect_spans(DeTable::parse_recoverable(&self.text).0.get_ref());
        self.spans.get_or_init(parse).get(path)
    }

    /// Returns whether the file sets this key.
    pub fn contains_key(&self, path: &str) -> bool {
        self.get(path).is_some()
    }

    /// Returns the range of the value, or of the enclosing section if the file does not set it.
    pub fn value_span(&self, path: &str) -> Option<Range<usize>> {
        let mut path = path;
        loop {
            match self.get(path) {
                // A table may be spread over the file; its header is where a reader looks for it.
                Some(KeySpan { key: Some(key), value }) if key.start >= value.start => {
                    return Some(key.clone());
                }
                Some(span) => return Some(span.value.clone()),
                None => path = &path[..path.rfind(['.', '['])?],
            }
        }
    }

    /// Returns the range of the key, if the file has it.
    pub fn key_span(&self, path: &str) -> Option<Range<usize>> {
        let span = self.get(path)?;
        Some(span.key.clone().unwrap_or_else(|| span.value.clone()))
    }
}

fn collect_spans(table: &DeTable<'_>) -> SpanMap {
    let mut spans = SpanMap::new();
    add_table(&mut spans, "", table);
    spans
}

fn add_table(spans: &mut SpanMap, path: &str, table: &DeTable<'_>) {
    for (key, value) in table {
        add_value(spans, child_path(path, key.get_ref()), Some(key.span()), value);
    }
}

fn add_value(
    spans: &mut SpanMap,
    path: String,
    key: Option<Range<usize>>,
    value: &Spanned<DeValue<'_>>,
) {
    match value.get_ref() {
        DeValue::Table(table) => add_table(spans, &path, table),
        DeValue::Array(array) => {
            array
                .iter()
                .enumerate()
                .for_each(|(index, value)| add_value(spans, item_path(&path, index), None, value));
        }
        _ => {}
    }
    spans.insert(path, KeySpan { key, value: value.span() });
}

/// Returns the path of a key. A name that could be mistaken for a path is quoted, as in the file.
pub fn child_path(path: &str, key: &str) -> String {
    let is_bare =
        !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    let key = if is_bare { key.to_owned() } else { format!("{key:?}") };
    if path.is_empty() { key } else { format!("{path}.{key}") }
}

/// Returns the path of a list item.
pub fn item_path(path: &str, index: usize) -> String {
    format!("{path}[{index}]")
}

/// Offsets of all line ends of a text, for many lookups: [`line_number`] counts from the start of
/// the text each time.
pub struct LineIndex(Vec<usize>);

impl LineIndex {
    /// Builds the index.
    pub fn new(text: &str) -> LineIndex {
        LineIndex(text.match_indices('\n').map(|(offset, _)| offset).collect())
    }

    /// Returns the number of the line that contains the byte `offset`, from 1.
    pub fn line_at(&self, offset: usize) -> usize {
        self.0.partition_point(|newline| *newline < offset) + 1
    }
}

/// Returns the number of the line at an offset, from 1.
pub fn line_number(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_gives_the_lines_that_counting_gives() {
        for text in ["", "\n", "a\n\nb\r\n\u{e4}\n", "no end"] {
            let index = LineIndex::new(text);
            for at in 0..=text.len() + 1 {
                assert_eq!(index.line_at(at), line_number(text, at), "{text:?} at {at}");
            }
        }
    }
}
