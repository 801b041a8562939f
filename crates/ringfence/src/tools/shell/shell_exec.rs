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
use crate::base::call::{Facts, Output, Prepared, Status};
use crate::base::clock::Deadline;
use crate::base::{Error, Result, visible};
use crate::config::Config;
use crate::sandbox::{Launcher, RunState, StdinSource, env};
use crate::session::Overrides;
use crate::tools::limits::{Amount, Limit};
use crate::tools::run::command::{self, About, Command};
use crate::tools::run::runs::{Kept, Runs};
use crate::tools::{Plan, PrepareCx, RunCx, Scope, Spec, Tool, arguments};

pub use reply::Reply;
pub use session::attend;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);
/// Clients give up on a call after about a minute.
const DEFAULT_YIELD: Duration = Duration::from_secs(60);
const DESCRIPTION: &str = "Run a command in the workspace. Returns stdout, stderr and the exit code. After `yield_ms` it \
    continues (status `running`, exec_id for shell.session). Output is cut in the middle: the rest is in file.read of \
    the `output:` handle. Background processes end with the command; start servers with yield_ms 0.";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
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
    spec: Spec,
    launcher: Launcher,
}

impl ShellExec {
    /// Creates the tool.
    pub fn new(config: &Config) -> Self {
        Self::with(config, Launcher::from_current_exe())
    }

    fn with(config: &Config, launcher: Launcher) -> Self {
        let about = About::of(config);
        let spec = Spec {
            name: "shell.exec".into(),
            title: "Run a command".into(),
            description: format!("{DESCRIPTION}{}", about.description),
            version: "1.2.0".into(),
            scope: Scope::Exec,
            hints: about.hints,
            effects: about.effects,
            profile: config.sandbox.profile.name(),
            input_schema: arguments::schema::<Arguments>(),
            output_schema: Some(arguments::reply_schema::<Reply>()),
            lists_output_schema: true,
            requires_approval: !about.fenced,
            streaming: true,
            timeout: DEFAULT_TIMEOUT,
            unavailable: None,
        };
        ShellExec { spec, launcher }
    }

    fn read(&self, arguments: &Map<String, Value>, shape: &Overrides) -> Result<Arguments> {
        let mut arguments: Arguments = arguments::parse(arguments, &self.spec.input_schema)?;
        arguments.check()?;
        if arguments.session.as_deref().is_none_or(|session| session == "new") {
            shape.fill_unset(&mut arguments.cwd, &mut arguments.env);
        }
        Ok(arguments)
    }

    async fn execute(&self, cx: &Arc<RunCx>, call: Prepared) -> Result<Output> {
        let arguments = self.read(&call.arguments, &cx.shape)?;
        arguments.check_lasting(cx.view.persistent)?;
        if arguments.session.is_some() {
            return session::execute(cx, call, &self.launcher, &arguments).await;
        }
        let runs = Runs::of(&cx.session)?;
        if arguments.yield_ms.is_some() {
            runs.check_room()?;
        }
        // If no more runs may continue in the background, this one must not outlive its call.
        let may_yield = cx.view.persistent && runs.has_room();
        let shown = arguments.shown();
        let (program, args) = arguments.program()?;
        // The run has its own deadline because it continues when the call's ends, but never longer
        // than the caller, the client and the operator allow.
        let deadline = Arc::new(Deadline::after(call.limit));
        let stdin = arguments.stdin.clone().unwrap_or_default().into_bytes();
        let command = Command {
            program,
            args,
            env: arguments.environment()?,
            cwd: arguments.cwd.clone().unwrap_or_else(|| ".".to_owned()),
            stdin: match (arguments.interactive, arguments.stdin.is_some()) {
                (Some(true), _) => StdinSource::Open(stdin),
                (_, true) => StdinSource::Bytes(stdin),
                (_, false) => StdinSource::Empty,
            },
            line: None,
            streaming: true,
            merged: false,
            max_bytes: arguments.max_bytes,
        };
        // Without a persistent session there is nothing the run could continue in.
        let deadline = if cx.view.persistent { deadline } else { Arc::clone(&cx.deadline) };
        let started = command::start(cx, call, &self.launcher, command, Some(deadline)).await?;
        let wait = may_yield.then(|| Arc::new(Deadline::after(arguments.wait())));
        started.attended.take_over(cx, wait.iter().cloned().collect());
        let seen = started.watch(cx, arguments.max_bytes, patience(wait)).await?;
        match seen {
            RunState::Over(outcome) => {
                let facts = command::facts(&outcome.result);
                Reply::over(cx, started.profile, outcome).into_output(facts)
            }
            RunState::Running(glance) => {
                let kept = runs.insert(Kept::new("command", &shown, started, None));
                running(Reply::running(cx, glance, &kept.id))
            }
        }
    }
}

/// Waits until the deadline, or indefinitely if the run cannot continue without the call.
fn patience(wait: Option<Arc<Deadline>>) -> BoxFuture<'static, ()> {
    match wait {
        Some(wait) => Box::pin(async move { wait.passed().await }),
        None => Box::pin(std::future::pending()),
    }
}

/// Builds the result for a command that is still running.
pub fn running(reply: Reply) -> Result<Output> {
    let facts = Facts {
        status: Some(Status::Running),
        stdout_bytes: Some(reply.stdout_bytes),
        stderr_bytes: Some(reply.stderr_bytes),
        ..Facts::default()
    };
    reply.into_output(facts)
}

