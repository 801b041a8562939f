//! Many at once: nobody keeps the others out, with a token or without.

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::json;

use crate::support::client::with_token;
use crate::support::http::{Events, Exchange, Request};
use crate::support::{DEADLINE, MODERN, Options, SESSIONS, Server, Transport, token};

/// More than the server has places for.
const CROWD: usize = 600;
/// The crowd keeps a small machine busy, so an answer may take a while; but it has to come.
const PATIENCE: Duration = Duration::from_secs(60);
/// Streams of one principal.
const STREAMS: usize = 64;
/// Sessions of one principal.
const SESSIONS_OF_ONE: usize = 256;

fn guarded() -> Server {
    Options::new(Transport::Http)
        .config("shared_workspace = true")
        .env("MCP_AUTH_ENABLED", "true")
        .env("MCP_AUTH_JWT_SECRET", token::SECRET)
        .spawn()
}

fn discover() -> Request {
    let meta = json!({"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}});
    let message =
        json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}});
    Request::post("/mcp", message.to_string())
        .header("MCP-Protocol-Version", MODERN)
        .header("Mcp-Method", "server/discover")
}

fn initialize(bearer: &str) -> Request {
    let params = json!({"protocolVersion": SESSIONS, "capabilities": {}, "clientInfo": {"name": "it", "version": "1"}});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    with_token(Request::post("/mcp", message.to_string()), Some(bearer))
}

/// A request in a session; the status of its answer.
fn list(address: SocketAddr, bearer: &str, session: &str) -> u16 {
    let message = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}).to_string();
    let request =
        with_token(Request::post("/mcp", message), Some(bearer)).header("Mcp-Session-Id", session);
    request.header("MCP-Protocol-Version", SESSIONS).fetch(address).status
}

/// Opens a session; its id.
fn open(address: SocketAddr, bearer: &str) -> String {
    let answer = initialize(bearer).fetch(address);
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    answer.header("mcp-session-id").expect("a session").to_owned()
}

fn listen(address: SocketAddr, bearer: &str, session: &str) -> Exchange {
    let request = with_token(Request::new("GET", "/mcp"), Some(bearer))
        .header("Accept", "text/event-stream")
        .header("Mcp-Session-Id", session)
        .header("MCP-Protocol-Version", SESSIONS);
    request.send(address).expect("an answer")
}

/// An event stream that was there before the crowd still carries answers, and newcomers with a token are served.
#[track_caller]
fn assert_open_to_others(crowd: impl FnOnce(SocketAddr) -> Vec<TcpStream>) {
    let server = guarded();
    let (address, bearer) = (server.address(), token::of("anna"));
    let request = with_token(Request::new("GET", "/mcp/sse"), Some(&bearer))
        .header("Accept", "text/event-stream");
    let stream = request.send(address).expect("an answer");
    assert_eq!(stream.status, 200);
    let mut events = Events(BufReader::new(stream.body));
    let endpoint = events.next().expect("the address to post to").data;
    let crowd = crowd(address);
    for name in ["anna", "bert"] {
        let stream =
            with_token(discover(), Some(&token::of(name))).begin(address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let answer =
            Exchange::read(stream).unwrap_or_else(|error| panic!("{name} is kept out: {error}"));
        assert_eq!(answer.status, 200, "{name}");
    }
    let ping = json!({"jsonrpc": "2.0", "id": "p", "method": "mcp.capabilities"}).to_string();
    assert_eq!(
        with_token(Request::post(&endpoint, ping), Some(&bearer)).fetch(address).status,
        202
    );
    assert!(events.next().expect("an answer on the stream").data.contains("\"p\""));
    drop(crowd);
}

#[test]
fn connections_that_never_send_keep_nobody_out() {
    assert_open_to_others(|address| {
        (0..CROWD).map(|_| TcpStream::connect(address).unwrap()).collect()
    });
}

/// A connection with next to no room for answers.
fn connect_narrow(address: SocketAddr) -> TcpStream {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4096).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    socket.into()
}

/// Each has sent so many requests that the refusals fill all buffers on their way.
#[test]
fn connections_that_never_read_keep_nobody_out() {
    assert_open_to_others(|address| {
        let requests = format!("GET /mcp HTTP/1.1\r\nHost: {address}\r\n\r\n").repeat(2000);
        let crowd: Vec<TcpStream> = (0..CROWD).map(|_| connect_narrow(address)).collect();
        for mut stream in &crowd {
            // It is an error once the server has ended the connection.
            let _ = stream.write_all(requests.as_bytes());
        }
        crowd
    });
}

#[test]
fn streams_of_one_principal_stop_at_their_share() {
    let server = guarded();
    let (address, anna, bert) = (server.address(), token::of("anna"), token::of("bert"));
    let mut streams = Vec::new();
    for at in 0..STREAMS + 8 {
        let exchange = listen(address, &anna, &open(address, &anna));
        let wanted = if at < STREAMS { 200 } else { 429 };
        assert_eq!(exchange.status, wanted, "stream {at}");
        streams.push(exchange);
    }
    assert_eq!(streams.pop().unwrap().whole().message()["error"]["data"]["reason"], "streams");
    let sse = with_token(Request::new("GET", "/mcp/sse"), Some(&anna))
        .header("Accept", "text/event-stream");
    assert_eq!(sse.fetch(address).status, 429, "both kinds of streams count together");
    // Calls go on, and so do the streams of others.
    let session = open(address, &anna);
    assert_eq!(list(address, &anna, &session), 200);
    assert_eq!(listen(address, &bert, &open(address, &bert)).status, 200);
    // A stream that ends makes room.
    drop(streams.drain(..8));
    crate::support::eventually(DEADLINE, "there is room again", || {
        listen(address, &anna, &session).status == 200
    });
}

#[test]
fn the_longest_idle_session_makes_room_for_a_new_one() {
    let server = guarded();
    let (address, anna, bert) = (server.address(), token::of("anna"), token::of("bert"));
    let others = open(address, &bert);
    let first = open(address, &anna);
    let second = open(address, &anna);
    let _stream = listen(address, &anna, &first);
    for _ in 2..SESSIONS_OF_ONE {
        open(address, &anna);
    }
    let newest = open(address, &anna);
    assert_eq!(list(address, &anna, &second), 404, "it was idle for longest");
    for (name, bearer, session) in
        [("with a stream", &anna, &first), ("new", &anna, &newest), ("bert's", &bert, &others)]
    {
        assert_eq!(list(address, bearer, session), 200, "{name}");
    }
}

#[test]
fn the_end_of_a_session_is_answered_without_content() {
    let server = guarded();
    let (address, anna) = (server.address(), token::of("anna"));
    let session = open(address, &anna);
    let end = with_token(Request::new("DELETE", "/mcp"), Some(&anna))
        .header("Mcp-Session-Id", &session)
        .header("MCP-Protocol-Version", SESSIONS);
    let answer = end.fetch(address);
    assert_eq!((answer.status, answer.body.len()), (204, 0));
    assert_eq!(end.fetch(address).status, 404);
}
