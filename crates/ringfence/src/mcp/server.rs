//! Server state that all transports share: the pipeline, the sessions, and the calls in flight.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::server_status::OpenSessions;
use super::tasks::BackgroundTasks;
use crate::base::IgnorePoison;
use crate::base::ids::short_id;
use crate::base::seal::Sealer;
use crate::base::workspace::Workspace;
use crate::base::{CancelCause, CancelToken, Error, Result};
use crate::call::{ConfigReloader, Pipeline};
use crate::config::{Config, ConfigSource, FileStamps};
use crate::sandbox::SandboxConfig;
use crate::session::{ClientInfo, OutputQuotas, Principal, Session};
use crate::tools::{SessionRef, SessionState};

/// Connection that a message arrived on; its transport attaches it to each request.
#[derive(Clone)]
pub struct ClientConnection {
    pub principal: Principal,
    /// Session of the connection; on 2026-07-28 it serves only requests without a handle.
    pub state: Arc<SessionState>,
    pub transport: &'static str,
    /// False if the session only serves requests that have none of their own: nothing granted there
    /// outlives the request.
    pub persistent: bool,
    /// Set by the handshake of the 2025 protocols.
    client: Arc<Mutex<Option<Arc<DeclaredClient>>>>,
}

/// What a client has said about itself.
#[derive(Debug, Clone)]
pub struct DeclaredClient {
    pub info: ClientInfo,
    pub capabilities: Option<rmcp::model::ClientCapabilities>,
    /// Protocol version that was agreed on.
    pub protocol: String,
}

impl ClientConnection {
    /// Returns the session of the connection.
    pub fn session(&self) -> &Arc<Session> {
        &self.state.session
    }

    /// Notes what the client said in its handshake.
    pub fn set_client(&self, client: DeclaredClient) {
        self.session().set_client_name(&client.info.short_name());
        *lock(&self.client) = Some(Arc::new(client));
    }

    /// Returns what the client said in its handshake, if there was one.
    pub fn declared_client(&self) -> Option<Arc<DeclaredClient>> {
        lock(&self.client).clone()
    }
}

/// Server that all transports share.
pub struct Server {
    pub pipeline: Arc<Pipeline>,
    /// Config at the start, for settings that cannot change.
    pub config: Arc<Config>,
    pub shutdown: CancelToken,
    /// Ends the engines of the network transports. Later than `shutdown`, so that calls which it
    /// stopped can still be answered.
    pub engine_shutdown: CancellationToken,
    pub tasks: BackgroundTasks,
    handle_sealer: Sealer,
    /// Sessions of 2026-07-28, by the id in their handle.
    handle_sessions: Mutex<HashMap<String, HandleSession>>,
    workspaces: Mutex<HashMap<PathBuf, Arc<Workspace>>>,
    output_quotas: OutputQuotas,
    pub(super) open_sessions: OpenSessions,
    /// Calls in flight, so that a cancellation reaches them past a blocked connection.
    calls_in_flight: Mutex<HashMap<(String, String), CancelToken>>,
}

struct HandleSession {
    state: Arc<SessionState>,
    last_used: Instant,
}

impl HandleSession {
    /// Ends everything that is running in it. Returns false, for `retain`.
    fn end_session(&self) -> bool {
        self.state.session.cancel.cancel(CancelCause::SessionEnd);
        false
    }
}

/// Content of a session handle.
#[derive(Serialize, Deserialize)]
struct SessionHandle {
    id: String,
}

/// A handle that is unused for this long is forgotten, together with its trust.
const HANDLE_IDLE_LIMIT: Duration = Duration::from_secs(3600);
const HANDLES_PER_PRINCIPAL: usize = 256;
/// Time between the end of a call and its answer on the wire.
const ANSWER_DELAY: Duration = Duration::from_millis(100);

impl Server {
    /// Creates a server whose config never changes.
    pub fn new(config: Config) -> Result<Arc<Self>> {
        Self::build(Arc::new(config), None)
    }

    /// Creates a server that reloads its config.
    pub fn with_reload(
        config: Config,
        source: ConfigSource,
        stamps: FileStamps,
    ) -> Result<Arc<Self>> {
        let config = Arc::new(config);
        Self::build(Arc::clone(&config), Some(ConfigReloader::new(source, stamps, config)))
    }

