//! Sessions of 2025 clients, by their `Mcp-Session-Id`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::super::server::Line;
use crate::base::{Cause, Error, Kind, Result};
use crate::session::Principal;

/// Sessions per principal: each one holds memory, and `initialize` costs its sender nothing.
const SESSIONS: usize = 256;

/// All sessions, and the reservations for those that are being opened.
#[derive(Default)]
pub struct Sessions {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    held: HashMap<String, HeldSession>,
    reserved: HashMap<Principal, usize>,
}

struct HeldSession {
    line: Line,
    used: Instant,
    /// Each open response stream holds a clone; the reference count is their number.
    streams: Arc<()>,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the session with this id if it belongs to the principal, and the counter of its open
    /// streams.
    pub fn find(&self, id: &str, principal: &Principal) -> Result<(Line, Arc<()>)> {
        match self.lock().held.get_mut(id).filter(|held| held.line.principal == *principal) {
            Some(held) => {
                held.used = Instant::now();
                Ok((held.line.clone(), Arc::clone(&held.streams)))
            }
            // A session of another principal must look like a missing one.
            None => Err(Error::new(Kind::NotFound, "there is no such session")
                .reason("unknown_session")
                .hint("Start a new one with `initialize`.")),
        }
    }

    /// Reserves room for a session that is being opened. A principal with too many sessions loses
    /// the one it has not used for longest; its id is returned, for the engine. Fails only if all
    /// of them are in use.
    pub fn reserve(
        self: &Arc<Self>,
        principal: &Principal,
        is_idle: impl Fn(&Line) -> bool,
    ) -> Result<(Reservation, Option<String>)> {
        let mut table = self.lock();
        let own = table.held.iter().filter(|(_, held)| held.line.principal == *principal);
        let reserved = table.reserved.get(principal).copied().unwrap_or_default();
        let mut ended = None;
        if own.clone().count() + reserved >= SESSIONS {
            let idle = own
                .filter(|(_, held)| Arc::strong_count(&held.streams) == 1 && is_idle(&held.line));
            let longest = idle.min_by_key(|(_, held)| held.used).map(|(id, _)| id.clone());
            let id = longest.ok_or_else(|| {
                Error::new(Kind::ResourceExhausted, "too many sessions are in use")
                    .reason("sessions")
                    .hint("End sessions that are not needed with DELETE.")
            })?;
            table.end(&id, Cause::SessionEnd);
            ended = Some(id);
        }
        *table.reserved.entry(principal.clone()).or_default() += 1;
        let reservation = Reservation { sessions: Arc::clone(self), principal: principal.clone() };
        Ok((reservation, ended))
    }

    /// Ends a session and everything that runs in it.
    pub fn end(&self, id: &str, cause: Cause) {
        self.lock().end(id, cause);
    }

    /// Ends the sessions that have been unused for `idle_time` and in which nothing is running.
    /// Returns their ids, for the engine.
    pub fn end_idle(&self, idle_time: Duration, is_idle: impl Fn(&Line) -> bool) -> Vec<String> {
        let mut table = self.lock();
        let idle = table.held.iter().filter(|(_, held)| {
            held.used.elapsed() > idle_time
                && Arc::strong_count(&held.streams) == 1
                && is_idle(&held.line)
        });
        let ids: Vec<String> = idle.map(|(id, _)| id.clone()).collect();
        ids.iter().for_each(|id| table.end(id, Cause::SessionEnd));
        ids
    }
}

impl Table {
    fn end(&mut self, id: &str, cause: Cause) {
        if let Some(held) = self.held.remove(id) {
            held.line.session.cancel.cancel(cause);
        }
    }
}

/// Room for one more session, released on drop.
pub struct Reservation {
    sessions: Arc<Sessions>,
    principal: Principal,
}

impl Reservation {
    /// Stores the session that was opened.
    pub fn fill(self, id: String, line: Line, streams: Arc<()>) {
        // The reservation ends with this function. Until then both count, which errs on the safe
        // side.
        self.sessions.lock().held.insert(id, HeldSession { line, used: Instant::now(), streams });
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut table = self.sessions.lock();
        if let Some(count) = table.reserved.get_mut(&self.principal) {
            *count -= 1;
            if *count == 0 {
                table.reserved.remove(&self.principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::scratch::Scratch;
    use crate::mcp::server::tests::server;

    #[test]
    fn there_is_never_a_session_too_many_and_the_longest_idle_one_makes_room() {
        let scratch = Scratch::new();
        let server = server(&scratch);
        let sessions = Arc::<Sessions>::default();
        let anna = Principal::local();
        let open = |id: usize| {
            let (reservation, ended) = sessions.reserve(&anna, |_| true)?;
            let line = server.connect(anna.clone(), "http")?;
            reservation.fill(id.to_string(), line, Arc::default());
            Ok::<_, Error>(ended)
        };
        for id in 0..SESSIONS {
            assert_eq!(open(id).unwrap(), None);
        }
        // The first was used again, so it is the second that goes.
        let (first, _) = sessions.find("0", &anna).unwrap();
        let (second, _) = sessions.find("1", &anna).unwrap();
        sessions.find("0", &anna).unwrap();
        (2..SESSIONS).for_each(|id| drop(sessions.find(&id.to_string(), &anna).unwrap()));
        assert_eq!(open(SESSIONS).unwrap().as_deref(), Some("1"));
        assert!(second.session.cancel.is_cancelled() && !first.session.cancel.is_cancelled());
        // Places that are only reserved count, too.
        let reserved: Vec<_> =
            (0..SESSIONS).map(|_| sessions.reserve(&anna, |_| true).unwrap()).collect();
        assert!(sessions.reserve(&anna, |_| true).is_err(), "nothing is left that could make room");
        assert!(sessions.lock().held.is_empty());
        drop(reserved);
        assert_eq!(open(0).unwrap(), None);
        // One that is in use stays.
        (1..SESSIONS).for_each(|id| drop(open(id).unwrap()));
        assert_eq!(
            sessions.reserve(&anna, |_| false).err().map(|error| error.kind()),
            Some(Kind::ResourceExhausted)
        );
    }

    #[test]
    fn rivals_for_the_last_places_do_not_get_more_than_there_are() {
        let sessions = Arc::<Sessions>::default();
        let anna = Principal::local();
        let taken: Vec<Reservation> = std::thread::scope(|scope| {
            let rivals: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        let tries =
                            (0..SESSIONS).filter_map(|_| sessions.reserve(&anna, |_| true).ok());
                        tries.map(|(reservation, _)| reservation).collect::<Vec<_>>()
                    })
                })
                .collect();
            rivals.into_iter().flat_map(|rival| rival.join().unwrap()).collect()
        });
        assert_eq!(taken.len(), SESSIONS);
    }
}
