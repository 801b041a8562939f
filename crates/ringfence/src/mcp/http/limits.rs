//! Limits on connections, and on how much of the server one principal may use.
//!
//! Anyone who can reach the port can open connections, so unauthenticated ones have a few slots of
//! their own and are evicted for newer ones. They can never take the slots of authenticated
//! connections.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use rustix::process::{Resource, getrlimit};
use tokio_util::sync::CancellationToken;

use crate::base::IgnorePoison;
use crate::base::{Error, Kind, Result};
use crate::session::Principal;

/// Slots for connections that have not authenticated. A further one evicts the oldest.
const MAX_UNAUTHENTICATED: usize = 128;
/// Slots for connections that have authenticated; fewer if there are few descriptors.
const MAX_AUTHENTICATED: u64 = 1024;

/// Connections of a listener.
pub struct ConnectionPool {
    table: Mutex<ConnectionTable>,
    max_authenticated: usize,
}

#[derive(Default)]
struct ConnectionTable {
    next: u64,
    /// In the order in which they were accepted.
    entries: BTreeMap<u64, ConnectionEntry>,
}

struct ConnectionEntry {
    is_authenticated: bool,
    /// Requests in flight, including their responses.
    requests: usize,
    idle_since: Instant,
    evicted: CancellationToken,
}

impl Default for ConnectionPool {
    fn default() -> Self {
        // The other descriptors are for runs, their pipes and the log.
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 4;
        let max_authenticated =
            usize::try_from(descriptors.clamp(64, MAX_AUTHENTICATED)).unwrap_or(64);
        ConnectionPool { table: Mutex::default(), max_authenticated }
    }
}

impl ConnectionPool {
    /// Makes room for a connection that was just accepted. There is always room: the oldest
    /// unauthenticated connection is evicted, one that waits for a request before one that is being
    /// answered.
    pub fn add_connection(self: &Arc<Self>) -> ConnectionSlot {
        let mut table = self.lock();
        let unauthenticated = || table.entries.iter().filter(|(_, entry)| !entry.is_authenticated);
        if unauthenticated().count() >= MAX_UNAUTHENTICATED {
            let oldest = unauthenticated()
                .min_by_key(|(id, entry)| (entry.requests > 0, **id))
                .map(|(id, _)| *id);
            table.evict_connection(oldest);
        }
        let id = table.next;
        table.next += 1;
        let evicted = CancellationToken::new();
        let entry = ConnectionEntry {
            is_authenticated: false,
            requests: 0,
            idle_since: Instant::now(),
            evicted: evicted.clone(),
        };
        table.entries.insert(id, entry);
        ConnectionSlot { pool: Arc::clone(self), id, evicted }
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionTable> {
        self.table.lock().ignore_poison()
    }
}

impl ConnectionTable {
    fn evict_connection(&mut self, id: Option<u64>) -> bool {
        let evicted = id.and_then(|id| self.entries.remove(&id));
        evicted.map(|entry| entry.evicted.cancel()).is_some()
    }
}

/// Slot of one connection, released on drop.
pub struct ConnectionSlot {
    pool: Arc<ConnectionPool>,
    id: u64,
    evicted: CancellationToken,
}

impl ConnectionSlot {
    /// Waits until the connection is evicted.
    pub fn wait_for_eviction(&self) -> impl Future<Output = ()> + use<> {
        self.evicted.clone().cancelled_owned()
    }

    /// Returns the handle for the requests of this connection.
    pub fn slot_handle(&self) -> SlotHandle {
        SlotHandle { pool: Arc::clone(&self.pool), id: self.id }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.pool.lock().entries.remove(&self.id);
    }
}

/// Handle to the slot of a connection, as its requests use it.
#[derive(Clone)]
pub struct SlotHandle {
    pool: Arc<ConnectionPool>,
    id: u64,
}

impl SlotHandle {
    /// Counts a request until the guard is dropped; a connection that is answering one is not idle.
    pub fn begin_request(&self) -> RequestGuard {
        if let Some(entry) = self.pool.lock().entries.get_mut(&self.id) {
            entry.requests += 1;
        }
        RequestGuard(self.clone())
    }

    /// Moves the connection to those that have authenticated. If these are too many, the one that
    /// has been idle for longest is evicted; if none is idle, this one is refused.
    pub fn mark_authenticated(&self) -> Result<()> {
        let mut table = self.pool.lock();
        if table.entries.get(&self.id).is_none_or(|entry| entry.is_authenticated) {
            return Ok(());
        }
        if table.entries.values().filter(|entry| entry.is_authenticated).count()
            >= self.pool.max_authenticated
        {
            let idle = table
                .entries
                .iter()
                .filter(|(_, entry)| entry.is_authenticated && entry.requests == 0);
            let longest_idle = idle.min_by_key(|(_, entry)| entry.idle_since).map(|(id, _)| *id);
            if !table.evict_connection(longest_idle) {
                return Err(Error::new(Kind::ResourceExhausted, "too many connections are in use")
                    .with_reason("connections")
                    .with_hint("Try again when other calls have ended."));
            }
        }
        if let Some(entry) = table.entries.get_mut(&self.id) {
            entry.is_authenticated = true;
        }
        Ok(())
    }
}

/// Request in flight on a connection.
pub struct RequestGuard(SlotHandle);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        if let Some(entry) = self.0.pool.lock().entries.get_mut(&self.0.id) {
            entry.requests = entry.requests.saturating_sub(1);
            entry.idle_since = Instant::now();
        }
    }
}