impl Tool for ShellExec {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn limits(&self) -> Vec<Limit> {
        vec![
            Limit::time(DEFAULT_TIMEOUT),
            Limit {
                of: "wait before `running`",
                usual: DEFAULT_YIELD.shown(),
                most: "the time".to_owned(),
            },
            Limit::text(command::MAX_BYTES),
            Limit {
                of: "stored output",
                usual: "50 MB".to_owned(),
                most: "`[limits] output_file_bytes`".to_owned(),
            },
        ]
    }

    fn prepare(&self, arguments: &Map<String, Value>, cx: &PrepareCx<'_>) -> Result<Plan> {
        let arguments = self.read(arguments, cx.shape)?;
        if let Some(session) = arguments.session.as_deref().filter(|session| *session != "new") {
            let kept = Runs::of(cx.session)?.get(session)?;
            return Ok(Plan {
                // Only the shell knows its current directory.
                cwd: Some(format!("the current directory and environment of shell {}", kept.id)),
                timeout: Some(arguments.timeout(cx.config)),
                asks: command::asks(cx),
                command: Some(arguments.command_line()),
                command_covers: &["command", "argv"],
                ..Plan::default()
            });
        }
        // Opened so that the call fails before the user is asked; the run opens it again and uses
        // the descriptor it opened.
        let workspace = cx.workspace;
        let (_, shown) = workspace.open_dir(arguments.cwd.as_deref().unwrap_or("."))?;
        Ok(Plan {
            env: arguments.environment()?,
            // The resolved path, not the one the caller wrote.
            cwd: arguments.cwd.as_ref().map(|_| workspace.path().join(shown).display().to_string()),
            timeout: Some(arguments.timeout(cx.config)),
            asks: command::asks(cx),
            command: Some(arguments.command_line()),
            command_covers: &["command", "argv"],
            ..Plan::default()
        })
    }

    fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        call: Granted<Prepared>,
    ) -> BoxFuture<'static, Result<Output>> {
        Box::pin(async move { self.execute(&cx, call.consume()).await })
    }
}

impl Arguments {
    /// Validates what the schema cannot express.
    fn check(&self) -> Result<()> {
        self.program()?;
        self.environment()?;
        if self.timeout_ms == Some(0) {
            return Err(Error::invalid_arguments("`timeout_ms` is zero")
                .hint("Omit it for the default of two minutes."));
        }
        let Some(session) = &self.session else { return Ok(()) };
        let refused = |what: &str, hint: &str| Err(Error::invalid_arguments(what).hint(hint));
        if self.argv.is_some() {
            return refused(
                "a shell session takes `command`, not `argv`",
                "Give the line for bash as `command`.",
            );
        }
        if self.stdin.is_some() {
            return refused(
                "a command of a shell session has no `stdin` of its own",
                "Use a here-document in `command`, or `interactive: true` and shell.session `write`.",
            );
        }
        let settled = self.cwd.is_some() || self.env.is_some() || self.interactive.is_some();
        if session != "new" && settled {
            return refused(
                "`cwd`, `env` and `interactive` can only be set when a shell session is started",
                "Use `cd` and `export` in `command`.",
            );
        }
        Ok(())
    }

    fn check_lasting(&self, lasting: bool) -> Result<()> {
        let needs = match () {
            () if lasting => return Ok(()),
            () if self.session.is_some() => "`session`",
            () if self.yield_ms.is_some() => "`yield_ms`",
            () => return Ok(()),
        };
        Err(Error::invalid_arguments(format!("{needs} needs a persistent session"))
            .reason("no_session")
            .hint("Send the session handle of an earlier result's `_meta` along with the call."))
    }

    fn timeout(&self, config: &Config) -> Duration {
        self.timeout_ms
            .map_or(DEFAULT_TIMEOUT, Duration::from_millis)
            .min(config.limits.timeout_ceiling)
    }

    fn wait(&self) -> Duration {
        self.yield_ms.map_or(DEFAULT_YIELD, Duration::from_millis)
    }

    fn shown(&self) -> String {
        match (&self.command, &self.argv) {
            (Some(command), _) => command.clone(),
            (None, Some(argv)) => argv.join(" "),
            (None, None) => String::new(),
        }
    }

    /// Returns the command line for an approval prompt. The words of `argv` are quoted, because no
    /// two different commands may look the same there.
    fn command_line(&self) -> String {
        match self.argv.as_deref().and_then(<[String]>::split_first) {
            Some((program, words)) => visible::command_line(program, words),
            None => self.shown(),
        }
    }

    /// Returns the program and its arguments, from either form.
    fn program(&self) -> Result<(String, Vec<String>)> {
        let (program, args) = match (&self.command, &self.argv) {
            (Some(command), None) => {
                (command::shell().to_owned(), vec!["-c".to_owned(), command.clone()])
            }
            (None, Some(argv)) => match argv.split_first() {
                Some((program, args)) if !program.is_empty() => (program.clone(), args.to_vec()),
                _ => {
                    return Err(Error::invalid_arguments("`argv` names no program")
                        .hint("Its first item is the program."));
                }
            },
            _ => {
                return Err(Error::invalid_arguments("give either `command` or `argv`")
                    .hint("`command` is a line for bash, `argv` a program with its arguments."));
            }
        };
        if args.iter().chain([&program]).any(|part| part.contains('\0')) {
            return Err(Error::invalid_arguments("a command cannot contain a NUL byte")
                .hint("Pass such bytes through a file."));
        }
        Ok((program, args))
    }

    fn environment(&self) -> Result<Vec<(String, String)>> {
        let given: Vec<(String, String)> =
            self.env.clone().unwrap_or_default().into_iter().collect();
        env::build(&given)
    }
}

#[cfg(test)]
mod tests;
