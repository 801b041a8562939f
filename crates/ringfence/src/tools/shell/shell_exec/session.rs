//! A command in a bash that lives on between calls.
//!
//! Each command has a task of its own that talks with the shell's driver, so that its time is kept whoever looks at the
//! shell, and when nobody does.

use std::future::pending;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::sync::{OwnedMutexGuard, watch};
use tracing::Instrument;

use super::{Arguments, Reply, running};
use crate::base::call::{Facts, Output, Prepared, Status};
use crate::base::clock::Deadline;
use crate::base::ids::{hex, random};
use crate::base::{Cancel, Error, Kind, Result};
use crate::sandbox::{Glance, Launcher, Line, Live, Look, Seen, Stdin, Stop};
use crate::tools::RunCx;
use crate::tools::run::command::{self, Command, Started, millis};
use crate::tools::run::runs::{Came, Kept, Runs};

const DRIVER: &str = include_str!("driver.sh");
/// A name and a status are all that the driver says.
const SAID: usize = 64;

pub async fn execute(
    cx: &Arc<RunCx>,
    call: Prepared,
    launcher: &Launcher,
    arguments: &Arguments,
) -> Result<Output> {
    let runs = Runs::of(&cx.session)?;
    let limit = call.limit;
    let kept = match arguments.session.as_deref() {
        Some("new") | None => {
            runs.check_room()?;
            start(cx, call, launcher, arguments, &runs).await?
        }
        Some(id) => runs.get(id)?,
    };
    let line = floor(&kept)?;
    let (wait, hard) =
        (Arc::new(Deadline::after(arguments.wait())), Arc::new(Deadline::after(limit)));
    kept.take_up(cx, vec![Arc::clone(&wait), Arc::clone(&hard)]).await?;
    let (tell, came) = watch::channel(Came::Waiting);
    *kept.turn.lock().unwrap_or_else(PoisonError::into_inner) = Some(came);
    let talk = Talk {
        live: kept.started.live.clone(),
        hard,
        cancel: cx.cancel.clone(),
        session: cx.session.cancel.clone(),
        grace: cx.config.limits.grace,
    };
    let said = talk.carry(line, arguments.command.clone().unwrap_or_default(), tell);
    tokio::spawn(said.in_current_span());
    attend(cx, &runs, &kept, wait, arguments.max_bytes, false).await
}

/// The line of a shell that has nothing else to do.
fn floor(kept: &Kept) -> Result<OwnedMutexGuard<Line>> {
    let Some(line) = kept.line.as_ref().filter(|_| kept.what == "shell") else {
        let message = format!("`{}` is no shell ({})", kept.id, kept.what);
        return Err(Error::invalid_arguments(message).hint("`session: \"new\"` starts a shell."));
    };
    Arc::clone(line).try_lock_owned().map_err(|_| {
        Error::new(Kind::Conflict, "the shell is busy with another command")
            .reason("busy")
            .hint("Wait for it with shell.session `op: read`, interrupt it with `op: signal`, or start another shell.")
    })
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
        stdin: if arguments.interactive == Some(true) {
            Stdin::Open(Vec::new())
        } else {
            Stdin::Empty
        },
        line: Some(theirs),
        streaming: true,
        merged: false,
        max_bytes: arguments.max_bytes,
    };
    let started = command::start(cx, call, launcher, command, None).await?;
    Ok(runs.insert(Kept::new("shell", "bash", started, Some(line))))
}

/// One command and the shell's word about it.
struct Talk {
    live: Live,
    hard: Arc<Deadline>,
    /// The call's: it interrupts the command as the end of its time does.
    cancel: Cancel,
    session: Cancel,
    grace: Duration,
}

impl Talk {
    async fn carry(
        self,
        mut line: OwnedMutexGuard<Line>,
        command: String,
        tell: watch::Sender<Came>,
    ) {
        // Under a name that the command does not know: what it writes to the line itself is not taken for the answer.
        let name = hex(&random::<8>());
        let message = format!("{name} {command}");
        let stop = tokio::select! {
            biased;
            _ = self.session.cancelled() => return,
            cause = self.cancel.cancelled() => Stop::by(cause),
            () = self.hard.passed() => Stop::Deadline,
            code = exchange(&mut line, &name, Some(&message)) => {
                drop(line);
                // Nobody may want to know.
                let _ = tell.send(Came::Exit(code));
                return;
            }
        };
        let _ = tell.send(Came::Stopping(stop));
        let interrupted = self.live.signal(Signal::INT.as_raw()).is_ok();
        if interrupted
            && tokio::time::timeout(self.grace, exchange(&mut line, &name, None)).await.is_ok()
        {
            drop(line);
            let _ = tell.send(Came::Interrupted(stop));
            return;
        }
        // It does not answer, so it is ended; that is seen by whoever looks.
        self.live.stop(stop);
    }
}

