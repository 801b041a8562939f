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

use super::allow_list::AllowList;
use super::decision::{ProxyDecision, ProxyRefusal, RefusalReason};
use super::host::{ConnectTarget, Host};
use super::resolve::Resolver;

/// Opens a connection to an address that was checked. Tests connect to their own server instead.
pub type DialFn =
    Arc<dyn Fn(SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> + Send + Sync>;

/// Limits of a proxy.
#[derive(Debug, Clone)]
pub struct ProxyLimits {
    pub max_connections: usize,
    pub head_timeout: Duration,
    pub lookup_timeout: Duration,
    pub dial_timeout: Duration,
}

impl Default for ProxyLimits {
    fn default() -> Self {
        ProxyLimits {
            max_connections: 256,
            head_timeout: Duration::from_secs(10),
            lookup_timeout: Duration::from_secs(10),
            dial_timeout: Duration::from_secs(15),
        }
    }
}

/// Time to wait for one address before the next one is tried in parallel.
const STAGGER: Duration = Duration::from_millis(300);

/// State shared by all connections of a run.
pub struct Connector {
    pub allow_list: Arc<AllowList>,
    pub resolver: Arc<dyn Resolver>,
    pub dial: DialFn,
    /// Dials the loopback of the run itself, if the proxy may; it is then the only way to reach it.
    pub dial_inside: Option<DialFn>,
    pub on_decision: Arc<dyn Fn(&ProxyDecision) + Send + Sync>,
    pub limits: ProxyLimits,
}

impl Connector {
    /// Connects to the target if it may be reached. Reports the decision only on success; a refusal
    /// is reported by the code that answers the client.
    pub async fn connect(
        &self,
        target: &ConnectTarget,
        via: &'static str,
    ) -> Result<TcpStream, ProxyRefusal> {
        let loopback = self.dial_inside.as_ref().zip(loopback_addresses(&target.host));
        let (addresses, dial) = match loopback {
            Some((inside_dialer, addresses)) => (addresses, inside_dialer),
            None => (self.check_target(target).await?, &self.dial),
        };
        let host = target.host.display_text();
        match timeout(
            self.limits.dial_timeout,
            self.dial_first_answering(dial, &addresses, target.port),
        )
        .await
        {
            Ok(Ok((stream, address))) => {
                let (address, port) = (Some(address), target.port);
                (self.on_decision)(&ProxyDecision {
                    allowed: true,
                    host,
                    port,
                    via,
                    reason: None,
                    address,
                });
                Ok(stream)
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Err(unreachable_refusal(RefusalReason::ConnectionRefused, target, &addresses))
            }
            Ok(Err(_)) | Err(_) => {
                Err(unreachable_refusal(RefusalReason::Unreachable, target, &addresses))
            }
        }
    }

    /// Returns the addresses that may be dialled for the target; never an empty list.
    async fn check_target(&self, target: &ConnectTarget) -> Result<Vec<IpAddr>, ProxyRefusal> {
        let refuse = |reason| ProxyRefusal::new(reason, &target.host.display_text(), target.port);
        let name = match &target.host {
            Host::Address(address) => {
                return self
                    .allow_list
                    .check_address(*address, target.port)
                    .map(|()| vec![*address])
                    .map_err(refuse);
            }
            Host::Name(name) => name,
        };
        // Check before the lookup, because the lookup itself already sends the name to others.
        self.allow_list.check_name(name, target.port).map_err(refuse)?;
        let resolved = match timeout(self.limits.lookup_timeout, self.resolver.resolve(name)).await
        {
            Ok(Ok(resolved)) if !resolved.is_empty() => resolved,
            _ => return Err(refuse(RefusalReason::ResolveFailed)),
        };
        let usable = self.allow_list.filter_addresses(resolved, target.port);
        if usable.is_empty() { Err(refuse(RefusalReason::PrivateAddress)) } else { Ok(usable) }
    }

    /// Dials the addresses and returns the first one that answers. The next one is started when the
    /// previous ones have failed or are taking too long.
    async fn dial_first_answering(
        &self,
        dial: &DialFn,
        addresses: &[IpAddr],
        port: u16,
    ) -> io::Result<(TcpStream, IpAddr)> {
        let mut remaining = addresses.iter();
        let mut attempts = FuturesUnordered::new();
        let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
        loop {
            let next_attempt = remaining.next().map(|address| {
                let dial = dial(SocketAddr::new(*address, port));
                attempts.push(async move { dial.await.map(|stream| (stream, *address)) });
            });
            let attempt_timeout =
                if next_attempt.is_some() { STAGGER } else { self.limits.dial_timeout };
            match timeout(attempt_timeout, attempts.next()).await {
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
fn loopback_addresses(host: &Host) -> Option<Vec<IpAddr>> {
    match host {
        Host::Address(address) => address.is_loopback().then(|| vec![*address]),
        Host::Name(name) => (name == "localhost" || name.ends_with(".localhost"))
            .then(|| vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]),
    }
}

fn unreachable_refusal(
    reason: RefusalReason,
    target: &ConnectTarget,
    addresses: &[IpAddr],
) -> ProxyRefusal {
    ProxyRefusal {
        address: addresses.first().copied(),
        ..ProxyRefusal::new(reason, &target.host.display_text(), target.port)
    }
}

/// Returns the production dialer, which connects directly to the address.
pub fn direct_dialer() -> DialFn {
    Arc::new(|address| {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            // A tunnel may stay silent as long as the run lives; only a dead peer should end it.
            rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
            Ok(stream)
        })
    })
}
