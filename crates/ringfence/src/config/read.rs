//! From the text of a config file to what it says, with everything that is wrong with it.
//!
//! Each key is read by itself, so that one mistake does not hide the next. A mistake in `[mcp.<name>]` costs that tool;
//! any other is the whole file's.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use super::fault::Fault;
use super::raw;
use super::secrets::Ref;
use super::template::Template;
use crate::base::{Error, Result};

/// The table of the operator's commands.
const ENTRIES: &str = "mcp";

/// A whole file.
#[derive(Debug, Default)]
pub struct Parsed {
    pub file: raw::File,
    pub entries: Vec<Written>,
    /// What leaves nothing of the file to be used.
    pub faults: Vec<Fault>,
    /// What costs single tools.
    pub dropped: Vec<Fault>,
}

/// One `[mcp.<name>]` as it is written.
#[derive(Debug)]
pub struct Written {
    pub name: String,
    pub entry: raw::Entry,
    /// Of its name.
    pub span: Range<usize>,
    /// Of the value of each key.
    pub spans: HashMap<String, Range<usize>>,
}

impl Written {
    /// The secrets that it speaks of. One that cannot be read as a template speaks of none.
    pub fn refs(&self) -> Vec<Ref> {
        let args = self.entry.args.iter().flatten().filter_map(|text| Template::with_arguments(text).ok());
        let env = self.entry.env.iter().flatten().filter_map(|(_, text)| Template::without_arguments(text).ok());
        args.chain(env).flat_map(|one| one.refs().cloned().collect::<Vec<_>>()).collect()
    }
}

/// Reads the text of a config file; `path` is for the words of what is wrong with it.
pub fn read(text: &str, path: &Path) -> Parsed {
    let mut read = Parsed::default();
    let table = match DeTable::parse(text) {
        Ok(table) => table,
        Err(error) => {
            read.faults.push(Fault::of(path, text, &error));
            return read;
        }
    };
    let span = table.span();
    let mut rest = table.into_inner();
    let entries = rest.remove(ENTRIES);
    let fault = |error: &toml::de::Error| Fault::of(path, text, error);
    for single in singles(&rest, &span) {
        if let Err(error) = parse::<raw::File>(single) {
            read.faults.push(fault(&error));
        }
    }
    if read.faults.is_empty() {
        match parse(Spanned::new(span, rest)) {
            Ok(file) => read.file = file,
            Err(error) => read.faults.push(fault(&error)),
        }
    }
    let Some(entries) = entries else { return read };
    let at = entries.span();
    let DeValue::Table(entries) = entries.into_inner() else {
        let hint = "Write each tool as a table of its own: `[mcp.name]`.";
        read.faults.push(Fault::at(path, text, at, "`mcp` is not a table", hint));
        return read;
    };
    for (name, value) in entries {
        read_entry(path, text, name, value, &mut read);
    }
    read
}

fn read_entry(
    path: &Path,
    text: &str,
    name: Spanned<std::borrow::Cow<'_, str>>,
    value: Spanned<DeValue<'_>>,
    read: &mut Parsed,
) {
    let (span, at) = (name.span(), value.span());
    let name = name.into_inner().into_owned();
    let mut drop = |fault: Fault| read.dropped.push(Fault { entry: Some(name.clone()), ..fault });
    let DeValue::Table(table) = value.into_inner() else {
        let hint = format!("Write it as a table: `[mcp.{name}]`.");
        return drop(Fault::at(path, text, at, "a tool is a table of keys", hint));
    };
    let mut sound = true;
    for (key, value) in &table {
        let single = Spanned::new(at.clone(), DeTable::from_iter([(key.clone(), value.clone())]));
        if let Err(error) = parse::<raw::Entry>(single) {
            drop(Fault::of(path, text, &error));
            sound = false;
        }
    }
    if !sound {
        return;
    }
    let spans = table.iter().map(|(key, value)| (key.get_ref().to_string(), value.span())).collect();
    match parse(Spanned::new(at, table)) {
        Ok(entry) => read.entries.push(Written { name, entry, span, spans }),
        Err(error) => drop(Fault::of(path, text, &error)),
    }
}

/// The same tables with one key each, at most one level down.
fn singles<'a>(table: &DeTable<'a>, span: &Range<usize>) -> Vec<Spanned<DeTable<'a>>> {
    let mut singles = Vec::new();
    for (key, value) in table {
        let around =
            |value: Spanned<DeValue<'a>>| Spanned::new(span.clone(), DeTable::from_iter([(key.clone(), value)]));
        match value.get_ref() {
            DeValue::Table(inner) if !inner.is_empty() => singles.extend(inner.iter().map(|(name, item)| {
                let inner = DeTable::from_iter([(name.clone(), item.clone())]);
                around(Spanned::new(value.span(), DeValue::Table(inner)))
            })),
            _ => singles.push(around(value.clone())),
        }
    }
    // An unknown section is one mistake, however many keys it has.
    singles
}

fn parse<T: DeserializeOwned>(table: Spanned<DeTable<'_>>) -> std::result::Result<T, toml::de::Error> {
    T::deserialize(Deserializer::from(table))
}

/// A file in which nothing may be wrong.
pub fn parse_file(text: &str, path: &Path) -> Result<raw::File> {
    let read = read(text, path);
    match read.faults.into_iter().chain(read.dropped).next() {
        None => Ok(read.file),
        Some(fault) => Err(fault.into_error()),
    }
}

impl Parsed {
    /// The first of what leaves nothing to be used, and how many there are.
    pub fn refuse(&self) -> Result<()> {
        let Some(first) = self.faults.first() else { return Ok(()) };
        let error: Error = first.clone().into_error();
        Err(match self.faults.len() {
            1 => error,
            count => {
                error.hint(format!("{} There are {count} such mistakes: run `ringfence config check`.", first.hint))
            }
        })
    }
}
