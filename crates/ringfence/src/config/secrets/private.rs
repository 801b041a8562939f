//! Reads files that hold secrets: opened once, checked through the descriptor, and read up to a
//! limit.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, openat};

use crate::base::{Error, Kind, Result};

/// Owners whose files are trusted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// We created it.
    Us,
    /// The operator or a service manager created it.
    UsOrRoot,
}

/// Reads the whole file; `None` if it does not exist. `what` describes it to the operator.
pub(super) fn read(
    at: impl AsFd,
    path: &Path,
    what: &str,
    owner: Owner,
    limit: u64,
) -> Result<Option<Vec<u8>>> {
    // A file that an operator names may be a link; a file that we created never is.
    let links = if owner == Owner::Us { OFlags::NOFOLLOW } else { OFlags::empty() };
    // A pipe or a device must not block us.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | links;
    let file = match openat(at, path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(broken(what, "cannot be opened", error)),
    };
    let facts = fstat(&file).map_err(|error| broken(what, "cannot be opened", error))?;
    if FileType::from_raw_mode(facts.st_mode) != FileType::RegularFile {
        return Err(refused(what, "is not a regular file").hint("Replace it with a regular file."));
    }
    check(&facts, what, owner, "600")?;
    let mut bytes = Vec::new();
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| broken(what, "cannot be read", error))?;
    if bytes.len() as u64 > limit {
        return Err(
            refused(what, &format!("is larger than {limit} bytes")).hint("Make it smaller.")
        );
    }
    Ok(Some(bytes))
}

/// Checks that the file belongs to a trusted owner and is closed to all others.
pub(super) fn check(facts: &Stat, what: &str, owner: Owner, mode: &str) -> Result<()> {
    let us = rustix::process::geteuid().as_raw();
    if facts.st_uid != us && !(owner == Owner::UsOrRoot && facts.st_uid == 0) {
        return Err(refused(what, "belongs to another user")
            .hint("Change its owner to the user who runs the server."));
    }
    if facts.st_mode & 0o077 != 0 {
        return Err(
            refused(what, "is open to other users").hint(format!("Run `chmod {mode}` on it."))
        );
    }
    Ok(())
}

pub(super) fn refused(what: &str, why: &str) -> Error {
    Error::new(Kind::PermissionDenied, format!("{what} {why}")).reason("secret_store")
}

pub(super) fn broken(what: &str, why: &str, error: impl Into<io::Error>) -> Error {
    Error::new(Kind::Unavailable, format!("{what} {why}"))
        .reason("secret_store")
        .hint("Check its permissions and the disk it is on.")
        .source(error.into())
}
