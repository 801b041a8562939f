//! `shell.exec`: one command, to its end.
//!
//! It runs in the session's fence and asks nobody. Where the operator has taken the fence away, every call is asked
//! for, and the result says so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::command::{self, About, Command, millis};
use super::{Plan, PrepareCx, RunCx, Scope, Spec, Tool, arguments};
use crate::approval::Granted;
use crate::base::call::{Output, Prepared};
use crate::base::{Error, Kind, Result};
use crate::config::{Config, Profile};
use crate::sandbox::{Cell, Launcher, Outcome, Stop, env};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);
const DESCRIPTION: &str = "Run a command in the workspace and wait for it to end. Returns stdout, stderr and the exit \
    code; a non-zero exit code is a result, not an error. Long output is cut in the middle: read the rest with \
    file.read and the `output:` handle. Background processes end with the command.";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// A command line for bash. Give this or `argv`.
    command: Option<String>,
    /// A program and its arguments, run without a shell. Give this or `command`.
    argv: Option<Vec<String>>,
    /// Directory to run in, relative to the workspace. Default: the workspace.
    cwd: Option<String>,
    /// Environment variables to add.
    env: Option<BTreeMap<String, String>>,
    /// Text for standard input. Default: empty.
    stdin: Option<String>,
    /// Milliseconds until the command and everything it started is ended. Default: 120000.
    timeout_ms: Option<u64>,
    /// How many bytes of output to return at most, up to 262144.
    max_bytes: Option<usize>,
    /// Why you run it, in a few words, for the user who is asked.
    #[expect(dead_code, reason = "shown with the other arguments to whoever is asked")]
    reason: Option<String>,
}

/// What the result holds. Nothing is required of it: an error has nothing but `error`.
#[derive(Debug, Serialize, JsonSchema)]
struct Reply {
    /// completed (exit code 0), failed (another), killed (by a signal), timed_out or cancelled.
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    stdout: String,
    stderr: String,
    /// Of the whole, shown or not.
    stdout_bytes: u64,
    stderr_bytes: u64,
    truncated: bool,
    /// Handle of the whole output, for file.read, when something was cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
    duration_ms: u64,
    sandbox: Sandbox,
    warnings: Vec<String>,
    trace_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Map<String, Value>>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Sandbox {
    profile: &'static str,
    /// off (but for localhost), proxied or all.
    network: &'static str,
    /// How its limits were kept: cgroup2, cgroup1 or rlimits.
    limits: String,
    /// What it was refused, as far as that is known for sure.
    denials: Vec<Map<String, Value>>,
}

pub struct ShellExec {
    spec: Spec,
    launcher: Launcher,
}

impl ShellExec {
    pub fn new(config: &Config) -> Self {
        Self::with(config, Launcher::own())
    }

    fn with(config: &Config, launcher: Launcher) -> Self {
        let about = About::of(config);
        let spec = Spec {
            name: "shell.exec".into(),
            title: "Run a command".into(),
            description: format!("{DESCRIPTION}{}", about.description),
            version: "1.1.0".into(),
            scope: Scope::Exec,
            hints: about.hints,
            effects: about.effects,
            profile: config.sandbox.profile.name(),
            input_schema: arguments::schema::<Arguments>(),
            output_schema: Some(arguments::reply_schema::<Reply>()),
            can_return_image: false,
            requires_approval: !about.fenced,
            streaming: true,
            timeout: DEFAULT_TIMEOUT,
            unavailable: None,
        };
        ShellExec { spec, launcher }
    }

    fn read(&self, arguments: &Map<String, Value>) -> Result<Arguments> {
        let arguments: Arguments = arguments::parse(arguments, &self.spec.input_schema)?;
        arguments.program()?;
        arguments.environment()?;
        if arguments.timeout_ms == Some(0) {
            return Err(Error::invalid_arguments("`timeout_ms` is zero").hint("Leave it out for two minutes."));
        }
        Ok(arguments)
    }

    async fn execute(&self, cx: &Arc<RunCx>, call: Prepared) -> Result<Output> {
        let arguments = self.read(&call.arguments)?;
        let (program, args) = arguments.program()?;
        let command = Command {
            program,
            args,
            env: arguments.environment()?,
            cwd: arguments.cwd.unwrap_or_else(|| ".".to_owned()),
            stdin: arguments.stdin.map(String::into_bytes),
            merged: false,
            max_bytes: arguments.max_bytes,
        };
        let (cell, outcome) = command::run(cx, call, &self.launcher, command).await?;
        output(cx, &cell, outcome)
    }
}

impl Tool for ShellExec {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn prepare(&self, arguments: &Map<String, Value>, cx: &PrepareCx<'_>) -> Result<Plan> {
        let arguments = self.read(arguments)?;
        // Opened to fail before anybody is asked; the run opens it again and uses what it opened.
        let workspace = cx.workspace;
        let (_, shown) = workspace.open_dir(arguments.cwd.as_deref().unwrap_or("."))?;
        let asked = arguments.timeout_ms.map_or(DEFAULT_TIMEOUT, Duration::from_millis);
        Ok(Plan {
            env: arguments.environment()?,
            // Where it leads, not what was written.
            cwd: arguments.cwd.as_ref().map(|_| workspace.path().join(shown).display().to_string()),
            timeout: Some(asked.min(cx.config.limits.timeout_ceiling)),
            asks: command::asks(cx),
        })
    }

