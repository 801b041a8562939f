//! Socket between the server and our driver process inside a run: messages that end with a NUL,
//! over a socket pair.
//!
//! The driver shares its process with whatever it runs, so nothing that it sends is trusted:
//! messages are bounded, and it can only lie about its own run.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;

use futures::FutureExt;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::base::{Error, Result};

/// The server's end of the socket to a driver process.
pub struct DriverSocket {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    /// Bytes of an incomplete message: a reader may have been dropped in the middle of one.
    partial: Vec<u8>,
    max_message_bytes: usize,
    /// Number of messages sent that were not answered yet.
    unanswered: usize,
}

impl DriverSocket {
    /// Creates our end, and the end for the run. No message may be longer than `max_message_bytes`
    /// bytes.
    pub fn new_pair(max_message_bytes: usize) -> Result<(DriverSocket, OwnedFd)> {
        let socket_error = |error: io::Error| {
            Error::internal("cannot create the socket to the run").with_source(error)
        };
        let (server_end, run_end) = Socket::pair().map_err(socket_error)?;
        server_end.set_nonblocking(true).map_err(socket_error)?;
        let (reader, writer) = UnixStream::from_std(server_end).map_err(socket_error)?.into_split();
        Ok((
            DriverSocket {
                reader: BufReader::new(reader),
                writer,
                partial: Vec::new(),
                max_message_bytes,
                unanswered: 0,
            },
            run_end.into(),
        ))
    }

    /// Returns whether an earlier message has no answer yet. Discards answers that no one waited
    /// for.
    pub fn is_busy(&mut self) -> bool {
        while self.unanswered > 0
            && self.receive().now_or_never().is_some_and(|received| matches!(received, Ok(Some(_))))
        {
        }
        self.unanswered > 0
    }

    /// Sends a message to the driver.
    pub async fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.unanswered += 1;
        self.writer.write_all(message).await?;
        self.writer.write_all(b"\0").await
    }

    /// Receives the next message; `None` once the driver has gone. May be dropped and called again.
    pub async fn receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let remaining = (self.max_message_bytes + 1).saturating_sub(self.partial.len()) as u64;
            let count = (&mut self.reader).take(remaining).read_until(0, &mut self.partial).await?;
            if self.partial.last() == Some(&0) {
                self.partial.pop();
                self.unanswered = self.unanswered.saturating_sub(1);
                return Ok(Some(std::mem::take(&mut self.partial)));
            }
            if self.partial.len() > self.max_message_bytes {
                return Err(io::Error::other("a message is too long"));
            }
            if count == 0 {
                return Ok(None);
            }
        }
    }
}
