//! `ringfence config`: checks the config file, shows effective settings, prints the file's schema.

mod check;
mod show;

use std::io::Write;
use std::path::PathBuf;

use crate::base::{Error, Result, visible};
use crate::config::{ConfigFlags, schema};

/// Check the config file, show the effective settings and where each comes from, or print its
/// schema
#[derive(clap::Args)]
#[command(after_help = "Start with:  ringfence config check")]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(clap::Subcommand)]
enum ConfigCommand {
    /// Report every error and warning in the file, with its location and how to fix it
    Check(check::ConfigCheckArgs),
    /// Show every key with its value and where it was set
    Show(show::ConfigShowArgs),
    /// Print a JSON Schema of the file for editors
    Schema,
}

/// Location flags shared with `ringfence serve`, so that the same server configuration is resolved.
#[derive(clap::Args)]
pub struct ConfigLocation {
    /// Config file to read (default: $XDG_CONFIG_HOME/ringfence/config.toml)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// JSON file with other MCP servers
    #[arg(long, value_name = "FILE")]
    upstreams: Option<PathBuf>,
    /// Directory the tools work in
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Directory for runtime files (default: $XDG_STATE_HOME/ringfence)
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

impl ConfigLocation {
    pub fn to_flags(&self) -> ConfigFlags {
        ConfigFlags {
            config: self.config.clone(),
            upstreams: self.upstreams.clone(),
            workspace: self.workspace.clone(),
            root: self.root.clone(),
            ..ConfigFlags::default()
        }
    }
}

/// Runs `ringfence config` and returns the exit code.
pub fn run(args: &ConfigArgs, out: &mut impl Write) -> Result<u8> {
    match &args.command {
        ConfigCommand::Check(args) => check::run(args, out),
        ConfigCommand::Show(args) => show::run(args, out),
        ConfigCommand::Schema => write_json(&schema::config_schema(), out).map(|()| 0),
    }
}

fn write_json(value: &impl serde::Serialize, out: &mut impl Write) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|error| {
        Error::internal("the result cannot be written as JSON").with_source(error)
    })?;
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(output_error)
}

fn output_error(error: std::io::Error) -> Error {
    Error::internal("the output cannot be written").with_source(error)
}

/// Escapes control characters: text from a file must not drive the terminal. The line with the
/// caret is ours, and its spaces are what puts the caret in its place.
fn escape_text(text: &str) -> String {
    let is_caret_line = |line: &str| line.ends_with('^') && line.chars().all(|c| " |^".contains(c));
    let escape = |line: &str| match is_caret_line(line) {
        true => line.to_owned(),
        false => visible::escape_lines(line),
    };
    text.split('\n').map(escape).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caret_keeps_its_column_and_text_is_escaped() {
        let caret = format!("  | {}^", " ".repeat(30));
        assert_eq!(escape_text(&caret), caret);
        assert_eq!(escape_text("a\u{1b}[2J\nb"), "a\\u{1b}[2J\nb");
    }
}
