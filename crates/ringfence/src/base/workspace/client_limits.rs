//! Refusals on the way to a path, and whether the operator or a client's sandbox is the reason.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jail::rights::Rights;
use rustix::io::Errno;

use super::path_walk::WalkLevel;
use super::{ClosedPath, ObjectId, Workspace, closed_error, os_error, protected_error, quote_path};
use crate::base::client_sandbox::{ClientSandbox, NarrowedRights};
use crate::base::error::{Error, Result};
use crate::base::glob::Glob;

/// A client's sandbox, as the reason for refusals.
pub(super) struct ClientLimits {
    /// The sandbox as the client declared it.
    sandbox: Arc<ClientSandbox>,
    /// It may be stricter than the operator's rights.
    may_be_stricter: bool,
    /// The operator's rights: what they refuse is not the client's doing.
    operator_rights: Rights,
    /// Paths closed by it.
    closed_paths: Vec<ClosedPath>,
    /// Patterns closed by it, for any path that matches.
    denied_globs: Vec<Glob>,
    /// False: it allows no network access.
    allows_network: bool,
    /// Advice for a caller that was refused.
    hint: String,
    mode: String,
    /// Directories that it makes writable but the operator does not.
    refused_roots: Vec<PathBuf>,
}

impl ClientLimits {
    fn read_only_error(&self, path: &str) -> Error {
        let message = format!("the client's sandbox makes {} read-only", quote_path(path));
        Error::permission_denied("client_read_only", message).with_hint(self.hint.clone())
    }

    fn denied_error(&self) -> Error {
        Error::permission_denied("client_denied", "the client's sandbox denies access to the path")
            .with_hint(self.hint.clone())
    }
}

/// Closed names within one directory.
pub(super) struct ClosedNames<'w> {
    names: Vec<&'w OsStr>,
    denied_globs: &'w [Glob],
    /// The directory's absolute path.
    directory: PathBuf,
    /// Some object is closed under any name, so that checking names is not enough.
    pub has_closed_objects: bool,
}

impl ClosedNames<'_> {
    /// Returns whether this name is closed.
    pub fn is_closed(&self, name: &OsStr) -> bool {
        self.names.contains(&name)
            || !self.denied_globs.is_empty() && {
                let place = self.directory.join(name);
                self.denied_globs.iter().any(|glob| glob.matches(&place))
            }
    }
}

