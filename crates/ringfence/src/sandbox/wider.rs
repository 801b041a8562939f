//! Runs in the wider sandbox (`[policy.wider]`): ordinary runs with another profile, in place of a
//! process that waits. Their denials and execs belong to the run that caused them, and to its
//! record.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jail::intercept::exec::wire::ExecAnswer;
use jail::supervisor::{RunExit, SupervisorCommand, SupervisorReport};
use rustix::process::Signal;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::KILL_ALLOWANCE;
use super::egress::Egress;
use super::exec_answer::{answer_from_report, next_signal};
use super::run_result::{ReportCompleteness, RunResult};
use super::supervisor_control::SupervisorControl;
use crate::base::IgnorePoison;
use crate::base::{Error, Result};

/// Wider runs that one run has caused, and what is known about those that have ended.
#[derive(Default)]
pub struct WiderRuns {
    tasks: TaskTracker,
    totals: Mutex<WiderTotals>,
}

#[derive(Default)]
struct WiderTotals {
    denials: Vec<Value>,
    execs: u64,
    out_of_memory: bool,
    /// One of them has ended without its final report.
    is_unreported: bool,
}

/// One wider run, until its final report.
struct WiderRun {
    control: SupervisorControl,
    grace: Duration,
    /// Path of the program, for messages about the process that it replaces.
    path: String,
    signals: mpsc::UnboundedReceiver<i32>,
    /// Cancelled when no one waits for it any more.
    abandoned: CancellationToken,
}

impl WiderRuns {
    /// Starts a wider run and waits for its answer. Dropping the future ends the run, even one that
    /// is just starting; its report is still received.
    pub(super) async fn run_to_answer(
        self: &Arc<Self>,
        start: impl Future<Output = Result<SupervisorControl>> + Send + 'static,
        grace: Duration,
        path: String,
        signals: mpsc::UnboundedReceiver<i32>,
    ) -> Result<ExecAnswer> {
        let abandoned = CancellationToken::new();
        let _abandon_guard = abandoned.clone().drop_guard();
        let (answer, answer_receiver) = oneshot::channel();
        let runs = Arc::clone(self);
        let drive = async move {
            match start.await {
                Ok(control) => {
                    WiderRun { control, grace, path, signals, abandoned }
                        .drive_to_report(&runs, answer)
                        .await
                }
                // The process that waited may be gone.
                Err(error) => drop(answer.send(Err(error))),
            }
        };
        self.tasks.spawn(drive.in_current_span());
        answer_receiver
            .await
            .unwrap_or_else(|_| Err(Error::internal("the command in the wider sandbox was lost")))
    }

    /// Waits until all of them have reported, and adds what they did to the result of their run.
    pub(super) async fn finish_all(&self, max_wait: Duration, result: &mut RunResult) {
        self.tasks.close();
        let finished_in_time = timeout(max_wait, self.tasks.wait()).await.is_ok();
        let WiderTotals { denials, execs, out_of_memory, is_unreported } =
            std::mem::take(&mut *self.lock_totals());
        result.add_denials(denials);
        if execs > 0 {
            *result.execs.get_or_insert_default() += execs;
        }
        if out_of_memory {
            result
                .warnings
                .push("a command in the wider sandbox exceeded its memory limit".to_owned());
        }
        if is_unreported || !finished_in_time {
            result.reported = ReportCompleteness::Missing;
        }
    }

    fn lock_totals(&self) -> MutexGuard<'_, WiderTotals> {
        self.totals.lock().ignore_poison()
    }
}

impl WiderRun {
    async fn drive_to_report(
        mut self,
        runs: &WiderRuns,
        answer: oneshot::Sender<Result<ExecAnswer>>,
    ) {
        let (mut answer, mut kill_deadline) = (Some(answer), None);
        let (mut was_signalled, mut has_started, mut final_exit) = (false, false, None);
        loop {
            let report = tokio::select! {
                report = self.control.next_report() => report,
                Some(signal) = next_signal(&mut self.signals) => {
                    was_signalled = true;
                    self.control.send_order(SupervisorCommand::Signal(signal)).await;
                    continue;
                }
                () = self.abandoned.cancelled(), if kill_deadline.is_none() => {
                    self.control.send_order(SupervisorCommand::End(Signal::TERM.as_raw())).await;
                    kill_deadline = Some(Instant::now() + self.grace + KILL_ALLOWANCE);
                    continue;
                }
                () = sleep_until(kill_deadline.unwrap_or_else(Instant::now)), if kill_deadline.is_some() => break,
            };
            let is_last = match &report {
                Ok(Some(SupervisorReport::Started(_))) => {
                    has_started = true;
                    false
                }
                Ok(Some(SupervisorReport::Exited(_))) => false,
                Ok(Some(SupervisorReport::Over(exit))) => {
                    final_exit = Some(exit.clone());
                    true
                }
                Ok(Some(SupervisorReport::Failed(_)) | None) | Err(_) => true,
            };
            if let Some(exec_answer) = answer_from_report(report, was_signalled, &self.path)
                && let Some(answer) = answer.take()
            {
                // The process that waited may be gone.
                let _ = answer.send(exec_answer);
            }
            if is_last {
                break;
            }
        }
        self.add_to_totals(runs, final_exit, has_started).await;
    }

    /// Adds what is known about this run to that of the others.
    async fn add_to_totals(
        mut self,
        runs: &WiderRuns,
        final_exit: Option<RunExit>,
        has_started: bool,
    ) {
        if let Some(service) = self.control.exec_service.take() {
            service.finish_notices().await;
        }
        let proxy_denials = self.control.egress.as_ref().map(Egress::denials).unwrap_or_default();
        let mut totals = runs.lock_totals();
        totals.denials.extend(proxy_denials);
        match final_exit {
            Some(exit) => {
                totals.denials.extend(
                    exit.denials.iter().filter_map(|denial| serde_json::to_value(denial).ok()),
                );
                totals.execs += exit.execs.unwrap_or_default();
                totals.out_of_memory |= exit.out_of_memory;
            }
            None => totals.is_unreported |= has_started,
        }
    }
}
