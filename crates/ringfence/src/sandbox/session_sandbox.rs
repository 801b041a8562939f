//! One sandbox of a session, with everything in it that outlives a single run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jail::SandboxProfile;
use jail::limits::ResourceLimits;
use jail::packet::PacketChannel;
use jail::rights::{NetworkAccess, Rights};

use super::config::SandboxConfig;
use super::env::merge_env;
use super::launcher::Launcher;
use super::profile;
use super::zygote::Zygote;
use crate::base::Result;
use crate::config::ProfileSetting;
use crate::net::AllowList;

/// Sandbox that a session owns and that ends with the session.
pub struct SessionSandbox {
    pub profile: ProfileSetting,
    pub rights: Rights,
    pub limits: ResourceLimits,
    /// Variables that programs need to work in the sandbox.
    pub env: Vec<(String, String)>,
    /// Local ports that runs may not reach: those of this server.
    pub shut_ports: Vec<u16>,
    /// Allow-list for a run with a proxy.
    pub(super) allow: Option<Arc<AllowList>>,
    pub(super) launcher: Launcher,
    pub(super) zygote: Option<Zygote>,
    /// Held so that it is removed with the session.
    _scratch: Option<profile::ScratchDir>,
}

impl SessionSandbox {
    /// Creates another sandbox with the same rights that shares nothing with this one, optionally
    /// with its own HOME.
    pub(super) fn clone_isolated(&self, home: Option<PathBuf>) -> SessionSandbox {
        let (mut rights, mut env) = (self.rights.clone(), self.env.clone());
        if let Some(home) = home {
            env = merge_env(env, vec![("HOME".to_owned(), home.display().to_string())]);
            rights.home = Some(home);
        }
        SessionSandbox {
            profile: self.profile,
            limits: self.limits.clone(),
            env,
            shut_ports: self.shut_ports.clone(),
            allow: self.allow.clone(),
            launcher: self.launcher.clone(),
            zygote: self
                .zygote
                .as_ref()
                .map(|_| Zygote::new(self.launcher.clone(), rights.clone())),
            rights,
            _scratch: None,
        }
    }

    /// Returns whether the sandbox hides everything that is private by now: once it is built,
    /// nothing more can be hidden in it.
    pub(super) fn hides_private_paths(&self, config: &SandboxConfig) -> bool {
        profile::hides_private_paths(&self.rights, config)
    }

    /// Builds a sandbox with these rights. Its processes are started with its first run.
    pub(super) fn from_rights(
        mut rights: Rights,
        config: &SandboxConfig,
        launcher: Launcher,
    ) -> Result<SessionSandbox> {
        profile::check_profile(config)?;
        let profile = config.settings.profile;
        let scratch = profile::ScratchDir::create(config, &mut rights)?;
        let env = match profile {
            ProfileSetting::None => Vec::new(),
            _ => profile::sandbox_environment(config, &rights),
        };
        let zygote = (profile == ProfileSetting::Default)
            .then(|| Zygote::new(launcher.clone(), rights.clone()));
        let allow = profile::proxy_allow_list(config)?.map(Arc::new);
        Ok(SessionSandbox {
            profile,
            rights,
            limits: config.settings.limits.clone(),
            env,
            shut_ports: config.host.server_ports.clone(),
            allow,
            _scratch: scratch,
            launcher,
            zygote,
        })
    }

    /// Builds a sandbox whose zygote is set up with these rights already, and ends with this
    /// process.
    pub(super) fn from_zygote(
        rights: Rights,
        config: &SandboxConfig,
        launcher: Launcher,
        channel: Arc<PacketChannel>,
    ) -> Result<SessionSandbox> {
        let mut sandbox = SessionSandbox::from_rights(rights, config, launcher.clone())?;
        sandbox.zygote = Some(Zygote::from_started(launcher, sandbox.rights.clone(), channel));
        Ok(sandbox)
    }

    /// Creates a sandbox that belongs to no session.
    pub(super) fn for_browser(
        config: &SandboxConfig,
        launcher: Launcher,
        rights: Rights,
    ) -> SessionSandbox {
        SessionSandbox {
            profile: ProfileSetting::Default,
            env: rights
                .home
                .iter()
                .map(|home| ("HOME".to_owned(), home.display().to_string()))
                .collect(),
            limits: config.settings.limits.clone(),
            shut_ports: Vec::new(),
            allow: None,
            zygote: Some(Zygote::new(launcher.clone(), rights.clone())),
            rights,
            launcher,
            _scratch: None,
        }
    }

    pub(super) fn jail_profile(&self) -> SandboxProfile {
        match self.profile {
            ProfileSetting::Default | ProfileSetting::Seatbelt => SandboxProfile::Default,
            ProfileSetting::Contained => SandboxProfile::Contained,
            ProfileSetting::None => SandboxProfile::None,
        }
    }

    /// Returns what one run may touch: the session's rights, or what a client has left of them.
    pub(super) fn rights_for_run(&self, restricted_rights: Option<Rights>) -> Rights {
        match restricted_rights {
            Some(restricted_rights) => Rights {
                scratch: self.rights.scratch.clone(),
                home: self.rights.home.clone(),
                ..restricted_rights
            },
            None => self.rights.clone(),
        }
    }

    /// Returns the number of the session network that a run joins. Runs under one policy share one.
    pub(super) fn network_number(network: NetworkAccess) -> Option<u32> {
        match network {
            NetworkAccess::Off => Some(0),
            NetworkAccess::Proxied => Some(1),
            NetworkAccess::All => None,
        }
    }

    pub fn workspace_path(&self) -> &Path {
        &self.rights.workspace
    }
}
