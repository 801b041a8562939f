//! What all transports share: the pipeline, the sessions, and who is connected.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::tasks::Tasks;
use crate::base::ids::short;
use crate::base::seal::Sealer;
use crate::base::workspace::Workspace;
use crate::base::{Cancel, Cause, Error, Result};
use crate::call::{Pipeline, Reload};
use crate::config::{Config, Made, Prints};
use crate::session::{OutputQuotas, Principal, Session, View};

/// Who is on the other end of a message: put beside each request by its transport.
#[derive(Clone)]
pub struct Line {
    pub principal: Principal,
    /// The connection's own session; on 2026-07-28 only what is left without a handle.
    pub session: Arc<Session>,
    pub transport: &'static str,
    /// False where the session is only what a request without one runs in: nothing granted there outlives it.
    pub lasting: bool,
}

pub struct Server {
    pub pipeline: Arc<Pipeline>,
    /// As it was at the start: for what cannot change any more.
    pub config: Arc<Config>,
    pub shutdown: Cancel,
    /// Ends the engines of the network. Later than `shutdown`, so that what it stopped can still be answered.
    pub closed: CancellationToken,
    pub tasks: Tasks,
    handles: Sealer,
    /// Sessions of 2026-07-28, by the id inside their handle.
    lasting: Mutex<HashMap<String, Lasting>>,
    workspaces: Mutex<HashMap<PathBuf, Arc<Workspace>>>,
    outputs: OutputQuotas,
    /// Calls in flight, so that a cancellation reaches them past a connection that is stuck.
    running: Mutex<HashMap<(String, String), Cancel>>,
}

struct Lasting {
    session: Arc<Session>,
    used: Instant,
}

impl Lasting {
    /// Ends what goes on in it. False, so that it is not kept.
    fn end(&self) -> bool {
        self.session.cancel.cancel(Cause::SessionEnd);
        false
    }
}

/// The inside of a session handle.
#[derive(Serialize, Deserialize)]
struct Handle {
    id: String,
}

/// A handle unused for so long is forgotten, and its trust with it.
const HANDLE_IDLE: Duration = Duration::from_secs(3600);
const HANDLES_PER_PRINCIPAL: usize = 256;
/// From the end of a call to its answer on the wire.
const ANSWERING: Duration = Duration::from_millis(100);

impl Server {
    /// One whose config never changes.
    pub fn new(config: Config) -> Result<Arc<Self>> {
        Self::with(Arc::new(config), None)
    }

    /// One that looks at its files again.
    pub fn reloading(config: Config, made: Made, seen: Prints) -> Result<Arc<Self>> {
        let config = Arc::new(config);
        Self::with(Arc::clone(&config), Some(Reload::new(made, seen, config)))
    }

    fn with(config: Arc<Config>, reload: Option<Reload>) -> Result<Arc<Self>> {
        Ok(Arc::new(Server {
            pipeline: Arc::new(Pipeline::new(Arc::clone(&config), reload)?),
            config,
            shutdown: Cancel::new(),
            closed: CancellationToken::new(),
            tasks: Tasks::default(),
            handles: Sealer::new()?,
            lasting: Mutex::default(),
            workspaces: Mutex::default(),
            outputs: OutputQuotas::default(),
            running: Mutex::default(),
        }))
    }

    /// A connection's own session. It ends when its `cancel` is cancelled or its last holder lets go.
    pub fn connect(&self, principal: Principal, transport: &'static str) -> Result<Line> {
        let workspace = self.workspace(&principal)?;
        let root = &self.config.root;
        let quota = self
            .outputs
            .for_principal(&principal, self.pipeline.state().config.limits.output_file_bytes);
        let session =
            Session::new(principal.clone(), transport, workspace, root, self.shutdown.child());
        let session = Arc::new(session.with_quota(quota, root));
        Ok(Line { principal, session, transport, lasting: true })
    }

    fn workspace(&self, principal: &Principal) -> Result<Arc<Workspace>> {
        let opened = crate::config::workspace_for(&self.config, &principal.directory())?;
        let rights = crate::sandbox::profile::rights(&self.config, opened.path())?;
        let opened = opened.held_to(rights)?;
        let mut workspaces = lock(&self.workspaces);
        Ok(Arc::clone(
            workspaces.entry(opened.path().to_owned()).or_insert_with(|| Arc::new(opened)),
        ))
    }

