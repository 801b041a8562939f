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
                ClientAccessPath::Project(relative_path) => {
                    resolve_links_outside_roots(&cwd.join(relative_path), rights)
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
    pub fn narrow_rights(&self, rights: &Rights, narrowed: &mut NarrowedRights) -> Result<()> {
        if self.access_to(&rights.workspace) == ClientAccess::Deny {
            return Err(Error::permission_denied(
                "client_denied",
                "the client's sandbox allows nothing in the workspace to be read",
            ));
        }
        narrowed.rights.read_only |= self.access_to(&rights.workspace) != ClientAccess::Write;
        narrowed.rights.writable.retain(|root| self.access_to(root) == ClientAccess::Write);
        narrowed.rights.read_only_dirs.extend(
            rights
                .writable
                .iter()
                .filter(|root| self.access_to(root) != ClientAccess::Write)
                .cloned(),
        );
        for row in &self.rows {
            let root = enclosing_root(rights, &row.path);
            match root {
                Some(root) if row.path != root => self.narrow_inside(row, root, rights, narrowed),
                _ => self.narrow_outside(row, rights, narrowed),
            }
        }
        if self.access_to(Path::new("/")) == ClientAccess::Deny {
            self.hide_unlisted(rights, narrowed);
        }
        narrowed.rights.partial_covers.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(())
    }

    /// Applies a row for a path inside a place that the operator makes writable.
    fn narrow_inside(
        &self,
        row: &AccessRow,
        root: &Path,
        rights: &Rights,
        narrowed: &mut NarrowedRights,
    ) {
        let parent_access =
            row.path.parent().map_or(ClientAccess::Deny, |parent| self.access_to(parent));
        let ignored_note = |reason: &str| format!("{} {reason}", display_path(&row.path, rights));
        match (row.access, parent_access) {
            (ClientAccess::Read | ClientAccess::Write, ClientAccess::Deny) => {
                narrowed.ignored.push(ignored_note("stays denied because its directory is denied"));
            }
            (ClientAccess::Deny, ClientAccess::Deny)
            | (ClientAccess::Read, ClientAccess::Read)
            | (ClientAccess::Write, ClientAccess::Write) => {}
            (ClientAccess::Deny, _) => {
                narrowed.rights.hidden.push(row.path.clone());
                narrowed.hidden_paths.push(row.path.clone());
            }
            (ClientAccess::Read, ClientAccess::Write) => protect_path(row, root, rights, narrowed),
            (ClientAccess::Write, ClientAccess::Read) => {
                let is_restricted = rights.protects_path(&row.path)
                    || rights.hidden.iter().any(|hidden_path| row.path.starts_with(hidden_path));
                if is_restricted {
                    narrowed.ignored.push(ignored_note("is protected or hidden by the operator"));
                } else if is_plain_directory(root, &row.path) {
                    narrowed.rights.writable.push(row.path.clone());
                } else {
                    narrowed
                        .ignored
                        .push(ignored_note("is not a directory, so it is not opened for writing"));
                }
            }
        }
    }

    /// Applies a row for a path that is read-only here anyway, or for a writable place as a whole.
    fn narrow_outside(&self, row: &AccessRow, rights: &Rights, narrowed: &mut NarrowedRights) {
        let contains_root = operator_roots(rights).any(|root| root.starts_with(&row.path));
        if PRIVATE_DIRS.iter().any(|private_dir| row.path == Path::new(private_dir)) {
            return;
        }
        let is_in_private_dir =
            PRIVATE_DIRS.iter().any(|private_dir| row.path.starts_with(private_dir));
        match row.access {
            ClientAccess::Write if !contains_root && !row.skip_missing => {
                narrowed.ignored.push(format!(
                    "{} is outside the workspace, so it is not opened for writing",
                    row.path.display()
                ));
                narrowed.refused_roots.push(row.path.clone());
            }
            // Paths that are not mounted into these directories cannot be seen there.
            ClientAccess::Deny
                if row.path.parent().is_some() && (contains_root || !is_in_private_dir) =>
            {
                self.hide_path(&row.path, rights, narrowed)
            }
            _ => {}
        }
    }

    /// Hides a place outside the workspace, except for the parts that are needed.
    fn hide_path(&self, path: &Path, rights: &Rights, narrowed: &mut NarrowedRights) {
        if REQUIRED_SYSTEM_DIRS.iter().any(|visible_path| path == Path::new(visible_path)) {
            narrowed
                .ignored
                .push(format!("{} cannot be hidden: no command runs without it", path.display()));
            return;
        }
        let readable_paths =
            self.rows.iter().filter(|row| row.access != ClientAccess::Deny).map(|row| &row.path);
        let system_dirs = REQUIRED_SYSTEM_DIRS.iter().chain(PRIVATE_DIRS).map(PathBuf::from);
        let home_and_scratch = rights.home.iter().chain(&rights.scratch);
        let mut keep: Vec<PathBuf> = operator_roots(rights)
            .map(Path::to_owned)
            .chain(home_and_scratch.chain(&rights.readable).chain(readable_paths).cloned())
            .collect();
        keep.extend(system_dirs);
        keep.retain(|visible_path| {
            visible_path.starts_with(path)
                && visible_path != path
                && self.stays_visible(visible_path, rights)
        });
        keep.sort();
        keep.dedup();
        match keep.is_empty() {
            true => narrowed.rights.hidden.push(path.to_owned()),
            false => {
                narrowed.rights.partial_covers.push(PartialCover { path: path.to_owned(), keep })
            }
        }
    }

    /// Returns whether a path stays visible: the client allows it, or it is not the client's to
    /// deny.
    fn stays_visible(&self, path: &Path, rights: &Rights) -> bool {
        let mut own_paths = rights.home.iter().chain(&rights.scratch).chain(&rights.readable);
        let own = own_paths.any(|own| own == path);
        own || REQUIRED_SYSTEM_DIRS.iter().chain(PRIVATE_DIRS).any(|dir| path == Path::new(dir))
            || self.access_to(path) != ClientAccess::Deny
    }

    /// Hides everything that no row makes readable.
    fn hide_unlisted(&self, rights: &Rights, narrowed: &mut NarrowedRights) {
        for entry in std::fs::read_dir("/").into_iter().flatten().flatten() {
            let path = entry.path();
            let is_system_dir =
                REQUIRED_SYSTEM_DIRS.iter().chain(PRIVATE_DIRS).any(|dir| path == Path::new(dir));
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            let has_row = self.rows.iter().any(|row| row.path == path);
            if !is_system_dir && !is_link && !has_row && self.access_to(&path) == ClientAccess::Deny
            {
                self.hide_path(&path, rights, narrowed);
            }
        }
    }
}

/// Keeps a path inside a writable place read-only.
fn protect_path(row: &AccessRow, root: &Path, rights: &Rights, narrowed: &mut NarrowedRights) {
    let metadata = row.path.symlink_metadata();
    if row.skip_missing && metadata.is_err()
        || rights.protected.iter().any(|known| known.path == row.path)
    {
        return;
    }
    let mut path = row.path.clone();
    if metadata.is_ok_and(|metadata| metadata.is_symlink()) {
        // Nothing can be mounted over a link. Its target is protected instead, if a run could
        // change that.
        narrowed.ignored.push(format!(
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
    narrowed.rights.protected.push(ProtectedPath { path, stand_in: StandIn::Directory });
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
    let mut resolved = PathBuf::from("/");
    for name in path.iter().skip(1) {
        resolved.push(name);
        let is_inside = resolved
            .parent()
            .is_some_and(|parent| operator_roots(rights).any(|root| parent.starts_with(root)));
        if !is_inside && let Ok(target) = resolved.canonicalize() {
            resolved = target;
        }
    }
    resolved
}
