//! Configuration of servers and bundles: which servers exist, how to reach them, and which of
//! their tools may be used.
//!
//! [`load_config`] merges the sources and validates the result; [`parse_config`] validates one
//! text. Values of headers and environment variables may be secrets, so no error and no `Debug`
//! output of this module contains one.

mod bundle;
mod discover;
mod entry;
mod load;
mod location;
mod merge;
mod parse;
mod problem;
#[cfg(test)]
pub(crate) mod scratch;
mod source;
mod transport;
mod tree;
mod warnings;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use url::Url;

pub use bundle::{BundleConfig, BundleMode};
pub use discover::discover_config_path;
pub use load::{CONFIG_JSON_VARIABLE, CONFIG_PATH_VARIABLE};
pub use load::{ConfigContents, EnvSource, LoadOptions, LoadedConfig, load_config, load_contents};
pub use location::KeyLocations;
pub use parse::parse_config;
pub use source::{ConfigOrigin, FileOrigin};
pub use tree::MAX_CONFIG_BYTES;

/// Validated configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientConfig {
    /// Servers by id.
    pub servers: BTreeMap<String, ServerConfig>,
    /// Bundles by id. Each names a server of `servers`.
    pub bundles: BTreeMap<String, BundleConfig>,
}

/// Configuration of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// Whether the operator vouches for it.
    pub trust: TrustLevel,
    /// How to reach it.
    pub transport: TransportConfig,
}

/// Whether the operator vouches for a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TrustLevel {
    /// A bundle may offer all tools of the server.
    Trusted,
    /// A bundle offers only the tools of its allow-list.
    Untrusted,
}

impl TrustLevel {
    /// Returns the name used in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            TrustLevel::Trusted => "trusted",
            TrustLevel::Untrusted => "untrusted",
        }
    }
}

/// How to reach a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransportConfig {
    /// Streamable HTTP.
    Http(RemoteTransport),
    /// HTTP with server-sent events, as in the protocol version of 2024.
    Sse(RemoteTransport),
    /// Standard input and output of a local process.
    Stdio(StdioTransport),
}

impl TransportConfig {
    /// Returns the value of `type` in the configuration.
    pub fn type_name(&self) -> &'static str {
        match self {
            TransportConfig::Http(_) => "http",
            TransportConfig::Sse(_) => "sse",
            TransportConfig::Stdio(_) => "stdio",
        }
    }

    /// Returns the settings of a remote server; `None` for a local process.
    pub fn as_remote(&self) -> Option<&RemoteTransport> {
        match self {
            TransportConfig::Http(remote) | TransportConfig::Sse(remote) => Some(remote),
            TransportConfig::Stdio(_) => None,
        }
    }
}

/// Address of a remote server, and what to send with each request.
#[derive(Clone, PartialEq, Eq)]
pub struct RemoteTransport {
    /// An `http` or `https` URL without user info and fragment.
    pub url: Url,
    /// Additional headers. No two names differ only in case.
    pub headers: BTreeMap<String, String>,
    /// Id of the provider that authorizes requests.
    pub auth_provider_id: Option<String>,
}

/// Command that starts a local server.
#[derive(Clone, PartialEq, Eq)]
pub struct StdioTransport {
    /// Name or path of the program, as configured.
    pub command: String,
    /// Arguments after the program name.
    pub args: Vec<String>,
    /// Working directory; absolute if the configuration was loaded by [`load_config`].
    pub cwd: Option<PathBuf>,
    /// Additional environment variables.
    pub env: BTreeMap<String, String>,
}

impl fmt::Debug for RemoteTransport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Some servers take their access token in the query.
        let mut url = self.url.clone();
        if url.query().is_some() {
            url.set_query(Some("..."));
        }
        formatter
            .debug_struct("RemoteTransport")
            .field("url", &url.as_str())
            .field("headers", &HiddenValues(&self.headers))
            .field("auth_provider_id", &self.auth_provider_id)
            .finish()
    }
}

impl fmt::Debug for StdioTransport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("StdioTransport")
            .field("command", &self.command)
            .field("args", &self.args)
            .field("cwd", &self.cwd)
            .field("env", &HiddenValues(&self.env))
            .finish()
    }
}

/// Shows the names of a map without its values, which may be secrets.
struct HiddenValues<'a>(&'a BTreeMap<String, String>);

impl fmt::Debug for HiddenValues<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_map().entries(self.0.keys().map(|name| (name, "..."))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_shows_names_but_no_values() {
        let config = parse_config(
            r#"{"servers": {
                "a": {"trust": "trusted", "transport": {"type": "http",
                    "url": "https://example.com/mcp?token=hunter2",
                    "headers": {"Authorization": "Bearer hunter2"}}},
                "b": {"trust": "trusted", "transport": {"type": "stdio",
                    "command": "serve", "args": ["--fast"], "env": {"API_KEY": "hunter2"}}}
            }}"#,
        )
        .unwrap();
        for shown in [format!("{config:?}"), format!("{config:#?}")] {
            assert!(!shown.contains("hunter2"), "{shown}");
            for name in ["https://example.com/mcp?...", "Authorization", "API_KEY", "--fast"] {
                assert!(shown.contains(name), "{name} is missing in {shown}");
            }
        }
    }
}
