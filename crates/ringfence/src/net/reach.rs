//! Opens connections, the only way out of a run: checks the name against the list, resolves it
//! once, checks the addresses and dials one. The address that was checked is the one that is
//! dialled.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::allow::Allow;
use super::decision::{Decision, Reason, Refusal};
use super::host::{Host, Target};
use super::resolve::Resolver;

/// Opens a connection to an address that was checked. Tests connect to their own server instead.
pub type Dial = Arc<dyn Fn(SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> + Send + Sync>;

/// Limits of a proxy.
#[derive(Debug, Clone)]
pub struct Limits {
    pub connections: usize,
    pub head: Duration,
    pub lookup: Duration,
    pub dial: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 256,
            head: Duration::from_secs(10),
            lookup: Duration::from_secs(10),
            dial: Duration::from_secs(15),
        }
    }
}

/// Time to wait for one address before the next one is tried in parallel.
const STAGGER: Duration = Duration::from_millis(300);

/// State shared by all connections of a run.
pub struct Reach {
    pub allow: Arc<Allow>,
    pub resolver: Arc<dyn Resolver>,
    pub dial: Dial,
    /// Dials the loopback of the run itself, if the proxy may; it is then the only way to reach it.
    pub inside: Option<Dial>,
    pub decided: Arc<dyn Fn(&Decision) + Send + Sync>,
    pub limits: Limits,
}

impl Reach {
    /// Connects to the target if it may be reached. Reports the decision only on success; a refusal
    /// is reported by the code that answers the client.
    pub async fn connect(&self, target: &Target, via: &'static str) -> Result<TcpStream, Refusal> {
        let own = self.inside.as_ref().zip(own_loopback(&target.host));
        let (addresses, dial) = match own {
            Some((inside, addresses)) => (addresses, inside),
            None => (self.check(target).await?, &self.dial),
        };
        let host = target.host.shown();
        match timeout(self.limits.dial, self.dial_first(dial, &addresses, target.port)).await {
            Ok(Ok((stream, address))) => {
                let (address, port) = (Some(address), target.port);
                (self.decided)(&Decision { allowed: true, host, port, via, reason: None, address });
                Ok(stream)
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Err(unreachable(Reason::ConnectionRefused, target, &addresses))
            }
            Ok(Err(_)) | Err(_) => Err(unreachable(Reason::Unreachable, target, &addresses)),
        }
    }

    /// Returns the addresses that may be dialled for the target; never an empty list.
    async fn check(&self, target: &Target) -> Result<Vec<IpAddr>, Refusal> {
        let refuse = |reason| Refusal::new(reason, &target.host.shown(), target.port);
        let name = match &target.host {
            Host::Address(address) => {
                return self
                    .allow
                    .check_literal(*address, target.port)
                    .map(|()| vec![*address])
                    .map_err(refuse);
            }
            Host::Name(name) => name,
        };
        // Check before the lookup, because the lookup itself already sends the name to others.
        self.allow.check_name(name, target.port).map_err(refuse)?;
        let found = match timeout(self.limits.lookup, self.resolver.resolve(name)).await {
            Ok(Ok(found)) if !found.is_empty() => found,
            _ => return Err(refuse(Reason::ResolveFailed)),
        };
        let kept = self.allow.keep(found, target.port);
        if kept.is_empty() { Err(refuse(Reason::PrivateAddress)) } else { Ok(kept) }
    }

    /// Dials the addresses and returns the first one that answers. The next one is started when the
    /// previous ones have failed or are taking too long.
    async fn dial_first(
        &self,
        dial: &Dial,
        addresses: &[IpAddr],
        port: u16,
    ) -> io::Result<(TcpStream, IpAddr)> {
        let mut waiting = addresses.iter();
        let mut tries = FuturesUnordered::new();
        let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
        loop {
            let more = waiting.next().map(|address| {
                let dial = dial(SocketAddr::new(*address, port));
                tries.push(async move { dial.await.map(|stream| (stream, *address)) });
            });
            let patience = if more.is_some() { STAGGER } else { self.limits.dial };
            match timeout(patience, tries.next()).await {
                Ok(Some(Ok(connected))) => return Ok(connected),
                Ok(Some(Err(error))) => failure = error,
                Ok(None) => return Err(failure),
                Err(_) => {}
            }
        }
    }
}

/// Returns the loopback addresses that a host refers to, if it is local. No name server is
/// involved.
fn own_loopback(host: &Host) -> Option<Vec<IpAddr>> {
    match host {
        Host::Address(address) => address.is_loopback().then(|| vec![*address]),
        Host::Name(name) => (name == "localhost" || name.ends_with(".localhost"))
            .then(|| vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]),
    }
}

fn unreachable(reason: Reason, target: &Target, addresses: &[IpAddr]) -> Refusal {
    Refusal {
        address: addresses.first().copied(),
        ..Refusal::new(reason, &target.host.shown(), target.port)
    }
}

/// Returns the production dialer, which connects directly to the address.
pub fn direct() -> Dial {
    Arc::new(|address| {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            // A tunnel may stay silent as long as the run lives; only a dead peer should end it.
            rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
            Ok(stream)
        })
    })
}
