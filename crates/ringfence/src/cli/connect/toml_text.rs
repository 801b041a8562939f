//! TOML, edited by cutting and inserting text at the positions that the parser reports.
//!
//! The parser's own editor would write the whole document anew, with other line ends. Here every
//! byte outside the edited setting stays as it is.

use std::ops::Range;

use serde_json::{Map, Value};
use toml_edit::{Document, InlineTable, Item, Key, Table, Value as TomlValue};

use super::document::{SyntaxProblem, line_number};

/// A parsed TOML file.
pub struct TomlText {
    document: Document<String>,
}

impl TomlText {
    pub fn parse(text: &str) -> Result<TomlText, SyntaxProblem> {
        let document = Document::parse(text.to_owned()).map_err(|error| SyntaxProblem {
            line: line_number(text, error.span().map_or(0, |span| span.start)),
            message: error.message().lines().next().unwrap_or_default().to_owned(),
        })?;
        Ok(TomlText { document })
    }

    pub fn text(&self) -> &str {
        self.document.raw()
    }

    pub fn get(&self, path: &[String]) -> Option<Value> {
        self.item(path).and_then(to_json)
    }

    pub fn set(&mut self, path: &[String], value: &Value) -> Result<(), SyntaxProblem> {
        let Some((key, table_path)) = path.split_last() else { return Ok(()) };
        match self.item(path) {
            Some(Item::Value(old)) => {
                let span = old.span().unwrap_or_default();
                return self.splice(span, &format_value(value));
            }
            Some(item) => return Err(self.problem(item, "this is a table")),
            None => {}
        }
        match self.item(table_path) {
            Some(Item::Table(table)) if table.is_dotted() => {
                let (at, prefix) = self.dotted_position(table)?;
                self.insert_line(at, &format!("{prefix}{}", format_pair(key, value)))
            }
            Some(Item::Table(table)) if !table.is_implicit() => {
                let at = section_end(table);
                let indent = self.indent_at(table.span().unwrap_or_default().start).to_owned();
                self.insert_line(at, &format!("{indent}{}", format_pair(key, value)))
            }
            Some(Item::Table(_)) => self.append_table(table_path, key, value),
            Some(Item::Value(TomlValue::InlineTable(table))) => {
                let at = inline_end(table);
                let comma = if table.is_empty() { " " } else { ", " };
                let after = if table.is_empty() { " " } else { "" };
                self.splice(at..at, &format!("{comma}{}{after}", format_pair(key, value)))
            }
            Some(item) => Err(self.problem(item, "this is not a table")),
            None => self.create_table(table_path, key, value),
        }
    }

    /// Sets a key in a table that does not exist yet.
    fn create_table(
        &mut self,
        path: &[String],
        key: &str,
        value: &Value,
    ) -> Result<(), SyntaxProblem> {
        let existing = (0..path.len()).rev().find(|length| self.item(&path[..*length]).is_some());
        let length = existing.unwrap_or(0);
        match self.item(&path[..length]) {
            // A header cannot add to an inline table: the new tables become part of it.
            Some(Item::Value(TomlValue::InlineTable(_))) => {
                let mut nested = Value::Object(Map::from_iter([(key.to_owned(), value.clone())]));
                for name in path[length + 1..].iter().rev() {
                    nested = Value::Object(Map::from_iter([(name.clone(), nested)]));
                }
                self.set(&path[..=length], &nested)
            }
            Some(item) if !item.is_table() => Err(self.problem(item, "this is not a table")),
            _ => self.append_table(path, key, value),
        }
    }

    /// Appends a table to the end of the file, where it changes the meaning of nothing else.
    fn append_table(
        &mut self,
        path: &[String],
        key: &str,
        value: &Value,
    ) -> Result<(), SyntaxProblem> {
        let (text, newline) = (self.text(), self.newline());
        let end_of_line = if text.is_empty() || text.ends_with('\n') { "" } else { newline };
        let blank_line = if text.is_empty() { "" } else { newline };
        let header = path.iter().map(|name| format_key(name)).collect::<Vec<_>>().join(".");
        let pair = format_pair(key, value);
        let added = format!("{end_of_line}{blank_line}[{header}]{newline}{pair}{newline}");
        let end = text.len();
        self.splice(end..end, &added)
    }

