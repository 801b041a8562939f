//! Applies the sandbox that a client declares for itself to the operator's rights.
//!
//! A client's sandbox can only narrow: the client follows an agent's orders, the operator does not.
//! Anything it allows beyond the operator's rights is ignored, and the result reports that.

mod access_table;
mod scan;

use std::path::{Path, PathBuf};

use jail::rights::{NetworkAccess, Rights};
use serde_json::{Value, json};

use super::error::{Error, Result};
use super::glob::Glob;
use access_table::AccessTable;

/// Maximum number of ignored entries listed in a result.
const MAX_LISTED: usize = 20;

/// Member of `_meta` on every result of a call to which a client's sandbox state applied.
pub const META_KEY: &str = "dev.ringfence/client_sandbox";

/// A client's sandbox, independent of the form in which it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientSandbox {
    /// The client's name for it, shown to people.
    pub mode: String,
    /// `None` leaves file access as the operator set it.
    pub files: Option<ClientFileAccess>,
    /// False removes network access. True does not grant any.
    pub allows_network: bool,
    /// The client has no sandbox, or none that we understand, so it vouches for nothing.
    pub unsandboxed: bool,
    /// Parts of it that have no meaning here.
    pub ignored: Vec<String>,
}

/// File access in a client's sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientFileAccess {
    /// The client's working directory; our workspace if it does not say.
    pub cwd: Option<PathBuf>,
    pub entries: Vec<ClientAccessEntry>,
    /// Paths that can be neither read nor written.
    pub denied_globs: Vec<Glob>,
}

/// Access to one path in a client's sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientAccessEntry {
    pub path: ClientAccessPath,
    pub access: ClientAccess,
    /// The entry has no effect while the path does not exist.
    pub skip_missing: bool,
}

/// Path of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientAccessPath {
    Path(PathBuf),
    /// Below the client's working directory.
    Project(PathBuf),
}

/// Access to a path, in order of precedence where two entries name the same path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientAccess {
    Read,
    Write,
    Deny,
}

/// The operator's rights after a client's sandbox was applied.
#[derive(Debug)]
pub struct NarrowedRights {
    pub rights: Rights,
    /// Paths to hide both by name and by object, wherever they are moved.
    pub hidden_paths: Vec<PathBuf>,
    /// Paths to hide by name whenever they are created.
    pub denied_globs: Vec<Glob>,
    pub ignored: Vec<String>,
    /// Directories that the client's sandbox makes writable but the operator does not.
    pub refused_roots: Vec<PathBuf>,
}

/// System directories that no command can run without, so no client can hide them.
pub const REQUIRED_SYSTEM_DIRS: &[&str] = &[
    "/bin",
    "/sbin",
    "/usr",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/run/current-system/sw",
];

impl ClientAccessEntry {
    /// Creates an entry for an absolute path.
    pub fn for_path(path: impl Into<PathBuf>, access: ClientAccess) -> ClientAccessEntry {
        ClientAccessEntry { path: ClientAccessPath::Path(path.into()), access, skip_missing: false }
    }

    /// Creates an entry for a path below the client's working directory.
    pub fn for_project(
        relative_path: impl Into<PathBuf>,
        access: ClientAccess,
    ) -> ClientAccessEntry {
        ClientAccessEntry {
            path: ClientAccessPath::Project(relative_path.into()),
            access,
            skip_missing: false,
        }
    }
}

impl ClientSandbox {
    /// Returns the sandbox for a state that cannot be parsed: everything may be read, nothing in
    /// the client's directories written, and the network not used.
    pub fn most_restrictive() -> ClientSandbox {
        ClientSandbox {
            mode: "unreadable".to_owned(),
            files: Some(ClientFileAccess {
                entries: vec![ClientAccessEntry::for_path("/", ClientAccess::Read)],
                ..ClientFileAccess::default()
            }),
            allows_network: false,
            unsandboxed: true,
            ignored: Vec::new(),
        }
    }

