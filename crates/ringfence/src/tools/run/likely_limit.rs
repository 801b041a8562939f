//! Hint for a failed command whose output points at the sandbox.
//!
//! "Read-only file system" does not say who made it read-only, and a name that cannot be resolved
//! does not say that the network is off. The hint names the likely limit and the setting that lifts
//! it. It is a guess from the messages of programs, so it says "likely" and changes nothing else
//! about the result.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use jail::rights::NetworkAccess;
use serde_json::{Map, Value};

use crate::config::ProfileSetting;
use crate::tools::RunCx;

/// The reason for a failure is near the end of the output.
const TAIL_BYTES: usize = 16 << 10;
/// Maximum number of names in one hint.
const MAX_NAMES: usize = 5;

/// Messages of programs and runtimes for a file system that cannot be written, or a protected path
/// that cannot be moved.
const READ_ONLY: &[&str] = &["read-only file system", "erofs", "device or resource busy", "ebusy"];
/// Messages for a directory in the place of a file to be written.
const IS_DIRECTORY: &[&str] = &["is a directory", "eisdir"];
/// Messages for a name that was not resolved or a network that was not reached.
const UNREACHED: &[&str] = &[
    "could not resolve",
    "couldn't resolve",
    "unable to resolve",
    "name resolution",
    "name or service not known",
    "enotfound",
    "eai_again",
    "no such host",
    "server misbehaving",
    "failed to lookup address",
    "dns error",
    "network is unreachable",
    "enetunreach",
];
const REFUSED: &[&str] = &["connection refused", "econnrefused", "actively refused"];

/// The limits that a run was subject to.
struct EffectiveLimits {
    /// The config table with the settings for it.
    section: String,
    /// Its config entry declares no writes, so the workspace is read-only for it.
    declares_no_writes: bool,
    /// The mode of the client's own sandbox; the next two fields say what it takes away.
    client_mode: Option<String>,
    read_only_by_client: bool,
    offline_by_client: bool,
    /// Directories that the client requested and did not get.
    refused_roots: Vec<PathBuf>,
    network: NetworkAccess,
}

impl EffectiveLimits {
    fn from_cx(cx: &RunCx) -> EffectiveLimits {
        let rights = cx.settings.workspace.rights();
        let declares_no_writes =
            cx.settings.own_sandbox.as_ref().is_some_and(|own_sandbox| own_sandbox.is_read_only());
        EffectiveLimits {
            section: cx
                .settings
                .own_sandbox
                .as_ref()
                .map_or("[sandbox]".to_owned(), |own_sandbox| {
                    own_sandbox.config_table().to_owned()
                }),
            declares_no_writes,
            client_mode: cx.settings.workspace.client_sandbox_mode().map(str::to_owned),
            read_only_by_client: rights.read_only && !declares_no_writes,
            offline_by_client: cx.settings.workspace.denies_network(),
            refused_roots: cx.settings.workspace.refused_roots().to_vec(),
            network: rights.network,
        }
    }
}

/// Returns the hint for a command that failed with this output and these denials.
pub fn hint_for_failure(
    cx: &RunCx,
    profile: ProfileSetting,
    output: &[&str],
    denials: &[Map<String, Value>],
) -> Option<String> {
    match profile {
        ProfileSetting::None => None,
        _ => EffectiveLimits::from_cx(cx).explain_failure(output, denials),
    }
}

/// Returns the file names of protected paths that are not directories.
fn protected_files() -> Vec<&'static str> {
    let names =
        jail::control_files::list_names().filter_map(|(name, _)| name.file_name()?.to_str());
    names.filter(|name| name.ends_with(".json") || *name == ".envrc").collect()
}

impl EffectiveLimits {
    fn explain_failure(&self, output: &[&str], denials: &[Map<String, Value>]) -> Option<String> {
        let text: Vec<String> =
            output.iter().map(|text| output_tail(text).to_lowercase()).collect();
        let mentions = |phrases: &[&str]| {
            text.iter().any(|text| phrases.iter().any(|phrase| text.contains(phrase)))
        };
        let hosts = UnreachedHosts::from_denials(denials);
        // A directory is the stand-in for a protected file that does not exist.
        let hits_stand_in = mentions(IS_DIRECTORY) && mentions(&protected_files());
        let write_hint = (mentions(READ_ONLY) || hits_stand_in).then(|| self.explain_read_only());
        let network_hint = match self.network {
            NetworkAccess::All => None,
            _ if !hosts.is_empty() || mentions(UNREACHED) => Some(self.explain_network(&hosts)),
            _ if mentions(REFUSED) => Some(self.explain_localhost()),
            _ => None,
        };
        let hints: Vec<String> = write_hint.into_iter().chain(network_hint).collect();
        (!hints.is_empty()).then(|| hints.join(" "))
    }

