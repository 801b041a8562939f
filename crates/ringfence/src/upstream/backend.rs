//! One configured server, as all its tools share it.

use std::path::Path;
use std::sync::Arc;

use ringfence_client::config::{ServerConfig, TransportConfig, TrustLevel};
use ringfence_client::oauth::OAuthSettings;
use serde_json::json;

use super::credentials::oauth_settings;
use super::packages::PackageServer;
use super::pool::UpstreamPool;
use super::start::empty_secret_error;
use crate::base::call::digest_json;
use crate::base::{Error, Kind, Result};
use crate::config::secrets::SecretRef;
use crate::config::template::fill::{fill_variable, reveal_secret};
use crate::config::{Config, SecretStore, SecretValues, UpstreamServer, ValueTemplate};
use crate::sandbox::{DedicatedSandbox, DedicatedSpec, SandboxConfig};
use crate::session::Principal;

/// A server with its sandbox and its connections.
pub struct UpstreamBackend {
    pub server: Arc<UpstreamServer>,
    /// Hash of everything that decides what the server is, secrets included: a connection serves
    /// one definition only.
    pub definition: String,
    /// Absent for a remote server.
    pub own_sandbox: Option<Arc<DedicatedSandbox>>,
    /// Present if its command is a package runner.
    pub package: Option<Arc<PackageServer>>,
    pub pool: Arc<UpstreamPool>,
    /// Where logins are kept.
    pub login_store: SecretStore,
    secrets: Arc<SecretValues>,
}

impl UpstreamBackend {
    /// Prepares a server. Nothing is started.
    pub fn new(
        server: &Arc<UpstreamServer>,
        config: &Config,
        default_sandbox: &SandboxConfig,
        pool: &Arc<UpstreamPool>,
    ) -> Result<UpstreamBackend> {
        let package = PackageServer::from_server(server, config, &pool.verified_trees);
        let package = package.map(Arc::new);
        let definition = digest_definition(server, &config.secrets, package.as_deref());
        let own_sandbox = match server.is_stdio() {
            true => Some(Arc::new(DedicatedSandbox::new(
                default_sandbox,
                &config.secrets,
                DedicatedSpec {
                    name: &sandbox_name(&server.id),
                    config_table: server.config_table(),
                    definition: definition.as_str().into(),
                    access: &server.access,
                    secret_refs: server.secret_refs().cloned().collect(),
                    own_variables: server.env.iter().map(|(name, _)| name.clone()).collect(),
                    readable: package.iter().map(|package| package.tree()).collect(),
                },
            )?)),
            false => None,
        };
        Ok(UpstreamBackend {
            server: Arc::clone(server),
            definition,
            own_sandbox,
            package,
            pool: Arc::clone(pool),
            login_store: config.login_store.clone(),
            secrets: Arc::clone(&config.secrets),
        })
    }

    /// Returns the name under which a session keeps its sandbox. No tool can have it.
    pub fn sandbox_name(&self) -> String {
        sandbox_name(&self.server.id)
    }

    /// Returns whether the operator vouches for the server.
    pub fn is_trusted(&self) -> bool {
        self.server.server.trust == TrustLevel::Trusted
    }

    /// Fails if the server cannot be used as it is: a secret is missing or empty, or its package is
    /// not installed. Starts nothing.
    pub fn check_ready(&self) -> Result<()> {
        if let Some(package) = &self.package {
            package.check_installed()?;
        }
        self.server.secret_refs().try_for_each(|one| reveal_value(&self.secrets, one).map(drop))
    }

    /// Returns the configuration of the connection, with the headers that the server gets.
    pub fn connection_config(&self) -> Result<ServerConfig> {
        let mut config = self.server.server.clone();
        if let TransportConfig::Http(remote) | TransportConfig::Sse(remote) = &mut config.transport
        {
            for (name, value) in &self.server.headers {
                let text = fill_value(&self.secrets, value)?;
                if text.contains(['\r', '\n', '\0']) {
                    return Err(Error::new(
                        Kind::Unavailable,
                        format!("the value of the header `{name}` has a line break"),
                    )
                    .with_hint("Have the operator set the secret in it again."));
                }
                remote.headers.insert(name.clone(), text);
            }
        }
        Ok(config)
    }

    /// Returns how a principal logs in to the server. `None` if it needs no login.
    pub(super) fn oauth_settings(&self, principal: &Principal) -> Result<Option<OAuthSettings>> {
        oauth_settings(&self.server, &self.secrets, principal)
    }

    /// Returns the words for what runs, for prompts.
    pub fn describe_place(&self) -> String {
        match &self.server.server.transport {
            TransportConfig::Http(remote) | TransportConfig::Sse(remote) => {
                remote.url.host_str().unwrap_or_default().to_owned()
            }
            TransportConfig::Stdio(stdio) => Path::new(&stdio.command)
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
        }
    }
}

/// Returns a value with its secrets.
pub(super) fn fill_value(secrets: &SecretValues, template: &ValueTemplate) -> Result<String> {
    fill_variable(template, |secret_ref| reveal_value(secrets, secret_ref))
}

fn reveal_value(secrets: &SecretValues, secret_ref: &SecretRef) -> Result<String> {
    let text = reveal_secret(secrets, secret_ref)?;
    match text.is_empty() {
        false => Ok(text),
        true => Err(empty_secret_error(secret_ref.name())),
    }
}

fn sandbox_name(server_id: &str) -> String {
    format!("upstream:{server_id}")
}

/// Returns a hash of the server's entry, its installed files and the values of its secrets, so that
/// a new value makes a new connection. The hash stays in memory.
fn digest_definition(
    server: &UpstreamServer,
    secrets: &SecretValues,
    package: Option<&PackageServer>,
) -> String {
    let values: Vec<Option<String>> =
        server.secret_refs().map(|one| reveal_secret(secrets, one).ok()).collect();
    match package.map(PackageServer::recorded_digest) {
        Some(installed) => digest_json(&json!([server.trust_fingerprint(), values, installed])),
        None => digest_json(&json!([server.trust_fingerprint(), values])),
    }
}
