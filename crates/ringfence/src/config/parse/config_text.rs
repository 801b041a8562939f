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

use super::key_spans::{KeySpans, child_path, line_number};
use super::lenient::{MAX_MISMATCHES, ValueMismatch, read_lenient};
use super::raw::COMMANDS_TABLE;
use super::{raw, toml_errors, value_errors};
use crate::base::{Error, Result};
use crate::config::fault::ConfigError;
use crate::config::key_docs::find_key;
use crate::config::secrets::SecretRef;
use crate::config::template::ValueTemplate;

/// Returns the path of a command's table.
pub fn command_key(name: &str) -> String {
    child_path(COMMANDS_TABLE, name)
}

/// A parsed config file.
#[derive(Debug, Default)]
pub struct ParsedConfig {
    /// The values that could be parsed.
    pub file: raw::ConfigFile,
    pub commands: Vec<WrittenCommand>,
    pub key_spans: KeySpans,
    /// Errors that make the whole file unusable.
    pub errors: Vec<ConfigError>,
    /// Errors that disable single tools.
    pub command_errors: Vec<ConfigError>,
    /// The text is not TOML: the parsed values may not be what was meant.
    pub has_syntax_errors: bool,
}

/// A `[mcp.<name>]` table as written.
#[derive(Debug)]
pub struct WrittenCommand {
    pub name: String,
    /// The values that could be parsed.
    pub section: raw::CommandSection,
    /// Range of its name in the text.
    pub name_span: Range<usize>,
    /// Keys that could not be parsed. If there are any, the tool is not available.
    pub unparsed_keys: BTreeSet<String>,
}

impl WrittenCommand {
    /// Returns the secrets that it refers to. Text that is not a valid template refers to none.
    pub fn secret_refs(&self) -> Vec<SecretRef> {
        let args = self
            .section
            .args
            .iter()
            .flatten()
            .filter_map(|text| ValueTemplate::with_arguments(text).ok());
        let env = self
            .section
            .env
            .iter()
            .flatten()
            .filter_map(|(_, text)| ValueTemplate::without_arguments(text).ok());
        args.chain(env).flat_map(|one| one.secret_refs().cloned().collect::<Vec<_>>()).collect()
    }
}

/// Parses the text of a config file; `path` is for error messages.
pub fn parse_config(text: &str, path: &Path) -> ParsedConfig {
    let (mut table, errors) = DeTable::parse_recoverable(text);
    let mut parsed = ParsedConfig {
        key_spans: KeySpans::from_table(table.get_ref()),
        ..ParsedConfig::default()
    };
    parsed.has_syntax_errors = errors.iter().any(|error| !toml_errors::is_duplicate_key(error));
    parsed.errors = toml_errors::convert_errors(path, text, &errors);
    let broken_lines: BTreeSet<usize> =
        parsed.errors.iter().map(|config_error| config_error.line).collect();

    let entries = table.get_mut().remove(COMMANDS_TABLE);
    remove_listed_sections(table.get_mut(), "", &mut |key, span| {
        let (message, hint) = value_errors::listed_section(key);
        parsed.errors.push(ConfigError::about_key(key, (path, text), span, message, hint));
    });
    let (file, mismatches) = read_lenient(&mut table, "");
    parsed.file = file;
    parsed
        .errors
        .extend(mismatches.into_iter().map(|mismatch| mismatch.into_config_error(path, text)));
    if let Some(entries) = entries {
        let table_span =
            parsed.key_spans.key_span(COMMANDS_TABLE).unwrap_or_else(|| entries.span());
        match entries.into_inner() {
            DeValue::Table(entries) => {
                for (name, value) in entries {
                    parse_command(path, text, name, value, &mut parsed);
                }
            }
            _ => {
                let hint = "Write each tool as a table of its own: `[mcp.name]`.";
                parsed.errors.push(ConfigError::about_key(
                    COMMANDS_TABLE,
                    (path, text),
                    table_span,
                    "`mcp` is not a table",
                    hint,
                ));
            }
        }
    }
    // Near a syntax error, the parsed values are not what was written.
    let syntax_error_count = broken_lines.len();
    let is_on_valid_line = |config_error: &ConfigError| !broken_lines.contains(&config_error.line);
    let later_errors = parsed.errors.split_off(syntax_error_count.min(parsed.errors.len()));
    parsed.errors.extend(later_errors.into_iter().filter(is_on_valid_line));
    parsed.command_errors.retain(is_on_valid_line);
    parsed.errors.sort_by_key(|config_error| (config_error.line, config_error.column));
    parsed.errors.truncate(MAX_MISMATCHES);
    parsed
}

