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
    let mut show = config::show_config(&args.places.to_flags(), &ProcessEnv::from_process())?;
    select_keys(&mut show, &args.keys)?;
    match args.json {
        true => write_json(&to_json(&show), out)?,
        false => write_keys(&show, args.keys.is_empty(), out)
            .and_then(|()| out.flush())
            .map_err(output_error)?,
    }
    Ok(0)
}

fn select_keys(show: &mut ConfigListing, wanted: &[String]) -> Result<()> {
    let under = |key: &str, wanted: &str| {
        key == wanted || key.strip_prefix(wanted).is_some_and(|r| r.starts_with('.'))
    };
    for wanted in wanted {
        if show.keys.iter().any(|shown| under(&shown.key, wanted)) {
            continue;
        }
        let mut names: Vec<&str> = show.keys.iter().map(|shown| shown.key.as_str()).collect();
        names.extend(show.keys.iter().filter_map(|shown| Some(shown.key.rsplit_once('.')?.0)));
        let hint = suggest_name(wanted, &names).map_or_else(
            || "Run `ringfence config show` without a key to list all keys.".to_owned(),
            |near| format!("Did you mean `{near}`?"),
        );
        return Err(Error::invalid_arguments(format!("there is no key `{wanted}`")).with_hint(hint));
    }
    if !wanted.is_empty() {
        show.keys.retain(|shown| wanted.iter().any(|wanted| under(&shown.key, wanted)));
    }
    Ok(())
}

fn to_json(show: &ConfigListing) -> Value {
    let keys: Vec<Value> = (show.keys.iter())
        .map(|shown| {
            let mut origin = match &shown.origin {
                SettingOrigin::Flag(name) => json!({"from": "flag", "name": name}),
                SettingOrigin::Env(name) => json!({"from": "environment", "name": name}),
                SettingOrigin::File(file) => json!({"from": "file", "file": file}),
                SettingOrigin::Default => json!({"from": "default"}),
            };
            if let Some(line) = shown.line {
                origin["line"] = json!(line);
            }
            json!({"key": shown.key, "value": shown.value, "origin": origin})
        })
        .collect();
    let secrets: Vec<Value> = (show.secrets.iter())
        .map(|needed| json!({"name": needed.name, "state": secret_state(needed.is_set), "tools": needed.tools}))
        .collect();
    json!({"file": show.file, "keys": keys, "secrets": secrets})
}

fn secret_state(is_set: bool) -> &'static str {
    if is_set { "set" } else { "missing" }
}

/// Writes the keys grouped by section; columns are aligned within each group.
fn write_keys(show: &ConfigListing, whole: bool, out: &mut impl Write) -> std::io::Result<()> {
    let file = show.file.as_ref().map_or("none".to_owned(), |file| file.display().to_string());
    writeln!(out, "# config file: {}", escape_text(&file))?;
    for group in show.keys.chunk_by(|one, other| key_section(&one.key) == key_section(&other.key)) {
        let rows: Vec<(String, String)> = group
            .iter()
            .map(|shown| (format!("{} = {}", shown.key, format_value(shown)), format_origin(shown)))
            .map(|(left, right)| (escape_text(&left), escape_text(&right)))
            .collect();
        let width = rows.iter().map(|(left, _)| left.chars().count()).max().unwrap_or(0);
        writeln!(out)?;
        for (left, right) in rows {
            let gap = " ".repeat(width - left.chars().count());
            writeln!(out, "{left}{gap}  ({right})")?;
        }
    }
    if whole && !show.secrets.is_empty() {
        writeln!(out)?;
        for needed in &show.secrets {
            writeln!(
                out,
                "{}  {}  (for {})",
                needed.name,
                secret_state(needed.is_set),
                escape_text(&needed.tools.join(", "))
            )?;
        }
    }
    Ok(())
}

fn key_section(key: &str) -> &str {
    key.rsplit_once('.').map_or("", |(section, _)| section)
}

fn format_value(shown: &ShownKey) -> String {
    let Some(value) = &shown.value else { return "-".to_owned() };
    let text = value.to_string();
    match text.chars().count() > MAX_VALUE_CHARS {
        true => text.chars().take(MAX_VALUE_CHARS).chain("…".chars()).collect(),
        false => text,
    }
}

/// Returns where a value comes from. The first line of the output names the file's full path, so
/// the file name and line are enough here.
fn format_origin(shown: &ShownKey) -> String {
    match (&shown.origin, shown.line) {
        (SettingOrigin::File(file), Some(line)) => {
            format!("{}:{line}", file.file_name().unwrap_or_default().to_string_lossy())
        }
        (SettingOrigin::Default, _) if shown.value.is_none() => "not set".to_owned(),
        (origin, _) => origin.to_string(),
    }
}
