//! Addresses that OAuth requests may go to.
//!
//! A server names the hosts that its clients must talk to for a token. A hostile one would name a
//! service in the private network of its victim, or the metadata service of its cloud. Requests
//! therefore go to public addresses only, unless the server itself is on loopback or in a private
//! network, or the operator allows it. The host of the server is always allowed: requests to it are
//! made anyway.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::Name;
use url::{Host, Url};

use crate::error::{ClientError, ErrorKind, Result};

/// Who can be behind an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AddressClass {
    Public,
    /// This machine.
    Loopback,
    /// A network that is not reachable from outside.
    Private,
    /// Link-local (cloud metadata among others), multicast, reserved.
    Reserved,
}

/// Decides which addresses may be connected to on behalf of one server.
#[derive(Debug, Clone)]
pub(super) struct AddressPolicy {
    server_host: String,
    allows_loopback: bool,
    allows_private: bool,
}

impl AddressPolicy {
    pub(super) fn new(server_url: &Url, allow_private: bool) -> AddressPolicy {
        let class = server_url.host().and_then(|host| classify_host(&host));
        AddressPolicy {
            server_host: server_url.host_str().unwrap_or_default().to_owned(),
            allows_loopback: class == Some(AddressClass::Loopback),
            allows_private: allow_private || class == Some(AddressClass::Private),
        }
    }

    /// Checks a URL before anything is sent to it, or before a browser opens it.
    pub(super) fn check_url(&self, url: &Url) -> Result<()> {
        let refuse = |reason: &str| {
            let message = format!("the address {} is refused: {reason}", show_url(url));
            Err(ClientError::new(ErrorKind::BadResponse, message))
        };
        let Some(host) = url.host() else { return refuse("it names no host") };
        if !url.username().is_empty() || url.password().is_some() {
            return refuse("it contains credentials");
        }
        let class = classify_host(&host);
        match url.scheme() {
            "https" => {}
            // Without encryption only where no one else listens, or where the operator put it.
            "http" if matches!(class, Some(AddressClass::Loopback | AddressClass::Private)) => {}
            _ => return refuse("OAuth needs https"),
        }
        match class {
            Some(class) if !self.allows(url.host_str().unwrap_or_default(), class) => refuse(
                "it is in a network that only this machine reaches, and the server is not in it",
            ),
            _ => Ok(()),
        }
    }

    fn allows(&self, host: &str, class: AddressClass) -> bool {
        match class {
            _ if host == self.server_host => true,
            AddressClass::Public => true,
            AddressClass::Loopback => self.allows_loopback,
            AddressClass::Private => self.allows_private,
            AddressClass::Reserved => false,
        }
    }
}

/// Returns the class of a host whose name alone says it.
fn classify_host(host: &Host<&str>) -> Option<AddressClass> {
    match host {
        Host::Ipv4(address) => Some(classify_v4(*address)),
        Host::Ipv6(address) => Some(classify_v6(*address)),
        Host::Domain(domain) => {
            let domain = domain.trim_end_matches('.').to_ascii_lowercase();
            let is_local = domain == "localhost" || domain.ends_with(".localhost");
            is_local.then_some(AddressClass::Loopback)
        }
    }
}

fn classify_v4(address: Ipv4Addr) -> AddressClass {
    let [a, b, c, _] = address.octets();
    match address {
        _ if address.is_loopback() => AddressClass::Loopback,
        // The second range is that of carriers.
        _ if address.is_private() || a == 100 && (64..128).contains(&b) => AddressClass::Private,
        // 0.0.0.0 reaches this machine; 198.18/15 and 192.0.0/24 are for tests and protocols.
        _ if a == 0 || a >= 224 || address.is_link_local() || address.is_documentation() => {
            AddressClass::Reserved
        }
        _ if a == 198 && (b == 18 || b == 19) || [a, b, c] == [192, 0, 0] => AddressClass::Reserved,
        _ => AddressClass::Public,
    }
}

