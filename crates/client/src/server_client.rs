//! Client of one server: connected when it is first used, reconnected when it is needed again.

use std::hash::{BuildHasher, Hasher};
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use http::HeaderMap;
use tokio::sync::{Mutex as AsyncMutex, Semaphore, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::AuthProvider;
use crate::call::{CallHandler, CallRun, ToolCall, take_place};
use crate::catalog::{CachedCatalog, ToolCatalog, list_tools};
use crate::config::ServerConfig;
use crate::connection::process::Spawner;
use crate::connection::router::Root;
use crate::connection::{ConnectContext, Connection};
use crate::error::{ClientError, ErrorKind, Result, closed_by_us};
use crate::handshake::{ClientProfile, Era, ServerGreeting, greet_server};
use crate::header_params::call_headers;
use crate::limits::Limits;
use crate::message::RawJson;

/// First wait after a failed connection; each further one is twice as long.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(600);
/// A server that ends sooner than this after its start counts as failed.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Code for headers that do not match the call.
const HEADER_MISMATCH: i64 = -32020;

/// What all clients of a program have in common.
#[derive(Clone)]
pub struct ClientOptions {
    pub limits: Limits,
    pub profile: ClientProfile,
    /// Starts stdio servers; without it they are not available.
    pub spawner: Option<Arc<dyn Spawner>>,
    /// Longest time for which a tool list is used without asking again.
    pub tools_ttl: Duration,
    /// Directories that servers may know about.
    pub roots: Vec<Root>,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            limits: Limits::default(),
            profile: ClientProfile::default(),
            spawner: None,
            tools_ttl: Duration::from_secs(300),
            roots: Vec::new(),
        }
    }
}

/// State of a client.
#[derive(Debug, Clone)]
pub enum ClientStatus {
    /// It has not been used, or was closed.
    Idle,
    Connecting,
    Connected(Box<ServerGreeting>),
    /// The last attempt failed.
    Failed {
        error: ClientError,
        /// Time until the next attempt is made; `None` if none is made before something changes.
        retry_in: Option<Duration>,
    },
}

/// Client of one server. Dropping it ends its connection without waiting for that.
pub struct ServerClient {
    core: Arc<ClientCore>,
    catalog: AsyncMutex<CachedCatalog>,
    /// The tools that were listed last, which may be out of date.
    last_catalog: Mutex<Option<Arc<ToolCatalog>>>,
    calls: Semaphore,
}

/// What a client shares with the tasks that connect and close for it.
struct ClientCore {
    id: String,
    config: ServerConfig,
    options: ClientOptions,
    auth_provider: Option<Arc<dyn AuthProvider>>,
    link: Mutex<Link>,
    /// Counts changes of the tool list. A new connection is a change too: the server may have
    /// restarted with other tools.
    list_changes: watch::Sender<u64>,
    connection_count: AtomicU64,
    attempts: TaskTracker,
    /// Connections that are being closed. The next one waits for them, so that two processes of a
    /// server never run at a time.
    closings: TaskTracker,
}

#[derive(Default)]
struct Link {
    state: LinkState,
    failure: Option<Failure>,
}

#[derive(Default)]
enum LinkState {
    #[default]
    Idle,
    Connecting(ConnectAttempt),
    Connected(Arc<Established>),
}

type ConnectOutcome = Shared<BoxFuture<'static, Result<Arc<Established>>>>;

/// Attempt to connect, in a task of its own: a caller that goes away must not take it from the
/// others that wait for it.
struct ConnectAttempt {
    cancel: CancellationToken,
    outcome: ConnectOutcome,
}

/// Connection that has been greeted.
struct Established {
    connection: Connection,
    greeting: ServerGreeting,
    since: Instant,
    /// Counts the connections of the client.
    number: u64,
}

impl Established {
    /// Returns whether fields of a call go into headers too.
    fn has_headers(&self) -> bool {
        self.greeting.era == Era::Stateless && self.connection.has_headers()
    }
}

struct Failure {
    error: ClientError,
    count: u32,
    /// `None` if only a change of configuration or a login helps.
    retry_at: Option<Instant>,
}

