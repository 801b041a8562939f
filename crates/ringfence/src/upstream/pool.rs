//! Connections to servers, each for one definition, principal, session, client sandbox and set of
//! client abilities. Nothing of one principal ever reaches another's connection.

mod lease;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ringfence_client::{
    ClientError, ClientOptions, ClientProfile, ClientStatus, Limits, LockedServer, Root,
    ServerClient, ToolCatalog,
};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::backend::UpstreamBackend;
use super::catalog::{Observations, OfferedServer, ServerPins};
use super::credentials::LoginProviders;
use super::failures::{FailureKey, RecentFailures};
use super::packages::VerifiedTrees;
use super::start::{SandboxSpawner, StartContext};
use crate::audit::CallEvents;
use crate::base::call::digest_json;
use crate::base::{CancelToken, Error, IgnorePoison, Kind, Result};
use crate::config::{Config, UpstreamServer, UpstreamShare};
use crate::session::Principal;
use crate::tools::RunCx;
pub use lease::{ConnectionLease, ended_error};

/// Connections of one principal at a time.
const MAX_CONNECTIONS: usize = 64;

/// What a connection is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConnectionKey {
    server_id: String,
    definition: String,
    principal: Principal,
    /// Absent for a connection that all sessions of the principal share.
    session: Option<String>,
    /// Digest of the client's sandbox, where that allows less than the operator does.
    client_sandbox: Option<String>,
    can_answer: bool,
    can_sample: bool,
}

/// All connections of this process.
#[derive(Default)]
pub struct UpstreamPool {
    connections: Mutex<HashMap<ConnectionKey, Arc<PooledConnection>>>,
    /// What servers offered when they were last asked.
    pub(super) observations: Observations,
    /// Definitions of servers that were asked for their tools, with or without success.
    asked_definitions: Mutex<HashSet<String>>,
    failures: RecentFailures,
    /// Tasks that watch connections.
    watchers: TaskTracker,
    /// Tasks that close connections.
    closings: TaskTracker,
    /// Credentials of servers that someone logs in to.
    pub(super) logins: LoginProviders,
    /// Installed packages that were compared with `mcp.lock`.
    pub(super) verified_trees: Arc<VerifiedTrees>,
}

/// A connection, and who uses it.
pub struct PooledConnection {
    pub client: ServerClient,
    /// The server has logins.
    has_logins: bool,
    spawner: Option<Arc<SandboxSpawner>>,
    users: AtomicUsize,
    last_used: Mutex<Instant>,
    /// The entry has changed: it ends with its last user.
    is_outdated: AtomicBool,
    /// The list of tools that was compared last.
    seen_offer: Mutex<Option<SeenOffer>>,
}

#[derive(Clone)]
struct SeenOffer {
    catalog: Arc<ToolCatalog>,
    offer: Arc<OfferedServer>,
    /// What it was compared with.
    pins: Arc<ServerPins>,
    /// Where a change is recorded: with the call that connected.
    call_events: CallEvents,
}

impl UpstreamPool {
    /// Returns the connection that a call may use, and makes it if there is none.
    pub fn lease_connection(
        self: &Arc<Self>,
        backend: &UpstreamBackend,
        cx: &RunCx,
    ) -> Result<ConnectionLease> {
        let server = &backend.server;
        let is_shared = server.share == UpstreamShare::Principal;
        let key = connection_key(backend, cx, is_shared);
        let ends_with_call = !cx.session_ref.persistent && !is_shared;
        let mut connections = self.lock_connections();
        let connection = match connections.get(&key) {
            Some(connection) => Arc::clone(connection),
            None => {
                self.failures.check_retry(&key.failure_key())?;
                self.make_room(&mut connections, &key.principal)?;
                let context = StartContext::from_call(cx, server, is_shared)?;
                let cancel = context.cancel.clone();
                let connection = Arc::new(PooledConnection::new(backend, context, &key)?);
                connections.insert(key.clone(), Arc::clone(&connection));
                self.watch_connection(&key, &connection, cancel, server.idle_timeout);
                connection
            }
        };
        connection.users.fetch_add(1, Ordering::AcqRel);
        drop(connections);
        if let Some(spawner) = &connection.spawner {
            let events = cx.control.call_events.with_field("upstream", server.id.as_str());
            spawner.set_call_events(events);
        }
        Ok(ConnectionLease { pool: Arc::clone(self), key, connection, ends_with_call })
    }

