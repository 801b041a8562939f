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
pub(super) enum TrustedOwner {
    /// We created it.
    Us,
    /// The operator or a service manager created it.
    UsOrRoot,
}

/// Reads the whole file; `None` if it does not exist. `what` describes it to the operator.
pub(super) fn read_private_file(
    at: impl AsFd,
    path: &Path,
    what: &str,
    owner: TrustedOwner,
    limit: u64,
) -> Result<Option<Vec<u8>>> {
    // A file that an operator names may be a link; a file that we created never is.
    let links = if owner == TrustedOwner::Us { OFlags::NOFOLLOW } else { OFlags::empty() };
    // A pipe or a device must not block us.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | links;
    let file = match openat(at, path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(io_error(what, "cannot be opened", error)),
    };
    let facts = fstat(&file).map_err(|error| io_error(what, "cannot be opened", error))?;
    if FileType::from_raw_mode(facts.st_mode) != FileType::RegularFile {
        return Err(refused_error(what, "is not a regular file")
            .with_hint("Replace it with a regular file."));
    }
    check_permissions(&facts, what, owner, "600")?;
    let mut bytes = Vec::new();
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| io_error(what, "cannot be read", error))?;
    if bytes.len() as u64 > limit {
        return Err(refused_error(what, &format!("is larger than {limit} bytes"))
            .with_hint("Make it smaller."));
    }
    Ok(Some(bytes))
}

/// Checks that the file belongs to a trusted owner and is closed to all others.
pub(super) fn check_permissions(
    facts: &Stat,
    what: &str,
    owner: TrustedOwner,
    mode: &str,
) -> Result<()> {
    let us = rustix::process::geteuid().as_raw();
    if facts.st_uid != us && !(owner == TrustedOwner::UsOrRoot && facts.st_uid == 0) {
        return Err(refused_error(what, "belongs to another user")
            .with_hint("Change its owner to the user who runs the server."));
    }
    if facts.st_mode & 0o077 != 0 {
        return Err(refused_error(what, "is open to other users")
            .with_hint(format!("Run `chmod {mode}` on it.")));
    }
    Ok(())
}

pub(super) fn refused_error(what: &str, why: &str) -> Error {
    Error::new(Kind::PermissionDenied, format!("{what} {why}")).with_reason("secret_store")
}

pub(super) fn io_error(what: &str, why: &str, error: impl Into<io::Error>) -> Error {
    Error::new(Kind::Unavailable, format!("{what} {why}"))
        .with_reason("secret_store")
        .with_hint("Check its permissions and the disk it is on.")
        .with_source(error.into())
}
