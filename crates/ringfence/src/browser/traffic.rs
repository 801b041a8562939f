//! Records the proxy's decisions about a session's pages, in the audit log and for `browser.logs`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value, json};

use super::log::{Entry, Kind, Log};
use crate::audit::Approvals;
use crate::net::Decision;
use crate::sandbox::{Decided, network_fields};

/// Maximum number of decisions per session that are recorded one by one, because pages can cause
/// any number. The first one about each destination is always recorded; the others are summed up at
/// the end.
const AUDITED: usize = 10_000;
/// Maximum number of destinations per session. Beyond it, the session's network access is closed.
const PLACES: usize = 50_000;
/// Maximum number of destinations with their own sum, those with the most decisions first.
const SUMMED: usize = 1000;

/// Decisions of the proxy about the pages of one session.
#[derive(Default)]
pub struct Traffic {
    /// Refused and failed connections, by `host:port`.
    failed: Mutex<Log>,
    /// Call that decisions are recorded under: the newest that used the session's pages.
    call: Mutex<Option<Approvals>>,
    book: Mutex<Book>,
    /// Closes the session's network access.
    shut: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
}

/// Host, port, and whether the connection was allowed.
type Place = (String, u16, bool);

/// Count of recorded and unrecorded decisions.
#[derive(Default)]
struct Book {
    written: usize,
    /// Number of unrecorded decisions per destination.
    places: HashMap<Place, u64>,
}

#[derive(Debug, PartialEq, Eq)]
enum Entered {
    /// The decision must be recorded.
    Write,
    /// The decision was only counted.
    Count,
    /// There are too many destinations.
    Full,
}

impl Book {
    fn enter(&mut self, decision: &Decision) -> Entered {
        let place = (decision.host.clone(), decision.port, decision.allowed);
        let places = self.places.len();
        match self.places.get_mut(&place) {
            Some(_) if self.written < AUDITED => {}
            Some(count) => {
                *count += 1;
                return Entered::Count;
            }
            None if places >= PLACES => return Entered::Full,
            None => drop(self.places.insert(place, 0)),
        }
        self.written += 1;
        Entered::Write
    }

    /// Takes the counts of unrecorded decisions, largest first, and the sum of those that do not
    /// get their own record.
    fn sums(&mut self) -> (Vec<(Place, u64)>, u64) {
        let mut sums: Vec<_> =
            std::mem::take(&mut self.places).into_iter().filter(|(_, count)| *count > 0).collect();
        sums.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        let rest = sums.iter().skip(SUMMED).map(|(_, count)| count).sum();
        sums.truncate(SUMMED);
        (sums, rest)
    }
}

impl Traffic {
    /// Returns the callback that receives the proxy's decisions.
    pub fn ear(self: &Arc<Self>) -> Decided {
        let traffic = Arc::clone(self);
        Arc::new(move |decision| traffic.take(decision))
    }

    /// Sets the function that closes the session's network access.
    pub fn shut_with(&self, shut: impl Fn() + Send + Sync + 'static) {
        *lock(&self.shut) = Some(Box::new(shut));
    }

    /// Sets the call that further decisions are recorded under.
    pub fn record_under(&self, call: Approvals) {
        *lock(&self.call) = Some(call);
    }

    /// Locks the log of refused and failed connections.
    pub fn failed(&self) -> MutexGuard<'_, Log> {
        lock(&self.failed)
    }

    /// Returns the number of refusals after this entry.
    pub fn blocked_after(&self, seq: u64) -> u64 {
        self.failed().after(seq).filter(|entry| entry.kind == Kind::Blocked.name()).count() as u64
    }

    fn take(&self, decision: &Decision) {
        if let Some(reason) = decision.reason {
            let kind = if is_refusal(reason) { Kind::Blocked } else { Kind::Network };
            let place = format!("{}:{}", decision.host, decision.port);
            lock(&self.failed).add(Entry::new(kind, reason).url(&place));
        }
        let entered = lock(&self.book).enter(decision);
        match entered {
            Entered::Write => self.write(network_fields(decision)),
            Entered::Count => {}
            Entered::Full => {
                tracing::warn!(
                    "the pages of a session try to reach too many destinations: closing their network access"
                );
                if let Some(shut) = lock(&self.shut).take() {
                    shut();
                }
            }
        }
    }

    fn write(&self, fields: Map<String, Value>) {
        if let Some(call) = lock(&self.call).clone()
            && let Err(error) = call.network(fields)
        {
            tracing::error!("a proxy decision could not be recorded: {}", error.log_line());
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        let (sums, rest) = lock(&self.book).sums();
        let write = |fields: Value| {
            if let Value::Object(fields) = fields {
                self.write(fields);
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(host: &str) -> Decision {
        Decision {
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
        let mut book = Book::default();
        for _ in 0..AUDITED {
            assert_eq!(book.enter(&decision("a.example")), Entered::Write);
        }
        for _ in 0..7 {
            assert_eq!(book.enter(&decision("a.example")), Entered::Count);
        }
        assert_eq!(book.enter(&decision("b.example")), Entered::Write, "the first about it");
        assert_eq!(book.enter(&decision("b.example")), Entered::Count);
        let place = |host: &str| (host.to_owned(), 443, true);
        assert_eq!(book.sums(), (vec![(place("a.example"), 7), (place("b.example"), 1)], 0));
    }

    #[test]
    fn after_too_many_places_the_way_out_is_closed() {
        let traffic = Arc::new(Traffic::default());
        let closed = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let told = Arc::clone(&closed);
        traffic.shut_with(move || told.store(true, std::sync::atomic::Ordering::SeqCst));
        for number in 0..PLACES {
            traffic.take(&decision(&format!("h{number}.example")));
        }
        assert!(!closed.load(std::sync::atomic::Ordering::SeqCst));
        traffic.take(&decision("one.more.example"));
        assert!(closed.load(std::sync::atomic::Ordering::SeqCst));
    }
}
