//! The other end of a TCP connection. With auth off, "local" must mean the same user: on a shared machine
//! everyone can reach 127.0.0.1.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use tokio::net::TcpStream;

use crate::base::{Error, Result};

#[derive(Debug, Clone)]
pub struct Connection {
    remote: SocketAddr,
    local: Option<SocketAddr>,
    /// The user at the other end, once it was looked up.
    owner: Arc<OnceLock<Option<u32>>>,
}

impl Connection {
    pub fn of(stream: &TcpStream, remote: SocketAddr) -> Self {
        Connection { remote, local: stream.local_addr().ok(), owner: Arc::default() }
    }

    /// Root may do what it likes anyway; an owner we cannot find is not let in.
    pub fn require_same_user(&self) -> Result<()> {
        let ours = rustix::process::geteuid().as_raw();
        if !self.remote.ip().to_canonical().is_loopback() {
            return Ok(());
        }
        let look = || self.local.and_then(|local| owner_of(self.remote, local));
        if self.owner.get_or_init(look).is_some_and(|owner| owner == ours || owner == 0) {
            return Ok(());
        }
        Err(Error::permission_denied("other_user", "this connection belongs to another user of this machine")
            .hint("Turn on auth (MCP_AUTH_ENABLED) to serve more than one user."))
    }
}

/// The uid of the socket whose local end is `remote`, from the kernel's table. Of a connection that is being closed
/// the table no longer knows the owner and says root, so only one that stands counts.
fn owner_of(remote: SocketAddr, local: SocketAddr) -> Option<u32> {
    const ESTABLISHED: &str = "01";
    let table = if remote.is_ipv6() { "/proc/self/net/tcp6" } else { "/proc/self/net/tcp" };
    let wanted = (hex_address(remote), hex_address(local));
    let table = std::fs::read_to_string(table).ok()?;
    table.lines().skip(1).find_map(|row| {
        let columns: Vec<&str> = row.split_ascii_whitespace().collect();
        let [_, from, to, state, _, _, _, uid, _, inode, ..] = columns[..] else { return None };
        let ours = from == wanted.0 && to == wanted.1 && state == ESTABLISHED && inode != "0";
        ours.then(|| uid.parse().ok()).flatten()
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
            // Of a connection that its client has closed nobody knows the owner any more.
            drop(client);
            assert_eq!(owner_of(remote, server.local_addr().unwrap()), None, "{bind}");
        }
        let nobody = "127.0.0.1:1".parse().unwrap();
        assert_eq!(owner_of(nobody, nobody), None);
        let connection = |remote: &str, owner| Connection {
            remote: remote.parse().unwrap(),
            local: None,
            owner: Arc::new(OnceLock::from(owner)),
        };
        let ours = rustix::process::geteuid().as_raw();
        assert!(connection("127.0.0.1:1", None).require_same_user().is_err());
        assert!(connection("127.0.0.1:1", Some(ours + 1)).require_same_user().is_err());
        assert!(connection("[::ffff:127.0.0.1]:1", Some(ours + 1)).require_same_user().is_err());
        assert!(connection("127.0.0.1:1", Some(ours)).require_same_user().is_ok());
        assert!(connection("192.0.2.1:1", None).require_same_user().is_ok());
    }
}
