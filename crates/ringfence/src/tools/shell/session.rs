//! `shell.session`: reads, writes to, signals, closes and lists what continues after the call that
//! started it.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::exec::{self, Reply};
use crate::approval::Granted;
use crate::base::call::{CallFacts, CallStatus, Prepared, ToolOutput};
use crate::base::clock::{Deadline, format_utc};
use crate::base::{CancelCause, Error, Kind, Result};
use crate::config::Config;
use crate::sandbox::{OutputRequest, RunState, StopReason};
use crate::tools::limit_docs::{ItemCount, ToolLimit};
use crate::tools::run::background::{BackgroundRun, BackgroundRuns};
use crate::tools::run::command::{self, SpecTexts, StartedCommand, to_millis};
use crate::tools::{
    CallPlan, LazySchema, PermissionScope, PrepareCx, RunCx, Tool, ToolSpec, arguments,
};

const DEFAULT_WAIT: Duration = Duration::from_secs(10);
const LONGEST_WAIT: Duration = Duration::from_secs(55);
/// Input is often answered immediately, so a write waits only briefly.
const AFTER_WRITE: Duration = Duration::from_millis(300);
const DESCRIPTION: &str = "Follow up on commands and shells that continue after shell.exec or code.exec: read (new \
    output; waits until it ends or for wait_ms), write to standard input, signal, close (ends it and \
    everything it started), list.";

/// Signals that can be sent, by name.
const SIGNALS: &[(&str, Signal)] = &[
    ("INT", Signal::INT),
    ("TERM", Signal::TERM),
    ("KILL", Signal::KILL),
    ("HUP", Signal::HUP),
    ("QUIT", Signal::QUIT),
    ("STOP", Signal::STOP),
    ("CONT", Signal::CONT),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum SessionOp {
    Read,
    Write,
    Signal,
    Close,
    List,
}

/// Arguments of `shell.session`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    op: SessionOp,
    /// The exec_id or session of a result. Not for `list`.
    id: Option<String>,
    /// For `write`: the text.
    input: Option<String>,
    /// For `write`: close standard input after the text.
    eof: Option<bool>,
    /// INT (default), TERM, KILL, HUP, QUIT, STOP, CONT, USR1, USR2.
    signal: Option<String>,
    /// Milliseconds to wait (read 10000, else 300; at most 55000).
    wait_ms: Option<u64>,
    /// Maximum bytes of output (up to 262144).
    max_bytes: Option<usize>,
}

/// A run that continues or has ended.
#[derive(Debug, Serialize, JsonSchema)]
struct RunRow {
    id: String,
    /// command, shell, or a language.
    kind: &'static str,
    command: String,
    status: &'static str,
    started: String,
    age_ms: u64,
}

/// The list of runs; the other operations return what `shell.exec` does.
#[derive(Debug, Serialize, JsonSchema)]
struct RunListing {
    runs: Vec<RunRow>,
}

/// The `shell.session` tool.
pub struct ShellSession {
    spec: ToolSpec,
}

/// Returns the schema of a result: a reply or a listing.
fn output_schema() -> Map<String, Value> {
    let mut schema = arguments::reply_schema::<Reply>();
    // A result is one of the two, so the required fields of neither are required here.
    schema.remove("required");
    if let (Some(Value::Object(properties)), Some(Value::Object(listing_properties))) =
        (schema.get_mut("properties"), arguments::reply_schema::<RunListing>().remove("properties"))
    {
        properties.extend(listing_properties);
    }
    schema
}

impl ShellSession {
    /// Creates the tool.
    pub fn new(config: &Config) -> Self {
        let texts = SpecTexts::from_config(config);
        let spec = ToolSpec {
            name: "shell.session".into(),
            title: "Follow up on a command".into(),
            description: DESCRIPTION.into(),
            version: "1.0.0".into(),
            scope: PermissionScope::Exec,
            hints: texts.hints,
            effects: texts.effects,
            profile: config.default_sandbox.profile.name(),
            input_schema: LazySchema::new(arguments::input_schema::<Args>),
            output_schema: Some(LazySchema::new(output_schema)),
            lists_output_schema: true,
            requires_approval: false,
            streaming: true,
            timeout: LONGEST_WAIT + Duration::from_secs(5),
            unavailable_reason: None,
        };
        ShellSession { spec }
    }

