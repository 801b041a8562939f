//! `shell.exec`: runs one command to its end, or for as long as the caller wants to wait.
//!
//! It runs in the session's sandbox and needs no approval. If the operator has disabled the
//! sandbox, every call requires approval, and the result says so. A command that continues after
//! the call belongs to the MCP session (`shell.session`).

mod reply;
mod session;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::approval::Granted;
use crate::base::call::{CallFacts, CallStatus, Prepared, ToolOutput};
use crate::base::clock::Deadline;
use crate::base::{Error, Result, shell_quote};
use crate::config::Config;
use crate::sandbox::{Launcher, RunState, StdinSource, env};
use crate::tools::limit_docs::{DisplayAmount, ToolLimit};
use crate::tools::run::background::BackgroundRun;
use crate::tools::run::command::{self, CommandRequest, SpecTexts};
use crate::tools::{CallPlan, PermissionScope, PrepareCx, RunCx, Tool, ToolSpec};

pub use reply::Reply;
pub use session::await_shell;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);
/// Clients give up on a call after about a minute.
const DEFAULT_YIELD: Duration = Duration::from_secs(60);
const DESCRIPTION: &str = "Run a command in the workspace. Returns stdout, stderr and the exit code. After `yield_ms` it \
    continues (status `running`, exec_id for shell.session). Output is cut in the middle: the rest is in file.read of \
    the `output:` handle. Background processes end with the command; start servers with yield_ms 0.";

/// Arguments of `shell.exec`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// A command line for bash. This or `argv`.
    command: Option<String>,
    /// A program and its arguments, without a shell. This or `command`.
    argv: Option<Vec<String>>,
    /// Directory, relative to the workspace (the default).
    cwd: Option<String>,
    /// Environment variables to add.
    env: Option<BTreeMap<String, String>>,
    /// Text for standard input.
    stdin: Option<String>,
    /// Keep standard input open for shell.session `write`.
    interactive: Option<bool>,
    /// Milliseconds until all its processes are killed (120000).
    timeout_ms: Option<u64>,
    /// Milliseconds until it answers `running` (60000); 0: in the background.
    yield_ms: Option<u64>,
    /// `new`: a bash that keeps its state; its handle: run `command` in it.
    session: Option<String>,
    /// Maximum bytes of output (up to 262144).
    max_bytes: Option<usize>,
    /// Why, in a few words, for the user who is asked.
    #[expect(dead_code, reason = "shown with the other arguments to the user who is asked")]
    reason: Option<String>,
}

/// The `shell.exec` tool.
pub struct ShellExec {
    spec: ToolSpec,
    launcher: Launcher,
}

impl ShellExec {
    /// Creates the tool.
    pub fn new(config: &Config) -> Self {
        Self::with_launcher(config, Launcher::from_current_exe())
    }

    fn with_launcher(config: &Config, launcher: Launcher) -> Self {
        let texts = SpecTexts::from_config(config);
        let description = format!("{DESCRIPTION}{}", texts.description);
        let spec = ToolSpec {
            version: "1.2.0".into(),
            scope: PermissionScope::Exec,
            hints: texts.hints,
            effects: texts.effects,
            profile: config.default_sandbox.profile.name(),
            requires_approval: !texts.is_sandboxed,
            streaming: true,
            timeout: DEFAULT_TIMEOUT,
            ..ToolSpec::from_types::<Args, Reply>("shell.exec", "Run a command", &description)
        };
        ShellExec { spec, launcher }
    }

