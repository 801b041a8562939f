//! `shell`: the tool of codex-shell-tool-mcp, with that server's arguments and result format, on
//! the same engine as `shell.exec`. Two things are better: standard output and standard error are
//! one stream in their true order, and a command that times out still returns the output it
//! produced until then.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::limit_docs::ToolLimit;
use super::run::command::{self, CommandRequest, SpecTexts};
use super::run::likely_limit;
use super::{CallPlan, LazySchema, PermissionScope, PrepareCx, RunCx, Tool, ToolSpec, arguments};
use crate::approval::Granted;
use crate::base::call::{Prepared, ToolOutput};
use crate::base::workspace::{Workspace, quote_path};
use crate::base::{Error, Kind, Result};
use crate::config::Config;
use crate::sandbox::{KeptCommand, Launcher, RunOutcome, StdinSource, StopReason, env};

/// Name of the tool.
pub const NAME: &str = "shell";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const DESCRIPTION: &str = "Runs a shell command and returns its output. You MUST provide the workdir as an absolute path.";
/// Exit code of `timeout` and similar programs.
const TIMEOUT_EXIT_CODE: i32 = 124;
/// Shells add the signal number to this for their exit code.
const SIGNAL_EXIT_BASE: i32 = 128;

/// Unknown arguments are ignored: agents written for the other server may send more.
#[derive(Debug, Deserialize)]
pub struct Args {
    command: String,
    workdir: String,
    timeout_ms: Option<u64>,
    login: Option<bool>,
}

/// The `shell` tool.
pub struct ShellTool {
    spec: ToolSpec,
    launcher: Launcher,
}

impl ShellTool {
    /// Creates the tool.
    pub fn new(config: &Config) -> Self {
        Self::with_launcher(config, Launcher::from_current_exe())
    }

    fn with_launcher(config: &Config, launcher: Launcher) -> Self {
        let texts = SpecTexts::from_config(config);
        let spec = ToolSpec {
            name: NAME.into(),
            title: "Run a shell command".into(),
            description: format!("{DESCRIPTION}{}", texts.description),
            version: "1.0.0".into(),
            scope: PermissionScope::Exec,
            hints: texts.hints,
            effects: texts.effects,
            profile: config.default_sandbox.profile.name(),
            input_schema: LazySchema::new(input_schema),
            output_schema: Some(LazySchema::new(output_schema)),
            lists_output_schema: false,
            requires_approval: !texts.is_sandboxed,
            streaming: true,
            timeout: DEFAULT_TIMEOUT,
            unavailable_reason: None,
        };
        ShellTool { spec, launcher }
    }

    fn parse_known(&self, arguments: &Map<String, Value>) -> Result<Args> {
        let known = self.spec.input_schema.get("properties").and_then(Value::as_object);
        let known = arguments
            .iter()
            .filter(|(name, _)| known.is_some_and(|known| known.contains_key(*name)));
        let known: Map<String, Value> =
            known.map(|(name, value)| (name.clone(), value.clone())).collect();
        let arguments: Args = arguments::parse_arguments(&known, &self.spec.input_schema)?;
        if arguments.command.contains('\0') {
            return Err(Error::invalid_arguments("a command cannot contain a NUL byte")
                .with_hint("Pass such bytes through a file."));
        }
        if !Path::new(&arguments.workdir).is_absolute() {
            let message =
                format!("`workdir` {} is not an absolute path", quote_path(&arguments.workdir));
            return Err(Error::invalid_arguments(message)
                .with_hint("Give the absolute path of a directory in the workspace.")
                .with_fact("argument", "workdir"));
        }
        Ok(arguments)
    }

    async fn execute_call(
        &self,
        cx: &Arc<RunCx>,
        arguments: Args,
        call: Prepared,
    ) -> Result<ToolOutput> {
        let flag = if arguments.login.unwrap_or(true) { "-lc" } else { "-c" };
        let command = CommandRequest {
            program: command::shell_path().to_owned(),
            args: vec![flag.to_owned(), arguments.command],
            cwd: arguments.workdir,
            env: env::build(&cx.settings.overrides.env)?,
            stdin: StdinSource::Empty,
            driver_socket: None,
            streaming: true,
            merged: true,
            max_bytes: None,
        };
        let (profile, outcome) = command::run_to_end(cx, call, &self.launcher, command).await?;
        let has_failed =
            outcome.result.stop_reason.is_none() && outcome.result.exit_code != Some(0);
        let denials: Vec<_> = outcome
            .result
            .denials
            .iter()
            .filter_map(|denial| denial.as_object().cloned())
            .collect();
        let output_texts = [outcome.stdout.text.as_str()];
        let hint = has_failed
            .then(|| likely_limit::hint_for_failure(cx, profile, &output_texts, &denials))
            .flatten();
        Ok(build_output(outcome, hint))
    }
}