/// Resource that is limited per principal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitedResource {
    /// HTTP request until it is answered. Its limit is the sum of the others plus a reserve for
    /// answers to questions, cancellations and ends of sessions, which must get through when
    /// everything else is taken.
    Request,
    /// JSON-RPC request that waits for its answer.
    Call,
    /// Stream of server messages, which stays open.
    Stream,
}

impl LimitedResource {
    /// Returns the limit for one principal, which keeps it from starving the others.
    fn max_per_principal(self) -> usize {
        match self {
            LimitedResource::Request => 224,
            LimitedResource::Call => 128,
            LimitedResource::Stream => 64,
        }
    }

    fn refusal_texts(self) -> (&'static str, &'static str, &'static str) {
        match self {
            LimitedResource::Request => {
                ("requests", "too many requests are open", "Wait until other requests have ended.")
            }
            LimitedResource::Call => {
                ("calls", "too many calls are running", "Wait until other calls have ended.")
            }
            LimitedResource::Stream => {
                ("streams", "too many streams are open", "Close streams that are not needed.")
            }
        }
    }
}

/// Resources that each principal holds.
#[derive(Default)]
pub struct PrincipalLimits {
    in_use: Mutex<HashMap<(Principal, LimitedResource), usize>>,
}

impl PrincipalLimits {
    /// Takes one unit for this principal, until the guard is dropped.
    pub fn acquire_resource(
        self: &Arc<Self>,
        principal: &Principal,
        resource: LimitedResource,
    ) -> Result<ResourceGuard> {
        let key = (principal.clone(), resource);
        let mut in_use = self.in_use.lock().ignore_poison();
        let count = in_use.entry(key.clone()).or_default();
        if *count >= resource.max_per_principal() {
            let (reason, message, hint) = resource.refusal_texts();
            return Err(Error::new(Kind::ResourceExhausted, message)
                .with_reason(reason)
                .with_hint(hint));
        }
        *count += 1;
        Ok(ResourceGuard { limits: Arc::clone(self), key })
    }
}

/// Unit of a resource that a principal holds.
pub struct ResourceGuard {
    limits: Arc<PrincipalLimits>,
    key: (Principal, LimitedResource),
}

impl Drop for ResourceGuard {
    fn drop(&mut self) {
        let mut in_use = self.limits.in_use.lock().ignore_poison();
        if let Some(count) = in_use.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                in_use.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(admitted_limit: usize) -> Arc<ConnectionPool> {
        Arc::new(ConnectionPool { table: Mutex::default(), max_authenticated: admitted_limit })
    }

    fn is_evicted(slot: &ConnectionSlot) -> bool {
        slot.evicted.is_cancelled()
    }

    #[test]
    fn strangers_give_way_to_newer_ones_and_never_push_out_the_admitted() {
        let pool = pool(2);
        let admitted = pool.add_connection();
        admitted.slot_handle().mark_authenticated().unwrap();
        let answered = pool.add_connection();
        let _request = answered.slot_handle().begin_request();
        let crowd: Vec<ConnectionSlot> =
            (0..3 * MAX_UNAUTHENTICATED).map(|_| pool.add_connection()).collect();
        assert!(!is_evicted(&admitted));
        assert!(!is_evicted(&answered), "one that is being answered gives way last");
        assert!(crowd[..2 * MAX_UNAUTHENTICATED].iter().all(is_evicted));
        assert!(crowd[2 * MAX_UNAUTHENTICATED + 1..].iter().all(|slot| !is_evicted(slot)));
        drop(crowd);
        assert_eq!(pool.lock().entries.len(), 2);
    }

    #[test]
    fn the_longest_idle_connection_makes_room_and_busy_ones_do_not() {
        let pool = pool(2);
        let slots: Vec<ConnectionSlot> = (0..4).map(|_| pool.add_connection()).collect();
        let admit = |at: usize| slots[at].slot_handle().mark_authenticated();
        admit(0).unwrap();
        admit(1).unwrap();
        // It was used again, so the other one is idle for longer.
        drop(slots[0].slot_handle().begin_request());
        admit(2).unwrap();
        assert!(is_evicted(&slots[1]) && !is_evicted(&slots[0]));
        let _busy = [0, 2].map(|at| slots[at].slot_handle().begin_request());
        assert_eq!(admit(3).unwrap_err().kind(), Kind::ResourceExhausted);
        assert!(!is_evicted(&slots[0]) && !is_evicted(&slots[2]));
        // One that is admitted stays so.
        admit(2).unwrap();
    }

    #[test]
    fn a_principal_holds_its_share_and_takes_nothing_from_others() {
        let places = Arc::<PrincipalLimits>::default();
        let (anna, bert) = (Principal::from_name("anna@"), Principal::from_name("bert@"));
        for kind in [LimitedResource::Request, LimitedResource::Call, LimitedResource::Stream] {
            let mut held: Vec<ResourceGuard> = (0..kind.max_per_principal())
                .map(|_| places.acquire_resource(&anna, kind).unwrap())
                .collect();
            assert_eq!(
                places.acquire_resource(&anna, kind).err().map(|error| error.kind()),
                Some(Kind::ResourceExhausted)
            );
            drop(places.acquire_resource(&bert, kind).unwrap());
            held.pop();
            drop(places.acquire_resource(&anna, kind).unwrap());
        }
        assert!(places.in_use.lock().unwrap().is_empty());
    }
}