/// Removes lists that stand in place of a section, and reports them. The deserializer would take
/// their items for the values of the section's keys, in the order of our structures.
fn remove_listed_sections(
    table: &mut DeTable<'_>,
    path: &str,
    report: &mut dyn FnMut(&str, Range<usize>),
) {
    for (name, mut value) in std::mem::take(table) {
        let key = child_path(path, name.get_ref());
        let is_section = find_key(&key).is_some_and(|schema| schema.get("properties").is_some());
        let span = value.span();
        match value.get_mut() {
            DeValue::Array(_) if is_section => {
                report(&key, span);
                continue;
            }
            DeValue::Table(inner) if is_section => remove_listed_sections(inner, &key, report),
            _ => {}
        }
        table.insert(name, value);
    }
}

fn parse_command(
    path: &Path,
    text: &str,
    name: Spanned<Cow<'_, str>>,
    value: Spanned<DeValue<'_>>,
    parsed: &mut ParsedConfig,
) {
    let (name_span, value_span) = (name.span(), value.span());
    let name = name.into_inner().into_owned();
    let key = child_path(COMMANDS_TABLE, &name);
    let mut add_error = |error: ConfigError| {
        if parsed.command_errors.len() < MAX_MISMATCHES {
            parsed.command_errors.push(ConfigError { tool: Some(name.clone()), ..error });
        }
    };
    let DeValue::Table(table) = value.into_inner() else {
        let hint = format!("Write it as a table: `[{key}]`.");
        return add_error(ConfigError::about_key(
            &key,
            (path, text),
            name_span,
            "a tool is a table of keys",
            hint,
        ));
    };
    let (section, mismatches) = read_lenient(&mut Spanned::new(value_span, table), &key);
    let unparsed_keys = mismatches
        .iter()
        .map(|mismatch| first_key_below(&key, &mismatch.path).to_owned())
        .collect();
    mismatches.into_iter().for_each(|mismatch| add_error(mismatch.into_config_error(path, text)));
    parsed.commands.push(WrittenCommand { name, section, name_span, unparsed_keys });
}

/// Returns the key of the table at `path` that leads to `nested_path`.
fn first_key_below<'a>(path: &str, nested_path: &'a str) -> &'a str {
    let rest = nested_path.strip_prefix(path).unwrap_or(nested_path).trim_start_matches('.');
    rest.split(['.', '[']).next().unwrap_or(rest)
}

impl ValueMismatch {
    fn into_config_error(self, path: &Path, text: &str) -> ConfigError {
        ConfigError::from_toml(&self.path, (path, text), self.span, self.value_type, &self.error)
    }
}

/// Parses a file in which no error is accepted.
pub fn parse_strict(text: &str, path: &Path) -> Result<raw::ConfigFile> {
    let parsed = parse_config(text, path);
    match parsed.errors.into_iter().chain(parsed.command_errors).next() {
        None => Ok(parsed.file),
        Some(error) => Err(error.into_error()),
    }
}

impl ParsedConfig {
    /// Fails with the first error that makes the file unusable, and the number of such errors.
    pub fn check_usable(&self) -> Result<()> {
        let Some(first) = self.errors.first() else { return Ok(()) };
        let error: Error = first.clone().into_error();
        Err(match self.errors.len() {
            1 => error,
            count => error.with_hint(format!(
                "{} There are {count} such errors: run `ringfence config check`.",
                first.hint
            )),
        })
    }

    /// Returns the line of a key.
    pub fn line_of_key(&self, text: &str, key: &str) -> Option<usize> {
        self.key_spans.key_span(key).map(|span| line_number(text, span.start))
    }
}
