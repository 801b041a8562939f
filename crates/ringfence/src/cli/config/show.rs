//! `ringfence config show`.

use std::io::Write;

use serde_json::{Value, json};

use super::{Places, plain, unwritable, write_json};
use crate::base::nearest::nearest;
use crate::base::{Error, Result};
use crate::config::{self, Env, Origin, Show, Shown};

/// Longest value shown, in characters; longer ones are truncated, except with --json.
const WIDEST: usize = 60;

/// Show every key with its value and where it was set
#[derive(clap::Args)]
#[command(after_help = "KEY may also name a section: `ringfence config show sandbox mcp.lint`.")]
pub struct Args {
    /// Show only these keys and sections
    #[arg(value_name = "KEY")]
    keys: Vec<String>,
    #[command(flatten)]
    places: Places,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `ringfence config show` and returns the exit code.
pub fn run(args: &Args, out: &mut impl Write) -> Result<u8> {
    let mut show = config::show(&args.places.flags(), &Env::of_process())?;
    choose(&mut show, &args.keys)?;
    match args.json {
        true => write_json(&as_data(&show), out)?,
        false => write(&show, args.keys.is_empty(), out)
            .and_then(|()| out.flush())
            .map_err(unwritable)?,
    }
    Ok(0)
}

fn choose(show: &mut Show, wanted: &[String]) -> Result<()> {
    let under = |key: &str, wanted: &str| {
        key == wanted || key.strip_prefix(wanted).is_some_and(|r| r.starts_with('.'))
    };
    for wanted in wanted {
        if show.keys.iter().any(|shown| under(&shown.key, wanted)) {
            continue;
        }
        let mut names: Vec<&str> = show.keys.iter().map(|shown| shown.key.as_str()).collect();
        names.extend(show.keys.iter().filter_map(|shown| Some(shown.key.rsplit_once('.')?.0)));
        let hint = nearest(wanted, &names).map_or_else(
            || "Run `ringfence config show` without a key to list all keys.".to_owned(),
            |near| format!("Did you mean `{near}`?"),
        );
        return Err(Error::invalid_arguments(format!("there is no key `{wanted}`")).hint(hint));
    }
    if !wanted.is_empty() {
        show.keys.retain(|shown| wanted.iter().any(|wanted| under(&shown.key, wanted)));
    }
    Ok(())
}

fn as_data(show: &Show) -> Value {
    let keys: Vec<Value> = (show.keys.iter())
        .map(|shown| {
            let mut origin = match &shown.origin {
                Origin::Flag(name) => json!({"from": "flag", "name": name}),
                Origin::Env(name) => json!({"from": "environment", "name": name}),
                Origin::File(file) => json!({"from": "file", "file": file}),
                Origin::Default => json!({"from": "default"}),
            };
            if let Some(line) = shown.line {
                origin["line"] = json!(line);
            }
            json!({"key": shown.key, "value": shown.value, "origin": origin})
        })
        .collect();
    let secrets: Vec<Value> = (show.secrets.iter())
        .map(|needed| json!({"name": needed.name, "state": state(needed.is_set), "tools": needed.tools}))
        .collect();
    json!({"file": show.file, "keys": keys, "secrets": secrets})
}

fn state(is_set: bool) -> &'static str {
    if is_set { "set" } else { "missing" }
}

/// Writes the keys grouped by section; columns are aligned within each group.
fn write(show: &Show, whole: bool, out: &mut impl Write) -> std::io::Result<()> {
    let file = show.file.as_ref().map_or("none".to_owned(), |file| file.display().to_string());
    writeln!(out, "# config file: {}", plain(&file))?;
    for group in show.keys.chunk_by(|one, other| section(&one.key) == section(&other.key)) {
        let rows: Vec<(String, String)> = group
            .iter()
            .map(|shown| (format!("{} = {}", shown.key, value(shown)), origin(shown)))
            .map(|(left, right)| (plain(&left), plain(&right)))
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
                state(needed.is_set),
                plain(&needed.tools.join(", "))
            )?;
        }
    }
    Ok(())
}

fn section(key: &str) -> &str {
    key.rsplit_once('.').map_or("", |(section, _)| section)
}

fn value(shown: &Shown) -> String {
    let Some(value) = &shown.value else { return "-".to_owned() };
    let text = value.to_string();
    match text.chars().count() > WIDEST {
        true => text.chars().take(WIDEST).chain("…".chars()).collect(),
        false => text,
    }
}

/// Returns where a value comes from. The first line of the output names the file's full path, so
/// the file name and line are enough here.
fn origin(shown: &Shown) -> String {
    match (&shown.origin, shown.line) {
        (Origin::File(file), Some(line)) => {
            format!("{}:{line}", file.file_name().unwrap_or_default().to_string_lossy())
        }
        (Origin::Default, _) if shown.value.is_none() => "not set".to_owned(),
        (origin, _) => origin.to_string(),
    }
}
