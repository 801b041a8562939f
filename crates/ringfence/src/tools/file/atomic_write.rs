//! Writes files atomically: the new bytes appear completely or not at all, with the mode and owner
//! of the file they replace.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{
    AtFlags, FallocateFlags, Gid, Mode, OFlags, RenameFlags, Stat, Uid, XattrFlags, fallocate,
    fchmod, fchown, fgetxattr, flistxattr, fsetxattr, fstat, ftruncate, linkat, openat, renameat,
    renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use super::content::{check_cancelled, is_same_state};
use crate::base::IgnorePoison;
use crate::base::ids::{random_bytes, to_hex};
use crate::base::workspace::{os_error, quote_path};
use crate::base::{CancelToken, Error, Kind, Result};

const WRITE_CHUNK_BYTES: usize = 1 << 20;

/// Serializes commits, so that no other write by this server happens between the last check of a
/// file and its replacement.
pub fn commit_lock() -> MutexGuard<'static, ()> {
    static COMMIT: Mutex<()> = Mutex::new(());
    COMMIT.lock().ignore_poison()
}

/// New file next to the one it will replace. It is removed on drop unless it was put in place.
pub struct TempFile {
    dir: Arc<OwnedFd>,
    name: OsString,
    file: File,
    /// Path of the file it will become, for messages.
    target_path: String,
}

impl TempFile {
    /// Creates an empty temporary file for `target` in `dir`.
    pub fn create(dir: &Arc<OwnedFd>, target: &OsStr, path: &str, mode: u32) -> Result<TempFile> {
        let name = temporary_name(target);
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(dir, &name, flags, Mode::from_raw_mode(mode))
            .map_err(|errno| os_error(errno, path))?;
        Ok(TempFile {
            dir: Arc::clone(dir),
            name,
            file: File::from(file),
            target_path: path.to_owned(),
        })
    }

    /// Appends `bytes`, checking for cancellation between chunks.
    pub fn write(&mut self, bytes: &[u8], cancel: &CancelToken) -> Result<()> {
        for chunk in bytes.chunks(WRITE_CHUNK_BYTES) {
            check_cancelled(cancel)?;
            self.file.write_all(chunk).map_err(|error| io_error(&error, &self.target_path))?;
        }
        check_cancelled(cancel)
    }

    /// Takes over everything but the content from the old file: attributes, owner and mode.
    pub fn inherit_metadata(&self, old: &File, stat: &Stat, mode: u32) -> Result<()> {
        copy_attributes(old, &self.file);
        let own_stat = fstat(&self.file).map_err(|errno| os_error(errno, &self.target_path))?;
        if (own_stat.st_uid, own_stat.st_gid) != (stat.st_uid, stat.st_gid) {
            // Only root may change the owner. For other users the new file is theirs, as with every
            // editor.
            let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
            let _ = fchown(&self.file, Some(uid), Some(gid))
                .or_else(|_| fchown(&self.file, None, Some(gid)));
        }
        self.set_mode(mode)
    }

    /// Sets the permission bits.
    pub fn set_mode(&self, mode: u32) -> Result<()> {
        fchmod(&self.file, Mode::from_raw_mode(mode))
            .map_err(|errno| os_error(errno, &self.target_path))
    }

    /// Returns the current stat of the temporary file.
    pub fn stat(&self) -> Result<Stat> {
        fstat(&self.file).map_err(|errno| os_error(errno, &self.target_path))
    }

    /// Renames the file to `name` unless that name exists. Returns false, with nothing changed, if
    /// it does.
    pub fn publish_new(mut self, name: &OsStr) -> Result<bool> {
        let published =
            match renameat_with(&self.dir, &self.name, &self.dir, name, RenameFlags::NOREPLACE) {
                // Not every file system supports the flag; a hard link also refuses an existing
                // name.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    linkat(&self.dir, &self.name, &self.dir, name, AtFlags::empty())
                        .and_then(|()| unlinkat(&self.dir, &self.name, AtFlags::empty()))
                }
                renamed => renamed,
            };
        match published {
            Ok(()) => {
                self.name.clear();
                Ok(true)
            }
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(os_error(errno, &self.target_path)),
        }
    }
}

