//! What must be the same after a run that could make mounts of its own.
//!
//! Such a run, if it is hostile, can leave the tree of mounts and then rename what is protected in the workspace. That
//! cannot be prevented, so it is looked for, and told of loudly. What is hidden inside the workspace could be read that
//! way, so there no such run is started.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jail::rights::Rights;

use crate::base::{Error, Result};

/// In a repository: what makes git run programs.
const GIT: &[&str] = &["hooks", "config", "config.worktree", "commondir"];
/// Names in a warning.
const NAMED: usize = 20;

/// Refuses a run that could get at what is hidden.
pub fn check(rights: &Rights) -> Result<()> {
    let inside =
        |path: &&PathBuf| path.starts_with(&rights.workspace) && path.symlink_metadata().is_ok();
    let veiled = rights.veils.iter().map(|veil| &veil.path);
    match rights.hidden.iter().chain(veiled).find(inside) {
        None => Ok(()),
        Some(_) => Err(Error::permission_denied("sandbox", "something inside the workspace is hidden from its commands")
            .hint("A run that makes a sandbox of its own could get at it. Give `sandbox: danger-full-access`, where our fence alone holds it, or have the operator move what is hidden out of the workspace.")),
    }
}

/// The protected paths as they are before a run.
pub struct Guarded(Vec<(PathBuf, Option<(u64, u64)>)>);

impl Guarded {
    pub fn look(rights: &Rights) -> Result<Guarded> {
        check(rights)?;
        let named = rights.protected.iter().map(|protected| protected.path.clone());
        let of_git =
            rights.repositories.iter().flat_map(|place| GIT.iter().map(|name| place.join(name)));
        Ok(Guarded(named.chain(of_git).map(|path| (path.clone(), identity(&path))).collect()))
    }

    /// Those that are not what they were.
    pub fn moved(&self) -> Vec<String> {
        let is_moved = |(path, before): &&(PathBuf, Option<(u64, u64)>)| match before {
            Some(_) => identity(path) != *before,
            None => is_more_than_a_stand_in(path),
        };
        self.0.iter().filter(is_moved).map(|(path, _)| path.display().to_string()).collect()
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    path.symlink_metadata().ok().map(|found| (found.dev(), found.ino()))
}

/// What stood in for a path that did not exist may not have gone yet.
fn is_more_than_a_stand_in(path: &Path) -> bool {
    match path.symlink_metadata() {
        Err(_) => false,
        Ok(found) if found.is_dir() => {
            std::fs::read_dir(path).is_ok_and(|mut all| all.next().is_some())
        }
        // `commondir` has two bytes then.
        Ok(found) => !found.is_file() || found.len() > 2,
    }
}

/// What people are told.
pub fn warning(moved: &[String]) -> Option<String> {
    let shown = moved.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    (!moved.is_empty()).then(|| {
        format!(
            "protected paths are not what they were before this run: {shown}. Unless somebody outside has replaced them \
             meanwhile, the run was hostile: look at them before git or an agent is used here"
        )
    })
}
