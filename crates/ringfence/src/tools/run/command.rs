//! Starts and follows one command in a sandbox; shared by every tool that runs commands.

use std::future::pending;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use jail::rights::{NetworkAccess, Rights};
use serde_json::{Map, Value};

use super::asked_call::AskedCall;
use super::held_execs::{self, ExecList, RunExecRules};
use crate::audit::CallEvents;
use crate::base::IgnorePoison;
use crate::base::call::{CallFacts, CallStatus, Prepared};
use crate::base::client_sandbox::ClientSandbox;
use crate::base::clock::Deadline;
use crate::base::{Error, Kind, Result};
use crate::config::{Config, ProfileSetting};
use crate::sandbox::repositories::GitBaseline;
use crate::sandbox::{
    KeptInside, LaunchRequest, Launcher, NextRun, OutputFilter, OutputRequest, RunHandle,
    RunOptions, RunOutcome, RunResult, RunState, SessionSandbox, StdinSource, StopReason,
};
use crate::tools::{PrepareCx, RunCx, ToolHints};

/// Maximum bytes of output in one result.
pub const MAX_BYTES: usize = 256 << 10;
/// Shorter output than this is of no use to the reader.
const MIN_BYTES: usize = 256;
const SANDBOXED_TEXT: &str = " It runs in a sandbox: only the workspace, HOME and /tmp can be written, .git/hooks \
    and .codex cannot";
const UNSANDBOXED_TEXT: &str = " There is no sandbox, so the user is asked first.";

/// A command to start.
pub struct CommandRequest {
    pub program: String,
    pub args: Vec<String>,
    /// Working directory, in the workspace.
    pub cwd: String,
    pub env: Vec<(String, String)>,
    pub stdin: StdinSource,
    /// An additional socket next to its standard streams, for our drivers.
    pub driver_socket: Option<OwnedFd>,
    /// Reports its output as progress while a call waits for it.
    pub streaming: bool,
    /// Combines standard output and standard error in one stream.
    pub merged: bool,
    /// Maximum bytes of output to return; the client's budget if absent.
    pub max_bytes: Option<usize>,
}

/// Parts of a tool's description that depend on the operator's configuration, for tools that run
/// commands.
pub struct SpecTexts {
    pub is_sandboxed: bool,
    /// The last sentences of the description.
    pub description: String,
    pub effects: Vec<&'static str>,
    pub hints: ToolHints,
}

impl SpecTexts {
    /// Describes commands under this configuration.
    pub fn from_config(config: &Config) -> SpecTexts {
        let is_sandboxed = config.default_sandbox.profile != ProfileSetting::None;
        let network = config.default_sandbox.network_mode();
        let description = match (is_sandboxed, network) {
            (false, _) => UNSANDBOXED_TEXT.to_owned(),
            (true, NetworkAccess::Off) => {
                format!("{SANDBOXED_TEXT}, and there is no network but localhost.")
            }
            (true, NetworkAccess::Proxied) => {
                format!("{SANDBOXED_TEXT}, and only some names can be reached.")
            }
            (true, NetworkAccess::All) => format!("{SANDBOXED_TEXT}."),
        };
        let uses_network = !is_sandboxed || network != NetworkAccess::Off;
        let mut effects = vec!["exec", "filesystem_write"];
        effects.extend(uses_network.then_some("network"));
        let hints = ToolHints {
            read_only: false,
            destructive: true,
            idempotent: false,
            open_world: uses_network,
        };
        SpecTexts { is_sandboxed, description, effects, hints }
    }
}

/// Returns why approval is required if there is no sandbox. Without one, the client's own sandbox
/// settings are not enforced either.
pub fn approval_reason(cx: &PrepareCx<'_>) -> Option<String> {
    let reason = match cx.workspace.has_client_sandbox() {
        true => "It runs without a sandbox, the client's own included.",
        false => "It runs without a sandbox.",
    };
    (cx.sandbox.settings.profile == ProfileSetting::None).then(|| reason.to_owned())
}

/// Returns the shell that runs command lines.
pub fn shell_path() -> &'static str {
    if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" }
}

