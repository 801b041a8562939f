//! Runs one piece of code in an interpreter: sends the code and waits for a report or for the end
//! of the process.

use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::OwnedMutexGuard;

use super::report::Report;
use crate::base::{Cancel, Error, Kind, Result};
use crate::sandbox::{DriverSocket, OutputRequest, RunHandle, RunState, StopReason};
use crate::tools::RunCx;
use crate::tools::run::command::Started;

/// Driver socket that several calls may use in turn.
pub type SharedLine = Arc<tokio::sync::Mutex<DriverSocket>>;

/// Locks the driver socket if its interpreter is idle.
pub fn take_floor(line: &SharedLine) -> Result<OwnedMutexGuard<DriverSocket>> {
    if let Ok(mut floor) = Arc::clone(line).try_lock_owned()
        && !floor.is_busy()
    {
        return Ok(floor);
    }
    Err(Error::new(Kind::Conflict, "the session is busy with other code").reason("busy").hint(
        "Wait for it, interrupt it with shell.session `op: signal`, or start another session.",
    ))
}

/// How long an interrupted interpreter may take to report.
const INTERRUPT: Duration = Duration::from_secs(1);
/// A report sent just before the process ended is already in the socket.
const LAST_WORD: Duration = Duration::from_millis(200);

/// One piece of code for an interpreter.
pub struct Turn {
    pub line: SharedLine,
    /// Lock on the socket, so that no other call can interleave.
    pub floor: OwnedMutexGuard<DriverSocket>,
    pub message: Vec<u8>,
    /// The interpreter continues after the code has ended.
    pub lives_on: bool,
    /// The driver sends a report. If not, the end of the process is the only result.
    pub reports: bool,
    /// Maximum length of a value, in characters.
    pub limit: usize,
}

/// Outcome of a piece of code, as far as the driver reported it.
#[derive(Default)]
pub struct Heard {
    pub report: Option<Report>,
    /// Why the code was interrupted, if it was.
    pub stop: Option<StopReason>,
}

impl Turn {
    /// Runs the code to its end. Interrupts it when it times out or the call is cancelled; an
    /// interpreter that does not respond to the interrupt is stopped.
    pub async fn take(
        self,
        cx: &RunCx,
        started: &Started,
        budget: usize,
    ) -> Result<(RunState, Heard)> {
        let heard = Arc::new(Mutex::new(Heard::default()));
        let (line, limit, reports) = (Arc::clone(&self.line), self.limit, self.reports);
        let talk = Talk {
            live: started.live.clone(),
            cancel: cx.cancel.clone(),
            grace: cx.config.limits.grace.min(INTERRUPT),
            heard: Arc::clone(&heard),
        };
        let until = Box::pin(talk.carry(self));
        let seen = started
            .look(OutputRequest {
                client: Some(cx.caller.clone()),
                budget,
                until,
                yields_to_next: false,
            })
            .await?;
        let mut heard = std::mem::take(&mut *heard.lock().unwrap_or_else(PoisonError::into_inner));
        if reports && heard.report.is_none() && matches!(seen, RunState::Over(_)) {
            // The task that waited may not have released the socket yet.
            let last = async { line.lock().await.receive().await };
            if let Ok(Ok(Some(said))) = tokio::time::timeout(LAST_WORD, last).await {
                heard.report = Some(Report::read(&said, limit));
            }
        }
        Ok((seen, heard))
    }
}

struct Talk {
    live: RunHandle,
    cancel: Cancel,
    grace: Duration,
    heard: Arc<Mutex<Heard>>,
}

impl Talk {
    /// Completes when the interpreter is ready for more code. Otherwise it never does, and the end
    /// of the run is what the call waits for.
    async fn carry(self, turn: Turn) {
        let Turn { floor: mut line, message, lives_on, reports, limit, .. } = turn;
        let mut stop = None;
        let said = tokio::select! {
            biased;
            cause = self.cancel.cancelled() => {
                stop = Some(StopReason::from_cause(cause));
                self.note(|heard| heard.stop = stop);
                None
            }
            said = exchange(&mut line, &message) => Some(said),
        };
        let said = match said {
            Some(said) => Some(said),
            None if reports && self.live.send_signal(Signal::INT.as_raw()).is_ok() => {
                tokio::time::timeout(self.grace, hear(&mut line)).await.ok()
            }
            None => None,
        };
        let answered = said.map(|said| Report::read(&said, limit));
        let ready = answered.as_ref().is_some_and(|report| lives_on && !report.ended);
        self.note(|heard| heard.report = answered);
        if ready {
            return;
        }
        // This was the last report: the interpreter exits on its own, or with the call.
        let stop = match stop {
            Some(stop) => stop,
            None => StopReason::from_cause(self.cancel.cancelled().await),
        };
        self.note(|heard| heard.stop = Some(stop));
        self.live.stop(stop);
        pending().await
    }

    fn note(&self, change: impl FnOnce(&mut Heard)) {
        change(&mut self.heard.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Sends the code and returns the report. Never returns if the interpreter is gone; the end of its
/// run says so.
async fn exchange(line: &mut DriverSocket, message: &[u8]) -> Vec<u8> {
    if let Err(error) = line.send(message).await {
        tracing::debug!("cannot send code to an interpreter: {error}");
    }
    hear(line).await
}

async fn hear(line: &mut DriverSocket) -> Vec<u8> {
    match line.receive().await {
        Ok(Some(said)) => said,
        _ => pending().await,
    }
}