impl Tool for ShellTool {
    type Args = Args;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn limits(&self) -> Vec<ToolLimit> {
        vec![ToolLimit::for_time(DEFAULT_TIMEOUT)]
    }

    fn parse(&self, arguments: &Map<String, Value>, _: &PrepareCx<'_>) -> Result<Args> {
        self.parse_known(arguments)
    }

    fn prepare(&self, args: &Args, cx: &PrepareCx<'_>) -> Result<CallPlan> {
        let cwd = resolve_workdir(cx.workspace, &args.workdir)?;
        let requested_timeout = args.timeout_ms.map_or(DEFAULT_TIMEOUT, Duration::from_millis);
        Ok(CallPlan {
            env: env::build(&cx.overrides.env)?,
            cwd: Some(cwd),
            timeout: Some(requested_timeout.min(cx.config.limits.timeout_ceiling)),
            approval_reason: command::approval_reason(cx),
            command: Some(args.command.clone()),
            command_covers: &["command"],
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

/// Returns the directory to run in. Opens it so that the call fails before the user is asked; the
/// run opens it again and uses the descriptor it opened.
fn resolve_workdir(workspace: &Workspace, workdir: &str) -> Result<String> {
    let missing = |error: Error| match error.kind() {
        Kind::NotFound => {
            let message =
                format!("`workdir` {} does not exist or is not a directory", quote_path(workdir));
            Error::invalid_arguments(message)
                .with_hint("Give the absolute path of a directory in the workspace.")
                .with_fact("argument", "workdir")
        }
        _ => error,
    };
    let (_, relative_path) = workspace.open_dir(workdir).map_err(missing)?;
    let path: PathBuf = workspace.path().join(relative_path).components().collect();
    Ok(path.display().to_string())
}

/// Returns the other server's schema, word for word: agents and their prompts are written for it.
fn input_schema() -> Map<String, Value> {
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ExecParams",
        "type": "object",
        "properties": {
            "command": {"description": "The bash string to execute.", "type": "string"},
            "login": {
                "description": "Launch Bash with -lc instead of -c: defaults to true.",
                "nullable": true,
                "type": "boolean",
            },
            "timeout_ms": {
                "description": "The timeout for the command in milliseconds.",
                "format": "uint64",
                "minimum": 0,
                "nullable": true,
                "type": "integer",
            },
            "workdir": {
                "description": "The working directory to execute the command in. Must be an absolute path.",
                "type": "string",
            },
        },
        "required": ["command", "workdir"],
    });
    schema.as_object().cloned().unwrap_or_default()
}

/// Describes the JSON in the text block of a result. The other server declared no output schema,
/// and `tools/list` does not show this one either.
fn output_schema() -> Map<String, Value> {
    let schema = json!({
        "type": "object",
        "properties": {
            "exit_code": {"type": "integer", "description": "124 after a timeout, 128 plus the signal number after a signal."},
            "output": {"type": "string", "description": "Standard output and standard error in their true order."},
            "duration": {
                "type": "object",
                "properties": {"secs": {"type": "integer"}, "nanos": {"type": "integer"}},
                "required": ["secs", "nanos"],
            },
            "timed_out": {"type": "boolean"},
        },
        "required": ["exit_code", "output", "duration", "timed_out"],
    });
    schema.as_object().cloned().unwrap_or_default()
}

/// Builds a result of one text block containing JSON, without structured content. A command that
/// fails or times out is a result, not an error.
fn build_output(outcome: RunOutcome, hint: Option<String>) -> ToolOutput {
    let result = &outcome.result;
    let facts = command::collect_facts(result);
    let timed_out = result.stop_reason == Some(StopReason::Deadline);
    let exit_code = match (timed_out, result.exit_code, result.signal) {
        (true, ..) => TIMEOUT_EXIT_CODE,
        (false, Some(code), _) => code,
        (false, None, signal) => SIGNAL_EXIT_BASE + signal.unwrap_or_default(),
    };
    let mut text = outcome.stdout.text;
    let git_notes = result.git_changed.iter().map(|change| format!("git: {change}"));
    let notes = result
        .warnings
        .iter()
        .cloned()
        .chain(result.kept_inside.iter().map(KeptCommand::summary_line))
        .chain(git_notes);
    for note in notes.chain(hint) {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&format!("[ringfence] {note}\n"));
    }
    let duration =
        json!({"secs": result.duration.as_secs(), "nanos": result.duration.subsec_nanos()});
    let reply = json!({"exit_code": exit_code, "output": text, "duration": duration, "timed_out": timed_out});
    let is_error = matches!(result.stop_reason, Some(StopReason::Cancelled(_)));
    ToolOutput { is_error, facts, ..ToolOutput::from_text(reply.to_string()) }
}

pub mod exec;
pub mod session;
#[cfg(test)]
mod tests;