    fn explain_read_only(&self) -> String {
        let EffectiveLimits { section, .. } = self;
        let mode = self.client_mode.as_deref().unwrap_or_default();
        let mut hint = match (self.declares_no_writes, self.read_only_by_client) {
            (true, _) => format!(
                "Likely the sandbox: this tool's entry does not declare that it writes. The operator can add \
                 `side_effects = [\"filesystem_write\"]` under {section}."
            ),
            (_, true) => format!(
                "Likely the client's own sandbox: its mode `{mode}` leaves parts of the workspace read-only. Change it \
                 in the client."
            ),
            _ => "Likely the sandbox: only the workspace, HOME and /tmp can be written, and protected paths such as \
                 .git/hooks and .claude cannot. The operator can open a directory with `writable` under [sandbox], a \
                 protected path with `unprotect`."
                .to_owned(),
        };
        if !self.refused_roots.is_empty() {
            let roots = join_names(
                self.refused_roots.iter().map(|root| format!("{:?}", root.display().to_string())),
            );
            hint.push_str(&format!(
                " The client asked to write {roots}, outside the workspace; the operator can open that with `writable = \
                 [{roots}]` under [sandbox]."
            ));
        }
        hint
    }

    fn explain_network(&self, hosts: &UnreachedHosts) -> String {
        let EffectiveLimits { section, .. } = self;
        if self.offline_by_client {
            let mode = self.client_mode.as_deref().unwrap_or_default();
            return format!(
                "Likely the client's own sandbox: its mode `{mode}` has no network{}. Change it in the client.",
                hosts.format_hosts()
            );
        }
        let limit = match self.network {
            NetworkAccess::Proxied => {
                "only some names can be reached, through the proxy in HTTPS_PROXY"
            }
            _ => "there is no network but the session's own localhost",
        };
        format!(
            "Likely the sandbox: {limit}{}. The operator can open it with {} under {section}.",
            hosts.format_hosts(),
            hosts.format_settings()
        )
    }

    fn explain_localhost(&self) -> String {
        format!(
            "Likely the sandbox: localhost is the session's own, so services of the host are not reached there. Start \
             the service in this session, or have the operator open it with `allow_addresses = [\"127.0.0.1:PORT\"]` \
             under {}.",
            self.section
        )
    }
}

/// The hosts that a run tried to reach and could not.
#[derive(Default)]
struct UnreachedHosts {
    names: Vec<String>,
    addresses: Vec<String>,
}

impl UnreachedHosts {
    fn from_denials(denials: &[Map<String, Value>]) -> UnreachedHosts {
        let mut hosts = UnreachedHosts::default();
        let text = |denial: &'_ Map<String, Value>, key: &str| {
            denial.get(key).and_then(Value::as_str).map(str::to_owned)
        };
        let network =
            denials.iter().filter(|denial| text(denial, "kind").as_deref() == Some("network"));
        for name in network.filter_map(|denial| text(denial, "name")) {
            let host = name.rsplit_once(':').map_or(name.as_str(), |(host, _)| host);
            let (list, entry) =
                match host.parse::<IpAddr>().is_ok() || name.parse::<SocketAddr>().is_ok() {
                    true => (&mut hosts.addresses, name.as_str()),
                    false => (&mut hosts.names, host),
                };
            // "…" collects names that were not listed separately, and anything but a plain name
            // could be an attempt to inject text.
            let is_plain = |c: char| {
                c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']')
            };
            if entry.contains('.')
                && entry.chars().all(is_plain)
                && !list.iter().any(|known| known == entry)
            {
                list.push(entry.to_owned());
            }
        }
        hosts
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.addresses.is_empty()
    }

    /// Returns the hosts as part of a sentence.
    fn format_hosts(&self) -> String {
        let hosts = self.names.iter().chain(&self.addresses).cloned();
        if self.is_empty() {
            String::new()
        } else {
            format!(", and this run wanted {}", join_names(hosts))
        }
    }

    /// Returns the settings that allow them.
    fn format_settings(&self) -> String {
        let quoted = |names: &[String]| join_names(names.iter().map(|name| format!("\"{name}\"")));
        let mut keys = Vec::new();
        if !self.names.is_empty() || self.addresses.is_empty() {
            let names =
                if self.names.is_empty() { "\"HOST\"".to_owned() } else { quoted(&self.names) };
            keys.push(format!("`allow_domains = [{names}]`"));
        }
        if !self.addresses.is_empty() {
            keys.push(format!("`allow_addresses = [{}]`", quoted(&self.addresses)));
        }
        keys.join(" and ")
    }
}