/// Until the shell answers under this name. One that has gone, or talks nonsense, never does.
async fn exchange(line: &mut Line, name: &str, message: Option<&str>) -> i32 {
    if let Some(message) = message
        && let Err(error) = line.send(message.as_bytes()).await
    {
        tracing::debug!("a shell does not take its command: {error}");
    }
    loop {
        let Ok(Some(said)) = line.receive().await else { return pending().await };
        let said = String::from_utf8(said).unwrap_or_default();
        if let Some(code) = said.strip_prefix(name).and_then(|code| code.trim().parse().ok()) {
            return code;
        }
    }
}

/// Looks at a shell until its command has ended or the wait has.
pub async fn attend(
    cx: &RunCx,
    runs: &Runs,
    kept: &Arc<Kept>,
    wait: Arc<Deadline>,
    max_bytes: Option<usize>,
    gives_way: bool,
) -> Result<Output> {
    let begun = Instant::now();
    let came = kept.turn.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut settled = came.clone();
    let until = Box::pin(async move {
        let turn = async {
            let heard = match &mut settled {
                Some(came) => came
                    .wait_for(|came| matches!(came, Came::Exit(_) | Came::Interrupted(_)))
                    .await
                    .is_ok(),
                None => false,
            };
            // Without an answer the end of the shell is waited for.
            if !heard {
                pending::<()>().await;
            }
        };
        tokio::select! {
            () = turn => {}
            () = wait.passed() => {}
        }
    });
    let budget = Started::budget(cx, max_bytes);
    let seen = kept
        .started
        .look(Look { caller: Some(cx.caller.clone()), budget, until, gives_way })
        .await?;
    let came = came.map_or(Came::Waiting, |came| *came.borrow());
    answer(cx, kept, runs, seen, came, begun.elapsed())
}

fn answer(
    cx: &RunCx,
    kept: &Arc<Kept>,
    runs: &Runs,
    seen: Seen,
    came: Came,
    took: Duration,
) -> Result<Output> {
    match (seen, came) {
        // The shell itself has ended: by `exit`, by a signal, or because it did not answer.
        (Seen::Over(mut outcome), came) => {
            runs.remove(kept);
            if let Came::Stopping(stop) = came {
                // What the interrupt ended was not the shell any more, but what it had become.
                outcome.ended.stop.get_or_insert(stop);
            }
            let facts = command::facts(&outcome.ended);
            let mut reply = Reply::over(cx, kept.started.profile, outcome);
            reply.warnings.push(format!("the shell {} has ended", kept.id));
            reply.into_output(facts)
        }
        (Seen::Running(glance), Came::Exit(code)) => {
            ended(cx, kept, glance, Some(code), None, took)
        }
        (Seen::Running(glance), Came::Interrupted(stop)) => {
            ended(cx, kept, glance, None, Some(stop), took)
        }
        (Seen::Running(glance), Came::Waiting | Came::Stopping(_)) => {
            running(Reply::running(cx, glance, &kept.id))
        }
    }
}

/// A command has ended and the shell has not.
fn ended(
    cx: &RunCx,
    kept: &Kept,
    glance: Glance,
    code: Option<i32>,
    stop: Option<Stop>,
    took: Duration,
) -> Result<Output> {
    let mut reply = Reply::running(cx, glance, &kept.id);
    reply.exec_id = None;
    reply.session = Some(kept.id.clone());
    reply.exit_code = code;
    reply.duration_ms = millis(took);
    let (status, error) = match (code, stop) {
        (Some(0), _) => (Status::Completed, None),
        (_, Some(Stop::Deadline)) => {
            let error =
                Error::new(Kind::DeadlineExceeded, "the command was interrupted: its time was up");
            (
                Status::TimedOut,
                Some(error.hint(format!("The shell keeps its state. {}", cx.timeout_hint))),
            )
        }
        (_, Some(Stop::Cancelled(cause))) => {
            let error = Error::new(Kind::Cancelled, "the command was interrupted");
            (Status::Cancelled, Some(error.with("cause", cause.name())))
        }
        (_, None) => (Status::Failed, None),
    };
    reply.status = status.name();
    if status == Status::Failed {
        reply.explain_failure(cx, kept.started.profile, "");
    }
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