    fn run(self: Arc<Self>, cx: Arc<RunCx>, call: Granted<Prepared>) -> BoxFuture<'static, Result<Output>> {
        Box::pin(async move { self.execute(&cx, call.consume()).await })
    }
}

impl Arguments {
    /// The program and its arguments, from whichever of the two forms was given.
    fn program(&self) -> Result<(String, Vec<String>)> {
        let (program, args) = match (&self.command, &self.argv) {
            (Some(command), None) => (command::shell().to_owned(), vec!["-c".to_owned(), command.clone()]),
            (None, Some(argv)) => match argv.split_first() {
                Some((program, args)) if !program.is_empty() => (program.clone(), args.to_vec()),
                _ => {
                    return Err(
                        Error::invalid_arguments("`argv` names no program").hint("Its first item is the program.")
                    );
                }
            },
            _ => {
                return Err(Error::invalid_arguments("give either `command` or `argv`")
                    .hint("`command` is a line for bash, `argv` a program with its arguments."));
            }
        };
        if args.iter().chain([&program]).any(|part| part.contains('\0')) {
            return Err(Error::invalid_arguments("a command cannot hold a NUL").hint("Pass such bytes through a file."));
        }
        Ok((program, args))
    }

    fn environment(&self) -> Result<Vec<(String, String)>> {
        let given: Vec<(String, String)> = self.env.clone().unwrap_or_default().into_iter().collect();
        env::build(&given)
    }
}

fn output(cx: &RunCx, cell: &Cell, outcome: Outcome) -> Result<Output> {
    let error = stopped(cx, &outcome);
    let status = match (outcome.stop, outcome.exit_code) {
        (Some(Stop::Deadline), _) => "timed_out",
        (Some(Stop::Cancelled(_)), _) => "cancelled",
        (None, Some(0)) => "completed",
        (None, Some(_)) => "failed",
        (None, None) => "killed",
    };
    let facts = command::facts(&outcome);
    let text = text(&outcome);
    let reply = Reply {
        status,
        exit_code: outcome.exit_code,
        signal: outcome.signal,
        truncated: outcome.stdout.truncated || outcome.stderr.truncated,
        stdout: outcome.stdout.text,
        stderr: outcome.stderr.text,
        stdout_bytes: outcome.stdout.bytes,
        stderr_bytes: outcome.stderr.bytes,
        output: outcome.output,
        duration_ms: millis(outcome.duration),
        sandbox: Sandbox {
            profile: cell.profile.name(),
            network: if cell.profile == Profile::None { "all" } else { cx.workspace.rights().network.name() },
            limits: outcome.limits,
            denials: facts.denials.iter().filter_map(|denial| denial.as_object().cloned()).collect(),
        },
        warnings: outcome.warnings,
        trace_id: cx.trace_id.to_string(),
        error: error.as_ref().and_then(|error| error.body(&cx.trace_id).as_object().cloned()),
    };
    let structured =
        serde_json::to_value(reply).map_err(|e| Error::internal("the result cannot be written").source(e))?;
    Ok(Output { is_error: error.is_some(), facts, ..Output::of(text, structured) })
}

/// What a command that did not end by itself is told about.
fn stopped(cx: &RunCx, outcome: &Outcome) -> Option<Error> {
    match outcome.stop? {
        Stop::Deadline => {
            let message = format!("the command was ended after {} ms", millis(outcome.duration));
            let ceiling = millis(cx.config.limits.timeout_ceiling);
            Some(Error::new(Kind::DeadlineExceeded, message).hint(format!(
                "What it said until then is here. Raise `timeout_ms` (at most {ceiling}) or do less in one call."
            )))
        }
        Stop::Cancelled(cause) => {
            Some(Error::new(Kind::Cancelled, "the command was stopped before it ended").with("cause", cause.name()))
        }
    }
}

/// Standard output, then standard error, then how it went in one line.
fn text(outcome: &Outcome) -> String {
    let mut text = outcome.stdout.text.clone();
    let fresh_line = |text: &mut String| {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
    };
    if !outcome.stderr.text.is_empty() {
        fresh_line(&mut text);
        text.push_str("[stderr]\n");
        text.push_str(&outcome.stderr.text);
    }
    fresh_line(&mut text);
    for warning in &outcome.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    let how = match (outcome.stop, outcome.exit_code, outcome.signal) {
        (Some(Stop::Deadline), ..) => "timed out".to_owned(),
        (Some(Stop::Cancelled(_)), ..) => "cancelled".to_owned(),
        (None, Some(code), _) => format!("exit code {code}"),
        (None, None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None, None) => "ended".to_owned(),
    };
    text.push_str(&format!("{how}, {} ms", millis(outcome.duration)));
    text
}

#[cfg(test)]
mod tests;