    /// Forgets that a server refused a principal who has logged in since, in any process.
    pub async fn notice_login(&self, backend: &UpstreamBackend, principal: &Principal) {
        let (definition, principal) = (backend.definition.clone(), principal.clone());
        let key = FailureKey { definition, principal };
        if self.failures.check_retry(&key).is_ok() {
            return;
        }
        // A provider that cannot be made fails the call itself, with its reason.
        if let Ok(Some(provider)) = self.logins.find_provider(backend, &key.principal)
            && provider.has_new_credentials(&backend.server.id).await
        {
            self.failures.forget_failure(&key);
        }
    }

    /// Closes the connection that has been idle for longest if the principal has as many as it may.
    fn make_room(
        self: &Arc<Self>,
        connections: &mut HashMap<ConnectionKey, Arc<PooledConnection>>,
        principal: &Principal,
    ) -> Result<()> {
        let own = || connections.iter().filter(|(key, _)| key.principal == *principal);
        if own().count() < MAX_CONNECTIONS {
            return Ok(());
        }
        let idle = own().filter(|(_, connection)| connection.user_count() == 0);
        let oldest = idle.min_by_key(|(_, connection)| connection.last_used());
        let Some(key) = oldest.map(|(key, _)| key.clone()) else {
            return Err(Error::new(
                Kind::ResourceExhausted,
                format!("{MAX_CONNECTIONS} connections to other servers are in use"),
            )
            .with_hint("Wait until a call ends."));
        };
        if let Some(connection) = connections.remove(&key) {
            self.close_connection(connection);
        }
        Ok(())
    }

    /// Ends a connection with its session, or when no one has used it for a while.
    fn watch_connection(
        self: &Arc<Self>,
        key: &ConnectionKey,
        connection: &Arc<PooledConnection>,
        cancel: CancelToken,
        idle_timeout: Duration,
    ) {
        let mut list_changes = connection.client.watch_list_changes();
        let (pool, key, connection) =
            (Arc::downgrade(self), key.clone(), Arc::downgrade(connection));
        self.watchers.spawn(async move {
            let mut wait = idle_timeout;
            loop {
                let (is_over, is_changed) = tokio::select! {
                    _ = cancel.cancelled() => (true, false),
                    () = tokio::time::sleep(wait) => (false, false),
                    changed = list_changes.changed() => (changed.is_err(), true),
                };
                let (Some(pool), Some(connection)) = (pool.upgrade(), connection.upgrade()) else {
                    return;
                };
                if is_changed && !is_over {
                    connection.follow_list_change(&pool, &key.principal).await;
                }
                // No call can begin to use it while the connections are locked.
                let connections = pool.lock_connections();
                wait = connection.time_until_idle(idle_timeout);
                if is_over || wait.is_zero() {
                    pool.remove_locked(connections, &key, &connection);
                    return;
                }
            }
        });
    }

    fn remove_connection(&self, key: &ConnectionKey, connection: &Arc<PooledConnection>) {
        self.remove_locked(self.lock_connections(), key, connection);
    }

    fn remove_locked(
        &self,
        mut connections: MutexGuard<'_, HashMap<ConnectionKey, Arc<PooledConnection>>>,
        key: &ConnectionKey,
        connection: &Arc<PooledConnection>,
    ) {
        if connections.get(key).is_some_and(|current| Arc::ptr_eq(current, connection)) {
            connections.remove(key);
        }
        drop(connections);
        self.close_connection(Arc::clone(connection));
    }

    fn close_connection(&self, connection: Arc<PooledConnection>) {
        self.closings.spawn(async move { connection.client.close().await });
    }

