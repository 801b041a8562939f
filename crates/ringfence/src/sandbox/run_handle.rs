//! Handle to a run that may outlive the call that started it.
//!
//! A separate task drives the run ([`super::run_driver`]). An observer sees the output since the
//! last look, and slows the run down while it cannot take more; with no observer the run continues.
//! It ends with its deadline, with its session, or when its last handle is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use jail::supervisor::RunExit;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::kept_inside::KeptCommand;
use super::launch::StartedRun;
use super::output_window::ShownOutput;
use super::run_driver::drive_run;
use crate::base::client_handle::ClientHandle;
use crate::base::clock::Deadline;
use crate::base::{CancelCause, CancelToken, Error, Result};
use crate::session::OutputStore;

/// Transforms a piece of output. Pieces come in order and end anywhere.
pub type OutputFilter = Box<dyn FnMut(&[u8]) -> Vec<u8> + Send + Sync>;

/// Receives the result of a run a second time, once everything it left behind has ended.
pub type OnLateEnd = Box<dyn FnOnce(&mut RunResult) + Send + Sync>;

/// Completes the result of a run.
pub type OnEnd = Box<dyn for<'e> FnOnce(&'e mut RunResult) -> BoxFuture<'e, ()> + Send + Sync>;

/// Options for a run that is driven by its own task.
pub struct RunOptions {
    pub outputs: Arc<OutputStore>,
    /// Token that ends the run regardless of observers: the session's own.
    pub cancel: CancelToken,
    pub deadline: Option<Arc<Deadline>>,
    /// Maximum bytes shown of both streams together, until an observer says how much it wants to
    /// see.
    pub budget: usize,
    /// Maximum bytes of the stored output.
    pub max_file_bytes: u64,
    /// Produces what is stored and shown of standard output, for a program whose output is not for
    /// people.
    pub stdout_filter: Option<OutputFilter>,
    /// Gets the result before anyone else, and completes it.
    pub on_end: OnEnd,
    /// Called when everything that the main process left behind has ended, if the result was
    /// returned earlier. Without it the result waits for that.
    pub on_late_end: Option<OnLateEnd>,
    /// Called when no one can look at the run any more.
    pub on_forgotten: Box<dyn FnOnce() + Send + Sync>,
    /// Tracks the run's task, so that a server that stops can wait for it.
    pub tasks: TaskTracker,
}

/// Request for the output of a run.
pub struct OutputRequest {
    /// Client that is shown progress meanwhile.
    pub client: Option<ClientHandle>,
    /// Maximum bytes of both streams together, as they are shown.
    pub budget: usize,
    /// Event that also ends the wait, in addition to the end of the run.
    pub until: BoxFuture<'static, ()>,
    /// The next request need not wait for this one.
    pub yields_to_next: bool,
}

/// Request as the run's task holds it. The wait for its event continues elsewhere, whichever
/// request is being served.
pub(super) struct PendingRequest {
    pub client: Option<ClientHandle>,
    pub budget: usize,
    pub yields_to_next: bool,
    pub is_satisfied: Arc<AtomicBool>,
}

pub(super) type StateSender = oneshot::Sender<Result<RunState>>;

pub(super) enum RunMessage {
    Output(PendingRequest, StateSender),
    /// The event of some request has occurred.
    Satisfied,
    Write {
        bytes: Vec<u8>,
        close: bool,
        reply: oneshot::Sender<Result<()>>,
    },
    Signal(i32),
    Stop(StopReason),
}

/// Reason why a run was ended before it ended on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    Deadline,
    Cancelled(CancelCause),
}

impl StopReason {
    /// Returns the reason for a cancellation with this cause.
    pub fn from_cause(cause: CancelCause) -> StopReason {
        if cause == CancelCause::Deadline {
            StopReason::Deadline
        } else {
            StopReason::Cancelled(cause)
        }
    }
}

/// State of a run, as an observer gets it.
pub enum RunState {
    Running(PartialOutput),
    Over(RunOutcome),
}

/// Output since the last look.
#[derive(Debug)]
pub struct PartialOutput {
    pub stdout: ShownOutput,
    pub stderr: ShownOutput,
    /// Handle of the whole output.
    pub output_handle: Option<String>,
    pub warnings: Vec<String>,
    /// Commands that a rule lets out and that ran in the sandbox since the last look.
    pub kept_inside: Vec<KeptCommand>,
    pub duration: Duration,
}

/// Result of a run, and the part of its output that no one had seen before.
#[derive(Debug)]
pub struct RunOutcome {
    pub stdout: ShownOutput,
    pub stderr: ShownOutput,
    pub result: RunResult,
}

/// Completeness of what a supervisor has reported about a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReportCompleteness {
    /// Nothing, or not everything: a supervisor was lost, or did not report in time.
    #[default]
    Missing,
    /// Everything until the end of the main process, which has left others behind.
    Interim,
    /// Everything.
    Whole,
}

impl ReportCompleteness {
    /// Returns the word for the audit record. A whole report needs none.
    pub fn audit_name(self) -> Option<&'static str> {
        match self {
            ReportCompleteness::Missing => Some("missing"),
            ReportCompleteness::Interim => Some("interim"),
            ReportCompleteness::Whole => None,
        }
    }
}

