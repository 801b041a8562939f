//! Runs a command in a bash that stays alive between calls.
//!
//! Each command has its own task that talks to the shell's driver, so that its timeout is enforced
//! no matter which call is waiting for the shell, or none.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::sync::{OwnedMutexGuard, watch};
use tracing::Instrument;

use super::{Args, Reply, running_output};
use crate::base::IgnorePoison;
use crate::base::call::{CallFacts, CallStatus, Prepared, ToolOutput};
use crate::base::clock::Deadline;
use crate::base::ids::{random_bytes, to_hex};
use crate::base::{CancelToken, Error, Kind, Result};
use crate::sandbox::{
    DriverSocket, Launcher, OutputRequest, PartialOutput, RunHandle, RunState, StdinSource,
    StopReason,
};
use crate::tools::RunCx;
use crate::tools::run::background::{BackgroundRun, BackgroundRuns, ShellCommandState};
use crate::tools::run::command::{self, CommandRequest, StartedCommand, to_millis};

const DRIVER: &str = include_str!("driver.sh");
/// The driver's messages contain only a name and a status.
const MAX_REPLY_BYTES: usize = 64;

/// Runs a command in a shell session, starting the shell if the call asks for a new one.
pub async fn execute_in_shell(
    cx: &Arc<RunCx>,
    call: Prepared,
    launcher: &Launcher,
    arguments: &Args,
) -> Result<ToolOutput> {
    let runs = Arc::clone(cx.background_runs());
    let limit = call.time_limit;
    let run = match arguments.session.as_deref() {
        Some("new") | None => {
            runs.check_room()?;
            start_shell(cx, call, launcher, arguments, &runs).await?
        }
        Some(id) => runs.get(id)?,
    };
    let socket = lock_driver_socket(&run)?;
    let (yield_deadline, command_deadline) =
        (Arc::new(Deadline::after(arguments.yield_wait())), Arc::new(Deadline::after(limit)));
    run.attach_call(cx, vec![Arc::clone(&yield_deadline), Arc::clone(&command_deadline)]).await?;
    let (state_sender, state_receiver) = watch::channel(ShellCommandState::Pending);
    *run.last_command.lock().ignore_poison() = Some(state_receiver);
    let exchange = ShellExchange {
        run_handle: run.started.run_handle.clone(),
        deadline: command_deadline,
        cancel: cx.control.cancel.clone(),
        session_cancel: cx.session().cancel.clone(),
        grace: cx.settings.config.limits.grace,
    };
    let exchange_task =
        exchange.run_command(socket, arguments.command.clone().unwrap_or_default(), state_sender);
    tokio::spawn(exchange_task.in_current_span());
    await_shell(cx, &runs, &run, yield_deadline, arguments.max_bytes, false).await
}

/// Returns the driver socket of a shell that is idle.
fn lock_driver_socket(run: &BackgroundRun) -> Result<OwnedMutexGuard<DriverSocket>> {
    let Some(socket) = run.driver_socket.as_ref().filter(|_| run.kind == "shell") else {
        let message = format!("`{}` is not a shell ({})", run.id, run.kind);
        return Err(
            Error::invalid_arguments(message).with_hint("`session: \"new\"` starts a shell.")
        );
    };
    Arc::clone(socket).try_lock_owned().map_err(|_| {
        Error::new(Kind::Conflict, "the shell is busy with another command")
            .with_reason("busy")
            .with_hint("Wait for it with shell.session `op: read`, interrupt it with `op: signal`, or start another shell.")
    })
}

