//! Refusals on the way to a path, and whether the operator or a client's sandbox is the reason.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jail::rights::Rights;
use rustix::io::Errno;

use super::walk::Level;
use super::{Closed, Id, Workspace, closed, os_error, protected, quoted};
use crate::base::error::{Error, Result};
use crate::base::glob::Glob;
use crate::base::narrowing::{Narrowed, Narrowing};

/// A client's sandbox, as the reason for refusals.
pub(super) struct Client {
    /// The sandbox as the client declared it.
    narrowing: Arc<Narrowing>,
    /// It may be stricter than the operator's rights.
    takes_away: bool,
    /// The operator's rights: what they refuse is not the client's doing.
    before: Rights,
    /// Paths closed by it.
    closed: Vec<Closed>,
    /// Patterns closed by it, for any path that matches.
    denied: Vec<Glob>,
    /// False: it allows no network access.
    network: bool,
    /// Advice for a caller that was refused.
    hint: String,
    mode: String,
    /// Directories that it makes writable but the operator does not.
    refused_roots: Vec<PathBuf>,
}

impl Client {
    fn only_reads(&self, path: &str) -> Error {
        let message = format!("the client's sandbox makes {} read-only", quoted(path));
        Error::permission_denied("client_read_only", message).hint(self.hint.clone())
    }

    fn denies(&self) -> Error {
        Error::permission_denied("client_denied", "the client's sandbox denies access to the path")
            .hint(self.hint.clone())
    }
}

/// Closed names within one directory.
pub(super) struct Shutters<'w> {
    names: Vec<&'w OsStr>,
    denied: &'w [Glob],
    /// The directory's absolute path.
    above: PathBuf,
    /// Some object is closed under any name, so that checking names is not enough.
    pub by_object: bool,
}

impl Shutters<'_> {
    /// Returns whether this name is closed.
    pub fn shut(&self, name: &OsStr) -> bool {
        self.names.contains(&name)
            || !self.denied.is_empty() && {
                let place = self.above.join(name);
                self.denied.iter().any(|glob| glob.matches(&place))
            }
    }
}

