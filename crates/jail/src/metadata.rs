//! Addresses of cloud metadata services, which hand out a machine's credentials to any process that
//! asks. No run can reach them, whatever its network.
//!
//! This is the only table of these addresses. The supervisor consults it before it makes a
//! connection in the host's network, and the server's proxy before it connects.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// First address, prefix length, and the service at that address.
const CLOSED_V4: &[(Ipv4Addr, u32, &str)] = &[
    (
        Ipv4Addr::new(169, 254, 0, 0),
        16,
        "link-local: metadata and credentials of most clouds and their containers",
    ),
    (Ipv4Addr::new(100, 100, 100, 200), 32, "metadata of Alibaba Cloud"),
    (Ipv4Addr::new(192, 0, 0, 192), 32, "metadata of Oracle Cloud"),
    (
        Ipv4Addr::new(168, 63, 129, 16),
        32,
        "Azure host services; looks like an ordinary public address",
    ),
];

const CLOSED_V6: &[(Ipv6Addr, u32, &str)] = &[
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, "link-local"),
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), 128, "metadata of AWS"),
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23), 128, "container credentials of AWS"),
    (Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), 128, "metadata of Google Cloud"),
];

/// Returns whether this address belongs to a metadata service, including IPv6 forms that embed an
/// IPv4 address.
pub fn is_metadata_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_closed_v4(address),
        IpAddr::V6(address) => {
            is_closed_v6(address) || embedded_v4(address).into_iter().any(is_closed_v4)
        }
    }
}

/// Returns the IPv4 address inside the well-known NAT64 prefix, with which a network without IPv4
/// reaches IPv4 hosts.
pub fn extract_nat64(address: Ipv6Addr) -> Option<Ipv4Addr> {
    match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(v4_from_halves(high, low)),
        _ => None,
    }
}

fn is_closed_v4(address: Ipv4Addr) -> bool {
    CLOSED_V4
        .iter()
        .any(|(first, length, _)| (u32::from(*first) ^ u32::from(address)) >> (32 - length) == 0)
}

fn is_closed_v6(address: Ipv6Addr) -> bool {
    CLOSED_V6
        .iter()
        .any(|(first, length, _)| (u128::from(*first) ^ u128::from(address)) >> (128 - length) == 0)
}

/// Returns the IPv4 addresses that a packet to this IPv6 address may be delivered to. Prefixes that
/// a network chose for itself cannot be known.
fn embedded_v4(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    let nat64 = extract_nat64(address);
    match address.segments() {
        // IPv4-mapped, and IPv4-translated for stateless translators.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => {
            vec![v4_from_halves(high, low)]
        }
        // Local-use NAT64 (RFC 8215): with a 96-bit prefix, or a 48-bit one that places the address
        // around bits 64 to 71.
        [0x64, 0xff9b, 1, a, b, c, high, low] => {
            vec![v4_from_halves(high, low), v4_from_halves(a, (b & 0xff) << 8 | c >> 8)]
        }
        // 6to4, which can embed any address.
        [0x2002, high, low, ..] => vec![v4_from_halves(high, low)],
        _ => nat64.into_iter().collect(),
    }
}

fn v4_from_halves(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(high) << 16 | u32::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_metadata_address_is_one_and_no_neighbour() {
        for text in [
            "169.254.0.1",
            "169.254.169.254",
            "169.254.170.2",
            "169.254.170.23",
            "100.100.100.200",
            "192.0.0.192",
            "168.63.129.16",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fe80::a9fe:a9fe",
            "febf::1",
            "::ffff:169.254.169.254",
            "::ffff:0:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b::a83f:8110",
            "64:ff9b::6464:64c8",
            "64:ff9b::c000:c0",
            "64:ff9b:1::a9fe:a9fe",
            "64:ff9b:1:a9fe:a9:fe00::",
            "2002:a9fe:a9fe::1",
        ] {
            assert!(is_metadata_address(text.parse().unwrap()), "{text}");
        }
        for text in [
            "169.253.255.255",
            "169.255.0.0",
            "100.100.100.199",
            "192.0.0.193",
            "168.63.129.17",
            "127.0.0.1",
            "1.1.1.1",
            "fd00:ec2::255",
            "fec0::1",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "64:ff9b::101:101",
            "64:ff9b:1::101:101",
            "2002:101:101::1",
            "2606:4700::1111",
        ] {
            assert!(!is_metadata_address(text.parse().unwrap()), "{text}");
        }
    }
}