impl ServerClient {
    /// Creates the client. Nothing is started yet.
    pub fn new(
        id: &str,
        config: ServerConfig,
        options: ClientOptions,
        auth_provider: Option<Arc<dyn AuthProvider>>,
    ) -> ServerClient {
        let calls = Semaphore::new(options.limits.calls_in_flight);
        let core = ClientCore {
            id: id.to_owned(),
            config,
            options,
            auth_provider,
            link: Mutex::default(),
            list_changes: watch::channel(0).0,
            connection_count: AtomicU64::new(0),
            attempts: TaskTracker::new(),
            closings: TaskTracker::new(),
        };
        core.attempts.close();
        core.closings.close();
        ServerClient {
            core: Arc::new(core),
            catalog: AsyncMutex::default(),
            last_catalog: Mutex::default(),
            calls,
        }
    }

    /// Returns the tools of the server, from the cache while it is valid.
    pub async fn list_tools(&self) -> Result<Arc<ToolCatalog>> {
        // Callers that come together cause one list.
        let mut cached = self.catalog.lock().await;
        let options = &self.core.options;
        let mut may_repeat = true;
        loop {
            let established = self.core.connect().await?;
            let changes = *self.core.list_changes.borrow();
            if let Some(catalog) = cached.current(options.tools_ttl, changes) {
                return Ok(catalog);
            }
            // A burst of changes causes one list, and a server that never stops few.
            tokio::time::sleep(cached.time_to_next_list()).await;
            let changes = *self.core.list_changes.borrow();
            let (connection, era) = (&established.connection, established.greeting.era);
            let error = match list_tools(connection, era, &options.profile, &options.limits).await {
                Ok(catalog) => {
                    let catalog =
                        Arc::new(ToolCatalog { connection: established.number, ..catalog });
                    cached.set(Arc::clone(&catalog), changes);
                    *self.lock_last_catalog() = Some(Arc::clone(&catalog));
                    return Ok(catalog);
                }
                Err(error) => error,
            };
            let can_repeat = self.core.can_repeat(&established, &error, true, false);
            if !can_repeat || !mem::take(&mut may_repeat) {
                return Err(self.core.name_server(error));
            }
        }
    }

    /// Subscribes to changes of the tool list: the value counts them, over all connections. After a
    /// change, [`ServerClient::list_tools`] asks the server again.
    pub fn watch_list_changes(&self) -> watch::Receiver<u64> {
        self.core.list_changes.subscribe()
    }

    /// Calls a tool and returns its result as it came.
    pub async fn call_tool(&self, call: &ToolCall, handler: &dyn CallHandler) -> Result<RawJson> {
        let options = &self.core.options;
        let mut remaining = call.timeout.unwrap_or(options.limits.call_timeout);
        let mut may_repeat = true;
        loop {
            let place = take_place(&self.calls).await?;
            let established = match call.connection {
                Some(number) => self.core.find_connection(number)?,
                None => self.core.connect().await?,
            };
            let mut run = CallRun {
                connection: &established.connection,
                era: established.greeting.era,
                profile: &options.profile,
                limits: &options.limits,
                handler,
                headers: self.call_headers(&established, call).await,
                remaining,
                places: &self.calls,
                place: Some(place),
                rounds: 0,
            };
            let error = match run.run(call).await {
                Ok(result) => return Ok(result),
                Err(error) => error,
            };
            remaining = run.remaining;
            // The server refused the call because our definition of the tool is out of date.
            let is_outdated = established.has_headers()
                && error.rpc().is_some_and(|rpc| rpc.code == HEADER_MISMATCH);
            if is_outdated {
                self.forget_tools().await;
                if call.connection.is_some() {
                    // The caller has compared a definition that the server no longer has.
                    return Err(self.core.name_server(error.into_other_connection()));
                }
            }
            let can_repeat = is_outdated || {
                let is_repetition = call.is_repeated || !may_repeat;
                self.core.can_repeat(&established, &error, call.is_read_only, is_repetition)
            };
            if !can_repeat || !mem::take(&mut may_repeat) {
                return Err(self.core.name_server(error));
            }
            if call.connection.is_some() && !self.core.is_current(&established) {
                return Err(self.core.name_server(error.into_other_connection()));
            }
        }
    }

