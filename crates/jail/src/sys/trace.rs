//! Tracing, as far as watching execs needs it. A tracer is a thread: whoever seizes waits, and nobody else.
#![allow(unsafe_code, reason = "tracing has no safe form, and this is its one place")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::check;

/// The registers of a stopped thread.
#[derive(Clone, Copy)]
pub struct Registers(libc::user_regs_struct);

#[cfg(target_arch = "x86_64")]
impl Registers {
    /// Where it goes on.
    pub fn pc(&self) -> u64 {
        self.0.rip
    }

    pub fn stack(&self) -> u64 {
        self.0.rsp
    }

    /// The same, with no system call to be made again.
    pub fn settled(mut self) -> Registers {
        self.0.orig_rax = u64::MAX;
        self
    }
}

/// A change of a traced thread, as `waitpid` tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It has just become another program, of which no instruction has run.
    Exec,
    /// It stands still because we interrupted it, or with its whole group: then by this signal.
    Stop(i32),
    /// A signal is about to be delivered.
    Signal(i32),
    /// It is gone.
    Gone,
}

fn request(request: libc::c_uint, thread: i32, data: libc::c_long) -> io::Result<()> {
    // SAFETY: none of the requests that are made through here reads or writes memory of ours: `data` is a number to
    // all of them.
    check(unsafe { libc::ptrace(request as _, thread, 0usize, data) }).map(drop)
}

/// Becomes its tracer. It dies if we do while it is ours.
pub fn seize(thread: i32) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_EXITKILL;
    request(libc::PTRACE_SEIZE, thread, libc::c_long::from(options))
}

/// Has it stop at the end of the system call that it is in.
pub fn interrupt(thread: i32) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, thread, 0)
}

/// Lets it go on, with a signal or zero.
pub fn resume(thread: i32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_CONT, thread, libc::c_long::from(signal))
}

/// Leaves it stopped with its group, and hears when that goes on.
pub fn stay_stopped(thread: i32) -> io::Result<()> {
    request(libc::PTRACE_LISTEN, thread, 0)
}

/// Lets it go for good, with a signal or zero.
pub fn detach(thread: i32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_DETACH, thread, libc::c_long::from(signal))
}

/// Waits for a change of any thread that this one traces.
pub fn wait() -> io::Result<(i32, Change)> {
    let mut status = 0;
    let pid = loop {
        // SAFETY: waitpid writes one number, to where we say. With WNOTHREAD only what this thread traces is waited
        // for, so that no other's news is taken from it.
        let waited =
            unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
        match check(libc::c_long::from(waited)) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            other => break other? as i32,
        }
    };
    Ok((pid, change(status)))
}

fn change(status: i32) -> Change {
    if !libc::WIFSTOPPED(status) {
        return Change::Gone;
    }
    match status >> 16 {
        0 => Change::Signal(libc::WSTOPSIG(status)),
        libc::PTRACE_EVENT_EXEC => Change::Exec,
        _ => Change::Stop(libc::WSTOPSIG(status)),
    }
}

pub fn registers(thread: i32) -> io::Result<Registers> {
    // SAFETY: all zeroes are valid registers.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    let mut space =
        libc::iovec { iov_base: (&raw mut registers).cast(), iov_len: size_of_val(&registers) };
    // SAFETY: GETREGSET fills the one buffer it is given, up to its length.
    check(unsafe {
        libc::ptrace(
            libc::PTRACE_GETREGSET as _,
            thread,
            libc::NT_PRSTATUS as usize,
            &raw mut space,
        )
    })?;
    Ok(Registers(registers))
}

pub fn set_registers(thread: i32, registers: &Registers) -> io::Result<()> {
    let mut copy = registers.0;
    let mut space = libc::iovec { iov_base: (&raw mut copy).cast(), iov_len: size_of_val(&copy) };
    // SAFETY: SETREGSET reads the one buffer it is given, up to its length.
    check(unsafe {
        libc::ptrace(
            libc::PTRACE_SETREGSET as _,
            thread,
            libc::NT_PRSTATUS as usize,
            &raw mut space,
        )
    })
    .map(drop)
}

