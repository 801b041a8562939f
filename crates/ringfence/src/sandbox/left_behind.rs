//! Follows the processes that a main process left behind, after the result of the run was returned.
//! The result does not wait for them; the audit record does.
//!
//! Such processes get the grace period, and could use it for actions that would never be recorded.
//! So they are followed until the last one has exited: rule decisions about their execs are
//! recorded, and the final report goes into the record. Nothing leaves the sandbox for them any
//! more, no approval is requested, and their network access is closed.

use jail::supervisor::SupervisorReport;
use serde_json::Value;
use tokio::time::timeout;

use super::KILL_ALLOWANCE;
use super::launch::StartedRun;
use super::run_handle::OnLateEnd;
use super::run_result::{ReportCompleteness, RunResult};

/// Waits for the final report of a run whose result was already returned, and passes it to the
/// record. `denials` lists what the run's proxy had refused by then.
pub(super) async fn follow_left_behind(
    mut run: StartedRun,
    mut result: RunResult,
    denials: Vec<Value>,
    on_late_end: OnLateEnd,
) {
    let final_report = timeout(run.grace + KILL_ALLOWANCE, async {
        loop {
            match run.next_report().await {
                Ok(Some(SupervisorReport::Over(exit))) => return Some(exit),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    });
    match final_report.await {
        Ok(Some(exit)) => {
            result.set_report(&exit, ReportCompleteness::Whole);
            result.add_denials(denials);
        }
        // Keep what is known so far; the record marks it as incomplete.
        Ok(None) | Err(_) => tracing::warn!("the final report of a run did not arrive"),
    }
    run.finish_execs(&mut result).await;
    on_late_end(&mut result);
}
