//! `ringfence rules check`: the answer of `codex execpolicy check`, to the byte.

use std::io::Write;

use super::{Files, read, report, report_none, unwritable};
use crate::base::{Error, Result};

/// Say what the rules say about a command, as JSON and exactly as `codex execpolicy check` does
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 with a verdict, whatever it is; 1 when a file cannot be read or is not sound.\n\n\
`decision` is the strictest of all rules that match: forbidden, prompt or allow; it is missing when none does.\n\
This is about text. What happens at run time is said by `ringfence rules explain`.\n\n\
Try:  ringfence rules check --pretty -- git push origin main"
)]
pub struct Args {
    #[command(flatten)]
    files: Files,
    /// Over several lines, for people
    #[arg(long)]
    pretty: bool,
    /// Let rules on a name match a path that ends in it, where `host_executable` does not say otherwise
    #[arg(long)]
    resolve_host_executables: bool,
    /// The command and its arguments
    #[arg(
        value_name = "COMMAND",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    command: Vec<String>,
}

pub fn run(args: &Args, out: &mut impl Write) -> Result<u8> {
    let (book, places) = read(&args.files)?;
    if report(&book) {
        return Ok(1);
    }
    report_none(&book, &places);
    let check = book.table.check(&args.command, args.resolve_host_executables);
    let text = if args.pretty {
        serde_json::to_string_pretty(&check)
    } else {
        serde_json::to_string(&check)
    };
    let text = text
        .map_err(|error| Error::internal("the verdict cannot be written as JSON").source(error))?;
    writeln!(out, "{text}").map_err(unwritable)?;
    Ok(0)
}
