//! What is wrong with a text that is no TOML, or that says a thing twice.

use std::path::Path;

use toml::de::{DeTable, Error};

use super::places::{Places, child, line_of};
use crate::config::fault::Fault;

const DUPLICATE: &str = "duplicate key";

/// More than these help nobody.
const MOST: usize = 50;

pub fn is_duplicate(error: &Error) -> bool {
    error.message().starts_with(DUPLICATE)
}

/// One for each line: what follows on it comes from the first.
pub fn faults(path: &Path, text: &str, errors: &[Error]) -> Vec<Fault> {
    let mut faults: Vec<Fault> = Vec::new();
    for error in errors.iter().take(MOST) {
        let span = error.span().unwrap_or(0..0);
        let fault = match is_duplicate(error) {
            true => duplicate(path, text, span),
            false => {
                let (message, hint) = words(text, span.start, error.message());
                Fault::at(path, text, span, message, hint)
            }
        };
        // A list that is not closed goes wrong on every line after it, and what a table has a second one has again.
        let follows = |other: &Fault| {
            other.line == fault.line
                || other.message == OPEN
                || !other.key.is_empty() && fault.key.starts_with(&format!("{}.", other.key))
        };
        if !faults.iter().any(follows) {
            faults.push(fault);
        }
    }
    faults
}

const OPEN: &str = "a list is not closed, or a comma is missing in it";

/// What the reader says, without the words it has for itself.
fn words(text: &str, at: usize, message: &str) -> (String, &'static str) {
    let first = message.lines().next().unwrap_or_default();
    let what = first.split(", expected").next().unwrap_or(first);
    let nothing = text
        .get(at..)
        .and_then(|rest| rest.lines().next())
        .is_none_or(|rest| rest.trim().is_empty());
    match () {
        () if what.contains("must be quoted") && nothing => {
            ("there is no value".to_owned(), "Write one after `=`, or take the line out.")
        }
        () if what.contains("must be quoted") => {
            (what.to_owned(), "Text stands in quotes: `key = \"value\"`.")
        }
        () if what.contains("missing comma") || what.contains("array") => {
            (OPEN.to_owned(), "Items stand between `[` and `]`, with commas between them.")
        }
        () if what.contains("string") => {
            ("the text is not closed".to_owned(), "It ends with the quote it began with.")
        }
        () if what.contains("escape") => (
            what.to_owned(),
            "In \"…\" a backslash begins an escape; text between '…' is taken as it is.",
        ),
        () => (what.to_owned(), "Correct the line."),
    }
}

/// Names the one that was there first.
fn duplicate(path: &Path, text: &str, span: std::ops::Range<usize>) -> Fault {
    let name = text.get(span.clone()).unwrap_or_default();
    let key = path_at(text, span.start, name);
    // As the file was before it.
    let before =
        Places::of(DeTable::parse_recoverable(&text[..line_start(text, span.start)]).0.get_ref());
    let first =
        key.as_deref().and_then(|key| before.key(key)).map(|first| line_of(text, first.start));
    let what = match key.as_deref().and_then(|key| key.strip_prefix("mcp.")) {
        Some(tool) if !tool.contains('.') => {
            format!("there is a tool of the name `{tool}` already")
        }
        _ if is_header(text, span.start) => {
            format!("the table `{}` is there already", key.as_deref().unwrap_or(name))
        }
        _ => format!("`{name}` is set already"),
    };
    let hint = match first {
        Some(line) => {
            format!("The first is on line {line}: take one of them out, or give one another name.")
        }
        None => "Take one of them out, or give one another name.".to_owned(),
    };
    Fault::about(&key.unwrap_or_default(), (path, text), span, what, hint)
}

fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |end| end + 1)
}

fn is_header(text: &str, at: usize) -> bool {
    text[line_start(text, at)..].trim_start().starts_with('[')
}

/// The path of a key that stands here a second time: below the last header before it, or in a header itself.
fn path_at(text: &str, at: usize, name: &str) -> Option<String> {
    let header = |line: &str| {
        let table = DeTable::parse(line.trim()).ok()?.into_inner();
        let (mut path, mut table) = (String::new(), table);
        while let Some((key, value)) = table.into_iter().next() {
            path = child(&path, key.get_ref());
            let toml::de::DeValue::Table(inner) = value.into_inner() else { break };
            table = inner;
        }
        Some(path)
    };
    let start = line_start(text, at);
    if is_header(text, at) {
        return header(text[start..].lines().next()?);
    }
    let above = text[..start].lines().rev().find(|line| line.trim_start().starts_with('['));
    let above = above.map_or(Some(String::new()), header)?;
    Some(child(&above, name.trim_matches(['"', '\''])))
}
