//! Receives the browser's answer on loopback.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::secret::SecretText;
use crate::error::{ClientError, ErrorKind, Result};

const REDIRECT_PATH: &str = "/callback";
/// Longest head of a request.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Connections at a time. Browsers open some in advance and say nothing on them.
const MAX_CONNECTIONS: usize = 16;
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the redirect address for a port.
pub(super) fn redirect_uri(port: u16) -> String {
    format!("http://127.0.0.1:{port}{REDIRECT_PATH}")
}

/// Listener for one answer.
pub(super) struct RedirectListener {
    listener: TcpListener,
    pub(super) port: u16,
}

impl RedirectListener {
    /// Listens on a port, or on any.
    pub(super) async fn bind(port: Option<u16>) -> Result<RedirectListener> {
        let port = port.unwrap_or(0);
        let bind = async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
            let port = listener.local_addr()?.port();
            Ok(RedirectListener { listener, port })
        };
        bind.await.map_err(|error| listen_error(port, &error))
    }

    /// Waits for the one request to the redirect address that `read_query` knows, and returns what
    /// it makes of that. Other requests, such as those for an icon, are answered and forgotten.
    pub(super) async fn receive(
        &self,
        read_query: impl Fn(&str) -> Option<Result<SecretText>>,
    ) -> Result<SecretText> {
        let mut connections = FuturesUnordered::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if connections.len() < MAX_CONNECTIONS => {
                    let (socket, _) = match accepted {
                        Ok(accepted) => accepted,
                        Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                        Err(error) => return Err(listen_error(self.port, &error)),
                    };
                    let handling = handle_connection(socket, &read_query);
                    connections.push(tokio::time::timeout(CONNECTION_TIMEOUT, handling));
                }
                Some(handled) = connections.next(), if !connections.is_empty() => {
                    if let Ok(Some(answer)) = handled {
                        return answer;
                    }
                }
            }
        }
    }
}

fn listen_error(port: u16, error: &io::Error) -> ClientError {
    let message = format!("cannot listen on port {port} of 127.0.0.1: {error}");
    ClientError::new(ErrorKind::Unavailable, message)
}

/// Answers one request. Returns the answer that it brought, if it is for the redirect address and
/// belongs to this login.
async fn handle_connection(
    mut socket: TcpStream,
    read_query: impl Fn(&str) -> Option<Result<SecretText>>,
) -> Option<Result<SecretText>> {
    let head = read_head(&mut socket).await?;
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let target = words.next().filter(|method| *method == "GET").and_then(|_| words.next());
    let (path, query) = target.map(|target| target.split_once('?').unwrap_or((target, "")))?;
    if path != REDIRECT_PATH {
        send_page(&mut socket, "404 Not Found", "There is nothing here.").await;
        return None;
    }
    let Some(answer) = read_query(query) else {
        let text = "This answer does not belong to the login that is waiting.";
        send_page(&mut socket, "400 Bad Request", text).await;
        return None;
    };
    let (status, text) = match &answer {
        Ok(_) => (
            "200 OK",
            "The login continues in the program that you started it from. You can close this page.",
        ),
        Err(_) => {
            ("400 Bad Request", "The login failed. The program that you started it from says why.")
        }
    };
    send_page(&mut socket, status, text).await;
    Some(answer)
}

async fn read_head(socket: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() >= MAX_HEAD_BYTES || socket.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    String::from_utf8(head).ok()
}

async fn send_page(socket: &mut TcpStream, status: &str, text: &str) {
    let page = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\n\
         cache-control: no-store\r\nreferrer-policy: no-referrer\r\nconnection: close\r\n\r\n{text}",
        text.len()
    );
    // Without the page the login works as well.
    let _ = socket.write_all(page.as_bytes()).await;
    let _ = socket.shutdown().await;
}