async fn start_shell(
    cx: &Arc<RunCx>,
    call: Prepared,
    launcher: &Launcher,
    arguments: &Args,
    runs: &BackgroundRuns,
) -> Result<Arc<BackgroundRun>> {
    let (socket, peer_fd) = DriverSocket::new_pair(MAX_REPLY_BYTES)?;
    let command = CommandRequest {
        program: command::shell_path().to_owned(),
        args: ["--noprofile", "--norc", "-c", DRIVER].map(str::to_owned).to_vec(),
        env: arguments.build_env()?,
        cwd: arguments.cwd.clone().unwrap_or_else(|| ".".to_owned()),
        stdin: if arguments.interactive == Some(true) {
            StdinSource::Open(Vec::new())
        } else {
            StdinSource::Empty
        },
        driver_socket: Some(peer_fd),
        streaming: true,
        merged: false,
        max_bytes: arguments.max_bytes,
    };
    let started = command::start_command(cx, call, launcher, command, None).await?;
    Ok(runs.insert(BackgroundRun::new("shell", "bash", started, Some(socket))))
}

/// One command being run by a shell's driver.
struct ShellExchange {
    run_handle: RunHandle,
    deadline: Arc<Deadline>,
    /// The call's cancellation; it interrupts the command just as the timeout does.
    cancel: CancelToken,
    session_cancel: CancelToken,
    grace: Duration,
}

impl ShellExchange {
    async fn run_command(
        self,
        mut socket: OwnedMutexGuard<DriverSocket>,
        command: String,
        state_sender: watch::Sender<ShellCommandState>,
    ) {
        // The command does not know this name, so anything it writes to the driver socket itself
        // cannot pass for the answer.
        let command_id = to_hex(&random_bytes::<8>());
        let message = format!("{command_id} {command}");
        let stop = tokio::select! {
            biased;
            _ = self.session_cancel.cancelled() => return,
            cause = self.cancel.cancelled() => StopReason::from_cause(cause),
            () = self.deadline.wait_until_passed() => StopReason::Deadline,
            code = send_and_await(&mut socket, &command_id, Some(&message)) => {
                drop(socket);
                // The call may have ended; ignore the error.
                let _ = state_sender.send(ShellCommandState::Exited(code));
                return;
            }
        };
        let _ = state_sender.send(ShellCommandState::Stopping(stop));
        let interrupted = self.run_handle.send_signal(Signal::INT.as_raw()).is_ok();
        if interrupted
            && tokio::time::timeout(self.grace, send_and_await(&mut socket, &command_id, None))
                .await
                .is_ok()
        {
            drop(socket);
            let _ = state_sender.send(ShellCommandState::Interrupted(stop));
            return;
        }
        // The shell does not answer, so it is stopped; the next call that reads it sees that.
        self.run_handle.stop(stop);
    }
}

/// Waits until the shell answers under this name. Never returns if the shell has exited or sends
/// garbage.
async fn send_and_await(socket: &mut DriverSocket, command_id: &str, message: Option<&str>) -> i32 {
    if let Some(message) = message
        && let Err(error) = socket.send(message.as_bytes()).await
    {
        tracing::debug!("cannot send a command to a shell: {error}");
    }
    loop {
        let Ok(Some(reply)) = socket.receive().await else { return pending().await };
        let reply = String::from_utf8(reply).unwrap_or_default();
        if let Some(code) = reply.strip_prefix(command_id).and_then(|code| code.trim().parse().ok())
        {
            return code;
        }
    }
}

/// Waits for a shell until its command has ended or `deadline` has passed, and returns the result.
pub async fn await_shell(
    cx: &RunCx,
    runs: &BackgroundRuns,
    run: &Arc<BackgroundRun>,
    deadline: Arc<Deadline>,
    max_bytes: Option<usize>,
    yields_to_next: bool,
) -> Result<ToolOutput> {
    let started_at = Instant::now();
    let command_state = run.last_command.lock().ignore_poison().clone();
    let mut watched_state = command_state.clone();
    let until = Box::pin(async move {
        let command_end = async {
            let has_ended = match &mut watched_state {
                Some(command_state) => command_state
                    .wait_for(|command_state| {
                        matches!(
                            command_state,
                            ShellCommandState::Exited(_) | ShellCommandState::Interrupted(_)
                        )
                    })
                    .await
                    .is_ok(),
                None => false,
            };
            // Without an answer, wait for the shell itself to exit.
            if !has_ended {
                pending::<()>().await;
            }
        };
        tokio::select! {
            () = command_end => {}
            () = deadline.wait_until_passed() => {}
        }
    });
    let budget = StartedCommand::output_budget(cx, max_bytes);
    let run_state = run
        .started
        .read_output(OutputRequest {
            client: Some(cx.control.client.clone()),
            budget,
            until,
            yields_to_next,
        })
        .await?;
    let command_state =
        command_state.map_or(ShellCommandState::Pending, |command_state| *command_state.borrow());
    build_output(cx, run, runs, run_state, command_state, started_at.elapsed())
}

