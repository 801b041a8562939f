//! Serves HTTP from inside the sandbox: CONNECT, and plain requests for a single `http://` address
//! each.

pub mod body;
pub mod head;
pub mod response;

use std::io;

use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::client::Client;
use super::decision::{Reason, Refusal};
use super::host::Target;
use super::http::body::copy_body;
use super::http::head::{Fault, Framing, Head, LONGEST, framing_field, is_token, write_head};
use super::http::response::copy_response;
use super::reach::Reach;

/// Serves one request. A second one on the same connection is never read: it could be for another
/// host.
pub async fn serve(client: &mut Client, reach: &Reach, deadline: Instant) -> io::Result<()> {
    let read = match timeout_at(deadline, Head::read(&mut client.read, LONGEST)).await {
        Ok(Ok(head)) => Ok(head),
        Ok(Err(Fault::Gone)) => return Ok(()),
        Ok(Err(Fault::Malformed)) => Err(Reason::BadRequest),
        Ok(Err(Fault::TooLarge)) => Err(Reason::HeadTooLarge),
        Err(_) => Err(Reason::HeadTooSlow),
    };
    let served = match read {
        Ok(head) if head.start.starts_with(b"CONNECT ") => connect(client, reach, &head).await,
        Ok(head) => forward(client, reach, &head).await,
        Err(reason) => client.refuse(reach, "http", &Refusal::unread(reason)).await,
    };
    client.finish().await;
    served
}

async fn connect(client: &mut Client, reach: &Reach, head: &Head) -> io::Result<()> {
    let reached = match tunnel_target(head) {
        Ok(target) => open(client, reach, &target, "connect").await,
        Err(refusal) => Err(refusal),
    };
    match reached {
        Ok(upstream) => {
            client.write.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
            client.tunnel(upstream).await
        }
        Err(refusal) => client.refuse(reach, "connect", &refusal).await,
    }
}

async fn forward(client: &mut Client, reach: &Reach, head: &Head) -> io::Result<()> {
    let reached = match Request::parse(head) {
        Ok(request) => {
            open(client, reach, &request.target, "http").await.map(|upstream| (request, upstream))
        }
        Err(refusal) => Err(refusal),
    };
    match reached {
        Ok((request, upstream)) => exchange(client, &request, upstream).await,
        Err(refusal) => client.refuse(reach, "http", &refusal).await,
    }
}

async fn open(
    client: &Client,
    reach: &Reach,
    target: &Target,
    via: &'static str,
) -> Result<TcpStream, Refusal> {
    if client.surplus {
        return Err(Refusal::new(Reason::Limit, &target.host.shown(), target.port));
    }
    reach.connect(target, via).await
}

async fn exchange(
    client: &mut Client,
    request: &Request<'_>,
    upstream: TcpStream,
) -> io::Result<()> {
    let mut started = false;
    match relay(client, request, upstream, &mut started).await {
        Err(_) if !started => {
            let Target { host, port } = &request.target;
            let refusal = Refusal::new(Reason::Unreachable, &host.shown(), *port);
            client.answer(&refusal, &format!("{} sent a malformed response.", refusal.host)).await
        }
        done => done,
    }
}

/// Sends the request and receives the response at the same time: a server may answer before it has
/// received everything.
async fn relay(
    client: &mut Client,
    request: &Request<'_>,
    upstream: TcpStream,
    started: &mut bool,
) -> io::Result<()> {
    let (from, mut to) = upstream.into_split();
    let mut from = BufReader::new(from);
    let Client { read, write, .. } = client;
    let send = async {
        to.write_all(&request.head()).await?;
        copy_body(read, &mut to, request.framing).await
    };
    let receive = copy_response(&mut from, write, request.method, started);
    tokio::pin!(receive);
    tokio::select! {
        done = &mut receive => done,
        sent = send => match sent {
            Ok(()) => receive.await,
            // The server closed the connection, perhaps with a response that explains why.
            Err(error) if hung_up(&error) => {
                let _ = to.shutdown().await;
                receive.await
            }
            // The client aborted its own body, so no one waits for a response.
            Err(_) => Ok(()),
        },
    }
}

fn hung_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Parses `CONNECT host:port HTTP/1.1`. Everything after the head belongs to the tunnel, so there
/// can be no body.
fn tunnel_target(head: &Head) -> Result<Target, Refusal> {
    let (_, target, _) = split_start(&head.start).ok_or_else(bad_request)?;
    let target = Target::parse(target, None)?;
    match head.framing() {
        Ok(None | Some(Framing::Length(0))) => Ok(target),
        _ => Err(Refusal::new(Reason::BadRequest, &target.host.shown(), target.port)),
    }
}

/// Plain request, reduced to what is forwarded.
struct Request<'a> {
    method: &'a [u8],
    version: &'a [u8],
    target: Target,
    /// Path and query, from the first slash.
    path: &'a [u8],
    framing: Framing,
    fields: &'a Head,
}

impl<'a> Request<'a> {
    fn parse(head: &'a Head) -> Result<Request<'a>, Refusal> {
        let (method, uri, version) = split_start(&head.start).ok_or_else(bad_request)?;
        let scheme = uri.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case(b"http://"));
        let rest = scheme.map(|scheme| &uri[scheme.len()..]).ok_or_else(bad_request)?;
        let (authority, path) =
            rest.split_at(rest.iter().position(|byte| b"/?#".contains(byte)).unwrap_or(rest.len()));
        let target = Target::parse(authority, Some(80))?;
        let refuse = || Refusal::new(Reason::BadRequest, &target.host.shown(), target.port);
        let host = head.single("host").map_err(|_| refuse())?;
        let same = host.map(|host| Target::parse(host, Some(80)).as_ref() == Ok(&target));
        // Only HTTP/1.0 may omit the host.
        if !same.unwrap_or(version == b"HTTP/1.0") || path.contains(&b'#') {
            return Err(refuse());
        }
        let framing = match head.framing() {
            Ok(Some(Framing::Chunked)) if version == b"HTTP/1.0" => return Err(refuse()),
            Ok(framing) => framing.unwrap_or(Framing::Empty),
            Err(_) => return Err(refuse()),
        };
        Ok(Request { method, version, target, path, framing, fields: head })
    }

    fn head(&self) -> Vec<u8> {
        let slash: &[u8] = if self.path.starts_with(b"/") { b"" } else { b"/" };
        let start = [self.method, b" ", slash, self.path, b" ", self.version].concat();
        let host = self.target.host_header();
        let length = framing_field(self.framing);
        let own = [(&b"Host"[..], host.as_bytes()), (b"Connection", b"close")];
        let own = own.into_iter().chain(length.iter().map(|(name, value)| (*name, &**value)));
        let theirs = self.fields.end_to_end().filter(|field| !field.is("host"));
        write_head(&start, own.chain(theirs.map(|field| (&*field.name, &*field.value))))
    }
}

/// Splits a request line into method, target and version, which must be separated by exactly one
/// space.
fn split_start(line: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let known = version == b"HTTP/1.1" || version == b"HTTP/1.0";
    (words.next().is_none() && is_token(method) && !target.is_empty() && known)
        .then_some((method, target, version))
}

fn bad_request() -> Refusal {
    Refusal::unread(Reason::BadRequest)
}