    /// Ends the connections whose entry has changed or is gone; those in use end with their calls.
    pub fn release_outdated(&self, is_current: impl Fn(&str, &str) -> bool) {
        let mut outdated = Vec::new();
        let mut connections = self.lock_connections();
        connections.retain(|key, connection| {
            let is_kept = is_current(&key.server_id, &key.definition);
            if !is_kept {
                connection.is_outdated.store(true, Ordering::Release);
                outdated.push(Arc::clone(connection));
            }
            is_kept
        });
        drop(connections);
        for connection in outdated.into_iter().filter(|one| one.user_count() == 0) {
            self.close_connection(connection);
        }
    }

    /// Closes all connections and waits until nothing of them is left.
    pub async fn close_all(&self) {
        let connections: Vec<_> =
            self.lock_connections().drain().map(|(_, connection)| connection).collect();
        connections.into_iter().for_each(|connection| self.close_connection(connection));
        self.closings.close();
        self.closings.wait().await;
    }

    /// Returns the connections of one server that this principal uses.
    pub(super) fn connections_of(
        &self,
        server_id: &str,
        principal: &Principal,
    ) -> Vec<Arc<PooledConnection>> {
        let connections = self.lock_connections();
        let is_wanted =
            |key: &ConnectionKey| key.server_id == server_id && key.principal == *principal;
        let of_server = connections.iter().filter(|(key, _)| is_wanted(key));
        of_server.map(|(_, connection)| Arc::clone(connection)).collect()
    }

    /// Returns the failure that keeps this principal from a server, and when it is tried again.
    pub(super) fn recent_failure(
        &self,
        definition: &str,
        principal: &Principal,
    ) -> Option<(ClientError, Option<Duration>)> {
        let key = FailureKey { definition: definition.to_owned(), principal: principal.clone() };
        self.failures.get_failure(&key)
    }

    /// Returns whether this definition of a server is to be asked for its tools now. It is asked
    /// once, whatever comes of it.
    pub fn begin_asking(&self, definition: &str) -> bool {
        self.asked_definitions.lock().ignore_poison().insert(definition.to_owned())
    }

    /// Returns whether this definition of a server has been asked for its tools.
    pub fn was_asked(&self, definition: &str) -> bool {
        self.asked_definitions.lock().ignore_poison().contains(definition)
    }

    /// Returns the accepted definitions of a server.
    pub fn accepted_server(&self, config: &Config, server_id: &str) -> Option<Arc<LockedServer>> {
        self.observations.accepted_server(config, server_id)
    }

    /// Keeps the definitions of a server that cannot be written to `mcp.lock`.
    pub fn keep_learned(&self, server_id: &str, learned: LockedServer) {
        self.observations.keep_learned(server_id, learned);
    }

    /// Notes that a server could not be asked for its tools.
    pub fn note_learn_error(&self, server_id: &str) {
        self.observations.note_learn_error(server_id);
    }

    /// Subscribes to changes of what servers offer: the tools that may be listed change with it.
    pub fn watch_offers(&self) -> watch::Receiver<u64> {
        self.observations.watch_changes()
    }

    fn lock_connections(&self) -> MutexGuard<'_, HashMap<ConnectionKey, Arc<PooledConnection>>> {
        self.connections.lock().ignore_poison()
    }
}

fn connection_key(backend: &UpstreamBackend, cx: &RunCx, is_shared: bool) -> ConnectionKey {
    let session = cx.session();
    let capabilities = cx.control.client.capabilities();
    let client_sandbox = cx.settings.workspace.stricter_client_sandbox();
    ConnectionKey {
        server_id: backend.server.id.clone(),
        definition: backend.definition.clone(),
        principal: session.principal.clone(),
        session: match (is_shared, cx.session_ref.persistent) {
            (true, _) => None,
            (false, true) => Some(session.id.clone()),
            // Nothing may outlive a request without a session.
            (false, false) => Some(cx.trace_id.to_string()),
        },
        client_sandbox: client_sandbox
            .filter(|_| backend.own_sandbox.is_some())
            .map(|sandbox| digest_json(&format!("{sandbox:?}").into())),
        can_answer: capabilities.elicitation,
        can_sample: capabilities.sampling && backend.server.allows_sampling,
    }
}

impl ConnectionKey {
    /// A server fails for a principal, in whichever session.
    fn failure_key(&self) -> FailureKey {
        FailureKey { definition: self.definition.clone(), principal: self.principal.clone() }
    }
}

