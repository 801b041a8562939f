//! A resolver in the run's own network that refuses every name and records which were asked for.
//!
//! Without it a lookup in a run fails at a name server that the run cannot reach, and nobody learns which host was
//! wanted. Each run has a socket of its own at an address of its own, so a name is recorded for the run that asked,
//! unless another run of the session asks at that address on purpose. It never forwards anything: what a run may reach, it reaches through the proxy.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::thread;

use crate::intercept::Denials;

/// All of 127.0.0.0/8 is the run's own loopback. Programs use other parts of it, so the resolvers of a session's runs
/// keep to this one.
const NETWORK: [u8; 2] = [127, 53];
const PORT: u16 = 53;
/// More runs than a session can have at once.
const ADDRESSES: u16 = 4096;

const HEADER: usize = 12;
/// The largest query over UDP that resolvers send.
const MESSAGE: usize = 4096;
const LABEL: usize = 63;
const NAME: usize = 253;
/// In the third and fourth byte of a header: this is a response; recursion is available; the query is refused.
const RESPONSE: u8 = 0x80;
const RECURSION: u8 = 0x80;
const REFUSED: u8 = 5;
/// Of the third byte, what a response repeats: the kind of query, and whether recursion was wanted.
const REPEATED: u8 = 0x79;

/// Opens the resolver's port. The process is in the run's network and may still bind low ports, which no program of a
/// run can: none can take the resolver's place.
pub fn bind() -> io::Result<(UdpSocket, Ipv4Addr)> {
    let mut refused = io::Error::from(io::ErrorKind::AddrInUse);
    for number in 1..ADDRESSES {
        let [high, low] = number.to_be_bytes();
        let address = Ipv4Addr::new(NETWORK[0], NETWORK[1], high, low);
        match UdpSocket::bind((address, PORT)) {
            Ok(socket) => return Ok((socket, address)),
            // Another run of the session has it.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => refused = error,
            Err(error) => return Err(error),
        }
    }
    Err(refused)
}

/// The text of `/etc/resolv.conf` that leads to this resolver. One attempt is enough, since it always answers.
pub fn settings(address: Ipv4Addr) -> String {
    format!(
        "# The sandbox has no name server. This one records which names were wanted.\nnameserver {address}\noptions attempts:1\n"
    )
}

/// Answers on a thread of its own for as long as the supervisor lives.
pub fn serve(socket: UdpSocket, denials: Denials) -> io::Result<()> {
    let own_name = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    thread::Builder::new().name("resolver".to_owned()).spawn(move || {
        let mut buffer = [0; MESSAGE];
        // An error is about one client that is gone already, and the next query may be another's.
        loop {
            let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
            let Some((name, response)) = refuse(&buffer[..length]) else { continue };
            if is_wanted_outside(&name, &own_name) {
                denials.add("network", &name);
            }
            let _ = socket.send_to(&response, from);
        }
    })?;
    Ok(())
}

/// Programs look up their own machine and the names of loopback addresses without meaning to reach anything.
fn is_wanted_outside(name: &str, own_name: &str) -> bool {
    let is_own = name == own_name || name == "localhost" || name.ends_with(".localhost");
    !(name.is_empty() || is_own || name.ends_with(".arpa"))
}

/// The name that a query asks for and the response that refuses it; `None` for what is not a query.
fn refuse(query: &[u8]) -> Option<(String, Vec<u8>)> {
    let is_query = query.get(2)? & RESPONSE == 0;
    let questions = u16::from_be_bytes([*query.get(4)?, *query.get(5)?]);
    if !is_query || questions != 1 {
        return None;
    }
    let (name, end) = read_name(query)?;
    // Its type and class follow the name.
    let question = query.get(HEADER..end + 4)?;
    let mut response = query[..2].to_vec();
    response.extend([RESPONSE | query[2] & REPEATED, RECURSION | REFUSED]);
    response.extend([0, 1, 0, 0, 0, 0, 0, 0]);
    response.extend(question);
    Some((name, response))
}

/// The name of the first question, and where it ends. A query has no compressed names.
fn read_name(query: &[u8]) -> Option<(String, usize)> {
    let (mut name, mut at) = (String::new(), HEADER);
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            return Some((name, at));
        }
        let label = query.get(at..at + length).filter(|_| length <= LABEL)?;
        at += length;
        if !name.is_empty() {
            name.push('.');
        }
        // The name is shown to people and models, in hints too: nothing that no host name has may be in it.
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let shown =
            |byte: &u8| if is_plain(byte) { byte.to_ascii_lowercase() as char } else { '?' };
        name.extend(label.iter().map(shown));
        if name.len() > NAME {
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
        let (name, response) = refuse(&query("Registry.Example.COM")).unwrap();
        assert_eq!(name, "registry.example.com");
        assert_eq!(response[..12], [0xab, 0xcd, 0x81, 0x85, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(response.len(), HEADER + "Registry.Example.COM".len() + 2 + 4);
    }

    #[test]
    fn what_is_not_a_query_is_not_answered() {
        let whole = query("example.com");
        for length in 0..whole.len() - 11 {
            assert!(refuse(&whole[..length]).is_none(), "{length}");
        }
        let mut response = whole.clone();
        response[2] |= RESPONSE;
        assert!(refuse(&response).is_none());
        let mut compressed = whole.clone();
        compressed[HEADER] = 0xc0;
        assert!(refuse(&compressed).is_none());
        assert!(refuse(&query(&"long.".repeat(60))).is_none());
        let mut two = whole;
        two[5] = 2;
        assert!(refuse(&two).is_none());
    }

    #[test]
    fn unprintable_names_are_shown_without_their_bytes() {
        let mut odd = query("a.b");
        odd[HEADER + 1] = b'\n';
        assert_eq!(refuse(&odd).unwrap().0, "?.b");
    }

    #[test]
    fn a_machine_that_looks_itself_up_wants_nothing_outside() {
        for name in ["", "localhost", "dev.localhost", "box", "1.0.0.127.in-addr.arpa"] {
            assert!(!is_wanted_outside(name, "box"), "{name}");
        }
        assert!(is_wanted_outside("db", "box") && is_wanted_outside("example.com", "box"));
    }
}