    /// Returns the state. Never waits for the server.
    pub fn status(&self) -> ClientStatus {
        let link = self.core.lock_link();
        match &link.state {
            LinkState::Connecting(_) => return ClientStatus::Connecting,
            LinkState::Connected(established)
                if established.connection.closed_error().is_none() =>
            {
                return ClientStatus::Connected(Box::new(established.greeting.clone()));
            }
            LinkState::Connected(_) | LinkState::Idle => {}
        }
        match &link.failure {
            Some(failure) => ClientStatus::Failed {
                error: failure.error.clone(),
                retry_in: failure
                    .retry_at
                    .map(|retry_at| retry_at.saturating_duration_since(Instant::now())),
            },
            None => ClientStatus::Idle,
        }
    }

    /// Returns the id of the server.
    pub fn server_id(&self) -> &str {
        &self.core.id
    }

    /// Returns how many connections were made so far. It tells one from the next.
    pub fn connection_count(&self) -> u64 {
        self.core.connection_count.load(Ordering::Acquire)
    }

    /// Forgets earlier failures, for example after a login.
    pub fn reset_failures(&self) {
        self.core.lock_link().failure = None;
    }

    /// Closes the connection and waits until nothing of it is left: no process, socket or task. An
    /// attempt to connect is given up, and open calls fail. The next use connects again.
    pub async fn close(&self) {
        self.core.disconnect();
        self.core.attempts.wait().await;
        self.core.closings.wait().await;
    }

    async fn forget_tools(&self) {
        self.catalog.lock().await.clear();
        *self.lock_last_catalog() = None;
    }

    /// Returns the headers of a call. They depend on the definition of the tool, so that a server
    /// whose tools are not known is asked for them first.
    async fn call_headers(&self, established: &Established, call: &ToolCall) -> HeaderMap {
        if !established.has_headers() {
            return HeaderMap::new();
        }
        let known = self.lock_last_catalog().clone();
        let catalog = match known {
            Some(catalog) => Some(catalog),
            // The call itself will say what is wrong.
            None => self.list_tools().await.ok(),
        };
        let params = catalog.as_ref().and_then(|catalog| catalog.header_params.get(&call.tool));
        call_headers(&call.tool, params.map_or(&[], Vec::as_slice), &call.arguments)
    }

    fn lock_last_catalog(&self) -> MutexGuard<'_, Option<Arc<ToolCatalog>>> {
        self.last_catalog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ServerClient {
    fn drop(&mut self) {
        if tokio::runtime::Handle::try_current().is_ok() {
            self.core.disconnect();
        } else {
            // Without a runtime nothing can be awaited; dropping it ends it.
            self.core.lock_link().state = LinkState::Idle;
        }
    }
}

impl Drop for ConnectAttempt {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl ClientCore {
    /// Returns the connection, and makes it if there is none. Any number of callers cause one start.
    async fn connect(self: &Arc<ClientCore>) -> Result<Arc<Established>> {
        self.check_credentials().await;
        let outcome = {
            let mut link = self.lock_link();
            let established = match &link.state {
                LinkState::Connected(established) => Some(Arc::clone(established)),
                LinkState::Connecting(_) | LinkState::Idle => None,
            };
            match established {
                Some(established) if established.connection.closed_error().is_none() => {
                    return Ok(established);
                }
                Some(established) => self.retire(&mut link, &established, false),
                None => {}
            }
            match &link.state {
                LinkState::Connecting(attempt) => attempt.outcome.clone(),
                LinkState::Connected(_) | LinkState::Idle => {
                    link.check_backoff()?;
                    self.start_attempt(&mut link)
                }
            }
        };
        outcome.await
    }

    /// Returns the connection with this number. If it is lost, no other is made: the caller has to
    /// compare that one first.
    fn find_connection(&self, number: u64) -> Result<Arc<Established>> {
        let mut link = self.lock_link();
        let established = match &link.state {
            LinkState::Connected(current) if current.number == number => Arc::clone(current),
            _ => return Err(self.name_server(ClientError::other_connection())),
        };
        match established.connection.closed_error() {
            None => Ok(established),
            Some(end) => {
                self.retire(&mut link, &established, false);
                let error = match end.kind() {
                    // Closed by us, which says nothing about the server.
                    ErrorKind::Cancelled => ClientError::other_connection(),
                    _ => end.into_other_connection(),
                };
                Err(self.name_server(error))
            }
        }
    }

