//! ptrace, as far as intercepting execs needs it.
//!
//! A tracer is a thread: the thread that seizes a tracee must also wait for it, and no other thread
//! can.
#![allow(unsafe_code, reason = "tracing has no safe form, and this is its one place")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::check_errno;

/// Registers of a stopped thread.
#[derive(Clone, Copy)]
pub struct Registers(libc::user_regs_struct);

#[cfg(target_arch = "x86_64")]
impl Registers {
    /// The address where it continues.
    pub fn program_counter(&self) -> u64 {
        self.0.rip
    }

    /// The stack pointer.
    pub fn stack_pointer(&self) -> u64 {
        self.0.rsp
    }

    /// Returns a copy that does not restart an interrupted system call.
    pub fn without_restart(mut self) -> Registers {
        self.0.orig_rax = u64::MAX;
        self
    }
}

/// An event of a traced thread, as reported by `waitpid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceEvent {
    /// It has just executed another program, none of whose instructions has run yet.
    Exec,
    /// It stopped because we interrupted it, or together with its whole thread group; then because
    /// of this signal.
    Stop(i32),
    /// A signal is about to be delivered.
    Signal(i32),
    /// It has ended.
    Exited,
}

/// Memory mapping of a process that a file backs, as the kernel reports it (`struct
/// procmap_query`).
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub struct MappingQuery {
    size: u64,
    flags: u64,
    address: u64,
    pub start: u64,
    pub end: u64,
    mapping_flags: u64,
    page_size: u64,
    pub offset: u64,
    pub inode: u64,
    pub device_major: u32,
    pub device_minor: u32,
    name_size: u32,
    build_id_size: u32,
    name_address: u64,
    build_id_address: u64,
}

/// Returns the mapping at an address, and the path of its file. `maps` is an open `/proc/PID/maps`.
/// A kernel before Linux 6.11 does not know the request and answers with `ENOTTY`.
pub fn query_mapping(maps: BorrowedFd<'_>, address: u64) -> io::Result<(MappingQuery, Vec<u8>)> {
    const PROCMAP_QUERY: libc::Ioctl = 0xc068_6611_u32 as libc::Ioctl;
    let mut name = vec![0; libc::PATH_MAX as usize];
    let mut query = MappingQuery {
        size: size_of::<MappingQuery>() as u64,
        address,
        name_size: libc::PATH_MAX as u32,
        name_address: name.as_mut_ptr() as u64,
        ..MappingQuery::default()
    };
    // SAFETY: the kernel fills the struct, whose size it is given, and at most `name_size` bytes of
    // the name, both of which outlive the call.
    check_errno(libc::c_long::from(unsafe {
        libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query)
    }))?;
    // With the zero at its end; 0 if the mapping has no name.
    name.truncate((query.name_size as usize).saturating_sub(1));
    Ok((query, name))
}

fn ptrace_request(request: libc::c_uint, thread: i32, data: libc::c_long) -> io::Result<()> {
    // SAFETY: no request made through this function reads or writes our memory: to all of them
    // `data` is a number.
    check_errno(unsafe { libc::ptrace(request as _, thread, 0usize, data) }).map(drop)
}

/// Becomes the tracer of a thread. It is killed if we exit while tracing it.
pub fn seize_thread(thread: i32) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_EXITKILL;
    ptrace_request(libc::PTRACE_SEIZE, thread, libc::c_long::from(options))
}

/// Stops a thread at the end of its current system call.
pub fn interrupt_thread(thread: i32) -> io::Result<()> {
    ptrace_request(libc::PTRACE_INTERRUPT, thread, 0)
}

/// Resumes a thread, delivering a signal unless it is zero.
pub fn resume_thread(thread: i32, signal: i32) -> io::Result<()> {
    ptrace_request(libc::PTRACE_CONT, thread, libc::c_long::from(signal))
}

/// Leaves a thread stopped together with its group, and reports when the group continues.
pub fn listen_while_stopped(thread: i32) -> io::Result<()> {
    ptrace_request(libc::PTRACE_LISTEN, thread, 0)
}

/// Stops tracing a thread for good, delivering a signal unless it is zero.
pub fn detach_thread(thread: i32, signal: i32) -> io::Result<()> {
    ptrace_request(libc::PTRACE_DETACH, thread, libc::c_long::from(signal))
}

/// Waits for an event of any thread that the current thread traces.
pub fn wait_for_event() -> io::Result<(i32, TraceEvent)> {
    let mut status = 0;
    let pid = loop {
        // SAFETY: waitpid writes one number to the given address. WNOTHREAD restricts it to the
        // tracees of this thread, so that it does not consume the events of another tracer.
        let waited =
            unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
        match check_errno(libc::c_long::from(waited)) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            other => break other? as i32,
        }
    };
    Ok((pid, decode_status(status)))
}

fn decode_status(status: i32) -> TraceEvent {
    if !libc::WIFSTOPPED(status) {
        return TraceEvent::Exited;
    }
    match status >> 16 {
        0 => TraceEvent::Signal(libc::WSTOPSIG(status)),
        libc::PTRACE_EVENT_EXEC => TraceEvent::Exec,
        _ => TraceEvent::Stop(libc::WSTOPSIG(status)),
    }
}

/// Reads the registers of a stopped thread.
pub fn read_registers(thread: i32) -> io::Result<Registers> {
    // SAFETY: all zeroes are valid registers.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    let mut iovec =
        libc::iovec { iov_base: (&raw mut registers).cast(), iov_len: size_of_val(&registers) };
    // SAFETY: GETREGSET fills the single buffer it is given, up to its length.
    check_errno(unsafe {
        libc::ptrace(
            libc::PTRACE_GETREGSET as _,
            thread,
            libc::NT_PRSTATUS as usize,
            &raw mut iovec,
        )
    })?;
    Ok(Registers(registers))
}

