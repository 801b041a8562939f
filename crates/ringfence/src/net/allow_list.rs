//! Allow-list of a run, from its configuration. Everything that no entry names is refused.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use super::address::{is_local_machine, is_not_a_host, is_public};
use super::decision::RefusalReason;
use super::host::{Host, parse_port};
use crate::base::{Error, Result};
use crate::config::FlagEntryCounts;

/// Ports of an entry that names none.
const WEB_PORTS: [u16; 2] = [80, 443];

/// Maximum number of addresses that are dialled per name and address family: each takes a file
/// descriptor of the server.
const MAX_ADDRESSES: usize = 3;

/// Allow-list and deny-list for the network access of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowList {
    allowed: Vec<DomainEntry>,
    denied: Vec<DomainEntry>,
    allowed_addresses: HashSet<SocketAddr>,
    /// Addresses denied on all ports, also for names that resolve to them.
    denied_addresses: HashSet<IpAddr>,
    /// Every name and every public address is allowed, except what is denied.
    public_net: bool,
}

impl AllowList {
    /// Parses the lists `allow_domains`, `deny_domains` and `allow_addresses`. Empty lists allow
    /// nothing.
    pub fn from_lists(
        domains: &[String],
        denied: &[String],
        addresses: &[String],
    ) -> Result<AllowList> {
        AllowList::from_merged_lists(domains, denied, addresses, FlagEntryCounts::default())
    }

    /// Parses such lists with entries from flags at their ends. Errors name the flag.
    pub fn from_merged_lists(
        domains: &[String],
        denied: &[String],
        addresses: &[String],
        flag_entries: FlagEntryCounts,
    ) -> Result<AllowList> {
        let sources = |key, texts: &[String], flag, flag_count| {
            let file_count = texts.len().saturating_sub(flag_count);
            (0..texts.len()).map(move |index| EntrySource {
                key,
                index,
                flag: (index >= file_count).then_some(flag),
            })
        };
        let allowed =
            sources("allow_domains", domains, "--allow-domain", flag_entries.allow_domains);
        let denied_sources =
            sources("deny_domains", denied, "--deny-domain", flag_entries.deny_domains);
        let address_sources =
            sources("allow_addresses", addresses, "--allow-address", flag_entries.allow_addresses);
        Ok(AllowList {
            allowed: (allowed.zip(domains))
                .map(|(source, text)| parse_entry(source, text))
                .collect::<Result<_>>()?,
            denied: (denied_sources.zip(denied))
                .map(|(source, text)| parse_entry(source, text))
                .collect::<Result<_>>()?,
            allowed_addresses: (address_sources.zip(addresses))
                .map(|(source, text)| parse_address(source, text))
                .collect::<Result<_>>()?,
            ..AllowList::default()
        })
    }

    /// Returns every error in such lists: the list, the index in it, and the error.
    pub fn find_errors(
        domains: &[String],
        denied: &[String],
        addresses: &[String],
    ) -> Vec<(&'static str, usize, Error)> {
        let names = [("allow_domains", domains), ("deny_domains", denied)].into_iter().flat_map(
            |(key, texts)| {
                texts.iter().enumerate().filter_map(move |(index, text)| {
                    let source = EntrySource { key, index, flag: None };
                    Some((key, index, parse_entry(source, text).err()?))
                })
            },
        );
        let addresses = addresses.iter().enumerate();
        let addresses = addresses.filter_map(|(index, text)| {
            let source = EntrySource { key: "allow_addresses", index, flag: None };
            Some((source.key, index, parse_address(source, text).err()?))
        });
        names.chain(addresses).collect()
    }

    /// Allows every name and address of the public network except what is denied, plus the listed
    /// addresses.
    pub fn allow_public_net(denied: &[String], addresses: &[String]) -> Result<AllowList> {
        Ok(AllowList { public_net: true, ..AllowList::from_lists(&[], denied, addresses)? })
    }

    /// Returns a copy with more names and addresses denied.
    pub fn with_denied(&self, names: &[String]) -> Result<AllowList> {
        let mut restricted = self.clone();
        for (index, name) in names.iter().enumerate() {
            match name.trim_matches(['[', ']']).parse::<IpAddr>() {
                Ok(address) => drop(restricted.denied_addresses.insert(address.to_canonical())),
                Err(_) => {
                    let source = EntrySource { key: "network_rule", index, flag: None };
                    restricted.denied.push(parse_entry(source, name)?);
                }
            }
        }
        Ok(restricted)
    }

