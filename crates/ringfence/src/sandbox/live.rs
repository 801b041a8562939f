//! Handle to a run that may outlive the call that started it.
//!
//! A separate task drives the run ([`super::stream`]). An observer sees the output since the last
//! look, and slows the run down while it cannot take more; with no observer the run continues. It
//! ends with its deadline, with its session, or when its last handle is dropped.

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
use super::launch::Run;
use super::ring::Shown;
use super::stream::drive;
use crate::base::caller::Caller;
use crate::base::clock::Deadline;
use crate::base::{Cancel, Cause, Error, Result};
use crate::session::Outputs;

/// Transforms a piece of output. Pieces come in order and end anywhere.
pub type Reads = Box<dyn FnMut(&[u8]) -> Vec<u8> + Send + Sync>;

/// Receives the result of a run a second time, once everything it left behind has ended.
pub type Late = Box<dyn FnOnce(&mut Ended) + Send + Sync>;

/// Completes the result of a run.
pub type OnEnd = Box<dyn for<'e> FnOnce(&'e mut Ended) -> BoxFuture<'e, ()> + Send + Sync>;

/// Options for a run that is driven by its own task.
pub struct Keep {
    pub outputs: Arc<Outputs>,
    /// Token that ends the run regardless of observers: the session's own.
    pub cancel: Cancel,
    pub deadline: Option<Arc<Deadline>>,
    /// Maximum bytes shown of both streams together, until an observer says how much it wants to
    /// see.
    pub budget: usize,
    /// Maximum bytes of the stored output.
    pub file_bytes: u64,
    /// Produces what is stored and shown of standard output, for a program whose output is not for
    /// people.
    pub reads: Option<Reads>,
    /// Gets the result before anyone else, and completes it.
    pub ended: OnEnd,
    /// Called when everything that the main process left behind has ended, if the result was
    /// returned earlier. Without it the result waits for that.
    pub late: Option<Late>,
    /// Called when no one can look at the run any more.
    pub forgotten: Box<dyn FnOnce() + Send + Sync>,
    /// Tracks the run's task, so that a server that stops can wait for it.
    pub tasks: TaskTracker,
}

/// Request for the output of a run.
pub struct Look {
    /// Client that is shown progress meanwhile.
    pub caller: Option<Caller>,
    /// Maximum bytes of both streams together, as they are shown.
    pub budget: usize,
    /// Event that also ends the wait, in addition to the end of the run.
    pub until: BoxFuture<'static, ()>,
    /// The next request need not wait for this one.
    pub gives_way: bool,
}

/// Request as the run's task holds it. The wait for its event continues elsewhere, whichever
/// request is being served.
pub(super) struct Asked {
    pub caller: Option<Caller>,
    pub budget: usize,
    pub gives_way: bool,
    pub is_enough: Arc<AtomicBool>,
}

pub(super) type Reply = oneshot::Sender<Result<Seen>>;

pub(super) enum Ask {
    Look(Asked, Reply),
    /// The event of some request has occurred.
    Enough,
    Write {
        bytes: Vec<u8>,
        close: bool,
        reply: oneshot::Sender<Result<()>>,
    },
    Signal(i32),
    Stop(Stop),
}

/// Reason why a run was ended before it ended on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    Deadline,
    Cancelled(Cause),
}

impl Stop {
    /// Returns the reason for a cancellation with this cause.
    pub fn by(cause: Cause) -> Stop {
        if cause == Cause::Deadline { Stop::Deadline } else { Stop::Cancelled(cause) }
    }
}

/// State of a run, as an observer gets it.
pub enum Seen {
    Running(Glance),
    Over(Outcome),
}

/// Output since the last look.
#[derive(Debug)]
pub struct Glance {
    pub stdout: Shown,
    pub stderr: Shown,
    /// Handle of the whole output.
    pub output: Option<String>,
    pub warnings: Vec<String>,
    /// Commands that a rule lets out and that ran in the sandbox since the last look.
    pub kept_inside: Vec<KeptCommand>,
    pub duration: Duration,
}

/// Result of a run, and the part of its output that no one had seen before.
#[derive(Debug)]
pub struct Outcome {
    pub stdout: Shown,
    pub stderr: Shown,
    pub ended: Ended,
}

/// Completeness of what a supervisor has reported about a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reported {
    /// Nothing, or not everything: a supervisor was lost, or did not report in time.
    #[default]
    Missing,
    /// Everything until the end of the main process, which has left others behind.
    Interim,
    /// Everything.
    Whole,
}

impl Reported {
    /// Returns the word for the audit record. A whole report needs none.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Reported::Missing => Some("missing"),
            Reported::Interim => Some("interim"),
            Reported::Whole => None,
        }
    }
}