impl Workspace {
    /// Collects the closed names of one directory; gives the same answers as
    /// [`Workspace::closed_name_error`] for each name.
    pub(super) fn closed_names_in(&self, above: &Path) -> ClosedNames<'_> {
        let by_client = self.client_limits.iter().flat_map(|client| &client.closed_paths);
        let closed = || self.closed_paths.iter().map(AsRef::as_ref).chain(by_client.clone());
        let here = |closed: &'_ ClosedPath| {
            closed.names.split_last().is_some_and(|(_, names)| names.iter().eq(above.iter()))
        };
        let names = closed().filter(|closed| here(closed)).filter_map(|closed| closed.names.last());
        ClosedNames {
            names: names.map(AsRef::as_ref).collect(),
            denied_globs: self.client_limits.as_ref().map_or(&[], |client| &client.denied_globs),
            directory: self.path.join(above),
            has_closed_objects: closed().any(|closed| closed.object.is_some()),
        }
    }

    /// Returns the same workspace under a client's sandbox, and the parts of that sandbox that have
    /// no meaning here.
    pub fn with_client_sandbox(
        &self,
        narrowing: &ClientSandbox,
    ) -> Result<(Workspace, Vec<String>)> {
        // Rights name the workspace's path only if the operator configured some.
        let whole = Rights { workspace: self.path.clone(), ..self.rights.clone() };
        let NarrowedRights {
            rights,
            hidden_paths: hidden,
            denied_globs: denied,
            ignored,
            refused_roots,
        } = narrowing.apply_to(&whole)?;
        let closed =
            hidden.iter().filter_map(|hidden| ClosedPath::find_in_workspace(&self.path, hidden));
        let client = ClientLimits {
            sandbox: Arc::new(narrowing.clone()),
            // Judged by the declaration alone: existing files, and stand-ins for missing ones, come
            // and go.
            may_be_stricter: narrowing.files.is_some() || !narrowing.allows_network,
            operator_rights: self.rights.clone(),
            closed_paths: closed.collect::<Result<_>>()?,
            denied_globs: denied,
            allows_network: narrowing.allows_network,
            hint: narrowing.refusal_hint(),
            mode: narrowing.mode.clone(),
            refused_roots,
        };
        let workspace = Workspace {
            base: Arc::clone(&self.base),
            path: self.path.clone(),
            given_path: self.given_path.clone(),
            closed_paths: self.closed_paths.clone(),
            rights,
            client_limits: Some(Arc::new(client)),
            openat2: AtomicBool::new(self.openat2.load(Ordering::Relaxed)),
        };
        Ok((workspace, ignored))
    }

    /// Returns whether a client's sandbox applies.
    pub fn has_client_sandbox(&self) -> bool {
        self.client_limits.is_some()
    }

    /// Returns the client's sandbox, if it may be stricter than the operator's rights.
    pub fn stricter_client_sandbox(&self) -> Option<&Arc<ClientSandbox>> {
        self.client_limits
            .as_ref()
            .filter(|client| client.may_be_stricter)
            .map(|client| &client.sandbox)
    }

    /// Returns whether a client's sandbox forbids network access, also for tools whose network does
    /// not depend on the session's.
    pub fn denies_network(&self) -> bool {
        self.client_limits.as_ref().is_some_and(|client| !client.allows_network)
    }

    /// Returns the mode of the client's sandbox, if one applies.
    pub fn client_sandbox_mode(&self) -> Option<&str> {
        self.client_limits.as_ref().map(|client| client.mode.as_str())
    }

    /// Returns the directories that the client's sandbox makes writable but the operator does not.
    pub fn refused_roots(&self) -> &[PathBuf] {
        self.client_limits.as_ref().map_or(&[], |client| &client.refused_roots)
    }

    /// Returns why this name is closed, whether it exists or not.
    pub(super) fn closed_name_error(&self, levels: &[WalkLevel], name: &OsStr) -> Option<Error> {
        let names = |closed: &ClosedPath| {
            closed.names.split_last().is_some_and(|(last, above)| {
                last == name && above.iter().eq(levels.iter().map(|level| &level.name))
            })
        };
        if self.closed_paths.iter().any(|closed| names(closed)) {
            return Some(closed_error());
        }
        let client = self.client_limits.as_ref()?;
        let place = self.absolute_path(levels, name);
        let shut = client.closed_paths.iter().any(names)
            || client.denied_globs.iter().any(|glob| glob.matches(&place));
        shut.then(|| client.denied_error())
    }

    /// Returns why this object is closed, whatever its name.
    pub(super) fn closed_object_error(&self, id: ObjectId) -> Option<Error> {
        let is = |closed: &ClosedPath| closed.object.as_ref().is_some_and(|(_, shut)| *shut == id);
        if self.closed_paths.iter().any(|closed| is(closed)) {
            return Some(closed_error());
        }
        self.client_limits
            .as_ref()
            .filter(|client| client.closed_paths.iter().any(is))
            .map(|client| client.denied_error())
    }

    /// Returns whether a name in a directory refers to a closed object.
    pub(super) fn is_closed_object_at(&self, dir: &OwnedFd, name: &OsStr) -> bool {
        match rustix::fs::statat(dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => self.closed_object_error(ObjectId::from_stat(&stat)).is_some(),
            Err(_) => true,
        }
    }

    /// Returns why a name and everything below it is read-only.
    pub(super) fn protection_error(
        &self,
        levels: &[WalkLevel],
        name: &OsStr,
        asked: &str,
    ) -> Option<Error> {
        let place = self.absolute_path(levels, name);
        if !self.rights.protects_path(&place) {
            return None;
        }
        match &self.client_limits {
            Some(client) if !client.operator_rights.protects_path(&place) => {
                (!self.is_reopened(&place)).then(|| client.read_only_error(asked))
            }
            _ => Some(protected_error(asked)),
        }
    }

    /// Returns whether a client's sandbox makes this place writable again inside a protected one,
    /// or whether such a place is below it.
    fn is_reopened(&self, place: &Path) -> bool {
        let depth = |path: &Path| path.components().count();
        let on_the_way =
            self.rights.writable.iter().any(|root| root != place && root.starts_with(place));
        let opened = self
            .rights
            .writable
            .iter()
            .filter(|root| place.starts_with(root))
            .map(|root| depth(root))
            .max();
        let shut = self.rights.protected.iter().filter(|shut| place.starts_with(&shut.path));
        let shut = shut.map(|shut| depth(&shut.path)).max();
        on_the_way || shut.is_some() && opened > shut
    }

    /// Returns why nothing may be written or created at exactly this place.
    pub(super) fn read_only_error(
        &self,
        levels: &[WalkLevel],
        name: &OsStr,
        asked: &str,
    ) -> Option<Error> {
        let place = self.absolute_path(levels, name);
        if !self.rights.read_only
            || self.rights.writable.iter().any(|root| place != *root && place.starts_with(root))
        {
            return None;
        }
        match &self.client_limits {
            Some(client) if !client.operator_rights.read_only => {
                Some(client.read_only_error(asked))
            }
            _ => Some(os_error(Errno::ROFS, asked)),
        }
    }
}