    async fn execute_call(
        &self,
        cx: &Arc<RunCx>,
        arguments: &Args,
        call: &Prepared,
    ) -> Result<ToolOutput> {
        let runs = Arc::clone(cx.background_runs());
        let Some(id) = &arguments.id else { return list_runs(&runs) };
        let run = runs.get(id)?;
        let deadline =
            Arc::new(Deadline::after(arguments.read_wait().min(call.time_limit * 9 / 10)));
        let max_bytes = arguments.max_bytes;
        match arguments.op {
            SessionOp::List => list_runs(&runs),
            SessionOp::Read => {
                run.attach_call(cx, vec![Arc::clone(&deadline)]).await?;
                read_output(cx, &runs, &run, deadline, max_bytes).await
            }
            SessionOp::Write => {
                run.attach_call(cx, vec![Arc::clone(&deadline)]).await?;
                let input = arguments.input.clone().unwrap_or_default().into_bytes();
                run.started.run_handle.write_stdin(input, arguments.eof == Some(true)).await?;
                read_output(cx, &runs, &run, deadline, max_bytes).await
            }
            SessionOp::Signal => {
                run.attach_call(cx, vec![Arc::clone(&deadline)]).await?;
                run.started.run_handle.send_signal(arguments.parse_signal()?.as_raw())?;
                read_output(cx, &runs, &run, deadline, max_bytes).await
            }
            SessionOp::Close => {
                // Permission to stop a run does not imply permission to see its output.
                let shows_output = command::check_still_allowed(cx, &run.started).await.is_ok();
                run.started.run_handle.stop(StopReason::Cancelled(CancelCause::Client));
                runs.remove(&run);
                let until = Box::pin(async move { deadline.wait_until_passed().await });
                let budget = StartedCommand::output_budget(cx, max_bytes);
                let run_state = read_unless_cancelled(
                    cx,
                    run.started.read_output(OutputRequest {
                        client: None,
                        budget,
                        until,
                        yields_to_next: true,
                    }),
                )
                .await?;
                build_output(cx, &run, run_state, Some(shows_output))
            }
        }
    }
}

/// Awaits the read unless the call is cancelled. Cancelling the call does not stop the run.
async fn read_unless_cancelled(
    cx: &RunCx,
    read: impl Future<Output = Result<RunState>>,
) -> Result<RunState> {
    tokio::select! {
        run_state = read => run_state,
        cause = cx.control.cancel.cancelled() => {
            Err(Error::new(Kind::Cancelled, "the read was cancelled; the command continues").with_fact("cause", cause.name()))
        }
    }
}

/// Returns the output since the last read, once the run has ended or `deadline` has passed.
async fn read_output(
    cx: &Arc<RunCx>,
    runs: &BackgroundRuns,
    run: &Arc<BackgroundRun>,
    deadline: Arc<Deadline>,
    max_bytes: Option<usize>,
) -> Result<ToolOutput> {
    if run.kind == "shell" {
        let shell_wait = exec::await_shell(cx, runs, run, deadline, max_bytes, true);
        return tokio::select! {
            seen = shell_wait => seen,
            cause = cx.control.cancel.cancelled() => {
                Err(Error::new(Kind::Cancelled, "the read was cancelled; the shell continues").with_fact("cause", cause.name()))
            }
        };
    }
    let until = Box::pin(async move { deadline.wait_until_passed().await });
    let budget = StartedCommand::output_budget(cx, max_bytes);
    let request = OutputRequest {
        client: Some(cx.control.client.clone()),
        budget,
        until,
        yields_to_next: true,
    };
    let seen = read_unless_cancelled(cx, run.started.read_output(request)).await?;
    build_output(cx, run, seen, None)
}

/// Builds the result. For a run that was closed, `closed` says whether its output may be shown.
fn build_output(
    cx: &RunCx,
    run: &BackgroundRun,
    run_state: RunState,
    closed: Option<bool>,
) -> Result<ToolOutput> {
    match run_state {
        RunState::Over(outcome) => {
            let mut facts = CallFacts {
                denials: Vec::new(),
                unruled_execs: None,
                ..command::collect_facts(&outcome.result)
            };
            let mut reply = Reply::from_outcome(cx, run.started.profile, outcome);
            if let Some(shows_output) = closed {
                // Being stopped is what the caller asked for, not an error.
                reply.error = None;
                facts.status = Some(CallStatus::Completed);
                if !shows_output {
                    reply
                        .withhold_output("it was started with different rights than this call has");
                }
            }
            reply.into_output(facts)
        }
        RunState::Running(partial) => {
            exec::running_output(Reply::from_partial(cx, partial, &run.id))
        }
    }
}

