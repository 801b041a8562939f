//! Client of one server: connected when it is first used, reconnected when it is needed again.

use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderMap;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};

use crate::auth::AuthProvider;
use crate::call::{CallHandler, CallRun, ToolCall};
use crate::catalog::{CachedCatalog, ToolCatalog, list_tools};
use crate::config::ServerConfig;
use crate::connection::process::Spawner;
use crate::connection::router::Root;
use crate::connection::{ConnectContext, Connection};
use crate::error::{ClientError, ErrorKind, Result};
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
    Connected(Box<ServerGreeting>),
    /// The last attempt failed.
    Failed {
        error: ClientError,
        /// Time until the next attempt is made; `None` if none is made before something changes.
        retry_in: Option<Duration>,
    },
}

/// Client of one server.
pub struct ServerClient {
    id: String,
    config: ServerConfig,
    options: ClientOptions,
    auth_provider: Option<Arc<dyn AuthProvider>>,
    /// Held while connecting, so that any number of callers cause one start.
    slot: AsyncMutex<Option<Arc<Established>>>,
    failure: Mutex<Option<Failure>>,
    catalog: AsyncMutex<CachedCatalog>,
    /// The tools that were listed last, which may be out of date.
    last_catalog: Mutex<Option<Arc<ToolCatalog>>>,
    calls: Semaphore,
}

