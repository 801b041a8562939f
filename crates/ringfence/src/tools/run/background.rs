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
use crate::session::Session;
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
        what: &'static str,
        shown: &str,
        started: StartedCommand,
        line: Option<DriverSocket>,
    ) -> BackgroundRun {
        let id = short_id(if line.is_some() { "sh" } else { "x" });
        let is_cut = shown.chars().nth(200).is_some();
        let shown = shown.chars().take(200).map(|c| if c.is_control() { ' ' } else { c });
        let shown = shown.chain(is_cut.then_some('…')).collect();
        let line = line.map(|line| Arc::new(tokio::sync::Mutex::new(line)));
        BackgroundRun {
            id,
            kind: what,
            display_command: shown,
            started_at: SystemTime::now(),
            started_instant: Instant::now(),
            started,
            driver_socket: line,
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
    pub async fn attach_call(&self, cx: &Arc<RunCx>, clocks: Vec<Arc<Deadline>>) -> Result<()> {
        command::check_still_allowed(cx, &self.started).await?;
        self.started.owner.set_owner(cx, clocks);
        Ok(())
    }
}

impl BackgroundRuns {
    /// Returns the runs of a session.
    pub fn for_session(session: &Session) -> Result<Arc<BackgroundRuns>> {
        session.get_or_create(|| Ok(BackgroundRuns::default()))
    }

    /// Returns whether one more run may continue in the background.
    pub fn has_room(&self) -> bool {
        self.list_oldest_first().iter().filter(|kept| kept.end_status().is_none()).count()
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
        let all = std::mem::take(&mut *self.runs.lock().ignore_poison());
        drop(all);
    }

    /// Adds a run.
    pub fn insert(&self, kept: BackgroundRun) -> Arc<BackgroundRun> {
        let kept = Arc::new(kept);
        let mut all = self.runs.lock().ignore_poison();
        all.retain(|_, kept| !kept.started.run_handle.is_forgotten());
        let oldest = all
            .values()
            .filter(|kept| kept.end_status().is_some())
            .min_by_key(|kept| kept.started_instant);
        if all.len() >= MAX_KEPT
            && let Some(id) = oldest.map(|kept| kept.id.clone())
        {
            all.remove(&id);
        }
        all.insert(kept.id.clone(), Arc::clone(&kept));
        kept
    }

    /// Returns the run with this id.
    pub fn get(&self, id: &str) -> Result<Arc<BackgroundRun>> {
        let all = self.runs.lock().ignore_poison();
        all.get(id).cloned().ok_or_else(|| {
            let shown: String = id.chars().take(64).collect();
            Error::new(Kind::NotFound, format!("there is no command or shell `{shown}` in this session"))
                .with_hint("List them with `op: list` of shell.session; those that have ended are forgotten after ten minutes.")
        })
    }

    /// Removes this run, but not another one that has taken over its id.
    pub fn remove(&self, kept: &Arc<BackgroundRun>) {
        let mut all = self.runs.lock().ignore_poison();
        if all.get(&kept.id).is_some_and(|known| Arc::ptr_eq(known, kept)) {
            all.remove(&kept.id);
        }
    }

    /// Returns the runs, oldest first.
    pub fn list_oldest_first(&self) -> Vec<Arc<BackgroundRun>> {
        let mut all = self.runs.lock().ignore_poison();
        all.retain(|_, kept| !kept.started.run_handle.is_forgotten());
        let mut list: Vec<_> = all.values().cloned().collect();
        list.sort_by_key(|kept| kept.started_instant);
        list
    }
}
