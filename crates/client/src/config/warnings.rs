//! Checks of a valid configuration: settings that are probably not intended, and auth providers.

use std::collections::BTreeSet;

use url::{Host, Url};

use super::problem::{ConfigProblem, ProblemList, child_path, quote_text};
use super::{ClientConfig, RemoteTransport};
use crate::Result;

impl ClientConfig {
    /// Returns a line for each setting that works, but probably not as intended.
    pub fn warnings(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (path, remote) in self.remote_transports() {
            if is_unencrypted(&remote.url) {
                let host = remote.url.host_str().unwrap_or_default();
                lines.push(format!(
                    "{path}.url: requests to {host} are not encrypted. \
                     Use https, unless the network is trusted."
                ));
            }
        }
        for (id, bundle) in &self.bundles {
            let path = child_path("bundles", id);
            let no_tools = BTreeSet::new();
            let allowed = bundle.allow_tools.as_ref().unwrap_or(&no_tools);
            for (key, names) in [("allowTools", allowed), ("denyTools", &bundle.deny_tools)] {
                // A pattern in a deny-list would deny nothing, without any other sign of it.
                for name in names.iter().filter(|name| name.contains('*')) {
                    let name = quote_text(name);
                    lines.push(format!(
                        "{path}.{key}: {name} is compared literally. List the names of the tools."
                    ));
                }
            }
        }
        lines
    }

    /// Checks that every `authProviderId` is known.
    pub fn check_auth_providers(&self, known: impl Fn(&str) -> bool) -> Result<()> {
        let mut problems = ProblemList::default();
        for (path, remote) in self.remote_transports() {
            let Some(id) = remote.auth_provider_id.as_deref().filter(|id| !known(id)) else {
                continue;
            };
            problems.add(ConfigProblem {
                path: format!("{path}.authProviderId"),
                ..ConfigProblem::with_source(
                    0,
                    format!("there is no auth provider {}", quote_text(id)),
                    "Correct the id, or register a provider with this id.",
                )
            });
        }
        problems.into_result((), &[])
    }

    /// Returns the transports of remote servers with their paths.
    fn remote_transports(&self) -> impl Iterator<Item = (String, &RemoteTransport)> {
        self.servers.iter().filter_map(|(id, server)| {
            let path = format!("{}.transport", child_path("servers", id));
            server.transport.as_remote().map(|remote| (path, remote))
        })
    }
}

/// Returns whether requests leave this machine in plain text.
fn is_unencrypted(url: &Url) -> bool {
    let is_loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    url.scheme() == "http" && !is_loopback
}

#[cfg(test)]
mod tests {
    use super::super::parse_config;
    use super::*;

    fn config_with(transports: &[(&str, &str)]) -> ClientConfig {
        let servers: Vec<String> = transports
            .iter()
            .map(|(id, keys)| {
                format!(
                    r#""{id}": {{"trust": "trusted", "transport": {{"type": "http", {keys}}}}}"#
                )
            })
            .collect();
        parse_config(&format!(r#"{{"servers": {{{}}}}}"#, servers.join(","))).unwrap()
    }

    #[test]
    fn plain_http_to_another_host_is_reported() {
        for url in [
            "http://example.com/mcp",
            "http://localhost.example.com",
            "http://128.0.0.1",
            "http://0.0.0.0",
            "http://[::2]:80",
        ] {
            let warnings = config_with(&[("s", &format!("\"url\": \"{url}\""))]).warnings();
            assert_eq!(warnings.len(), 1, "{url}: {warnings:?}");
            assert!(
                warnings[0].starts_with("servers.s.transport.url: requests to "),
                "{warnings:?}"
            );
        }
    }

    #[test]
    fn encrypted_and_local_requests_are_not_reported() {
        for url in [
            "https://example.com/mcp",
            "http://localhost:4010/mcp",
            "http://LOCALHOST",
            "http://127.0.0.1",
            "http://127.255.0.9:8080",
            "http://[::1]:8080",
        ] {
            let warnings = config_with(&[("s", &format!("\"url\": \"{url}\""))]).warnings();
            assert_eq!(warnings, [""; 0], "{url}");
        }
    }

    #[test]
    fn a_warning_does_not_show_the_query() {
        let config = config_with(&[("s", r#""url": "http://example.com/?token=hunter2""#)]);
        assert!(!config.warnings().concat().contains("hunter2"));
    }

    #[test]
    fn a_pattern_in_a_list_of_tools_is_reported() {
        let mut config = config_with(&[("s", r#""url": "https://example.com""#)]);
        let bundles = r#"{"servers": {"s": {"trust": "trusted", "transport": {"type": "stdio",
            "command": "x"}}}, "bundles": {"b.1": {"serverId": "s", "mode": "meta",
            "allowTools": ["read", "get*"], "denyTools": ["*"]}}}"#;
        config.bundles = parse_config(bundles).unwrap().bundles;
        let warnings = config.warnings();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].starts_with("bundles.\"b.1\".allowTools: \"get*\" is"), "{warnings:?}");
        assert!(warnings[1].starts_with("bundles.\"b.1\".denyTools: \"*\" is"), "{warnings:?}");
    }

    #[test]
    fn unknown_auth_providers_are_all_reported() {
        let keys = |id: &str| format!(r#""url": "https://a", "authProviderId": "{id}""#);
        let (known, one, two) = (keys("known"), keys("one"), keys("two"));
        let config =
            config_with(&[("a", &known), ("b", &one), ("c", r#""url": "https://a""#), ("d", &two)]);
        let error = config.check_auth_providers(|id| id == "known").unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidConfig);
        let lines: Vec<&str> = error.message().lines().collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        for (line, start) in lines.iter().zip([
            "servers.b.transport.authProviderId: there is no auth provider \"one\".",
            "servers.d.transport.authProviderId: there is no auth provider \"two\".",
        ]) {
            assert!(line.starts_with(start), "{line}");
        }
    }

    #[test]
    fn known_auth_providers_are_accepted() {
        let config = config_with(&[("a", r#""url": "https://a", "authProviderId": "x""#)]);
        assert!(config.check_auth_providers(|id| id == "x").is_ok());
    }
}
