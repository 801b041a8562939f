//! A command in a bash that lives on between calls.

use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::OwnedMutexGuard;

use super::{Arguments, Reply, running};
use crate::base::call::{Facts, Output, Prepared, Status};
use crate::base::clock::Deadline;
use crate::base::{Cancel, Cause, Error, Kind, Result};
use crate::sandbox::{Glance, Launcher, Line, Look, Seen, Stdin, Stop};
use crate::tools::RunCx;
use crate::tools::command::{self, Command, Started};
use crate::tools::runs::{Kept, Runs};

const DRIVER: &str = include_str!("driver.sh");
/// A status is all that the driver says.
const SAID: usize = 64;

/// How a command of the shell came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    Exit(i32),
    /// Nothing yet.
    Waiting,
    /// Its time was up, or its call was cancelled, and it was interrupted.
    Interrupted(Stop),
}

pub async fn execute(cx: &Arc<RunCx>, call: Prepared, launcher: &Launcher, arguments: &Arguments) -> Result<Output> {
    let runs = Runs::of(&cx.session)?;
    let limit = call.limit;
    let kept = match arguments.session.as_deref() {
        Some("new") | None => {
            runs.check_room()?;
            start(cx, call, launcher, arguments, &runs).await?
        }
        Some(id) => runs.get(id)?,
    };
    let mut line = floor(&kept)?;
    let wait = Arc::new(Deadline::after(arguments.wait()));
    kept.take_up(cx, Some(Arc::clone(&wait))).await?;
    if let Err(error) = line.send(arguments.command.as_deref().unwrap_or_default().as_bytes()).await {
        // It has ended, and the look tells how.
        tracing::debug!("a shell does not take its command: {error}");
    }
    let patience = Patience { wait, hard: Some(Deadline::after(limit)), cancel: Some(cx.cancel.clone()) };
    attend(cx, &runs, &kept, line, patience, arguments.max_bytes).await
}

/// The line of a shell that has nothing else to do.
fn floor(kept: &Kept) -> Result<OwnedMutexGuard<Line>> {
    let Some(line) = kept.line.as_ref().filter(|_| kept.what == "shell") else {
        let message = format!("`{}` is no shell ({})", kept.id, kept.what);
        return Err(Error::invalid_arguments(message).hint("`session: \"new\"` starts a shell."));
    };
    if let Ok(mut line) = Arc::clone(line).try_lock_owned()
        && !line.is_busy()
    {
        return Ok(line);
    }
    Err(Error::new(Kind::Conflict, "the shell is busy with another command")
        .reason("busy")
        .hint("Wait for it with shell.session `op: read`, interrupt it with `op: signal`, or start another shell."))
}

/// What a look at a shell waits for beside its answer.
pub struct Patience {
    pub wait: Arc<Deadline>,
    /// Until the command is interrupted.
    pub hard: Option<Deadline>,
    /// Interrupts the command as well.
    pub cancel: Option<Cancel>,
}

/// Looks at a shell until its command has ended or the patience has.
pub async fn attend(
    cx: &RunCx,
    runs: &Runs,
    kept: &Arc<Kept>,
    line: OwnedMutexGuard<Line>,
    patience: Patience,
    max_bytes: Option<usize>,
) -> Result<Output> {
    let came = Arc::new(Mutex::new(Came::Waiting));
    let (kept_on, told, grace) = (Arc::clone(kept), Arc::clone(&came), cx.config.limits.grace);
    let until = Box::pin(async move {
        let end = wait_for(&kept_on, line, &patience, grace).await;
        *told.lock().unwrap_or_else(PoisonError::into_inner) = end;
    });
    let budget = Started::budget(cx, max_bytes);
    let seen = kept.look(Look { caller: Some(cx.caller.clone()), budget, until }).await?;
    let came = *came.lock().unwrap_or_else(PoisonError::into_inner);
    answer(cx, kept, runs, seen, came)
}

