//! The system calls that no crate we use offers in a safe form. All `unsafe` of the project is in this file.
#![allow(unsafe_code, reason = "this is its one place")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::process::Pid;

pub mod signals;
pub mod trace;

/// Which side of a fork one is on.
pub enum Fork {
    Parent(Pid),
    Child,
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Forks, with the child in new namespaces (`CLONE_NEW…`). Only a process with one thread may: the child is a copy
/// of it alone, so no lock can be held by a thread that is not there any more.
pub fn fork(namespaces: libc::c_int) -> io::Result<Fork> {
    if !is_alone()? {
        return Err(io::Error::other("a process with several threads cannot be forked safely"));
    }
    let flags = libc::c_long::from(namespaces | libc::SIGCHLD);
    // SAFETY: without CLONE_VM and with a null stack this is fork(2), and the process was just seen to have one
    // thread, so the child may do whatever the parent may. glibc caches neither pid nor tid.
    match check(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })? {
        0 => Ok(Fork::Child),
        pid => i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .map(Fork::Parent)
            .ok_or_else(|| io::Error::other("no pid")),
    }
}

/// Whether this process has one thread. One that has been joined is still listed for a moment, which nothing tells the
/// end of; it is waited for.
fn is_alone() -> io::Result<bool> {
    const MOMENT: Duration = Duration::from_millis(500);
    let began = Instant::now();
    loop {
        if std::fs::read_dir("/proc/self/task")?.count() == 1 {
            return Ok(true);
        }
        if began.elapsed() > MOMENT {
            return Ok(false);
        }
        std::thread::yield_now();
    }
}

/// Leaves without running what a parent has registered for its own exit.
pub fn leave(code: i32) -> ! {
    // SAFETY: _exit takes any number and does not return.
    unsafe { libc::_exit(code) }
}

/// Moves this process, which has one thread, into new namespaces.
pub fn unshare(namespaces: rustix::thread::UnshareFlags) -> io::Result<()> {
    // SAFETY: what is unsafe here is CLONE_FILES, which would take descriptors from under other threads. No caller
    // passes it.
    unsafe { rustix::thread::unshare_unsafe(namespaces) }.map_err(io::Error::from)
}

/// Flags of a mount, for [`mount_setattr`].
pub const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
pub const NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
pub const NODEV: u64 = libc::MOUNT_ATTR_NODEV;
pub const NOEXEC: u64 = libc::MOUNT_ATTR_NOEXEC;

/// Adds flags to the mount behind `mount`, or to everything mounted below it too.
pub fn mount_setattr(mount: BorrowedFd<'_>, flags: u64, recursive: bool) -> io::Result<()> {
    let attributes =
        libc::mount_attr { attr_set: flags, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let how = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string, the attributes are a whole struct of the size that is given, and the
    // kernel only reads both.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            how,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    })?;
    Ok(())
}

/// Signals every process that this one can see, but itself.
pub fn kill_everything(signal: i32) -> io::Result<()> {
    // SAFETY: kill takes no pointers.
    match check(libc::c_long::from(unsafe { libc::kill(-1, signal) })) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other.map(drop),
    }
}

/// Brings the loopback interface of this network namespace up.
pub fn loopback_up() -> io::Result<()> {
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
    check(libc::c_long::from(unsafe {
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request)
    }))?;
    Ok(())
}

/// Puts a seccomp filter on this thread; with `listener`, what the filter leaves to the supervisor arrives there.
pub fn seccomp(program: &[libc::sock_filter], listener: bool) -> io::Result<Option<OwnedFd>> {
    let length =
        u16::try_from(program.len()).map_err(|_| io::Error::other("the filter is too long"))?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    let flags = if listener { libc::SECCOMP_FILTER_FLAG_NEW_LISTENER } else { 0 };
    // SAFETY: the program outlives the call, its length is right, and the kernel only reads it.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    })?;
    // SAFETY: with NEW_LISTENER the result is a new descriptor that nobody else owns.
    Ok(listener.then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) }))
}

/// A system call that waits for an answer.
#[derive(Debug, Clone, Copy)]
pub struct Notification {
    pub id: u64,
    /// The thread, as this process sees it; zero when it cannot.
    pub thread: u32,
    pub call: i64,
    pub args: [u64; 6],
}

/// Waits for the next system call that the filter leaves to us. `NotFound` when its caller went away meanwhile.
pub fn notification(listener: BorrowedFd<'_>) -> io::Result<Notification> {
    // SAFETY: all zeroes is a valid seccomp_notif, and the kernel demands them.
    let mut got: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: RECV fills the struct it is given.
    check(libc::c_long::from(unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut got)
    }))?;
    Ok(Notification {
        id: got.id,
        thread: got.pid,
        call: i64::from(got.data.nr),
        args: got.data.args,
    })
}

