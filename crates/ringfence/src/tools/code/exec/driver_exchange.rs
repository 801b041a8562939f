//! Runs one piece of code in an interpreter: sends the code and waits for a report or for the end
//! of the process.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::OwnedMutexGuard;

use super::driver_messages::DriverReport;
use crate::base::IgnorePoison;
use crate::base::{CancelToken, Error, Kind, Result};
use crate::sandbox::{DriverSocket, OutputRequest, RunHandle, RunState, StopReason};
use crate::tools::RunCx;
use crate::tools::run::command::StartedCommand;

/// Driver socket that several calls may use in turn.
pub type SharedDriverSocket = Arc<tokio::sync::Mutex<DriverSocket>>;

/// Locks the driver socket if its interpreter is idle.
pub fn lock_driver_socket(line: &SharedDriverSocket) -> Result<OwnedMutexGuard<DriverSocket>> {
    if let Ok(mut floor) = Arc::clone(line).try_lock_owned()
        && !floor.is_busy()
    {
        return Ok(floor);
    }
    Err(Error::new(Kind::Conflict, "the session is busy with other code")
        .with_reason("busy")
        .with_hint(
            "Wait for it, interrupt it with shell.session `op: signal`, or start another session.",
        ))
}

/// How long an interrupted interpreter may take to report.
const INTERRUPT_GRACE: Duration = Duration::from_secs(1);
/// A report sent just before the process ended is already in the socket.
const LAST_REPORT_WAIT: Duration = Duration::from_millis(200);

/// One piece of code for an interpreter.
pub struct CodeTurn {
    pub socket: SharedDriverSocket,
    /// Lock on the socket, so that no other call can interleave.
    pub socket_guard: OwnedMutexGuard<DriverSocket>,
    pub message: Vec<u8>,
    /// The interpreter continues after the code has ended.
    pub stays_alive: bool,
    /// The driver sends a report. If not, the end of the process is the only result.
    pub sends_report: bool,
    /// Maximum length of a value, in characters.
    pub value_limit: usize,
}

/// Outcome of a piece of code, as far as the driver reported it.
#[derive(Default)]
pub struct TurnReport {
    pub report: Option<DriverReport>,
    /// Why the code was interrupted, if it was.
    pub stop: Option<StopReason>,
}

impl CodeTurn {
    /// Runs the code to its end. Interrupts it when it times out or the call is cancelled; an
    /// interpreter that does not respond to the interrupt is stopped.
    pub async fn run_code(
        self,
        cx: &RunCx,
        started: &StartedCommand,
        budget: usize,
    ) -> Result<(RunState, TurnReport)> {
        let heard = Arc::new(Mutex::new(TurnReport::default()));
        let (line, limit, reports) =
            (Arc::clone(&self.socket), self.value_limit, self.sends_report);
        let talk = DriverExchange {
            run_handle: started.run_handle.clone(),
            cancel: cx.cancel.clone(),
            grace: cx.config.limits.grace.min(INTERRUPT_GRACE),
            turn_report: Arc::clone(&heard),
        };
        let until = Box::pin(talk.run_exchange(self));
        let seen = started
            .read_output(OutputRequest {
                client: Some(cx.client.clone()),
                budget,
                until,
                yields_to_next: false,
            })
            .await?;
        let mut heard = std::mem::take(&mut *heard.lock().ignore_poison());
        if reports && heard.report.is_none() && matches!(seen, RunState::Over(_)) {
            // The task that waited may not have released the socket yet.
            let last = async { line.lock().await.receive().await };
            if let Ok(Ok(Some(said))) = tokio::time::timeout(LAST_REPORT_WAIT, last).await {
                heard.report = Some(DriverReport::parse(&said, limit));
            }
        }
        Ok((seen, heard))
    }
}

struct DriverExchange {
    run_handle: RunHandle,
    cancel: CancelToken,
    grace: Duration,
    turn_report: Arc<Mutex<TurnReport>>,
}

impl DriverExchange {
    /// Completes when the interpreter is ready for more code. Otherwise it never does, and the end
    /// of the run is what the call waits for.
    async fn run_exchange(self, turn: CodeTurn) {
        let CodeTurn {
            socket_guard: mut line,
            message,
            stays_alive: lives_on,
            sends_report: reports,
            value_limit: limit,
            ..
        } = turn;
        let mut stop = None;
        let said = tokio::select! {
            biased;
            cause = self.cancel.cancelled() => {
                stop = Some(StopReason::from_cause(cause));
                self.update_report(|heard| heard.stop = stop);
                None
            }
            said = send_and_receive(&mut line, &message) => Some(said),
        };
        let said = match said {
            Some(said) => Some(said),
            None if reports && self.run_handle.send_signal(Signal::INT.as_raw()).is_ok() => {
                tokio::time::timeout(self.grace, receive_report(&mut line)).await.ok()
            }
            None => None,
        };
        let answered = said.map(|said| DriverReport::parse(&said, limit));
        let ready = answered.as_ref().is_some_and(|report| lives_on && !report.ended);
        self.update_report(|heard| heard.report = answered);
        if ready {
            return;
        }
        // This was the last report: the interpreter exits on its own, or with the call.
        let stop = match stop {
            Some(stop) => stop,
            None => StopReason::from_cause(self.cancel.cancelled().await),
        };
        self.update_report(|heard| heard.stop = Some(stop));
        self.run_handle.stop(stop);
        pending().await
    }

    fn update_report(&self, change: impl FnOnce(&mut TurnReport)) {
        change(&mut self.turn_report.lock().ignore_poison());
    }
}

/// Sends the code and returns the report. Never returns if the interpreter is gone; the end of its
/// run says so.
async fn send_and_receive(line: &mut DriverSocket, message: &[u8]) -> Vec<u8> {
    if let Err(error) = line.send(message).await {
        tracing::debug!("cannot send code to an interpreter: {error}");
    }
    receive_report(line).await
}

async fn receive_report(line: &mut DriverSocket) -> Vec<u8> {
    match line.receive().await {
        Ok(Some(said)) => said,
        _ => pending().await,
    }
}
