//! A client's file as a document: parsed, edited in place, written back as text.
//!
//! An edit changes only the bytes of the setting that it is about. After the last edit the new text
//! is parsed again and compared with the old one, so that a mistake here can never lose a setting
//! of the user.

use serde_json::Value;

use super::json_text::JsonText;
use super::toml_text::TomlText;
use crate::base::{Error, Kind, Result};

/// Format of a client's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigFormat {
    Toml,
    /// JSON, without comments and trailing commas.
    Json,
    /// JSON with comments and trailing commas.
    JsonWithComments,
}

/// A parsed file.
pub struct ConfigDocument {
    /// Name of the file, for messages.
    name: String,
    byte_order_mark: bool,
    body: DocumentBody,
}

enum DocumentBody {
    Toml(TomlText),
    Json(JsonText),
}

/// Syntax error in a file, or a value that cannot be edited.
pub struct SyntaxProblem {
    /// Counted from 1.
    pub line: usize,
    pub message: String,
}

const BYTE_ORDER_MARK: char = '\u{feff}';

impl ConfigDocument {
    /// Parses a file. An empty one is an empty document in every format.
    pub fn parse(
        format: ConfigFormat,
        name: &str,
        text: &str,
    ) -> Result<ConfigDocument, SyntaxProblem> {
        let (byte_order_mark, text) = match text.strip_prefix(BYTE_ORDER_MARK) {
            Some(text) => (true, text),
            None => (false, text),
        };
        let body = match format {
            ConfigFormat::Toml => DocumentBody::Toml(TomlText::parse(text)?),
            ConfigFormat::Json => DocumentBody::Json(JsonText::parse(text, false)?),
            ConfigFormat::JsonWithComments => DocumentBody::Json(JsonText::parse(text, true)?),
        };
        Ok(ConfigDocument { name: name.to_owned(), byte_order_mark, body })
    }

    /// Returns the text of the document.
    pub fn to_text(&self) -> String {
        let mark = if self.byte_order_mark { BYTE_ORDER_MARK.to_string() } else { String::new() };
        match &self.body {
            DocumentBody::Toml(body) => mark + body.text(),
            DocumentBody::Json(body) => mark + body.text(),
        }
    }

    /// Returns the value at a path.
    pub fn get(&self, path: &[String]) -> Option<Value> {
        match &self.body {
            DocumentBody::Toml(body) => body.get(path),
            DocumentBody::Json(body) => body.get(path),
        }
    }

    /// Sets the value at a path; creates the tables above it.
    pub fn set(&mut self, path: &[String], value: &Value) -> Result<()> {
        match &mut self.body {
            DocumentBody::Toml(body) => body.set(path, value),
            DocumentBody::Json(body) => body.set(path, value),
        }
        .map_err(|problem| edit_error(&self.name, path, &problem))
    }

    /// Removes the value at a path.
    pub fn remove(&mut self, path: &[String]) -> Result<()> {
        match &mut self.body {
            DocumentBody::Toml(body) => body.remove(path),
            DocumentBody::Json(body) => body.remove(path),
        }
        .map_err(|problem| edit_error(&self.name, path, &problem))
    }

    /// Appends an item to the list at a path.
    pub fn push_item(&mut self, path: &[String], item: &Value) -> Result<()> {
        match &mut self.body {
            DocumentBody::Toml(body) => body.push_item(path, item),
            DocumentBody::Json(body) => body.push_item(path, item),
        }
        .map_err(|problem| edit_error(&self.name, path, &problem))
    }

    /// Removes an item from the list at a path.
    pub fn remove_item(&mut self, path: &[String], item: &Value) -> Result<()> {
        match &mut self.body {
            DocumentBody::Toml(body) => body.remove_item(path, item),
            DocumentBody::Json(body) => body.remove_item(path, item),
        }
        .map_err(|problem| edit_error(&self.name, path, &problem))
    }

    /// Returns the values without those at these paths, to compare what an edit must not touch.
    /// Tables that become empty are left out too.
    fn values_without(&self, paths: &[&[String]]) -> Value {
        let mut values = match &self.body {
            DocumentBody::Toml(body) => body.get(&[]),
            DocumentBody::Json(body) => body.get(&[]),
        }
        .unwrap_or_default();
        for path in paths {
            remove_value(&mut values, path);
        }
        values
    }
}

/// Checks that two documents differ at these paths alone.
pub fn check_untouched(
    old: &ConfigDocument,
    new: &ConfigDocument,
    paths: &[&[String]],
) -> Result<()> {
    let values = |document: &ConfigDocument| match document.values_without(paths) {
        Value::Null => Value::Object(serde_json::Map::new()),
        values => values,
    };
    if values(old) == values(new) {
        return Ok(());
    }
    Err(Error::internal("the edit would change other settings of the file").with_hint(
        "Nothing was written. This is a bug in this build: please report it with the file.",
    ))
}

fn remove_value(values: &mut Value, path: &[String]) {
    let (Some(name), Some(members)) = (path.first(), values.as_object_mut()) else { return };
    if path.len() == 1 {
        members.shift_remove(name);
        return;
    }
    if let Some(value) = members.get_mut(name) {
        remove_value(value, &path[1..]);
        if value.as_object().is_some_and(serde_json::Map::is_empty) {
            members.shift_remove(name);
        }
    }
}

fn edit_error(name: &str, path: &[String], problem: &SyntaxProblem) -> Error {
    let (path, line) = (path.join("."), problem.line);
    let message = format!("{name}, line {line}: {}; `{path}` cannot be edited", problem.message);
    Error::new(Kind::Conflict, message)
        .with_hint("Nothing was written. Change that line by hand, then run the command again.")
}

/// Returns the number of the line at a byte offset, counted from 1.
pub fn line_number(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}