/// A command that has been started and may outlive its call.
pub struct StartedCommand {
    pub profile: ProfileSetting,
    pub run_handle: RunHandle,
    pub owner: Arc<AskedCall>,
    /// Restrictions of the client's sandbox and generation of the rules when it was started. A
    /// later call may use the run only if that does not exceed what the call is allowed.
    client_sandbox: Option<Arc<ClientSandbox>>,
    rules_generation: Option<u64>,
    /// A restriction of the client's sandbox that our sandbox cannot enforce.
    unenforced_restriction: Option<String>,
    end_recorder: Arc<LateEndRecorder>,
    /// Commands that a rule lets out and that ran inside.
    kept_inside: Arc<KeptInside>,
    streaming: bool,
    /// How it ended, once it has.
    pub end_status: Arc<OnceLock<&'static str>>,
}

impl StartedCommand {
    /// Returns the bytes of output to return: `max_bytes` within the limits, else the client's
    /// budget.
    pub fn output_budget(cx: &RunCx, max_bytes: Option<usize>) -> usize {
        max_bytes.unwrap_or(cx.settings.text_budget).clamp(MIN_BYTES, MAX_BYTES)
    }

    /// Waits until the run has ended or `until` completes, and returns the new output. Cancelling
    /// the call stops the run.
    pub async fn watch_run(
        &self,
        cx: &RunCx,
        max_bytes: Option<usize>,
        until: BoxFuture<'static, ()>,
    ) -> Result<RunState> {
        let budget = StartedCommand::output_budget(cx, max_bytes);
        let client = self.streaming.then(|| cx.control.client.clone());
        let request = OutputRequest { client, budget, until, yields_to_next: false };
        let guard = WaitingCallGuard(&self.end_recorder);
        let run_state = self.run_handle.watch_output(request, &cx.control.cancel).await?;
        Ok(self.add_notes(run_state, guard))
    }

    /// Like [`StartedCommand::watch_run`], but cancelling the call does not stop the run; `until`
    /// decides how long to wait.
    pub async fn read_output(&self, request: OutputRequest) -> Result<RunState> {
        let guard = WaitingCallGuard(&self.end_recorder);
        let run_state = self.run_handle.request_output(request).await?;
        Ok(self.add_notes(run_state, guard))
    }

    fn add_notes(&self, mut run_state: RunState, guard: WaitingCallGuard<'_>) -> RunState {
        match &mut run_state {
            RunState::Over(outcome) => {
                outcome.result.warnings.extend(self.unenforced_restriction.clone());
                outcome.result.kept_inside.extend(self.kept_inside.take_new());
                // The call itself reports the end.
                std::mem::forget(guard);
            }
            RunState::Running(partial) => {
                partial.warnings.extend(self.unenforced_restriction.clone());
                partial.kept_inside.extend(self.kept_inside.take_new());
            }
        }
        run_state
    }
}

/// Guard of a waiting call. Dropping it marks the call as over before its run, which happens when
/// the call returns early or is dropped.
struct WaitingCallGuard<'a>(&'a LateEndRecorder);

impl Drop for WaitingCallGuard<'_> {
    fn drop(&mut self) {
        self.0.set_call_over();
    }
}

/// Records the end of a run whose call is already over and cannot report it.
struct LateEndRecorder {
    call_events: CallEvents,
    state: Mutex<LateEndState>,
}

#[derive(Default)]
struct LateEndState {
    is_call_over: bool,
    end_fields: Option<Map<String, Value>>,
}

impl LateEndRecorder {
    fn set_run_ended(&self, result: &RunResult) {
        self.update_state(|state| state.end_fields = Some(end_fields(result)));
    }

    fn set_call_over(&self) {
        self.update_state(|state| state.is_call_over = true);
    }

    fn update_state(&self, change: impl FnOnce(&mut LateEndState)) {
        let mut state = self.state.lock().ignore_poison();
        change(&mut state);
        if state.is_call_over
            && let Some(fields) = state.end_fields.take()
            && let Err(error) = self.call_events.write_run_stop(fields)
        {
            tracing::error!("the end of a run could not be recorded: {}", error.log_line());
        }
    }
}

