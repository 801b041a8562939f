//! Landlock, the second layer of the sandbox.
//!
//! It forbids once more what the mounts already forbid, by a mechanism that shares no code with
//! them. It also keeps processes from signalling processes outside and from connecting to abstract
//! sockets outside.

use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::error::{Layer, SandboxError};

/// The oldest useful version: file access rights that include renaming and truncating.
const MIN_ABI: ABI = ABI::V3;
/// The newest version in use, where the kernel supports it. Unix sockets by path (`ABI::V9`) are
/// left to the supervisor, which knows who owns them.
const MAX_ABI: ABI = ABI::V6;

/// The oldest version that is applied if the mounts decide. Version 1 is not: it forbids every
/// rename between directories.
const OLDEST_ABI: ABI = ABI::V2;

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

/// Returns whether this kernel supports the Landlock version that the profiles require.
pub fn has_required_version() -> bool {
    supports_abi(MIN_ABI)
}

/// Returns whether the kernel supports everything in this Landlock version.
fn supports_abi(abi: ABI) -> bool {
    let strict = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let ruleset = strict.handle_access(AccessFs::from_all(abi)).and_then(|rules| {
        match AccessNet::from_all(abi) {
            none if none.is_empty() => Ok(rules),
            some => rules.handle_access(some),
        }
    });
    let ruleset = ruleset.and_then(|rules| match Scope::from_all(abi) {
        none if none.is_empty() => Ok(rules),
        some => rules.scope(some),
    });
    ruleset.and_then(Ruleset::create).is_ok()
}

/// Restricts this thread, and everything it starts, as far as an older kernel can. Only for a
/// sandbox whose mounts alone already forbid every write outside. A newer kernel, where only tests
/// ask for this, behaves like one without Landlock, so that the mounts are tested alone.
pub fn restrict_on_old_kernel(rules: &LandlockRules<'_>) -> Result<(), SandboxError> {
    match newest_abi() == OLDEST_ABI as i32 {
        true => restrict_from_version(rules, OLDEST_ABI),
        false => Ok(()),
    }
}

/// Restricts this thread, and everything it starts, permanently.
pub fn restrict_thread(rules: &LandlockRules<'_>) -> Result<(), SandboxError> {
    restrict_from_version(rules, MIN_ABI)
}

fn describe_missing_version(required: ABI) -> String {
    match newest_abi() {
        0 => "the kernel does not support it, or a filter blocks it".to_owned(),
        newest => format!("the kernel has ABI {newest}; ABI {} is required", required as i32),
    }
}

/// Returns the newest Landlock version that this kernel supports, among those we know.
pub(crate) fn newest_abi() -> i32 {
    let known = [ABI::V1, ABI::V2, ABI::V3, ABI::V4, ABI::V5, ABI::V6];
    known.into_iter().rev().find(|abi| supports_abi(*abi)).map_or(0, |abi| abi as i32)
}

fn restrict_from_version(rules: &LandlockRules<'_>, min_abi: ABI) -> Result<(), SandboxError> {
    let make_error =
        |what: &str, text: String| SandboxError::from_message(Layer::Landlock, what, text);
    let handled = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(min_abi))
        // The library lists every missing right; the version of the kernel is more useful.
        .map_err(|_| make_error("check the kernel's version", describe_missing_version(min_abi)))?
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
