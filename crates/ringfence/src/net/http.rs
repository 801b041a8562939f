//! Serves HTTP from inside the sandbox: CONNECT, and plain requests for a single `http://` address
//! each.

pub mod body;
pub mod head;
pub mod response;

use std::io;

use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::client::ProxyClient;
use super::connector::Connector;
use super::decision::{ProxyRefusal, RefusalReason};
use super::host::ConnectTarget;
use super::http::body::copy_body;
use super::http::head::{
    BodyFraming, HeadError, MAX_REQUEST_HEAD_BYTES, MessageHead, framing_field, is_token,
    write_head,
};
use super::http::response::copy_response;

/// Serves one request. A second one on the same connection is never read: it could be for another
/// host.
pub async fn serve_http(
    client: &mut ProxyClient,
    connector: &Connector,
    deadline: Instant,
) -> io::Result<()> {
    let request_head =
        match timeout_at(deadline, MessageHead::read(&mut client.read, MAX_REQUEST_HEAD_BYTES))
            .await
        {
            Ok(Ok(head)) => Ok(head),
            Ok(Err(HeadError::Closed)) => return Ok(()),
            Ok(Err(HeadError::Malformed)) => Err(RefusalReason::BadRequest),
            Ok(Err(HeadError::TooLarge)) => Err(RefusalReason::HeadTooLarge),
            Err(_) => Err(RefusalReason::HeadTooSlow),
        };
    let outcome = match request_head {
        Ok(head) if head.start_line.starts_with(b"CONNECT ") => {
            serve_connect(client, connector, &head).await
        }
        Ok(head) => serve_forward(client, connector, &head).await,
        Err(reason) => {
            client.send_refusal(connector, "http", &ProxyRefusal::from_unreadable(reason)).await
        }
    };
    client.finish_connection().await;
    outcome
}

async fn serve_connect(
    client: &mut ProxyClient,
    connector: &Connector,
    head: &MessageHead,
) -> io::Result<()> {
    let connection = match tunnel_target(head) {
        Ok(target) => open_upstream(client, connector, &target, "connect").await,
        Err(refusal) => Err(refusal),
    };
    match connection {
        Ok(upstream) => {
            client.write.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
            client.tunnel_to(upstream).await
        }
        Err(refusal) => client.send_refusal(connector, "connect", &refusal).await,
    }
}

async fn serve_forward(
    client: &mut ProxyClient,
    connector: &Connector,
    head: &MessageHead,
) -> io::Result<()> {
    let connection = match ForwardRequest::parse(head) {
        Ok(request) => open_upstream(client, connector, &request.target, "http")
            .await
            .map(|upstream| (request, upstream)),
        Err(refusal) => Err(refusal),
    };
    match connection {
        Ok((request, upstream)) => exchange_messages(client, &request, upstream).await,
        Err(refusal) => client.send_refusal(connector, "http", &refusal).await,
    }
}

async fn open_upstream(
    client: &ProxyClient,
    connector: &Connector,
    target: &ConnectTarget,
    via: &'static str,
) -> Result<TcpStream, ProxyRefusal> {
    if client.is_over_limit {
        return Err(ProxyRefusal::new(
            RefusalReason::Limit,
            &target.host.display_text(),
            target.port,
        ));
    }
    connector.connect(target, via).await
}

async fn exchange_messages(
    client: &mut ProxyClient,
    request: &ForwardRequest<'_>,
    upstream: TcpStream,
) -> io::Result<()> {
    let mut response_started = false;
    match relay_messages(client, request, upstream, &mut response_started).await {
        Err(_) if !response_started => {
            let ConnectTarget { host, port } = &request.target;
            let refusal =
                ProxyRefusal::new(RefusalReason::Unreachable, &host.display_text(), *port);
            client
                .send_text(&refusal, &format!("{} sent a malformed response.", refusal.host))
                .await
        }
        outcome => outcome,
    }
}

