//! Records the proxy's decisions about a session's pages, in the audit log and for `browser.logs`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Map, Value, json};

use super::page_log::{PageLog, PageLogEntry, PageLogKind};
use crate::audit::CallEvents;
use crate::base::IgnorePoison;
use crate::net::ProxyDecision;
use crate::sandbox::{OnDecision, network_fields};

/// Maximum number of decisions per session that are recorded one by one, because pages can cause
/// any number. The first one about each destination is always recorded; the others are summed up at
/// the end.
const MAX_RECORDED: usize = 10_000;
/// Maximum number of destinations per session. Beyond it, the session's network access is closed.
const MAX_DESTINATIONS: usize = 50_000;
/// Maximum number of destinations with their own sum, those with the most decisions first.
const MAX_SUMMED: usize = 1000;

/// Decisions of the proxy about the pages of one session.
#[derive(Default)]
pub struct SessionTraffic {
    /// Refused and failed connections, by `host:port`.
    failed: Mutex<PageLog>,
    /// Call that decisions are recorded under: the newest that used the session's pages.
    call: Mutex<Option<CallEvents>>,
    tally: Mutex<DecisionTally>,
    /// Closes the session's network access.
    shut_off: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
}

/// Host, port, and whether the connection was allowed.
type DecisionKey = (String, u16, bool);

/// Count of recorded and unrecorded decisions.
#[derive(Default)]
struct DecisionTally {
    written: usize,
    /// Number of unrecorded decisions per destination.
    unrecorded: HashMap<DecisionKey, u64>,
}

#[derive(Debug, PartialEq, Eq)]
enum TallyOutcome {
    /// The decision must be recorded.
    Write,
    /// The decision was only counted.
    Count,
    /// There are too many destinations.
    Full,
}

impl DecisionTally {
    fn add_decision(&mut self, decision: &ProxyDecision) -> TallyOutcome {
        let key = (decision.host.clone(), decision.port, decision.allowed);
        let destination_count = self.unrecorded.len();
        match self.unrecorded.get_mut(&key) {
            Some(_) if self.written < MAX_RECORDED => {}
            Some(count) => {
                *count += 1;
                return TallyOutcome::Count;
            }
            None if destination_count >= MAX_DESTINATIONS => return TallyOutcome::Full,
            None => drop(self.unrecorded.insert(key, 0)),
        }
        self.written += 1;
        TallyOutcome::Write
    }

    /// Takes the counts of unrecorded decisions, largest first, and the sum of those that do not
    /// get their own record.
    fn take_sums(&mut self) -> (Vec<(DecisionKey, u64)>, u64) {
        let mut sums: Vec<_> = std::mem::take(&mut self.unrecorded)
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .collect();
        sums.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        let rest = sums.iter().skip(MAX_SUMMED).map(|(_, count)| count).sum();
        sums.truncate(MAX_SUMMED);
        (sums, rest)
    }
}

impl SessionTraffic {
    /// Returns the callback that receives the proxy's decisions.
    pub fn decision_callback(self: &Arc<Self>) -> OnDecision {
        let traffic = Arc::clone(self);
        Arc::new(move |decision| traffic.handle_decision(decision))
    }

    /// Sets the function that closes the session's network access.
    pub fn set_shut_off(&self, shut_off: impl Fn() + Send + Sync + 'static) {
        *lock_mutex(&self.shut_off) = Some(Box::new(shut_off));
    }

    /// Sets the call that further decisions are recorded under.
    pub fn set_call(&self, call: CallEvents) {
        *lock_mutex(&self.call) = Some(call);
    }

    /// Locks the log of refused and failed connections.
    pub fn lock_failed(&self) -> MutexGuard<'_, PageLog> {
        lock_mutex(&self.failed)
    }

    /// Returns the number of refusals after this entry.
    pub fn count_blocked_after(&self, seq: u64) -> u64 {
        self.lock_failed()
            .entries_after(seq)
            .filter(|entry| entry.kind == PageLogKind::Blocked.name())
            .count() as u64
    }

    fn handle_decision(&self, decision: &ProxyDecision) {
        if let Some(reason) = decision.reason {
            let kind = if is_refusal(reason) { PageLogKind::Blocked } else { PageLogKind::Network };
            let destination = format!("{}:{}", decision.host, decision.port);
            lock_mutex(&self.failed)
                .add_entry(PageLogEntry::new(kind, reason).with_url(&destination));
        }
        let outcome = lock_mutex(&self.tally).add_decision(decision);
        match outcome {
            TallyOutcome::Write => self.write_record(network_fields(decision)),
            TallyOutcome::Count => {}
            TallyOutcome::Full => {
                tracing::warn!(
                    "the pages of a session try to reach too many destinations: closing their network access"
                );
                if let Some(shut_off) = lock_mutex(&self.shut_off).take() {
                    shut_off();
                }
            }
        }
    }

    fn write_record(&self, fields: Map<String, Value>) {
        if let Some(call) = lock_mutex(&self.call).clone()
            && let Err(error) = call.write_network(fields)
        {
            tracing::error!("a proxy decision could not be recorded: {}", error.log_line());
        }
    }
}

impl Drop for SessionTraffic {
    fn drop(&mut self) {
        let (sums, rest) = lock_mutex(&self.tally).take_sums();
        let write = |fields: Value| {
            if let Value::Object(fields) = fields {
                self.write_record(fields);
            }
        };
        for ((host, port, allowed), count) in sums {
            write(json!({"allowed": allowed, "host": host, "port": port, "further": count}));
        }
        if rest > 0 {
            write(json!({"further": rest}));
        }
    }
}

/// Returns whether the reason is a refusal, and not a failed connection or a limit.
fn is_refusal(reason: &str) -> bool {
    !["unreachable", "resolve_failed", "limit"].contains(&reason)
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().ignore_poison()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(host: &str) -> ProxyDecision {
        ProxyDecision {
            allowed: true,
            host: host.to_owned(),
            port: 443,
            via: "connect",
            reason: None,
            address: None,
        }
    }

    #[test]
    fn a_new_place_is_written_whatever_came_before_and_the_rest_is_summed() {
        let mut book = DecisionTally::default();
        for _ in 0..MAX_RECORDED {
            assert_eq!(book.add_decision(&decision("a.example")), TallyOutcome::Write);
        }
        for _ in 0..7 {
            assert_eq!(book.add_decision(&decision("a.example")), TallyOutcome::Count);
        }
        assert_eq!(
            book.add_decision(&decision("b.example")),
            TallyOutcome::Write,
            "the first about it"
        );
        assert_eq!(book.add_decision(&decision("b.example")), TallyOutcome::Count);
        let place = |host: &str| (host.to_owned(), 443, true);
        assert_eq!(book.take_sums(), (vec![(place("a.example"), 7), (place("b.example"), 1)], 0));
    }

    #[test]
    fn after_too_many_places_the_way_out_is_closed() {
        let traffic = Arc::new(SessionTraffic::default());
        let closed = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let told = Arc::clone(&closed);
        traffic.set_shut_off(move || told.store(true, std::sync::atomic::Ordering::SeqCst));
        for number in 0..MAX_DESTINATIONS {
            traffic.handle_decision(&decision(&format!("h{number}.example")));
        }
        assert!(!closed.load(std::sync::atomic::Ordering::SeqCst));
        traffic.handle_decision(&decision("one.more.example"));
        assert!(closed.load(std::sync::atomic::Ordering::SeqCst));
    }
}
