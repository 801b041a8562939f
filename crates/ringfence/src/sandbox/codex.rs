//! What a Codex that we run may touch beside what its session may: a home of its own, and the host's network, since the
//! model is out there.
//!
//! The user's own CODEX_HOME is not for it: whatever a run left there, the user's next Codex would obey, unfenced.

use std::path::Path;

use jail::rights::{Network, Rights, Veil};

use super::profile;
use crate::base::{Error, Result};
use crate::config::{Config, Profile, Sandbox};

/// The operator's sandbox with the host's network.
pub(super) fn sandbox(config: &Config) -> Sandbox {
    Sandbox {
        allow_network: true,
        allow_domains: Vec::new(),
        deny_domains: Vec::new(),
        allow_addresses: Vec::new(),
        ..config.sandbox.clone()
    }
}

/// One Codex that is to be run.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    pub program: &'a Path,
    /// Once there is one.
    pub home: Option<&'a Path>,
    /// It makes a sandbox of its own.
    pub nested: bool,
}

/// These rights, of a session or of one call, with what Codex needs on top.
pub fn rights(config: &Config, of: &Rights, run: Run<'_>) -> Result<Rights> {
    let Run { program, home, nested } = run;
    let mut rights = of.clone();
    rights.network = Network::All;
    let users =
        config.codex_home.as_ref().map(|home| home.canonicalize().unwrap_or_else(|_| home.clone()));
    if let Some(users) = &users {
        // What configures it would be anybody's who works here.
        let is_open =
            of.writable_roots().chain([of.workspace.as_path()]).any(|root| users.starts_with(root));
        if is_open || of.workspace.starts_with(users) {
            return Err(Error::permission_denied(
                "codex_home",
                "CODEX_HOME and the workspace lie in each other",
            )
            .hint(
                "Set CODEX_HOME to a directory outside the workspace and above it in no place.",
            ));
        }
    }
    if config.sandbox.profile == Profile::None {
        return Ok(rights);
    }
    // What the session's commands leave in theirs is not what it works with; nor is what the commands of a Codex without
    // a sandbox have left, for one that has to stay outside its own.
    let name = if nested { "codex-nested" } else { "codex" };
    rights.home = Some(profile::cache_home(config, &rights.workspace, Some(&[name]))?);
    if let Some(users) = users {
        show_program(&mut rights, &users, config.codex_home.as_deref(), program);
    }
    rights.writable.extend(home.map(Path::to_owned));
    Ok(rights)
}

/// Codex may be installed in the user's CODEX_HOME, which is hidden. Then the part of it that it lies in is not.
fn show_program(rights: &mut Rights, users: &Path, named: Option<&Path>, program: &Path) {
    let real = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let parts = [program, &real]
        .into_iter()
        .filter_map(|path| path.strip_prefix(users).ok()?.iter().next());
    let keep: Vec<_> = parts.map(|part| users.join(part)).collect();
    if !keep.is_empty() {
        rights.hidden.retain(|hidden| hidden != users && Some(hidden.as_path()) != named);
        rights.veils.push(Veil { path: users.to_owned(), keep });
    }
}
