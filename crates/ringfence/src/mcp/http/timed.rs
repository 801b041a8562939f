//! A socket whose writes must get somewhere: a peer that does not read ends its connection, not our patience.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// A connection with a limit on how long a write may wait for the peer.
pub struct TimedStream {
    stream: TcpStream,
    write_timeout: Duration,
    /// Runs while a write waits.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl TimedStream {
    /// Ends the connection with an error when nothing can be written for so long.
    pub fn new(stream: TcpStream, write_timeout: Duration) -> Self {
        TimedStream { stream, write_timeout, deadline: None }
    }

    fn check<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.write_timeout)));
        deadline.as_mut().poll(cx).map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read")))
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.check(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.check(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn pair(write_timeout: Duration) -> (TimedStream, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        (TimedStream::new(stream, write_timeout), client)
    }

    /// Far more than the kernel takes in for somebody else.
    const MUCH: usize = 64 << 20;

    #[tokio::test]
    async fn a_peer_that_never_reads_ends_the_connection() {
        let (mut stream, _client) = pair(Duration::from_millis(50)).await;
        let error = stream.write_all(&vec![0; MUCH]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_peer_that_reads_gets_everything() {
        let (mut stream, mut client) = pair(Duration::from_secs(60)).await;
        let reading = tokio::spawn(async move { client.read_to_end(&mut Vec::new()).await });
        stream.write_all(&vec![0; MUCH]).await.unwrap();
        stream.shutdown().await.unwrap();
        assert_eq!(reading.await.unwrap().unwrap(), MUCH);
    }
}