    pub fn remove(&mut self, path: &[String]) -> Result<(), SyntaxProblem> {
        let Some((name, table_path)) = path.split_last() else { return Ok(()) };
        let Some(item) = self.item(path) else { return Ok(()) };
        if let Some(Item::Value(TomlValue::InlineTable(table))) = self.item(table_path) {
            let (Some(key), Some(value)) = (table.key(name), table.get(name)) else {
                return Ok(());
            };
            let span = span_start(key)..value.span().unwrap_or_default().end;
            return self.splice(self.with_comma(span), "");
        }
        let mut cuts = Vec::new();
        let key = self.item(table_path).and_then(Item::as_table).and_then(|table| table.key(name));
        self.collect_cuts(key, item, &mut cuts);
        cuts.sort_by_key(|cut| cut.start);
        for cut in cuts.into_iter().rev() {
            // Each cut is whole lines, so the document stays valid in between.
            self.splice(cut, "")?;
        }
        Ok(())
    }

    pub fn push_item(&mut self, path: &[String], item: &Value) -> Result<(), SyntaxProblem> {
        let Some(current) = self.item(path) else {
            return self.set(path, &Value::Array(vec![item.clone()]));
        };
        let Some(array) = current.as_array() else {
            return Err(self.problem(current, "this is not a list"));
        };
        let value = format_value(item);
        match array.iter().last().and_then(TomlValue::span) {
            Some(last) => self.splice(last.end..last.end, &format!(", {value}")),
            None => {
                let at = array.span().unwrap_or_default().start + 1;
                self.splice(at..at, &value)
            }
        }
    }

    pub fn remove_item(&mut self, path: &[String], item: &Value) -> Result<(), SyntaxProblem> {
        let array = self.item(path).and_then(Item::as_array);
        let is_item = |value: &&TomlValue| value_to_json(value).as_ref() == Some(item);
        let found = array.and_then(|array| array.iter().find(is_item).and_then(TomlValue::span));
        match found {
            Some(span) => self.splice(self.with_comma(span), ""),
            None => Ok(()),
        }
    }

    fn item(&self, path: &[String]) -> Option<&Item> {
        path.iter().try_fold(self.document.as_item(), |item, name| item.get(name.as_str()))
    }

    /// Collects the lines of an item: a line per value, and the section of each header.
    fn collect_cuts(&self, key: Option<&Key>, item: &Item, cuts: &mut Vec<Range<usize>>) {
        match item {
            Item::None => {}
            Item::Value(value) => {
                let start = key.map_or(0, span_start);
                cuts.push(self.whole_lines(start..value.span().unwrap_or_default().end));
            }
            Item::Table(table) => self.collect_table_cuts(table, cuts),
            Item::ArrayOfTables(tables) => {
                tables.iter().for_each(|table| self.collect_table_cuts(table, cuts));
            }
        }
    }

    fn collect_table_cuts(&self, table: &Table, cuts: &mut Vec<Range<usize>>) {
        let has_header = !table.is_dotted() && !table.is_implicit();
        if has_header {
            let span = table.span().unwrap_or_default().start..section_end(table);
            cuts.push(self.with_blank_line(self.whole_lines(span)));
        }
        for (name, item) in table.iter() {
            let is_in_section = match item {
                Item::Value(_) => has_header,
                Item::Table(inner) => has_header && inner.is_dotted(),
                _ => false,
            };
            if !is_in_section {
                self.collect_cuts(table.key(name), item, cuts);
            }
        }
    }

    /// Returns the position after the last value of a dotted table, and the text before its keys.
    fn dotted_position(&self, table: &Table) -> Result<(usize, String), SyntaxProblem> {
        let direct = table.iter().find(|(_, item)| item.is_value());
        let key = direct.and_then(|(name, _)| table.key(name));
        match key {
            Some(key) => {
                let start = span_start(key);
                let prefix = &self.text()[self.line_start(start)..start];
                Ok((section_end(table), prefix.to_owned()))
            }
            None => Err(self.problem(&Item::Table(table.clone()), "these keys are too deep")),
        }
    }

    /// Extends a range to whole lines, with the line end of the last.
    fn whole_lines(&self, range: Range<usize>) -> Range<usize> {
        self.line_start(range.start)..self.line_end(range.end)
    }

    fn line_start(&self, at: usize) -> usize {
        self.text()[..at].rfind('\n').map_or(0, |newline| newline + 1)
    }

    fn line_end(&self, at: usize) -> usize {
        self.text()[at..].find('\n').map_or(self.text().len(), |newline| at + newline + 1)
    }

    /// Adds the blank line before a section.
    fn with_blank_line(&self, range: Range<usize>) -> Range<usize> {
        let before = &self.text()[..range.start];
        let start = match before.strip_suffix('\n').map(|before| before.trim_end_matches('\r')) {
            // The line before is empty, and it is not the first.
            Some(before) if before.ends_with('\n') => before.len(),
            _ => range.start,
        };
        start..range.end
    }

