//! Copies of a client's file from before it was connected, next to the file.
//!
//! The name of a copy contains the hash of what was written in its place. As long as the file has
//! that hash, nothing else has changed, and the copy is exactly what to restore.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::SystemTime;

use rustix::fs::{Dir, Mode, OFlags, openat};

use super::client_file::ClientFile;
use crate::base::Result;

/// Copy of a file, or the fact that there was none.
pub struct BackupCopy {
    pub name: OsString,
    /// `None`: the file did not exist.
    pub bytes: Option<Vec<u8>>,
    hash: String,
    modified: SystemTime,
}

const COPY_SUFFIX: &str = "bak";
/// Marks a file that did not exist.
const ABSENT_SUFFIX: &str = "absent";
const MAX_COPY_BYTES: u64 = 64 << 20;

/// Returns the name of the copy that `written` replaced.
fn backup_name(file: &OsStr, written: &[u8], existed: bool) -> OsString {
    let suffix = if existed { COPY_SUFFIX } else { ABSENT_SUFFIX };
    let mut name = file.to_owned();
    name.push(format!(".ringfence-{}.{suffix}", short_hash(written)));
    name
}

fn short_hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..16].to_owned()
}

/// Saves what `written` is about to replace. Returns the name of the copy.
pub fn save_backup(file: &ClientFile, before: Option<&[u8]>, written: &[u8]) -> Result<OsString> {
    let name = file.place().map(|(_, name)| name.to_owned()).unwrap_or_default();
    let name = backup_name(&name, written, before.is_some());
    file.write_sibling(&name, before.unwrap_or_default())?;
    Ok(name)
}

/// Copies of one file, the newest first.
pub struct BackupList(Vec<BackupCopy>);

impl BackupList {
    /// Reads all copies. One that cannot be read is left out: it is of no use.
    pub fn read(file: &ClientFile) -> BackupList {
        let mut copies = Vec::new();
        if let Some((dir, file_name)) = file.place() {
            // The descriptor of the walk can only be walked from; another one can be listed.
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let listing = openat(dir, ".", flags, Mode::empty()).and_then(Dir::new);
            for entry in listing.into_iter().flatten().flatten() {
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                copies.extend(read_copy(dir, file_name, name));
            }
        }
        copies.sort_by_key(|copy: &BackupCopy| std::cmp::Reverse(copy.modified));
        BackupList(copies)
    }

    /// Returns the copy that these bytes replaced.
    pub fn find_replaced_by(&self, written: &[u8]) -> Option<&BackupCopy> {
        let hash = short_hash(written);
        self.0.iter().find(|copy| copy.hash == hash)
    }

    /// Returns the copies, the newest first.
    pub fn iter(&self) -> impl Iterator<Item = &BackupCopy> {
        self.0.iter()
    }
}

fn read_copy(dir: &OwnedFd, file: &OsStr, name: &OsStr) -> Option<BackupCopy> {
    let rest = name.as_bytes().strip_prefix(file.as_bytes())?;
    let (hash, suffix) =
        std::str::from_utf8(rest).ok()?.strip_prefix(".ringfence-")?.split_once('.')?;
    let existed = match suffix {
        COPY_SUFFIX => true,
        ABSENT_SUFFIX => false,
        _ => return None,
    };
    // A project can contain anything under this name: no link is followed, no pipe waited for.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = File::from(openat(dir, name, flags, Mode::empty()).ok()?);
    let metadata = opened.metadata().ok().filter(|metadata| metadata.is_file())?;
    let mut bytes = Vec::new();
    opened.take(MAX_COPY_BYTES).read_to_end(&mut bytes).ok()?;
    Some(BackupCopy {
        name: name.to_owned(),
        bytes: existed.then_some(bytes),
        hash: hash.to_owned(),
        modified: metadata.modified().ok()?,
    })
}