    async fn execute_call(
        &self,
        cx: &Arc<RunCx>,
        arguments: Args,
        call: Prepared,
    ) -> Result<ToolOutput> {
        arguments.check_persistent(cx.session_ref.persistent)?;
        if arguments.session.is_some() {
            return session::execute_in_shell(cx, call, &self.launcher, &arguments).await;
        }
        let runs = Arc::clone(cx.background_runs());
        if arguments.yield_ms.is_some() {
            runs.check_room()?;
        }
        // If no more runs may continue in the background, this one must not outlive its call.
        let may_yield = cx.session_ref.persistent && runs.has_room();
        let display_command = arguments.display_text();
        let (program, args) = arguments.resolve_program()?;
        // The run has its own deadline because it continues when the call's ends, but never longer
        // than the caller, the client and the operator allow.
        let deadline = Arc::new(Deadline::after(call.time_limit));
        let stdin = arguments.stdin.clone().unwrap_or_default().into_bytes();
        let command = CommandRequest {
            program,
            args,
            env: arguments.build_env()?,
            cwd: arguments.cwd.clone().unwrap_or_else(|| ".".to_owned()),
            stdin: match (arguments.interactive, arguments.stdin.is_some()) {
                (Some(true), _) => StdinSource::Open(stdin),
                (_, true) => StdinSource::Bytes(stdin),
                (_, false) => StdinSource::Empty,
            },
            driver_socket: None,
            streaming: true,
            merged: false,
            max_bytes: arguments.max_bytes,
        };
        // Without a persistent session there is nothing the run could continue in.
        let deadline =
            if cx.session_ref.persistent { deadline } else { Arc::clone(&cx.control.deadline) };
        let started =
            command::start_command(cx, call, &self.launcher, command, Some(deadline)).await?;
        let yield_deadline = may_yield.then(|| Arc::new(Deadline::after(arguments.yield_wait())));
        started.owner.set_owner(cx, yield_deadline.iter().cloned().collect());
        let run_state =
            started.watch_run(cx, arguments.max_bytes, wait_until(yield_deadline)).await?;
        match run_state {
            RunState::Over(outcome) => {
                let facts = command::collect_facts(&outcome.result);
                Reply::from_outcome(cx, started.profile, outcome).into_output(facts)
            }
            RunState::Running(partial) => {
                let run =
                    runs.insert(BackgroundRun::new("command", &display_command, started, None));
                running_output(Reply::from_partial(cx, partial, &run.id))
            }
        }
    }
}

/// Waits until the deadline, or indefinitely if the run cannot continue without the call.
fn wait_until(deadline: Option<Arc<Deadline>>) -> BoxFuture<'static, ()> {
    match deadline {
        Some(deadline) => Box::pin(async move { deadline.wait_until_passed().await }),
        None => Box::pin(std::future::pending()),
    }
}

/// Builds the result for a command that is still running.
pub fn running_output(reply: Reply) -> Result<ToolOutput> {
    let facts = CallFacts {
        status: Some(CallStatus::Running),
        stdout_bytes: Some(reply.stdout_bytes),
        stderr_bytes: Some(reply.stderr_bytes),
        ..CallFacts::default()
    };
    reply.into_output(facts)
}

impl Tool for ShellExec {
    type Args = Args;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn limits(&self) -> Vec<ToolLimit> {
        vec![
            ToolLimit::for_time(DEFAULT_TIMEOUT),
            ToolLimit {
                subject: "wait before `running`",
                default_value: DEFAULT_YIELD.format_amount(),
                maximum: "the time".to_owned(),
            },
            ToolLimit::for_text(command::MAX_BYTES),
            ToolLimit {
                subject: "stored output",
                default_value: "64 MiB".to_owned(),
                maximum: "`[limits] output_file_mb`".to_owned(),
            },
        ]
    }

    fn parse(&self, arguments: &Map<String, Value>, cx: &PrepareCx<'_>) -> Result<Args> {
        let mut args: Args = self.spec.parse_arguments(arguments)?;
        args.validate_args()?;
        if args.session.as_deref().is_none_or(|session| session == "new") {
            cx.overrides.fill_unset(&mut args.cwd, &mut args.env);
        }
        Ok(args)
    }

    fn prepare(&self, args: &Args, cx: &PrepareCx<'_>) -> Result<CallPlan> {
        if let Some(session) = args.session.as_deref().filter(|session| *session != "new") {
            let run = cx.state.background_runs.get(session)?;
            return Ok(CallPlan {
                // Only the shell knows its current directory.
                cwd: Some(format!("the current directory and environment of shell {}", run.id)),
                timeout: Some(args.timeout_within(cx.config)),
                approval_reason: command::approval_reason(cx),
                command: Some(args.command_line()),
                command_covers: &["command", "argv"],
                ..CallPlan::default()
            });
        }
        // Opened so that the call fails before the user is asked; the run opens it again and uses
        // the descriptor it opened.
        let workspace = cx.workspace;
        let (_, relative_cwd) = workspace.open_dir(args.cwd.as_deref().unwrap_or("."))?;
        Ok(CallPlan {
            env: args.build_env()?,
            // The resolved path, not the one the caller wrote.
            cwd: args
                .cwd
                .as_ref()
                .map(|_| workspace.path().join(relative_cwd).display().to_string()),
            timeout: Some(args.timeout_within(cx.config)),
            approval_reason: command::approval_reason(cx),
            command: Some(args.command_line()),
            command_covers: &["command", "argv"],
            ..CallPlan::default()
        })
    }