    fn indent_at(&self, at: usize) -> &str {
        let line = &self.text()[self.line_start(at)..at];
        &line[..line.len() - line.trim_start().len()]
    }

    /// Adds the comma that separates an item from the next, or else from the one before.
    fn with_comma(&self, range: Range<usize>) -> Range<usize> {
        let after = &self.text()[range.end..];
        let rest = after.trim_start();
        if let Some(rest) = rest.strip_prefix(',') {
            let rest = rest.trim_start_matches(' ');
            return range.start..self.text().len() - rest.len();
        }
        let before = self.text()[..range.start].trim_end();
        match before.strip_suffix(',') {
            Some(before) => before.len()..range.end,
            None => range,
        }
    }

    fn newline(&self) -> &'static str {
        if self.text().contains("\r\n") { "\r\n" } else { "\n" }
    }

    /// Inserts a line after the one that contains `at`.
    fn insert_line(&mut self, at: usize, line: &str) -> Result<(), SyntaxProblem> {
        let (end, newline) = (self.line_end(at), self.newline());
        if self.text()[..end].ends_with('\n') {
            self.splice(end..end, &format!("{line}{newline}"))
        } else {
            self.splice(end..end, &format!("{newline}{line}"))
        }
    }

    /// Replaces a range and parses the result; if that fails, nothing is changed.
    fn splice(&mut self, range: Range<usize>, inserted: &str) -> Result<(), SyntaxProblem> {
        let mut text = self.text().to_owned();
        text.replace_range(range, inserted);
        *self = TomlText::parse(&text)?;
        Ok(())
    }

    fn problem(&self, item: &Item, message: &str) -> SyntaxProblem {
        let offset = item.span().map_or(0, |span| span.start);
        SyntaxProblem { line: line_number(self.text(), offset), message: message.to_owned() }
    }
}

fn span_start(key: &Key) -> usize {
    key.span().map_or(0, |span| span.start)
}

/// Returns the end of the last value of a table, or of its header.
fn section_end(table: &Table) -> usize {
    let values = table.get_values();
    let ends = values.iter().filter_map(|(_, value)| value.span()).map(|span| span.end);
    let header = if table.is_dotted() { 0 } else { table.span().map_or(0, |span| span.end) };
    ends.fold(header, usize::max)
}

/// Returns where a pair can be added to an inline table: after the last value.
fn inline_end(table: &InlineTable) -> usize {
    let values = table.get_values();
    let ends = values.iter().filter_map(|(_, value)| value.span()).map(|span| span.end);
    ends.max().unwrap_or_else(|| table.span().map_or(0, |span| span.start + 1))
}

fn to_json(item: &Item) -> Option<Value> {
    let table_to_json = |table: &Table| {
        table.iter().filter_map(|(name, item)| Some((name.to_owned(), to_json(item)?))).collect()
    };
    match item {
        Item::None => None,
        Item::Value(value) => value_to_json(value),
        Item::Table(table) => Some(Value::Object(table_to_json(table))),
        Item::ArrayOfTables(tables) => {
            Some(tables.iter().map(|table| Value::Object(table_to_json(table))).collect())
        }
    }
}

fn value_to_json(value: &TomlValue) -> Option<Value> {
    Some(match value {
        TomlValue::String(text) => Value::from(text.value().as_str()),
        TomlValue::Integer(number) => Value::from(*number.value()),
        TomlValue::Float(number) => Value::from(*number.value()),
        TomlValue::Boolean(value) => Value::from(*value.value()),
        TomlValue::Datetime(time) => Value::from(time.value().to_string()),
        TomlValue::Array(items) => items.iter().filter_map(value_to_json).collect(),
        TomlValue::InlineTable(table) => table
            .iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value_to_json(value)?)))
            .collect::<Map<_, _>>()
            .into(),
    })
}

fn format_key(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(is_bare) { name.to_owned() } else { format_text(name) }
}

fn format_pair(key: &str, value: &Value) -> String {
    format!("{} = {}", format_key(key), format_value(value))
}

/// Writes a JSON string, which is a TOML string but for DEL.
fn format_text(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

fn format_value(value: &Value) -> String {
    match value {
        Value::String(text) => format_text(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(format_value).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(members) => {
            let pairs: Vec<String> =
                members.iter().map(|(key, value)| format_pair(key, value)).collect();
            format!("{{ {} }}", pairs.join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}