    /// Returns a copy with one more name or public address, for this port only.
    pub fn with_granted(&self, host: &str, port: u16) -> Result<AllowList> {
        let mut extended = self.clone();
        match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            // Private addresses stay closed even if the user approves.
            Ok(address) if is_public(address) && !is_local_machine(address) => {
                extended.allowed_addresses.insert(SocketAddr::new(address, port));
            }
            Ok(_) => {}
            Err(_) => {
                let source = EntrySource { key: "url", index: 0, flag: None };
                extended.allowed.push(parse_entry(source, &format!("{host}:{port}"))?);
            }
        }
        Ok(extended)
    }

    /// Returns whether the lists allow this, as far as that is known without a lookup.
    pub fn allows_host(&self, host: &str, port: u16) -> bool {
        match Host::parse(host.as_bytes()) {
            Some(Host::Address(address)) => self.check_address(address, port).is_ok(),
            Some(Host::Name(name)) => self.check_name(&name, port).is_ok(),
            None => match host.trim_matches(['[', ']']).parse() {
                Ok(address) => self.check_address(address, port).is_ok(),
                Err(_) => false,
            },
        }
    }

    /// Checks whether a name may be looked up at all. The name must be in the form that [`Host`]
    /// gives it.
    pub(super) fn check_name(&self, name: &str, port: u16) -> Result<(), RefusalReason> {
        // A denial without a port applies to all ports, unlike a permission.
        if self.denied.iter().any(|entry| {
            entry.matches_name(name) && entry.port.is_none_or(|denied_port| denied_port == port)
        }) {
            return Err(RefusalReason::Denied);
        }
        if self.public_net
            || self.allowed.iter().any(|entry| entry.matches_name(name) && entry.allows_port(port))
        {
            return Ok(());
        }
        let is_listed = self.allowed.iter().any(|entry| entry.matches_name(name));
        Err(if is_listed { RefusalReason::Port } else { RefusalReason::NotAllowed })
    }

    /// Checks whether an address that the request itself named may be dialled.
    pub(super) fn check_address(&self, address: IpAddr, port: u16) -> Result<(), RefusalReason> {
        match self.public_net {
            _ if self.denied_addresses.contains(&address) => Err(RefusalReason::Denied),
            _ if self.allowed_addresses.contains(&SocketAddr::new(address, port)) => Ok(()),
            true if is_reachable(address) => Ok(()),
            true => Err(RefusalReason::PrivateAddress),
            false => Err(RefusalReason::AddressNotAllowed),
        }
    }

    /// Returns the addresses of an allowed name that may be dialled.
    pub(super) fn filter_addresses(&self, resolved: Vec<IpAddr>, port: u16) -> Vec<IpAddr> {
        let mut usable = Vec::new();
        for address in resolved.into_iter().map(|address| address.to_canonical()) {
            if self.denied_addresses.contains(&address) {
                continue;
            }
            let is_listed = self.allowed_addresses.contains(&SocketAddr::new(address, port));
            let same_family = usable
                .iter()
                .filter(|other: &&IpAddr| other.is_ipv4() == address.is_ipv4())
                .count();
            if same_family < MAX_ADDRESSES
                && !usable.contains(&address)
                && (is_listed || is_reachable(address))
            {
                usable.push(address);
            }
        }
        usable
    }
}

fn is_reachable(address: IpAddr) -> bool {
    is_public(address) && !is_local_machine(address)
}

/// List entry: `name`, `*.name`, or either with `:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DomainEntry {
    name: String,
    /// Matches subdomains, but not the name itself.
    subdomains_only: bool,
    port: Option<u16>,
}

impl DomainEntry {
    fn matches_name(&self, name: &str) -> bool {
        if self.subdomains_only {
            name.strip_suffix(&*self.name).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
        } else {
            name == self.name
        }
    }

    fn allows_port(&self, port: u16) -> bool {
        self.port.map_or_else(|| WEB_PORTS.contains(&port), |allowed_port| allowed_port == port)
    }
}

/// Where an entry is written, for error messages.
#[derive(Clone, Copy)]
struct EntrySource {
    key: &'static str,
    index: usize,
    /// The flag that it was passed with.
    flag: Option<&'static str>,
}

