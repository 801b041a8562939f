//! Check of protected paths after a run that could create mounts of its own.
//!
//! If such a run is hostile, it can leave the tree of mounts and then rename protected paths in the
//! workspace. That cannot be prevented, so it is detected and reported loudly. Paths hidden inside
//! the workspace could be read that way, so no such run is started if there are any.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jail::rights::Rights;

use crate::base::{Error, Result};

/// Files in a repository that make git run programs.
const GIT_FILES: &[&str] = &["hooks", "config", "config.worktree", "commondir"];
/// Maximum number of names in a warning.
const MAX_NAMED: usize = 20;

/// Refuses a run that could read hidden paths.
pub fn check_hidden(rights: &Rights) -> Result<()> {
    let is_inside =
        |path: &&PathBuf| path.starts_with(&rights.workspace) && path.symlink_metadata().is_ok();
    let veiled_paths = rights.partial_covers.iter().map(|veil| &veil.path);
    match rights.hidden.iter().chain(veiled_paths).find(is_inside) {
        None => Ok(()),
        Some(_) => Err(Error::permission_denied("sandbox", "something inside the workspace is hidden from its commands")
            .with_hint("A run that creates its own sandbox could read it. Use `sandbox: danger-full-access`, so that only ringfence's sandbox applies, or have the operator move the hidden files out of the workspace.")),
    }
}

/// The protected paths before a run.
pub struct ProtectedPaths(Vec<(PathBuf, Option<(u64, u64)>)>);

impl ProtectedPaths {
    /// Records the protected paths before a run.
    pub fn capture(rights: &Rights) -> Result<ProtectedPaths> {
        check_hidden(rights)?;
        let protected_paths = rights.protected.iter().map(|protected| protected.path.clone());
        let git_paths = rights
            .repositories
            .iter()
            .flat_map(|repository| GIT_FILES.iter().map(|name| repository.join(name)));
        Ok(ProtectedPaths(
            protected_paths
                .chain(git_paths)
                .map(|path| (path.clone(), file_identity(&path)))
                .collect(),
        ))
    }

    /// Returns the paths that are not the same as before.
    pub fn list_replaced(&self) -> Vec<String> {
        let is_replaced = |(path, before): &&(PathBuf, Option<(u64, u64)>)| match before {
            Some(_) => file_identity(path) != *before,
            None => is_more_than_a_stand_in(path),
        };
        self.0.iter().filter(is_replaced).map(|(path, _)| path.display().to_string()).collect()
    }
}

fn file_identity(path: &Path) -> Option<(u64, u64)> {
    path.symlink_metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Returns whether this is more than the stand-in for a path that did not exist, which may not have
/// been removed yet.
fn is_more_than_a_stand_in(path: &Path) -> bool {
    match path.symlink_metadata() {
        Err(_) => false,
        Ok(metadata) if metadata.is_dir() => {
            std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some())
        }
        // The stand-in for `commondir` is two bytes long.
        Ok(metadata) => !metadata.is_file() || metadata.len() > 2,
    }
}

/// Returns the warning for the user.
pub fn replaced_warning(replaced: &[String]) -> Option<String> {
    let shown_paths =
        replaced.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    (!replaced.is_empty()).then(|| {
        format!(
            "protected paths changed during this run: {shown_paths}. Unless someone outside the sandbox changed them, \
             the run was hostile: check them before you use git or an agent here"
        )
    })
}
