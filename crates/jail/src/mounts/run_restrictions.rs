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
    for partial_cover in &rights.partial_covers {
        let path_text = partial_cover.path.display().to_string();
        let Some(mount_point) = tree.open(&partial_cover.path).in_mounts(&path_text)? else {
            continue;
        };
        let mut visible = Vec::new();
        // An outer path already includes the inner one.
        for path in partial_cover
            .keep
            .iter()
            .filter(|path| !partial_cover.keep.iter().any(|other| is_below(path, other)))
        {
            if let Some(object) = tree.open(path).in_mounts(&path_text)? {
                visible.push((
                    path,
                    clone_tree(object.as_fd(), true, NOSUID)
                        .in_mounts(path.display().to_string())?,
                ));
            }
        }
        let cover =
            make_tmpfs("0711", &NAMES_ONLY_SIZE, NOSUID | NODEV | NOEXEC).in_mounts(&path_text)?;
        attach_mount(&cover, &mount_point).in_mounts(&path_text)?;
        for (path, source) in visible {
            let is_file = !rustix::fs::FileType::from_raw_mode(
                rustix::fs::fstat(&source).in_mounts(&path_text)?.st_mode,
            )
            .is_dir();
            attach_mount(&source, &tree.make_mount_point(path, is_file).in_mounts(&path_text)?)
                .in_mounts(&path_text)?;
        }
        sys::mount_setattr(cover.as_fd(), RDONLY, false).in_mounts(&path_text)?;
    }
    Ok(())
}

/// Makes read-only what this run may not write, including everything mounted below it.
pub(super) fn make_read_only(tree: &MountTree, rights: &Rights) -> Result<(), SandboxError> {
    for path in closed_paths(rights) {
        let path_text = path.display().to_string();
        if let Some(target) = tree.open(path).in_mounts(&path_text)? {
            sys::mount_setattr(target.as_fd(), RDONLY, true).in_mounts(&path_text)?;
        }
    }
    Ok(())
}

/// Returns the paths that the session may write and this run may not.
fn closed_paths(rights: &Rights) -> impl Iterator<Item = &Path> {
    let workspace = rights.read_only.then_some(rights.workspace.as_path());
    workspace.into_iter().chain(rights.read_only_dirs.iter().map(PathBuf::as_path))
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
    let is_closed = |path: &Path| {
        closed_paths(rights)
            .chain(covers.iter().map(PathBuf::as_path))
            .any(|closed| is_below(path, closed))
    };
    let mut paths: Vec<PathBuf> =
        rights.writable_roots().filter(|path| is_closed(path)).map(Path::to_owned).collect();
    paths.sort();
    paths.dedup();
    let mut sources = Vec::new();
    for path in paths {
        let directory = tree.open_without_links(&path).in_mounts(path.display().to_string())?;
        let source =
            clone_tree(directory.as_fd(), true, NOSUID).in_mounts(path.display().to_string())?;
        sources.push((path, source));
    }
    Ok(ReopenedDirectories(sources))
}

impl ReopenedDirectories {
    /// Attaches those that contain the cover or sort before it, so that covers and reopened
    /// directories alternate from the outside in.
    pub fn attach_up_to(&mut self, tree: &MountTree, cover: &Path) -> Result<(), SandboxError> {
        let count = self.0.partition_point(|(path, _)| path.as_path() <= cover);
        self.attach_first(tree, count)
    }

    /// Attaches the remaining ones, after the last cover.
    pub fn attach_rest(mut self, tree: &MountTree) -> Result<(), SandboxError> {
        self.attach_first(tree, self.0.len())
    }

    fn attach_first(&mut self, tree: &MountTree, count: usize) -> Result<(), SandboxError> {
        for (path, source) in self.0.drain(..count) {
            let path_text = path.display().to_string();
            attach_mount(&source, &tree.open_without_links(&path).in_mounts(&path_text)?)
                .in_mounts(&path_text)?;
        }
        Ok(())
    }
}