fn parse_entry(source: EntrySource, text: &str) -> Result<DomainEntry> {
    let key = source.key;
    let invalid = |problem: &str, hint: &str| Err(entry_error(source, text, problem, hint));
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (text, None),
    };
    if text.contains("://") || text.contains('/') {
        return invalid(
            "is a URL",
            "Write the host alone: \"example.com\", or \"example.com:8443\" for another port.",
        );
    }
    let port = match port.map(|port| parse_port(port.as_bytes())) {
        Some(None) => {
            return invalid(
                "has no usable port",
                "Write a number from 1 to 65535 after the colon.",
            );
        }
        port => port.flatten(),
    };
    let (subdomains_only, name) = match name.strip_prefix("*.") {
        Some(name) => (true, name),
        None => (false, name),
    };
    if name == "*" {
        let hint = match key {
            "deny_domains" => {
                "List the names. Everything that `allow_domains` does not list is already denied."
            }
            _ => "List the names; to allow the whole network, set `allow_network = true`.",
        };
        return invalid("would match every name", hint);
    }
    match Host::parse(name.as_bytes()) {
        // Denying more than intended is safe, allowing more is not.
        Some(Host::Name(name))
            if subdomains_only && !name.contains('.') && key == "allow_domains" =>
        {
            invalid(
                "would match a whole top-level domain",
                &format!("Be more specific, as in \"*.example.{name}\"."),
            )
        }
        Some(Host::Name(name)) => Ok(DomainEntry { name, subdomains_only, port }),
        Some(Host::Address(_)) => {
            invalid("is an address", "List addresses in `allow_addresses`, with their port.")
        }
        None => invalid(
            "is not a DNS name",
            "Write \"example.com\", or \"*.example.com\" for the names below it.",
        ),
    }
}

fn parse_address(source: EntrySource, text: &str) -> Result<SocketAddr> {
    let invalid = |problem: &str, hint: &str| Err(entry_error(source, text, problem, hint));
    let hint = "Write address and port: \"127.0.0.1:8080\" or \"[::1]:8080\".";
    match text.parse::<SocketAddr>() {
        Err(_) => invalid("is not an address with a port", hint),
        Ok(_) if text.contains('%') => {
            invalid("has a zone", "Write the address without `%` and what follows it.")
        }
        Ok(address) if address.port() == 0 => invalid("has port 0", hint),
        Ok(address) if address.ip().to_canonical() != address.ip() => invalid(
            "is an IPv4 address in IPv6 form",
            "Write it with dots, as in \"127.0.0.1:8080\".",
        ),
        Ok(address) if is_not_a_host(address.ip()) => invalid("is not the address of a host", hint),
        Ok(address) => Ok(address),
    }
}

fn entry_error(source: EntrySource, text: &str, problem: &str, hint: &str) -> Error {
    let quoted_entry = quote_entry(text);
    // Entries are numbered from 1.
    let entry = match source.flag {
        Some(flag) => format!("`{flag} {quoted_entry}`"),
        None => format!("entry {} of `{}` ({quoted_entry})", source.index + 1, source.key),
    };
    Error::invalid_arguments(format!("{entry} {problem}")).with_hint(hint)
}

