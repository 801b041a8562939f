//! Command line: one file per command.

mod approvals;
mod audit;
mod auth;
mod call;
mod completions;
mod config;
mod connect;
mod console;
mod doctor;
mod log;
mod ps;
mod rules;
mod sandbox;
mod screen;
mod secret;
mod serve;
mod server_sockets;
mod server_target;
mod token;
mod tool_schema;
mod tools;
mod try_it;
mod upstream;

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::base::{Error, Kind, Result, visible};
use crate::config::{ConfigFlags, ProcessEnv, resolve_root};
use crate::mcp::failed_start;

/// Tools that coding agents can be trusted with.
///
/// Ringfence is an MCP server. Every tool call is validated, approved where required, executed, and
/// recorded in a verifiable audit log.
#[derive(Parser)]
#[command(name = "ringfence", version, max_term_width = 100)]
#[command(
    after_help = "Start with:  ringfence serve --workspace .\nAdd to Codex: ringfence connect codex"
)]
struct CommandLine {
    #[command(subcommand)]
    command: CliCommand,
}

// The help texts are the doc comments of the argument types: one on a variant would replace them,
// including their long form.
#[derive(Subcommand)]
enum CliCommand {
    Serve(serve::ServeArgs),
    /// Run a demonstration; it takes seconds, touches none of your files and needs no network
    Try,
    Sandbox(sandbox::SandboxArgs),
    Connect(connect::ConnectArgs),
    Disconnect(connect::DisconnectArgs),
    Doctor(doctor::DoctorArgs),
    Rules(rules::RulesArgs),
    Config(config::ConfigArgs),
    Audit(audit::AuditArgs),
    Secret(secret::SecretArgs),
    Approvals(approvals::ApprovalsArgs),
    Upstream(upstream::UpstreamArgs),
    Auth(auth::AuthArgs),
    Tools(tools::ToolsArgs),
    Call(call::CallArgs),
    Ps(ps::PsArgs),
    Token(token::TokenArgs),
    Completions(completions::CompletionsArgs),
    Man(completions::ManArgs),
}

/// Runs the command named on the command line and returns its exit code.
pub fn run() -> ExitCode {
    disable_core_dumps();
    let command = match parse_command_line(&std::env::args_os().collect::<Vec<_>>()) {
        Ok(command) => command,
        Err(error) => return refuse_arguments(&error),
    };
    // `doctor` and `sandbox` create namespaces from child processes and may themselves run inside a
    // sandbox; neither works in a process that others cannot inspect. `approvals` stays inspectable
    // because the server inspects the process that answers a question; it holds nothing that its
    // user must not see. A server without auth inspects the process at the other end of a
    // connection, so `tools --url` and `call --url` stay inspectable, too; their token is that of
    // the shell that started them.
    let stays_inspectable = match &command {
        CliCommand::Doctor(_) | CliCommand::Sandbox(_) | CliCommand::Approvals(_) => true,
        CliCommand::Tools(args) => args.target.is_remote(),
        CliCommand::Call(args) => args.target.is_remote(),
        _ => false,
    };
    if !stays_inspectable && let Err(error) = make_undumpable() {
        report_error(&error);
        return ExitCode::from(error.kind().table_row().exit);
    }
    let result = match command {
        CliCommand::Serve(args) => serve::run(args),
        CliCommand::Try => try_it::run(&mut std::io::stdout().lock()).map(|()| 0),
        CliCommand::Sandbox(args) => sandbox::run(args),
        CliCommand::Connect(args) => {
            connect::run_connect(&args, &mut std::io::stdout().lock()).map(|()| 0)
        }
        CliCommand::Disconnect(args) => {
            connect::run_disconnect(&args, &mut std::io::stdout().lock()).map(|()| 0)
        }
        CliCommand::Doctor(args) => doctor::run(args, &mut std::io::stdout().lock()),
        CliCommand::Rules(args) => rules::run(&args, &mut std::io::stdout().lock()),
        CliCommand::Config(args) => config::run(&args, &mut std::io::stdout().lock()),
        CliCommand::Audit(args) => root_dir(args.root.clone())
            .and_then(|root| audit::run(args, &root, &mut std::io::stdout().lock())),
        CliCommand::Upstream(args) => upstream::run(&args, &mut std::io::stdout().lock()),
        CliCommand::Auth(args) => auth::run(&args, &mut std::io::stdout()),
        CliCommand::Secret(args) => secret::run(&args, &mut std::io::stdout().lock()).map(|()| 0),
        CliCommand::Approvals(args) => {
            root_dir(args.root.clone()).and_then(|root| approvals::run(&args, &root)).map(|()| 0)
        }
        CliCommand::Tools(args) => tools::run(&args, &mut std::io::stdout()).map(|()| 0),
        CliCommand::Call(args) => call::run(&args, &mut std::io::stdout()),
        CliCommand::Ps(args) => root_dir(args.root.clone())
            .and_then(|root| ps::run(&args, &root, &mut std::io::stdout()))
            .map(|()| 0),
        CliCommand::Token(args) => token::run(args, &mut std::io::stdout()).map(|()| 0),
        CliCommand::Completions(args) => {
            let command = CommandLine::command();
            completions::print_completions(&args, command, &mut std::io::stdout()).map(|()| 0)
        }
        CliCommand::Man(args) => {
            let command = CommandLine::command();
            completions::write_manual(&args, command, &mut std::io::stdout()).map(|()| 0)
        }
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            report_error(&error);
            ExitCode::from(error.kind().table_row().exit)
        }
    }
}