impl TempFile {
    /// Swaps places with `name` if that file is still in the state `old`; otherwise does nothing
    /// and returns `None`. The replaced file is kept until the returned value is dropped, and can
    /// be restored without needing disk space.
    pub fn exchange_with(mut self, name: &OsStr, old: &Stat) -> Result<Option<ExchangedFile>> {
        let _one_at_a_time = commit_lock();
        let failed = |errno| os_error(errno, &self.target_path);
        match statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(current_stat) if is_same_state(&current_stat, old) => {}
            Ok(_) | Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        }
        let new_stat = fstat(&self.file).map_err(failed)?;
        let mut backup_name = self.name.clone();
        match renameat_with(&self.dir, &self.name, &self.dir, name, RenameFlags::EXCHANGE) {
            Ok(()) => {}
            // Not every file system supports the flag; a second hard link keeps the old file as
            // well.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                backup_name = temporary_name(name);
                match linkat(&self.dir, name, &self.dir, &backup_name, AtFlags::empty()) {
                    Ok(()) => {}
                    // A file system that supports neither cannot keep the old file.
                    Err(Errno::PERM | Errno::NOSYS | Errno::OPNOTSUPP | Errno::MLINK) => {
                        backup_name.clear()
                    }
                    Err(errno) => return Err(failed(errno)),
                }
                if let Err(errno) = renameat(&self.dir, &self.name, &self.dir, name) {
                    if !backup_name.is_empty() {
                        let _ = unlinkat(&self.dir, &backup_name, AtFlags::empty());
                    }
                    return Err(failed(errno));
                }
            }
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        }
        self.name.clear();
        let mut exchanged = ExchangedFile {
            dir: Arc::clone(&self.dir),
            name: name.to_owned(),
            backup_name,
            new_stat,
            path: self.target_path.clone(),
        };
        if exchanged.backup_name.is_empty() {
            return Ok(Some(exchanged));
        }
        // Another process may have changed the file between the last check and the exchange.
        match statat(&exchanged.dir, &exchanged.backup_name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(backup_stat) if is_same_but_moved(&backup_stat, old) => Ok(Some(exchanged)),
            _ => exchanged.restore_or_keep_backup().map(|()| None),
        }
    }
}

/// File that was put in place, with the file it replaced still available under another name.
pub struct ExchangedFile {
    dir: Arc<OwnedFd>,
    name: OsString,
    /// Empty if nothing is kept any more.
    backup_name: OsString,
    new_stat: Stat,
    path: String,
}

impl ExchangedFile {
    /// Restores the old file itself (the same inode) unless the new one has been changed or
    /// replaced since. In that case the old file is removed: its content is what was read, and
    /// others have continued from the new one.
    pub fn undo_exchange(mut self) -> Result<bool> {
        let _one_at_a_time = commit_lock();
        self.try_restore().map_err(|errno| self.abandon_backup(Some(errno)))
    }

    /// Keeps the new file if the file it replaced was still in the state that was read
    /// (`unchanged`). Otherwise restores the replaced file.
    pub fn confirm_or_restore(self, unchanged: Result<bool>) -> Result<Option<ExchangedFile>> {
        match unchanged {
            Ok(true) => Ok(Some(self)),
            Ok(false) => self.restore_foreign_change().map(|()| None),
            Err(error) => self.restore_foreign_change().and(Err(error)),
        }
    }

    /// Restores a file that turned out to contain a change by another process. If that fails, it
    /// stays under its current name, which the error reports: there may be no other copy of those
    /// bytes.
    pub fn restore_foreign_change(mut self) -> Result<()> {
        let _one_at_a_time = commit_lock();
        self.restore_or_keep_backup()
    }

    fn restore_or_keep_backup(&mut self) -> Result<()> {
        match self.try_restore() {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.abandon_backup(None)),
            Err(errno) => Err(self.abandon_backup(Some(errno))),
        }
    }

    fn try_restore(&mut self) -> rustix::io::Result<bool> {
        if self.backup_name.is_empty() {
            return Ok(false);
        }
        match statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(current_stat) if is_same_but_moved(&current_stat, &self.new_stat) => {}
            Ok(_) | Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(errno),
        }
        renameat(&self.dir, &self.backup_name, &self.dir, &self.name)?;
        self.backup_name.clear();
        Ok(true)
    }

    /// Leaves the replaced file permanently under its other name and returns the error that reports
    /// it.
    fn abandon_backup(&mut self, errno: Option<Errno>) -> Error {
        let shown_path = quote_path(&self.path);
        let error = Error::new(
            Kind::Conflict,
            format!("{shown_path} was changed by another process while it was being written"),
        )
        .with_reason("displaced");
        let error = match errno {
            Some(errno) => error.with_source(errno),
            None => error,
        };
        if self.backup_name.is_empty() {
            return error.with_hint(
                "The new content is in place, and the content it replaced is lost. Read the file again.",
            );
        }
        let backup = std::mem::take(&mut self.backup_name);
        let backup = Path::new(&self.path).with_file_name(backup).to_string_lossy().into_owned();
        error
            .with_hint(format!(
                "The previous file could not be restored and is kept as {}. Compare the two.",
                quote_path(&backup)
            ))
            .with_fact("kept", backup)
    }
}

