//! Handle to a run that may outlive the call that started it.
//!
//! A separate task drives the run ([`super::run_driver`]). An observer sees the output since the
//! last look, and slows the run down while it cannot take more; with no observer the run continues.
//! It ends with its deadline, with its session, or when its last handle is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;

use super::run_result::{RunResult, RunState, StopReason};
use crate::base::client_handle::ClientHandle;
use crate::base::clock::Deadline;
use crate::base::{CancelToken, Error, Result};
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

/// Handle to a run, which ends when the last handle is dropped.
#[derive(Clone)]
pub struct RunHandle {
    messages: mpsc::UnboundedSender<RunMessage>,
}

impl RunHandle {
    /// Creates the handle to the task that receives these messages.
    pub(super) fn new(messages: mpsc::UnboundedSender<RunMessage>) -> RunHandle {
        RunHandle { messages }
    }

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
