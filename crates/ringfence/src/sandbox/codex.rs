//! What a Codex that we run may touch beside what its session may: its own home, and the host's network, since the model
//! is out there.
//!
//! What the user's next Codex would take orders from, unfenced, stays read-only in that home.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use jail::rights::{Network, Protected, Rights, StandIn, Text};

use super::profile;
use crate::base::{Error, Kind, Result};
use crate::config::{Config, Profile, Sandbox};

/// In CODEX_HOME: files that say what Codex runs, or what it believes.
const FILES: &[&str] = &["config.toml", "AGENTS.md", "AGENTS.override.md"];
/// The same, for directories.
const FOLDERS: &[&str] = &["rules", "hooks", "skills", "prompts", "agents", "plugins", "packages", "bin"];
/// Only where they are: an empty one would be an error to Codex.
const WHERE_THERE: &[&str] = &["hooks.json", "requirements.toml", "managed_config.toml"];
/// Profiles are files of this name.
const PROFILE: &str = ".config.toml";

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

/// Where Codex keeps what is its own, made where it is missing.
pub fn home(config: &Config) -> Result<PathBuf> {
    let lacking = |why: &str| {
        Error::new(Kind::Unavailable, format!("Codex has no home directory: {why}"))
            .reason("codex_home")
            .hint("Set CODEX_HOME to a directory of your own, outside the workspace.")
    };
    let named = config.codex_home.as_ref().ok_or_else(|| lacking("neither CODEX_HOME nor HOME is set"))?;
    if !named.is_dir() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(named);
        made.map_err(|error| lacking("it cannot be made").source(error))?;
    }
    named.canonicalize().map_err(|error| lacking("it cannot be opened").source(error))
}

/// These rights, of a session or of one call, with what Codex needs on top.
pub fn rights(config: &Config, of: &Rights) -> Result<Rights> {
    let mut rights = of.clone();
    rights.network = Network::All;
    if config.sandbox.profile == Profile::None {
        return Ok(rights);
    }
    // What the session's commands leave in theirs is not what it works with.
    rights.home = Some(profile::cache_home(config, &rights.workspace, Some(&["codex"]))?);
    let home = home(config)?;
    if home.starts_with(&rights.workspace) || rights.workspace.starts_with(&home) || config.root.starts_with(&home) {
        return Err(Error::permission_denied("codex_home", "CODEX_HOME and the workspace lie in each other")
            .hint("Set CODEX_HOME to a directory outside the workspace and above neither it nor the root."));
    }
    let named = config.codex_home.as_ref();
    rights.hidden.retain(|hidden| *hidden != home && Some(hidden) != named);
    if config.sandbox.profile == Profile::Default {
        rights.protected.extend(protected(&home));
    }
    rights.writable.push(home);
    Ok(rights)
}

fn protected(home: &std::path::Path) -> Vec<Protected> {
    let file = StandIn::File(Text::Empty);
    let mut all: Vec<(String, StandIn)> = FILES.iter().map(|name| ((*name).to_owned(), file)).collect();
    all.extend(FOLDERS.iter().map(|name| ((*name).to_owned(), StandIn::Directory)));
    let there =
        std::fs::read_dir(home).into_iter().flatten().flatten().filter_map(|it| it.file_name().into_string().ok());
    all.extend(
        there.filter(|name| WHERE_THERE.contains(&name.as_str()) || name.ends_with(PROFILE)).map(|name| (name, file)),
    );
    all.into_iter().map(|(name, stand_in)| Protected { path: home.join(name), stand_in }).collect()
}
