//! Sessions of 2025 clients, by their `Mcp-Session-Id`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::super::server::ClientConnection;
use crate::base::IgnorePoison;
use crate::base::{CancelCause, Error, Kind, Result};
use crate::session::Principal;

/// Sessions per principal: each one holds memory, and `initialize` costs its sender nothing.
const MAX_SESSIONS: usize = 256;

/// All sessions, and the reservations for those that are being opened.
#[derive(Default)]
pub struct HttpSessions {
    table: Mutex<SessionTable>,
}

#[derive(Default)]
struct SessionTable {
    open: HashMap<String, OpenSession>,
    reserved: HashMap<Principal, usize>,
}

struct OpenSession {
    connection: ClientConnection,
    last_used: Instant,
    /// Each open response stream holds a clone; the reference count is their number.
    streams: Arc<()>,
}

impl HttpSessions {
    fn lock(&self) -> MutexGuard<'_, SessionTable> {
        self.table.lock().ignore_poison()
    }

    /// Returns the session with this id if it belongs to the principal, and the counter of its open
    /// streams.
    pub fn find_session(
        &self,
        id: &str,
        principal: &Principal,
    ) -> Result<(ClientConnection, Arc<()>)> {
        match self
            .lock()
            .open
            .get_mut(id)
            .filter(|open_session| open_session.connection.principal == *principal)
        {
            Some(open_session) => {
                open_session.last_used = Instant::now();
                Ok((open_session.connection.clone(), Arc::clone(&open_session.streams)))
            }
            // A session of another principal must look like a missing one.
            None => Err(Error::new(Kind::NotFound, "there is no such session")
                .with_reason("unknown_session")
                .with_hint("Start a new one with `initialize`.")),
        }
    }

    /// Reserves room for a session that is being opened. A principal with too many sessions loses
    /// the one it has not used for longest; its id is returned, for the engine. Fails only if all
    /// of them are in use.
    pub fn reserve_session(
        self: &Arc<Self>,
        principal: &Principal,
        is_idle: impl Fn(&ClientConnection) -> bool,
    ) -> Result<(SessionReservation, Option<String>)> {
        let mut table = self.lock();
        let own_sessions = table
            .open
            .iter()
            .filter(|(_, open_session)| open_session.connection.principal == *principal);
        let reserved = table.reserved.get(principal).copied().unwrap_or_default();
        let mut ended_id = None;
        if own_sessions.clone().count() + reserved >= MAX_SESSIONS {
            let idle = own_sessions.filter(|(_, open_session)| {
                Arc::strong_count(&open_session.streams) == 1 && is_idle(&open_session.connection)
            });
            let longest_idle = idle
                .min_by_key(|(_, open_session)| open_session.last_used)
                .map(|(id, _)| id.clone());
            let id = longest_idle.ok_or_else(|| {
                Error::new(Kind::ResourceExhausted, "too many sessions are in use")
                    .with_reason("sessions")
                    .with_hint("End sessions that are not needed with DELETE.")
            })?;
            table.end_session(&id, CancelCause::SessionEnd);
            ended_id = Some(id);
        }
        *table.reserved.entry(principal.clone()).or_default() += 1;
        let reservation =
            SessionReservation { sessions: Arc::clone(self), principal: principal.clone() };
        Ok((reservation, ended_id))
    }

    /// Ends a session and everything that runs in it.
    pub fn end_session(&self, id: &str, cause: CancelCause) {
        self.lock().end_session(id, cause);
    }

    /// Ends the sessions that have been unused for `idle_time` and in which nothing is running.
    /// Returns their ids, for the engine.
    pub fn end_idle_sessions(
        &self,
        idle_time: Duration,
        is_idle: impl Fn(&ClientConnection) -> bool,
    ) -> Vec<String> {
        let mut table = self.lock();
        let idle = table.open.iter().filter(|(_, open_session)| {
            open_session.last_used.elapsed() > idle_time
                && Arc::strong_count(&open_session.streams) == 1
                && is_idle(&open_session.connection)
        });
        let ids: Vec<String> = idle.map(|(id, _)| id.clone()).collect();
        ids.iter().for_each(|id| table.end_session(id, CancelCause::SessionEnd));
        ids
    }
}

impl SessionTable {
    fn end_session(&mut self, id: &str, cause: CancelCause) {
        if let Some(open_session) = self.open.remove(id) {
            open_session.connection.session().cancel.cancel(cause);
        }
    }
}

/// Room for one more session, released on drop.
pub struct SessionReservation {
    sessions: Arc<HttpSessions>,
    principal: Principal,
}

impl SessionReservation {
    /// Stores the session that was opened.
    pub fn store_session(self, id: String, connection: ClientConnection, streams: Arc<()>) {
        // The reservation ends with this function. Until then both count, which errs on the safe
        // side.
        self.sessions
            .lock()
            .open
            .insert(id, OpenSession { connection, last_used: Instant::now(), streams });
    }
}

impl Drop for SessionReservation {
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
        let sessions = Arc::<HttpSessions>::default();
        let anna = Principal::local();
        let open = |id: usize| {
            let (reservation, ended) = sessions.reserve_session(&anna, |_| true)?;
            let line = server.connect_client(anna.clone(), "http")?;
            reservation.store_session(id.to_string(), line, Arc::default());
            Ok::<_, Error>(ended)
        };
        for id in 0..MAX_SESSIONS {
            assert_eq!(open(id).unwrap(), None);
        }
        // The first was used again, so it is the second that goes.
        let (first, _) = sessions.find_session("0", &anna).unwrap();
        let (second, _) = sessions.find_session("1", &anna).unwrap();
        sessions.find_session("0", &anna).unwrap();
        (2..MAX_SESSIONS)
            .for_each(|id| drop(sessions.find_session(&id.to_string(), &anna).unwrap()));
        assert_eq!(open(MAX_SESSIONS).unwrap().as_deref(), Some("1"));
        assert!(second.session().cancel.is_cancelled() && !first.session().cancel.is_cancelled());
        // Places that are only reserved count, too.
        let reserved: Vec<_> =
            (0..MAX_SESSIONS).map(|_| sessions.reserve_session(&anna, |_| true).unwrap()).collect();
        assert!(
            sessions.reserve_session(&anna, |_| true).is_err(),
            "nothing is left that could make room"
        );
        assert!(sessions.lock().open.is_empty());
        drop(reserved);
        assert_eq!(open(0).unwrap(), None);
        // One that is in use stays.
        (1..MAX_SESSIONS).for_each(|id| drop(open(id).unwrap()));
        assert_eq!(
            sessions.reserve_session(&anna, |_| false).err().map(|error| error.kind()),
            Some(Kind::ResourceExhausted)
        );
    }

    #[test]
    fn rivals_for_the_last_places_do_not_get_more_than_there_are() {
        let sessions = Arc::<HttpSessions>::default();
        let anna = Principal::local();
        let taken: Vec<SessionReservation> = std::thread::scope(|scope| {
            let rivals: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        let tries = (0..MAX_SESSIONS)
                            .filter_map(|_| sessions.reserve_session(&anna, |_| true).ok());
                        tries.map(|(reservation, _)| reservation).collect::<Vec<_>>()
                    })
                })
                .collect();
            rivals.into_iter().flat_map(|rival| rival.join().unwrap()).collect()
        });
        assert_eq!(taken.len(), MAX_SESSIONS);
    }
}