impl Drop for ExchangedFile {
    fn drop(&mut self) {
        if !self.backup_name.is_empty()
            && let Err(errno) = unlinkat(&self.dir, &self.backup_name, AtFlags::empty())
        {
            tracing::warn!("cannot remove a replaced file: {errno}");
        }
    }
}

/// Returns whether both stats describe the same file with the same bytes, as far as metadata can
/// tell. The ctime is not compared, because a rename changes it.
fn is_same_but_moved(now: &Stat, then: &Stat) -> bool {
    let key = |s: &Stat| (s.st_dev, s.st_ino, s.st_size, s.st_mtime, s.st_mtime_nsec);
    key(now) == key(then)
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.name.is_empty()
            && let Err(errno) = unlinkat(&self.dir, &self.name, AtFlags::empty())
        {
            tracing::warn!("cannot remove a temporary file: {errno}");
        }
    }
}

/// Returns `.name.<random>.tmp`, shortened to fit the file system's limit on names.
fn temporary_name(target: &OsStr) -> OsString {
    let target = target.as_bytes();
    let mut name = vec![b'.'];
    name.extend_from_slice(&target[..target.len().min(200)]);
    name.extend_from_slice(format!(".{}.tmp", to_hex(&random_bytes::<8>())).as_bytes());
    OsString::from_vec(name)
}

/// Overwrites a file that has other hard links in place, so that all of them keep showing the same
/// bytes. Writes `old` back if it fails halfway.
pub fn overwrite_in_place(file: &File, old: Option<&[u8]>, new: &[u8], path: &str) -> Result<()> {
    // Reserve the space first, so that the most common failure happens before the first byte is
    // changed.
    match fallocate(file.as_fd(), FallocateFlags::KEEP_SIZE, 0, (new.len() as u64).max(1)) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
        Err(errno) => return Err(os_error(errno, path)),
    }
    let write_bytes = |bytes: &[u8]| {
        file.write_all_at(bytes, 0)?;
        ftruncate(file, bytes.len() as u64).map_err(std::io::Error::from)
    };
    write_bytes(new).map_err(|error| {
        if let Some(Err(restore_error)) = old.map(write_bytes) {
            tracing::error!("cannot restore a file after a failed write: {restore_error}");
        }
        io_error(&error, path)
    })
}

/// Appends bytes at `end`, which is the file's length, and truncates the file again if that fails
/// halfway.
pub fn append_in_place(
    file: &File,
    end: u64,
    bytes: &[u8],
    path: &str,
    cancel: &CancelToken,
) -> Result<()> {
    let mut offset = end;
    for chunk in bytes.chunks(WRITE_CHUNK_BYTES) {
        let written = check_cancelled(cancel).and_then(|()| {
            file.write_all_at(chunk, offset).map_err(|error| io_error(&error, path))
        });
        if let Err(error) = written {
            if let Err(truncate_error) = ftruncate(file, end) {
                tracing::error!("cannot shorten a file after a failed write: {truncate_error}");
            }
            return Err(error);
        }
        offset += chunk.len() as u64;
    }
    Ok(())
}

fn io_error(error: &std::io::Error, path: &str) -> Error {
    os_error(Errno::from_io_error(error).unwrap_or(Errno::IO), path)
}

/// Copies the attributes that users attach to files. File capabilities and similar privileges are
/// not copied: they were granted to the old bytes.
fn copy_attributes(from: &File, to: &File) {
    let mut names = vec![0u8; 4096];
    let Ok(len) = flistxattr(from, names.as_mut_slice()) else { return };
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if !name.starts_with(b"user.") && name != b"system.posix_acl_access" {
            continue;
        }
        let mut value = vec![0u8; 64 << 10];
        // Best effort: a file system that cannot store attributes must not prevent the write.
        if let Ok(len) = fgetxattr(from, name, value.as_mut_slice()) {
            let _ = fsetxattr(to, name, &value[..len], XattrFlags::empty());
        }
    }
}