/// The signals that it has blocked.
pub fn signal_mask(thread: i32) -> io::Result<u64> {
    let mut mask = 0_u64;
    // SAFETY: GETSIGMASK writes as many bytes as its third argument says, which is what we have.
    check(unsafe {
        libc::ptrace(libc::PTRACE_GETSIGMASK as _, thread, size_of::<u64>(), &raw mut mask)
    })?;
    Ok(mask)
}

pub fn set_signal_mask(thread: i32, mask: u64) -> io::Result<()> {
    // SAFETY: SETSIGMASK reads as many bytes as its third argument says, which is what we have.
    check(unsafe {
        libc::ptrace(libc::PTRACE_SETSIGMASK as _, thread, size_of::<u64>(), &raw const mask)
    })
    .map(drop)
}

const PAGE: u64 = 4096;

/// Reads what there is from an address on; less than asked for at the end of what is mapped.
pub fn read_memory(process: i32, address: u64, into: &mut [u8]) -> io::Result<usize> {
    // The kernel takes so many pages at once.
    const PIECE: usize = (libc::UIO_MAXIOV as usize - 1) * PAGE as usize;
    let mut got = 0;
    for piece in into.chunks_mut(PIECE) {
        let one = match read_pages(process, address.saturating_add(got as u64), piece) {
            // What follows what was read is not there.
            Err(_) if got > 0 => break,
            other => other?,
        };
        got += one;
        if one < piece.len() {
            break;
        }
    }
    Ok(got)
}

fn read_pages(process: i32, address: u64, into: &mut [u8]) -> io::Result<usize> {
    // By the page: the kernel promises no part of an element.
    let end = address.saturating_add(into.len() as u64);
    let mut pages = Vec::with_capacity(into.len() / PAGE as usize + 2);
    let mut at = address;
    while at < end {
        let next = (at / PAGE + 1).saturating_mul(PAGE).min(end);
        pages
            .push(libc::iovec { iov_base: at as *mut libc::c_void, iov_len: (next - at) as usize });
        at = next;
    }
    let ours = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: the kernel writes to our one buffer, up to its length; the addresses of the other process are never
    // followed in this one.
    let got = check(unsafe {
        libc::process_vm_readv(process, &raw const ours, 1, pages.as_ptr(), pages.len() as _, 0)
            as libc::c_long
    })?;
    Ok(got as usize)
}

/// Writes to memory that the process may itself write.
pub fn write_memory(process: i32, address: u64, bytes: &[u8]) -> io::Result<()> {
    let ours = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let theirs = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: the kernel reads our one buffer, up to its length; the other process's address is never followed here.
    let put = check(unsafe {
        libc::process_vm_writev(process, &raw const ours, 1, &raw const theirs, 1, 0)
            as libc::c_long
    })?;
    if put as usize == bytes.len() {
        Ok(())
    } else {
        Err(io::Error::from(io::ErrorKind::WriteZero))
    }
}

const WORD: usize = size_of::<libc::c_long>();

/// Writes to any memory of a stopped process, its code too. The length is rounded up with what is there.
pub fn write_code(process: i32, address: u64, bytes: &[u8]) -> io::Result<()> {
    for (at, piece) in bytes.chunks(WORD).enumerate() {
        let address = address + (at * WORD) as u64;
        let mut word = [0; WORD];
        if piece.len() < WORD {
            read_memory(process, address, &mut word)?;
        }
        word[..piece.len()].copy_from_slice(piece);
        let word = libc::c_long::from_ne_bytes(word);
        // SAFETY: POKETEXT takes an address of the other process and a number.
        check(unsafe { libc::ptrace(libc::PTRACE_POKETEXT as _, process, address, word) })?;
    }
    Ok(())
}

/// Lets a call that waits for an answer be made by its caller after all. That is for calls whose outcome is looked at
/// before its caller goes on. False when the caller does not wait any more.
pub fn let_through(listener: BorrowedFd<'_>, id: u64) -> bool {
    let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
    let response = libc::seccomp_notif_resp { id, val: 0, error: 0, flags };
    // SAFETY: SEND reads the struct it is given.
    unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const response) == 0
    }
}

/// Signals a process that is held by this one's tracing, so that the number is its own.
pub fn signal(process: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes no pointers.
    check(libc::c_long::from(unsafe { libc::kill(process, signal) })).map(drop)
}