    /// Returns whether this is the connection that the next request uses.
    fn is_current(&self, established: &Arc<Established>) -> bool {
        let link = self.lock_link();
        matches!(&link.state, LinkState::Connected(current) if Arc::ptr_eq(current, established))
    }

    /// Forgets that the server refused us if there are other credentials by now.
    async fn check_credentials(&self) {
        let Some(provider) = &self.auth_provider else { return };
        let is_refused = !self.lock_link().may_retry();
        if is_refused && provider.has_new_credentials(&self.id).await {
            self.lock_link().failure = None;
        }
    }

    fn start_attempt(self: &Arc<ClientCore>, link: &mut Link) -> ConnectOutcome {
        let cancel = CancellationToken::new();
        let (core, cancelled) = (Arc::clone(self), cancel.clone());
        let (sender, receiver) = oneshot::channel();
        self.attempts.spawn(async move {
            core.closings.wait().await;
            let outcome = core.establish(&cancelled).await;
            // Callers may have gone; the connection stays for the next.
            let _ = sender.send(core.finish_attempt(&cancelled, outcome).await);
        });
        let outcome = receiver.map(|outcome| outcome.unwrap_or_else(|_| Err(closed_by_us())));
        let outcome = outcome.boxed().shared();
        link.state = LinkState::Connecting(ConnectAttempt { cancel, outcome: outcome.clone() });
        outcome
    }

    async fn finish_attempt(
        &self,
        cancelled: &CancellationToken,
        outcome: Result<Established>,
    ) -> Result<Arc<Established>> {
        let unwanted = {
            let mut link = self.lock_link();
            match outcome {
                // It was given up, and the state may belong to another attempt already.
                Ok(established) if cancelled.is_cancelled() => established,
                Err(_) if cancelled.is_cancelled() => return Err(closed_by_us()),
                Ok(mut established) => {
                    established.number = self.connection_count.fetch_add(1, Ordering::AcqRel) + 1;
                    let established = Arc::new(established);
                    link.state = LinkState::Connected(Arc::clone(&established));
                    drop(link);
                    self.list_changes.send_modify(|changes| *changes += 1);
                    return Ok(established);
                }
                Err(error) => {
                    let error = self.name_server(error);
                    link.state = LinkState::Idle;
                    link.note_failure(error.clone());
                    return Err(error);
                }
            }
        };
        unwanted.connection.close().await;
        Err(closed_by_us())
    }

    async fn establish(&self, cancelled: &CancellationToken) -> Result<Established> {
        let options = &self.options;
        let web_tasks = TaskTracker::new();
        web_tasks.close();
        let context = ConnectContext {
            server_id: &self.id,
            spawner: options.spawner.as_ref(),
            auth_provider: self.auth_provider.clone(),
            roots: options.roots.clone(),
            limits: &options.limits,
            list_changes: self.list_changes.clone(),
            web_tasks: web_tasks.clone(),
        };
        let opening = Connection::open(&self.config.transport, context);
        let opening = tokio::time::timeout(options.limits.connect_timeout, opening);
        let opened = match cancelled.run_until_cancelled(opening).await {
            Some(Ok(opened)) => opened,
            Some(Err(_)) => Err(ClientError::new(
                ErrorKind::DeadlineExceeded,
                "the server did not start in time",
            )
            .with_start_timeout()),
            None => Err(closed_by_us()),
        };
        let connection = match opened {
            Ok(connection) => connection,
            Err(error) => {
                web_tasks.wait().await;
                return Err(error);
            }
        };
        let greeting = greet_server(&connection, &options.profile, &options.limits);
        match cancelled.run_until_cancelled(greeting).await.unwrap_or_else(|| Err(closed_by_us())) {
            Ok(greeting) => {
                connection.set_protocol(greeting.era, &greeting.version);
                // Servers with sessions may ask on that stream, whatever they say about lists.
                if greeting.era == Era::Initialized || greeting.reports_list_changes() {
                    connection.listen(greeting.era, &options.profile).await;
                }
                // The number is set when the connection is taken into use.
                Ok(Established { connection, greeting, since: Instant::now(), number: 0 })
            }
            Err(error) => {
                connection.close().await;
                Err(error)
            }
        }
    }