impl Workspace {
    /// Collects the closed names of one directory; gives the same answers as
    /// [`Workspace::shut_name`] for each name.
    pub(super) fn shutters(&self, above: &Path) -> Shutters<'_> {
        let by_client = self.client.iter().flat_map(|client| &client.closed);
        let closed = || self.closed.iter().map(AsRef::as_ref).chain(by_client.clone());
        let here = |closed: &'_ Closed| {
            closed.names.split_last().is_some_and(|(_, names)| names.iter().eq(above.iter()))
        };
        let names = closed().filter(|closed| here(closed)).filter_map(|closed| closed.names.last());
        Shutters {
            names: names.map(AsRef::as_ref).collect(),
            denied: self.client.as_ref().map_or(&[], |client| &client.denied),
            above: self.path.join(above),
            by_object: closed().any(|closed| closed.object.is_some()),
        }
    }

    /// Returns the same workspace under a client's sandbox, and the parts of that sandbox that have
    /// no meaning here.
    pub fn narrowed(&self, narrowing: &Narrowing) -> Result<(Workspace, Vec<String>)> {
        // Rights name the workspace's path only if the operator configured some.
        let whole = Rights { workspace: self.path.clone(), ..self.rights.clone() };
        let Narrowed { rights, hidden, denied, ignored, refused_roots } =
            narrowing.apply(&whole)?;
        let closed = hidden.iter().filter_map(|hidden| Closed::in_workspace(&self.path, hidden));
        let client = Client {
            narrowing: Arc::new(narrowing.clone()),
            // Judged by the declaration alone: existing files, and stand-ins for missing ones, come
            // and go.
            takes_away: narrowing.files.is_some() || !narrowing.network,
            before: self.rights.clone(),
            closed: closed.collect::<Result<_>>()?,
            denied,
            network: narrowing.network,
            hint: narrowing.hint(),
            mode: narrowing.mode.clone(),
            refused_roots,
        };
        let workspace = Workspace {
            base: Arc::clone(&self.base),
            path: self.path.clone(),
            given: self.given.clone(),
            closed: self.closed.clone(),
            rights,
            client: Some(Arc::new(client)),
            openat2: AtomicBool::new(self.openat2.load(Ordering::Relaxed)),
        };
        Ok((workspace, ignored))
    }

    /// Returns whether a client's sandbox applies.
    pub fn is_narrowed(&self) -> bool {
        self.client.is_some()
    }

    /// Returns the client's sandbox, if it may be stricter than the operator's rights.
    pub fn taken_away(&self) -> Option<&Arc<Narrowing>> {
        self.client.as_ref().filter(|client| client.takes_away).map(|client| &client.narrowing)
    }

    /// Returns whether a client's sandbox forbids network access, also for tools whose network does
    /// not depend on the session's.
    pub fn denies_network(&self) -> bool {
        self.client.as_ref().is_some_and(|client| !client.network)
    }

    /// Returns the mode of the client's sandbox, if one applies.
    pub fn client_mode(&self) -> Option<&str> {
        self.client.as_ref().map(|client| client.mode.as_str())
    }

    /// Returns the directories that the client's sandbox makes writable but the operator does not.
    pub fn refused_roots(&self) -> &[PathBuf] {
        self.client.as_ref().map_or(&[], |client| &client.refused_roots)
    }

    /// Returns why this name is closed, whether it exists or not.
    pub(super) fn shut_name(&self, levels: &[Level], name: &OsStr) -> Option<Error> {
        let names = |closed: &Closed| {
            closed.names.split_last().is_some_and(|(last, above)| {
                last == name && above.iter().eq(levels.iter().map(|level| &level.name))
            })
        };
        if self.closed.iter().any(|closed| names(closed)) {
            return Some(closed());
        }
        let client = self.client.as_ref()?;
        let place = self.place_of(levels, name);
        let shut = client.closed.iter().any(names)
            || client.denied.iter().any(|glob| glob.matches(&place));
        shut.then(|| client.denies())
    }

    /// Returns why this object is closed, whatever its name.
    pub(super) fn shut_object(&self, id: Id) -> Option<Error> {
        let is = |closed: &Closed| closed.object.as_ref().is_some_and(|(_, shut)| *shut == id);
        if self.closed.iter().any(|closed| is(closed)) {
            return Some(closed());
        }
        self.client
            .as_ref()
            .filter(|client| client.closed.iter().any(is))
            .map(|client| client.denies())
    }

    /// Returns whether a name in a directory refers to a closed object.
    pub(super) fn shuts_object_at(&self, dir: &OwnedFd, name: &OsStr) -> bool {
        match rustix::fs::statat(dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => self.shut_object(Id::of(&stat)).is_some(),
            Err(_) => true,
        }
    }

    /// Returns why a name and everything below it is read-only.
    pub(super) fn protects(&self, levels: &[Level], name: &OsStr, asked: &str) -> Option<Error> {
        let place = self.place_of(levels, name);
        if !self.rights.protects_path(&place) {
            return None;
        }
        match &self.client {
            Some(client) if !client.before.protects_path(&place) => {
                (!self.opens_again(&place)).then(|| client.only_reads(asked))
            }
            _ => Some(protected(asked)),
        }
    }

    /// Returns whether a client's sandbox makes this place writable again inside a protected one,
    /// or whether such a place is below it.
    fn opens_again(&self, place: &Path) -> bool {
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
    pub(super) fn read_only(&self, levels: &[Level], name: &OsStr, asked: &str) -> Option<Error> {
        let place = self.place_of(levels, name);
        if !self.rights.read_only
            || self.rights.writable.iter().any(|root| place != *root && place.starts_with(root))
        {
            return None;
        }
        match &self.client {
            Some(client) if !client.before.read_only => Some(client.only_reads(asked)),
            _ => Some(os_error(Errno::ROFS, asked)),
        }
    }
}
