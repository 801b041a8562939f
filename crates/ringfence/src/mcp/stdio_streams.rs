//! Standard input and output without a thread in between: a client's pipe or socket is polled like
//! any other, which halves the latency of a small call. Anything else (a terminal, a file) goes
//! through the runtime's own threads.

use std::io::Result;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::FileType;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

/// Opens standard input for asynchronous reading.
pub fn open_stdin() -> Box<dyn AsyncRead + Unpin + Send> {
    let stdin = std::io::stdin();
    match file_type(stdin.as_fd()) {
        // Reopened, so that non-blocking mode affects us alone: the flag would be shared with every
        // other holder of the pipe.
        Some(FileType::Fifo) => match pipe::OpenOptions::new().open_receiver("/proc/self/fd/0") {
            Ok(pipe) => Box::new(pipe),
            Err(_) => Box::new(tokio::io::stdin()),
        },
        Some(FileType::Socket) => match nonblocking_socket(stdin.as_fd()) {
            Ok(socket) => Box::new(socket),
            Err(_) => Box::new(tokio::io::stdin()),
        },
        _ => Box::new(tokio::io::stdin()),
    }
}

/// Opens standard output for asynchronous writing.
pub fn open_stdout() -> Box<dyn AsyncWrite + Unpin + Send> {
    let stdout = std::io::stdout();
    match file_type(stdout.as_fd()) {
        Some(FileType::Fifo) => match pipe::OpenOptions::new().open_sender("/proc/self/fd/1") {
            Ok(pipe) => Box::new(pipe),
            Err(_) => Box::new(tokio::io::stdout()),
        },
        Some(FileType::Socket) => match nonblocking_socket(stdout.as_fd()) {
            Ok(socket) => Box::new(socket),
            Err(_) => Box::new(tokio::io::stdout()),
        },
        _ => Box::new(tokio::io::stdout()),
    }
}

fn file_type(fd: BorrowedFd<'_>) -> Option<FileType> {
    rustix::fs::fstat(fd).ok().map(|stat| FileType::from_raw_mode(stat.st_mode))
}

/// Puts a socket into non-blocking mode, since it cannot be reopened. Our end is ours alone, unless
/// standard error shares it: then writing a log line must still be able to block, and the mode is
/// refused.
fn nonblocking_socket(fd: BorrowedFd<'_>) -> Result<UnixStream> {
    let (own_stat, stderr_stat) =
        (rustix::fs::fstat(fd)?, rustix::fs::fstat(rustix::stdio::stderr())?);
    if (own_stat.st_dev, own_stat.st_ino) == (stderr_stat.st_dev, stderr_stat.st_ino) {
        return Err(std::io::ErrorKind::ResourceBusy.into());
    }
    let socket = std::os::unix::net::UnixStream::from(fd.try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}
