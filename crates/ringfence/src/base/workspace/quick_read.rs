//! Reads small files on the thread that serves clients, where nothing has to be waited for.
//!
//! To hand a read over to another thread and its result back takes longer than the read of a small
//! file that is in the kernel's cache. But a thread that serves clients must not wait: not for a
//! disk, and least of all for a server or a process behind a file system. So only the file systems
//! below are read here, only names and pages that are in the cache, and only few of them. Everything
//! else, errors included, is left to [`Workspace::open_read`] on another thread.

use std::ffi::OsStr;
use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, fstatfs, openat2};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};

use super::path_walk::{PathWalk, WalkEnd};
use super::{HeldFile, OpenedFile, Workspace};

/// The only one of the file systems below that cannot say whether a read would wait. It is in memory.
const TMPFS: i64 = 0x0102_1994;
/// File systems that need neither another machine nor another process. overlayfs is missing: its
/// layers can be of any kind.
const LOCAL_FILE_SYSTEMS: [i64; 5] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0xf2f5_2010, // f2fs
    TMPFS,
];

/// Returns whether a file or directory is on such a file system.
pub fn is_on_local_file_system(file: impl AsFd) -> bool {
    file_system_type(file).is_some_and(|kind| LOCAL_FILE_SYSTEMS.contains(&kind))
}

fn file_system_type(file: impl AsFd) -> Option<i64> {
    // The type of the number differs between machines.
    #[allow(clippy::unnecessary_cast, reason = "the type of the field depends on the machine")]
    fstatfs(file).ok().map(|file_system| file_system.f_type as i64 & 0xffff_ffff)
}

/// Opens one name in `dir` as [`Workspace::open_step`] does, if it is in the kernel's cache and on
/// the same file system.
pub(super) fn open_cached_step(dir: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV
        | ResolveFlags::CACHED;
    // Kernels before 5.12 refuse the flag for the cache.
    openat2(dir, name, flags, Mode::empty(), resolve)
}

impl Workspace {
    /// Opens a regular file for reading, if nothing has to be waited for. `None` says nothing about
    /// the file.
    pub fn open_read_without_waiting(&self, path: &str) -> Option<OpenedFile> {
        if !self.is_local {
            return None;
        }
        let (walk, end) = PathWalk::without_waiting(self, path).ok()?.run(false).ok()?;
        let WalkEnd::Object { name, fd, stat } = end else { return None };
        let held_file = HeldFile::from_regular(fd, &stat, walk.display_path(Some(&name))).ok()?;
        Some(OpenedFile { file: held_file.open_read().ok()?, path: held_file.path })
    }
}

/// Reads all of a file that has `size` bytes, if they are in the kernel's cache and it has not grown.
pub fn read_cached(file: &File, size: usize) -> Option<Vec<u8>> {
    // One byte more, to see the end.
    let mut bytes = vec![0; size + 1];
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let count = match preadv2(file.as_fd(), &mut slices, 0, ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP) if file_system_type(file) == Some(TMPFS) => {
            pread(file, &mut bytes, 0)
        }
        result => result,
    };
    bytes.truncate(count.ok().filter(|count| *count == size)?);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use jail::rights::Rights;
    use rustix::fs::{CWD, FileType, mknodat};

    use super::super::tests::Scratch;
    use super::*;

    #[test]
    fn only_a_regular_file_of_the_workspace_is_opened_at_once() {
        let scratch = Scratch::new();
        let ws = scratch.ws().canonicalize().unwrap();
        fs::create_dir_all(ws.join("deep/hidden")).unwrap();
        fs::write(ws.join("deep/file"), "text").unwrap();
        fs::write(ws.join("deep/hidden/file"), "text").unwrap();
        symlink("deep/file", ws.join("link")).unwrap();
        symlink("deep", ws.join("link-dir")).unwrap();
        mknodat(CWD, ws.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let rights = Rights { hidden: vec![ws.join("deep/hidden")], ..Rights::default() };
        let mut workspace = scratch.workspace().with_rights(rights).unwrap();
        // Wherever the tests run, the names were just created and are in the cache.
        workspace.is_local = true;
        for path in ["deep/file", "./deep/../deep/file"] {
            let opened = workspace.open_read_without_waiting(path);
            let opened = opened.unwrap_or_else(|| panic!("{path} was not opened"));
            assert_eq!(opened.path, "deep/file");
            assert_eq!(read_cached(&opened.file, 4).as_deref(), Some(&b"text"[..]));
            assert_eq!(read_cached(&opened.file, 3), None, "a file that has grown");
            assert_eq!(read_cached(&opened.file, 5), None, "a file that has shrunk");
        }
        for path in [
            "link",
            "link-dir/file",
            "pipe",
            "deep",
            "missing",
            "deep/hidden/file",
            "../x",
            "",
            "/",
        ] {
            assert!(workspace.open_read_without_waiting(path).is_none(), "{path}");
        }
        workspace.is_local = false;
        assert!(workspace.open_read_without_waiting("deep/file").is_none());
    }
}
