//! Answers to a process that waits while its command runs elsewhere.

use jail::intercept::exec::wire::ExecAnswer;
use jail::supervisor::{RunExit, SupervisorReport};
use tokio::sync::mpsc;

use crate::base::{Error, Result};

/// Exit code of a command that is allowed but cannot leave the sandbox.
const CANNOT_LEAVE: i32 = 126;

/// Returns the answer for a process that may not leave the sandbox.
pub fn refuse_escalation(path: &str, reason: &str) -> ExecAnswer {
    ExecAnswer::Refuse(
        format!("ringfence: {path}: cannot leave the sandbox: {reason}\n"),
        CANNOT_LEAVE,
    )
}

/// Returns the answer to the waiting process that follows from a report, if any.
pub(super) fn answer_from_report(
    report: std::io::Result<Option<SupervisorReport>>,
    was_signalled: bool,
    path: &str,
) -> Option<Result<ExecAnswer>> {
    Some(match report {
        Ok(Some(SupervisorReport::Started(_))) => return None,
        // The supervisor reports this instead of a start, never after one. A signal was meant for
        // the command that did not start: the waiting process must not run after all as if there
        // had been none.
        Ok(Some(SupervisorReport::Failed(error))) if was_signalled => {
            Ok(refuse_escalation(path, &error.to_string()))
        }
        Ok(Some(SupervisorReport::Failed(error))) => Err(Error::internal(error.to_string())),
        Ok(Some(SupervisorReport::Exited(exit) | SupervisorReport::Over(exit))) => {
            Ok(exit_answer(&exit))
        }
        // It may have begun, so it must not begin a second time.
        Ok(None) | Err(_) => Ok(refuse_escalation(path, "its supervisor was lost")),
    })
}

/// Returns the next signal. Never returns once no sender is left.
pub(super) async fn next_signal(signals: &mut mpsc::UnboundedReceiver<i32>) -> Option<i32> {
    match signals.recv().await {
        Some(signal) => Some(signal),
        None => std::future::pending().await,
    }
}

fn exit_answer(exit: &RunExit) -> ExecAnswer {
    ExecAnswer::Ended { code: exit.code, signal: exit.signal }
}
