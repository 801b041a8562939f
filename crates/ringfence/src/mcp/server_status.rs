//! State of the server for `ringfence ps`: open sessions, their clients, and the calls in flight.

use std::sync::{Arc, Mutex, Weak};

use super::Server;
use crate::approval::terminal::{ServerStatus, SessionStatus};
use crate::base::IgnorePoison;
use crate::base::clock::unix_millis;
use crate::session::Session;

/// Lists shorter than this are not searched for ended sessions.
const MIN_SWEEP_LENGTH: usize = 32;

/// Open sessions. A session is not kept alive by being listed here.
pub struct OpenSessions {
    started_unix_ms: u64,
    list: Mutex<SessionList>,
}

struct SessionList {
    sessions: Vec<Weak<Session>>,
    /// Length at which ended sessions are removed. It is twice the number of those that remained,
    /// so that adding a session takes constant time on average.
    sweep_length: usize,
}

impl OpenSessions {
    /// Creates the list of a server that starts now.
    pub fn new() -> OpenSessions {
        let list = SessionList { sessions: Vec::new(), sweep_length: MIN_SWEEP_LENGTH };
        OpenSessions { started_unix_ms: unix_millis(), list: Mutex::new(list) }
    }

    /// Adds a session.
    pub fn add_session(&self, session: &Arc<Session>) {
        let mut list = self.list.lock().ignore_poison();
        if list.sessions.len() >= list.sweep_length {
            list.sessions.retain(|session| session.strong_count() > 0);
            list.sweep_length = MIN_SWEEP_LENGTH.max(list.sessions.len() * 2);
        }
        list.sessions.push(Arc::downgrade(session));
    }

    fn open_sessions(&self) -> Vec<Arc<Session>> {
        let list = self.list.lock().ignore_poison();
        let sessions = list.sessions.iter().filter_map(Weak::upgrade);
        // A run may hold a session a little longer than its client does.
        sessions.filter(|session| !session.cancel.is_cancelled()).collect()
    }
}

impl Server {
    /// Returns the present state, as `ringfence ps` shows it.
    pub fn describe_status(&self) -> ServerStatus {
        let describe_session = |session: &Arc<Session>| SessionStatus {
            id: session.id.clone(),
            client: session.client_name().unwrap_or_default().to_owned(),
            principal: session.principal.name().to_owned(),
            transport: session.transport.to_owned(),
            workspace: session.workspace.path().to_owned(),
        };
        let listen = self.config.http.listen;
        ServerStatus {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            transport: if listen.is_some() { "http" } else { "stdio" }.to_owned(),
            address: listen.map(|address| format!("http://{address}/mcp")),
            workspace: self.config.workspace.clone(),
            started_unix_ms: self.open_sessions.started_unix_ms,
            calls: self.pipeline.running_call_count(),
            sessions: self.open_sessions.open_sessions().iter().map(describe_session).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::CancelCause;
    use crate::config::scratch::Scratch;
    use crate::mcp::server::tests::server;
    use crate::session::Principal;

    #[tokio::test]
    async fn ended_sessions_are_neither_shown_nor_kept() {
        let scratch = Scratch::new();
        let server = server(&scratch);
        let connect = || server.connect_client(Principal::local(), "http").unwrap();
        let kept = connect();
        kept.session().set_client_name("editor 2");
        let ended = connect();
        ended.session().cancel.cancel(CancelCause::SessionEnd);
        for _ in 0..10 * MIN_SWEEP_LENGTH {
            drop(connect());
        }
        let status = server.describe_status();
        let [session] = &status.sessions[..] else { panic!("{status:?}") };
        assert_eq!((session.client.as_str(), session.principal.as_str()), ("editor 2", "local"));
        let listed = server.open_sessions.list.lock().unwrap().sessions.len();
        assert!(listed <= MIN_SWEEP_LENGTH, "{listed}");
    }
}
