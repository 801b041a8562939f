//! DNS resolver in the run's own network that refuses every name and records which names were
//! requested.
//!
//! Without it, a lookup in a run fails at a name server that the run cannot reach, and we never
//! learn which host it wanted. Each run has its own socket at its own address, so a name is
//! recorded for the run that asked, unless another run of the session queries that address on
//! purpose. The resolver never forwards anything: everything that a run may reach, it reaches
//! through the proxy.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::thread;

use crate::intercept::DenialLog;

/// Part of the loopback network for resolvers. All of 127.0.0.0/8 is the run's own loopback;
/// programs use other parts of it, so the resolvers of a session's runs stay within this one.
const RESOLVER_NETWORK: [u8; 2] = [127, 53];
const DNS_PORT: u16 = 53;
/// More addresses than a session can have runs at once.
const MAX_ADDRESSES: u16 = 4096;

const HEADER_BYTES: usize = 12;
/// Largest query over UDP that resolvers send.
const MAX_QUERY_BYTES: usize = 4096;
const MAX_LABEL_BYTES: usize = 63;
const MAX_NAME_BYTES: usize = 253;
/// Bits in the third and fourth byte of a header: response; recursion available; query refused.
const RESPONSE_BIT: u8 = 0x80;
const RECURSION_BIT: u8 = 0x80;
const REFUSED_CODE: u8 = 5;
/// Bits of the third byte that a response repeats: the kind of query, and whether recursion is
/// desired.
const REPEATED_BITS: u8 = 0x79;

/// Opens the resolver's port. This process is in the run's network and may still bind low ports. No
/// program of a run can, so none can take the resolver's place.
pub fn bind_socket() -> io::Result<(UdpSocket, Ipv4Addr)> {
    let mut last_error = io::Error::from(io::ErrorKind::AddrInUse);
    for number in 1..MAX_ADDRESSES {
        let [high, low] = number.to_be_bytes();
        let address = Ipv4Addr::new(RESOLVER_NETWORK[0], RESOLVER_NETWORK[1], high, low);
        match UdpSocket::bind((address, DNS_PORT)) {
            Ok(socket) => return Ok((socket, address)),
            // Another run of the session uses it.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last_error = error,
            Err(error) => return Err(error),
        }
    }
    Err(last_error)
}

/// Returns the text of an `/etc/resolv.conf` that leads to this resolver. One attempt is enough,
/// since it always answers.
pub fn format_resolv_conf(address: Ipv4Addr) -> String {
    format!(
        "# The sandbox has no name server. This one only records which names are requested.\nnameserver {address}\noptions attempts:1\n"
    )
}

/// Answers queries on a separate thread for as long as the supervisor lives.
pub fn serve_queries(socket: UdpSocket, denials: DenialLog) -> io::Result<()> {
    let own_name = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    thread::Builder::new().name("resolver".to_owned()).spawn(move || {
        let mut buffer = [0; MAX_QUERY_BYTES];
        // An error concerns one client, which is already gone; the next query may be another's.
        loop {
            let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
            let Some((name, response)) = refuse_query(&buffer[..length]) else { continue };
            if is_wanted_outside(&name, &own_name) {
                denials.add("network", &name);
            }
            let _ = socket.send_to(&response, from);
        }
    })?;
    Ok(())
}

/// Returns whether a lookup of this name means to reach another host. Programs also look up their
/// own machine and the names of loopback addresses.
fn is_wanted_outside(name: &str, own_name: &str) -> bool {
    let is_own = name == own_name || name == "localhost" || name.ends_with(".localhost");
    !(name.is_empty() || is_own || name.ends_with(".arpa"))
}

/// Returns the name in a query and the response that refuses it; `None` if this is not a query.
fn refuse_query(query: &[u8]) -> Option<(String, Vec<u8>)> {
    let is_query = query.get(2)? & RESPONSE_BIT == 0;
    let questions = u16::from_be_bytes([*query.get(4)?, *query.get(5)?]);
    if !is_query || questions != 1 {
        return None;
    }
    let (name, end) = read_name(query)?;
    // The type and class follow the name.
    let question = query.get(HEADER_BYTES..end + 4)?;
    let mut response = query[..2].to_vec();
    response.extend([RESPONSE_BIT | query[2] & REPEATED_BITS, RECURSION_BIT | REFUSED_CODE]);
    response.extend([0, 1, 0, 0, 0, 0, 0, 0]);
    response.extend(question);
    Some((name, response))
}

/// Returns the name of the first question and the offset where it ends. A query has no compressed
/// names.
fn read_name(query: &[u8]) -> Option<(String, usize)> {
    let (mut name, mut offset) = (String::new(), HEADER_BYTES);
    loop {
        let length = usize::from(*query.get(offset)?);
        offset += 1;
        if length == 0 {
            return Some((name, offset));
        }
        let label = query.get(offset..offset + length).filter(|_| length <= MAX_LABEL_BYTES)?;
        offset += length;
        if !name.is_empty() {
            name.push('.');
        }
        // The name is shown to people and models, also in hints, so it must not contain anything
        // that no host name contains.
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let sanitize =
            |byte: &u8| if is_plain(byte) { byte.to_ascii_lowercase() as char } else { '?' };
        name.extend(label.iter().map(sanitize));
        if name.len() > MAX_NAME_BYTES {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(name: &str) -> Vec<u8> {
        let mut bytes = vec![0xab, 0xcd, 0x01, 0x20, 0, 1, 0, 0, 0, 0, 0, 1];
        for label in name.split('.').filter(|label| !label.is_empty()) {
            bytes.push(label.len() as u8);
            bytes.extend(label.bytes());
        }
        bytes.extend([0, 0, 1, 0, 1]);
        // An additional record, as most resolvers send one.
        bytes.extend([0, 0, 41, 0x10, 0, 0, 0, 0, 0, 0, 0]);
        bytes
    }

    #[test]
    fn a_query_is_refused_and_its_name_read() {
        let (name, response) = refuse_query(&query("Registry.Example.COM")).unwrap();
        assert_eq!(name, "registry.example.com");
        assert_eq!(response[..12], [0xab, 0xcd, 0x81, 0x85, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(response.len(), HEADER_BYTES + "Registry.Example.COM".len() + 2 + 4);
    }

    #[test]
    fn what_is_not_a_query_is_not_answered() {
        let whole = query("example.com");
        for length in 0..whole.len() - 11 {
            assert!(refuse_query(&whole[..length]).is_none(), "{length}");
        }
        let mut response = whole.clone();
        response[2] |= RESPONSE_BIT;
        assert!(refuse_query(&response).is_none());
        let mut compressed = whole.clone();
        compressed[HEADER_BYTES] = 0xc0;
        assert!(refuse_query(&compressed).is_none());
        assert!(refuse_query(&query(&"long.".repeat(60))).is_none());
        let mut two = whole;
        two[5] = 2;
        assert!(refuse_query(&two).is_none());
    }

    #[test]
    fn unprintable_names_are_shown_without_their_bytes() {
        let mut odd = query("a.b");
        odd[HEADER_BYTES + 1] = b'\n';
        assert_eq!(refuse_query(&odd).unwrap().0, "?.b");
    }

    #[test]
    fn a_machine_that_looks_itself_up_wants_nothing_outside() {
        for name in ["", "localhost", "dev.localhost", "box", "1.0.0.127.in-addr.arpa"] {
            assert!(!is_wanted_outside(name, "box"), "{name}");
        }
        assert!(is_wanted_outside("db", "box") && is_wanted_outside("example.com", "box"));
    }
}