/// Result of a run.
#[derive(Debug, Clone, Default)]
pub struct RunResult {
    /// The supervisor was lost, so it is unknown how the run ended.
    pub is_lost: bool,
    pub reported: ReportCompleteness,
    pub stop_reason: Option<StopReason>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// Bytes of standard output and standard error, from their beginning.
    pub stream_bytes: [u64; 2],
    /// Handle of the whole output, if it was cut.
    pub output_handle: Option<String>,
    pub warnings: Vec<String>,
    pub duration: Duration,
    /// Accesses that the run was denied.
    pub denials: Vec<Value>,
    /// As in [`PartialOutput`].
    pub kept_inside: Vec<KeptCommand>,
    /// Changes in what git on the host would execute, compared with before the run.
    pub git_changed: Vec<String>,
    /// Mechanism that enforced its limits: `cgroup2`, `cgroup1` or `rlimits`.
    pub limits_mechanism: String,
    /// Number of programs it ran that no rule names.
    pub execs: Option<u64>,
    /// Audit record about these programs.
    pub exec_summary: Option<Value>,
}

impl RunResult {
    /// Takes over what a supervisor has reported, in place of an earlier report.
    pub(super) fn set_report(&mut self, exit: &RunExit, reported: ReportCompleteness) {
        (self.exit_code, self.signal, self.reported) = (exit.code, exit.signal, reported);
        self.denials =
            exit.denials.iter().filter_map(|denial| serde_json::to_value(denial).ok()).collect();
        self.limits_mechanism.clone_from(&exit.limits);
        self.execs = exit.execs;
    }

    /// Adds denials that were seen elsewhere. One that is already listed only gets a higher count.
    pub(super) fn add_denials(&mut self, denials: Vec<Value>) {
        let is_same = |one: &Value, other: &Value| {
            ["kind", "name", "reason"].iter().all(|key| one[key] == other[key])
        };
        for denial in denials {
            match self.denials.iter_mut().find(|existing| is_same(existing, &denial)) {
                Some(existing) => {
                    let counts = [&existing["count"], &denial["count"]]
                        .map(|count| count.as_u64().unwrap_or_default());
                    existing["count"] = counts[0].saturating_add(counts[1]).into();
                }
                None => self.denials.push(denial),
            }
        }
    }
}

/// Handle to a run, which ends when the last handle is dropped.
#[derive(Clone)]
pub struct RunHandle {
    messages: mpsc::UnboundedSender<RunMessage>,
}

impl StartedRun {
    /// Starts the task that drives the run.
    pub fn into_handle(self, options: RunOptions) -> RunHandle {
        let (messages, inbox) = mpsc::unbounded_channel();
        let tasks = options.tasks.clone();
        tasks.spawn(drive_run(self, options, inbox).in_current_span());
        RunHandle { messages }
    }
}

impl RunHandle {
    /// Returns the output since the last look, once the run is over or the request's event has
    /// occurred. Requests take turns.
    pub async fn request_output(&self, request: OutputRequest) -> Result<RunState> {
        let (reply, state) = oneshot::channel();
        let is_satisfied = Arc::new(AtomicBool::new(false));
        let pending = PendingRequest {
            client: request.client,
            budget: request.budget,
            yields_to_next: request.yields_to_next,
            is_satisfied: Arc::clone(&is_satisfied),
        };
        self.send_message(RunMessage::Output(pending, reply))?;
        let messages = self.messages.clone();
        // The task ends with this request, so that nothing is done for a call that is over.
        let _watcher = AbortOnDrop(tokio::spawn(async move {
            request.until.await;
            is_satisfied.store(true, Ordering::SeqCst);
            let _ = messages.send(RunMessage::Satisfied);
        }));
        state.await.map_err(|_| forgotten_error())?
    }

    /// Looks at the run for a call whose cancellation also stops the run.
    pub async fn watch_output(
        &self,
        request: OutputRequest,
        cancel: &CancelToken,
    ) -> Result<RunState> {
        let mut state = std::pin::pin!(self.request_output(request));
        tokio::select! {
            state = &mut state => state,
            cause = cancel.cancelled() => {
                self.stop(StopReason::from_cause(cause));
                state.await
            }
        }
    }

    /// Writes to the run's standard input, and closes it afterwards if `close` is set.
    pub async fn write_stdin(&self, bytes: Vec<u8>, close: bool) -> Result<()> {
        let (reply, written) = oneshot::channel();
        self.send_message(RunMessage::Write { bytes, close, reply })?;
        written.await.map_err(|_| forgotten_error())?
    }

    /// Sends a signal to the main process and its group.
    pub fn send_signal(&self, signal: i32) -> Result<()> {
        self.send_message(RunMessage::Signal(signal))
    }

    /// Ends the whole run, with its grace period. A run that has ended is left alone.
    pub fn stop(&self, reason: StopReason) {
        let _ = self.messages.send(RunMessage::Stop(reason));
    }

    /// Returns whether no one can look at the run any more because it ended long ago.
    pub fn is_forgotten(&self) -> bool {
        self.messages.is_closed()
    }

    fn send_message(&self, message: RunMessage) -> Result<()> {
        self.messages.send(message).map_err(|_| forgotten_error())
    }
}

/// Task that ends with its holder.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn forgotten_error() -> Error {
    Error::new(
        crate::base::Kind::NotFound,
        "it ended too long ago: its output is no longer available",
    )
    .with_reason("ended")
}