    fn build(config: Arc<Config>, reload: Option<ConfigReloader>) -> Result<Arc<Self>> {
        Ok(Arc::new(Server {
            pipeline: Arc::new(Pipeline::new(Arc::clone(&config), reload)?),
            config,
            shutdown: CancelToken::new(),
            engine_shutdown: CancellationToken::new(),
            tasks: BackgroundTasks::default(),
            handle_sealer: Sealer::new()?,
            handle_sessions: Mutex::default(),
            workspaces: Mutex::default(),
            output_quotas: OutputQuotas::default(),
            open_sessions: OpenSessions::new(),
            calls_in_flight: Mutex::default(),
        }))
    }

    /// Opens the session of a connection. It ends when its `cancel` is cancelled or its last holder
    /// drops it.
    pub fn connect_client(
        &self,
        principal: Principal,
        transport: &'static str,
    ) -> Result<ClientConnection> {
        let connection = self.connect_unlisted(principal, transport)?;
        self.open_sessions.add_session(connection.session());
        Ok(connection)
    }

    /// Opens a session that `ringfence ps` does not show: no client asked for it.
    pub fn connect_unlisted(
        &self,
        principal: Principal,
        transport: &'static str,
    ) -> Result<ClientConnection> {
        let workspace = self.open_workspace(&principal)?;
        let root = &self.config.root;
        let quota = self
            .output_quotas
            .for_principal(&principal, self.pipeline.state().config.limits.output_file_bytes);
        let session =
            Session::new(principal.clone(), transport, workspace, root, self.shutdown.new_child());
        let state = Arc::new(SessionState::new(Arc::new(session.with_quota(quota, root))));
        Ok(ClientConnection {
            principal,
            state,
            transport,
            persistent: true,
            client: Arc::default(),
        })
    }

    /// Asks servers that no one has accepted yet for their tools, now and after each reload.
    pub async fn learn_upstreams(self: Arc<Self>) {
        loop {
            if self.pipeline.has_unknown_upstream() {
                // The session exists for as long as servers are asked, and its sandboxes with it.
                match self.connect_unlisted(Principal::from_name("ringfence"), "internal") {
                    Ok(connection) => self.pipeline.learn_upstreams(&connection.state).await,
                    Err(error) => tracing::error!("{}", error.log_line()),
                }
            }
            tokio::select! {
                () = self.pipeline.wait_for_new_state() => {}
                _ = self.shutdown.cancelled() => return,
            }
        }
    }

    fn open_workspace(&self, principal: &Principal) -> Result<Arc<Workspace>> {
        let workspace =
            crate::config::open_workspace_for(&self.config, &principal.directory_name())?;
        let rights = crate::sandbox::profile::run_rights(
            &SandboxConfig::from_config(&self.config),
            workspace.path(),
        )?;
        let workspace = workspace.with_rights(rights)?;
        let mut workspaces = lock(&self.workspaces);
        Ok(Arc::clone(
            workspaces.entry(workspace.path().to_owned()).or_insert_with(|| Arc::new(workspace)),
        ))
    }

    /// Ends the sessions whose handles have been unused for long, and everything that is running in
    /// them.
    pub fn end_idle_sessions(&self) {
        // A call may still wait in a session that looks idle, but none lasts longer than its time
        // limit.
        let max_idle =
            HANDLE_IDLE_LIMIT.saturating_add(self.pipeline.state().config.limits.timeout_ceiling);
        lock(&self.handle_sessions).retain(|_, handle_session| {
            match handle_session.last_used.elapsed() {
                idle if idle < HANDLE_IDLE_LIMIT => true,
                idle => {
                    idle < max_idle && Arc::strong_count(&handle_session.state) > 1
                        || handle_session.end_session()
                }
            }
        });
    }

    /// Returns the session of a 2026-07-28 request: that of its handle, or without one that of its
    /// connection, which is persistent on stdio and SSE: no one else uses it.
    pub fn session_by_handle(
        &self,
        connection: &ClientConnection,
        handle: Option<&str>,
    ) -> Result<SessionRef> {
        let Some(sealed) = handle else {
            let persistent = connection.persistent;
            return Ok(SessionRef { state: Arc::clone(&connection.state), persistent });
        };
        let handle: SessionHandle = self.handle_sealer.open(&handle_purpose(&connection.principal), sealed).ok_or_else(|| {
            Error::invalid_arguments("this session handle was not issued by this server")
                .with_reason("bad_session")
                .with_hint("Use the handle of a result's _meta exactly as it was given, or leave it out.")
        })?;
        self.end_idle_sessions();
        let mut sessions = lock(&self.handle_sessions);
        if let Some(handle_session) = sessions.get_mut(&handle.id) {
            handle_session.last_used = Instant::now();
            return Ok(SessionRef { state: Arc::clone(&handle_session.state), persistent: true });
        }
        // The limit is per principal, so that none can take the places of others: a principal with
        // too many sessions loses the one it has not used for longest.
        let own_sessions = || {
            sessions.iter().filter(|(_, handle_session)| {
                handle_session.state.session.principal == connection.principal
            })
        };
        if own_sessions().count() >= HANDLES_PER_PRINCIPAL
            && let Some(oldest) = own_sessions()
                .min_by_key(|(_, handle_session)| handle_session.last_used)
                .map(|(id, _)| id.clone())
            && let Some(handle_session) = sessions.remove(&oldest)
        {
            handle_session.end_session();
        }
        let state = self.connect_client(connection.principal.clone(), connection.transport)?.state;
        sessions.insert(
            handle.id,
            HandleSession { state: Arc::clone(&state), last_used: Instant::now() },
        );
        Ok(SessionRef { state, persistent: true })
    }

