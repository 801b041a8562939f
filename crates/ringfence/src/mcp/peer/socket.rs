//! Lookup of the other end of a connection in the kernel's table of sockets.

use std::net::{IpAddr, SocketAddr};

/// Socket at the other end of a connection, if it is on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerSocket {
    pub uid: u32,
    /// Inode that `/proc/PID/fd` shows for it.
    pub inode: u64,
}

/// Finds the socket whose local end is `remote` and whose far end is `local`. A socket that its
/// process has closed has no owner any more: the table shows inode 0 and root, so it is ignored.
/// One that is only shut down for writing is found.
pub fn find_peer_socket(remote: SocketAddr, local: SocketAddr) -> Option<PeerSocket> {
    let (remote, local) = (canonical_address(remote), canonical_address(local));
    // An IPv4 connection may belong to an IPv6 socket, at either end; then it is listed with mapped
    // addresses.
    let mapped = match (remote.ip(), local.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mapped_address =
                |ip: std::net::Ipv4Addr, port| SocketAddr::new(ip.to_ipv6_mapped().into(), port);
            Some((mapped_address(from, remote.port()), mapped_address(to, local.port())))
        }
        _ => None,
    };
    let table_name = if remote.is_ipv6() { "tcp6" } else { "tcp" };
    let direct_match = find_in_table(table_name, remote, local);
    direct_match.or_else(|| mapped.and_then(|(remote, local)| find_in_table("tcp6", remote, local)))
}

fn canonical_address(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn find_in_table(table: &str, from: SocketAddr, to: SocketAddr) -> Option<PeerSocket> {
    let (from, to) = (hex_address(from), hex_address(to));
    let table = std::fs::read_to_string(format!("/proc/self/net/{table}")).ok()?;
    table.lines().skip(1).find_map(|row| {
        let mut columns = row.split_ascii_whitespace().skip(1);
        if columns.next() != Some(&from) || columns.next() != Some(&to) {
            return None;
        }
        // The state, the queues, the timer and the retransmits come before the user, and the
        // timeout before the inode.
        let uid = columns.nth(4)?.parse().ok()?;
        let inode = columns.nth(1)?.parse().ok().filter(|inode| *inode != 0)?;
        Some(PeerSocket { uid, inode })
    })
}

/// Formats an address like the table: each 32-bit group in the machine's byte order, the port in
/// hex.
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
    use std::net::{Shutdown, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_owner_of_a_connection_is_found_until_it_is_closed() {
        for (bind, connect) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("[::1]:0", "::1"),
            ("[::]:0", "127.0.0.1"),
            ("[::]:0", "::ffff:127.0.0.1"),
        ] {
            let Ok(listener) = TcpListener::bind(bind) else { continue };
            let target: IpAddr = connect.parse().unwrap();
            let client =
                TcpStream::connect((target, listener.local_addr().unwrap().port())).unwrap();
            let (server, remote) = listener.accept().unwrap();
            let local = server.local_addr().unwrap();
            let owner = find_peer_socket(remote, local).map(|socket| socket.uid);
            assert_eq!(owner, Some(rustix::process::geteuid().as_raw()), "{bind} {connect}");
            // One that has said all it has to say still waits for the answer.
            client.shutdown(Shutdown::Write).unwrap();
            assert!(find_peer_socket(remote, local).is_some(), "{bind} {connect}");
            drop(client);
            assert_eq!(find_peer_socket(remote, local), None, "{bind} {connect}");
        }
        let nobody = "127.0.0.1:1".parse().unwrap();
        assert_eq!(find_peer_socket(nobody, nobody), None);
    }
}