fn classify_v6(address: Ipv6Addr) -> AddressClass {
    if address.is_loopback() {
        return AddressClass::Loopback;
    }
    let segments = address.segments();
    let low = Ipv4Addr::from((u32::from(segments[6]) << 16) | u32::from(segments[7]));
    match segments {
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => classify_v4(low),
        // 6to4 has the IPv4 address in front.
        [0x2002, high, low, ..] => {
            classify_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
        }
        // Teredo, and addresses for documentation.
        [0x2001, 0 | 0xdb8, ..] => AddressClass::Reserved,
        [first, ..] if first & 0xfe00 == 0xfc00 => AddressClass::Private,
        // Of the rest, only global unicast is in use.
        [first, ..] if first & 0xe000 == 0x2000 => AddressClass::Public,
        _ => AddressClass::Reserved,
    }
}

/// Resolves names, and leaves out addresses that are not allowed. This is the check that matters:
/// the address that was checked is the one that is connected to.
#[derive(Debug, Clone)]
pub(super) struct CheckedResolver(pub(super) AddressPolicy);

impl tower_service::Service<Name> for CheckedResolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let policy = self.0.clone();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed: Vec<SocketAddr> = found
                .filter(|address| {
                    let class = match address.ip() {
                        IpAddr::V4(address) => classify_v4(address),
                        IpAddr::V6(address) => classify_v6(address),
                    };
                    policy.allows(name.as_str(), class)
                })
                .collect();
            if allowed.is_empty() {
                return Err(io::Error::other(format!(
                    "`{}` is in a network that only this machine reaches, and the server is not in it",
                    name.as_str()
                )));
            }
            Ok(allowed.into_iter())
        })
    }
}

/// Shows a URL in an error: without its query, which may contain secrets, and not at any length.
pub(super) fn show_url(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let text = format!("{}://{host}{port}{}", url.scheme(), url.path());
    text.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(server: &str, allow_private: bool, url: &str) -> bool {
        let policy = AddressPolicy::new(&server.parse().unwrap(), allow_private);
        policy.check_url(&url.parse().unwrap()).is_ok()
    }

    #[test]
    fn a_public_server_cannot_name_hosts_of_private_networks() {
        let server = "https://mcp.example.com/mcp";
        assert!(check(server, false, "https://auth.example.org/token"));
        for host in [
            "127.0.0.1",
            "localhost",
            "x.localhost.",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "169.254.169.254",
            "0.0.0.0",
            "224.0.0.1",
            "198.18.0.1",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "[64:ff9b::a00:1]",
            "[2002:a00:1::1]",
            "[fd00::1]",
            "[fe80::1]",
            "[2001:db8::1]",
            "2130706433",
            "0x7f.1",
        ] {
            assert!(!check(server, false, &format!("https://{host}/")), "{host}");
        }
    }

    #[test]
    fn hosts_of_the_same_network_are_allowed() {
        assert!(check("http://127.0.0.1:3000/mcp", false, "http://localhost:4000/"));
        assert!(check("http://10.0.0.5/mcp", false, "http://10.0.0.9/"));
        assert!(!check("http://10.0.0.5/mcp", false, "http://127.0.0.1/"));
        assert!(!check("http://127.0.0.1/mcp", false, "http://10.0.0.1/"));
        assert!(check("https://mcp.example.com/", true, "https://10.0.0.1/"));
        assert!(!check("https://mcp.example.com/", true, "https://127.0.0.1/"));
        for server in ["http://127.0.0.1/mcp", "http://10.0.0.5/mcp"] {
            assert!(!check(server, true, "http://169.254.169.254/latest"), "{server}");
        }
    }

    #[test]
    fn only_local_addresses_do_without_encryption() {
        assert!(!check("https://mcp.example.com/", false, "http://mcp.example.com/"));
        assert!(!check("http://127.0.0.1/", false, "http://auth.example.com/"));
        assert!(!check("http://127.0.0.1/", false, "file:///etc/passwd"));
        assert!(!check("https://mcp.example.com/", false, "https://a:b@auth.example.com/"));
    }

    #[tokio::test]
    async fn names_are_checked_by_their_addresses() {
        use tower_service::Service;
        let resolve = |server: &str| {
            let policy = AddressPolicy::new(&server.parse().unwrap(), false);
            CheckedResolver(policy).call("localhost".parse().unwrap())
        };
        assert!(resolve("https://mcp.example.com/").await.is_err());
        assert!(resolve("http://127.0.0.1/").await.unwrap().count() > 0);
        assert!(resolve("https://localhost/").await.unwrap().count() > 0);
    }
}