/// Connection that has been greeted.
struct Established {
    connection: Connection,
    greeting: ServerGreeting,
    since: Instant,
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
        ServerClient {
            id: id.to_owned(),
            config,
            calls: Semaphore::new(options.limits.calls_in_flight),
            options,
            auth_provider,
            slot: AsyncMutex::default(),
            failure: Mutex::default(),
            catalog: AsyncMutex::default(),
            last_catalog: Mutex::default(),
        }
    }

    /// Returns the tools of the server, from the cache while it is valid.
    pub async fn list_tools(&self) -> Result<Arc<ToolCatalog>> {
        // Callers that come together cause one list.
        let mut cached = self.catalog.lock().await;
        let established = self.connect().await?;
        let changes = *established.connection.list_changes().borrow();
        if let Some(catalog) = cached.current(self.options.tools_ttl, changes) {
            return Ok(catalog);
        }
        let (options, era) = (&self.options, established.greeting.era);
        let listing = list_tools(&established.connection, era, &options.profile, &options.limits);
        let catalog = Arc::new(listing.await.map_err(|error| self.name_server(error))?);
        cached.set(Arc::clone(&catalog), changes);
        *self.lock_last_catalog() = Some(Arc::clone(&catalog));
        Ok(catalog)
    }

    /// Calls a tool and returns its result as it came.
    pub async fn call_tool(&self, call: &ToolCall, handler: &dyn CallHandler) -> Result<RawJson> {
        let _permit = self
            .calls
            .acquire()
            .await
            .map_err(|_| ClientError::new(ErrorKind::Cancelled, "the client was closed"))?;
        let mut may_repeat = true;
        loop {
            let established = self.connect().await?;
            let mut run = CallRun {
                connection: &established.connection,
                era: established.greeting.era,
                profile: &self.options.profile,
                limits: &self.options.limits,
                handler,
                headers: self.call_headers(&established, call).await,
                remaining: call.timeout.unwrap_or(self.options.limits.call_timeout),
            };
            let error = match run.run(call).await {
                Ok(result) => return Ok(result),
                Err(error) => error,
            };
            // A lost session means that the call did not run. A lost connection says nothing about
            // that, so only a call that changes nothing is made again.
            let is_lost = established.connection.closed_error().is_some();
            if error.is_session_lost() || is_lost {
                self.drop_connection(&established).await;
            }
            if error.kind() == ErrorKind::Unauthenticated {
                self.note_failure(error.clone());
                self.drop_connection(&established).await;
            }
            // The server refused the call because our definition of the tool is out of date.
            let is_outdated = established.has_headers()
                && error.rpc().is_some_and(|rpc| rpc.code == HEADER_MISMATCH);
            if is_outdated {
                self.forget_tools().await;
            }
            let can_repeat = error.is_session_lost() || is_outdated || is_lost && call.is_read_only;
            if !can_repeat || !std::mem::take(&mut may_repeat) {
                return Err(self.name_server(error));
            }
        }
    }

    /// Returns the state.
    pub async fn status(&self) -> ClientStatus {
        if let Some(established) = &*self.slot.lock().await
            && established.connection.closed_error().is_none()
        {
            return ClientStatus::Connected(Box::new(established.greeting.clone()));
        }
        match &*self.lock_failure() {
            Some(failure) => ClientStatus::Failed {
                error: failure.error.clone(),
                retry_in: failure
                    .retry_at
                    .map(|retry_at| retry_at.saturating_duration_since(Instant::now())),
            },
            None => ClientStatus::Idle,
        }
    }

    /// Forgets earlier failures, for example after a login.
    pub fn reset_failures(&self) {
        *self.lock_failure() = None;
    }

    /// Closes the connection and waits until nothing of it is left: no process, socket or task. The
    /// next use connects again.
    pub async fn close(&self) {
        let established = self.slot.lock().await.take();
        if let Some(established) = established {
            established.connection.close().await;
        }
        self.forget_tools().await;
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

    async fn connect(&self) -> Result<Arc<Established>> {
        let mut slot = self.slot.lock().await;
        if let Some(established) = &*slot {
            let Some(error) = established.connection.closed_error() else {
                return Ok(Arc::clone(established));
            };
            let is_unstable = established.since.elapsed() < STABLE_AFTER;
            if let Some(old) = slot.take() {
                old.connection.close().await;
            }
            if is_unstable {
                self.note_failure(error);
            }
        }
        self.check_backoff()?;
        match self.establish().await {
            Ok(established) => Ok(Arc::clone(slot.insert(Arc::new(established)))),
            Err(error) => {
                let error = self.name_server(error);
                self.note_failure(error.clone());
                Err(error)
            }
        }
    }

    async fn establish(&self) -> Result<Established> {
        let options = &self.options;
        let context = ConnectContext {
            server_id: &self.id,
            spawner: options.spawner.as_ref(),
            auth_provider: self.auth_provider.clone(),
            roots: options.roots.clone(),
            limits: &options.limits,
        };
        let opening = Connection::open(&self.config.transport, context);
        let connection = tokio::time::timeout(options.limits.connect_timeout, opening)
            .await
            .map_err(|_| {
                ClientError::new(ErrorKind::DeadlineExceeded, "the server did not start in time")
            })??;
        match greet_server(&connection, &options.profile, &options.limits).await {
            Ok(greeting) => {
                connection.set_protocol(greeting.era, &greeting.version);
                // 2026-07-28 has no such stream.
                if greeting.era == Era::Initialized {
                    connection.listen().await;
                }
                Ok(Established { connection, greeting, since: Instant::now() })
            }
            Err(error) => {
                connection.close().await;
                Err(error)
            }
        }
    }

    async fn drop_connection(&self, established: &Arc<Established>) {
        let mut slot = self.slot.lock().await;
        // Another call may have connected again already.
        if slot.as_ref().is_some_and(|current| Arc::ptr_eq(current, established)) {
            *slot = None;
            drop(slot);
            established.connection.close().await;
        }
    }

    /// Fails while the wait after the last failure is not over.
    fn check_backoff(&self) -> Result<()> {
        match &*self.lock_failure() {
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

    fn note_failure(&self, error: ClientError) {
        let mut failure = self.lock_failure();
        let count = failure.as_ref().map_or(0, |failure| failure.count) + 1;
        let retry_at = match error.kind() {
            // A server that refuses us would only see the same credentials again.
            ErrorKind::Unauthenticated => None,
            _ => Some(Instant::now() + backoff(count)),
        };
        *failure = Some(Failure { error, count, retry_at });
    }

    fn name_server(&self, error: ClientError) -> ClientError {
        let name = format!("`{}`", self.id);
        match error.message().contains(&name) {
            true => error,
            false => error.with_context(format_args!("server {name}")),
        }
    }

    fn lock_last_catalog(&self) -> std::sync::MutexGuard<'_, Option<Arc<ToolCatalog>>> {
        self.last_catalog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_failure(&self) -> std::sync::MutexGuard<'_, Option<Failure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
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
        let call = ToolCall { tool, arguments, timeout, is_read_only };
        client.call_tool(&call, &UnattendedCall).await.unwrap();
        let requests = server.await.unwrap();
        let count_sent =
            |header: &str| requests.iter().map(|r| r.matches(header).count()).collect();
        let (names, regions): (Vec<usize>, Vec<usize>) =
            (count_sent("mcp-name: find"), count_sent("mcp-param-region: eu"));
        assert_eq!(names, [0, 0, 1, 0, 1]);
        assert_eq!(regions, [0, 0, 0, 0, 1]);
    }
}