/// Replaces the registers of a stopped thread.
pub fn write_registers(thread: i32, registers: &Registers) -> io::Result<()> {
    let mut copy = registers.0;
    let mut iovec = libc::iovec { iov_base: (&raw mut copy).cast(), iov_len: size_of_val(&copy) };
    // SAFETY: SETREGSET reads the single buffer it is given, up to its length.
    check_errno(unsafe {
        libc::ptrace(
            libc::PTRACE_SETREGSET as _,
            thread,
            libc::NT_PRSTATUS as usize,
            &raw mut iovec,
        )
    })
    .map(drop)
}

/// Returns the mask of blocked signals.
pub fn read_signal_mask(thread: i32) -> io::Result<u64> {
    let mut mask = 0_u64;
    // SAFETY: GETSIGMASK writes as many bytes as its third argument says, which is the size of the
    // mask.
    check_errno(unsafe {
        libc::ptrace(libc::PTRACE_GETSIGMASK as _, thread, size_of::<u64>(), &raw mut mask)
    })?;
    Ok(mask)
}

/// Replaces the mask of blocked signals.
pub fn write_signal_mask(thread: i32, mask: u64) -> io::Result<()> {
    // SAFETY: SETSIGMASK reads as many bytes as its third argument says, which is the size of the
    // mask.
    check_errno(unsafe {
        libc::ptrace(libc::PTRACE_SETSIGMASK as _, thread, size_of::<u64>(), &raw const mask)
    })
    .map(drop)
}

const PAGE_SIZE: u64 = 4096;

/// Reads memory starting at an address. Returns less than requested where the mapping ends.
pub fn read_memory(process: i32, address: u64, buffer: &mut [u8]) -> io::Result<usize> {
    // The kernel accepts this many pages per call.
    const PIECE: usize = (libc::UIO_MAXIOV as usize - 1) * PAGE_SIZE as usize;
    let mut total = 0;
    for piece in buffer.chunks_mut(PIECE) {
        let count = match read_pages(process, address.saturating_add(total as u64), piece) {
            // The memory after what was read is not mapped.
            Err(_) if total > 0 => break,
            other => other?,
        };
        total += count;
        if count < piece.len() {
            break;
        }
    }
    Ok(total)
}

fn read_pages(process: i32, address: u64, buffer: &mut [u8]) -> io::Result<usize> {
    // One element per page: a partial transfer never splits an element.
    let end = address.saturating_add(buffer.len() as u64);
    let mut pages = Vec::with_capacity(buffer.len() / PAGE_SIZE as usize + 2);
    let mut page_start = address;
    while page_start < end {
        let page_end = (page_start / PAGE_SIZE + 1).saturating_mul(PAGE_SIZE).min(end);
        pages.push(libc::iovec {
            iov_base: page_start as *mut libc::c_void,
            iov_len: (page_end - page_start) as usize,
        });
        page_start = page_end;
    }
    let local_buffer = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: the kernel writes to our single buffer, up to its length; addresses of the other
    // process are never dereferenced in this one.
    let count = check_errno(unsafe {
        libc::process_vm_readv(
            process,
            &raw const local_buffer,
            1,
            pages.as_ptr(),
            pages.len() as _,
            0,
        ) as libc::c_long
    })?;
    Ok(count as usize)
}

/// Writes to memory that the process itself can write.
pub fn write_memory(process: i32, address: u64, bytes: &[u8]) -> io::Result<()> {
    let local_buffer =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote_buffer =
        libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: the kernel reads our single buffer, up to its length; the other process's address is
    // never dereferenced here.
    let written = check_errno(unsafe {
        libc::process_vm_writev(process, &raw const local_buffer, 1, &raw const remote_buffer, 1, 0)
            as libc::c_long
    })?;
    if written as usize == bytes.len() {
        Ok(())
    } else {
        Err(io::Error::from(io::ErrorKind::WriteZero))
    }
}

const WORD_SIZE: usize = size_of::<libc::c_long>();

/// Writes to any memory of a stopped process, including its code. The last word is filled up with
/// its present bytes.
pub fn write_code(process: i32, address: u64, bytes: &[u8]) -> io::Result<()> {
    for (index, piece) in bytes.chunks(WORD_SIZE).enumerate() {
        let address = address + (index * WORD_SIZE) as u64;
        let mut word = [0; WORD_SIZE];
        if piece.len() < WORD_SIZE {
            read_memory(process, address, &mut word)?;
        }
        word[..piece.len()].copy_from_slice(piece);
        let word = libc::c_long::from_ne_bytes(word);
        // SAFETY: POKETEXT takes an address of the other process and a number.
        check_errno(unsafe { libc::ptrace(libc::PTRACE_POKETEXT as _, process, address, word) })?;
    }
    Ok(())
}

/// Lets the caller of a pending system call make it itself. Safe only for calls whose outcome is
/// checked before the caller continues. Returns false if the caller no longer waits.
pub fn continue_call(listener: BorrowedFd<'_>, id: u64) -> bool {
    let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
    let response = libc::seccomp_notif_resp { id, val: 0, error: 0, flags };
    // SAFETY: SEND reads the struct it is given.
    unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const response) == 0
    }
}

/// Sends a signal to a process that this thread traces, so that the pid cannot have been reused.
pub fn signal_process(process: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes no pointers.
    check_errno(libc::c_long::from(unsafe { libc::kill(process, signal) })).map(drop)
}
