//! A run that may outlive the call that started it, as those see it who hold it.
//!
//! The run is driven by a task of its own (`stream.rs`). Whoever looks at it sees what has come since the last look,
//! and slows it down while they cannot take more; when nobody looks it goes on. It ends with its time, with its
//! session, or when nobody holds it any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use jail::supervisor::Exit;
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

/// What becomes of a piece of output. Pieces come in their order and end anywhere.
pub type Reads = Box<dyn FnMut(&[u8]) -> Vec<u8> + Send + Sync>;

/// Hears of the end of a run once more.
pub type Late = Box<dyn FnOnce(&mut Ended) + Send + Sync>;

/// Completes what is known about the end of a run.
pub type OnEnd = Box<dyn for<'e> FnOnce(&'e mut Ended) -> BoxFuture<'e, ()> + Send + Sync>;

/// What a run is kept with.
pub struct Keep {
    pub outputs: Arc<Outputs>,
    /// Ends it whoever looks: the session's own.
    pub cancel: Cancel,
    pub deadline: Option<Arc<Deadline>>,
    /// Of both streams together, while nobody has said how much they want to see.
    pub budget: usize,
    /// Of the stored output.
    pub file_bytes: u64,
    /// Makes what is kept and shown of standard output, for a program whose output is not for people.
    pub reads: Option<Reads>,
    /// Hears of the end before anybody else does, and completes what is known about it.
    pub ended: OnEnd,
    /// Hears of the end of what the main process left behind, where the result was made before. Without it the result
    /// waits for that.
    pub late: Option<Late>,
    /// Hears that nobody can look any more.
    pub forgotten: Box<dyn FnOnce() + Send + Sync>,
    /// Where it runs, so that a server that stops can wait for it.
    pub tasks: TaskTracker,
}

/// One look at a run.
pub struct Look {
    /// Who is shown progress meanwhile.
    pub caller: Option<Caller>,
    /// Of both streams together, as they are shown.
    pub budget: usize,
    /// What is waited for beside the end.
    pub until: BoxFuture<'static, ()>,
    /// Whoever comes next need not wait for this one.
    pub gives_way: bool,
}

/// A look as the run's own task has it. What it waits for goes on beside it, whoever's turn it is.
pub(super) struct Asked {
    pub caller: Option<Caller>,
    pub budget: usize,
    pub gives_way: bool,
    pub is_enough: Arc<AtomicBool>,
}

pub(super) type Reply = oneshot::Sender<Result<Seen>>;

pub(super) enum Ask {
    Look(Asked, Reply),
    /// Some look has seen enough.
    Enough,
    Write {
        bytes: Vec<u8>,
        close: bool,
        reply: oneshot::Sender<Result<()>>,
    },
    Signal(i32),
    Stop(Stop),
}

/// Why a run was ended before it ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    Deadline,
    Cancelled(Cause),
}

impl Stop {
    pub fn by(cause: Cause) -> Stop {
        if cause == Cause::Deadline { Stop::Deadline } else { Stop::Cancelled(cause) }
    }
}

pub enum Seen {
    Running(Glance),
    Over(Outcome),
}

/// What has come since the last look.
#[derive(Debug)]
pub struct Glance {
    pub stdout: Shown,
    pub stderr: Shown,
    /// The handle of the whole output.
    pub output: Option<String>,
    pub warnings: Vec<String>,
    /// Commands that a rule lets out and that ran in the sandbox since the last look.
    pub kept_inside: Vec<KeptCommand>,
    pub duration: Duration,
}

/// How a run ended, and what of its output nobody had seen before.
#[derive(Debug)]
pub struct Outcome {
    pub stdout: Shown,
    pub stderr: Shown,
    pub ended: Ended,
}

/// How much of a run its supervisor has reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reported {
    /// Nothing, or not all that there was: a supervisor was lost, or did not report in time.
    #[default]
    Missing,
    /// What was seen until the end of the main process, which has left others behind.
    Interim,
    /// Everything.
    Whole,
}

impl Reported {
    /// The word of a record. A whole report goes without saying.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Reported::Missing => Some("missing"),
            Reported::Interim => Some("interim"),
            Reported::Whole => None,
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct Ended {
    /// Nobody knows how: its supervisor was lost.
    pub is_lost: bool,
    pub reported: Reported,
    pub stop: Option<Stop>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// Of standard output and standard error, from their beginning.
    pub bytes: [u64; 2],
    /// The handle of the whole output, when it was cut.
    pub output: Option<String>,
    pub warnings: Vec<String>,
    pub duration: Duration,
    /// What the run was refused.
    pub denials: Vec<Value>,
    /// As in [`Glance`].
    pub kept_inside: Vec<KeptCommand>,
    /// What git on the host would execute otherwise than before the run.
    pub git_changed: Vec<String>,
    /// How its limits were kept: `cgroup2`, `cgroup1` or `rlimits`.
    pub limits: String,
    /// How many programs it ran that no rule names, and what is put on record about them.
    pub execs: Option<u64>,
    pub summed: Option<Value>,
}

impl Ended {
    /// Takes over what a supervisor has reported, in place of what it reported before.
    pub(super) fn set_report(&mut self, exit: &Exit, reported: Reported) {
        (self.exit_code, self.signal, self.reported) = (exit.code, exit.signal, reported);
        self.denials =
            exit.denials.iter().filter_map(|denial| serde_json::to_value(denial).ok()).collect();
        self.limits.clone_from(&exit.limits);
        self.execs = exit.execs;
    }

    /// Adds denials that were seen elsewhere. What was denied before only counts more often.
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

/// A hold on a run. With the last one it ends.
#[derive(Clone)]
pub struct Live {
    asks: mpsc::UnboundedSender<Ask>,
}

impl Run {
    pub fn keep(self, keep: Keep) -> Live {
        let (asks, inbox) = mpsc::unbounded_channel();
        let tasks = keep.tasks.clone();
        tasks.spawn(drive(self, keep, inbox).in_current_span());
        Live { asks }
    }
}

impl Live {
    /// What has come since the last look, once it is over or what `look` waits for has come. Looks take turns.
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
        // It ends with this look, so that nothing is done for a call that is over.
        let _waiting = Aborted(tokio::spawn(async move {
            look.until.await;
            is_enough.store(true, Ordering::SeqCst);
            let _ = asks.send(Ask::Enough);
        }));
        seen.await.map_err(|_| forgotten())?
    }

    /// The same, for a call whose end is the run's.
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

    pub async fn write(&self, bytes: Vec<u8>, close: bool) -> Result<()> {
        let (reply, written) = oneshot::channel();
        self.ask(Ask::Write { bytes, close, reply })?;
        written.await.map_err(|_| forgotten())?
    }

    /// For the main process and its group.
    pub fn signal(&self, signal: i32) -> Result<()> {
        self.ask(Ask::Signal(signal))
    }

    /// Ends all of it, with the grace that it has. One that has ended is left alone.
    pub fn stop(&self, stop: Stop) {
        let _ = self.asks.send(Ask::Stop(stop));
    }

    /// Nobody can look at it any more: it ended long ago.
    pub fn is_forgotten(&self) -> bool {
        self.asks.is_closed()
    }

    fn ask(&self, ask: Ask) -> Result<()> {
        self.asks.send(ask).map_err(|_| forgotten())
    }
}

/// A task that ends with its holder.
struct Aborted(tokio::task::JoinHandle<()>);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn forgotten() -> Error {
    Error::new(crate::base::Kind::NotFound, "it ended too long ago to be looked at").reason("ended")
}
