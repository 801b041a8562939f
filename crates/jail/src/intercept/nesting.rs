//! A sandbox inside the sandbox, and none inside that.
//!
//! Whoever can make a tree of mounts can leave it, too, and hold on to directories of the tree that is gone: then nothing
//! is on top of single names in them any more. So a run that is a sandbox itself makes its namespaces, and what it runs
//! in there makes none.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fstat, openat};

use crate::sys::{self, Notification};

/// What bubblewrap needs: one to mount in, and one in that to be nobody special again.
const DEEPEST: usize = 2;
/// No tree is that deep; the kernel ends at 32.
const STEPS: usize = 64;

/// Whether the caller of `unshare` or `clone` may make a user namespace. It waits for the answer, and only a thread itself
/// can change the namespace it is in, so what is found here is so when it goes on; its flags are in its registers.
pub fn may_make_users(proc: &OwnedFd, call: &Notification) -> bool {
    // In between is the one in which root is nobody special.
    let base = usize::from(rustix::process::geteuid().is_root());
    depth(proc, call.thread).is_ok_and(|depth| depth < base + DEEPEST)
}

/// How many user namespaces there are between the thread and us.
fn depth(proc: &OwnedFd, thread: u32) -> io::Result<usize> {
    let open = |path: String| openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let id = |namespace: &OwnedFd| fstat(namespace).map(|found| (found.st_dev, found.st_ino));
    let own = id(&open("thread-self/ns/user".to_owned())?)?;
    let mut at = open(format!("{thread}/ns/user"))?;
    for depth in 0..STEPS {
        if id(&at)? == own {
            return Ok(depth);
        }
        at = sys::parent_namespace(at.as_fd())?;
    }
    Err(io::Error::other("the namespaces do not end"))
}
