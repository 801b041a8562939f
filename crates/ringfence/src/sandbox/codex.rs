//! Rights of a Codex that we run, in addition to those of its session: its own home, and the host's
//! network, since the model is remote.
//!
//! It must not use the user's own CODEX_HOME: whatever a run left there, the user's next Codex
//! would obey outside any sandbox.

use std::path::Path;

use jail::rights::{NetworkAccess, PartialCover, Rights};

use super::config::SandboxConfig;
use super::profile;
use crate::base::{Error, Result};
use crate::config::{ProfileSetting, SandboxSettings};

/// Returns these settings with the host's network.
pub(super) fn with_host_network(settings: &SandboxSettings) -> SandboxSettings {
    SandboxSettings {
        allow_network: true,
        allow_domains: Vec::new(),
        deny_domains: Vec::new(),
        allow_addresses: Vec::new(),
        ..settings.clone()
    }
}

/// Codex process to start.
#[derive(Clone, Copy)]
pub struct CodexLaunch<'a> {
    pub program: &'a Path,
    /// Its home, once one exists.
    pub home: Option<&'a Path>,
    /// Set if Codex creates its own sandbox.
    pub nested: bool,
}

/// Returns these rights, of a session or of one call, with what Codex needs in addition.
pub fn codex_rights(
    config: &SandboxConfig,
    base_rights: &Rights,
    launch: CodexLaunch<'_>,
) -> Result<Rights> {
    let CodexLaunch { program, home, nested } = launch;
    let mut rights = base_rights.clone();
    rights.network = NetworkAccess::All;
    let codex_home = config
        .host
        .codex_home
        .as_ref()
        .map(|home| home.canonicalize().unwrap_or_else(|_| home.clone()));
    if let Some(codex_home) = &codex_home {
        // Anyone who works in the workspace could change its configuration.
        let is_open = base_rights
            .writable_roots()
            .chain([base_rights.workspace.as_path()])
            .any(|root| codex_home.starts_with(root));
        if is_open || base_rights.workspace.starts_with(codex_home) {
            return Err(Error::permission_denied(
                "codex_home",
                "CODEX_HOME and the workspace overlap",
            )
            .with_hint(
                "Set CODEX_HOME to a directory that is neither in the workspace nor above it.",
            ));
        }
    }
    if config.settings.profile == ProfileSetting::None {
        return Ok(rights);
    }
    // Not the HOME of the session's commands: Codex must not use what they leave there. A nested
    // Codex itself runs outside its own sandbox, so it must not use what the commands of a Codex
    // without a sandbox left either.
    let name = if nested { "codex-nested" } else { "codex" };
    rights.home = Some(profile::cache_home(config, &rights.workspace, Some(&[name]))?);
    if let Some(codex_home) = codex_home {
        show_program(&mut rights, &codex_home, config.host.codex_home.as_deref(), program);
    }
    rights.writable.extend(home.map(Path::to_owned));
    Ok(rights)
}

/// Makes Codex visible if it is installed in the user's CODEX_HOME, which is hidden: the entry that
/// contains it stays visible.
fn show_program(
    rights: &mut Rights,
    codex_home: &Path,
    configured_home: Option<&Path>,
    program: &Path,
) {
    let real_program = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let parts = [program, &real_program]
        .into_iter()
        .filter_map(|path| path.strip_prefix(codex_home).ok()?.iter().next());
    let keep: Vec<_> = parts.map(|part| codex_home.join(part)).collect();
    if !keep.is_empty() {
        rights
            .hidden
            .retain(|hidden| hidden != codex_home && Some(hidden.as_path()) != configured_home);
        rights.partial_covers.push(PartialCover { path: codex_home.to_owned(), keep });
    }
}
