//! `ringfence rules check`: prints the answer of `codex execpolicy check`, byte for byte.

use std::io::Write;

use super::{RuleFiles, output_error, read_rules, report_faults, report_missing_rules};
use crate::base::{Error, Result};

/// Print the verdict on a command as JSON, exactly like `codex execpolicy check`
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 with any verdict; 1 if a file cannot be read or is invalid.\n\n\
`decision` is the strictest of all matching rules: forbidden, prompt or allow; it is missing if none matches.\n\
This matches text only. Use `ringfence rules explain` to see what happens at run time.\n\n\
Try:  ringfence rules check --pretty -- git push origin main"
)]
pub struct RulesCheckArgs {
    #[command(flatten)]
    files: RuleFiles,
    /// Print the JSON on several lines
    #[arg(long)]
    pretty: bool,
    /// Let a rule for `git` also match a path such as /usr/bin/git, unless `host_executable` lists
    /// other paths
    #[arg(long)]
    resolve_host_executables: bool,
    /// Command to check, with its arguments
    #[arg(
        value_name = "COMMAND",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    command: Vec<String>,
}

/// Runs `ringfence rules check` and returns the exit code.
pub fn run(args: &RulesCheckArgs, out: &mut impl Write) -> Result<u8> {
    let (rulebook, locations) = read_rules(&args.files)?;
    if report_faults(&rulebook) {
        return Ok(1);
    }
    report_missing_rules(&rulebook, &locations);
    let check = rulebook.table.check_command(&args.command, args.resolve_host_executables);
    let text = if args.pretty {
        serde_json::to_string_pretty(&check)
    } else {
        serde_json::to_string(&check)
    };
    let text = text.map_err(|error| {
        Error::internal("the verdict cannot be written as JSON").with_source(error)
    })?;
    writeln!(out, "{text}").map_err(output_error)?;
    Ok(0)
}