/// Result of a run.
#[derive(Debug, Clone, Default)]
pub struct Ended {
    /// The supervisor was lost, so it is unknown how the run ended.
    pub is_lost: bool,
    pub reported: Reported,
    pub stop: Option<Stop>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// Bytes of standard output and standard error, from their beginning.
    pub bytes: [u64; 2],
    /// Handle of the whole output, if it was cut.
    pub output: Option<String>,
    pub warnings: Vec<String>,
    pub duration: Duration,
    /// Accesses that the run was denied.
    pub denials: Vec<Value>,
    /// As in [`Glance`].
    pub kept_inside: Vec<KeptCommand>,
    /// Changes in what git on the host would execute, compared with before the run.
    pub git_changed: Vec<String>,
    /// Mechanism that enforced its limits: `cgroup2`, `cgroup1` or `rlimits`.
    pub limits: String,
    /// Number of programs it ran that no rule names.
    pub execs: Option<u64>,
    /// Audit record about these programs.
    pub summed: Option<Value>,
}

impl Ended {
    /// Takes over what a supervisor has reported, in place of an earlier report.
    pub(super) fn set_report(&mut self, exit: &RunExit, reported: Reported) {
        (self.exit_code, self.signal, self.reported) = (exit.code, exit.signal, reported);
        self.denials =
            exit.denials.iter().filter_map(|denial| serde_json::to_value(denial).ok()).collect();
        self.limits.clone_from(&exit.limits);
        self.execs = exit.execs;
    }

    /// Adds denials that were seen elsewhere. One that is already listed only gets a higher count.
    pub(super) fn add_denials(&mut self, more: Vec<Value>) {
        let is_same = |one: &Value, other: &Value| {
            ["kind", "name", "reason"].iter().all(|key| one[key] == other[key])
        };
        for denial in more {
            match self.denials.iter_mut().find(|known| is_same(known, &denial)) {
                Some(known) => {
                    let counts = [&known["count"], &denial["count"]]
                        .map(|count| count.as_u64().unwrap_or_default());
                    known["count"] = counts[0].saturating_add(counts[1]).into();
                }
                None => self.denials.push(denial),
            }
        }
    }
}

/// Handle to a run, which ends when the last handle is dropped.
#[derive(Clone)]
pub struct Live {
    asks: mpsc::UnboundedSender<Ask>,
}

impl Run {
    /// Starts the task that drives the run.
    pub fn keep(self, keep: Keep) -> Live {
        let (asks, inbox) = mpsc::unbounded_channel();
        let tasks = keep.tasks.clone();
        tasks.spawn(drive(self, keep, inbox).in_current_span());
        Live { asks }
    }
}

impl Live {
    /// Returns the output since the last look, once the run is over or the request's event has
    /// occurred. Requests take turns.
    pub async fn look(&self, look: Look) -> Result<Seen> {
        let (reply, seen) = oneshot::channel();
        let is_enough = Arc::new(AtomicBool::new(false));
        let asked = Asked {
            caller: look.caller,
            budget: look.budget,
            gives_way: look.gives_way,
            is_enough: Arc::clone(&is_enough),
        };
        self.ask(Ask::Look(asked, reply))?;
        let asks = self.asks.clone();
        // The task ends with this request, so that nothing is done for a call that is over.
        let _waiting = Aborted(tokio::spawn(async move {
            look.until.await;
            is_enough.store(true, Ordering::SeqCst);
            let _ = asks.send(Ask::Enough);
        }));
        seen.await.map_err(|_| forgotten())?
    }

    /// Looks at the run for a call whose cancellation also stops the run.
    pub async fn watch(&self, look: Look, cancel: &Cancel) -> Result<Seen> {
        let mut seen = std::pin::pin!(self.look(look));
        tokio::select! {
            seen = &mut seen => seen,
            cause = cancel.cancelled() => {
                self.stop(Stop::by(cause));
                seen.await
            }
        }
    }

    /// Writes to the run's standard input, and closes it afterwards if `close` is set.
    pub async fn write(&self, bytes: Vec<u8>, close: bool) -> Result<()> {
        let (reply, written) = oneshot::channel();
        self.ask(Ask::Write { bytes, close, reply })?;
        written.await.map_err(|_| forgotten())?
    }

    /// Sends a signal to the main process and its group.
    pub fn signal(&self, signal: i32) -> Result<()> {
        self.ask(Ask::Signal(signal))
    }

    /// Ends the whole run, with its grace period. A run that has ended is left alone.
    pub fn stop(&self, stop: Stop) {
        let _ = self.asks.send(Ask::Stop(stop));
    }

    /// Returns whether no one can look at the run any more because it ended long ago.
    pub fn is_forgotten(&self) -> bool {
        self.asks.is_closed()
    }

    fn ask(&self, ask: Ask) -> Result<()> {
        self.asks.send(ask).map_err(|_| forgotten())
    }
}

/// Task that ends with its holder.
struct Aborted(tokio::task::JoinHandle<()>);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn forgotten() -> Error {
    Error::new(
        crate::base::Kind::NotFound,
        "it ended too long ago: its output is no longer available",
    )
    .reason("ended")
}