    /// Draws the consequences of an error for the connection. Returns whether the request may be
    /// made again: a lost session means that it did not run, but a lost connection says nothing about
    /// that, so that only a request that changes nothing is repeated. `is_repetition` says that the
    /// request was made before.
    fn can_repeat(
        &self,
        established: &Arc<Established>,
        error: &ClientError,
        is_read_only: bool,
        is_repetition: bool,
    ) -> bool {
        let end = established.connection.closed_error();
        if end.as_ref().is_some_and(|end| end.kind() == ErrorKind::Cancelled) {
            // Closed by us: the caller wants an end, not another try.
            return false;
        }
        let is_refused = error.ends_access();
        if error.is_session_lost() || end.is_some() || is_refused {
            let mut link = self.lock_link();
            if is_refused {
                link.note_failure(self.name_server(error.clone()));
            }
            self.retire(&mut link, established, is_repetition);
        }
        error.is_session_lost() || is_read_only && (end.is_some() || error.is_interruption())
    }

    /// Closes a connection in the background, unless another one has taken its place already. An early
    /// end counts as a failure, unless a request that was repeated caused it: we, not the caller,
    /// have started the server for that.
    fn retire(&self, link: &mut Link, established: &Arc<Established>, is_repetition: bool) {
        let LinkState::Connected(current) = &link.state else { return };
        if !Arc::ptr_eq(current, established) {
            return;
        }
        let is_stable = established.since.elapsed() >= STABLE_AFTER;
        match established.connection.closed_error() {
            Some(_) if !is_stable && is_repetition => {}
            Some(error) if !is_stable => link.note_early_end(self.name_server(error)),
            _ if is_stable && link.may_retry() => link.failure = None,
            _ => {}
        }
        link.state = LinkState::Idle;
        let established = Arc::clone(established);
        self.closings.spawn(async move { established.connection.close().await });
    }

    /// Gives up the connection, or the attempt to make one.
    fn disconnect(&self) {
        let mut link = self.lock_link();
        if let LinkState::Connected(established) = &link.state {
            let established = Arc::clone(established);
            self.retire(&mut link, &established, false);
        }
        // Dropping an attempt cancels it.
        link.state = LinkState::Idle;
    }

    fn name_server(&self, error: ClientError) -> ClientError {
        let name = format!("`{}`", self.id);
        // An error of the server's own could quote its name, to pass for ours.
        match error.rpc().is_none() && error.message().contains(&name) {
            true => error,
            false => error.with_context(format_args!("server {name}")),
        }
    }

    fn lock_link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    /// Fails while the wait after the last failure is not over.
    fn check_backoff(&self) -> Result<()> {
        match &self.failure {
            Some(Failure { error, retry_at: None, .. }) => Err(error.clone()),
            Some(Failure { error, retry_at: Some(retry_at), .. }) => {
                let wait = retry_at.saturating_duration_since(Instant::now());
                match wait.is_zero() {
                    true => Ok(()),
                    false => Err(error.clone().with_hint(format!(
                        "The next attempt is made in {} seconds at the earliest.",
                        wait.as_secs() + 1
                    ))),
                }
            }
            None => Ok(()),
        }
    }

    fn may_retry(&self) -> bool {
        !matches!(self.failure, Some(Failure { retry_at: None, .. }))
    }

    /// Notes that connecting failed, or that the server refuses us.
    fn note_failure(&mut self, error: ClientError) {
        let count = self.count_failures() + 1;
        // A server that refuses us would only see the same credentials again.
        let may_retry = error.kind() != ErrorKind::Unauthenticated;
        let retry_at = may_retry.then(|| Instant::now() + backoff(count));
        self.failure = Some(Failure { error, count, retry_at });
    }

    /// Notes that a server ended soon after it had been greeted. The first time it is started again
    /// without a wait: one call that crashes it must not keep it from the next.
    fn note_early_end(&mut self, error: ClientError) {
        let count = self.count_failures() + 1;
        let wait = if count == 1 { Duration::ZERO } else { backoff(count - 1) };
        if self.may_retry() {
            self.failure = Some(Failure { error, count, retry_at: Some(Instant::now() + wait) });
        }
    }

