//! Signal handling of the process that reaps a run: it has no handlers and learns of ended children
//! from a descriptor.
#![allow(
    unsafe_code,
    reason = "signal actions and signalfd have no safe form here, and this is their one place"
)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use super::check_errno;

/// Size in bytes of the kernel's signal set, and the number of signals.
const SET_BYTES: usize = 8;
const SIGNAL_COUNT: i32 = 64;

/// The kernel's `struct sigaction`, all zero: the default action on every architecture we support.
#[repr(C)]
struct DefaultAction([u64; 4]);

/// Resets every signal to its default action, permanently.
///
/// The kernel drops a signal sent to the first process of a pid namespace from inside, unless the
/// process has a handler for it. The Rust runtime installs some (SIGSEGV and SIGBUS to detect stack
/// overflows) and libc one of its own, and the sender controls the data that they read. SIGPIPE
/// stays ignored: on the host this process must survive a broken pipe.
pub fn reset_handlers() -> io::Result<()> {
    let action = DefaultAction([0; 4]);
    let unchanged = [libc::SIGKILL, libc::SIGSTOP, libc::SIGPIPE];
    for signal in (1..=SIGNAL_COUNT).filter(|signal| !unchanged.contains(signal)) {
        // SAFETY: the kernel reads one action, which lives until after the call, and writes none.
        // libc's own function would refuse the two signals that it uses itself.
        check_errno(unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal, &raw const action, 0usize, SET_BYTES)
        })?;
    }
    Ok(())
}

/// Opens a descriptor that becomes readable when a child ends. Blocks SIGCHLD for this thread,
/// which is required for the signal to arrive there.
pub fn open_child_signalfd() -> io::Result<OwnedFd> {
    // SAFETY: an empty set is created in place, one signal is added, and both calls only read it.
    let fd = unsafe {
        let mut signal_set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signal_set);
        libc::sigaddset(&raw mut signal_set, libc::SIGCHLD);
        check_errno(libc::c_long::from(libc::sigprocmask(
            libc::SIG_BLOCK,
            &raw const signal_set,
            std::ptr::null_mut(),
        )))?;
        check_errno(libc::c_long::from(libc::signalfd(
            -1,
            &raw const signal_set,
            libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
        )))?
    };
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
