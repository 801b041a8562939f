//! Which access a client's entries give to a path, and the operator's rights under it.

use std::path::{Path, PathBuf};

use jail::rights::{Protected, Rights, StandIn, Veil};

use super::{Access, Files, MINIMAL, Narrowed, Place, is_plain_directory};
use crate::base::error::{Error, Result};

/// What a client's own sandbox keeps read-only directly below each writable directory, listed or not.
const METADATA: &[&str] = &[".git", ".agents", ".codex"];
/// Inside the fence these are the session's own, and have nothing to do with what a client says about the host's.
const OWN: &[&str] = &["/dev", "/proc", "/run", "/tmp", "/var/tmp"];

pub struct Table {
    /// One row per path, an outer one before an inner one.
    rows: Vec<Row>,
}

struct Row {
    path: PathBuf,
    access: Access,
    skip_missing: bool,
}

impl Table {
    /// Paths become those that rights are written in.
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
        // The strictest of those that are said of one path comes first, and stays.
        rows.sort_by(|one, other| one.path.cmp(&other.path).then(other.access.cmp(&one.access)));
        rows.dedup_by(|one, other| one.path == other.path);
        Table { rows }
    }

    /// The most specific row decides, and what no row is about is denied.
    fn access(&self, path: &Path) -> Access {
        let rows = self.rows.iter().filter(|row| path.starts_with(&row.path));
        rows.max_by_key(|row| row.path.components().count()).map_or(Access::Deny, |row| row.access)
    }

    pub fn narrow(&self, rights: &Rights, to: &mut Narrowed) -> Result<()> {
        if self.access(&rights.workspace) == Access::Deny {
            return Err(Error::permission_denied(
                "client_denied",
                "the client's sandbox does not let anything in the workspace be read",
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

    /// A row about something in a place that the operator lets be written.
    fn narrow_inside(&self, row: &Row, root: &Path, rights: &Rights, to: &mut Narrowed) {
        let around = row.path.parent().map_or(Access::Deny, |above| self.access(above));
        let ignored = |why: &str| format!("{} {why}", shown(&row.path, rights));
        match (row.access, around) {
            (Access::Read | Access::Write, Access::Deny) => {
                to.ignored.push(ignored("stays denied with the directory that it is in"));
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
                let taken = rights.protects(&row.path)
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

    /// A row about something that is read-only here anyway, or about a writable place as a whole.
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
            // What is not mounted into these cannot be seen there.
            Access::Deny if row.path.parent().is_some() && (reaches || !in_own) => {
                self.hide(&row.path, rights, to)
            }
            _ => {}
        }
    }

    /// Hides a place outside the workspace, but for what is needed of it.
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
            false => to.rights.veils.push(Veil { path: path.to_owned(), keep }),
        }
    }

    /// Whether it can still be seen: by the client's word, or because it is none of the client's business.
    fn stays(&self, path: &Path, rights: &Rights) -> bool {
        let own = rights.home.iter().chain(&rights.scratch).any(|own| own == path);
        own || MINIMAL.iter().chain(OWN).any(|kept| path == Path::new(kept))
            || self.access(path) != Access::Deny
    }

    /// Hides everything that no row lets be read.
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

/// Keeps something in a writable place read-only.
fn protect(row: &Row, root: &Path, rights: &Rights, to: &mut Narrowed) {
    let found = row.path.symlink_metadata();
    if row.skip_missing && found.is_err()
        || rights.protected.iter().any(|known| known.path == row.path)
    {
        return;
    }
    let mut path = row.path.clone();
    if found.is_ok_and(|found| found.is_symlink()) {
        // Nothing can be put in front of a link. What it leads to is kept, if a run could change that.
        to.ignored.push(format!(
            "{} is a symbolic link: only what it leads to is read-only",
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
    to.rights.protected.push(Protected { path, stand_in: StandIn::Directory });
}

/// Where the operator lets a run write, its own HOME aside.
fn roots(rights: &Rights) -> impl Iterator<Item = &Path> {
    [&rights.workspace].into_iter().chain(&rights.writable).map(PathBuf::as_path)
}

/// The nearest writable place that a path lies in.
fn writable_root<'r>(rights: &'r Rights, path: &Path) -> Option<&'r Path> {
    roots(rights).filter(|root| path.starts_with(root)).max_by_key(|root| root.as_os_str().len())
}

fn shown(path: &Path, rights: &Rights) -> String {
    path.strip_prefix(&rights.workspace).unwrap_or(path).display().to_string()
}

/// A client's path without the symbolic links that lead to a writable place. Inside of one none is followed: a run may
/// have laid it, to be allowed more the next time.
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