    /// Ends the sessions whose handles nobody has used for long, and what goes on in them.
    pub fn sweep(&self) {
        // Somebody may still wait in one that looks idle, but no call lasts longer than its time.
        let longest =
            HANDLE_IDLE.saturating_add(self.pipeline.state().config.limits.timeout_ceiling);
        lock(&self.lasting).retain(|_, held| match held.used.elapsed() {
            idle if idle < HANDLE_IDLE => true,
            idle => idle < longest && Arc::strong_count(&held.session) > 1 || held.end(),
        });
    }

    /// The session a 2026-07-28 request belongs to: its handle's, or none that lasts.
    pub fn view_by_handle(&self, line: &Line, handle: Option<&str>) -> Result<View> {
        let Some(sealed) = handle else {
            return Ok(View { session: Arc::clone(&line.session), lasting: false });
        };
        let handle: Handle = self.handles.open(&handle_purpose(&line.principal), sealed).ok_or_else(|| {
            Error::invalid_arguments("this session handle is not one of ours")
                .reason("bad_session")
                .hint("Use the handle of a result's _meta exactly as it was given, or leave it out.")
        })?;
        self.sweep();
        let mut lasting = lock(&self.lasting);
        if let Some(held) = lasting.get_mut(&handle.id) {
            held.used = Instant::now();
            return Ok(View { session: Arc::clone(&held.session), lasting: true });
        }
        // Nobody can take the places of the others: a principal with too many loses the one it used least.
        let own = || lasting.iter().filter(|(_, held)| held.session.principal == line.principal);
        if own().count() >= HANDLES_PER_PRINCIPAL
            && let Some(oldest) = own().min_by_key(|(_, held)| held.used).map(|(id, _)| id.clone())
            && let Some(held) = lasting.remove(&oldest)
        {
            held.end();
        }
        let session = self.connect(line.principal.clone(), line.transport)?.session;
        lasting.insert(handle.id, Lasting { session: Arc::clone(&session), used: Instant::now() });
        Ok(View { session, lasting: true })
    }

    /// A new handle. Nothing is kept for it until it comes back.
    pub fn mint_handle(&self, principal: &Principal) -> Result<String> {
        self.handles.seal(&handle_purpose(principal), &Handle { id: short("h") })
    }

    pub fn running(&self, session: &str, request: &str, cancel: Cancel) -> Running<'_> {
        let key = (session.to_owned(), request.to_owned());
        lock(&self.running).insert(key.clone(), cancel);
        Running { server: self, key }
    }

    /// Cancels a call in flight; false when there is none.
    pub fn cancel(&self, session: &str, request: &str, cause: Cause) -> bool {
        let found = lock(&self.running).get(&(session.to_owned(), request.to_owned())).cloned();
        found.map(|cancel| cancel.cancel(cause)).is_some()
    }

    /// Stops every call, and the engines once the answers are out.
    pub async fn stop(&self, at_most: Duration) {
        let busy = !lock(&self.running).is_empty();
        self.shutdown.cancel(Cause::Shutdown);
        self.pipeline.idle(at_most).await;
        if busy {
            tokio::time::sleep(ANSWERING).await;
        }
        self.closed.cancel();
    }

    pub fn is_running(&self, session: &str, request: &str) -> bool {
        lock(&self.running).contains_key(&(session.to_owned(), request.to_owned()))
    }

    pub fn is_idle(&self, session: &str) -> bool {
        !lock(&self.running).keys().any(|(of, _)| of == session)
    }
}

fn handle_purpose(principal: &Principal) -> String {
    format!("session of {}", principal.name())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a call on the list of those that can be cancelled.
pub struct Running<'a> {
    server: &'a Server,
    key: (String, String),
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        lock(&self.server.running).remove(&self.key);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::config::scratch::Scratch;
    use crate::config::{Env, Flags, resolve};

    /// A server on a root of its own, without a transport.
    pub fn server(scratch: &Scratch) -> Arc<Server> {
        let flags = Flags {
            root: Some(scratch.dir("root")),
            workspace: Some(scratch.dir("workspace")),
            ..Flags::default()
        };
        Server::new(resolve(&flags, &Env::new([("HOME", scratch.dir("home"))], "/")).unwrap())
            .unwrap()
    }
}
