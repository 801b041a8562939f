//! What a client says its own sandbox allows, and what that leaves of the operator's rights.
//!
//! It can only narrow: a client stands under the orders of an agent, the operator does not. What it names beyond the
//! operator's rights is ignored, and said to be.

mod scan;
mod table;

use std::path::{Path, PathBuf};

use jail::rights::{Network, Rights};
use serde_json::{Value, json};

use super::error::{Error, Result};
use super::glob::Glob;
use table::Table;

/// A result need not list more of what was ignored.
const TOLD: usize = 20;

/// On every result of a call that a client's sandbox state was in force for.
pub const META: &str = "dev.ringfence/client_sandbox";

/// A client's sandbox, whatever form it was told in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Narrowing {
    /// What the client calls it, for people.
    pub mode: String,
    /// `None` leaves files as the operator has them.
    pub files: Option<Files>,
    /// False takes the network away. True gives none.
    pub network: bool,
    /// The client has no sandbox, or none that can be understood: its word is nobody's.
    pub unsandboxed: bool,
    /// What of it has no meaning here.
    pub ignored: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    /// Where the client works; our own workspace when it does not say.
    pub cwd: Option<PathBuf>,
    pub entries: Vec<Entry>,
    /// What they name can be neither read nor written.
    pub denied: Vec<Glob>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub place: Place,
    pub access: Access,
    /// Of no meaning while it does not exist.
    pub skip_missing: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Path(PathBuf),
    /// Below where the client works.
    Project(PathBuf),
}

/// In the order of what wins where two are said of the same place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    Read,
    Write,
    Deny,
}

/// What is left of the operator's rights.
#[derive(Debug)]
pub struct Narrowed {
    pub rights: Rights,
    /// Hidden by name, and by where they are moved to.
    pub hidden: Vec<PathBuf>,
    /// Hidden by name whenever they come to be.
    pub denied: Vec<Glob>,
    pub ignored: Vec<String>,
    /// Directories that the client lets be written and the operator does not.
    pub refused_roots: Vec<PathBuf>,
}

/// System directories that a command cannot do without, so that no client can hide them.
pub const MINIMAL: &[&str] = &[
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

impl Entry {
    pub fn path(path: impl Into<PathBuf>, access: Access) -> Entry {
        Entry { place: Place::Path(path.into()), access, skip_missing: false }
    }

    pub fn project(below: impl Into<PathBuf>, access: Access) -> Entry {
        Entry { place: Place::Project(below.into()), access, skip_missing: false }
    }
}

impl Narrowing {
    /// For what cannot be understood: everything may be read, nothing of the client's written, nobody reached.
    pub fn most_restrictive() -> Narrowing {
        Narrowing {
            mode: "unreadable".to_owned(),
            files: Some(Files {
                entries: vec![Entry::path("/", Access::Read)],
                ..Files::default()
            }),
            network: false,
            unsandboxed: true,
            ignored: Vec::new(),
        }
    }

    /// The operator's rights, less what the client's sandbox does not allow.
    pub fn apply(&self, rights: &Rights) -> Result<Narrowed> {
        let mut narrowed = Narrowed {
            rights: rights.clone(),
            hidden: vec![],
            denied: vec![],
            ignored: self.ignored.clone(),
            refused_roots: vec![],
        };
        if !self.network {
            narrowed.rights.network = Network::Off;
        }
        if let Some(files) = &self.files {
            let table = Table::settle(files, rights);
            table.narrow(rights, &mut narrowed).map_err(|error| error.hint(self.hint()))?;
            self.hide_matches(files, rights, &mut narrowed)?;
            drop_hidden(&mut narrowed.rights);
            self.check_covers(rights, &narrowed.rights)?;
        }
        Ok(narrowed)
    }

    /// A cover over something that a run writes to would not be put on, so such a state cannot be kept.
    fn check_covers(&self, before: &Rights, now: &Rights) -> Result<()> {
        let mut new = now.hidden.iter().filter(|hidden| !before.hidden.contains(hidden));
        match new.any(|hidden| now.writable_roots().any(|root| root.starts_with(hidden))) {
            true => Err(Error::permission_denied(
                "client_sandbox",
                "the client's sandbox denies a directory that this server keeps the command's own files in",
            )
            .hint(self.hint())),
            false => Ok(()),
        }
    }

    fn hide_matches(&self, files: &Files, rights: &Rights, narrowed: &mut Narrowed) -> Result<()> {
        if files.denied.is_empty() {
            return Ok(());
        }
        let denied: Vec<Glob> = files
            .denied
            .iter()
            .map(|glob| glob.with_base(table::settled(glob.base(), rights)))
            .collect();
        for glob in denied.iter().filter(|glob| !glob.base().starts_with(&rights.workspace)) {
            narrowed
                .ignored
                .push(format!("`{}` is enforced only below the workspace", glob.text()));
        }
        let roots = [&rights.workspace].into_iter().chain(&rights.writable);
        let found = scan::matching(roots, &denied).ok_or_else(|| {
            Error::permission_denied(
                "client_sandbox",
                "the workspace is too large to hide what the client's sandbox denies",
            )
            .hint("Have the client name directories instead of patterns, or work in a smaller workspace.")
        })?;
        narrowed.rights.hidden.extend(found);
        narrowed.denied = denied;
        Ok(())
    }

    /// What a caller can do about a refusal.
    pub fn hint(&self) -> String {
        match self.mode.as_str() {
            "unreadable" => "The client's sandbox state could not be read, so nothing may be changed. Have the client updated, or its sandbox set anew.".to_owned(),
            mode => format!("The client's sandbox mode is `{mode}`. Ask the user to change it there if this has to be done."),
        }
    }

    /// What a result says about it.
    pub fn about(&self, rights: &Rights, ignored: &[String]) -> Value {
        let parts = rights.writable.iter().any(|path| path.starts_with(&rights.workspace));
        let workspace = match (rights.read_only, parts) {
            (false, _) => "write",
            (true, true) => "parts",
            (true, false) => "read",
        };
        let mut told: Vec<String> = ignored.iter().take(TOLD).cloned().collect();
        if ignored.len() > TOLD {
            told.push(format!("and {} more", ignored.len() - TOLD));
        }
        json!({"mode": self.mode, "workspace": workspace, "network": rights.network.name(), "ignored": told})
    }
}

/// Nothing is opened again in what is hidden: a cover could not be put around it in a run.
fn drop_hidden(rights: &mut Rights) {
    let hidden = rights.hidden.clone();
    let workspace = rights.workspace.clone();
    rights.writable.retain(|path| {
        !(path.starts_with(&workspace) && hidden.iter().any(|hidden| path.starts_with(hidden)))
    });
}

/// Whether every step from `root` down to `path` is a real directory.
fn is_plain_directory(root: &Path, path: &Path) -> bool {
    let Ok(below) = path.strip_prefix(root) else { return false };
    let mut here = root.to_owned();
    below.iter().all(|name| {
        here.push(name);
        here.symlink_metadata().is_ok_and(|found| found.is_dir())
    })
}

#[cfg(test)]
mod tests;