    async fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        args: Args,
        call: Granted<Prepared>,
    ) -> Result<ToolOutput> {
        self.execute_call(&cx, args, call.consume()).await
    }
}

impl Args {
    /// Validates what the schema cannot express.
    fn validate_args(&self) -> Result<()> {
        self.resolve_program()?;
        self.build_env()?;
        if self.timeout_ms == Some(0) {
            return Err(Error::invalid_arguments("`timeout_ms` is zero")
                .with_hint("Omit it for the default of two minutes."));
        }
        let Some(session) = &self.session else { return Ok(()) };
        let refuse =
            |message: &str, hint: &str| Err(Error::invalid_arguments(message).with_hint(hint));
        if self.argv.is_some() {
            return refuse(
                "a shell session takes `command`, not `argv`",
                "Give the line for bash as `command`.",
            );
        }
        if self.stdin.is_some() {
            return refuse(
                "a command of a shell session has no `stdin` of its own",
                "Use a here-document in `command`, or `interactive: true` and shell.session `write`.",
            );
        }
        let sets_context = self.cwd.is_some() || self.env.is_some() || self.interactive.is_some();
        if session != "new" && sets_context {
            return refuse(
                "`cwd`, `env` and `interactive` can only be set when a shell session is started",
                "Use `cd` and `export` in `command`.",
            );
        }
        Ok(())
    }

    fn check_persistent(&self, persistent: bool) -> Result<()> {
        let argument = match () {
            () if persistent => return Ok(()),
            () if self.session.is_some() => "`session`",
            () if self.yield_ms.is_some() => "`yield_ms`",
            () => return Ok(()),
        };
        Err(Error::invalid_arguments(format!("{argument} needs a persistent session"))
            .with_reason("no_session")
            .with_hint(
                "Send the session handle of an earlier result's `_meta` along with the call.",
            ))
    }

    fn timeout_within(&self, config: &Config) -> Duration {
        self.timeout_ms
            .map_or(DEFAULT_TIMEOUT, Duration::from_millis)
            .min(config.limits.timeout_ceiling)
    }

    fn yield_wait(&self) -> Duration {
        self.yield_ms.map_or(DEFAULT_YIELD, Duration::from_millis)
    }

    fn display_text(&self) -> String {
        match (&self.command, &self.argv) {
            (Some(command), _) => command.clone(),
            (None, Some(argv)) => argv.join(" "),
            (None, None) => String::new(),
        }
    }

    /// Returns the command line for an approval prompt. The words of `argv` are quoted, because no
    /// two different commands may look the same there.
    fn command_line(&self) -> String {
        match self.argv.as_deref().filter(|argv| !argv.is_empty()) {
            Some(argv) => shell_quote::quote_command(argv.iter().map(String::as_str)),
            None => self.display_text(),
        }
    }

    /// Returns the program and its arguments, from either form.
    fn resolve_program(&self) -> Result<(String, Vec<String>)> {
        let (program, args) = match (&self.command, &self.argv) {
            (Some(command), None) => {
                (command::shell_path().to_owned(), vec!["-c".to_owned(), command.clone()])
            }
            (None, Some(argv)) => match argv.split_first() {
                Some((program, args)) if !program.is_empty() => (program.clone(), args.to_vec()),
                _ => {
                    return Err(Error::invalid_arguments("`argv` names no program")
                        .with_hint("Its first item is the program."));
                }
            },
            _ => {
                return Err(Error::invalid_arguments("give exactly one of `command` and `argv`")
                    .with_hint(
                        "`command` is a line for bash, `argv` a program with its arguments.",
                    ));
            }
        };
        if args.iter().chain([&program]).any(|part| part.contains('\0')) {
            return Err(Error::invalid_arguments("a command cannot contain a NUL byte")
                .with_hint("Pass such bytes through a file."));
        }
        Ok((program, args))
    }

    fn build_env(&self) -> Result<Vec<(String, String)>> {
        let variables: Vec<(String, String)> =
            self.env.clone().unwrap_or_default().into_iter().collect();
        env::build(&variables)
    }
}

#[cfg(test)]
mod tests;
