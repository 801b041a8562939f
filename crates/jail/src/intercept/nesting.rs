//! Allows one sandbox inside the sandbox, and none inside that.
//!
//! A process that can create a tree of mounts can also leave it and keep directories of the
//! abandoned tree open: single names in them are then no longer covered. So a run that is a sandbox
//! itself may create namespaces, and the programs it runs inside them may not.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fstat, openat};

use crate::sys::{self, PendingCall};

/// Levels that bubblewrap needs: one namespace to mount in, and one inside it to be an ordinary
/// user again.
const MAX_DEPTH: usize = 2;
/// More steps than there can be levels: the kernel allows 32.
const MAX_STEPS: usize = 64;

/// Returns whether the caller of `unshare` or `clone` may create a user namespace. The caller waits
/// for the answer, and only a thread itself can change the namespace it is in, so the result is
/// still true when the caller continues. Its flags are in registers.
pub fn may_create_user_namespace(proc: &OwnedFd, call: &PendingCall) -> bool {
    // In between is the namespace in which root is an ordinary user.
    let base_depth = usize::from(rustix::process::geteuid().is_root());
    count_levels(proc, call.thread).is_ok_and(|depth| depth < base_depth + MAX_DEPTH)
}

/// Counts the user namespaces between the thread and us.
fn count_levels(proc: &OwnedFd, thread: u32) -> io::Result<usize> {
    let open = |path: String| openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let identify = |namespace: &OwnedFd| fstat(namespace).map(|stat| (stat.st_dev, stat.st_ino));
    let own_id = identify(&open("thread-self/ns/user".to_owned())?)?;
    let mut current = open(format!("{thread}/ns/user"))?;
    for depth in 0..MAX_STEPS {
        if identify(&current)? == own_id {
            return Ok(depth);
        }
        current = sys::parent_user_namespace(current.as_fd())?;
    }
    Err(io::Error::other("too many levels of namespaces"))
}
