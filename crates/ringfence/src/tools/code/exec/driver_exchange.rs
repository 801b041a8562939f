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
pub fn lock_driver_socket(socket: &SharedDriverSocket) -> Result<OwnedMutexGuard<DriverSocket>> {
    if let Ok(mut guard) = Arc::clone(socket).try_lock_owned()
        && !guard.is_busy()
    {
        return Ok(guard);
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
        let turn_report = Arc::new(Mutex::new(TurnReport::default()));
        let (socket, limit, sends_report) =
            (Arc::clone(&self.socket), self.value_limit, self.sends_report);
        let exchange = DriverExchange {
            run_handle: started.run_handle.clone(),
            cancel: cx.control.cancel.clone(),
            grace: cx.settings.config.limits.grace.min(INTERRUPT_GRACE),
            turn_report: Arc::clone(&turn_report),
        };
        let until = Box::pin(exchange.run_exchange(self));
        let run_state = started
            .read_output(OutputRequest {
                client: Some(cx.control.client.clone()),
                budget,
                until,
                yields_to_next: false,
            })
            .await?;
        let mut turn_report = std::mem::take(&mut *turn_report.lock().ignore_poison());
        if sends_report && turn_report.report.is_none() && matches!(run_state, RunState::Over(_)) {
            // The task that waited may not have released the socket yet.
            let last_report = async { socket.lock().await.receive().await };
            if let Ok(Ok(Some(report_bytes))) =
                tokio::time::timeout(LAST_REPORT_WAIT, last_report).await
            {
                turn_report.report = Some(DriverReport::parse(&report_bytes, limit));
            }
        }
        Ok((run_state, turn_report))
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
        let CodeTurn { mut socket_guard, message, stays_alive, sends_report, value_limit, .. } =
            turn;
        let mut stop = None;
        let report_bytes = tokio::select! {
            biased;
            cause = self.cancel.cancelled() => {
                stop = Some(StopReason::from_cause(cause));
                self.update_report(|turn_report| turn_report.stop = stop);
                None
            }
            report_bytes = send_and_receive(&mut socket_guard, &message) => Some(report_bytes),
        };
        let report_bytes = match report_bytes {
            Some(report_bytes) => Some(report_bytes),
            None if sends_report && self.run_handle.send_signal(Signal::INT.as_raw()).is_ok() => {
                tokio::time::timeout(self.grace, receive_report(&mut socket_guard)).await.ok()
            }
            None => None,
        };
        let parsed_report =
            report_bytes.map(|report_bytes| DriverReport::parse(&report_bytes, value_limit));
        let is_ready = parsed_report.as_ref().is_some_and(|report| stays_alive && !report.ended);
        self.update_report(|turn_report| turn_report.report = parsed_report);
        if is_ready {
            return;
        }
        // This was the last report: the interpreter exits on its own, or with the call.
        let stop = match stop {
            Some(stop) => stop,
            None => StopReason::from_cause(self.cancel.cancelled().await),
        };
        self.update_report(|turn_report| turn_report.stop = Some(stop));
        self.run_handle.stop(stop);
        pending().await
    }

    fn update_report(&self, change: impl FnOnce(&mut TurnReport)) {
        change(&mut self.turn_report.lock().ignore_poison());
    }
}

/// Sends the code and returns the report. Never returns if the interpreter is gone; the end of its
/// run says so.
async fn send_and_receive(socket: &mut DriverSocket, message: &[u8]) -> Vec<u8> {
    if let Err(error) = socket.send(message).await {
        tracing::debug!("cannot send code to an interpreter: {error}");
    }
    receive_report(socket).await
}

async fn receive_report(socket: &mut DriverSocket) -> Vec<u8> {
    match socket.receive().await {
        Ok(Some(report_bytes)) => report_bytes,
        _ => pending().await,
    }
}
