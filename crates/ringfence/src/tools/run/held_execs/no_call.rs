//! Decisions about the execs of a run that belongs to no call: nothing leaves it, and no one is
//! asked about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::policy::{Decision, ExecVerdict};
use futures::future::BoxFuture;
use jail::intercept::exec::wire::{ExecAnswer, RuledExec};

use super::MAX_AUDITED;
use super::record::exec_fields;
use crate::audit::CallEvents;
use crate::redact::short_secrets::ShortSecrets;
use crate::sandbox::{ExecDecider, WaitingExec};

/// Decider for a run that belongs to no call.
pub struct NoCallDecider {
    call_events: CallEvents,
    audited_count: AtomicUsize,
}

impl NoCallDecider {
    /// Creates a decider that records in `call_events`.
    pub fn new(call_events: CallEvents) -> NoCallDecider {
        NoCallDecider { call_events, audited_count: AtomicUsize::new(0) }
    }

    fn record_exec(&self, pid: i32, path: &str, argv: &[String], verdict: &ExecVerdict, ran: &str) {
        let mut fields = exec_fields(pid, path, argv, verdict, &ShortSecrets::default());
        fields.extend([("by".to_owned(), "rule".into()), ("ran".to_owned(), ran.into())]);
        if self.audited_count.fetch_add(1, Ordering::Relaxed) < MAX_AUDITED
            && let Err(error) = self.call_events.write_exec(fields)
        {
            tracing::error!("a decision about an exec could not be recorded: {}", error.log_line());
        }
    }
}

impl ExecDecider for NoCallDecider {
    fn record_ruling(&self, ruled: RuledExec) {
        let ran = if ruled.verdict.decision == Decision::Forbidden { "refused" } else { "inside" };
        self.record_exec(ruled.pid, &ruled.path, &ruled.argv, &ruled.verdict, ran);
    }

    fn decide_exec(self: Arc<Self>, exec: WaitingExec) -> BoxFuture<'static, ExecAnswer> {
        let held_exec = &exec.held;
        let allowed = held_exec.verdict.decision == Decision::Allow;
        let ran = if allowed { "inside" } else { "refused" };
        self.record_exec(
            held_exec.pid,
            &held_exec.program.path,
            &held_exec.argv,
            &held_exec.verdict,
            ran,
        );
        let answer = match allowed {
            true => ExecAnswer::Run,
            false => ExecAnswer::Refuse(
                format!(
                    "ringfence: {}: a rule requires approval, but no one can be asked\n",
                    held_exec.program.path
                ),
                1,
            ),
        };
        Box::pin(std::future::ready(answer))
    }
}
