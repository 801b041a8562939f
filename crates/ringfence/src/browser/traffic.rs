//! What the proxy has decided for a session's pages: on record, and for `browser.logs`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::log::{Entry, Kind, Log};
use crate::audit::Approvals;
use crate::net::Decision;
use crate::sandbox::{Decided, network_fields};

/// Decisions of one session that are written down one by one: pages can cause as many as they like.
const AUDITED: usize = 10_000;

#[derive(Default)]
pub struct Traffic {
    /// What was refused or did not answer, by `host:port`.
    failed: Mutex<Log>,
    /// The call that is to be named on record: the newest that used the session's pages.
    call: Mutex<Option<Approvals>>,
    count: AtomicUsize,
}

impl Traffic {
    /// Hears of every decision from now on.
    pub fn ear(self: &Arc<Self>) -> Decided {
        let traffic = Arc::clone(self);
        Arc::new(move |decision| traffic.take(decision))
    }

    pub fn record_under(&self, call: Approvals) {
        *lock(&self.call) = Some(call);
    }

    pub fn failed(&self) -> MutexGuard<'_, Log> {
        lock(&self.failed)
    }

    /// How often something was refused after this entry.
    pub fn blocked_after(&self, seq: u64) -> u64 {
        self.failed().after(seq).filter(|entry| entry.kind == Kind::Blocked.name()).count() as u64
    }

    fn take(&self, decision: &Decision) {
        if let Some(reason) = decision.reason {
            let kind = if is_refusal(reason) { Kind::Blocked } else { Kind::Network };
            let place = format!("{}:{}", decision.host, decision.port);
            lock(&self.failed).add(Entry::new(kind, reason).url(&place));
        }
        if self.count.fetch_add(1, Ordering::Relaxed) < AUDITED
            && let Some(call) = lock(&self.call).clone()
            && let Err(error) = call.network(network_fields(decision))
        {
            tracing::error!("a decision of the proxy could not be recorded: {}", error.log_line());
        }
    }
}

/// Refused, and not merely without an answer.
fn is_refusal(reason: &str) -> bool {
    !["unreachable", "resolve_failed", "limit"].contains(&reason)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
