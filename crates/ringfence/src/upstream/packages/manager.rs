//! What both kinds of package managers have in common.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::base::{Error, Kind, Result};

/// Longest JSON file of a package manager.
const MAX_JSON_BYTES: u64 = 64 << 20;

/// Directories of one installation.
pub struct InstallPaths {
    /// Everything below is writable during the installation, and nothing else.
    pub staging: PathBuf,
    /// Files that are kept.
    pub tree: PathBuf,
    pub home: PathBuf,
    pub cache: PathBuf,
}

impl InstallPaths {
    /// Names the directories in `staging`.
    pub fn new(staging: &Path) -> InstallPaths {
        let join = |name: &str| staging.join(name);
        InstallPaths {
            staging: staging.to_owned(),
            tree: join(super::TREE_DIR),
            home: join("home"),
            cache: join("cache"),
        }
    }
}

/// Command of a package manager.
pub struct ManagerCommand {
    pub program: PathBuf,
    pub args: Vec<String>,
    /// Files that it expects in the tree.
    pub files: Vec<(&'static str, &'static str)>,
    pub env: Vec<(String, String)>,
}

/// What was installed of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledVersion {
    pub version: String,
    /// Hash of its archive, as the package manager gives it.
    pub integrity: Option<String>,
}

/// Reads a JSON file of an installed tree, which has been checked for special files.
pub fn read_json(path: &Path) -> Result<Value> {
    let name = path.file_name().unwrap_or_default().display().to_string();
    let read_error = |error: &dyn std::fmt::Display| {
        Error::new(Kind::Unavailable, format!("`{name}` of the package cannot be read: {error}"))
    };
    let file = std::fs::File::open(path).map_err(|error| read_error(&error))?;
    let mut text = Vec::new();
    let count = file.take(MAX_JSON_BYTES + 1).read_to_end(&mut text);
    match count.map_err(|error| read_error(&error))? as u64 {
        0..=MAX_JSON_BYTES => serde_json::from_slice(&text).map_err(|error| read_error(&error)),
        _ => Err(read_error(&"it is too long")),
    }
}

/// Returns the error for a program that cannot be told, with those that exist.
pub fn too_many_programs(message: String, programs: Vec<String>, advice: &str) -> Error {
    let listed = match programs.is_empty() {
        true => "it has none; name another package".to_owned(),
        false => programs.join(", "),
    };
    Error::new(Kind::Unavailable, message)
        .with_reason("package_program")
        .with_hint(format!("{advice}: {}.", ringfence_client::clean_text(&listed, 500)))
}
