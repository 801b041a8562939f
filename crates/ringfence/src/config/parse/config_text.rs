//! Parses the text of a config file, and collects every error in it.
//!
//! One error does not hide the next. An error in `[mcp.<name>]` disables that tool; any other,
//! including one in `[upstream.<id>]`, makes the whole file unusable.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::key_spans::{KeySpans, child_path, line_number};
use super::lenient::{MAX_MISMATCHES, ValueMismatch, read_lenient};
use super::raw::COMMANDS_TABLE;
use super::upstream_section::{UPSTREAMS_TABLE, UpstreamSection};
use super::{raw, toml_errors, value_errors};
use crate::base::{Error, Result};
use crate::config::fault::ConfigError;
use crate::config::secrets::SecretRef;
use crate::config::template::ValueTemplate;

/// Returns the path of a command's table.
pub fn command_key(name: &str) -> String {
    child_path(COMMANDS_TABLE, name)
}

/// Returns the path of the table with a server's settings.
pub fn upstream_key(id: &str) -> String {
    child_path(UPSTREAMS_TABLE, id)
}

/// A parsed config file.
#[derive(Debug, Default)]
pub struct ParsedConfig {
    /// The values that could be parsed.
    pub file: raw::ConfigFile,
    pub commands: Vec<WrittenCommand>,
    pub upstreams: Vec<WrittenUpstream>,
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

/// An `[upstream.<id>]` table as written.
#[derive(Debug)]
pub struct WrittenUpstream {
    pub id: String,
    /// The values that could be parsed.
    pub section: UpstreamSection,
    /// Range of its id in the text.
    pub id_span: Range<usize>,
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
    let mut parsed =
        ParsedConfig { key_spans: KeySpans::from_text(text), ..ParsedConfig::default() };
    parsed.has_syntax_errors = errors.iter().any(|error| !toml_errors::is_duplicate_key(error));
    parsed.errors = toml_errors::convert_errors(path, text, &errors);
    let broken_lines: BTreeSet<usize> =
        parsed.errors.iter().map(|config_error| config_error.line).collect();

    let commands = table.get_mut().remove(COMMANDS_TABLE);
    let upstreams = table.get_mut().remove(UPSTREAMS_TABLE);
    for (key, span) in remove_listed_sections(table.get_mut()) {
        let (message, hint) = value_errors::listed_section(key);
        parsed.errors.push(ConfigError::about_key(key, (path, text), span, message, hint));
    }
    let (file, mismatches) = read_lenient(&mut table, "");
    parsed.file = file;
    parsed
        .errors
        .extend(mismatches.into_iter().map(|mismatch| mismatch.into_config_error(path, text)));
    let command_hint = "Write each tool as a table of its own: `[mcp.name]`.";
    for (name, value) in
        split_tables(commands, (path, text), COMMANDS_TABLE, command_hint, &mut parsed)
    {
        parse_command(path, text, name, value, &mut parsed);
    }
    let upstream_hint = "Write settings of a server as a table of its own, `[upstream.id]`; `upstreams` names the file of servers.";
    for (id, value) in
        split_tables(upstreams, (path, text), UPSTREAMS_TABLE, upstream_hint, &mut parsed)
    {
        parse_upstream(path, text, id, value, &mut parsed);
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

/// Removes and returns lists that stand in place of a section. The deserializer would take their
/// items for the values of the section's keys, in the order of our structures.
fn remove_listed_sections(table: &mut DeTable<'_>) -> Vec<(&'static str, Range<usize>)> {
    let mut listed = Vec::new();
    for section in raw::SECTIONS {
        let (parent, name) = section.rsplit_once('.').unwrap_or(("", section));
        let Some(parent) = find_table(table, parent) else { continue };
        let Some(value) = parent.get(name) else { continue };
        if matches!(value.get_ref(), DeValue::Array(_)) {
            listed.push((*section, value.span()));
            parent.remove(name);
        }
    }
    listed
}

/// Returns the table at a path of names, which is empty for `table` itself.
fn find_table<'t, 'a>(table: &'t mut DeTable<'a>, path: &str) -> Option<&'t mut DeTable<'a>> {
    path.split('.').filter(|name| !name.is_empty()).try_fold(table, |table, name| {
        match table.get_mut(name)?.get_mut() {
            DeValue::Table(inner) => Some(inner),
            _ => None,
        }
    })
}

/// Returns the members of a table whose members are tables; reports another value.
fn split_tables<'a>(
    value: Option<Spanned<DeValue<'a>>>,
    (path, text): (&Path, &str),
    name: &str,
    hint: &str,
    parsed: &mut ParsedConfig,
) -> DeTable<'a> {
    let Some(value) = value else { return DeTable::new() };
    let value_span = value.span();
    match value.into_inner() {
        DeValue::Table(members) => members,
        _ => {
            let span = parsed.key_spans.key_span(name).unwrap_or(value_span);
            let message = format!("`{name}` is not a table");
            let error = ConfigError::about_key(name, (path, text), span, message, hint);
            parsed.errors.push(error);
            DeTable::new()
        }
    }
}

fn parse_upstream(
    path: &Path,
    text: &str,
    id: Spanned<Cow<'_, str>>,
    value: Spanned<DeValue<'_>>,
    parsed: &mut ParsedConfig,
) {
    let (id_span, value_span) = (id.span(), value.span());
    let id = id.into_inner().into_owned();
    let key = upstream_key(&id);
    let DeValue::Table(table) = value.into_inner() else {
        let (message, hint) =
            ("settings of a server are a table", format!("Write it as a table: `[{key}]`."));
        let error = ConfigError::about_key(&key, (path, text), id_span, message, hint);
        return parsed.errors.push(error);
    };
    let (section, mismatches) = read_lenient(&mut Spanned::new(value_span, table), &key);
    let errors = mismatches.into_iter().map(|mismatch| mismatch.into_config_error(path, text));
    parsed.errors.extend(errors);
    parsed.upstreams.push(WrittenUpstream { id, section, id_span });
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

/// Fails with the first of these errors, and their number.
pub fn check_usable(errors: &[ConfigError]) -> Result<()> {
    let Some(first) = errors.first() else { return Ok(()) };
    let error: Error = first.clone().into_error();
    Err(match errors.len() {
        1 => error,
        count => error.with_hint(format!(
            "{} There are {count} such errors: run `ringfence config check`.",
            first.hint
        )),
    })
}

impl ParsedConfig {
    /// Fails with the first error that makes the file unusable, and the number of such errors.
    pub fn check_usable(&self) -> Result<()> {
        check_usable(&self.errors)
    }

    /// Returns the line of a key.
    pub fn line_of_key(&self, text: &str, key: &str) -> Option<usize> {
        self.key_spans.key_span(key).map(|span| line_number(text, span.start))
    }
}