async fn start(
    cx: &Arc<RunCx>,
    call: Prepared,
    launcher: &Launcher,
    arguments: &Arguments,
    runs: &Runs,
) -> Result<Arc<Kept>> {
    let (line, theirs) = Line::pair(SAID)?;
    let command = Command {
        program: command::shell().to_owned(),
        args: ["--noprofile", "--norc", "-c", DRIVER].map(str::to_owned).to_vec(),
        env: arguments.environment()?,
        cwd: arguments.cwd.clone().unwrap_or_else(|| ".".to_owned()),
        stdin: if arguments.interactive == Some(true) { Stdin::Open(Vec::new()) } else { Stdin::Empty },
        line: Some(theirs),
        merged: false,
        max_bytes: arguments.max_bytes,
    };
    let started = command::start(cx, call, launcher, command, None).await?;
    Ok(runs.insert(Kept::new("shell", "bash", started, Some(line))))
}

/// Until the shell says how the command ended. One that takes too long is interrupted, and the shell lives on when it
/// answers to that.
async fn wait_for(kept: &Kept, mut line: OwnedMutexGuard<Line>, patience: &Patience, grace: Duration) -> Came {
    let stop = tokio::select! {
        said = line.receive() => return exit(said).await,
        () = patience.wait.passed() => return Came::Waiting,
        () = async { match &patience.hard { Some(hard) => hard.passed().await, None => pending().await } } => Stop::Deadline,
        cause = async { match &patience.cancel { Some(cancel) => cancel.cancelled().await, None => pending().await } } => Stop::by(cause),
    };
    let interrupted = kept.started.live.signal(Signal::INT.as_raw());
    if interrupted.is_err() || tokio::time::timeout(grace, line.receive()).await.is_err() {
        kept.started.live.stop(stop);
        // The look ends with the run.
        return pending().await;
    }
    Came::Interrupted(stop)
}

async fn exit(said: std::io::Result<Option<Vec<u8>>>) -> Came {
    let text = said.ok().flatten().and_then(|said| String::from_utf8(said).ok());
    match text.and_then(|text| text.parse().ok()) {
        Some(code) => Came::Exit(code),
        // The shell has ended, or talks nonsense: the look ends with it, or with the patience of its caller.
        None => pending().await,
    }
}

fn answer(cx: &RunCx, kept: &Kept, runs: &Runs, seen: Seen, came: Came) -> Result<Output> {
    match (seen, came) {
        // The shell itself has ended: by `exit`, by a signal, or because it did not answer.
        (Seen::Over(outcome), _) => {
            runs.remove(&kept.id);
            let facts = command::facts(&outcome.ended);
            let mut reply = Reply::over(cx, &kept.started.cell, outcome);
            reply.warnings.push(format!("the shell {} has ended", kept.id));
            reply.into_output(facts)
        }
        (Seen::Running(glance), Came::Exit(code)) => ended(cx, kept, glance, Some(code), None),
        (Seen::Running(glance), Came::Interrupted(stop)) => ended(cx, kept, glance, None, Some(stop)),
        (Seen::Running(glance), Came::Waiting) => running(Reply::running(cx, glance, &kept.id)),
    }
}

/// A command has ended and the shell has not.
fn ended(cx: &RunCx, kept: &Kept, glance: Glance, code: Option<i32>, stop: Option<Stop>) -> Result<Output> {
    let mut reply = Reply::running(cx, glance, &kept.id);
    reply.exec_id = None;
    reply.session = Some(kept.id.clone());
    reply.exit_code = code;
    let (status, error) = match (code, stop) {
        (Some(0), _) => (Status::Completed, None),
        (_, Some(Stop::Deadline)) => {
            let error = Error::new(Kind::DeadlineExceeded, "the command was interrupted: its time was up");
            (Status::TimedOut, Some(error.hint("The shell lives on. Raise `timeout_ms` or do less in one call.")))
        }
        (_, Some(Stop::Cancelled(cause))) => {
            let error = Error::new(Kind::Cancelled, "the command was interrupted");
            (Status::Cancelled, Some(error.with("cause", Cause::name(cause))))
        }
        (_, None) => (Status::Failed, None),
    };
    reply.status = status.name();
    reply.error = error.and_then(|error| error.body(&cx.trace_id).as_object().cloned());
    let facts = Facts {
        status: Some(status),
        exit_code: code,
        stdout_bytes: Some(reply.stdout_bytes),
        stderr_bytes: Some(reply.stderr_bytes),
        ..Facts::default()
    };
    reply.into_output(facts)
}
