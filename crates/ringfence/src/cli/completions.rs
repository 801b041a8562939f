//! `ringfence completions` and `ringfence man`: made from the same definitions as `--help`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

use super::write_output;
use crate::base::{Error, Kind, Result};

/// Print the completions for a shell
#[derive(clap::Args)]
#[command(
    after_help = "Install:\n  bash:  ringfence completions bash > ~/.local/share/bash-completion/completions/ringfence\n  zsh:   ringfence completions zsh > ~/.zfunc/_ringfence   (a directory of $fpath)\n  fish:  ringfence completions fish > ~/.config/fish/completions/ringfence.fish"
)]
pub struct CompletionsArgs {
    shell: CompletionShell,
}

/// Shells with completions.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum CompletionShell {
    Bash,
    Zsh,
    Fish,
}

/// Write the manual pages into a directory, one per command
#[derive(clap::Args)]
#[command(after_help = "Read one with:  man -l DIR/ringfence-serve.1")]
pub struct ManArgs {
    /// Directory to write to; it is created if it does not exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Runs `ringfence completions`.
pub fn print_completions(
    args: &CompletionsArgs,
    mut command: Command,
    out: &mut impl Write,
) -> Result<()> {
    let shell = match args.shell {
        CompletionShell::Bash => Shell::Bash,
        CompletionShell::Zsh => Shell::Zsh,
        CompletionShell::Fish => Shell::Fish,
    };
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    let hidden = list_hidden_flags(&command);
    let script = hidden.iter().fold(script, |script, flag| remove_flag(&script, flag, args.shell));
    write_output(out, &script)
}

/// Removes a hidden flag: the generators offer those, too.
fn remove_flag(script: &str, flag: &str, shell: CompletionShell) -> String {
    let offers_flag = |line: &str| match shell {
        // One list of all flags, which ends with another one.
        CompletionShell::Bash => false,
        CompletionShell::Zsh => {
            let entry = line.trim_start().strip_prefix(&format!("'--{flag}"));
            entry.is_some_and(|rest| rest.starts_with(['[', '=']))
        }
        CompletionShell::Fish => format!("{line} ").contains(&format!(" -l {flag} ")),
    };
    let lines = script.lines().filter(|line| !offers_flag(line));
    let kept: String = lines.flat_map(|line| [line, "\n"]).collect();
    match shell {
        CompletionShell::Bash => kept.replace(&format!(" --{flag} "), " "),
        CompletionShell::Zsh | CompletionShell::Fish => kept,
    }
}

/// Returns the long names of all flags that `--help` does not show.
fn list_hidden_flags(command: &Command) -> Vec<String> {
    let hidden = command.get_arguments().filter(|arg| arg.is_hide_set());
    let mut flags: Vec<String> =
        hidden.filter_map(|arg| arg.get_long().map(str::to_owned)).collect();
    flags.extend(command.get_subcommands().flat_map(list_hidden_flags));
    flags
}

/// Runs `ringfence man`.
pub fn write_manual(args: &ManArgs, mut command: Command, out: &mut impl Write) -> Result<()> {
    let failed = |error: std::io::Error| {
        Error::new(
            Kind::Unavailable,
            format!("the pages cannot be written to {}", args.dir.display()),
        )
        .with_hint("Name a directory that you can write to.")
        .with_source(error)
    };
    std::fs::create_dir_all(&args.dir).map_err(failed)?;
    command = command.disable_help_subcommand(true);
    command.build();
    let count = write_pages(&command, &args.dir).map_err(failed)?;
    write_output(out, &format!("Wrote {count} pages to {}.\n", args.dir.display()))
}

/// Writes the page of a command and those of its subcommands. Returns their number.
fn write_pages(command: &Command, dir: &Path) -> std::io::Result<usize> {
    let source = concat!("ringfence ", env!("CARGO_PKG_VERSION"));
    Man::new(command.clone()).source(source).generate_to(dir)?;
    let mut count = 1;
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        count += write_pages(subcommand, dir)?;
    }
    Ok(count)
}