fn join_names(items: impl Iterator<Item = String>) -> String {
    items.take(MAX_NAMES).collect::<Vec<_>>().join(", ")
}

fn output_tail(text: &str) -> &str {
    let start = text.len().saturating_sub(TAIL_BYTES);
    // Move forward to the next character boundary; the end of the text is one.
    let start = (start..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    &text[start..]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn limits(network: NetworkAccess) -> EffectiveLimits {
        EffectiveLimits {
            section: "[sandbox]".to_owned(),
            declares_no_writes: false,
            client_mode: None,
            read_only_by_client: false,
            offline_by_client: false,
            refused_roots: Vec::new(),
            network,
        }
    }

    #[test]
    fn ordinary_failures_get_no_hint() {
        for network in [NetworkAccess::Off, NetworkAccess::Proxied, NetworkAccess::All] {
            assert_eq!(
                limits(network)
                    .explain_failure(&["error: 2 tests failed", "No such file or directory"], &[]),
                None
            );
        }
        assert_eq!(
            limits(NetworkAccess::All)
                .explain_failure(&["", "Could not resolve host: example.com"], &[]),
            None
        );
    }

    #[test]
    fn a_wanted_host_is_named_with_its_key() {
        let denials: Vec<Map<String, Value>> = [
            json!({"kind": "network", "name": "registry.npmjs.org", "count": 3}),
            json!({"kind": "network", "name": "registry.npmjs.org:443", "count": 1}),
            json!({"kind": "network", "name": "192.0.2.7:5432", "count": 1}),
            json!({"kind": "network", "name": "[2001:db8::1]:80", "count": 1}),
            json!({"kind": "network", "name": "…", "count": 1}),
            json!({"kind": "syscall", "name": "unshare", "count": 1}),
        ]
        .iter()
        .filter_map(|denial| denial.as_object().cloned())
        .collect();
        let hint = limits(NetworkAccess::Off).explain_failure(&["", ""], &denials).unwrap();
        assert!(hint.starts_with("Likely the sandbox: there is no network but"), "{hint}");
        assert!(hint.contains("wanted registry.npmjs.org, 192.0.2.7:5432"), "{hint}");
        let keys = "`allow_domains = [\"registry.npmjs.org\"]` and `allow_addresses = [\"192.0.2.7:5432\"]`";
        assert!(hint.contains(keys) && hint.ends_with("under [sandbox]."), "{hint}");
    }

    #[test]
    fn who_set_a_limit_decides_where_it_is_opened() {
        let read_only = &["", "touch: cannot touch 'x': Read-only file system"];
        let entry = EffectiveLimits {
            declares_no_writes: true,
            section: "[mcp.lint]".to_owned(),
            ..limits(NetworkAccess::Off)
        };
        let hint = entry.explain_failure(read_only, &[]).unwrap();
        assert!(hint.contains("side_effects = [\"filesystem_write\"]` under [mcp.lint]"), "{hint}");

        let mode = Some("read-only".to_owned());
        let client = EffectiveLimits {
            read_only_by_client: true,
            client_mode: mode.clone(),
            ..limits(NetworkAccess::Off)
        };
        let hint = client.explain_failure(read_only, &[]).unwrap();
        assert!(hint.contains("`read-only`") && hint.contains("Change it in the client"), "{hint}");

        let offline = EffectiveLimits {
            offline_by_client: true,
            client_mode: mode,
            ..limits(NetworkAccess::Off)
        };
        let hint =
            offline.explain_failure(&["getaddrinfo EAI_AGAIN example.com", ""], &[]).unwrap();
        assert!(hint.contains("client's own sandbox") && !hint.contains("allow_domains"), "{hint}");

        let roots = EffectiveLimits {
            refused_roots: vec!["/srv/cache".into()],
            ..limits(NetworkAccess::Off)
        };
        let hint = roots.explain_failure(read_only, &[]).unwrap();
        assert!(hint.contains("`writable = [\"/srv/cache\"]` under [sandbox]"), "{hint}");
    }

    #[test]
    fn only_the_end_of_a_long_output_is_looked_at() {
        let long = format!("Connection refused{}", "é".repeat(TAIL_BYTES));
        assert_eq!(limits(NetworkAccess::Off).explain_failure(&[&long, ""], &[]), None);
        let hint = limits(NetworkAccess::Off)
            .explain_failure(&["", "connect ECONNREFUSED 127.0.0.1:5432"], &[])
            .unwrap();
        assert!(hint.contains("localhost is the session's own"), "{hint}");
    }
}
