//! Restrictions of a single run that go beyond those of its session.
//!
//! The session root is shared and never changes, so the run takes rights away in its own copy of
//! the mount tree: it covers directories, makes paths read-only, and reopens writable directories
//! inside them.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::{MountContext, MountTree, NAMES_ONLY_SIZE, attach_mount, clone_tree, make_tmpfs};
use crate::error::SandboxError;
use crate::rights::Rights;
use crate::sys::{self, NODEV, NOEXEC, NOSUID, RDONLY};

/// Covers each restricted directory, outermost first, and mounts the parts that stay visible on top
/// again, unchanged.
pub(super) fn cover_partially(tree: &MountTree, rights: &Rights) -> Result<(), SandboxError> {
    for veil in &rights.veils {
        let shown = veil.path.display().to_string();
        let Some(at) = tree.open(&veil.path).in_mounts(&shown)? else { continue };
        let mut kept = Vec::new();
        // An outer path already includes the inner one.
        for path in
            veil.keep.iter().filter(|path| !veil.keep.iter().any(|other| is_below(path, other)))
        {
            if let Some(place) = tree.open(path).in_mounts(&shown)? {
                kept.push((
                    path,
                    clone_tree(place.as_fd(), true, NOSUID)
                        .in_mounts(path.display().to_string())?,
                ));
            }
        }
        let cover =
            make_tmpfs("0711", &NAMES_ONLY_SIZE, NOSUID | NODEV | NOEXEC).in_mounts(&shown)?;
        attach_mount(&cover, &at).in_mounts(&shown)?;
        for (path, source) in kept {
            let is_file = !rustix::fs::FileType::from_raw_mode(
                rustix::fs::fstat(&source).in_mounts(&shown)?.st_mode,
            )
            .is_dir();
            attach_mount(&source, &tree.make_mount_point(path, is_file).in_mounts(&shown)?)
                .in_mounts(&shown)?;
        }
        sys::mount_setattr(cover.as_fd(), RDONLY, false).in_mounts(&shown)?;
    }
    Ok(())
}

/// Makes read-only what this run may not write, including everything mounted below it.
pub(super) fn make_read_only(tree: &MountTree, rights: &Rights) -> Result<(), SandboxError> {
    for path in closed_paths(rights) {
        let shown = path.display().to_string();
        if let Some(at) = tree.open(path).in_mounts(&shown)? {
            sys::mount_setattr(at.as_fd(), RDONLY, true).in_mounts(&shown)?;
        }
    }
    Ok(())
}

/// Returns the paths that the session may write and this run may not.
fn closed_paths(rights: &Rights) -> impl Iterator<Item = &Path> {
    let workspace = rights.read_only.then_some(rights.workspace.as_path());
    workspace.into_iter().chain(rights.closed.iter().map(PathBuf::as_path))
}

fn is_below(path: &Path, above: &Path) -> bool {
    path != above && path.starts_with(above)
}

/// Writable directories inside read-only or covered ones, to be mounted on top of these again.
/// Outer directories come first.
pub(super) struct ReopenedDirectories(Vec<(PathBuf, OwnedFd)>);

/// Copies them while they are still writable.
pub(super) fn clone_reopened(
    tree: &MountTree,
    rights: &Rights,
    covers: &[PathBuf],
) -> Result<ReopenedDirectories, SandboxError> {
    let shut = |path: &Path| {
        closed_paths(rights)
            .chain(covers.iter().map(PathBuf::as_path))
            .any(|closed| is_below(path, closed))
    };
    let mut paths: Vec<PathBuf> =
        rights.writable_roots().filter(|path| shut(path)).map(Path::to_owned).collect();
    paths.sort();
    paths.dedup();
    let mut sources = Vec::new();
    for path in paths {
        let place = tree.open_without_links(&path).in_mounts(path.display().to_string())?;
        let source =
            clone_tree(place.as_fd(), true, NOSUID).in_mounts(path.display().to_string())?;
        sources.push((path, source));
    }
    Ok(ReopenedDirectories(sources))
}

impl ReopenedDirectories {
    /// Attaches those that contain the cover or sort before it, so that covers and reopened
    /// directories alternate from the outside in.
    pub fn attach_up_to(&mut self, tree: &MountTree, cover: &Path) -> Result<(), SandboxError> {
        let after = self.0.partition_point(|(path, _)| path.as_path() <= cover);
        self.attach_first(tree, after)
    }

    /// Attaches the remaining ones, after the last cover.
    pub fn attach_rest(mut self, tree: &MountTree) -> Result<(), SandboxError> {
        self.attach_first(tree, self.0.len())
    }

    fn attach_first(&mut self, tree: &MountTree, count: usize) -> Result<(), SandboxError> {
        for (path, source) in self.0.drain(..count) {
            let shown = path.display().to_string();
            attach_mount(&source, &tree.open_without_links(&path).in_mounts(&shown)?)
                .in_mounts(&shown)?;
        }
        Ok(())
    }
}
