//! The command line: one file per command.

mod approvals;
mod audit;
mod config;
mod doctor;
mod log;
mod rules;
mod sandbox;
mod secret;
mod serve;
mod try_it;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::base::{Error, Result, visible};
use crate::config::{Env, Flags, resolve_root};
use crate::mcp::failed_start;

/// Tools that coding agents can be trusted with.
///
/// Ringfence is an MCP server. Every call to one of its tools takes one road: it is checked, asked about where
/// it must be, run, and written to an audit log that can be verified.
#[derive(Parser)]
#[command(name = "ringfence", version, max_term_width = 100)]
#[command(
    after_help = "Start with:  ringfence serve --workspace .\nAdd to Codex: codex mcp add ringfence -- ringfence serve"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve MCP on standard input and output, or over HTTP
    Serve(serve::Args),
    /// See it work: a demonstration that takes seconds, touches nothing of yours and needs no network
    Try,
    /// Run a command in the fence and see what it holds
    Sandbox(sandbox::Args),
    /// Try every layer of the fence on this host, and say what holds and what to do about the rest
    Doctor(doctor::Args),
    /// See what your rules say about a command, try their examples, and look for rules that say too much
    Rules(rules::Args),
    /// Check the config file, show what holds and who said so, or print its schema for editors
    Config(config::Args),
    /// Show what has been done, follow it, or verify that the log is whole
    Audit(audit::Args),
    /// Keep the secrets that `${secret:NAME}` in the config stands for
    Secret(secret::Args),
    /// List and answer the questions that wait for a human
    Approvals(approvals::Approvals),
}

/// Runs the command line and turns its end into an exit code.
pub fn run() -> ExitCode {
    leave_no_core();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse_arguments(&error),
    };
    // `doctor` and `sandbox` try namespaces in processes of their own, and may stand in a fence themselves: neither can
    // be done by whom nobody can look at. The server looks at whoever answers a question, and `approvals` holds nothing
    // that its user must not see.
    if !matches!(cli.command, Command::Doctor(_) | Command::Sandbox(_) | Command::Approvals(_))
        && let Err(error) = hide()
    {
        report(&error);
        return ExitCode::from(error.kind().row().exit);
    }
    let result = match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Try => try_it::run(&mut std::io::stdout().lock()).map(|()| 0),
        Command::Sandbox(args) => sandbox::run(args),
        Command::Doctor(args) => doctor::run(args, &mut std::io::stdout().lock()),
        Command::Rules(args) => rules::run(&args, &mut std::io::stdout().lock()),
        Command::Config(args) => config::run(&args, &mut std::io::stdout().lock()),
        Command::Audit(args) => root(args.root.clone())
            .and_then(|root| audit::run(args, &root, &mut std::io::stdout().lock())),
        Command::Secret(args) => secret::run(&args, &mut std::io::stdout().lock()).map(|()| 0),
        Command::Approvals(args) => {
            root(args.root.clone()).and_then(|root| approvals::run(&args, &root)).map(|()| 0)
        }
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            report(&error);
            ExitCode::from(error.kind().row().exit)
        }
    }
}

/// Shows what clap says, help and version too. A client that starts the server with a wrong flag is told as well.
fn refuse_arguments(error: &clap::Error) -> ExitCode {
    // When standard error is gone there is nowhere left to say it.
    let _ = error.print();
    let mut args = std::env::args_os().skip(1);
    if error.use_stderr()
        && hide().is_ok()
        && args.next().is_some_and(|word| word == "serve")
        && !args.any(|arg| arg.to_string_lossy().starts_with("--http"))
    {
        let text = error.render().to_string();
        let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        failed_start::answer(&Error::invalid_arguments(first).reason("bad_flag").hint(
            "Correct the arguments that the client starts the server with; `ringfence serve --help` lists them.",
        ));
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// A command runs as the same user. It shall not find our environment, our pipes or our memory through /proc.
fn hide() -> Result<()> {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .map_err(|error| Error::internal("cannot hide from our own children").source(error))
}

/// Whatever holds a secret. With a limit of 1 no program is given one either. Where it is refused, it stays as it is.
fn leave_no_core() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Core);
    let _ =
        setrlimit(Resource::Core, Rlimit { current: Some(now.maximum.unwrap_or(1).min(1)), ..now });
}

/// An error for a person at a terminal: what happened, then what to do.
fn report(error: &Error) {
    let mut stderr = std::io::stderr().lock();
    let hint = error.hint_text().unwrap_or_else(|| error.kind().default_hint());
    // When standard error is gone there is nowhere left to say it.
    let _ = writeln!(
        stderr,
        "error: {}\nhint: {}",
        visible::lines(&error.detail()),
        visible::lines(hint)
    );
}

/// The root that these flags and this environment name.
fn root(flag: Option<PathBuf>) -> Result<PathBuf> {
    resolve_root(&Flags { root: flag, ..Flags::default() }, &Env::of_process())
}