/// Parses the command line. The two commands that programs start for each session or command are
/// tried alone first: to describe all commands takes five times as long as to describe one.
fn parse_command_line(words: &[OsString]) -> std::result::Result<CliCommand, clap::Error> {
    let command = match words.get(1).and_then(|word| word.to_str()) {
        Some("serve") => parse_alone(&words[1..]).map(CliCommand::Serve),
        Some("sandbox") => parse_alone(&words[1..]).map(CliCommand::Sandbox),
        _ => None,
    };
    // Errors and help name the whole command, so they are left to the complete description.
    command.map_or_else(|| CommandLine::try_parse_from(words).map(|line| line.command), Ok)
}

/// Parses the arguments of one command, whose name is the first word.
fn parse_alone<A: clap::Args>(words: &[OsString]) -> Option<A> {
    let description = A::augment_args(clap::Command::default());
    let matches = description.try_get_matches_from(words).ok()?;
    A::from_arg_matches(&matches).ok()
}

/// Prints clap's message, including help and version. A client that started the server with a wrong
/// flag also receives the error over MCP.
fn refuse_arguments(error: &clap::Error) -> ExitCode {
    // If standard error is closed, there is nowhere left to report to.
    let _ = error.print();
    let mut args = std::env::args_os().skip(1);
    if error.use_stderr()
        && make_undumpable().is_ok()
        && args.next().is_some_and(|subcommand| subcommand == "serve")
        && !args.any(|arg| arg.to_string_lossy().starts_with("--http"))
    {
        let text = error.render().to_string();
        let first_line = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        failed_start::answer_client(&Error::invalid_arguments(first_line).with_reason("bad_flag").with_hint(
            "Correct the arguments in the client's configuration; `ringfence serve --help` lists them.",
        ));
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Makes this process non-dumpable. Commands run as the same user and could otherwise read our
/// environment, pipes and memory through /proc.
fn make_undumpable() -> Result<()> {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).map_err(
        |error| Error::internal("cannot make this process non-dumpable").with_source(error),
    )
}

/// Disables core dumps, because this process holds secrets. A limit of 1 byte also keeps the kernel
/// from piping the dump to a program (`core_pattern`). If the limit cannot be set, it stays
/// unchanged.
fn disable_core_dumps() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Core);
    let _ = setrlimit(
        Resource::Core,
        Rlimit { current: Some(limit.maximum.unwrap_or(1).min(1)), ..limit },
    );
}

/// Prints an error for a person at a terminal: what happened, then what to do.
fn report_error(error: &Error) {
    let mut stderr = std::io::stderr().lock();
    let colour = screen::uses_colour(&stderr);
    let hint = error.hint_text().unwrap_or_else(|| error.kind().default_hint());
    // If standard error is closed, there is nowhere left to report to.
    let _ = writeln!(
        stderr,
        "{} {}\n{} {}",
        screen::paint("error:", "1;31", colour),
        visible::escape_lines(&error.message_chain()),
        screen::paint("hint:", "1;36", colour),
        visible::escape_lines(hint)
    );
}

/// Writes text for people or scripts.
fn write_output(out: &mut dyn Write, text: &str) -> Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader closed the pipe early (`| head`); that is not an error.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome.map_err(|error| {
            Error::new(Kind::Unavailable, "the output cannot be written").with_source(error)
        }),
    }
}

/// Returns the root directory selected by this flag and the environment.
fn root_dir(flag: Option<PathBuf>) -> Result<PathBuf> {
    resolve_root(&ConfigFlags { root: flag, ..ConfigFlags::default() }, &ProcessEnv::from_process())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_command_that_is_parsed_alone_has_the_same_errors_and_help() {
        for line in [
            "ringfence serve --no-such-flag",
            "ringfence serve unexpected",
            "ringfence serve --help",
            "ringfence serve -h",
            "ringfence serve --version",
            "ringfence sandbox",
            "ringfence sandbox --on-prompt perhaps true",
        ] {
            let words = to_words(line);
            let error = parse_command_line(&words).err().unwrap();
            let complete = CommandLine::try_parse_from(&words).err().unwrap();
            assert_eq!(error.to_string(), complete.to_string(), "{line}");
        }
    }

    #[test]
    fn flags_after_the_program_of_a_sandbox_are_its_own() {
        for line in ["ringfence sandbox true --help", "ringfence sandbox --root r -- true -h"] {
            let command = parse_command_line(&to_words(line)).ok();
            assert!(matches!(command, Some(CliCommand::Sandbox(_))), "{line}");
        }
    }
}