    /// Returns the operator's rights minus everything the client's sandbox does not allow.
    pub fn apply_to(&self, rights: &Rights) -> Result<NarrowedRights> {
        let mut narrowed = NarrowedRights {
            rights: rights.clone(),
            hidden_paths: vec![],
            denied_globs: vec![],
            ignored: self.ignored.clone(),
            refused_roots: vec![],
        };
        if !self.allows_network {
            narrowed.rights.network = NetworkAccess::Off;
        }
        if let Some(files) = &self.files {
            let table = AccessTable::from_file_access(files, rights);
            table
                .narrow_rights(rights, &mut narrowed)
                .map_err(|error| error.with_hint(self.refusal_hint()))?;
            self.hide_matches(files, rights, &mut narrowed)?;
            drop_hidden(&mut narrowed.rights);
            self.check_covers(rights, &narrowed.rights)?;
        }
        Ok(narrowed)
    }

    /// Refuses a state that cannot be enforced: a cover over a path that a run writes to would not
    /// be mounted.
    fn check_covers(&self, original: &Rights, narrowed: &Rights) -> Result<()> {
        let mut newly_hidden =
            narrowed.hidden.iter().filter(|hidden| !original.hidden.contains(hidden));
        match newly_hidden.any(|hidden| narrowed.writable_roots().any(|root| root.starts_with(hidden))) {
            true => Err(Error::permission_denied(
                "client_sandbox",
                "the client's sandbox denies a directory where this server keeps the command's own files",
            )
            .with_hint(self.refusal_hint())),
            false => Ok(()),
        }
    }

    fn hide_matches(
        &self,
        files: &ClientFileAccess,
        rights: &Rights,
        narrowed: &mut NarrowedRights,
    ) -> Result<()> {
        if files.denied_globs.is_empty() {
            return Ok(());
        }
        let denied_globs: Vec<Glob> = files
            .denied_globs
            .iter()
            .map(|glob| {
                glob.with_base(access_table::resolve_links_outside_roots(glob.base_path(), rights))
            })
            .collect();
        for glob in
            denied_globs.iter().filter(|glob| !glob.base_path().starts_with(&rights.workspace))
        {
            narrowed
                .ignored
                .push(format!("`{}` is enforced only below the workspace", glob.as_str()));
        }
        let roots = [&rights.workspace].into_iter().chain(&rights.writable);
        let matched_paths = scan::find_matches(roots, &denied_globs).ok_or_else(|| {
            Error::permission_denied(
                "client_sandbox",
                "the workspace is too large to hide what the client's sandbox denies",
            )
            .with_hint("Have the client name directories instead of patterns, or work in a smaller workspace.")
        })?;
        narrowed.rights.hidden.extend(matched_paths);
        narrowed.denied_globs = denied_globs;
        Ok(())
    }

    /// Returns what a caller can do about a refusal.
    pub fn refusal_hint(&self) -> String {
        match self.mode.as_str() {
            "unreadable" => "The client's sandbox state could not be read, so nothing may be changed. Update the client, or set its sandbox mode again.".to_owned(),
            mode => format!("The client's sandbox mode is `{mode}`. Ask the user to change it in the client if this is necessary."),
        }
    }

    /// Describes the sandbox in force, for a result's `_meta`.
    pub fn describe_effect(&self, rights: &Rights, ignored: &[String]) -> Value {
        let has_writable_parts =
            rights.writable.iter().any(|path| path.starts_with(&rights.workspace));
        let workspace = match (rights.read_only, has_writable_parts) {
            (false, _) => "write",
            (true, true) => "parts",
            (true, false) => "read",
        };
        let mut listed: Vec<String> = ignored.iter().take(MAX_LISTED).cloned().collect();
        if ignored.len() > MAX_LISTED {
            listed.push(format!("and {} more", ignored.len() - MAX_LISTED));
        }
        json!({"mode": self.mode, "workspace": workspace, "network": rights.network.name(), "ignored": listed})
    }
}

/// Removes writable paths inside hidden ones: the cover could not be mounted around them in a run.
fn drop_hidden(rights: &mut Rights) {
    let hidden = rights.hidden.clone();
    let workspace = rights.workspace.clone();
    rights.writable.retain(|path| {
        !(path.starts_with(&workspace) && hidden.iter().any(|hidden| path.starts_with(hidden)))
    });
}

/// Returns whether every step from `root` down to `path` is a real directory.
fn is_plain_directory(root: &Path, path: &Path) -> bool {
    let Ok(relative_path) = path.strip_prefix(root) else { return false };
    let mut current = root.to_owned();
    relative_path.iter().all(|name| {
        current.push(name);
        current.symlink_metadata().is_ok_and(|metadata| metadata.is_dir())
    })
}

#[cfg(test)]
mod tests;
