//! Completes renames that would change nothing.
//!
//! `git submodule update` writes the settings of every submodule again and renames them into place,
//! although they have not changed. Nothing can be renamed over a covered file, so git would give
//! up. Where the settings of a submodule are covered, renames arrive here. One that would install
//! the very same bytes is completed by removing the new file. Every other rename is left to the
//! kernel, which decides as usual.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use libc::c_long;
use rustix::fs::{AtFlags, Mode, OFlags, StatVfsMountFlags, fstatvfs, openat, unlinkat};

use super::connect::EnteredRun;
use crate::mounts::is_same_object;
use crate::rights::ProtectedPath;
use crate::sys::{self, PendingCall};

const CONFIG_FILE: &str = "config";
const LOCK_FILE: &str = "config.lock";
/// Directory of git that holds the repositories of submodules.
const SUBMODULES: &str = "modules";
/// Larger than any real settings file.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
const PATH_MAX: usize = 4096;
const PAGE: u64 = 4096;

/// Returns whether renames have to be intercepted: only where the settings of a submodule are
/// protected.
pub fn needs_interception(protected: &[ProtectedPath]) -> bool {
    let is_in_submodule =
        |path: &Path| path.parent().is_some_and(|git| git.iter().any(|name| name == SUBMODULES));
    protected.iter().any(|it| it.path.ends_with(CONFIG_FILE) && is_in_submodule(&it.path))
}

/// Returns whether a system call renames a file.
pub fn is_rename(call: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if call == libc::SYS_rename {
        return true;
    }
    matches!(call, libc::SYS_renameat | libc::SYS_renameat2)
}

/// Completes a rename that would change nothing, and returns whether it was one. This thread must
/// be in the run's mounts, so that what they close to the run is closed here too.
pub fn complete_noop_rename(
    entered_run: &EnteredRun,
    listener: &OwnedFd,
    call: &PendingCall,
) -> bool {
    try_noop_rename(entered_run, listener, call).unwrap_or(false)
}

fn try_noop_rename(
    entered_run: &EnteredRun,
    listener: &OwnedFd,
    call: &PendingCall,
) -> io::Result<bool> {
    let (old_args, new_args) = match call.call {
        libc::SYS_renameat => {
            ((Some(call.args[0]), call.args[1]), (Some(call.args[2]), call.args[3]))
        }
        // With a flag it does something else.
        libc::SYS_renameat2 if call.args[4] as u32 != 0 => return Ok(false),
        libc::SYS_renameat2 => {
            ((Some(call.args[0]), call.args[1]), (Some(call.args[2]), call.args[3]))
        }
        _ => ((None, call.args[0]), (None, call.args[1])),
    };
    let memory = File::from(openat(
        &entered_run.proc,
        format!("{}/mem", call.thread),
        READ_FLAGS,
        Mode::empty(),
    )?);
    let (new_directory, new_path) = (new_args.0, read_path(&memory, new_args.1)?);
    if !new_path.ends_with(CONFIG_FILE) {
        return Ok(false);
    }
    let (old_directory, old_path) = (old_args.0, read_path(&memory, old_args.1)?);
    if !old_path.ends_with(LOCK_FILE) {
        return Ok(false);
    }
    let parents =
        [(old_directory, &old_path), (new_directory, &new_path)].map(|(directory, path)| {
            let base = match directory.map(|fd| fd as i32) {
                None | Some(libc::AT_FDCWD) => format!("{}/cwd", call.thread),
                Some(fd) => format!("{}/fd/{fd}", call.thread),
            };
            let base =
                openat(&entered_run.proc, base, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            let parent = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty())
                .unwrap_or(Path::new("."));
            openat(base, parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        });
    let [old_parent, new_parent] = parents;
    let (old_parent, new_parent) = (old_parent?, new_parent?);
    let (lock_file, config_file) =
        (open_file(&old_parent, LOCK_FILE)?, open_file(&new_parent, CONFIG_FILE)?);
    let is_covered = fstatvfs(&config_file)?.f_flag.contains(StatVfsMountFlags::RDONLY);
    // All of this belongs to the caller only if it still waits.
    if !is_same_object(old_parent.as_fd(), new_parent.as_fd())?
        || !is_covered
        || !sys::is_still_pending(listener.as_fd(), call.id)
    {
        return Ok(false);
    }
    let is_unchanged = read_config(lock_file)? == read_config(config_file)?;
    if is_unchanged {
        unlinkat(&old_parent, LOCK_FILE, AtFlags::empty())?;
    }
    Ok(is_unchanged)
}

const READ_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

fn open_file(directory: &OwnedFd, name: &str) -> rustix::io::Result<File> {
    openat(directory, name, READ_FLAGS, Mode::empty()).map(File::from)
}

fn read_config(file: File) -> io::Result<Vec<u8>> {
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > MAX_CONFIG_BYTES {
        return Err(io::Error::other("not a settings file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a path from the caller's memory. The path may end right before an unmapped page.
fn read_path(memory: &File, address: u64) -> io::Result<PathBuf> {
    let mut bytes = Vec::new();
    while bytes.len() < PATH_MAX {
        let page_address = address.wrapping_add(bytes.len() as u64);
        let mut page = vec![0; (PAGE - page_address % PAGE) as usize];
        memory.read_exact_at(&mut page, page_address)?;
        match page.iter().position(|byte| *byte == 0) {
            Some(end) => {
                bytes.extend_from_slice(&page[..end]);
                return Ok(PathBuf::from(OsStr::from_bytes(&bytes)));
            }
            None => bytes.append(&mut page),
        }
    }
    Err(io::Error::other("the path is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rights::StandIn;

    #[test]
    fn renames_are_looked_at_only_where_a_submodules_settings_are_protected() {
        let needed = |paths: &[&str]| {
            let protect = |path: &&str| ProtectedPath {
                path: PathBuf::from(path),
                stand_in: StandIn::Nothing,
            };
            needs_interception(&paths.iter().map(protect).collect::<Vec<_>>())
        };
        assert!(needed(&["/w/.claude", "/w/.git/modules/libs/part/config"]));
        assert!(!needed(&[
            "/w/.git/config",
            "/w/.git/hooks",
            "/w/.git/modules/libs/part/hooks",
            "/w/modules/config.x"
        ]));
    }
}
