//! Sandbox in which a package manager installs a server: it can write one directory, which is also
//! its HOME, and reach the registry.
//!
//! What it downloads is code of strangers, which may run while it is installed, so it has neither
//! the workspace nor the network of the session that asked for it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jail::rights::Rights;

use super::config::SandboxConfig;
use super::launcher::Launcher;
use super::profile;
use super::session_sandbox::SessionSandbox;
use crate::base::{Error, Kind, Result};
use crate::config::{EscalationMode, FlagEntryCounts, ProfileSetting, SandboxSettings};

/// What an installation may touch and reach.
#[derive(Debug, Clone)]
pub struct InstallSpec<'a> {
    /// The only writable directory.
    pub directory: &'a Path,
    /// HOME, inside it.
    pub home: &'a Path,
    /// The workspace, which it does not see.
    pub workspace: &'a Path,
    /// Programs that must stay visible.
    pub programs: &'a [PathBuf],
    /// Host names it may reach.
    pub allow_domains: Vec<String>,
    /// Addresses it may reach, `address:port`.
    pub allow_addresses: Vec<String>,
}

/// Opens a sandbox for an installation. It shares nothing with any other.
pub fn open_install_sandbox(
    default_config: &SandboxConfig,
    spec: InstallSpec<'_>,
) -> Result<Arc<SessionSandbox>> {
    if default_config.settings.profile == ProfileSetting::Contained {
        return Err(Error::new(
            Kind::Unavailable,
            "the profile `contained` cannot limit an installation to the registry",
        )
        .with_reason("sandbox")
        .with_hint("Install the server by hand, and name its program as `command`."));
    }
    let settings = SandboxSettings {
        profile: ProfileSetting::Default,
        allow_network: false,
        allow_domains: spec.allow_domains,
        allow_addresses: spec.allow_addresses,
        flag_entries: FlagEntryCounts::default(),
        writable: Vec::new(),
        protect: Vec::new(),
        unprotect: Vec::new(),
        ..default_config.settings.clone()
    };
    let config =
        SandboxConfig { escalate: EscalationMode::Off, ..default_config.with_settings(settings) };
    let mut hidden = profile::hidden_paths(&config, spec.directory);
    if can_hide(spec.workspace, &config, spec.programs) {
        hidden.push(spec.workspace.to_owned());
    }
    let rights = Rights {
        workspace: spec.directory.to_owned(),
        home: Some(spec.home.to_owned()),
        network: config.settings.network_mode(),
        // Nothing here is a project, so nothing here steers git or an agent.
        git_protected: Some(Vec::new()),
        hidden,
        ..Rights::default()
    };
    SessionSandbox::from_rights(rights, &config, Launcher::from_current_exe()).map(Arc::new)
}

/// Returns whether the workspace contains nothing that the installation needs, such as the user's
/// home with the package manager.
fn can_hide(workspace: &Path, config: &SandboxConfig, programs: &[PathBuf]) -> bool {
    let needed = config.host.home.iter().chain([&config.host.root]).chain(programs);
    let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    workspace.parent().is_some()
        && !needed
            .into_iter()
            .any(|path| path.starts_with(workspace) || real(path).starts_with(workspace))
}
