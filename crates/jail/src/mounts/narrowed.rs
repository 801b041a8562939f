//! What a run may touch less than its session may: the session's ground is as it is, so a run takes away from its own
//! copy of it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::{EMPTY, InMounts, Tree, attach, clone_tree, tmpfs};
use crate::fault::Fault;
use crate::rights::Rights;
use crate::sys::{self, NODEV, NOEXEC, NOSUID, RDONLY};

/// Covers each veiled place, from the outside in, and puts what is kept of it on top again as it was.
pub(super) fn veil(tree: &Tree, rights: &Rights) -> Result<(), Fault> {
    for veil in &rights.veils {
        let shown = veil.path.display().to_string();
        let Some(at) = tree.open(&veil.path).mounts(&shown)? else { continue };
        let mut kept = Vec::new();
        // The outer of two holds the inner one already.
        for path in
            veil.keep.iter().filter(|path| !veil.keep.iter().any(|other| is_below(path, other)))
        {
            if let Some(place) = tree.open(path).mounts(&shown)? {
                kept.push((
                    path,
                    clone_tree(place.as_fd(), true, NOSUID).mounts(path.display().to_string())?,
                ));
            }
        }
        let cover = tmpfs("0711", &EMPTY, NOSUID | NODEV | NOEXEC).mounts(&shown)?;
        attach(&cover, &at).mounts(&shown)?;
        for (path, source) in kept {
            let is_file = !rustix::fs::FileType::from_raw_mode(
                rustix::fs::fstat(&source).mounts(&shown)?.st_mode,
            )
            .is_dir();
            attach(&source, &tree.make_place(path, is_file).mounts(&shown)?).mounts(&shown)?;
        }
        sys::mount_setattr(cover.as_fd(), RDONLY, false).mounts(&shown)?;
    }
    Ok(())
}

/// Makes read-only what this run may not write, with everything that is mounted in it.
pub(super) fn close(tree: &Tree, rights: &Rights) -> Result<(), Fault> {
    for path in closed_places(rights) {
        let shown = path.display().to_string();
        if let Some(at) = tree.open(path).mounts(&shown)? {
            sys::mount_setattr(at.as_fd(), RDONLY, true).mounts(&shown)?;
        }
    }
    Ok(())
}

fn closed_places(rights: &Rights) -> impl Iterator<Item = &Path> {
    let workspace = rights.read_only.then_some(rights.workspace.as_path());
    workspace.into_iter().chain(rights.closed.iter().map(PathBuf::as_path))
}

fn is_below(path: &Path, above: &Path) -> bool {
    path != above && path.starts_with(above)
}

/// Writable places inside what is closed or covered, which go on top of that again. An outer one comes first.
pub(super) struct Opened(Vec<(PathBuf, OwnedFd)>);

/// Copies them while they can still be written.
pub(super) fn opened(tree: &Tree, rights: &Rights, covers: &[PathBuf]) -> Result<Opened, Fault> {
    let shut = |path: &Path| {
        closed_places(rights)
            .chain(covers.iter().map(PathBuf::as_path))
            .any(|closed| is_below(path, closed))
    };
    let mut paths: Vec<PathBuf> =
        rights.writable_roots().filter(|path| shut(path)).map(Path::to_owned).collect();
    paths.sort();
    paths.dedup();
    let mut sources = Vec::new();
    for path in paths {
        let place = tree.open_exactly(&path).mounts(path.display().to_string())?;
        let source = clone_tree(place.as_fd(), true, NOSUID).mounts(path.display().to_string())?;
        sources.push((path, source));
    }
    Ok(Opened(sources))
}

impl Opened {
    /// Those that a cover lies in, or that come before it: covers and openings alternate from the outside in.
    pub fn attach_above(&mut self, tree: &Tree, cover: &Path) -> Result<(), Fault> {
        let after = self.0.partition_point(|(path, _)| path.as_path() <= cover);
        self.attach(tree, after)
    }

    pub fn attach_rest(mut self, tree: &Tree) -> Result<(), Fault> {
        self.attach(tree, self.0.len())
    }

    fn attach(&mut self, tree: &Tree, count: usize) -> Result<(), Fault> {
        for (path, source) in self.0.drain(..count) {
            let shown = path.display().to_string();
            attach(&source, &tree.open_exactly(&path).mounts(&shown)?).mounts(&shown)?;
        }
        Ok(())
    }
}
