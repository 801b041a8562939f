//! System calls that none of our dependencies offers in a safe form.
//!
//! All `unsafe` code of the project is in this file and its submodules.
#![allow(unsafe_code, reason = "this is its one place")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::process::Pid;

pub mod memory;
pub mod signals;
pub mod trace;

/// Result of a fork: the side on which it returned.
pub enum ForkResult {
    Parent(Pid),
    Child,
}

fn check_errno(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Forks, with the child in new namespaces (`CLONE_NEW…`). Refuses unless the process has a single
/// thread: the child is a copy of that thread alone, so no lock can be held by a thread that does
/// not exist in it.
pub fn fork(namespaces: libc::c_int) -> io::Result<ForkResult> {
    if !is_single_threaded()? {
        return Err(io::Error::other("a process with several threads cannot be forked safely"));
    }
    let flags = libc::c_long::from(namespaces | libc::SIGCHLD);
    // SAFETY: without CLONE_VM and with a null stack this is fork(2), and the process was just seen
    // to have a single thread, so the child may do anything that the parent may. glibc caches
    // neither pid nor tid.
    match check_errno(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })? {
        0 => Ok(ForkResult::Child),
        pid => i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .map(ForkResult::Parent)
            .ok_or_else(|| io::Error::other("no pid")),
    }
}

/// Returns whether this process has a single thread. A thread that has been joined stays listed for
/// a moment, with no event when it disappears, so this waits for it.
fn is_single_threaded() -> io::Result<bool> {
    const MOMENT: Duration = Duration::from_millis(500);
    let started = Instant::now();
    loop {
        if std::fs::read_dir("/proc/self/task")?.count() == 1 {
            return Ok(true);
        }
        if started.elapsed() > MOMENT {
            return Ok(false);
        }
        std::thread::yield_now();
    }
}

/// Exits without running the exit handlers that the parent has registered.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes any number and does not return.
    unsafe { libc::_exit(code) }
}

/// Moves this process into new namespaces. It must have a single thread.
pub fn unshare(namespaces: rustix::thread::UnshareFlags) -> io::Result<()> {
    // SAFETY: only CLONE_FILES is unsafe here, because it would take descriptors away from other
    // threads. No caller passes it.
    unsafe { rustix::thread::unshare_unsafe(namespaces) }.map_err(io::Error::from)
}

/// Mount flags for [`mount_setattr`].
pub const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
pub const NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
pub const NODEV: u64 = libc::MOUNT_ATTR_NODEV;
pub const NOEXEC: u64 = libc::MOUNT_ATTR_NOEXEC;

/// Adds flags to the mount behind `mount`, and to everything mounted below it if `recursive`.
pub fn mount_setattr(mount: BorrowedFd<'_>, flags: u64, recursive: bool) -> io::Result<()> {
    let attributes =
        libc::mount_attr { attr_set: flags, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let at_flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string, the attributes are a complete struct of the given
    // size, and the kernel only reads both.
    check_errno(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            at_flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    })?;
    Ok(())
}

/// Sends a signal to every process that this one can see, except itself.
pub fn kill_all_visible(signal: i32) -> io::Result<()> {
    // SAFETY: kill takes no pointers.
    match check_errno(libc::c_long::from(unsafe { libc::kill(-1, signal) })) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other.map(drop),
    }
}

/// Brings up the loopback interface of this network namespace.
pub fn bring_loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    // SAFETY: all zeroes is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads the ifreq it is given, which lives until after the call.
    check_errno(libc::c_long::from(unsafe {
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request)
    }))?;
    Ok(())
}

/// Installs a seccomp filter on this thread. With `listener`, returns the descriptor on which calls
/// that the filter passes to the supervisor arrive.
pub fn install_filter(
    program: &[libc::sock_filter],
    listener: bool,
) -> io::Result<Option<OwnedFd>> {
    let length =
        u16::try_from(program.len()).map_err(|_| io::Error::other("the filter is too long"))?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    let flags = if listener { libc::SECCOMP_FILTER_FLAG_NEW_LISTENER } else { 0 };
    // SAFETY: the program outlives the call, its length is right, and the kernel only reads it.
    let fd = check_errno(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    })?;
    // SAFETY: with NEW_LISTENER the result is a new descriptor that has no other owner.
    Ok(listener.then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) }))
}

/// A system call that waits for our answer.
#[derive(Debug, Clone, Copy)]
pub struct PendingCall {
    pub id: u64,
    /// Thread id as this process sees it; zero if it cannot see the thread.
    pub thread: u32,
    pub call: i64,
    pub args: [u64; 6],
}

/// Waits for the next system call that the filter passes to us. Fails with `NotFound` if its caller
/// has gone in the meantime.
pub fn receive_call(listener: BorrowedFd<'_>) -> io::Result<PendingCall> {
    // SAFETY: all zeroes is a valid seccomp_notif, and the kernel requires it.
    let mut notification: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: RECV fills the struct it is given.
    check_errno(libc::c_long::from(unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notification)
    }))?;
    Ok(PendingCall {
        id: notification.id,
        thread: notification.pid,
        call: i64::from(notification.data.nr),
        args: notification.data.args,
    })
}

