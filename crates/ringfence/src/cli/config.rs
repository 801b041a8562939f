//! `ringfence config`: what the config file says, what is wrong with it, and what it may say.

mod check;
mod show;

use std::io::Write;
use std::path::PathBuf;

use crate::base::{Error, Result, visible};
use crate::config::{Flags, schema};

/// Check the config file, show what holds and who said so, or print its schema for editors
#[derive(clap::Args)]
#[command(after_help = "Start with:  ringfence config check")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Report everything that is wrong with the file, with its place and what to do
    Check(check::Args),
    /// Show every key with its value and who set it
    Show(show::Args),
    /// Print a JSON Schema of the file, for editors
    Schema,
}

/// Which server is meant: as `ringfence serve` has it.
#[derive(clap::Args)]
pub struct Places {
    /// The config file; default: $XDG_CONFIG_HOME/ringfence/config.toml
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The directory the tools work in
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Where runtime files go
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

impl Places {
    fn flags(&self) -> Flags {
        Flags {
            config: self.config.clone(),
            workspace: self.workspace.clone(),
            root: self.root.clone(),
            ..Flags::default()
        }
    }
}

pub fn run(args: &Args, out: &mut impl Write) -> Result<u8> {
    match &args.command {
        Command::Check(args) => check::run(args, out),
        Command::Show(args) => show::run(args, out),
        Command::Schema => write_json(&schema::schema(), out).map(|()| 0),
    }
}

fn write_json(value: &impl serde::Serialize, out: &mut impl Write) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::internal("no JSON").source(error))?;
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(unwritable)
}

fn unwritable(error: std::io::Error) -> Error {
    Error::internal("the output cannot be written").source(error)
}

/// Words of a file are shown as text and nothing else.
fn plain(text: &str) -> String {
    visible::lines(text)
}
