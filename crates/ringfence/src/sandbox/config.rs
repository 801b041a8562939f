//! What a sandbox needs of the config, as a value of its own.

use std::path::PathBuf;
use std::sync::Arc;

use crate::config::{Config, EscalationMode, SandboxSettings};

/// Settings of one sandbox, and the host that it protects.
#[derive(Debug, Clone)]
pub struct SandboxConfig {
    pub settings: SandboxSettings,
    /// Where commands run that a rule lets out of this sandbox.
    pub escalate: EscalationMode,
    pub host: Arc<HostPaths>,
}

/// Paths and ports of the host that a sandbox hides, shows or uses.
#[derive(Debug)]
pub struct HostPaths {
    /// Directory for runtime files.
    pub root: PathBuf,
    /// The user's own home directory.
    pub home: Option<PathBuf>,
    pub codex_home: Option<PathBuf>,
    pub rustup_home: Option<PathBuf>,
    /// Paths that variables name as the location of credentials, each with the name of its
    /// variable.
    pub credential_paths: Vec<(&'static str, PathBuf)>,
    /// Files that hold secrets or keys.
    pub private_paths: Vec<PathBuf>,
    pub config_file: Option<PathBuf>,
    pub log_file: Option<PathBuf>,
    /// Ports that this server listens on.
    pub server_ports: Vec<u16>,
}

impl SandboxConfig {
    /// Returns the sandbox that commands get unless something else is configured for them.
    pub fn from_config(config: &Config) -> SandboxConfig {
        SandboxConfig {
            settings: config.default_sandbox.clone(),
            escalate: config.policy.escalate,
            host: Arc::new(HostPaths {
                root: config.root.clone(),
                home: config.home.clone(),
                codex_home: config.codex_home.clone(),
                rustup_home: config.rustup_home.clone(),
                credential_paths: config.credential_paths.clone(),
                private_paths: config.private_paths.clone(),
                config_file: config.file.clone(),
                log_file: config.log.file.clone(),
                server_ports: config.http.listen.iter().map(std::net::SocketAddr::port).collect(),
            }),
        }
    }

    /// Returns a sandbox with other settings on the same host.
    pub fn with_settings(&self, settings: SandboxSettings) -> SandboxConfig {
        SandboxConfig { settings, escalate: self.escalate, host: Arc::clone(&self.host) }
    }
}
