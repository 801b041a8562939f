//! All sandboxes of one session, and what is known about the repositories that they can write.

use std::sync::{Arc, Mutex};

use super::config::SandboxConfig;
use super::dedicated::{DedicatedSandbox, DedicatedSandboxes};
use super::launcher::Launcher;
use super::repositories::SessionRepositories;
use super::restricted::RestrictedSandboxes;
use super::session_sandbox::SessionSandbox;
use super::{codex, profile};
use crate::base::workspace::Workspace;
use crate::base::{IgnorePoison, Result};
use crate::session::Session;

/// Sandboxes that a session owns. Each is built when the first run needs it, and ends with the
/// session.
pub struct SessionSandboxes {
    pub session: Arc<Session>,
    /// The one for the session's own commands.
    own: SandboxSlot,
    /// The one that rules let commands into.
    wider: SandboxSlot,
    restricted: RestrictedSandboxes,
    pub dedicated: Arc<DedicatedSandboxes>,
    pub repositories: Arc<SessionRepositories>,
}

/// Place for a sandbox that is built on first use.
#[derive(Default)]
struct SandboxSlot(Mutex<Option<Arc<SessionSandbox>>>);

impl SandboxSlot {
    /// Returns the sandbox, or builds another if it does not hide everything that is private by
    /// now. Runs in progress keep the old one.
    fn get_or_build(
        &self,
        config: &SandboxConfig,
        build: impl FnOnce() -> Result<SessionSandbox>,
    ) -> Result<Arc<SessionSandbox>> {
        let mut slot = self.0.lock().ignore_poison();
        if let Some(sandbox) = slot.as_ref().filter(|sandbox| sandbox.hides_private_paths(config)) {
            return Ok(Arc::clone(sandbox));
        }
        Ok(Arc::clone(slot.insert(Arc::new(build()?))))
    }
}

impl SessionSandboxes {
    /// Creates the list for a session. Nothing is built yet.
    pub fn new(session: Arc<Session>) -> SessionSandboxes {
        SessionSandboxes {
            own: SandboxSlot::default(),
            wider: SandboxSlot::default(),
            restricted: RestrictedSandboxes::default(),
            dedicated: Arc::new(DedicatedSandboxes::new(Arc::clone(&session))),
            repositories: Arc::default(),
            session,
        }
    }

    /// Returns the session's own sandbox.
    pub fn own_sandbox(
        &self,
        config: &SandboxConfig,
        launcher: &Launcher,
    ) -> Result<Arc<SessionSandbox>> {
        self.own.get_or_build(config, || {
            let workspace = profile::workspace_hiding_private(&self.session.workspace, config);
            SessionSandbox::from_rights(workspace.rights().clone(), config, launcher.clone())
        })
    }

    /// Returns the sandbox for a call whose workspace has these rights: the session's, or a
    /// separate one for a call that a client restricts.
    pub fn sandbox_for_call(
        &self,
        config: &SandboxConfig,
        launcher: &Launcher,
        dedicated_sandbox: Option<&DedicatedSandbox>,
        workspace: &Workspace,
    ) -> Result<Arc<SessionSandbox>> {
        let parent = match dedicated_sandbox {
            Some(dedicated_sandbox) => dedicated_sandbox.get_sandbox(&self.dedicated, launcher)?,
            None => self.own_sandbox(config, launcher)?,
        };
        self.restricted.sandbox_for_call(parent, config, workspace)
    }

    /// Returns the sandbox that rules let commands into, with its own namespaces.
    pub fn wider_sandbox(
        &self,
        config: &SandboxConfig,
        launcher: &Launcher,
    ) -> Result<Arc<SessionSandbox>> {
        self.wider.get_or_build(config, || {
            let rights = profile::run_rights(config, self.session.workspace.path())?;
            SessionSandbox::from_rights(rights, config, launcher.clone())
        })
    }

    /// Creates the sandbox for one Codex that this session runs, with the host's network.
    pub fn sandbox_for_codex(
        &self,
        config: &SandboxConfig,
        launcher: &Launcher,
        launch: codex::CodexLaunch<'_>,
    ) -> Result<Arc<SessionSandbox>> {
        let config = config.with_settings(codex::with_host_network(&config.settings));
        let workspace = profile::workspace_hiding_private(&self.session.workspace, &config);
        let rights = codex::codex_rights(&config, workspace.rights(), launch)?;
        SessionSandbox::from_rights(rights, &config, launcher.clone()).map(Arc::new)
    }

    /// Drops the sandboxes of configured tools that no longer exist. A run in progress keeps its
    /// own until it ends.
    pub fn release_stale(&self, is_current: impl Fn(&str, &str) -> bool) {
        self.dedicated.release_stale(is_current);
    }
}
