//! Client side of a connection, which is inside the sandbox.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::connector::Connector;
use super::decision::ProxyRefusal;

/// How long, and how many bytes, a client may keep sending after it has its answer.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: u64 = 1024 * 1024;

/// Connection from a program inside the sandbox.
pub struct ProxyClient {
    pub read: BufReader<OwnedReadHalf>,
    pub write: OwnedWriteHalf,
    /// The connection is over the limit: it is refused and reaches nothing.
    pub is_over_limit: bool,
}

impl ProxyClient {
    /// Wraps an accepted connection.
    pub fn new(stream: TcpStream, is_over_limit: bool) -> ProxyClient {
        let (read, write) = stream.into_split();
        ProxyClient { read: BufReader::new(read), write, is_over_limit }
    }

    /// Copies bytes in both directions until both sides have closed. When one side closes, the
    /// other is notified and may continue.
    pub async fn tunnel_to(&mut self, mut upstream: TcpStream) -> io::Result<()> {
        let mut client_stream = tokio::io::join(&mut self.read, &mut self.write);
        tokio::io::copy_bidirectional(&mut client_stream, &mut upstream).await.map(|_| ())
    }

    /// Reports a refusal to the run's owner and to the client.
    pub async fn send_refusal(
        &mut self,
        connector: &Connector,
        via: &'static str,
        refusal: &ProxyRefusal,
    ) -> io::Result<()> {
        (connector.on_decision)(&refusal.to_decision(via));
        let message = refusal.message();
        self.send_text(refusal, &message).await
    }

    /// Answers an HTTP request with one line of text.
    pub async fn send_text(&mut self, refusal: &ProxyRefusal, message: &str) -> io::Result<()> {
        let reason = refusal.reason;
        let body = format!("ringfence: {message}\n");
        // Mark only what the proxy itself refused; a failure beyond it looks like any gateway's
        // failure.
        let denied_header = if reason.is_upstream_failure() {
            String::new()
        } else {
            format!("X-Ringfence-Denied: {}\r\n", reason.name())
        };
        let head = format!(
            "HTTP/1.1 {}\r\n{denied_header}Content-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            reason.http_status(),
            body.len()
        );
        self.write.write_all((head + &body).as_bytes()).await
    }

    /// Closes the connection so that the answer arrives: closing with unread input would reset it.
    pub async fn finish_connection(&mut self) {
        if self.write.shutdown().await.is_ok() {
            let mut rest = (&mut self.read).take(LINGER_BYTES);
            let _ = timeout(LINGER, tokio::io::copy_buf(&mut rest, &mut tokio::io::sink())).await;
        }
    }
}