    /// Creates a handle. Nothing is stored for it until it comes back.
    pub fn mint_handle(&self, principal: &Principal) -> Result<String> {
        self.handle_sealer.seal(&handle_purpose(principal), &SessionHandle { id: short_id("h") })
    }

    /// Registers a call in flight, until the guard is dropped.
    pub fn track_call(
        self: &Arc<Self>,
        session: &str,
        request: &str,
        cancel: CancelToken,
    ) -> CallGuard {
        let key = (session.to_owned(), request.to_owned());
        lock(&self.calls_in_flight).insert(key.clone(), cancel);
        CallGuard { server: Arc::clone(self), key }
    }

    /// Cancels a call in flight. Returns false if there is none.
    pub fn cancel_call(&self, session: &str, request: &str, cause: CancelCause) -> bool {
        let token =
            lock(&self.calls_in_flight).get(&(session.to_owned(), request.to_owned())).cloned();
        token.map(|cancel| cancel.cancel(cause)).is_some()
    }

    /// Stops every call, and the engines once the answers have been sent.
    pub async fn shut_down(&self, timeout: Duration) {
        let had_calls = !lock(&self.calls_in_flight).is_empty();
        self.shutdown.cancel(CancelCause::Shutdown);
        self.pipeline.wait_until_idle(timeout).await;
        if had_calls {
            tokio::time::sleep(ANSWER_DELAY).await;
        }
        self.engine_shutdown.cancel();
    }

    /// Returns whether this request is in flight.
    pub fn is_running(&self, session: &str, request: &str) -> bool {
        lock(&self.calls_in_flight).contains_key(&(session.to_owned(), request.to_owned()))
    }

    /// Returns whether no request of this session is in flight.
    pub fn is_session_idle(&self, session: &str) -> bool {
        !lock(&self.calls_in_flight).keys().any(|(owner, _)| owner == session)
    }
}

fn handle_purpose(principal: &Principal) -> String {
    format!("session of {}", principal.name())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().ignore_poison()
}

/// Entry in the list of calls that can be cancelled; removed on drop.
pub struct CallGuard {
    server: Arc<Server>,
    key: (String, String),
}

impl CallGuard {
    /// Makes a cancellation end the run that has been started for the call, even one that came
    /// before it was.
    pub fn attach_run(&self, run: CancelToken) {
        let before = lock(&self.server.calls_in_flight).insert(self.key.clone(), run.clone());
        if let Some(cause) = before.and_then(|before| before.cause()) {
            run.cancel(cause);
        }
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        lock(&self.server.calls_in_flight).remove(&self.key);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::config::scratch::Scratch;
    use crate::config::{ConfigFlags, ProcessEnv, resolve_config};

    #[test]
    fn a_cancellation_that_comes_before_the_run_ends_the_run() {
        let scratch = Scratch::new();
        let server = server(&scratch);
        let guard = server.track_call("session", "1", CancelToken::new());
        assert!(server.cancel_call("session", "1", CancelCause::Client));
        let run = CancelToken::new();
        guard.attach_run(run.clone());
        assert_eq!(run.cause(), Some(CancelCause::Client));
        drop(guard);
        assert!(!server.cancel_call("session", "1", CancelCause::Client));
    }

    /// A server on a root of its own, without a transport.
    pub fn server(scratch: &Scratch) -> Arc<Server> {
        let flags = ConfigFlags {
            root: Some(scratch.dir("root")),
            workspace: Some(scratch.dir("workspace")),
            ..ConfigFlags::default()
        };
        Server::new(
            resolve_config(&flags, &ProcessEnv::new([("HOME", scratch.dir("home"))], "/")).unwrap(),
        )
        .unwrap()
    }
}
