//! Parses the text of a config file, and collects every error in it.
//!
//! One error does not hide the next. An error in `[mcp.<name>]` disables that tool; any other makes
//! the whole file unusable.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::places::{Places, child, line_of};
use super::sieve::{MOST, Misfit, sift};
use super::template::Template;
use super::{raw, syntax};
use crate::base::{Error, Result};
use crate::config::fault::Fault;
use crate::config::secrets::Ref;

/// The table of the operator's commands.
pub const ENTRIES: &str = "mcp";

/// Returns the path of a command's table.
pub fn entry_key(name: &str) -> String {
    child(ENTRIES, name)
}

/// A parsed config file.
#[derive(Debug, Default)]
pub struct Parsed {
    /// The values that could be parsed.
    pub file: raw::File,
    pub entries: Vec<Written>,
    pub places: Places,
    /// Errors that make the whole file unusable.
    pub faults: Vec<Fault>,
    /// Errors that disable single tools.
    pub dropped: Vec<Fault>,
    /// The text is not TOML: the parsed values may not be what was meant.
    pub is_broken: bool,
}

/// A `[mcp.<name>]` table as written.
#[derive(Debug)]
pub struct Written {
    pub name: String,
    /// The values that could be parsed.
    pub entry: raw::Entry,
    /// Range of its name in the text.
    pub span: Range<usize>,
    /// Keys that could not be parsed. If there are any, the tool is not available.
    pub unread: BTreeSet<String>,
}

impl Written {
    /// Returns the secrets that it refers to. Text that is not a valid template refers to none.
    pub fn refs(&self) -> Vec<Ref> {
        let args =
            self.entry.args.iter().flatten().filter_map(|text| Template::with_arguments(text).ok());
        let env = self
            .entry
            .env
            .iter()
            .flatten()
            .filter_map(|(_, text)| Template::without_arguments(text).ok());
        args.chain(env).flat_map(|one| one.refs().cloned().collect::<Vec<_>>()).collect()
    }
}

/// Parses the text of a config file; `path` is for error messages.
pub fn read(text: &str, path: &Path) -> Parsed {
    let (mut table, errors) = DeTable::parse_recoverable(text);
    let mut read = Parsed { places: Places::of(table.get_ref()), ..Parsed::default() };
    read.is_broken = errors.iter().any(|error| !syntax::is_duplicate(error));
    read.faults = syntax::faults(path, text, &errors);
    let broken: BTreeSet<usize> = read.faults.iter().map(|fault| fault.line).collect();

    let entries = table.get_mut().remove(ENTRIES);
    let (file, misfits) = sift(&mut table, "");
    read.file = file;
    read.faults.extend(misfits.into_iter().map(|misfit| misfit.fault(path, text)));
    if let Some(entries) = entries {
        let at = read.places.key(ENTRIES).unwrap_or_else(|| entries.span());
        match entries.into_inner() {
            DeValue::Table(entries) => {
                for (name, value) in entries {
                    read_entry(path, text, name, value, &mut read);
                }
            }
            _ => {
                let hint = "Write each tool as a table of its own: `[mcp.name]`.";
                read.faults.push(Fault::about(
                    ENTRIES,
                    (path, text),
                    at,
                    "`mcp` is not a table",
                    hint,
                ));
            }
        }
    }
    // Near a syntax error, the parsed values are not what was written.
    let syntax = broken.len();
    let sound = |fault: &Fault| !broken.contains(&fault.line);
    let later = read.faults.split_off(syntax.min(read.faults.len()));
    read.faults.extend(later.into_iter().filter(sound));
    read.dropped.retain(sound);
    read.faults.sort_by_key(|fault| (fault.line, fault.column));
    read.faults.truncate(MOST);
    read
}

fn read_entry(
    path: &Path,
    text: &str,
    name: Spanned<Cow<'_, str>>,
    value: Spanned<DeValue<'_>>,
    read: &mut Parsed,
) {
    let (span, at) = (name.span(), value.span());
    let name = name.into_inner().into_owned();
    let key = child(ENTRIES, &name);
    let mut drop = |fault: Fault| {
        if read.dropped.len() < MOST {
            read.dropped.push(Fault { entry: Some(name.clone()), ..fault });
        }
    };
    let DeValue::Table(table) = value.into_inner() else {
        let hint = format!("Write it as a table: `[{key}]`.");
        return drop(Fault::about(&key, (path, text), span, "a tool is a table of keys", hint));
    };
    let (entry, misfits) = sift(&mut Spanned::new(at, table), &key);
    let unread = misfits.iter().map(|misfit| first_below(&key, &misfit.path).to_owned()).collect();
    misfits.into_iter().for_each(|misfit| drop(misfit.fault(path, text)));
    read.entries.push(Written { name, entry, span, unread });
}

/// Returns the key of the table at `path` that leads to `below`.
fn first_below<'a>(path: &str, below: &'a str) -> &'a str {
    let rest = below.strip_prefix(path).unwrap_or(below).trim_start_matches('.');
    rest.split(['.', '[']).next().unwrap_or(rest)
}

impl Misfit {
    fn fault(self, path: &Path, text: &str) -> Fault {
        Fault::of(&self.path, (path, text), self.span, &self.error)
    }
}

/// Parses a file in which no error is accepted.
pub fn parse_file(text: &str, path: &Path) -> Result<raw::File> {
    let read = read(text, path);
    match read.faults.into_iter().chain(read.dropped).next() {
        None => Ok(read.file),
        Some(fault) => Err(fault.into_error()),
    }
}

impl Parsed {
    /// Fails with the first error that makes the file unusable, and the number of such errors.
    pub fn refuse(&self) -> Result<()> {
        let Some(first) = self.faults.first() else { return Ok(()) };
        let error: Error = first.clone().into_error();
        Err(match self.faults.len() {
            1 => error,
            count => error.hint(format!(
                "{} There are {count} such errors: run `ringfence config check`.",
                first.hint
            )),
        })
    }

    /// Returns the line of a key.
    pub fn line(&self, text: &str, key: &str) -> Option<usize> {
        self.places.key(key).map(|span| line_of(text, span.start))
    }
}
