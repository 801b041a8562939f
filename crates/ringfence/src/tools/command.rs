//! One command in the session's fence, to its end: what `shell.exec` and `shell` have in common.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jail::rights::Network;

use super::execs::{self, Policed};
use super::{Hints, PrepareCx, RunCx};
use crate::base::call::{Facts, Prepared, Status};
use crate::base::{Error, Result};
use crate::config::{Config, Profile};
use crate::sandbox::{Cell, Decided, Launch, Launcher, Outcome, Stop, Watch, env, network_fields};

/// Decisions of one run's proxy that are written down one by one.
const AUDITED: usize = 10_000;
const MAX_BYTES: usize = 256 << 10;
/// Below this a cut says nothing any more.
const MIN_BYTES: usize = 256;
const FENCED: &str = " It runs in a sandbox: only the workspace, HOME and /tmp can be written, .git/config, .git/hooks \
    and .codex cannot";
const UNFENCED: &str = " There is no sandbox, so the user is asked first.";

pub struct Command {
    pub program: String,
    pub args: Vec<String>,
    /// In the workspace.
    pub cwd: String,
    pub env: Vec<(String, String)>,
    pub stdin: Option<Vec<u8>>,
    /// One stream of both.
    pub merged: bool,
    /// Of output to show; the client's budget when absent.
    pub max_bytes: Option<usize>,
}

/// What a tool that runs commands says of itself under the operator's word.
pub struct About {
    pub fenced: bool,
    /// The last sentences of its description.
    pub description: String,
    pub effects: Vec<&'static str>,
    pub hints: Hints,
}

impl About {
    pub fn of(config: &Config) -> About {
        let fenced = config.sandbox.profile != Profile::None;
        let network = config.sandbox.network();
        let description = match (fenced, network) {
            (false, _) => UNFENCED.to_owned(),
            (true, Network::Off) => format!("{FENCED}, and there is no network but localhost."),
            (true, Network::Proxied) => format!("{FENCED}, and only some names can be reached."),
            (true, Network::All) => format!("{FENCED}."),
        };
        let reaches_out = !fenced || network != Network::Off;
        let mut effects = vec!["exec", "filesystem_write"];
        effects.extend(reaches_out.then_some("network"));
        let hints = Hints { read_only: false, destructive: true, idempotent: false, open_world: reaches_out };
        About { fenced, description, effects, hints }
    }
}

/// Why a human must be asked, where there is no fence. Nothing then keeps what a client's own sandbox says either.
pub fn asks(cx: &PrepareCx<'_>) -> Option<String> {
    let why = match cx.workspace.is_narrowed() {
        true => "It runs without a sandbox, the client's own included.",
        false => "It runs without a sandbox.",
    };
    (cx.config.sandbox.profile == Profile::None).then(|| why.to_owned())
}

pub fn shell() -> &'static str {
    if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" }
}

/// Runs it to its end, its deadline or its cancellation.
pub async fn run(
    cx: &Arc<RunCx>,
    call: Prepared,
    launcher: &Launcher,
    command: Command,
) -> Result<(Arc<Cell>, Outcome)> {
    let (cwd, below) = cx.workspace.open_dir(&command.cwd)?;
    let cell = Cell::of(&cx.session, &cx.config, launcher)?;
    let lacking = unkept(cx, cell.profile)?;
    let rights = cx.workspace.rights().clone();
    let policed = Policed::of(cx).await?;
    let denied_hosts = policed.as_ref().map(Policed::denied_hosts).unwrap_or_default();
    let execs = match policed {
        Some(policed) => {
            let env = env::merge(command.env.clone(), cell.env.clone());
            // What this call may not write another of the session could: nothing of that is let out either.
            Some(policed.desk(cx, Arc::new(call), launcher, cell.rights.clone(), env)?)
        }
        None => None,
    };
    let log = execs.as_ref().and_then(|execs| execs.log.as_ref()?.try_clone().ok());
    let launch = Launch {
        program: command.program,
        args: command.args,
        cwd,
        cwd_path: cx.workspace.path().join(below),
        env: command.env,
        stdin: command.stdin,
        merged: command.merged,
        rights: Some(rights),
        grace: cx.config.limits.grace,
        decided: Some(audited(cx)),
        execs,
        denied_hosts,
    };
    let watch = Watch {
        caller: &cx.caller,
        cancel: &cx.cancel,
        deadline: &cx.deadline,
        outputs: &cx.session.outputs,
        budget: command.max_bytes.unwrap_or(cx.budget).clamp(MIN_BYTES, MAX_BYTES),
        file_bytes: cx.config.limits.output_file_bytes,
    };
    let mut outcome = cell.start(launch).await?.finish(watch).await?;
    outcome.warnings.extend(lacking);
    if let (Some(log), Some(count)) = (log, outcome.execs.take()) {
        outcome.summed = Some(execs::sum(cx, log, count));
    }
    Ok((cell, outcome))
}

/// What a client's sandbox wants and a fence without mounts cannot keep: refused where it is about reading, told where
/// it is about writing in parts of what may be written.
fn unkept(cx: &RunCx, profile: Profile) -> Result<Option<String>> {
    if profile != Profile::Contained || !cx.workspace.is_narrowed() {
        return Ok(None);
    }
    let (before, now) = (cx.session.workspace.rights(), cx.workspace.rights());
    if now.hidden.len() > before.hidden.len() || !now.veils.is_empty() {
        let message = "the profile `contained` cannot hide what the client's sandbox denies";
        return Err(Error::permission_denied("client_sandbox", message)
            .hint("Have the operator use the profile `default`, or the client allow reading."));
    }
    let told =
        "the profile `contained` cannot keep parts of a writable directory read-only, as the client's sandbox would";
    Ok((now.protected.len() > before.protected.len()).then(|| told.to_owned()))
}

/// Every decision of the run's proxy is on record, up to a point: a run can cause as many as it likes.
fn audited(cx: &RunCx) -> Decided {
    let (approvals, count) = (cx.approvals.clone(), AtomicUsize::new(0));
    Arc::new(move |decision| {
        if count.fetch_add(1, Ordering::Relaxed) < AUDITED
            && let Err(error) = approvals.network(network_fields(decision))
        {
            tracing::error!("a decision of the proxy could not be recorded: {}", error.log_line());
        }
    })
}

pub fn facts(outcome: &Outcome) -> Facts {
    let status = match (outcome.stop, outcome.exit_code) {
        (Some(Stop::Deadline), _) => Status::TimedOut,
        (Some(Stop::Cancelled(_)), _) => Status::Cancelled,
        (None, Some(0)) => Status::Completed,
        (None, _) => Status::Failed,
    };
    Facts {
        status: Some(status),
        exit_code: outcome.exit_code,
        signal: outcome.signal,
        stdout_bytes: Some(outcome.stdout.bytes),
        stderr_bytes: Some(outcome.stderr.bytes),
        denials: outcome.denials.clone(),
        execs: outcome.summed.clone(),
    }
}

pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
