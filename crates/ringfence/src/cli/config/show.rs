//! `ringfence config show`.

use std::io::Write;

use serde_json::{Value, json};

use super::{ConfigLocation, escape_text, output_error, write_json};
use crate::base::suggest::suggest_name;
use crate::base::{Error, Result};
use crate::config::{self, ConfigListing, ProcessEnv, SettingOrigin, ShownKey};

/// Longest value shown, in characters; longer ones are truncated, except with --json.
const MAX_VALUE_CHARS: usize = 60;

/// Show every key with its value and where it was set
#[derive(clap::Args)]
#[command(after_help = "KEY may also name a section: `ringfence config show sandbox mcp.lint`.")]
pub struct ConfigShowArgs {
    /// Show only these keys and sections
    #[arg(value_name = "KEY")]
    keys: Vec<String>,
    #[command(flatten)]
    places: ConfigLocation,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `ringfence config show` and returns the exit code.
pub fn run(args: &ConfigShowArgs, out: &mut impl Write) -> Result<u8> {
    let mut listing = config::show_config(&args.places.to_flags(), &ProcessEnv::from_process())?;
    select_keys(&mut listing, &args.keys)?;
    match args.json {
        true => write_json(&to_json(&listing), out)?,
        false => write_keys(&listing, args.keys.is_empty(), out)
            .and_then(|()| out.flush())
            .map_err(output_error)?,
    }
    Ok(0)
}

fn select_keys(listing: &mut ConfigListing, requested: &[String]) -> Result<()> {
    let is_in_section = |key: &str, requested: &str| {
        key == requested || key.strip_prefix(requested).is_some_and(|r| r.starts_with('.'))
    };
    for requested in requested {
        if listing.keys.iter().any(|entry| is_in_section(&entry.key, requested)) {
            continue;
        }
        let mut names: Vec<&str> = listing.keys.iter().map(|entry| entry.key.as_str()).collect();
        names.extend(listing.keys.iter().filter_map(|entry| Some(entry.key.rsplit_once('.')?.0)));
        let hint = suggest_name(requested, &names).map_or_else(
            || "Run `ringfence config show` without a key to list all keys.".to_owned(),
            |suggestion| format!("Did you mean `{suggestion}`?"),
        );
        return Err(
            Error::invalid_arguments(format!("there is no key `{requested}`")).with_hint(hint)
        );
    }
    if !requested.is_empty() {
        listing
            .keys
            .retain(|entry| requested.iter().any(|requested| is_in_section(&entry.key, requested)));
    }
    Ok(())
}

fn to_json(listing: &ConfigListing) -> Value {
    let keys: Vec<Value> = (listing.keys.iter())
        .map(|entry| {
            let mut origin = match &entry.origin {
                SettingOrigin::Flag(name) => json!({"from": "flag", "name": name}),
                SettingOrigin::Env(name) => json!({"from": "environment", "name": name}),
                SettingOrigin::File(file) => json!({"from": "file", "file": file}),
                SettingOrigin::Default => json!({"from": "default"}),
            };
            if let Some(line) = entry.line {
                origin["line"] = json!(line);
            }
            json!({"key": entry.key, "value": entry.value, "origin": origin})
        })
        .collect();
    let secrets: Vec<Value> = (listing.secrets.iter())
        .map(|secret| json!({"name": secret.name, "state": secret_state(secret.is_set), "tools": secret.tools}))
        .collect();
    json!({"file": listing.file, "keys": keys, "secrets": secrets})
}

fn secret_state(is_set: bool) -> &'static str {
    if is_set { "set" } else { "missing" }
}

/// Writes the keys grouped by section; columns are aligned within each group.
fn write_keys(
    listing: &ConfigListing,
    with_secrets: bool,
    out: &mut impl Write,
) -> std::io::Result<()> {
    let file = listing.file.as_ref().map_or("none".to_owned(), |file| file.display().to_string());
    writeln!(out, "# config file: {}", escape_text(&file))?;
    for group in
        listing.keys.chunk_by(|one, other| key_section(&one.key) == key_section(&other.key))
    {
        let rows: Vec<(String, String)> = group
            .iter()
            .map(|entry| (format!("{} = {}", entry.key, format_value(entry)), format_origin(entry)))
            .map(|(left, right)| (escape_text(&left), escape_text(&right)))
            .collect();
        let width = rows.iter().map(|(left, _)| left.chars().count()).max().unwrap_or(0);
        writeln!(out)?;
        for (left, right) in rows {
            let gap = " ".repeat(width - left.chars().count());
            writeln!(out, "{left}{gap}  ({right})")?;
        }
    }
    if with_secrets && !listing.secrets.is_empty() {
        writeln!(out)?;
        for secret in &listing.secrets {
            writeln!(
                out,
                "{}  {}  (for {})",
                secret.name,
                secret_state(secret.is_set),
                escape_text(&secret.tools.join(", "))
            )?;
        }
    }
    Ok(())
}

fn key_section(key: &str) -> &str {
    key.rsplit_once('.').map_or("", |(section, _)| section)
}

fn format_value(entry: &ShownKey) -> String {
    let Some(value) = &entry.value else { return "-".to_owned() };
    let text = value.to_string();
    match text.chars().count() > MAX_VALUE_CHARS {
        true => text.chars().take(MAX_VALUE_CHARS).chain("…".chars()).collect(),
        false => text,
    }
}

/// Returns where a value comes from. The first line of the output names the file's full path, so
/// the file name and line are enough here.
fn format_origin(entry: &ShownKey) -> String {
    match (&entry.origin, entry.line) {
        (SettingOrigin::File(file), Some(line)) => {
            format!("{}:{line}", file.file_name().unwrap_or_default().to_string_lossy())
        }
        (SettingOrigin::Default, _) if entry.value.is_none() => "not set".to_owned(),
        (origin, _) => origin.to_string(),
    }
}
