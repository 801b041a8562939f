//! Resolves a client's entries to one access per path, and narrows the operator's rights
//! accordingly.

use std::path::{Path, PathBuf};

use jail::rights::{PartialCover, ProtectedPath, Rights, StandIn};

use super::{Access, Files, MINIMAL, Narrowed, Place, is_plain_directory};
use crate::base::error::{Error, Result};

/// Names that a client's own sandbox keeps read-only directly below each writable directory, listed
/// or not.
const METADATA: &[&str] = &[".git", ".agents", ".codex"];
/// Directories that are private to the session inside the sandbox, so what a client says about the
/// host's does not apply to them.
const OWN: &[&str] = &["/dev", "/proc", "/run", "/tmp", "/var/tmp"];

/// A client's entries, sorted, with one row per path.
pub struct Table {
    /// Sorted, so that a directory comes before its contents.
    rows: Vec<Row>,
}

struct Row {
    path: PathBuf,
    access: Access,
    skip_missing: bool,
}

impl Table {
    /// Builds the table, with paths in the canonical form that rights use.
    pub fn settle(files: &Files, rights: &Rights) -> Table {
        let cwd = files.cwd.as_deref().unwrap_or(&rights.workspace);
        let mut rows: Vec<Row> = Vec::new();
        for entry in &files.entries {
            let path = match &entry.place {
                Place::Path(path) => settled(path, rights),
                Place::Project(below) => settled(&cwd.join(below), rights),
            };
            rows.push(Row { path, access: entry.access, skip_missing: entry.skip_missing });
        }
        let roots: Vec<PathBuf> = rows
            .iter()
            .filter(|row| row.access == Access::Write)
            .map(|row| row.path.clone())
            .collect();
        for path in roots.iter().flat_map(|root| METADATA.iter().map(|name| root.join(name))) {
            if !rows.iter().any(|row| row.path == path) {
                rows.push(Row { path, access: Access::Read, skip_missing: true });
            }
        }
        // The strictest row for a path comes first and is kept.
        rows.sort_by(|one, other| one.path.cmp(&other.path).then(other.access.cmp(&one.access)));
        rows.dedup_by(|one, other| one.path == other.path);
        Table { rows }
    }

    /// Returns the access of the most specific row; a path without a row is denied.
    fn access(&self, path: &Path) -> Access {
        let rows = self.rows.iter().filter(|row| path.starts_with(&row.path));
        rows.max_by_key(|row| row.path.components().count()).map_or(Access::Deny, |row| row.access)
    }

    /// Narrows the operator's rights to what the table allows.
    pub fn narrow(&self, rights: &Rights, to: &mut Narrowed) -> Result<()> {
        if self.access(&rights.workspace) == Access::Deny {
            return Err(Error::permission_denied(
                "client_denied",
                "the client's sandbox allows nothing in the workspace to be read",
            ));
        }
        to.rights.read_only |= self.access(&rights.workspace) != Access::Write;
        to.rights.writable.retain(|root| self.access(root) == Access::Write);
        to.rights.closed.extend(
            rights.writable.iter().filter(|root| self.access(root) != Access::Write).cloned(),
        );
        for row in &self.rows {
            let root = writable_root(rights, &row.path);
            match root {
                Some(root) if row.path != root => self.narrow_inside(row, root, rights, to),
                _ => self.narrow_outside(row, rights, to),
            }
        }
        if self.access(Path::new("/")) == Access::Deny {
            self.veil_all(rights, to);
        }
        to.rights.veils.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(())
    }

    /// Applies a row for a path inside a place that the operator makes writable.
    fn narrow_inside(&self, row: &Row, root: &Path, rights: &Rights, to: &mut Narrowed) {
        let around = row.path.parent().map_or(Access::Deny, |above| self.access(above));
        let ignored = |why: &str| format!("{} {why}", shown(&row.path, rights));
        match (row.access, around) {
            (Access::Read | Access::Write, Access::Deny) => {
                to.ignored.push(ignored("stays denied because its directory is denied"));
            }
            (Access::Deny, Access::Deny)
            | (Access::Read, Access::Read)
            | (Access::Write, Access::Write) => {}
            (Access::Deny, _) => {
                to.rights.hidden.push(row.path.clone());
                to.hidden.push(row.path.clone());
            }
            (Access::Read, Access::Write) => protect(row, root, rights, to),
            (Access::Write, Access::Read) => {
                let taken = rights.protects_path(&row.path)
                    || rights.hidden.iter().any(|at| row.path.starts_with(at));
                if taken {
                    to.ignored.push(ignored("is protected or hidden by the operator"));
                } else if is_plain_directory(root, &row.path) {
                    to.rights.writable.push(row.path.clone());
                } else {
                    to.ignored.push(ignored("is not a directory, so it is not opened for writing"));
                }
            }
        }
    }

