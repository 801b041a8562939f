//! Server for tests that gives prepared answers.

use std::collections::BTreeMap;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::config::RemoteTransport;

/// Answer of a [`serve_answers`] server.
#[derive(Clone)]
pub(crate) struct ScriptedAnswer {
    pub(crate) status: u16,
    pub(crate) media_type: &'static str,
    pub(crate) body: String,
}

/// Starts a server that gives one answer for each request and then ends. Its task returns the
/// requests, in lower case.
pub(crate) async fn serve_answers(
    answers: Vec<ScriptedAnswer>,
) -> (RemoteTransport, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let transport = RemoteTransport {
        url: format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap(),
        headers: BTreeMap::new(),
        auth_provider_id: None,
    };
    let server = tokio::spawn(async move {
        let mut requests = Vec::new();
        for ScriptedAnswer { status, media_type, body } in answers {
            let (mut socket, _) = listener.accept().await.unwrap();
            requests.push(read_request(&mut socket).await);
            let head =
                format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-type: {media_type}");
            socket.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
        }
        requests
    });
    (transport, server)
}

async fn read_request(socket: &mut TcpStream) -> String {
    let mut request = String::new();
    let mut buffer = vec![0; 4096];
    loop {
        let length = socket.read(&mut buffer).await.unwrap();
        request.push_str(&String::from_utf8_lossy(&buffer[..length]).to_lowercase());
        if let Some((head, body)) = request.split_once("\r\n\r\n") {
            let wanted = head.split_once("content-length: ").map_or(0, |(_, rest)| {
                rest.lines().next().and_then(|number| number.parse().ok()).unwrap_or(0)
            });
            if length == 0 || body.len() >= wanted {
                return request;
            }
        }
    }
}
