//! `ringfence config check`.

use std::io::Write;
use std::path::PathBuf;

use serde_json::json;

use super::{ConfigLocation, escape_text, output_error, write_json};
use crate::base::{Kind, Result};
use crate::config::{ConfigFinding, FindingSeverity, ProcessEnv, env};
use crate::registry::config_check::check_config;

/// Report every error and warning in the file, with its location and how to fix it
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 if the file is valid (with --strict: and has no warnings), otherwise 64."
)]
pub struct ConfigCheckArgs {
    /// File to check (default: the one that `ringfence serve` would read)
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
    #[command(flatten)]
    places: ConfigLocation,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Treat warnings as errors
    #[arg(long)]
    strict: bool,
}

/// Runs `ringfence config check` and returns the exit code.
pub fn run(args: &ConfigCheckArgs, out: &mut impl Write) -> Result<u8> {
    let mut flags = args.places.to_flags();
    flags.config = args.file.clone().or(flags.config);
    let check = check_config(&flags, &ProcessEnv::from_process())?;
    let count =
        |severity| check.findings.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings) = (count(FindingSeverity::Error), count(FindingSeverity::Warning));
    let is_sound = errors == 0 && (!args.strict || warnings == 0);
    let tools = check.config.as_ref().map_or(0, |config| config.commands.len());
    let upstreams = check.config.as_ref().map(|config| &config.upstreams);
    let upstreams = upstreams.filter(|one| one.file.is_some() || !one.servers.is_empty());
    if args.json {
        let upstreams =
            upstreams.map(|one| json!({"file": one.file, "servers": one.servers.len()}));
        let result = json!({
            "file": check.file_path(), "ok": is_sound, "errors": errors, "warnings": warnings, "tools": tools,
            "upstreams": upstreams, "findings": check.findings,
        });
        write_json(&result, out)?;
    } else {
        for finding in &check.findings {
            write_finding(finding, out).map_err(output_error)?;
        }
        let file =
            check.file_path().map_or("no config file; defaults are used".to_owned(), |file| {
                format!(
                    "{}: {}, {}, {}",
                    file.display(),
                    format_count(errors, "error"),
                    format_count(warnings, "warning"),
                    format_count(tools, "tool")
                )
            });
        let servers = upstreams.map(|one| {
            let source = one
                .file
                .as_ref()
                .map_or_else(|| env::UPSTREAMS_JSON.to_owned(), |file| file.display().to_string());
            format!("{source}: {}", format_count(one.servers.len(), "server"))
        });
        for line in [Some(file), servers].into_iter().flatten() {
            writeln!(out, "{}", escape_text(&line)).map_err(output_error)?;
        }
        out.flush().map_err(output_error)?;
    }
    Ok(if is_sound { 0 } else { Kind::InvalidArguments.table_row().exit })
}

fn write_finding(finding: &ConfigFinding, out: &mut impl Write) -> std::io::Result<()> {
    let label = match finding.severity {
        FindingSeverity::Error => "error",
        FindingSeverity::Warning => "warning",
    };
    writeln!(out, "{label}: {}", escape_text(&finding.to_line()))?;
    if let Some(picture) = &finding.picture {
        writeln!(out, "{}", escape_text(picture))?;
    }
    writeln!(out, "hint: {}\n", escape_text(&finding.hint))
}

/// Formats a count: `no errors`, `1 error`, `2 errors`.
fn format_count(count: usize, noun: &str) -> String {
    match count {
        0 => format!("no {noun}s"),
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}
