//! The other end of a TCP connection. With auth off, "local" must mean the same user: on a shared machine
//! everyone can reach 127.0.0.1.

use std::net::{IpAddr, SocketAddr};

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use tokio::net::TcpListener;

use crate::base::{Error, Result};

#[derive(Debug, Clone, Copy)]
pub struct Connection {
    loopback: bool,
    /// The user at the other end of a loopback connection, where the system says.
    owner: Option<u32>,
}

impl Connected<IncomingStream<'_, TcpListener>> for Connection {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        let remote = *stream.remote_addr();
        let loopback = remote.ip().to_canonical().is_loopback();
        // Looked up once, while the connection stands.
        let owner = loopback.then(|| stream.io().local_addr().ok().and_then(|local| owner_of(remote, local))).flatten();
        Connection { loopback, owner }
    }
}

impl Connection {
    /// Root may do what it likes anyway; an owner we cannot find is not let in.
    pub fn require_same_user(&self) -> Result<()> {
        let ours = rustix::process::geteuid().as_raw();
        if !self.loopback || self.owner.is_some_and(|owner| owner == ours || owner == 0) {
            return Ok(());
        }
        Err(Error::permission_denied("other_user", "this connection belongs to another user of this machine")
            .hint("Turn on auth (MCP_AUTH_ENABLED) to serve more than one user."))
    }
}

/// The uid of the socket whose local end is `remote`, from the kernel's table.
fn owner_of(remote: SocketAddr, local: SocketAddr) -> Option<u32> {
    let table = if remote.is_ipv6() { "/proc/self/net/tcp6" } else { "/proc/self/net/tcp" };
    let wanted = (hex_address(remote), hex_address(local));
    let table = std::fs::read_to_string(table).ok()?;
    table.lines().skip(1).find_map(|row| {
        let mut columns = row.split_ascii_whitespace();
        let ends = (columns.nth(1)?, columns.next()?);
        (ends == (wanted.0.as_str(), wanted.1.as_str())).then(|| columns.nth(4)?.parse().ok()).flatten()
    })
}

/// As the table has it: each 32-bit group in the machine's byte order, the port in hex.
fn hex_address(address: SocketAddr) -> String {
    let octets: Vec<u8> = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut text = String::new();
    for group in octets.chunks(4) {
        let mut bytes = [0u8; 4];
        bytes.copy_from_slice(group);
        text.push_str(&format!("{:08X}", u32::from_ne_bytes(bytes)));
    }
    format!("{text}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_loopback_connection_is_found() {
        for bind in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(bind) else { continue };
            let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, remote) = listener.accept().unwrap();
            let owner = owner_of(remote, server.local_addr().unwrap());
            assert_eq!(owner, Some(rustix::process::geteuid().as_raw()), "{bind}");
            drop(client);
        }
        let nobody = "127.0.0.1:1".parse().unwrap();
        assert_eq!(owner_of(nobody, nobody), None);
        assert!(Connection { loopback: true, owner: None }.require_same_user().is_err());
        assert!(
            Connection { loopback: true, owner: Some(rustix::process::geteuid().as_raw() + 1) }
                .require_same_user()
                .is_err()
        );
        assert!(Connection { loopback: false, owner: None }.require_same_user().is_ok());
    }
}
