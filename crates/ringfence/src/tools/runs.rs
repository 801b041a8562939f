//! The runs of a session that go on between its calls: commands in the background, shells, interpreters.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::RunCx;
use super::command::{self, Started};
use crate::base::clock::Deadline;
use crate::base::ids::short;
use crate::base::{Error, Kind, Result};
use crate::sandbox::{Line, Look, Seen};
use crate::session::Session;

/// Those that go on. Those that have ended and can still be looked at do not count.
const RUNNING: usize = 32;
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
    ended: Mutex<Option<&'static str>>,
}

impl Kept {
    pub fn new(what: &'static str, shown: &str, started: Started, line: Option<Line>) -> Kept {
        let id = short(if line.is_some() { "sh" } else { "x" });
        let shown = shown.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let line = line.map(|line| Arc::new(tokio::sync::Mutex::new(line)));
        let ended = Mutex::new(None);
        Kept { id, what, shown, began: SystemTime::now(), since: Instant::now(), started, line, ended }
    }

    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// How it ended, once somebody has seen that.
    pub fn ended(&self) -> Option<&'static str> {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes it up for this call: its rights must not exceed the call's, and from now on this call is asked.
    pub async fn take_up(&self, cx: &Arc<RunCx>, look: Option<Arc<Deadline>>) -> Result<()> {
        command::check_still_allowed(cx, &self.started.rights, self.started.rules).await?;
        self.started.attended.take_over(cx, look);
        Ok(())
    }

    /// What has come since the last look; the end of the call is not the run's.
    pub async fn look(&self, look: Look) -> Result<Seen> {
        let seen = self.started.look(look).await?;
        self.note(&seen);
        Ok(seen)
    }

    pub fn note(&self, seen: &Seen) {
        if let Seen::Over(outcome) = seen {
            let status = command::status(&outcome.ended);
            *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
        }
    }
}

impl Runs {
    pub fn of(session: &Session) -> Result<Arc<Runs>> {
        session.keep(|| Ok(Runs::default()))
    }

    /// Before one is started that may go on.
    pub fn check_room(&self) -> Result<()> {
        let running = self.list().iter().filter(|kept| kept.ended().is_none()).count();
        if running < RUNNING {
            return Ok(());
        }
        Err(Error::new(Kind::ResourceExhausted, format!("{running} commands and shells go on in this session already"))
            .hint("See them with shell.session and `op: list`; end some with `op: close`."))
    }

    pub fn insert(&self, kept: Kept) -> Arc<Kept> {
        let kept = Arc::new(kept);
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, kept| !kept.started.live.is_forgotten());
        let oldest = all.values().filter(|kept| kept.ended().is_some()).min_by_key(|kept| kept.since);
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

    pub fn remove(&self, id: &str) -> Option<Arc<Kept>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(id)
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
