//! TCP stream with a write timeout: a peer that does not read loses its connection. It also handles
//! a peer that has shut down its sending side while its last request is still being answered.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use super::connection_activity::ConnectionActivity;

/// Connection with a limit on how long a write may wait for the peer.
pub struct TimedStream {
    stream: TcpStream,
    write_timeout: Duration,
    /// Runs while a write waits.
    deadline: Option<Pin<Box<Sleep>>>,
    activity: Arc<ConnectionActivity>,
    half_close: Option<HalfClose>,
}

/// State of a connection whose peer has stopped sending.
struct HalfClose {
    since: Instant,
    next_check: Pin<Box<Sleep>>,
    is_probed: bool,
}

/// Interval between checks of a half-closed connection.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Time for the engine to read the rest of a request after the peer has stopped sending. After
/// that, the request was incomplete.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Carries no information, but shows whether the peer still exists.
const INTERIM_RESPONSE: &[u8] = b"HTTP/1.1 102 Processing\r\n\r\n";

impl TimedStream {
    /// Wraps a stream. The connection fails if nothing can be written for `write_timeout`.
    pub fn new(
        stream: TcpStream,
        write_timeout: Duration,
        activity: Arc<ConnectionActivity>,
    ) -> Self {
        TimedStream { stream, write_timeout, deadline: None, activity, half_close: None }
    }

    /// Hides the peer's end of stream from the HTTP engine while a request waits for its answer,
    /// because the engine would take it for a disconnect. Sending something shows whether the peer
    /// is gone: then the connection is reset, which is an error of the socket.
    fn poll_half_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let half_close = self.half_close.get_or_insert_with(|| HalfClose {
            since: Instant::now(),
            next_check: Box::pin(tokio::time::sleep(CHECK_INTERVAL)),
            is_probed: false,
        });
        loop {
            if let Some(error) = self.stream.take_error()? {
                return Poll::Ready(Err(error));
            }
            if self.activity.is_received() && !half_close.is_probed {
                half_close.is_probed = true;
                if self.activity.may_send_interim() {
                    // If the buffer is full, its content serves the same purpose.
                    let _ = self.stream.try_write(INTERIM_RESPONSE);
                }
                self.activity.note_half_closed();
            }
            if !self.activity.is_received() && half_close.since.elapsed() > RECEIVE_TIMEOUT {
                return Poll::Ready(Ok(()));
            }
            ready!(half_close.next_check.as_mut().poll(cx));
            half_close.next_check.as_mut().reset(Instant::now() + CHECK_INTERVAL);
        }
    }

    fn check_write_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        write_result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if write_result.is_ready() {
            self.activity.note_written();
            self.deadline = None;
            return write_result;
        }
        let deadline =
            self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.write_timeout)));
        deadline
            .as_mut()
            .poll(cx)
            .map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read")))
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled_before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let is_end = buffer.filled().len() == filled_before && buffer.remaining() > 0;
        if is_end && self.activity.is_busy() {
            return self.poll_half_close(cx);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let write_result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.check_write_timeout(cx, write_result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write_result = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.check_write_timeout(cx, write_result)
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
        (TimedStream::new(stream, write_timeout, Arc::default()), client)
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
