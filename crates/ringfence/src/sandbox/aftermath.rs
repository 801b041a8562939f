//! The end of what a main process left behind. The result of the run is made without it; the record is not.
//!
//! Such processes have the grace, and could use it for what no one shall read of. So they are heard of until the last
//! one is gone: what rules decide about their execs is written down, and the final report is put on record. Nothing
//! leaves the sandbox for them any more, no one is asked, and the way to the network is closed.

use jail::supervisor::Report;
use serde_json::Value;
use tokio::time::timeout;

use super::launch::Run;
use super::live::{Ended, Late, Reported};
use super::stream::KILLING;

/// Waits for the final report of a run whose result was made already, and hands it to the record. `refused` is what the
/// run's proxy refused until then.
pub(super) async fn follow(mut run: Run, mut ended: Ended, refused: Vec<Value>, late: Late) {
    let last = timeout(run.grace + KILLING, async {
        loop {
            match run.report().await {
                Ok(Some(Report::Over(exit))) => return Some(exit),
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
        // What is on record until then stays; that there is more is said.
        Ok(None) | Err(_) => tracing::warn!("the final report about a run did not come"),
    }
    run.finish(&mut ended).await;
    late(&mut ended);
}
