//! Signals of the process that reaps a run: it has no handler for any, and reads of its children's ends from a
//! descriptor.
#![allow(
    unsafe_code,
    reason = "signal actions and signalfd have no safe form here, and this is their one place"
)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use super::check;

/// Bytes of the kernel's own set of signals, and how many signals there are.
const SET_BYTES: usize = 8;
const SIGNALS: i32 = 64;

/// `struct sigaction` as the kernel knows it, with all of it zero: the default action, on every machine we run on.
#[repr(C)]
struct DefaultAction([u64; 4]);

/// Gives every signal its default action, for good.
///
/// The kernel drops a signal that is sent to the first process of a pid namespace from inside, unless there is a
/// handler for it. The runtime has installed some (SIGSEGV and SIGBUS for overflowed stacks, one of libc's own), and
/// a sender chooses what they read. A broken pipe stays ignored: on the host this process has to survive one.
pub fn drop_handlers() -> io::Result<()> {
    let action = DefaultAction([0; 4]);
    let fixed = [libc::SIGKILL, libc::SIGSTOP, libc::SIGPIPE];
    for signal in (1..=SIGNALS).filter(|signal| !fixed.contains(signal)) {
        // SAFETY: the kernel reads one action, which lives until after the call, and writes none. libc's own function
        // would refuse the two signals that it uses itself.
        check(unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal, &raw const action, 0usize, SET_BYTES)
        })?;
    }
    Ok(())
}

/// A descriptor that is readable when a child has ended. From now on this thread blocks SIGCHLD, without which nothing
/// would arrive there.
pub fn watch_children() -> io::Result<OwnedFd> {
    // SAFETY: an empty set is made in place, one signal is added to it, and both calls only read it.
    let fd = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        check(libc::c_long::from(libc::sigprocmask(
            libc::SIG_BLOCK,
            &raw const set,
            std::ptr::null_mut(),
        )))?;
        check(libc::c_long::from(libc::signalfd(
            -1,
            &raw const set,
            libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
        )))?
    };
    // SAFETY: the descriptor is new, and no one else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