    fn count_failures(&self) -> u32 {
        self.failure.as_ref().map_or(0, |failure| failure.count)
    }
}

/// Returns the wait after so many failures, with some chance in it: clients that failed together must
/// not come back together.
fn backoff(failures: u32) -> Duration {
    let doubled = FIRST_BACKOFF.saturating_mul(1 << failures.saturating_sub(1).min(10));
    let chance = std::collections::hash_map::RandomState::new().build_hasher().finish() % 512;
    doubled.min(MAX_BACKOFF).mul_f64(0.75 + chance as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::call::UnattendedCall;
    use crate::config::{TransportConfig, TrustLevel};
    use crate::connection::scripted::{ScriptedAnswer, serve_answers};

    #[test]
    fn waits_grow_to_ten_minutes_and_differ() {
        for (failures, seconds) in [(1, 1.0), (2, 2.0), (5, 16.0), (11, 600.0), (1000, 600.0)] {
            let wait = backoff(failures).as_secs_f64();
            assert!((seconds * 0.75..=seconds * 1.25).contains(&wait), "{failures}: {wait}");
        }
        assert!((0..50).any(|_| backoff(3) != backoff(3)));
    }

    #[tokio::test]
    async fn a_call_with_outdated_headers_is_made_again_with_the_new_definition() {
        let answer = |status, body: serde_json::Value| ScriptedAnswer {
            status,
            media_type: "application/json",
            body: json!({"jsonrpc": "2.0", "id": 1, "result": body}).to_string(),
        };
        let tools = |property| {
            let schema = json!({"type": "object", "properties": {"region": property}});
            answer(200, json!({"tools": [{"name": "find", "inputSchema": schema}]}))
        };
        let annotated = json!({"type": "string", "x-mcp-header": "Region"});
        let mismatch = json!({"jsonrpc": "2.0", "id": 1,
            "error": {"code": HEADER_MISMATCH, "message": "mismatch"}});
        let (transport, server) = serve_answers(vec![
            answer(200, json!({"supportedVersions": ["2026-07-28"], "capabilities": {}})),
            tools(json!({"type": "string"})),
            ScriptedAnswer { body: mismatch.to_string(), ..answer(400, json!({})) },
            tools(annotated),
            answer(200, json!({"content": []})),
        ])
        .await;
        let config = ServerConfig {
            trust: TrustLevel::Untrusted,
            transport: TransportConfig::Http(transport),
        };
        let client = ServerClient::new("test", config, ClientOptions::default(), None);
        let arguments = json!({"region": "eu"}).as_object().cloned().unwrap();
        let (tool, timeout, is_read_only) = ("find".to_owned(), None, false);
        let call = ToolCall {
            tool,
            arguments,
            timeout,
            is_read_only,
            runs_as_task: false,
            connection: None,
            is_repeated: false,
        };
        client.call_tool(&call, &UnattendedCall).await.unwrap();
        let requests = server.await.unwrap();
        let count_sent =
            |header: &str| requests.iter().map(|r| r.matches(header).count()).collect();
        let (names, regions): (Vec<usize>, Vec<usize>) =
            (count_sent("mcp-name: find"), count_sent("mcp-param-region: eu"));
        assert_eq!(names, [0, 0, 1, 0, 1]);
        assert_eq!(regions, [0, 0, 0, 0, 1]);
    }

    #[test]
    fn the_first_early_end_is_forgiven_and_a_refusal_is_not() {
        let error = |kind| ClientError::new(kind, "x");
        let mut link = Link::default();
        link.note_early_end(error(ErrorKind::Unavailable));
        assert!(link.check_backoff().is_ok());
        link.note_early_end(error(ErrorKind::Unavailable));
        assert!(link.check_backoff().is_err() && link.may_retry());
        link.note_failure(error(ErrorKind::Unauthenticated));
        link.note_early_end(error(ErrorKind::Unavailable));
        assert!(link.check_backoff().is_err() && !link.may_retry());
    }
}
