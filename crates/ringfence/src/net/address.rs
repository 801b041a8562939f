//! Classifies addresses as public or not.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use jail::metadata::{extract_nat64, is_metadata_address};

/// First address, prefix length, and why no public host has an address in this range.
const NON_PUBLIC_V4: &[(Ipv4Addr, u32, &str)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8, "this network; Linux treats 0.0.0.0 as the local host"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "private"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "carrier-grade NAT, and one cloud's metadata service"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "loopback"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "link-local, and most clouds' metadata services"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "private"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "protocol assignments, and one cloud's metadata service"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "documentation"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "6to4 relays"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "private"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "benchmarks"),
    (Ipv4Addr::new(198, 51, 100, 0), 24, "documentation"),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "documentation"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "multicast"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "reserved, and broadcast"),
];

/// The same for 2000::/3. Everything outside of that range is closed, except NAT64.
const NON_PUBLIC_V6: &[(Ipv6Addr, u32, &str)] = &[
    (
        Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0),
        23,
        "protocol assignments: Teredo, benchmarks, ORCHID",
    ),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, "documentation"),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, "6to4, which can wrap any IPv4 address"),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, "documentation"),
];

/// Returns whether an address is reachable from everywhere, judging by its number alone.
pub fn is_public(address: IpAddr) -> bool {
    let is_public_range = match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    };
    is_public_range && !is_metadata_address(address)
}

/// Returns whether an address cannot belong to a host: unspecified, multicast, reserved.
pub fn is_not_a_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[0] == 0 || address.octets()[0] >= 224,
        IpAddr::V6(address) => address.is_unspecified() || address.is_multicast(),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let is_in_range = |(network, prefix_length, _): &(Ipv4Addr, u32, _)| {
        (u32::from(*network) ^ u32::from(address)) >> (32 - prefix_length) == 0
    };
    !NON_PUBLIC_V4.iter().any(is_in_range)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let is_in_range = |(network, prefix_length, _): &(Ipv6Addr, u32, _)| {
        (u128::from(*network) ^ u128::from(address)) >> (128 - prefix_length) == 0
    };
    match extract_nat64(address) {
        Some(embedded) => is_public_v4(embedded),
        None => address.segments()[0] & 0xe000 == 0x2000 && !NON_PUBLIC_V6.iter().any(is_in_range),
    }
}

/// Returns whether an address belongs to this machine, whatever its number. Services that listen
/// here may not be meant for a run.
///
/// The kernel answers without sending anything: for a local destination, it chooses the destination
/// itself as the source address.
pub fn is_local_machine(address: IpAddr) -> bool {
    if address.is_loopback() || address.is_unspecified() {
        return true;
    }
    let unspecified: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Without a socket we cannot tell, and an unknown address must not be dialled.
    let Ok(socket) = UdpSocket::bind(SocketAddr::new(unspecified, 0)) else { return true };
    // Without a route it cannot be reached, so it is not local.
    let local_address =
        socket.connect(SocketAddr::new(address, 9)).and_then(|()| socket.local_addr());
    local_address.is_ok_and(|local| local.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_in_the_public_net_are_public() {
        for text in [
            "1.1.1.1",
            "93.184.216.34",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:2800:220:1:248:1893:25c8:1946",
            "2001:4860:4860::8888",
            "64:ff9b::101:101",
        ] {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.0.1",
            "169.254.169.254",
            "172.16.0.0",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.0.1",
            "198.18.0.0",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "168.63.129.16",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:1.1.1.1",
            "::ffff:0:127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b::a83f:8110",
            "64:ff9b:1::101:101",
            "100::1",
            "2001::1",
            "2001:0:7f00:1::",
            "2001:2::1",
            "2001:10::1",
            "2001:20::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "2002:a9fe:a9fe::",
            "3fff::1",
            "4000::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn this_machine_knows_its_own_addresses() {
        for own in ["127.0.0.1", "127.8.9.10", "::1", "0.0.0.0"] {
            assert!(is_local_machine(own.parse().unwrap()), "{own}");
        }
        assert!(!is_local_machine("192.0.2.77".parse().unwrap()));
        // If there is a route to the outside, its source address is ours as well.
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        if socket.connect("192.0.2.77:9").is_ok() {
            let own = socket.local_addr().unwrap().ip();
            assert!(is_local_machine(own), "{own}");
        }
    }
}
