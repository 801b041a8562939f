//! Other MCP servers ("upstreams"), and what is offered of them.
//!
//! The upstreams file says which servers exist and which of their tools bundles offer; its format
//! belongs to `ringfence-client`. The tables `[upstream.<id>]` of config.toml say what that format
//! has no place for: the sandbox of a server, approval and time limits. [`load`] finds and reads
//! the file, [`servers`] joins both.

pub mod load;
pub mod login;
pub mod servers;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ringfence_client::LockFile;
use ringfence_client::config::{
    BundleConfig, BundleMode, KeyLocations, ServerConfig, TransportConfig,
};
use serde_json::{Map, Value, json};

use self::login::UpstreamLogin;
use super::secrets::SecretRef;
use super::{DeclaredAccess, UpstreamApproval, UpstreamShare, ValueTemplate, upstream_key};

/// Other MCP servers and what is offered of them.
#[derive(Debug, Clone, Default)]
pub struct UpstreamConfig {
    /// Servers by id.
    pub servers: BTreeMap<String, Arc<UpstreamServer>>,
    /// Bundles by id.
    pub bundles: BTreeMap<String, BundleConfig>,
    /// The upstreams file, if one was read.
    pub file: Option<PathBuf>,
    /// Where the keys of servers and bundles were written.
    pub locations: Arc<KeyLocations>,
    /// File with the accepted definitions: `mcp.lock` next to the upstreams file; below the root if
    /// the servers come from the environment alone or from a discovered file.
    pub lock_path: Option<PathBuf>,
    /// Accepted definitions, as they were read with the config.
    pub lock: Arc<LockFile>,
    /// A file that was discovered and is not trusted, so that it was not used.
    pub untrusted_file: Option<PathBuf>,
    /// Files to watch for changes; they need not exist yet.
    pub watched_files: Vec<PathBuf>,
}

impl UpstreamConfig {
    /// Returns whether any bundle is for the meta tools.
    pub fn has_meta_bundle(&self) -> bool {
        self.bundles.values().any(|bundle| bundle.mode == BundleMode::Meta)
    }
}

/// One server, with its `[upstream.<id>]` table.
#[derive(Clone)]
pub struct UpstreamServer {
    /// Its id in the upstreams file.
    pub id: String,
    /// As the upstreams file has it; values of `env` and `headers` are in the templates below
    /// instead.
    pub server: ServerConfig,
    /// Variables of a stdio server: those of the upstreams file, then those of config.toml.
    pub env: Vec<(String, ValueTemplate)>,
    /// Headers of a remote server.
    pub headers: Vec<(String, ValueTemplate)>,
    /// What a stdio server may touch.
    pub access: DeclaredAccess,
    /// Working directory in the workspace; the workspace if absent.
    pub cwd: Option<PathBuf>,
    /// When calls need approval.
    pub approval: UpstreamApproval,
    /// Who may use the same connection.
    pub share: UpstreamShare,
    /// The server may ask the client's model.
    pub allows_sampling: bool,
    /// Time limit of one call.
    pub call_timeout: Duration,
    /// Time limit of connecting or starting.
    pub start_timeout: Duration,
    /// Time after which an unused connection is closed.
    pub idle_timeout: Duration,
    /// How to log in. Absent for a server without `authProviderId: "oauth"`.
    pub login: Option<UpstreamLogin>,
}

impl UpstreamServer {
    /// Returns the secrets that it refers to.
    pub fn secret_refs(&self) -> impl Iterator<Item = &SecretRef> {
        self.templates().flat_map(|template| template.secret_refs())
    }

    /// Returns the values of its variables and headers, and the secret of its client.
    fn templates(&self) -> impl Iterator<Item = &ValueTemplate> {
        let values = self.env.iter().chain(&self.headers).map(|(_, template)| template);
        values.chain(self.login.iter().filter_map(|login| login.client_secret.as_ref()))
    }

    /// Returns whether it is a local process.
    pub fn is_stdio(&self) -> bool {
        matches!(self.server.transport, TransportConfig::Stdio(_))
    }

    /// Returns the config table with its settings, such as `[upstream.git]`.
    pub fn config_table(&self) -> String {
        format!("[{}]", upstream_key(&self.id))
    }

    /// Returns everything that decides what the server is; connections and trust are bound to
    /// this. It contains variables and headers as written, so it is to be hashed, not shown.
    pub fn trust_fingerprint(&self) -> Value {
        let texts = |templates: &[(String, ValueTemplate)]| -> Map<String, Value> {
            templates.iter().map(|(name, value)| (name.clone(), json!(value.text))).collect()
        };
        let target = match &self.server.transport {
            TransportConfig::Stdio(stdio) => json!({"command": stdio.command, "args": stdio.args}),
            TransportConfig::Http(remote) | TransportConfig::Sse(remote) => {
                json!({"url": remote.url.as_str(), "auth": remote.auth_provider_id})
            }
        };
        json!({
            "type": self.server.transport.type_name(), "trust": self.server.trust.name(),
            "target": target, "cwd": self.cwd, "env": texts(&self.env),
            "headers": texts(&self.headers), "access": self.access.trust_fingerprint(),
            "sampling": self.allows_sampling, "share": self.share.name(),
            "login": self.login.as_ref().map(UpstreamLogin::trust_fingerprint),
        })
    }
}

impl fmt::Debug for UpstreamServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values in the upstreams file may be secrets.
        let names = |templates: &[(String, ValueTemplate)]| -> Vec<String> {
            templates.iter().map(|(name, _)| name.clone()).collect()
        };
        formatter
            .debug_struct("UpstreamServer")
            .field("id", &self.id)
            .field("server", &self.server)
            .field("env", &names(&self.env))
            .field("headers", &names(&self.headers))
            .field("access", &self.access)
            .field("approval", &self.approval)
            .field("share", &self.share)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