fn list_runs(runs: &BackgroundRuns) -> Result<ToolOutput> {
    let row = |run: Arc<BackgroundRun>| RunRow {
        id: run.id.clone(),
        kind: run.kind,
        command: run.display_command.clone(),
        status: run.end_status().unwrap_or(CallStatus::Running.name()),
        started: format_utc(run.started_at),
        age_ms: to_millis(run.age()),
    };
    let listing = RunListing { runs: runs.list_oldest_first().into_iter().map(row).collect() };
    let lines = listing.runs.iter().map(|row| {
        format!("{} {} {} {} s: {}", row.id, row.kind, row.status, row.age_ms / 1000, row.command)
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    let text =
        if text.is_empty() { "this session has no commands or shells".to_owned() } else { text };
    let structured = serde_json::to_value(listing)
        .map_err(|e| Error::internal("the result cannot be serialized").with_source(e))?;
    Ok(ToolOutput::from_structured(text, structured))
}

impl Tool for ShellSession {
    type Args = Args;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn limits(&self) -> Vec<ToolLimit> {
        vec![
            ToolLimit::from_range("wait of a read", DEFAULT_WAIT, LONGEST_WAIT),
            ToolLimit::from_range("wait after a write or signal", AFTER_WRITE, LONGEST_WAIT),
            ToolLimit::from_fixed(
                "concurrent runs",
                ItemCount(crate::tools::run::background::MAX_RUNNING as u64),
            ),
            ToolLimit::for_text(command::MAX_BYTES),
        ]
    }

    fn parse(&self, arguments: &Map<String, Value>, _: &PrepareCx<'_>) -> Result<Args> {
        let args: Args = self.spec.parse_arguments(arguments)?;
        args.validate_args()?;
        Ok(args)
    }

    fn prepare(&self, args: &Args, cx: &PrepareCx<'_>) -> Result<CallPlan> {
        let Some(id) = &args.id else { return Ok(CallPlan::default()) };
        let run = cx.state.background_runs.get(id)?;
        // Input to an unsandboxed process requires approval just like a command.
        let approval_reason =
            (args.op == SessionOp::Write).then(|| command::approval_reason(cx)).flatten();
        let approval_reason = approval_reason
            .map(|reason| format!("{reason} The input goes to: {}", run.display_command));
        let command = args.input.clone().filter(|_| args.op == SessionOp::Write);
        Ok(CallPlan { approval_reason, command, command_covers: &["input"], ..CallPlan::default() })
    }

    async fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        args: Args,
        call: Granted<Prepared>,
    ) -> Result<ToolOutput> {
        self.execute_call(&cx, &args, &call.consume()).await
    }
}

impl Args {
    /// Validates what the schema cannot express.
    fn validate_args(&self) -> Result<()> {
        if self.op != SessionOp::List && self.id.is_none() {
            return Err(Error::invalid_arguments("`id` is missing")
                .with_hint("It is the `exec_id` or `session` of a result; `op: list` shows all.")
                .with_fact("argument", "id"));
        }
        if self.op == SessionOp::Write && self.input.is_none() && self.eof != Some(true) {
            return Err(Error::invalid_arguments("there is nothing to write")
                .with_hint("Give `input`, or `eof: true`."));
        }
        self.parse_signal().map(drop)
    }

    fn parse_signal(&self) -> Result<Signal> {
        let name = self.signal.as_deref().unwrap_or("INT").to_ascii_uppercase();
        let name = name.strip_prefix("SIG").unwrap_or(&name);
        SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal).ok_or_else(
            || {
                let names = SIGNALS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
                Error::invalid_arguments("`signal` is not a signal that can be sent")
                    .with_hint(format!("Use one of {names}."))
                    .with_fact("argument", "signal")
            },
        )
    }

    fn read_wait(&self) -> Duration {
        let default_wait = if matches!(self.op, SessionOp::Write | SessionOp::Signal) {
            AFTER_WRITE
        } else {
            DEFAULT_WAIT
        };
        self.wait_ms.map_or(default_wait, Duration::from_millis).min(LONGEST_WAIT)
    }
}