fn build_output(
    cx: &RunCx,
    run: &Arc<BackgroundRun>,
    runs: &BackgroundRuns,
    run_state: RunState,
    command_state: ShellCommandState,
    elapsed: Duration,
) -> Result<ToolOutput> {
    match (run_state, command_state) {
        // The shell itself has exited: by `exit`, by a signal, or because it did not answer.
        (RunState::Over(mut outcome), command_state) => {
            runs.remove(run);
            if let ShellCommandState::Stopping(stop) = command_state {
                // The shell had replaced itself with the program that the interrupt ended.
                outcome.result.stop_reason.get_or_insert(stop);
            }
            let facts = command::collect_facts(&outcome.result);
            let mut reply = Reply::from_outcome(cx, run.started.profile, outcome);
            reply.warnings.push(format!("the shell {} has ended", run.id));
            reply.into_output(facts)
        }
        (RunState::Running(partial), ShellCommandState::Exited(code)) => {
            ended_output(cx, run, partial, Some(code), None, elapsed)
        }
        (RunState::Running(partial), ShellCommandState::Interrupted(stop)) => {
            ended_output(cx, run, partial, None, Some(stop), elapsed)
        }
        (
            RunState::Running(partial),
            ShellCommandState::Pending | ShellCommandState::Stopping(_),
        ) => running_output(Reply::from_partial(cx, partial, &run.id)),
    }
}

/// Builds the result for a command that has ended in a shell that has not.
fn ended_output(
    cx: &RunCx,
    run: &BackgroundRun,
    partial: PartialOutput,
    code: Option<i32>,
    stop: Option<StopReason>,
    elapsed: Duration,
) -> Result<ToolOutput> {
    let mut reply = Reply::from_partial(cx, partial, &run.id);
    reply.exec_id = None;
    reply.session = Some(run.id.clone());
    reply.exit_code = code;
    reply.duration_ms = to_millis(elapsed);
    let (status, error) =
        match (code, stop) {
            (Some(0), _) => (CallStatus::Completed, None),
            (_, Some(StopReason::Deadline)) => {
                let error = Error::new(
                    Kind::DeadlineExceeded,
                    "the command was interrupted because it timed out",
                );
                (
                    CallStatus::TimedOut,
                    Some(error.with_hint(format!(
                        "The shell keeps its state. {}",
                        cx.settings.timeout_hint
                    ))),
                )
            }
            (_, Some(StopReason::Cancelled(cause))) => {
                let error = Error::new(Kind::Cancelled, "the command was interrupted");
                (CallStatus::Cancelled, Some(error.with_fact("cause", cause.name())))
            }
            (_, None) => (CallStatus::Failed, None),
        };
    reply.status = status.name();
    if status == CallStatus::Failed {
        reply.explain_failure(cx, run.started.profile, "");
    }
    reply.error = error.and_then(|error| error.to_body(&cx.trace_id).as_object().cloned());
    let facts = CallFacts {
        status: Some(status),
        exit_code: code,
        stdout_bytes: Some(reply.stdout_bytes),
        stderr_bytes: Some(reply.stderr_bytes),
        ..CallFacts::default()
    };
    reply.into_output(facts)
}
