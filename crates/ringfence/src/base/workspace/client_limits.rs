//! Refusals on the way to a path, and whether the operator or a client's sandbox is the reason.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jail::rights::Rights;
use rustix::io::Errno;

use super::path_resolver::PathResolver;
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
                let path = self.directory.join(name);
                self.denied_globs.iter().any(|glob| glob.matches(&path))
            }
    }
}

impl Workspace {
    /// Collects the closed names of one directory; gives the same answers as
    /// [`Workspace::closed_name_error`] for each name.
    pub(super) fn closed_names_in(&self, directory: &Path) -> ClosedNames<'_> {
        let client_closed_paths = self.client_limits.iter().flat_map(|limits| &limits.closed_paths);
        let closed =
            || self.closed_paths.iter().map(AsRef::as_ref).chain(client_closed_paths.clone());
        let is_in_directory = |closed: &'_ ClosedPath| {
            closed.names.split_last().is_some_and(|(_, names)| names.iter().eq(directory.iter()))
        };
        let names = closed()
            .filter(|closed| is_in_directory(closed))
            .filter_map(|closed| closed.names.last());
        ClosedNames {
            names: names.map(AsRef::as_ref).collect(),
            denied_globs: self.client_limits.as_ref().map_or(&[], |limits| &limits.denied_globs),
            directory: self.path.join(directory),
            has_closed_objects: closed().any(|closed| closed.object.is_some()),
        }
    }

    /// Returns the same workspace under a client's sandbox, and the parts of that sandbox that have
    /// no meaning here.
    pub fn with_client_sandbox(&self, sandbox: &ClientSandbox) -> Result<(Workspace, Vec<String>)> {
        // Rights name the workspace's path only if the operator configured some.
        let workspace_rights = Rights { workspace: self.path.clone(), ..self.rights.clone() };
        let NarrowedRights { rights, hidden_paths: hidden, denied_globs, ignored, refused_roots } =
            sandbox.apply_to(&workspace_rights)?;
        let mut resolver = PathResolver::default();
        let closed_paths = hidden
            .iter()
            .filter_map(|hidden| ClosedPath::find_in_workspace(&mut resolver, &self.path, hidden));
        let limits = ClientLimits {
            sandbox: Arc::new(sandbox.clone()),
            // Judged by the declaration alone: existing files, and stand-ins for missing ones, come
            // and go.
            may_be_stricter: sandbox.files.is_some() || !sandbox.allows_network,
            operator_rights: self.rights.clone(),
            closed_paths: closed_paths.collect::<Result<_>>()?,
            denied_globs,
            allows_network: sandbox.allows_network,
            hint: sandbox.refusal_hint(),
            mode: sandbox.mode.clone(),
            refused_roots,
        };
        let workspace = Workspace {
            base: Arc::clone(&self.base),
            path: self.path.clone(),
            given_path: self.given_path.clone(),
            closed_paths: self.closed_paths.clone(),
            rights,
            client_limits: Some(Arc::new(limits)),
            openat2: AtomicBool::new(self.openat2.load(Ordering::Relaxed)),
            is_local: self.is_local,
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
        let matches_path = |closed_path: &ClosedPath| {
            closed_path.names.split_last().is_some_and(|(last, parents)| {
                last == name && parents.iter().eq(levels.iter().map(|level| &level.name))
            })
        };
        if self.closed_paths.iter().any(|closed_path| matches_path(closed_path)) {
            return Some(closed_error());
        }
        let limits = self.client_limits.as_ref()?;
        let path = self.absolute_path(levels, name);
        let is_denied = limits.closed_paths.iter().any(matches_path)
            || limits.denied_globs.iter().any(|glob| glob.matches(&path));
        is_denied.then(|| limits.denied_error())
    }

    /// Returns why this object is closed, whatever its name.
    pub(super) fn closed_object_error(&self, id: ObjectId) -> Option<Error> {
        let is_object = |closed_path: &ClosedPath| {
            closed_path.object.as_ref().is_some_and(|(_, closed_id)| *closed_id == id)
        };
        if self.closed_paths.iter().any(|closed_path| is_object(closed_path)) {
            return Some(closed_error());
        }
        self.client_limits
            .as_ref()
            .filter(|limits| limits.closed_paths.iter().any(is_object))
            .map(|limits| limits.denied_error())
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
        requested_path: &str,
    ) -> Option<Error> {
        let path = self.absolute_path(levels, name);
        if !self.rights.protects_path(&path) {
            return None;
        }
        match &self.client_limits {
            Some(limits) if !limits.operator_rights.protects_path(&path) => {
                (!self.is_reopened(&path)).then(|| limits.read_only_error(requested_path))
            }
            _ => Some(protected_error(requested_path)),
        }
    }

    /// Returns whether a client's sandbox makes this place writable again inside a protected one,
    /// or whether such a place is below it.
    fn is_reopened(&self, target: &Path) -> bool {
        let depth = |path: &Path| path.components().count();
        let leads_to_root =
            self.rights.writable.iter().any(|root| root != target && root.starts_with(target));
        let writable_depth = self
            .rights
            .writable
            .iter()
            .filter(|root| target.starts_with(root))
            .map(|root| depth(root))
            .max();
        let shut = self.rights.protected.iter().filter(|shut| target.starts_with(&shut.path));
        let shut = shut.map(|shut| depth(&shut.path)).max();
        leads_to_root || shut.is_some() && writable_depth > shut
    }

    /// Returns why nothing may be written or created at exactly this place.
    pub(super) fn read_only_error(
        &self,
        levels: &[WalkLevel],
        name: &OsStr,
        requested_path: &str,
    ) -> Option<Error> {
        let path = self.absolute_path(levels, name);
        if !self.rights.read_only
            || self.rights.writable.iter().any(|root| path != *root && path.starts_with(root))
        {
            return None;
        }
        match &self.client_limits {
            Some(limits) if !limits.operator_rights.read_only => {
                Some(limits.read_only_error(requested_path))
            }
            _ => Some(os_error(Errno::ROFS, requested_path)),
        }
    }
}