/// From Linux 6.6 on: has whoever waits here woken on the processor that the call was made on, and the caller on the one
/// that it is answered on. The two never run at the same time, so that to look for an idle processor is time lost.
pub fn wake_where_called(listener: BorrowedFd<'_>) {
    const SYNC_WAKE_UP: libc::c_ulong = 1;
    // SAFETY: SET_FLAGS takes a number. Where the kernel does not know it, everything is woken as it always was.
    let _ = unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP)
    };
}

/// Whether its caller still waits. What was read of the caller's memory before is its own only if so.
pub fn still_waits(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: ID_VALID reads one number.
    unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id) == 0
    }
}

/// The user namespace that this one is in.
pub fn parent_namespace(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const NS_GET_PARENT: libc::Ioctl = 0xb702;
    // SAFETY: the request takes no argument, and gives a descriptor that is nobody else's yet.
    unsafe {
        let parent = check(libc::c_long::from(libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT)))?;
        Ok(OwnedFd::from_raw_fd(i32::try_from(parent).map_err(io::Error::other)?))
    }
}

/// Answers it: with a result, or with an error number.
pub fn answer(listener: BorrowedFd<'_>, id: u64, result: Result<i64, i32>) -> bool {
    let response = libc::seccomp_notif_resp {
        id,
        val: result.unwrap_or(0),
        error: result.err().map_or(0, |errno| -errno),
        flags: 0,
    };
    // SAFETY: SEND reads the struct it is given. It fails only when the caller does not wait any more.
    unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const response) == 0
    }
}

/// Connects a socket to an address that is given as the bytes of any `sockaddr`.
pub fn connect(socket: BorrowedFd<'_>, address: &[u8]) -> io::Result<()> {
    let length = libc::socklen_t::try_from(address.len())
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: the kernel copies `length` bytes from the slice, whatever they are.
    check(libc::c_long::from(unsafe {
        libc::connect(socket.as_raw_fd(), address.as_ptr().cast(), length)
    }))?;
    Ok(())
}

/// Closes every descriptor but those in `keep`, which is for a process that wants to hold nothing else for others.
pub fn close_all_but(keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut numbers: Vec<u32> =
        keep.iter().filter_map(|fd| u32::try_from(fd.as_raw_fd()).ok()).collect();
    numbers.sort_unstable();
    let mut first = 0;
    for last in numbers.into_iter().map(Some).chain([None]) {
        let end = last.map_or(Some(u32::MAX), |last| last.checked_sub(1));
        if let Some(end) = end.filter(|end| first <= *end) {
            // SAFETY: whoever calls this holds no other descriptor that it still uses; that is what it is for.
            check(unsafe { libc::syscall(libc::SYS_close_range, first, end, 0) })?;
        }
        first = last.map_or(u32::MAX, |last| last + 1);
    }
    Ok(())
}

/// Becomes another user for good. Only a process with one thread, that runs one program next, does this.
pub fn become_user(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    // SAFETY: setgroups reads as many numbers as it is told there are.
    check(libc::c_long::from(unsafe { libc::setgroups(groups.len(), groups.as_ptr()) }))?;
    // SAFETY: neither takes pointers. Groups go first: without the user's right to change them they would stay.
    check(libc::c_long::from(unsafe { libc::setresgid(gid, gid, gid) }))?;
    // SAFETY: as above.
    check(libc::c_long::from(unsafe { libc::setresuid(uid, uid, uid) })).map(drop)
}

/// Becomes the program in a file that is open. Returns only when that failed.
pub fn exec_file(
    file: BorrowedFd<'_>,
    argv: impl Iterator<Item = Vec<u8>>,
    env: impl Iterator<Item = Vec<u8>>,
) -> io::Error {
    let strings = |words: &mut dyn Iterator<Item = Vec<u8>>| {
        words.map(CString::new).collect::<Result<Vec<_>, _>>()
    };
    let (Ok(argv), Ok(env)) = (strings(&mut { argv }), strings(&mut { env })) else {
        return io::Error::from(io::ErrorKind::InvalidInput);
    };
    let pointers = |words: &[CString]| {
        words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv_pointers, env_pointers): (Vec<_>, Vec<_>) = (pointers(&argv), pointers(&env));
    // What this process ignores or holds back, as every program of ours does with broken pipes, would stay so.
    // SAFETY: the action is the default one, and the set is an empty one that lives until the call returns.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
    // SAFETY: both lists end with a null, and they and their strings live until the call returns, if it does.
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
