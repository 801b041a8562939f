//! Reads files that a run may have put there.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Reads a file that the run may have put there: does not wait for a pipe, follows no link, and
/// fails on a file longer than `max_bytes` rather than return a part of it. Returns `None` if there
/// is no such file.
pub fn read_bounded(path: &Path, max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > max_bytes {
        return Err(io::Error::other("it is not a regular file, or too long"));
    }
    let mut bytes = Vec::new();
    // The file may grow while it is read.
    file.take(max_bytes + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > max_bytes {
        true => Err(io::Error::other("it is too long")),
        false => Ok(Some(bytes)),
    }
}
