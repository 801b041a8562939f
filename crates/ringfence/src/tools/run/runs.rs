//! The runs of a session that go on between its calls: commands in the background, shells, interpreters.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use super::command::{self, Started};
use crate::base::clock::Deadline;
use crate::base::ids::short;
use crate::base::{Error, Kind, Result};
use crate::sandbox::{Line, Stop};
use crate::session::Session;
use crate::tools::RunCx;

/// Those that go on. Those that have ended and can still be looked at do not count.
pub const RUNNING: usize = 32;
/// All of them; the oldest that has ended makes room.
const KEPT: usize = 128;

/// Kept by its session, and gone with it.
#[derive(Default)]
pub struct Runs {
    all: Mutex<BTreeMap<String, Arc<Kept>>>,
}

/// One of them.
pub struct Kept {
    pub id: String,
    /// What it is: `command`, `shell`, or the language of an interpreter.
    pub what: &'static str,
    /// What was started, as it may be shown.
    pub shown: String,
    pub began: SystemTime,
    since: Instant,
    pub started: Started,
    /// To the driver of a shell or an interpreter. Who holds the lock has the floor: one command at a time.
    pub line: Option<Arc<tokio::sync::Mutex<Line>>>,
    /// How the last command of a shell goes.
    pub turn: Mutex<Option<watch::Receiver<Came>>>,
}

/// How a command of a shell came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Came {
    /// Not yet.
    Waiting,
    /// It is being interrupted, for this reason.
    Stopping(Stop),
    Exit(i32),
    /// Its time was up, or its call was cancelled, and it was interrupted.
    Interrupted(Stop),
}

impl Kept {
    pub fn new(what: &'static str, shown: &str, started: Started, line: Option<Line>) -> Kept {
        let id = short(if line.is_some() { "sh" } else { "x" });
        let is_cut = shown.chars().nth(200).is_some();
        let shown = shown.chars().take(200).map(|c| if c.is_control() { ' ' } else { c });
        let shown = shown.chain(is_cut.then_some('…')).collect();
        let line = line.map(|line| Arc::new(tokio::sync::Mutex::new(line)));
        Kept {
            id,
            what,
            shown,
            began: SystemTime::now(),
            since: Instant::now(),
            started,
            line,
            turn: Mutex::default(),
        }
    }

    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// How it ended, once it has.
    pub fn ended(&self) -> Option<&'static str> {
        self.started.end.get().copied()
    }

    /// Takes it up for this call: its rights must not exceed the call's, and from now on this call is asked.
    pub async fn take_up(&self, cx: &Arc<RunCx>, clocks: Vec<Arc<Deadline>>) -> Result<()> {
        command::check_still_allowed(cx, &self.started).await?;
        self.started.attended.take_over(cx, clocks);
        Ok(())
    }
}

impl Runs {
    pub fn of(session: &Session) -> Result<Arc<Runs>> {
        session.keep(|| Ok(Runs::default()))
    }

    /// Whether one more may go on.
    pub fn has_room(&self) -> bool {
        self.list().iter().filter(|kept| kept.ended().is_none()).count() < RUNNING
    }

    /// Before one is started that will go on.
    pub fn check_room(&self) -> Result<()> {
        if self.has_room() {
            return Ok(());
        }
        Err(Error::new(
            Kind::ResourceExhausted,
            format!("{RUNNING} commands and shells go on in this session already"),
        )
        .hint("See them with shell.session and `op: list`; end some with `op: close`."))
    }

    /// The session is over, and so is everything that goes on in it. What is kept here keeps its calls, and they their
    /// session: somebody has to let go first.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.all.lock().unwrap_or_else(PoisonError::into_inner));
        drop(all);
    }

    pub fn insert(&self, kept: Kept) -> Arc<Kept> {
        let kept = Arc::new(kept);
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, kept| !kept.started.live.is_forgotten());
        let oldest =
            all.values().filter(|kept| kept.ended().is_some()).min_by_key(|kept| kept.since);
        if all.len() >= KEPT
            && let Some(id) = oldest.map(|kept| kept.id.clone())
        {
            all.remove(&id);
        }
        all.insert(kept.id.clone(), Arc::clone(&kept));
        kept
    }

    pub fn get(&self, id: &str) -> Result<Arc<Kept>> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(id).cloned().ok_or_else(|| {
            let shown: String = id.chars().take(64).collect();
            Error::new(Kind::NotFound, format!("nothing called `{shown}` goes on in this session"))
                .hint("`op: list` of shell.session shows what does; what has ended is forgotten after ten minutes.")
        })
    }

    /// Forgets this one, and not another that has taken its name since.
    pub fn remove(&self, kept: &Arc<Kept>) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.get(&kept.id).is_some_and(|known| Arc::ptr_eq(known, kept)) {
            all.remove(&kept.id);
        }
    }

    /// The oldest first.
    pub fn list(&self) -> Vec<Arc<Kept>> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, kept| !kept.started.live.is_forgotten());
        let mut list: Vec<_> = all.values().cloned().collect();
        list.sort_by_key(|kept| kept.since);
        list
    }
}
