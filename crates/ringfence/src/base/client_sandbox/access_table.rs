//! Resolves a client's entries to one access per path, and narrows the operator's rights
//! accordingly.

use std::path::{Path, PathBuf};

use jail::rights::{PartialCover, ProtectedPath, Rights, StandIn};

use super::{
    ClientAccess, ClientAccessPath, ClientFileAccess, NarrowedRights, REQUIRED_SYSTEM_DIRS,
    is_plain_directory,
};
use crate::base::error::{Error, Result};

/// Names that a client's own sandbox keeps read-only directly below each writable directory, listed
/// or not.
const READ_ONLY_NAMES: &[&str] = &[".git", ".agents", ".codex"];
/// Directories that are private to the session inside the sandbox, so what a client says about the
/// host's does not apply to them.
const PRIVATE_DIRS: &[&str] = &["/dev", "/proc", "/run", "/tmp", "/var/tmp"];

/// A client's entries, sorted, with one row per path.
pub struct AccessTable {
    /// Sorted, so that a directory comes before its contents.
    rows: Vec<AccessRow>,
}

struct AccessRow {
    path: PathBuf,
    access: ClientAccess,
    skip_missing: bool,
}

impl AccessTable {
    /// Builds the table, with paths in the canonical form that rights use.
    pub fn from_file_access(files: &ClientFileAccess, rights: &Rights) -> AccessTable {
        let cwd = files.cwd.as_deref().unwrap_or(&rights.workspace);
        let mut rows: Vec<AccessRow> = Vec::new();
        for entry in &files.entries {
            let path = match &entry.path {
                ClientAccessPath::Path(path) => resolve_links_outside_roots(path, rights),
                ClientAccessPath::Project(below) => {
                    resolve_links_outside_roots(&cwd.join(below), rights)
                }
            };
            rows.push(AccessRow { path, access: entry.access, skip_missing: entry.skip_missing });
        }
        let roots: Vec<PathBuf> = rows
            .iter()
            .filter(|row| row.access == ClientAccess::Write)
            .map(|row| row.path.clone())
            .collect();
        for path in roots.iter().flat_map(|root| READ_ONLY_NAMES.iter().map(|name| root.join(name)))
        {
            if !rows.iter().any(|row| row.path == path) {
                rows.push(AccessRow { path, access: ClientAccess::Read, skip_missing: true });
            }
        }
        // The strictest row for a path comes first and is kept.
        rows.sort_by(|one, other| one.path.cmp(&other.path).then(other.access.cmp(&one.access)));
        rows.dedup_by(|one, other| one.path == other.path);
        AccessTable { rows }
    }

    /// Returns the access of the most specific row; a path without a row is denied.
    fn access_to(&self, path: &Path) -> ClientAccess {
        let rows = self.rows.iter().filter(|row| path.starts_with(&row.path));
        rows.max_by_key(|row| row.path.components().count())
            .map_or(ClientAccess::Deny, |row| row.access)
    }

    /// Narrows the operator's rights to what the table allows.
    pub fn narrow_rights(&self, rights: &Rights, to: &mut NarrowedRights) -> Result<()> {
        if self.access_to(&rights.workspace) == ClientAccess::Deny {
            return Err(Error::permission_denied(
                "client_denied",
                "the client's sandbox allows nothing in the workspace to be read",
            ));
        }
        to.rights.read_only |= self.access_to(&rights.workspace) != ClientAccess::Write;
        to.rights.writable.retain(|root| self.access_to(root) == ClientAccess::Write);
        to.rights.closed.extend(
            rights
                .writable
                .iter()
                .filter(|root| self.access_to(root) != ClientAccess::Write)
                .cloned(),
        );
        for row in &self.rows {
            let root = enclosing_root(rights, &row.path);
            match root {
                Some(root) if row.path != root => self.narrow_inside(row, root, rights, to),
                _ => self.narrow_outside(row, rights, to),
            }
        }
        if self.access_to(Path::new("/")) == ClientAccess::Deny {
            self.hide_unlisted(rights, to);
        }
        to.rights.veils.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(())
    }