    /// Applies a row for a path that is read-only here anyway, or for a writable place as a whole.
    fn narrow_outside(&self, row: &Row, rights: &Rights, to: &mut Narrowed) {
        let reaches = roots(rights).any(|root| root.starts_with(&row.path));
        if OWN.iter().any(|own| row.path == Path::new(own)) {
            return;
        }
        let in_own = OWN.iter().any(|own| row.path.starts_with(own));
        match row.access {
            Access::Write if !reaches && !row.skip_missing => {
                to.ignored.push(format!(
                    "{} is outside the workspace, so it is not opened for writing",
                    row.path.display()
                ));
                to.refused_roots.push(row.path.clone());
            }
            // Paths that are not mounted into these directories cannot be seen there.
            Access::Deny if row.path.parent().is_some() && (reaches || !in_own) => {
                self.hide(&row.path, rights, to)
            }
            _ => {}
        }
    }

    /// Hides a place outside the workspace, except for the parts that are needed.
    fn hide(&self, path: &Path, rights: &Rights, to: &mut Narrowed) {
        if MINIMAL.iter().any(|kept| path == Path::new(kept)) {
            to.ignored
                .push(format!("{} cannot be hidden: no command runs without it", path.display()));
            return;
        }
        let readable =
            self.rows.iter().filter(|row| row.access != Access::Deny).map(|row| &row.path);
        let system = MINIMAL.iter().chain(OWN).map(PathBuf::from);
        let own = rights.home.iter().chain(&rights.scratch);
        let mut keep: Vec<PathBuf> =
            roots(rights).map(Path::to_owned).chain(own.chain(readable).cloned()).collect();
        keep.extend(system);
        keep.retain(|kept| kept.starts_with(path) && kept != path && self.stays(kept, rights));
        keep.sort();
        keep.dedup();
        match keep.is_empty() {
            true => to.rights.hidden.push(path.to_owned()),
            false => to.rights.veils.push(PartialCover { path: path.to_owned(), keep }),
        }
    }

    /// Returns whether a path stays visible: the client allows it, or it is not the client's to
    /// deny.
    fn stays(&self, path: &Path, rights: &Rights) -> bool {
        let own = rights.home.iter().chain(&rights.scratch).any(|own| own == path);
        own || MINIMAL.iter().chain(OWN).any(|kept| path == Path::new(kept))
            || self.access(path) != Access::Deny
    }

    /// Hides everything that no row makes readable.
    fn veil_all(&self, rights: &Rights, to: &mut Narrowed) {
        for entry in std::fs::read_dir("/").into_iter().flatten().flatten() {
            let path = entry.path();
            let known = MINIMAL.iter().chain(OWN).any(|kept| path == Path::new(kept));
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            let has_row = self.rows.iter().any(|row| row.path == path);
            if !known && !is_link && !has_row && self.access(&path) == Access::Deny {
                self.hide(&path, rights, to);
            }
        }
    }
}

/// Keeps a path inside a writable place read-only.
fn protect(row: &Row, root: &Path, rights: &Rights, to: &mut Narrowed) {
    let found = row.path.symlink_metadata();
    if row.skip_missing && found.is_err()
        || rights.protected.iter().any(|known| known.path == row.path)
    {
        return;
    }
    let mut path = row.path.clone();
    if found.is_ok_and(|found| found.is_symlink()) {
        // Nothing can be mounted over a link. Its target is protected instead, if a run could
        // change that.
        to.ignored.push(format!(
            "{} is a symbolic link: only its target is read-only",
            shown(&row.path, rights)
        ));
        match row
            .path
            .canonicalize()
            .ok()
            .filter(|target| target.starts_with(root) && target != root)
        {
            Some(target) => path = target,
            None => return,
        }
    }
    to.rights.protected.push(ProtectedPath { path, stand_in: StandIn::Directory });
}

/// Returns the places that the operator lets a run write, except its HOME.
fn roots(rights: &Rights) -> impl Iterator<Item = &Path> {
    [&rights.workspace].into_iter().chain(&rights.writable).map(PathBuf::as_path)
}

/// Returns the innermost writable place that contains a path.
fn writable_root<'r>(rights: &'r Rights, path: &Path) -> Option<&'r Path> {
    roots(rights).filter(|root| path.starts_with(root)).max_by_key(|root| root.as_os_str().len())
}

fn shown(path: &Path, rights: &Rights) -> String {
    path.strip_prefix(&rights.workspace).unwrap_or(path).display().to_string()
}

/// Resolves the symbolic links in a client's path up to a writable place. Inside a writable place
/// none is followed: a run may have created it in order to gain access the next time.
pub fn settled(path: &Path, rights: &Rights) -> PathBuf {
    let mut here = PathBuf::from("/");
    for name in path.iter().skip(1) {
        here.push(name);
        let inside =
            here.parent().is_some_and(|above| roots(rights).any(|root| above.starts_with(root)));
        if !inside && let Ok(found) = here.canonicalize() {
            here = found;
        }
    }
    here
}