impl PooledConnection {
    fn new(
        backend: &UpstreamBackend,
        context: StartContext,
        key: &ConnectionKey,
    ) -> Result<PooledConnection> {
        backend.check_ready()?;
        let auth_provider = backend.pool.logins.find_provider(backend, &key.principal)?;
        let options = client_options(&backend.server, &context, key.can_answer, key.can_sample);
        let spawner =
            context.sandbox.is_some().then(|| Arc::new(SandboxSpawner::new(backend, context)));
        let options = ClientOptions { spawner: spawner.clone().map(|one| one as _), ..options };
        let config = backend.connection_config()?;
        Ok(PooledConnection {
            has_logins: auth_provider.is_some(),
            client: ServerClient::new(&backend.server.id, config, options, auth_provider),
            spawner,
            users: AtomicUsize::new(0),
            last_used: Mutex::new(Instant::now()),
            is_outdated: AtomicBool::new(false),
            seen_offer: Mutex::default(),
        })
    }

    /// Compares the list again after the server has said that it changed.
    async fn follow_list_change(&self, pool: &UpstreamPool, principal: &Principal) {
        let Some(seen) = self.seen_offer.lock().ignore_poison().clone() else { return };
        // A server that has ended meanwhile is started by the next call, not for its list.
        if !matches!(self.client.status(), ClientStatus::Connected(_)) {
            return;
        }
        // The next call says what is wrong with the list.
        let Ok(catalog) = self.client.list_tools().await else { return };
        // After the list, since the server may have been started again for it.
        let ClientStatus::Connected(greeting) = self.client.status() else { return };
        let is_newest = catalog.connection == self.client.connection_count();
        if Arc::ptr_eq(&seen.catalog, &catalog) || !is_newest {
            return;
        }
        let offer = Arc::new(OfferedServer::new(&greeting, &catalog));
        if let Some(drift) = pool.observations.record_offer(&seen.pins, principal, &offer)
            && let Err(error) = seen.call_events.write_upstream("upstream.offer", drift.to_fields())
        {
            tracing::error!("a changed offer could not be recorded: {}", error.log_line());
        }
        *self.seen_offer.lock().ignore_poison() = Some(SeenOffer { catalog, offer, ..seen });
    }

    fn user_count(&self) -> usize {
        self.users.load(Ordering::Acquire)
    }

    fn last_used(&self) -> Instant {
        *self.last_used.lock().ignore_poison()
    }

    /// Returns how long the connection may stay without being used.
    fn time_until_idle(&self, idle_timeout: Duration) -> Duration {
        match self.user_count() {
            0 => idle_timeout.saturating_sub(self.last_used().elapsed()),
            _ => idle_timeout,
        }
    }
}

/// Returns the options of a connection. Only a server in our sandbox learns where the workspace is.
pub fn client_options(
    server: &UpstreamServer,
    context: &StartContext,
    can_answer: bool,
    can_sample: bool,
) -> ClientOptions {
    let roots = context.sandbox.iter().map(|_| Root {
        uri: format!("file://{}", escape_uri_path(context.workspace.path())),
        name: "workspace".to_owned(),
    });
    let defaults = Limits::default();
    ClientOptions {
        limits: Limits {
            connect_timeout: server.start_timeout,
            discover_timeout: defaults.discover_timeout.min(server.start_timeout),
            handshake_timeout: server.start_timeout,
            list_timeout: server.start_timeout,
            call_timeout: server.call_timeout,
            ..defaults
        },
        profile: ClientProfile {
            elicitation: can_answer,
            sampling: can_sample,
            ..ClientProfile::default()
        },
        roots: roots.collect(),
        ..ClientOptions::default()
    }
}

/// Returns a path as a URI has it: every byte that is not plain is escaped.
pub fn escape_uri_path(path: &std::path::Path) -> String {
    use std::fmt::Write;
    use std::os::unix::ffi::OsStrExt;
    let mut text = String::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
                text.push(char::from(*byte));
            }
            // Writing to a string does not fail.
            _ => drop(write!(text, "%{byte:02X}")),
        }
    }
    text
}
