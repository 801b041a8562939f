//! Accepts connections on the listener of a run, and ends all of them when the run ends.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncBufReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout_at};

use super::allow_list::AllowList;
use super::client::ProxyClient;
use super::connector::{Connector, ProxyLimits, direct_dialer};
use super::decision::ProxyDecision;
use super::resolve::Resolver;
use super::session_router::SessionRouter;
use super::{http, socks};

/// Connections over the limit that get an error response at the same time. Any more are closed
/// without one.
const MAX_OVER_LIMIT: usize = 32;

/// Running proxy. Dropping it ends every connection.
pub struct Proxy {
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts serving. `on_decision` is called for each request, in the order of the decisions, and
    /// must not block. A run can cause any number of decisions, so a callback that stores them must
    /// bound them.
    pub fn start(
        listener: std::net::TcpListener,
        allow_list: Arc<AllowList>,
        resolver: Arc<dyn Resolver>,
        on_decision: Arc<dyn Fn(&ProxyDecision) + Send + Sync>,
    ) -> io::Result<Proxy> {
        let connector = Connector {
            allow_list,
            resolver,
            dial: direct_dialer(),
            dial_inside: None,
            on_decision,
            limits: ProxyLimits::default(),
        };
        Proxy::start_with(listener, connector)
    }

    /// Starts serving several sessions that share a listener.
    pub fn start_shared(
        listener: std::net::TcpListener,
        router: Arc<SessionRouter>,
    ) -> io::Result<Proxy> {
        Proxy::spawn_accept(listener, ProxyRoutes::Many(router))
    }

    pub(super) fn start_with(
        listener: std::net::TcpListener,
        connector: Connector,
    ) -> io::Result<Proxy> {
        Proxy::spawn_accept(listener, ProxyRoutes::One(Arc::new(connector)))
    }

    fn spawn_accept(listener: std::net::TcpListener, routes: ProxyRoutes) -> io::Result<Proxy> {
        let runtime = tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        Ok(Proxy { task: runtime.spawn(accept_connections(listener, routes)) })
    }
}

/// Mapping from connections to what each may reach.
enum ProxyRoutes {
    One(Arc<Connector>),
    Many(Arc<SessionRouter>),
}

impl ProxyRoutes {
    fn connector_for(&self, stream: &TcpStream) -> Option<Arc<Connector>> {
        match self {
            ProxyRoutes::One(connector) => Some(Arc::clone(connector)),
            ProxyRoutes::Many(router) => router.connector_for(stream.local_addr().ok()?.ip()),
        }
    }

    fn max_connections(&self) -> usize {
        match self {
            ProxyRoutes::One(connector) => connector.limits.max_connections,
            // Browsers open many connections at once.
            ProxyRoutes::Many(_) => 4 * ProxyLimits::default().max_connections,
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The task owns the set of connections, so they end with it.
        self.task.abort();
    }
}

async fn accept_connections(listener: TcpListener, routes: ProxyRoutes) {
    let permits = Arc::new(Semaphore::new(routes.max_connections()));
    let mut tasks = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            Some(_) = tasks.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // Most likely we are out of file descriptors; wait for connections to close.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let permit = Arc::clone(&permits).try_acquire_owned().ok();
        let Some(connector) = routes.connector_for(&stream) else { continue };
        if permit.is_some() || tasks.len() < routes.max_connections() + MAX_OVER_LIMIT {
            tasks.spawn(async move {
                // Errors have already been reported to the client, or the client is gone.
                let _ = serve_connection(stream, &connector, permit.is_none()).await;
                drop(permit);
            });
        }
    }
}

async fn serve_connection(
    stream: TcpStream,
    connector: &Connector,
    is_over_limit: bool,
) -> io::Result<()> {
    let deadline = Instant::now() + connector.limits.head_timeout;
    stream.set_nodelay(true)?;
    let mut client = ProxyClient::new(stream, is_over_limit);
    let Ok(first_bytes) = timeout_at(deadline, client.read.fill_buf()).await else {
        // The client never sent anything, so there is nothing to answer.
        return Ok(());
    };
    match first_bytes?.first() {
        Some(5) => socks::serve_socks(&mut client, connector, deadline).await,
        Some(_) => http::serve_http(&mut client, connector, deadline).await,
        None => Ok(()),
    }
}