/// Returns the audit fields that describe how a run ended.
fn end_fields(result: &RunResult) -> Map<String, Value> {
    let facts = collect_facts(result);
    let mut fields = Map::new();
    let mut add = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            fields.insert(name.to_owned(), value);
        }
    };
    add("status", facts.status.map(|status| status.name().into()));
    add("exit_code", facts.exit_code.map(Into::into));
    add("signal", facts.signal.map(Into::into));
    add("stdout_bytes", facts.stdout_bytes.map(Into::into));
    add("stderr_bytes", facts.stderr_bytes.map(Into::into));
    add("denials", (!facts.denials.is_empty()).then(|| facts.denials.into()));
    add("execs", facts.unruled_execs);
    add("report", facts.report_gap.map(Into::into));
    add("tier", facts.weaker_tier.map(Into::into));
    add("git_changed", (!facts.git_changed.is_empty()).then(|| facts.git_changed.into()));
    add("duration_ms", Some(to_millis(result.duration).into()));
    fields
}

/// Records the end of a run that no call reports.
pub fn record_end(call_events: &CallEvents, result: &RunResult) {
    if let Err(error) = call_events.write_run_stop(end_fields(result)) {
        tracing::error!("the end of a run could not be recorded: {}", error.log_line());
    }
}

/// Runs a command until it ends, times out or is cancelled.
pub async fn run_to_end(
    cx: &Arc<RunCx>,
    call: Prepared,
    launcher: &Launcher,
    command: CommandRequest,
) -> Result<(ProfileSetting, RunOutcome)> {
    let max_bytes = command.max_bytes;
    let started =
        start_command(cx, call, launcher, command, Some(Arc::clone(&cx.control.deadline))).await?;
    match started.watch_run(cx, max_bytes, Box::pin(pending())).await? {
        RunState::Over(outcome) => Ok((started.profile, outcome)),
        RunState::Running(_) => Err(Error::internal("the command was abandoned before it ended")),
    }
}

/// Starts a command in the call's sandbox, with rules, proxy and audit records. `deadline` is its
/// own.
pub async fn start_command(
    cx: &Arc<RunCx>,
    call: Prepared,
    launcher: &Launcher,
    command: CommandRequest,
    deadline: Option<Arc<Deadline>>,
) -> Result<StartedCommand> {
    let sandbox = cx.open_sandbox(launcher)?;
    let placement = CommandPlacement {
        sandbox,
        rights: cx.settings.workspace.rights().clone(),
        never_escalate: false,
        output_filter: None,
        has_next: cx.settings.own_sandbox.is_none(),
    };
    start_in(cx, call, launcher, command, deadline, placement).await
}

/// The sandbox that a command runs in, and its rights there.
pub struct CommandPlacement {
    pub sandbox: Arc<SessionSandbox>,
    /// The run's own rights, which never exceed those of its sandbox.
    pub rights: Rights,
    /// Nothing may leave the sandbox, whatever the rules allow.
    pub never_escalate: bool,
    /// Processes standard output before it is kept and shown.
    pub output_filter: Option<OutputFilter>,
    /// A similar command may follow, for which a run is prepared ahead.
    pub has_next: bool,
}

