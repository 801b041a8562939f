//! Runs of a session that continue between its calls: background commands, shells, interpreters.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use super::command::{self, StartedCommand};
use crate::base::IgnorePoison;
use crate::base::clock::Deadline;
use crate::base::ids::short_id;
use crate::base::{Error, Kind, Result};
use crate::sandbox::{DriverSocket, StopReason};
use crate::tools::RunCx;

/// Maximum number of runs that may continue at once in a session. Those that have ended but can
/// still be read are not included.
pub const MAX_RUNNING: usize = 32;
/// Maximum number of runs kept, ended ones included; the oldest that has ended makes room.
const MAX_KEPT: usize = 128;

/// The runs of one session. Stored in the session and dropped with it.
#[derive(Default)]
pub struct BackgroundRuns {
    runs: Mutex<BTreeMap<String, Arc<BackgroundRun>>>,
}

/// A run that continues between calls.
pub struct BackgroundRun {
    pub id: String,
    /// Kind of run: `command`, `shell`, or the language of an interpreter.
    pub kind: &'static str,
    /// The command, shortened and without control characters, for display.
    pub display_command: String,
    pub started_at: SystemTime,
    started_instant: Instant,
    pub started: StartedCommand,
    /// Socket to the driver of a shell or an interpreter. Holding the lock is the right to use it,
    /// so only one command runs at a time.
    pub driver_socket: Option<Arc<tokio::sync::Mutex<DriverSocket>>>,
    /// State of the shell's last command.
    pub last_command: Mutex<Option<watch::Receiver<ShellCommandState>>>,
}

/// How a command in a shell ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShellCommandState {
    /// It has not ended yet.
    Pending,
    /// It is being interrupted, for this reason.
    Stopping(StopReason),
    /// It ended with this status.
    Exited(i32),
    /// It was interrupted because it timed out or its call was cancelled.
    Interrupted(StopReason),
}

impl BackgroundRun {
    /// Creates a run. One with a driver socket is a shell or an interpreter.
    pub fn new(
        kind: &'static str,
        display_command: &str,
        started: StartedCommand,
        driver_socket: Option<DriverSocket>,
    ) -> BackgroundRun {
        let id = short_id(if driver_socket.is_some() { "sh" } else { "x" });
        let is_cut = display_command.chars().nth(200).is_some();
        let display_command =
            display_command.chars().take(200).map(|c| if c.is_control() { ' ' } else { c });
        let display_command = display_command.chain(is_cut.then_some('…')).collect();
        let driver_socket =
            driver_socket.map(|driver_socket| Arc::new(tokio::sync::Mutex::new(driver_socket)));
        BackgroundRun {
            id,
            kind,
            display_command,
            started_at: SystemTime::now(),
            started_instant: Instant::now(),
            started,
            driver_socket,
            last_command: Mutex::default(),
        }
    }

    /// Returns how long ago it was started.
    pub fn age(&self) -> Duration {
        self.started_instant.elapsed()
    }

    /// Returns how it ended, once it has.
    pub fn end_status(&self) -> Option<&'static str> {
        self.started.end_status.get().copied()
    }

    /// Attaches a call to the run, so that from now on this call is asked. Fails if the run has
    /// rights that the call does not have.
    pub async fn attach_call(&self, cx: &Arc<RunCx>, deadlines: Vec<Arc<Deadline>>) -> Result<()> {
        command::check_still_allowed(cx, &self.started).await?;
        self.started.owner.set_owner(cx, deadlines);
        Ok(())
    }
}

impl BackgroundRuns {
    /// Returns whether one more run may continue in the background.
    pub fn has_room(&self) -> bool {
        self.list_oldest_first().iter().filter(|run| run.end_status().is_none()).count()
            < MAX_RUNNING
    }

    /// Fails if no more runs may continue in the background.
    pub fn check_room(&self) -> Result<()> {
        if self.has_room() {
            return Ok(());
        }
        Err(Error::new(
            Kind::ResourceExhausted,
            format!("{MAX_RUNNING} commands and shells are already running in this session"),
        )
        .with_hint("See them with shell.session and `op: list`; end some with `op: close`."))
    }

    /// Drops all runs once the session is over. The runs hold their calls and the calls hold the
    /// session, so without this the reference cycle would keep all of them alive.
    pub fn clear(&self) {
        let runs = std::mem::take(&mut *self.runs.lock().ignore_poison());
        drop(runs);
    }

    /// Adds a run.
    pub fn insert(&self, run: BackgroundRun) -> Arc<BackgroundRun> {
        let run = Arc::new(run);
        let mut runs = self.runs.lock().ignore_poison();
        runs.retain(|_, run| !run.started.run_handle.is_forgotten());
        let oldest = runs
            .values()
            .filter(|run| run.end_status().is_some())
            .min_by_key(|run| run.started_instant);
        if runs.len() >= MAX_KEPT
            && let Some(id) = oldest.map(|run| run.id.clone())
        {
            runs.remove(&id);
        }
        runs.insert(run.id.clone(), Arc::clone(&run));
        run
    }

    /// Returns the run with this id.
    pub fn get(&self, id: &str) -> Result<Arc<BackgroundRun>> {
        let runs = self.runs.lock().ignore_poison();
        runs.get(id).cloned().ok_or_else(|| {
            let shown_id: String = id.chars().take(64).collect();
            Error::new(Kind::NotFound, format!("there is no command or shell `{shown_id}` in this session"))
                .with_hint("List them with `op: list` of shell.session; those that have ended are forgotten after ten minutes.")
        })
    }

    /// Removes this run, but not another one that has taken over its id.
    pub fn remove(&self, run: &Arc<BackgroundRun>) {
        let mut runs = self.runs.lock().ignore_poison();
        if runs.get(&run.id).is_some_and(|existing| Arc::ptr_eq(existing, run)) {
            runs.remove(&run.id);
        }
    }

    /// Returns the runs, oldest first.
    pub fn list_oldest_first(&self) -> Vec<Arc<BackgroundRun>> {
        let mut runs = self.runs.lock().ignore_poison();
        runs.retain(|_, run| !run.started.run_handle.is_forgotten());
        let mut list: Vec<_> = runs.values().cloned().collect();
        list.sort_by_key(|run| run.started_instant);
        list
    }
}
