//! The side of a connection that is inside the fence.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::decision::Refusal;
use super::reach::Reach;

/// How long, and how much, a client may go on sending after it has its answer.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: u64 = 1024 * 1024;

pub struct Client {
    pub read: BufReader<OwnedReadHalf>,
    pub write: OwnedWriteHalf,
    /// There is no place for it: it is told so, and goes nowhere.
    pub surplus: bool,
}

impl Client {
    pub fn new(stream: TcpStream, surplus: bool) -> Client {
        let (read, write) = stream.into_split();
        Client { read: BufReader::new(read), write, surplus }
    }

    /// Bytes both ways until both sides have ended. Where one has, the other is told and may go on.
    pub async fn tunnel(&mut self, mut upstream: TcpStream) -> io::Result<()> {
        let mut inside = tokio::io::join(&mut self.read, &mut self.write);
        tokio::io::copy_bidirectional(&mut inside, &mut upstream).await.map(|_| ())
    }

    /// Tells the run's owner and the client why the request ends here.
    pub async fn refuse(
        &mut self,
        reach: &Reach,
        via: &'static str,
        refusal: &Refusal,
    ) -> io::Result<()> {
        (reach.decided)(&refusal.decision(via));
        let message = refusal.message();
        self.answer(refusal, &message).await
    }

    /// One line of text as the whole answer to an HTTP request.
    pub async fn answer(&mut self, refusal: &Refusal, message: &str) -> io::Result<()> {
        let reason = refusal.reason;
        let body = format!("ringfence: {message}\n");
        // Only what the fence refused is marked; what failed beyond it looks like any gateway's failure.
        let mark = if reason.is_upstream() {
            String::new()
        } else {
            format!("X-Ringfence-Denied: {}\r\n", reason.name())
        };
        let head = format!(
            "HTTP/1.1 {}\r\n{mark}Content-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            reason.status(),
            body.len()
        );
        self.write.write_all((head + &body).as_bytes()).await
    }

    /// Ends the connection so that the answer arrives: to close over bytes that nobody read would reset it.
    pub async fn finish(&mut self) {
        if self.write.shutdown().await.is_ok() {
            let mut rest = (&mut self.read).take(LINGER_BYTES);
            let _ = timeout(LINGER, tokio::io::copy_buf(&mut rest, &mut tokio::io::sink())).await;
        }
    }
}
