//! Landlock, the second layer: what the mounts already forbid is forbidden once more, by a mechanism that shares no
//! code with them, and processes are kept from signalling and reaching what is outside.

use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::fault::{Fault, Layer};

/// The least that is of any use: rights to files, with renaming and truncating among them.
const LEAST: ABI = ABI::V3;
/// What is used where the kernel has it. Unix sockets by path (`ABI::V9`) stay with the supervisor, which knows
/// whose they are.
const MOST: ABI = ABI::V6;

/// What may be written; everything may be read, as far as the mounts show it.
pub struct Rules<'a> {
    pub writable: &'a [PathBuf],
    /// Single devices and the like.
    pub files: &'a [&'a str],
    /// Keep to sockets and signals of our own.
    pub scoped: bool,
}

/// Keeps this thread, and everything it starts, to sockets and signals of its own, where the kernel can, and leaves files
/// to the mounts.
pub fn scope() -> Result<(), Fault> {
    let fault = |what: &str, text: String| Fault::other(Layer::Landlock, what, text);
    let scoped = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .scope(Scope::from_all(MOST))
        .map_err(|error| fault("scope", error.to_string()))?;
    let ruleset = scoped.create().map_err(|error| fault("create the rules", error.to_string()))?;
    ruleset.restrict_self().map(drop).map_err(|error| fault("restrict", error.to_string()))
}

/// Restricts this thread, and everything it starts, for ever.
pub fn restrict(rules: &Rules<'_>) -> Result<(), Fault> {
    let fault = |what: &str, text: String| Fault::other(Layer::Landlock, what, text);
    let handled = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(LEAST))
        .map_err(|error| fault("the kernel's version", error.to_string()))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(MOST))
        .map_err(|error| fault("handle files", error.to_string()))?;
    let scoped = match rules.scoped {
        true => handled
            .scope(Scope::from_all(MOST))
            .map_err(|error| fault("scope", error.to_string()))?,
        false => handled,
    };
    let mut ruleset =
        scoped.create().map_err(|error| fault("create the rules", error.to_string()))?;
    let mut allow = |path: &Path, access: BitFlags<AccessFs>| -> io::Result<()> {
        let place = PathFd::new(path).map_err(io::Error::other)?;
        // Rights that only a directory has are of no meaning for a file and are left out of its rule.
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(MOST) };
        (&mut ruleset).add_rule(PathBeneath::new(place, access)).map(drop).map_err(io::Error::other)
    };
    allow(Path::new("/"), AccessFs::from_read(MOST))
        .map_err(|error| fault("/", error.to_string()))?;
    for path in rules.writable {
        allow(path, AccessFs::from_all(MOST))
            .map_err(|e| fault(&path.display().to_string(), e.to_string()))?;
    }
    for path in rules.files.iter().filter(|path| Path::new(path).exists()) {
        allow(Path::new(path), AccessFs::from_all(MOST))
            .map_err(|error| fault(path, error.to_string()))?;
    }
    let status = ruleset.restrict_self().map_err(|error| fault("restrict", error.to_string()))?;
    match status.ruleset {
        RulesetStatus::NotEnforced => {
            Err(fault("restrict", "the kernel does not enforce it".to_owned()))
        }
        _ => Ok(()),
    }
}