    /// Applies a row for a path inside a place that the operator makes writable.
    fn narrow_inside(
        &self,
        row: &AccessRow,
        root: &Path,
        rights: &Rights,
        to: &mut NarrowedRights,
    ) {
        let around = row.path.parent().map_or(ClientAccess::Deny, |above| self.access_to(above));
        let ignored = |why: &str| format!("{} {why}", display_path(&row.path, rights));
        match (row.access, around) {
            (ClientAccess::Read | ClientAccess::Write, ClientAccess::Deny) => {
                to.ignored.push(ignored("stays denied because its directory is denied"));
            }
            (ClientAccess::Deny, ClientAccess::Deny)
            | (ClientAccess::Read, ClientAccess::Read)
            | (ClientAccess::Write, ClientAccess::Write) => {}
            (ClientAccess::Deny, _) => {
                to.rights.hidden.push(row.path.clone());
                to.hidden_paths.push(row.path.clone());
            }
            (ClientAccess::Read, ClientAccess::Write) => protect_path(row, root, rights, to),
            (ClientAccess::Write, ClientAccess::Read) => {
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
    fn narrow_outside(&self, row: &AccessRow, rights: &Rights, to: &mut NarrowedRights) {
        let reaches = operator_roots(rights).any(|root| root.starts_with(&row.path));
        if PRIVATE_DIRS.iter().any(|own| row.path == Path::new(own)) {
            return;
        }
        let in_own = PRIVATE_DIRS.iter().any(|own| row.path.starts_with(own));
        match row.access {
            ClientAccess::Write if !reaches && !row.skip_missing => {
                to.ignored.push(format!(
                    "{} is outside the workspace, so it is not opened for writing",
                    row.path.display()
                ));
                to.refused_roots.push(row.path.clone());
            }
            // Paths that are not mounted into these directories cannot be seen there.
            ClientAccess::Deny if row.path.parent().is_some() && (reaches || !in_own) => {
                self.hide_path(&row.path, rights, to)
            }
            _ => {}
        }
    }

    /// Hides a place outside the workspace, except for the parts that are needed.
    fn hide_path(&self, path: &Path, rights: &Rights, to: &mut NarrowedRights) {
        if REQUIRED_SYSTEM_DIRS.iter().any(|kept| path == Path::new(kept)) {
            to.ignored
                .push(format!("{} cannot be hidden: no command runs without it", path.display()));
            return;
        }
        let readable =
            self.rows.iter().filter(|row| row.access != ClientAccess::Deny).map(|row| &row.path);
        let system = REQUIRED_SYSTEM_DIRS.iter().chain(PRIVATE_DIRS).map(PathBuf::from);
        let own = rights.home.iter().chain(&rights.scratch);
        let mut keep: Vec<PathBuf> = operator_roots(rights)
            .map(Path::to_owned)
            .chain(own.chain(readable).cloned())
            .collect();
        keep.extend(system);
        keep.retain(|kept| {
            kept.starts_with(path) && kept != path && self.stays_visible(kept, rights)
        });
        keep.sort();
        keep.dedup();
        match keep.is_empty() {
            true => to.rights.hidden.push(path.to_owned()),
            false => to.rights.veils.push(PartialCover { path: path.to_owned(), keep }),
        }
    }

    /// Returns whether a path stays visible: the client allows it, or it is not the client's to
    /// deny.
    fn stays_visible(&self, path: &Path, rights: &Rights) -> bool {
        let own = rights.home.iter().chain(&rights.scratch).any(|own| own == path);
        own || REQUIRED_SYSTEM_DIRS.iter().chain(PRIVATE_DIRS).any(|kept| path == Path::new(kept))
            || self.access_to(path) != ClientAccess::Deny
    }

    /// Hides everything that no row makes readable.
    fn hide_unlisted(&self, rights: &Rights, to: &mut NarrowedRights) {
        for entry in std::fs::read_dir("/").into_iter().flatten().flatten() {
            let path = entry.path();
            let known =
                REQUIRED_SYSTEM_DIRS.iter().chain(PRIVATE_DIRS).any(|kept| path == Path::new(kept));
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            let has_row = self.rows.iter().any(|row| row.path == path);
            if !known && !is_link && !has_row && self.access_to(&path) == ClientAccess::Deny {
                self.hide_path(&path, rights, to);
            }
        }
    }
}

/// Keeps a path inside a writable place read-only.
fn protect_path(row: &AccessRow, root: &Path, rights: &Rights, to: &mut NarrowedRights) {
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
            display_path(&row.path, rights)
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
fn operator_roots(rights: &Rights) -> impl Iterator<Item = &Path> {
    [&rights.workspace].into_iter().chain(&rights.writable).map(PathBuf::as_path)
}

/// Returns the innermost writable place that contains a path.
fn enclosing_root<'r>(rights: &'r Rights, path: &Path) -> Option<&'r Path> {
    operator_roots(rights)
        .filter(|root| path.starts_with(root))
        .max_by_key(|root| root.as_os_str().len())
}

fn display_path(path: &Path, rights: &Rights) -> String {
    path.strip_prefix(&rights.workspace).unwrap_or(path).display().to_string()
}

/// Resolves the symbolic links in a client's path up to a writable place. Inside a writable place
/// none is followed: a run may have created it in order to gain access the next time.
pub fn resolve_links_outside_roots(path: &Path, rights: &Rights) -> PathBuf {
    let mut here = PathBuf::from("/");
    for name in path.iter().skip(1) {
        here.push(name);
        let inside = here
            .parent()
            .is_some_and(|above| operator_roots(rights).any(|root| above.starts_with(root)));
        if !inside && let Ok(found) = here.canonicalize() {
            here = found;
        }
    }
    here
}
