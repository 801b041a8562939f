//! What is refused on the way to a path, and whether it is the operator or a client's sandbox that refuses it.

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

/// A client's sandbox, as far as it is the reason for a refusal.
pub(super) struct Client {
    /// What it was told.
    narrowing: Arc<Narrowing>,
    /// It may leave less than the operator does.
    takes_away: bool,
    /// What is refused without it as well.
    before: Rights,
    /// Closed by it.
    closed: Vec<Closed>,
    /// Closed by it under whatever name.
    denied: Vec<Glob>,
    /// False: it allows none.
    network: bool,
    /// What a caller can do about it.
    hint: String,
    mode: String,
    /// Directories that it lets be written and the operator does not.
    refused_roots: Vec<PathBuf>,
}

impl Client {
    fn only_reads(&self, path: &str) -> Error {
        let message = format!("{} may only be read, says the client's sandbox", quoted(path));
        Error::permission_denied("client_read_only", message).hint(self.hint.clone())
    }

    fn denies(&self) -> Error {
        Error::permission_denied(
            "client_denied",
            "the path leads to a place that the client's sandbox denies",
        )
        .hint(self.hint.clone())
    }
}

/// What is shut among the names of one directory.
pub(super) struct Shutters<'w> {
    names: Vec<&'w OsStr>,
    denied: &'w [Glob],
    /// The directory, absolute.
    above: PathBuf,
    /// Something is shut under whatever name, so that names alone do not tell.
    pub by_object: bool,
}

impl Shutters<'_> {
    pub fn shut(&self, name: &OsStr) -> bool {
        self.names.contains(&name)
            || !self.denied.is_empty() && {
                let place = self.above.join(name);
                self.denied.iter().any(|glob| glob.matches(&place))
            }
    }
}

impl Workspace {
    /// What is shut in this directory of the workspace: the same as `shut_name` says of each name in turn.
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

    /// The same workspace under a client's sandbox, and what of that has no meaning here.
    pub fn narrowed(&self, narrowing: &Narrowing) -> Result<(Workspace, Vec<String>)> {
        // Rights know the workspace by its path only where an operator has set some.
        let whole = Rights { workspace: self.path.clone(), ..self.rights.clone() };
        let Narrowed { rights, hidden, denied, ignored, refused_roots } =
            narrowing.apply(&whole)?;
        let closed = hidden.iter().filter_map(|hidden| Closed::in_workspace(&self.path, hidden));
        let client = Client {
            narrowing: Arc::new(narrowing.clone()),
            // By its word alone: what is there at the moment, and what stands in for something, comes and goes.
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

    /// Whether a client's sandbox has a say in it.
    pub fn is_narrowed(&self) -> bool {
        self.client.is_some()
    }

    /// The client's sandbox, if it may leave less than the operator does.
    pub fn taken_away(&self) -> Option<&Arc<Narrowing>> {
        self.client.as_ref().filter(|client| client.takes_away).map(|client| &client.narrowing)
    }

    /// Whether a client's sandbox takes the network away, from what has one whatever the session has as well.
    pub fn denies_network(&self) -> bool {
        self.client.as_ref().is_some_and(|client| !client.network)
    }

    /// The mode of the client's sandbox, if it has a say.
    pub fn client_mode(&self) -> Option<&str> {
        self.client.as_ref().map(|client| client.mode.as_str())
    }

    /// Directories that the client's sandbox lets be written and the operator does not.
    pub fn refused_roots(&self) -> &[PathBuf] {
        self.client.as_ref().map_or(&[], |client| &client.refused_roots)
    }

    /// Why nobody gets to this name, whether it exists or not.
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

    /// Why nobody gets to this object, whatever its name.
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

    /// Whether a name of a directory stands for an object that nobody gets to.
    pub(super) fn shuts_object_at(&self, dir: &OwnedFd, name: &OsStr) -> bool {
        match rustix::fs::statat(dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => self.shut_object(Id::of(&stat)).is_some(),
            Err(_) => true,
        }
    }

    /// Why a name may only be read, with everything below it.
    pub(super) fn protects(&self, levels: &[Level], name: &OsStr, asked: &str) -> Option<Error> {
        let place = self.place_of(levels, name);
        if !self.rights.protects(&place) {
            return None;
        }
        match &self.client {
            Some(client) if !client.before.protects(&place) => {
                (!self.opens_again(&place)).then(|| client.only_reads(asked))
            }
            _ => Some(protected(asked)),
        }
    }

    /// Whether a client's sandbox opens this place again inside what it closes, or it lies on the way to such a one.
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

    /// Why nothing is written or made at this very place.
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
