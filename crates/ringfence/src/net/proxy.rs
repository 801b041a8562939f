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
    /// Starts serving. `decided` is called for each request, in the order of the decisions, and
    /// must not block. A run can cause any number of decisions, so a callback that stores them must
    /// bound them.
    pub fn start(
        listener: std::net::TcpListener,
        allow: Arc<AllowList>,
        resolver: Arc<dyn Resolver>,
        decided: Arc<dyn Fn(&ProxyDecision) + Send + Sync>,
    ) -> io::Result<Proxy> {
        let reach = Connector {
            allow_list: allow,
            resolver,
            dial: direct_dialer(),
            dial_inside: None,
            on_decision: decided,
            limits: ProxyLimits::default(),
        };
        Proxy::start_with(listener, reach)
    }

    /// Starts serving several sessions that share a listener.
    pub fn start_shared(
        listener: std::net::TcpListener,
        switch: Arc<SessionRouter>,
    ) -> io::Result<Proxy> {
        Proxy::spawn_accept(listener, ProxyRoutes::Many(switch))
    }

    pub(super) fn start_with(
        listener: std::net::TcpListener,
        reach: Connector,
    ) -> io::Result<Proxy> {
        Proxy::spawn_accept(listener, ProxyRoutes::One(Arc::new(reach)))
    }

    fn spawn_accept(listener: std::net::TcpListener, roads: ProxyRoutes) -> io::Result<Proxy> {
        let runtime = tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        Ok(Proxy { task: runtime.spawn(accept_connections(listener, roads)) })
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
            ProxyRoutes::One(reach) => Some(Arc::clone(reach)),
            ProxyRoutes::Many(switch) => switch.connector_for(stream.local_addr().ok()?.ip()),
        }
    }

    fn max_connections(&self) -> usize {
        match self {
            ProxyRoutes::One(reach) => reach.limits.max_connections,
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

async fn accept_connections(listener: TcpListener, roads: ProxyRoutes) {
    let places = Arc::new(Semaphore::new(roads.max_connections()));
    let mut running = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            Some(_) = running.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // Most likely we are out of file descriptors; wait for connections to close.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let place = Arc::clone(&places).try_acquire_owned().ok();
        let Some(reach) = roads.connector_for(&stream) else { continue };
        if place.is_some() || running.len() < roads.max_connections() + MAX_OVER_LIMIT {
            running.spawn(async move {
                // Errors have already been reported to the client, or the client is gone.
                let _ = serve_connection(stream, &reach, place.is_none()).await;
                drop(place);
            });
        }
    }
}

async fn serve_connection(stream: TcpStream, reach: &Connector, surplus: bool) -> io::Result<()> {
    let deadline = Instant::now() + reach.limits.head_timeout;
    stream.set_nodelay(true)?;
    let mut client = ProxyClient::new(stream, surplus);
    let Ok(first) = timeout_at(deadline, client.read.fill_buf()).await else {
        // The client never sent anything, so there is nothing to answer.
        return Ok(());
    };
    match first?.first() {
        Some(5) => socks::serve_socks(&mut client, reach, deadline).await,
        Some(_) => http::serve_http(&mut client, reach, deadline).await,
        None => Ok(()),
    }
}
