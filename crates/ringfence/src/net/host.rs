//! Normalizes a host from a request to the one form that is compared, resolved and dialled.
//!
//! Anything that two parsers could read differently is refused here, before any list is consulted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use idna::uts46::{AsciiDenyList, DnsLength, Hyphens, Uts46};

use super::decision::{ProxyRefusal, RefusalReason};

/// Maximum length of a host: that of a SOCKS5 name; DNS names are shorter.
const MAX_HOST_BYTES: usize = 255;

/// Host in its normalized form.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// Lowercase ASCII without a final dot.
    Name(String),
    Address(IpAddr),
}

impl Host {
    /// Parses a DNS name or a dotted IPv4 address. IPv6 addresses come in brackets or as bytes.
    pub fn parse(text: &[u8]) -> Option<Host> {
        if text.len() > MAX_HOST_BYTES {
            return None;
        }
        if let Some(address) =
            std::str::from_utf8(text).ok().and_then(|text| Ipv4Addr::from_str(text).ok())
        {
            return Some(Host::Address(address.into()));
        }
        parse_name(text).map(Host::Name)
    }

    /// Converts an address that came as bytes or in brackets.
    pub fn from_address(address: IpAddr) -> Option<Host> {
        match address {
            // A second spelling of an IPv4 address, which address lists easily miss.
            IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => None,
            address => Some(Host::Address(address)),
        }
    }

    /// Returns the host as text, with brackets around an IPv6 address.
    pub fn display_text(&self) -> String {
        match self {
            Host::Name(name) => name.clone(),
            Host::Address(IpAddr::V4(address)) => address.to_string(),
            Host::Address(IpAddr::V6(address)) => format!("[{address}]"),
        }
    }
}

/// Applies IDNA and lowercasing, removes one final dot, and then accepts only letters, digits,
/// hyphens and underscores.
fn parse_name(text: &[u8]) -> Option<String> {
    let text = text.strip_suffix(b".").unwrap_or(text);
    // The deny list is empty because `is_label` checks against the allowed characters.
    let name = Uts46::new()
        .to_ascii(text, AsciiDenyList::EMPTY, Hyphens::Allow, DnsLength::Verify)
        .ok()?;
    let last_label = name.rsplit('.').next()?;
    (name.split('.').all(is_label) && !is_numeric_label(last_label)).then(|| name.into_owned())
}

fn is_label(label: &str) -> bool {
    let is_allowed = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_'
    };
    (1..=63).contains(&label.len()) && label.bytes().all(is_allowed)
}

/// Returns whether a label is numeric. No top-level domain is a number; a name that ends in one is
/// an IPv4 address in octal, hex, short or decimal form, which `getaddrinfo` would accept.
fn is_numeric_label(label: &str) -> bool {
    let is_hex = label
        .strip_prefix("0x")
        .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    is_hex || label.bytes().all(|byte| byte.is_ascii_digit())
}

/// Destination of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectTarget {
    pub host: Host,
    pub port: u16,
}

impl ConnectTarget {
    /// Parses `host:port`, or `host` alone if there is a default port.
    pub fn parse(text: &[u8], default_port: Option<u16>) -> Result<ConnectTarget, ProxyRefusal> {
        let (host, port) = split_host_port(text);
        let port = port.map_or(default_port, parse_port);
        let sanitized = sanitize_host(host);
        let refuse = |reason| ProxyRefusal::new(reason, &sanitized, port.unwrap_or(0));
        let parsed = match host.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]")) {
            Some(inner) => parse_v6(inner).and_then(|address| Host::from_address(address.into())),
            None => Host::parse(host),
        };
        let host = parsed.ok_or_else(|| refuse(RefusalReason::BadName))?;
        let port = port
            .ok_or_else(|| ProxyRefusal::new(RefusalReason::BadRequest, &host.display_text(), 0))?;
        Ok(ConnectTarget { host, port })
    }

    /// Returns the value for a Host header; port 80 is omitted.
    pub fn host_header(&self) -> String {
        if self.port == 80 {
            self.host.display_text()
        } else {
            format!("{}:{}", self.host.display_text(), self.port)
        }
    }
}

