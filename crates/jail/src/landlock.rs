//! Landlock, the second layer of the sandbox.
//!
//! It forbids once more what the mounts already forbid, by a mechanism that shares no code with
//! them. It also keeps processes from signalling processes outside and from connecting to abstract
//! sockets outside.

use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::error::{Layer, SandboxError};

/// The oldest useful version: file access rights that include renaming and truncating.
const MIN_ABI: ABI = ABI::V3;
/// The newest version in use, where the kernel supports it. Unix sockets by path (`ABI::V9`) are
/// left to the supervisor, which knows who owns them.
const MAX_ABI: ABI = ABI::V6;

/// Write access to grant. Everything visible in the mounts may be read.
pub struct LandlockRules<'a> {
    pub writable: &'a [PathBuf],
    /// Single files, such as devices.
    pub files: &'a [&'a str],
    /// Limit signals and abstract sockets to processes in the sandbox.
    pub scoped: bool,
}

/// Limits signals and abstract sockets of this thread, and of everything it starts, to processes in
/// the sandbox, if the kernel supports that. File access is left to the mounts.
pub fn restrict_scope() -> Result<(), SandboxError> {
    let make_error =
        |what: &str, text: String| SandboxError::from_message(Layer::Landlock, what, text);
    let scoped = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .scope(Scope::from_all(MAX_ABI))
        .map_err(|error| make_error("scope", error.to_string()))?;
    let ruleset =
        scoped.create().map_err(|error| make_error("create the rules", error.to_string()))?;
    ruleset.restrict_self().map(drop).map_err(|error| make_error("restrict", error.to_string()))
}

/// Restricts this thread, and everything it starts, permanently.
pub fn restrict_thread(rules: &LandlockRules<'_>) -> Result<(), SandboxError> {
    let make_error =
        |what: &str, text: String| SandboxError::from_message(Layer::Landlock, what, text);
    let handled = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(MIN_ABI))
        .map_err(|error| make_error("check the kernel's Landlock version", error.to_string()))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(MAX_ABI))
        .map_err(|error| make_error("handle files", error.to_string()))?;
    let scoped = match rules.scoped {
        true => handled
            .scope(Scope::from_all(MAX_ABI))
            .map_err(|error| make_error("scope", error.to_string()))?,
        false => handled,
    };
    let mut ruleset =
        scoped.create().map_err(|error| make_error("create the rules", error.to_string()))?;
    let mut allow = |path: &Path, access: BitFlags<AccessFs>| -> io::Result<()> {
        let path_fd = PathFd::new(path).map_err(io::Error::other)?;
        // Rights that exist only for directories make no sense for a file, so its rule leaves them
        // out.
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(MAX_ABI) };
        (&mut ruleset)
            .add_rule(PathBeneath::new(path_fd, access))
            .map(drop)
            .map_err(io::Error::other)
    };
    allow(Path::new("/"), AccessFs::from_read(MAX_ABI))
        .map_err(|error| make_error("/", error.to_string()))?;
    for path in rules.writable {
        allow(path, AccessFs::from_all(MAX_ABI))
            .map_err(|e| make_error(&path.display().to_string(), e.to_string()))?;
    }
    for path in rules.files.iter().filter(|path| Path::new(path).exists()) {
        allow(Path::new(path), AccessFs::from_all(MAX_ABI))
            .map_err(|error| make_error(path, error.to_string()))?;
    }
    let status =
        ruleset.restrict_self().map_err(|error| make_error("restrict", error.to_string()))?;
    match status.ruleset {
        RulesetStatus::NotEnforced => {
            Err(make_error("restrict", "the kernel does not enforce the rules".to_owned()))
        }
        _ => Ok(()),
    }
}
