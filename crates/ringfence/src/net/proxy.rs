//! Accepts connections on the listener of a run, and ends all of them when the run ends.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncBufReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout_at};

use super::allow::Allow;
use super::client::Client;
use super::decision::Decision;
use super::reach::{Limits, Reach, direct};
use super::resolve::Resolver;
use super::switch::Switch;
use super::{http, socks};

/// Connections over the limit that get an error response at the same time. Any more are closed
/// without one.
const SURPLUS: usize = 32;

/// Running proxy. Dropping it ends every connection.
pub struct Proxy {
    serving: JoinHandle<()>,
}

impl Proxy {
    /// Starts serving. `decided` is called for each request, in the order of the decisions, and
    /// must not block. A run can cause any number of decisions, so a callback that stores them must
    /// bound them.
    pub fn start(
        listener: std::net::TcpListener,
        allow: Arc<Allow>,
        resolver: Arc<dyn Resolver>,
        decided: Arc<dyn Fn(&Decision) + Send + Sync>,
    ) -> io::Result<Proxy> {
        let reach = Reach {
            allow,
            resolver,
            dial: direct(),
            inside: None,
            decided,
            limits: Limits::default(),
        };
        Proxy::serve(listener, reach)
    }

    /// Starts serving several sessions that share a listener.
    pub fn start_for_many(
        listener: std::net::TcpListener,
        switch: Arc<Switch>,
    ) -> io::Result<Proxy> {
        Proxy::begin(listener, Roads::Many(switch))
    }

    pub(super) fn serve(listener: std::net::TcpListener, reach: Reach) -> io::Result<Proxy> {
        Proxy::begin(listener, Roads::One(Arc::new(reach)))
    }

    fn begin(listener: std::net::TcpListener, roads: Roads) -> io::Result<Proxy> {
        let runtime = tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        Ok(Proxy { serving: runtime.spawn(accept(listener, roads)) })
    }
}

/// Mapping from connections to what each may reach.
enum Roads {
    One(Arc<Reach>),
    Many(Arc<Switch>),
}

impl Roads {
    fn of(&self, stream: &TcpStream) -> Option<Arc<Reach>> {
        match self {
            Roads::One(reach) => Some(Arc::clone(reach)),
            Roads::Many(switch) => switch.road(stream.local_addr().ok()?.ip()),
        }
    }

    fn connections(&self) -> usize {
        match self {
            Roads::One(reach) => reach.limits.connections,
            // Browsers open many connections at once.
            Roads::Many(_) => 4 * Limits::default().connections,
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The task owns the set of connections, so they end with it.
        self.serving.abort();
    }
}

async fn accept(listener: TcpListener, roads: Roads) {
    let places = Arc::new(Semaphore::new(roads.connections()));
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
        let Some(reach) = roads.of(&stream) else { continue };
        if place.is_some() || running.len() < roads.connections() + SURPLUS {
            running.spawn(async move {
                // Errors have already been reported to the client, or the client is gone.
                let _ = serve(stream, &reach, place.is_none()).await;
                drop(place);
            });
        }
    }
}

async fn serve(stream: TcpStream, reach: &Reach, surplus: bool) -> io::Result<()> {
    let deadline = Instant::now() + reach.limits.head;
    stream.set_nodelay(true)?;
    let mut client = Client::new(stream, surplus);
    let Ok(first) = timeout_at(deadline, client.read.fill_buf()).await else {
        // The client never sent anything, so there is nothing to answer.
        return Ok(());
    };
    match first?.first() {
        Some(5) => socks::serve(&mut client, reach, deadline).await,
        Some(_) => http::serve(&mut client, reach, deadline).await,
        None => Ok(()),
    }
}