/// Parses the address between brackets. Rust's parser accepts no zones here, so `fe80::1%eth0` is
/// refused.
pub fn parse_v6(text: &[u8]) -> Option<Ipv6Addr> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Splits at the last colon unless it is inside brackets. A host that still contains a colon is
/// refused later, and so is text with an `@`, where the colon may be part of a password.
fn split_host_port(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    match text.iter().rposition(|byte| *byte == b':') {
        Some(colon) if !text[colon..].contains(&b']') && !text.contains(&b'@') => {
            (&text[..colon], Some(&text[colon + 1..]))
        }
        _ => (text, None),
    }
}

/// Parses plain digits; `u16::from_str` would also accept `+80`.
pub fn parse_port(text: &[u8]) -> Option<u16> {
    let is_valid = !text.is_empty() && text.iter().all(u8::is_ascii_digit) && text[0] != b'0';
    is_valid.then(|| std::str::from_utf8(text).ok()?.parse().ok())?
}

/// Returns a refused host in a form that may be logged: never the user and password before it or a
/// path after it.
pub fn sanitize_host(text: &[u8]) -> String {
    let end = text.iter().position(|byte| b"/?#%\\".contains(byte)).unwrap_or(text.len());
    let text = &text[..end];
    let start = text.iter().rposition(|byte| *byte == b'@').map_or(0, |index| index + 1);
    let printable = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { '?' };
    text[start..].iter().take(MAX_HOST_BYTES).map(printable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Result<ConnectTarget, ProxyRefusal> {
        ConnectTarget::parse(text.as_bytes(), Some(80))
    }

    #[test]
    fn a_name_has_one_form() {
        for (text, name) in [
            ("example.com", "example.com"),
            ("EXAMPLE.com", "example.com"),
            ("example.com.", "example.com"),
            ("Bücher.example", "xn--bcher-kva.example"),
            ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
            ("ｅｘａｍｐｌｅ。com", "example.com"),
            ("exam\u{ad}ple.com", "example.com"),
            ("a_b.r3---sn-x-.example.com", "a_b.r3---sn-x-.example.com"),
            ("localhost", "localhost"),
        ] {
            assert_eq!(
                target(text),
                Ok(ConnectTarget { host: Host::Name(name.to_owned()), port: 80 }),
                "{text}"
            );
        }
    }

    #[test]
    fn what_two_parsers_could_read_differently_is_no_name() {
        let long_label = format!("{}.com", "a".repeat(64));
        let long_name = format!("{}.com", "a.".repeat(126) + "a");
        for text in [
            // IPv4 addresses as only some programs read them.
            "0177.0.0.1",
            "0x7f.0.0.1",
            "0x7f000001",
            "2130706433",
            "127.1",
            "127.0.1",
            "127.0.0.01",
            "127.0.0.1.",
            "256.1.1.1",
            "1.2.3.4.5",
            "0x",
            "example.0x7f",
            "１２７.0.0.1",
            "127。0。0。1",
            // IPv6 addresses with a zone, as a coat for IPv4, or bare.
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "[fe80::1%eth0]",
            "[fe80::1%25eth0]",
            "::1",
            "fe80::1%1",
            "[::1",
            "::1]",
            "[]",
            "[127.0.0.1]",
            "[example.com]",
            "[::1]x",
            // Bytes that end a name for some and not for others.
            "evil.com\0.example.com",
            "example.com\0",
            "example.com\r\nHost: evil.com",
            "example.com\n",
            "example.com\t",
            " example.com",
            "example.com ",
            "evil.com example.com",
            "user@example.com",
            "user:secret@example.com",
            "example.com@evil.com",
            "example.com%00.evil.com",
            "ex%61mple.com",
            "example.com%2eevil.com",
            "evil.com/.example.com",
            "evil.com?.example.com",
            "evil.com#.example.com",
            "evil.com\\.example.com",
            "evil.com;.example.com",
            "evil.com,example.com",
            "*.example.com",
            "％65xample.com",
            "evil.com／.example.com",
            // Shapes that DNS does not have.
            "",
            ".",
            "..",
            "example.com..",
            ".example.com",
            "example..com",
            &long_label,
            &long_name,
            // Punycode that says nothing, or what it should not.
            "xn--.com",
            "xn--example-.com",
            "xn--\u{fc}.com",
        ] {
            let refusal = target(text).expect_err(text);
            assert_eq!(refusal.reason, RefusalReason::BadName, "{text:?}");
        }
        assert_eq!(
            ConnectTarget::parse(b"\xff\xfe.com", Some(80)).unwrap_err().reason,
            RefusalReason::BadName
        );
    }

    #[test]
    fn a_port_is_plain_digits() {
        assert_eq!(target("example.com:8080").unwrap().port, 8080);
        assert_eq!(
            target("[::1]:8080").unwrap(),
            ConnectTarget { host: Host::Address("::1".parse().unwrap()), port: 8080 }
        );
        assert_eq!(target("[::1]").unwrap().port, 80);
        for text in [
            "example.com:",
            "example.com:0",
            "example.com:+80",
            "example.com:080",
            "example.com:65536",
        ] {
            assert_eq!(target(text).unwrap_err().reason, RefusalReason::BadRequest, "{text}");
        }
        for text in ["example.com:8x", "example.com: 80", "example.com:٨٠", "example.com:-1"] {
            assert_eq!(target(text).unwrap_err().reason, RefusalReason::BadRequest, "{text}");
        }
        assert_eq!(target("example.com:80:80").unwrap_err().reason, RefusalReason::BadName);
        assert_eq!(
            ConnectTarget::parse(b"example.com", None).unwrap_err().reason,
            RefusalReason::BadRequest
        );
    }

    #[test]
    fn a_refused_host_is_shown_without_what_is_secret_or_unprintable() {
        for (text, shown) in [
            ("user:secret@example.com", "example.com"),
            ("a@b/secret?token#x", "b"),
            ("evil\0.example.com", "evil?.example.com"),
            ("a\r\nb\u{202e}c", "a??b???c"),
            ("secret%40example.com", "secret"),
        ] {
            assert_eq!(sanitize_host(text.as_bytes()), shown);
        }
        assert_eq!(sanitize_host(&[b'a'; 1000]).len(), MAX_HOST_BYTES);
        for text in ["token:x@example.com", "token@example.com:443", "a:token:x@example.com:443"] {
            assert!(!target(text).unwrap_err().host.contains("token"), "{text}");
        }
    }

    /// Every accepted host is stable under reparsing and contains nothing that a list would not
    /// recognize.
    #[test]
    fn random_hosts_are_refused_or_come_back_the_same() {
        const PIECES: &[&str] = &[
            "a", "B", "0", "0x7f", "127", ".", "-", "xn--", "ü", "ß", "\u{200d}", "。", "１", ":",
            "[", "]", "@", "%", "\0", "*",
        ];
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let mut accepted = 0;
        for _ in 0..50_000 {
            let mut text: Vec<u8> =
                (0..next(8)).flat_map(|_| PIECES[next(PIECES.len())].bytes()).collect();
            if !text.is_empty() && next(8) == 0 {
                let at = next(text.len());
                text[at] = next(256) as u8;
            }
            let Ok(target) = ConnectTarget::parse(&text, Some(80)) else { continue };
            accepted += 1;
            let shown = target.host.display_text();
            assert_eq!(
                ConnectTarget::parse(shown.as_bytes(), Some(80)).as_ref().map(|again| &again.host),
                Ok(&target.host)
            );
            if let Host::Name(name) = &target.host {
                assert!(name.split('.').all(is_label), "{text:?}");
                // Nothing that the system's resolver would take for an address.
                assert!(
                    name.parse::<IpAddr>().is_err()
                        && !name.rsplit('.').next().is_some_and(is_numeric_label),
                    "{text:?}"
                );
            }
        }
        assert!(accepted > 1000, "only {accepted} hosts were taken at all");
    }
}