/// Like [`start_command`], in a sandbox other than the call's own.
pub async fn start_in(
    cx: &Arc<RunCx>,
    call: Prepared,
    launcher: &Launcher,
    command: CommandRequest,
    deadline: Option<Arc<Deadline>>,
    placement: CommandPlacement,
) -> Result<StartedCommand> {
    let CommandPlacement { sandbox, rights, never_escalate, output_filter, has_next } = placement;
    let (cwd, relative_cwd) = cx.settings.workspace.open_dir(&command.cwd)?;
    let cwd_path = cx.settings.workspace.path().join(relative_cwd);
    // A human has approved this directory by name, or the operator's filters have checked it, when
    // the call was prepared.
    let was_checked = cx.settings.own_sandbox.is_some() || call.approval_reason.is_some();
    if was_checked && cwd_path.components().ne(Path::new(&call.cwd).components()) {
        return Err(Error::new(
            Kind::Conflict,
            "the working directory was replaced while the call was waiting",
        )
        .with_reason("cwd_changed")
        .with_hint("Check the directory and call again."));
    }
    let unenforced_restriction = check_enforceable(cx, sandbox.profile)?;
    let exec_rules = RunExecRules::current(cx).await?.map(|exec_rules| {
        if never_escalate { exec_rules.without_escalation() } else { exec_rules }
    });
    let rules_generation = exec_rules.as_ref().map(|exec_rules| exec_rules.rulebook.generation);
    let denied_hosts = exec_rules.as_ref().map(RunExecRules::denied_hosts).unwrap_or_default();
    let owner = AskedCall::new(cx, deadline.clone());
    let kept_inside = Arc::new(KeptInside::default());
    let execs = match exec_rules {
        Some(exec_rules) => Some(exec_rules.into_call_decider(
            &owner,
            Arc::new(call),
            launcher,
            &sandbox,
            &command.env,
            &kept_inside,
        )?),
        None => None,
    };
    let log = execs.as_ref().and_then(|execs| execs.log.as_ref()?.try_clone().ok());
    let launch = LaunchRequest {
        program: command.program,
        args: command.args,
        cwd,
        cwd_path,
        env: command.env,
        stdin: command.stdin,
        merge_stderr: command.merged,
        rights: Some(rights),
        grace: cx.settings.config.limits.grace,
        on_decision: Some(held_execs::audit_network(&cx.control.call_events)),
        execs,
        denied_hosts,
        driver_socket: command.driver_socket,
        session_router: None,
    };
    let end_recorder = Arc::new(LateEndRecorder {
        call_events: cx.control.call_events.clone(),
        state: Mutex::default(),
    });
    let (recorder, call_events) = (Arc::clone(&end_recorder), cx.control.call_events.clone());
    let short_secrets = cx.settings.config.policy.audit_execs.then(|| cx.short_secrets());
    let exec_list = log.map(|log| ExecList::new(call_events.clone(), short_secrets, log));
    let exec_list = Arc::new(Mutex::new(exec_list));
    let late_exec_list = Arc::clone(&exec_list);
    let held_sandbox = Arc::clone(&sandbox);
    let repositories = &cx.session_ref.state.sandboxes.repositories;
    let home = cx.settings.config.home.clone();
    let git_baseline = GitBaseline::capture(repositories, &sandbox, home).await?;
    let started = sandbox.start_run(launch).await?;
    let next_run = has_next.then(|| NextRun::after(&started, &sandbox));
    if let Some(next_run) = &next_run {
        next_run.prepare();
    }
    let end_status = Arc::new(OnceLock::new());
    let (status_slot, runs) = (Arc::clone(&end_status), Arc::downgrade(cx.background_runs()));
    let session_cancel = cx.session().cancel.clone();
    let run_options = RunOptions {
        outputs: Arc::clone(&cx.session().outputs),
        cancel: cx.session().cancel.clone(),
        deadline,
        budget: StartedCommand::output_budget(cx, command.max_bytes),
        max_file_bytes: cx.settings.config.limits.output_file_bytes,
        stdout_filter: output_filter,
        on_end: Box::new(move |result| {
            // The one that was prepared when this run started may be gone by now.
            if let Some(next_run) = &next_run {
                next_run.prepare();
            }
            Box::pin(async move {
                summarize_execs(&exec_list, result);
                result.git_changed = git_baseline.describe_changes().await;
                let _ = status_slot.set(status_name(result));
                recorder.set_run_ended(result);
            })
        }),
        on_late_end: Some(Box::new(move |result| {
            // Processes that the command left behind were using the sandbox until now.
            drop(held_sandbox);
            summarize_execs(&late_exec_list, result);
            record_end(&call_events, result);
        })),
        on_forgotten: Box::new(move || {
            if let Some(runs) = runs.upgrade().filter(|_| session_cancel.is_cancelled()) {
                runs.clear();
            }
        }),
        tasks: cx.services.tasks.clone(),
    };
    let run_handle = started.into_handle(run_options);
    let streaming = command.streaming;
    let (profile, client_sandbox) =
        (sandbox.profile, cx.settings.workspace.stricter_client_sandbox().cloned());
    Ok(StartedCommand {
        profile,
        run_handle,
        owner,
        client_sandbox,
        rules_generation,
        unenforced_restriction,
        end_recorder,
        kept_inside,
        streaming,
        end_status,
    })
}

