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

use super::launch::Run;
use super::live::{Ended, Late, Reported};
use super::stream::KILLING;

/// Waits for the final report of a run whose result was already returned, and passes it to the
/// record. `refused` lists what the run's proxy had refused by then.
pub(super) async fn follow(mut run: Run, mut ended: Ended, refused: Vec<Value>, late: Late) {
    let last = timeout(run.grace + KILLING, async {
        loop {
            match run.report().await {
                Ok(Some(SupervisorReport::Over(exit))) => return Some(exit),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    });
    match last.await {
        Ok(Some(exit)) => {
            ended.set_report(&exit, Reported::Whole);
            ended.add_denials(refused);
        }
        // Keep what is known so far; the record marks it as incomplete.
        Ok(None) | Err(_) => tracing::warn!("the final report of a run did not arrive"),
    }
    run.finish(&mut ended).await;
    late(&mut ended);
}
