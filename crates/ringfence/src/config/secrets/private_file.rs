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

/// Reads the whole file; `None` if it does not exist. `label` describes it to the operator.
pub(super) fn read_private_file(
    dir: impl AsFd,
    path: &Path,
    label: &str,
    owner: TrustedOwner,
    limit: u64,
) -> Result<Option<Vec<u8>>> {
    // A file that an operator names may be a link; a file that we created never is.
    let link_flags = if owner == TrustedOwner::Us { OFlags::NOFOLLOW } else { OFlags::empty() };
    // A pipe or a device must not block us.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | link_flags;
    let file = match openat(dir, path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(io_error(label, "cannot be opened", error)),
    };
    let stat = fstat(&file).map_err(|error| io_error(label, "cannot be opened", error))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(refused_error(label, "is not a regular file")
            .with_hint("Replace it with a regular file."));
    }
    check_permissions(&stat, label, owner, "600")?;
    let mut bytes = Vec::new();
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| io_error(label, "cannot be read", error))?;
    if bytes.len() as u64 > limit {
        return Err(refused_error(label, &format!("is larger than {limit} bytes"))
            .with_hint("Make it smaller."));
    }
    Ok(Some(bytes))
}

/// Checks that the file belongs to a trusted owner and is closed to all others.
pub(super) fn check_permissions(
    stat: &Stat,
    label: &str,
    owner: TrustedOwner,
    mode: &str,
) -> Result<()> {
    let our_uid = rustix::process::geteuid().as_raw();
    if stat.st_uid != our_uid && !(owner == TrustedOwner::UsOrRoot && stat.st_uid == 0) {
        return Err(refused_error(label, "belongs to another user")
            .with_hint("Change its owner to the user who runs the server."));
    }
    if stat.st_mode & 0o077 != 0 {
        return Err(refused_error(label, "is open to other users")
            .with_hint(format!("Run `chmod {mode}` on it.")));
    }
    Ok(())
}

pub(super) fn refused_error(label: &str, problem: &str) -> Error {
    Error::new(Kind::PermissionDenied, format!("{label} {problem}")).with_reason("secret_store")
}

pub(super) fn io_error(label: &str, problem: &str, error: impl Into<io::Error>) -> Error {
    Error::new(Kind::Unavailable, format!("{label} {problem}"))
        .with_reason("secret_store")
        .with_hint("Check its permissions and the disk it is on.")
        .with_source(error.into())
}
