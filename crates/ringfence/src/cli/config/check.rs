//! `ringfence config check`.

use std::io::Write;
use std::path::PathBuf;

use serde_json::json;

use super::{Places, plain, unwritable, write_json};
use crate::base::{Kind, Result};
use crate::config::{Env, Finding, Severity};
use crate::registry::config_check::check_config;

/// Report every error and warning in the file, with its location and how to fix it
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 if the file is valid (with --strict: and has no warnings), otherwise 64."
)]
pub struct Args {
    /// File to check (default: the one that `ringfence serve` would read)
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
    #[command(flatten)]
    places: Places,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Treat warnings as errors
    #[arg(long)]
    strict: bool,
}

/// Runs `ringfence config check` and returns the exit code.
pub fn run(args: &Args, out: &mut impl Write) -> Result<u8> {
    let mut flags = args.places.flags();
    flags.config = args.file.clone().or(flags.config);
    let look = check_config(&flags, &Env::of_process())?;
    let count =
        |severity| look.findings.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let is_sound = errors == 0 && (!args.strict || warnings == 0);
    let tools = look.config.as_ref().map_or(0, |config| config.entries.len());
    if args.json {
        let result = json!({
            "file": look.file(), "ok": is_sound, "errors": errors, "warnings": warnings, "tools": tools,
            "findings": look.findings,
        });
        write_json(&result, out)?;
    } else {
        for finding in &look.findings {
            write_finding(finding, out).map_err(unwritable)?;
        }
        let file = look.file().map_or("no config file; defaults are used".to_owned(), |file| {
            format!(
                "{}: {}, {}, {}",
                file.display(),
                some(errors, "error"),
                some(warnings, "warning"),
                some(tools, "tool")
            )
        });
        writeln!(out, "{}", plain(&file)).and_then(|()| out.flush()).map_err(unwritable)?;
    }
    Ok(if is_sound { 0 } else { Kind::InvalidArguments.row().exit })
}

fn write_finding(finding: &Finding, out: &mut impl Write) -> std::io::Result<()> {
    let word = match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    writeln!(out, "{word}: {}", plain(&finding.line()))?;
    if let Some(picture) = &finding.picture {
        writeln!(out, "{}", plain(picture))?;
    }
    writeln!(out, "hint: {}\n", plain(&finding.hint))
}

/// Formats a count: `no errors`, `1 error`, `2 errors`.
fn some(count: usize, what: &str) -> String {
    match count {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}