/// Sends the request and receives the response at the same time: a server may answer before it has
/// received everything.
async fn relay_messages(
    client: &mut ProxyClient,
    request: &ForwardRequest<'_>,
    upstream: TcpStream,
    response_started: &mut bool,
) -> io::Result<()> {
    let (upstream_reader, mut upstream_writer) = upstream.into_split();
    let mut upstream_reader = BufReader::new(upstream_reader);
    let ProxyClient { read, write, .. } = client;
    let send = async {
        upstream_writer.write_all(&request.build_head()).await?;
        copy_body(read, &mut upstream_writer, request.framing).await
    };
    let receive = copy_response(&mut upstream_reader, write, request.method, response_started);
    tokio::pin!(receive);
    tokio::select! {
        outcome = &mut receive => outcome,
        sent = send => match sent {
            Ok(()) => receive.await,
            // The server closed the connection, perhaps with a response that explains why.
            Err(error) if is_hang_up(&error) => {
                let _ = upstream_writer.shutdown().await;
                receive.await
            }
            // The client aborted its own body, so no one waits for a response.
            Err(_) => Ok(()),
        },
    }
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Parses `CONNECT host:port HTTP/1.1`. Everything after the head belongs to the tunnel, so there
/// can be no body.
fn tunnel_target(head: &MessageHead) -> Result<ConnectTarget, ProxyRefusal> {
    let (_, target, _) = split_request_line(&head.start_line).ok_or_else(bad_request_refusal)?;
    let target = ConnectTarget::parse(target, None)?;
    match head.body_framing() {
        Ok(None | Some(BodyFraming::Length(0))) => Ok(target),
        _ => Err(ProxyRefusal::new(
            RefusalReason::BadRequest,
            &target.host.display_text(),
            target.port,
        )),
    }
}

/// Plain request, reduced to what is forwarded.
struct ForwardRequest<'a> {
    method: &'a [u8],
    version: &'a [u8],
    target: ConnectTarget,
    /// Path and query, from the first slash.
    path: &'a [u8],
    framing: BodyFraming,
    head: &'a MessageHead,
}

impl<'a> ForwardRequest<'a> {
    fn parse(head: &'a MessageHead) -> Result<ForwardRequest<'a>, ProxyRefusal> {
        let (method, uri, version) =
            split_request_line(&head.start_line).ok_or_else(bad_request_refusal)?;
        let scheme = uri.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case(b"http://"));
        let rest = scheme.map(|scheme| &uri[scheme.len()..]).ok_or_else(bad_request_refusal)?;
        let (authority, path) =
            rest.split_at(rest.iter().position(|byte| b"/?#".contains(byte)).unwrap_or(rest.len()));
        let target = ConnectTarget::parse(authority, Some(80))?;
        let refuse = || {
            ProxyRefusal::new(RefusalReason::BadRequest, &target.host.display_text(), target.port)
        };
        let host = head.single_value("host").map_err(|_| refuse())?;
        let is_same_host =
            host.map(|host| ConnectTarget::parse(host, Some(80)).as_ref() == Ok(&target));
        // Only HTTP/1.0 may omit the host.
        if !is_same_host.unwrap_or(version == b"HTTP/1.0") || path.contains(&b'#') {
            return Err(refuse());
        }
        let framing = match head.body_framing() {
            Ok(Some(BodyFraming::Chunked)) if version == b"HTTP/1.0" => return Err(refuse()),
            Ok(framing) => framing.unwrap_or(BodyFraming::Empty),
            Err(_) => return Err(refuse()),
        };
        Ok(ForwardRequest { method, version, target, path, framing, head })
    }

    fn build_head(&self) -> Vec<u8> {
        let slash: &[u8] = if self.path.starts_with(b"/") { b"" } else { b"/" };
        let start_line = [self.method, b" ", slash, self.path, b" ", self.version].concat();
        let host = self.target.host_header();
        let framing_header = framing_field(self.framing);
        let own_fields = [(&b"Host"[..], host.as_bytes()), (b"Connection", b"close")];
        let own_fields = own_fields
            .into_iter()
            .chain(framing_header.iter().map(|(name, value)| (*name, &**value)));
        let client_fields = self.head.end_to_end_fields().filter(|field| !field.has_name("host"));
        write_head(
            &start_line,
            own_fields.chain(client_fields.map(|field| (&*field.name, &*field.value))),
        )
    }
}

/// Splits a request line into method, target and version, which must be separated by exactly one
/// space.
fn split_request_line(line: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let mut parts = line.split(|byte| *byte == b' ');
    let (method, target, version) = (parts.next()?, parts.next()?, parts.next()?);
    let is_known_version = version == b"HTTP/1.1" || version == b"HTTP/1.0";
    (parts.next().is_none() && is_token(method) && !target.is_empty() && is_known_version)
        .then_some((method, target, version))
}

fn bad_request_refusal() -> ProxyRefusal {
    ProxyRefusal::from_unreadable(RefusalReason::BadRequest)
}