/// Quotes an entry as written, but without the user name and password of a URL.
fn quote_entry(text: &str) -> String {
    const MAX_CHARS: usize = 100;
    let shown = match text.rsplit_once('@') {
        Some((_, host)) => format!("…@{host}"),
        None => text.to_owned(),
    };
    let ellipsis = if shown.chars().nth(MAX_CHARS).is_some() { "…" } else { "" };
    let shown: String = shown.chars().take(MAX_CHARS).collect();
    format!("\"{}{ellipsis}\"", shown.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn allow(domains: &[&str], deny: &[&str], addresses: &[&str]) -> AllowList {
        AllowList::from_lists(&list(domains), &list(deny), &list(addresses)).unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn empty_lists_allow_nothing() {
        for nothing in [allow(&[], &[], &[]), AllowList::default()] {
            assert_eq!(nothing.check_name("example.com", 443), Err(RefusalReason::NotAllowed));
            assert_eq!(
                nothing.check_address(ip("1.1.1.1"), 443),
                Err(RefusalReason::AddressNotAllowed)
            );
        }
    }

    #[test]
    fn names_are_compared_whole_or_on_label_borders() {
        let allow = allow(&["Example.COM.", "*.wild.org", "bücher.example"], &[], &[]);
        for name in ["example.com", "a.wild.org", "a.b.wild.org", "xn--bcher-kva.example"] {
            assert_eq!(allow.check_name(name, 443), Ok(()), "{name}");
        }
        for name in [
            "evilexample.com",
            "example.com.evil.com",
            "www.example.com",
            "example.org",
            "com",
            "wild.org",
            "evilwild.org",
            ".wild.org",
            "a.wild.org.evil.com",
            "org",
        ] {
            assert_eq!(allow.check_name(name, 443), Err(RefusalReason::NotAllowed), "{name}");
        }
    }

    #[test]
    fn ports_are_those_of_the_web_unless_given() {
        let allow = allow(&["a.com", "b.com:8443", "*.c.com:22", "d.com", "d.com:22"], &[], &[]);
        for (name, port) in [
            ("a.com", 80),
            ("a.com", 443),
            ("b.com", 8443),
            ("x.c.com", 22),
            ("d.com", 22),
            ("d.com", 80),
        ] {
            assert_eq!(allow.check_name(name, port), Ok(()), "{name}:{port}");
        }
        for (name, port) in
            [("a.com", 22), ("a.com", 8443), ("b.com", 443), ("x.c.com", 443), ("d.com", 25)]
        {
            assert_eq!(allow.check_name(name, port), Err(RefusalReason::Port), "{name}:{port}");
        }
    }

    #[test]
    fn a_denial_wins_on_all_its_ports() {
        let allow = allow(
            &["*.example.com", "*.example.com:8080", "twice.org"],
            &[
                "bad.example.com",
                "*.worse.example.com",
                "half.example.com:8080",
                "twice.org",
                "*.zip",
            ],
            &[],
        );
        for (name, port) in [
            ("bad.example.com", 443),
            ("bad.example.com", 8080),
            ("x.worse.example.com", 80),
            ("half.example.com", 8080),
        ] {
            assert_eq!(allow.check_name(name, port), Err(RefusalReason::Denied), "{name}:{port}");
        }
        assert_eq!(allow.check_name("twice.org", 443), Err(RefusalReason::Denied));
        assert_eq!(allow.check_name("a.zip", 443), Err(RefusalReason::Denied));
        for (name, port) in
            [("good.example.com", 443), ("worse.example.com", 443), ("half.example.com", 443)]
        {
            assert_eq!(allow.check_name(name, port), Ok(()), "{name}:{port}");
        }
    }

    #[test]
    fn addresses_are_exact_and_open_names_that_lead_to_them() {
        let allow = allow(&["example.com"], &[], &["127.0.0.1:8080", "[::1]:443", "10.0.0.5:443"]);
        assert_eq!(allow.check_address(ip("127.0.0.1"), 8080), Ok(()));
        assert_eq!(allow.check_address(ip("::1"), 443), Ok(()));
        for (address, port) in
            [("127.0.0.1", 8081), ("127.0.0.2", 8080), ("::1", 8080), ("1.1.1.1", 443)]
        {
            assert_eq!(
                allow.check_address(ip(address), port),
                Err(RefusalReason::AddressNotAllowed),
                "{address}:{port}"
            );
        }
        let found = [
            "10.0.0.5",
            "10.0.0.6",
            "1.1.1.1",
            "::ffff:10.0.0.5",
            "::ffff:127.0.0.1",
            "fd00:ec2::254",
        ];
        let found: Vec<IpAddr> = found.map(ip).to_vec();
        assert_eq!(allow.filter_addresses(found.clone(), 443), [ip("10.0.0.5"), ip("1.1.1.1")]);
        assert_eq!(allow.filter_addresses(found, 80), [ip("1.1.1.1")]);
        let many =
            ["1.0.0.1", "1.0.0.2", "1.0.0.3", "1.0.0.4", "1.0.0.1", "2a00::1"].map(ip).to_vec();
        assert_eq!(
            allow.filter_addresses(many, 443),
            ["1.0.0.1", "1.0.0.2", "1.0.0.3", "2a00::1"].map(ip)
        );
    }

    #[test]
    fn an_address_can_be_denied_as_a_name_can() {
        let less = allow(&["a.com"], &[], &["10.0.0.5:443"]).with_denied(&list(&[
            "10.0.0.5",
            "1.1.1.1",
            "[2a00::1]",
            "b.com",
        ]));
        let less = less.unwrap();
        assert_eq!(less.check_address(ip("10.0.0.5"), 443), Err(RefusalReason::Denied));
        assert_eq!(
            less.filter_addresses(
                ["10.0.0.5", "1.1.1.1", "2a00::1", "1.0.0.1"].map(ip).to_vec(),
                443
            ),
            [ip("1.0.0.1")]
        );
        assert_eq!(less.check_name("b.com", 443), Err(RefusalReason::Denied));
    }

    #[test]
    fn the_public_net_has_nothing_private_but_what_is_listed() {
        let public =
            AllowList::allow_public_net(&list(&["bad.com"]), &list(&["127.0.0.1:3000"])).unwrap();
        assert_eq!(public.check_name("anything.net", 8080), Ok(()));
        assert_eq!(public.check_name("bad.com", 443), Err(RefusalReason::Denied));
        assert_eq!(public.check_address(ip("1.1.1.1"), 53), Ok(()));
        assert_eq!(public.check_address(ip("127.0.0.1"), 3000), Ok(()));
        for (address, port) in
            [("127.0.0.1", 3001), ("::1", 3000), ("192.168.1.1", 80), ("169.254.169.254", 80)]
        {
            assert_eq!(
                public.check_address(ip(address), port),
                Err(RefusalReason::PrivateAddress),
                "{address}:{port}"
            );
            assert!(
                public.filter_addresses(vec![ip(address)], port).is_empty(),
                "{address}:{port}"
            );
        }
        assert_eq!(
            public.filter_addresses(vec![ip("127.0.0.1"), ip("10.0.0.1")], 3000),
            [ip("127.0.0.1")]
        );
    }

    #[test]
    fn a_wrong_entry_is_named_with_the_way_to_write_it() {
        for (text, what) in [
            ("*", "every name"),
            ("*:443", "every name"),
            ("*.*", "every name"),
            ("*.com", "top-level"),
            ("*.COM.", "top-level"),
            ("**.example.com", "not a DNS name"),
            ("a.*.com", "not a DNS name"),
            ("*example.com", "not a DNS name"),
            ("", "not a DNS name"),
            (" example.com", "not a DNS name"),
            ("example.com ", "not a DNS name"),
            ("a.com,b.com", "not a DNS name"),
            ("https://example.com", "URL"),
            ("example.com/path", "URL"),
            ("user@example.com", "not a DNS name"),
            ("example.com:", "port"),
            ("example.com:0", "port"),
            ("example.com:https", "port"),
            ("example.com:70000", "port"),
            ("127.0.0.1", "address"),
            ("127.0.0.1:80", "address"),
            ("*.127.0.0.1", "address"),
            ("0x7f.1", "not a DNS name"),
            ("[::1]:80", "not a DNS name"),
            ("exa\0mple.com", "not a DNS name"),
        ] {
            let error =
                AllowList::from_lists(&list(&["fine.com", text]), &[], &[]).expect_err(text);
            assert!(error.message().contains(what), "{text:?}: {error}");
            assert!(error.message().starts_with("entry 2 of `allow_domains`"), "{error}");
            assert!(error.hint_text().is_some());
        }
        let error = AllowList::from_lists(&[], &list(&["*"]), &[]).unwrap_err();
        assert!(error.message().starts_with("entry 1 of `deny_domains`"), "{error}");
    }

    #[test]
    fn a_wrong_entry_is_quoted_as_written_without_a_password() {
        for (text, quoted) in [
            ("htp://x y", r#""htp://x y""#),
            ("a\nb\"c.com", r#""a\nb\"c.com""#),
            ("https://user:hunter2@example.com/", r#""…@example.com/""#),
        ] {
            let error = AllowList::from_lists(&list(&[text]), &[], &[]).expect_err(text);
            let start = format!("entry 1 of `allow_domains` ({quoted}) ");
            assert!(error.message().starts_with(&start), "{error}");
        }
        let long = "x".repeat(10_000);
        assert!(AllowList::from_lists(&[], &[], &[long]).unwrap_err().message().len() < 200);
    }

    #[test]
    fn a_wrong_entry_from_a_flag_is_named_by_its_flag() {
        let addresses = list(&["10.0.0.1:80", "10.0.0.0/8"]);
        let counts = FlagEntryCounts { allow_addresses: 1, ..FlagEntryCounts::default() };
        let error = AllowList::from_merged_lists(&[], &[], &addresses, counts).unwrap_err();
        assert_eq!(
            error.message(),
            "`--allow-address \"10.0.0.0/8\"` is not an address with a port"
        );
        let error =
            AllowList::from_merged_lists(&[], &[], &list(&["10.0.0.0/8", "10.0.0.1:80"]), counts);
        assert_eq!(
            error.unwrap_err().message(),
            "entry 1 of `allow_addresses` (\"10.0.0.0/8\") is not an address with a port"
        );
    }

    #[test]
    fn a_wrong_address_is_named_with_the_way_to_write_it() {
        for text in [
            "",
            "127.0.0.1",
            "127.0.0.1:0",
            "127.0.0.1:http",
            "127.1:80",
            "0177.0.0.1:80",
            "::1:80",
            "[::1]",
            "[fe80::1%1]:80",
            "[::ffff:127.0.0.1]:80",
            "0.0.0.0:80",
            "[::]:80",
            "255.255.255.255:80",
            "224.0.0.1:80",
            "localhost:80",
            "10.0.0.0/8",
        ] {
            let error = AllowList::from_lists(&[], &[], &list(&[text])).expect_err(text);
            assert!(error.message().starts_with("entry 1 of `allow_addresses`"), "{error}");
        }
    }
}