fn summarize_execs(exec_list: &Mutex<Option<ExecList>>, result: &mut RunResult) {
    let mut exec_list = exec_list.lock().ignore_poison();
    result.exec_summary =
        exec_list.as_mut().map(|exec_list| exec_list.record_and_summarize(result.execs.take()));
}

/// Refuses to use a run that was started with more rights than the call has now: the client's
/// sandbox may have become stricter since, and the rules may have changed.
pub async fn check_still_allowed(cx: &RunCx, started: &StartedCommand) -> Result<()> {
    let StartedCommand { client_sandbox, rules_generation, .. } = started;
    let restart_hint = "Close it with shell.session and start it again.";
    let call_sandbox = cx.settings.workspace.stricter_client_sandbox();
    if call_sandbox.is_some() && call_sandbox != client_sandbox.as_ref() {
        let message = "it was started with different rights than this call has";
        return Err(Error::permission_denied("client_sandbox", message).with_hint(restart_hint));
    }
    let current = RunExecRules::current(cx).await?.map(|exec_rules| exec_rules.rulebook.generation);
    if current != *rules_generation {
        let message = "the rules have changed since it was started";
        return Err(Error::permission_denied("rules_changed", message).with_hint(restart_hint));
    }
    Ok(())
}

/// Checks for restrictions of the client's sandbox that a sandbox without mounts cannot enforce.
/// Those on reading are refused; those on writing to parts of a writable directory are returned as
/// a warning.
fn check_enforceable(cx: &RunCx, profile: ProfileSetting) -> Result<Option<String>> {
    if profile != ProfileSetting::Contained || !cx.settings.workspace.has_client_sandbox() {
        return Ok(None);
    }
    let (session_rights, call_rights) =
        (cx.session().workspace.rights(), cx.settings.workspace.rights());
    if call_rights.hidden.len() > session_rights.hidden.len()
        || !call_rights.partial_covers.is_empty()
    {
        let message = "the profile `contained` cannot hide what the client's sandbox denies";
        return Err(Error::permission_denied("client_sandbox", message).with_hint(
            "Have the operator use the profile `default`, or the client allow reading.",
        ));
    }
    let warning = "the profile `contained` cannot keep parts of a writable directory read-only, as the client's sandbox would";
    Ok((call_rights.protected.len() > session_rights.protected.len()).then(|| warning.to_owned()))
}

/// Returns the status of a result.
pub fn status_name(result: &RunResult) -> &'static str {
    match (result.stop_reason, result.exit_code) {
        (Some(StopReason::Deadline), _) => "timed_out",
        (Some(StopReason::Cancelled(_)), _) => "cancelled",
        (None, Some(0)) => "completed",
        (None, Some(_)) => "failed",
        (None, None) => "killed",
    }
}

/// Returns the facts about a run that go into the audit record.
pub fn collect_facts(result: &RunResult) -> CallFacts {
    let status = match (result.stop_reason, result.exit_code) {
        (Some(StopReason::Deadline), _) => CallStatus::TimedOut,
        (Some(StopReason::Cancelled(_)), _) => CallStatus::Cancelled,
        (None, Some(0)) => CallStatus::Completed,
        (None, _) => CallStatus::Failed,
    };
    let [stdout, stderr] = result.stream_bytes;
    CallFacts {
        status: Some(status),
        exit_code: result.exit_code,
        signal: result.signal,
        stdout_bytes: Some(stdout),
        stderr_bytes: Some(stderr),
        denials: result.denials.clone(),
        unruled_execs: result.exec_summary.clone(),
        report_gap: result.reported.audit_name(),
        weaker_tier: result.weaker_tier(),
        git_changed: result.git_changed.clone(),
    }
}

/// Converts a duration to whole milliseconds.
pub fn to_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