/// Available since Linux 6.6: wakes the supervisor on the CPU that made the call, and the caller on
/// the CPU that answers. The two never run at the same time, so looking for an idle CPU would waste
/// time.
pub fn enable_sync_wakeup(listener: BorrowedFd<'_>) {
    const SYNC_WAKE_UP: libc::c_ulong = 1;
    // SAFETY: SET_FLAGS takes a number. An older kernel rejects it and wakes threads as usual.
    let _ = unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP)
    };
}

/// Returns whether the caller still waits. Memory read from the caller earlier is valid only if it
/// does; otherwise the thread id may have been reused in the meantime.
pub fn is_still_pending(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: ID_VALID reads one number.
    unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id) == 0
    }
}

/// Returns the parent of a user namespace.
pub fn parent_user_namespace(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const NS_GET_PARENT: libc::Ioctl = 0xb702;
    // SAFETY: the request takes no argument and returns a new descriptor that has no other owner.
    unsafe {
        let parent =
            check_errno(libc::c_long::from(libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT)))?;
        Ok(OwnedFd::from_raw_fd(i32::try_from(parent).map_err(io::Error::other)?))
    }
}

/// Answers a call with a result or an error number. Returns false if the caller no longer waits.
pub fn answer_call(listener: BorrowedFd<'_>, id: u64, result: Result<i64, i32>) -> bool {
    let response = libc::seccomp_notif_resp {
        id,
        val: result.unwrap_or(0),
        error: result.err().map_or(0, |errno| -errno),
        flags: 0,
    };
    // SAFETY: SEND reads the struct it is given. It fails only if the caller no longer waits.
    unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const response) == 0
    }
}

/// Connects a socket to an address given as the bytes of any `sockaddr`.
pub fn connect_socket(socket: BorrowedFd<'_>, address: &[u8]) -> io::Result<()> {
    let length = libc::socklen_t::try_from(address.len())
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: the kernel copies `length` bytes from the slice and accepts any content.
    check_errno(libc::c_long::from(unsafe {
        libc::connect(socket.as_raw_fd(), address.as_ptr().cast(), length)
    }))?;
    Ok(())
}

/// Closes every descriptor except those in `keep`, so that a long-lived process holds none open for
/// others.
pub fn close_all_except(keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut numbers: Vec<u32> =
        keep.iter().filter_map(|fd| u32::try_from(fd.as_raw_fd()).ok()).collect();
    numbers.sort_unstable();
    let mut first = 0;
    for kept_fd in numbers.into_iter().map(Some).chain([None]) {
        let end = kept_fd.map_or(Some(u32::MAX), |kept_fd| kept_fd.checked_sub(1));
        if let Some(end) = end.filter(|end| first <= *end) {
            // SAFETY: the caller uses no other descriptor afterwards; that is the purpose of this
            // function.
            check_errno(unsafe { libc::syscall(libc::SYS_close_range, first, end, 0) })?;
        }
        first = kept_fd.map_or(u32::MAX, |kept_fd| kept_fd + 1);
    }
    Ok(())
}

/// Switches to another user permanently. Only for a process with a single thread that executes a
/// program next.
pub fn switch_user(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    // SAFETY: setgroups reads as many numbers as the given length.
    check_errno(libc::c_long::from(unsafe { libc::setgroups(groups.len(), groups.as_ptr()) }))?;
    // SAFETY: neither takes pointers. Groups go first: afterwards the process may no longer change
    // them.
    check_errno(libc::c_long::from(unsafe { libc::setresgid(gid, gid, gid) }))?;
    // SAFETY: as above.
    check_errno(libc::c_long::from(unsafe { libc::setresuid(uid, uid, uid) })).map(drop)
}

/// Executes the program in an open file. Returns only on failure.
pub fn exec_file(
    file: BorrowedFd<'_>,
    argv: impl Iterator<Item = Vec<u8>>,
    env: impl Iterator<Item = Vec<u8>>,
) -> io::Error {
    let to_c_strings = |words: &mut dyn Iterator<Item = Vec<u8>>| {
        words.map(CString::new).collect::<Result<Vec<_>, _>>()
    };
    let (Ok(argv), Ok(env)) = (to_c_strings(&mut { argv }), to_c_strings(&mut { env })) else {
        return io::Error::from(io::ErrorKind::InvalidInput);
    };
    let to_pointers = |words: &[CString]| {
        words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv_pointers, env_pointers): (Vec<_>, Vec<_>) = (to_pointers(&argv), to_pointers(&env));
    // An exec keeps ignored and blocked signals, and our processes ignore SIGPIPE; reset both.
    // SAFETY: the action is the default, and the empty set lives until the call returns.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut empty_set = std::mem::zeroed();
        libc::sigemptyset(&mut empty_set);
        libc::sigprocmask(libc::SIG_SETMASK, &empty_set, std::ptr::null_mut());
    }
    // SAFETY: both lists end with a null, and they and their strings live until the call returns,
    // if it does.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            file.as_raw_fd(),
            c"".as_ptr(),
            argv_pointers.as_ptr(),
            env_pointers.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}
