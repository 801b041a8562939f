//! Check whether an address belongs to this machine, by the kernel's current routing.
//!
//! A list of the interfaces' addresses is not enough: all of 127.0.0.0/8 is local, a route of type
//! `local` makes a whole block local, and addresses come and go while the server runs. Trying to
//! bind is not enough either: with `ip_nonlocal_bind` every address can be bound.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

const GET_ROUTE: u16 = 26;
const NEW_ROUTE: u16 = 24;
const REQUEST: u16 = 1;
const HEADER_BYTES: usize = 16;
/// Size of `struct rtmsg`; its byte 7 is the type of the route.
const ROUTE_BYTES: usize = 12;
const ROUTE_TYPE: usize = 7;
const LOCAL: u8 = 2;
const DESTINATION: u16 = 1;
const OUT_INTERFACE: u16 = 4;

/// Returns whether packets to this address stay on this machine.
pub fn is_own_address(address: SocketAddr) -> io::Result<bool> {
    let ip = address.ip().to_canonical();
    if ip.is_loopback() || ip.is_unspecified() {
        return Ok(true);
    }
    // Routing is the protocol 0, the default.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, &build_route_request(ip, scope_interface(address)), SendFlags::empty())?;
    let mut answer = [0; 4096];
    // The kernel has answered when `send` returns; without an answer there is nothing to wait for.
    let (length, _) = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT)?;
    parse_route_answer(answer.get(..length).unwrap_or_default())
}

/// Returns the interface of a link-local address, which is meaningful on one interface only.
fn scope_interface(address: SocketAddr) -> Option<u32> {
    match address {
        SocketAddr::V6(address) => Some(address.scope_id()).filter(|scope| *scope != 0),
        SocketAddr::V4(_) => None,
    }
}

fn build_route_request(ip: IpAddr, interface: Option<u32>) -> Vec<u8> {
    let (family, octets) = match ip {
        IpAddr::V4(ip) => (AddressFamily::INET, ip.octets().to_vec()),
        IpAddr::V6(ip) => (AddressFamily::INET6, ip.octets().to_vec()),
    };
    let mut body = vec![0; ROUTE_BYTES];
    body[0] = family.as_raw() as u8;
    body[1] = (octets.len() * 8) as u8;
    let mut add_attribute = |kind: u16, value: &[u8]| {
        body.extend(((4 + value.len()) as u16).to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(value);
    };
    add_attribute(DESTINATION, &octets);
    if let Some(interface) = interface {
        add_attribute(OUT_INTERFACE, &interface.to_ne_bytes());
    }
    let mut message = Vec::with_capacity(HEADER_BYTES + body.len());
    message.extend(((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
    message.extend(GET_ROUTE.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

/// Reads the answer. The kernel reports an error if no route exists, which cannot be for an address
/// of this machine; it is still passed on as an error, and the caller refuses.
fn parse_route_answer(answer: &[u8]) -> io::Result<bool> {
    let kind = answer.get(4..6).map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    match (kind, answer.get(HEADER_BYTES + ROUTE_TYPE)) {
        (Some(NEW_ROUTE), Some(kind)) => Ok(*kind == LOCAL),
        _ => Err(io::Error::other("the kernel reports no route to this address")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_own(ip: &str) -> bool {
        let address = SocketAddr::new(ip.parse().unwrap(), 9);
        is_own_address(address).unwrap_or_else(|error| panic!("{ip}: {error}"))
    }

    #[test]
    fn every_spelling_of_the_loopback_is_an_own_address() {
        for ip in [
            "127.0.0.1",
            "127.255.3.9",
            "0.0.0.0",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "::ffff:127.8.8.8",
        ] {
            assert!(is_own(ip), "{ip}");
        }
    }

    #[test]
    fn an_interface_address_is_an_own_address_and_its_neighbours_are_not() {
        // Finds the outward address; nothing is sent.
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        if socket.connect("198.51.100.1:9").is_err() {
            println!("this machine has no route to the outside");
            return;
        }
        let own = socket.local_addr().unwrap().ip().to_string();
        assert!(is_own(&own), "{own}");
        assert!(is_own(&format!("::ffff:{own}")), "{own}");
        assert!(!is_own("198.51.100.1"));
        assert!(!is_own("::ffff:198.51.100.1"));
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        assert!(parse_route_answer(&[]).is_err());
        assert!(parse_route_answer(&[0; HEADER_BYTES + ROUTE_BYTES]).is_err());
    }
}
