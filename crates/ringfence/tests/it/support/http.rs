//! HTTP/1.1 by hand: what a test sends is exactly what it says, and an answer can be left unread.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use super::DEADLINE;

#[derive(Clone)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn new(method: &str, path: &str) -> Self {
        Request { method: method.into(), path: path.into(), headers: Vec::new(), body: Vec::new() }
    }

    /// A message as MCP clients post it.
    pub fn post(path: &str, body: impl Into<Vec<u8>>) -> Self {
        let mut request = Request::new("POST", path)
            .header("Content-Type", "application/json")
            .header("Accept", "application/json, text/event-stream");
        request.body = body.into();
        request
    }

    /// Sets a header, in place of one of the same name. An empty value leaves it out.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn send(&self, address: SocketAddr) -> std::io::Result<Exchange> {
        Exchange::read(self.begin(address)?)
    }

    /// Sends the request and leaves the answer where it is.
    pub fn begin(&self, address: SocketAddr) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&address, DEADLINE)?;
        stream.set_nodelay(true)?;
        let mut text = format!("{} {} HTTP/1.1\r\nConnection: close\r\n", self.method, self.path);
        if !self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            text.push_str(&format!("Host: {address}\r\n"));
        }
        for (name, value) in self.headers.iter().filter(|(_, value)| !value.is_empty()) {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if self.method != "GET" {
            text.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        text.push_str("\r\n");
        (&stream).write_all(text.as_bytes())?;
        // A server may refuse a body before it has read it; its answer is there all the same.
        let _ = (&stream).write_all(&self.body);
        Ok(stream)
    }

    /// Sends and reads the whole answer, which must come in time.
    pub fn fetch(&self, address: SocketAddr) -> Answer {
        let exchange = self
            .send(address)
            .unwrap_or_else(|error| panic!("{} {}: {error}", self.method, self.path));
        exchange.stream.set_read_timeout(Some(DEADLINE)).unwrap();
        exchange.whole()
    }
}

/// An answer whose body has not been read.
pub struct Exchange {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub stream: TcpStream,
    pub body: Body,
}

pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// The one JSON-RPC message of the answer, be it JSON or an event stream.
    pub fn message(&self) -> Value {
        if self.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
            let mut events = Events(BufReader::new(&self.body[..]));
            return std::iter::from_fn(|| events.next())
                .find_map(|event| serde_json::from_str(&event.data).ok())
                .expect("a message in the stream");
        }
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            panic!("{error} in {} {:?}", self.status, String::from_utf8_lossy(&self.body))
        })
    }
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers
        .iter()
        .find(|(other, _)| other.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_str())
}

impl Exchange {
    pub fn read(stream: TcpStream) -> std::io::Result<Exchange> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status =
            status.ok_or_else(|| std::io::Error::other(format!("no status in {line:?}")))?;
        let mut headers = Vec::new();
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            match line.trim_end().split_once(':') {
                Some((name, value)) => headers.push((name.to_owned(), value.trim().to_owned())),
                None => break,
            }
        }
        let kind = if find(&headers, "transfer-encoding").is_some_and(|value| value == "chunked") {
            Framing::Chunked
        } else {
            let length = find(&headers, "content-length").and_then(|length| length.parse().ok());
            Framing::Length(length.unwrap_or(u64::MAX))
        };
        Ok(Exchange { status, headers, stream, body: Body { reader, kind, left: 0, over: false } })
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    pub fn is_stream(&self) -> bool {
        self.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"))
    }

    pub fn whole(mut self) -> Answer {
        let mut body = Vec::new();
        self.body
            .read_to_end(&mut body)
            .unwrap_or_else(|error| panic!("the body of a {}: {error}", self.status));
        Answer { status: self.status, headers: self.headers, body }
    }
}

enum Framing {
    Chunked,
    Length(u64),
}

pub struct Body {
    reader: BufReader<TcpStream>,
    kind: Framing,
    left: u64,
    over: bool,
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.over {
            return Ok(0);
        }
        let limit = match &mut self.kind {
            Framing::Length(length) => *length,
            Framing::Chunked => {
                if self.left == 0 {
                    let mut line = String::new();
                    self.reader.read_line(&mut line)?;
                    self.left = u64::from_str_radix(line.trim(), 16).unwrap_or(0);
                }
                self.left
            }
        };
        let most = buffer.len().min(usize::try_from(limit).unwrap_or(usize::MAX));
        let count = self.reader.read(&mut buffer[..most])?;
        match &mut self.kind {
            Framing::Length(length) => *length -= count as u64,
            Framing::Chunked => {
                self.left -= count as u64;
                if self.left == 0 && count > 0 {
                    let mut end = [0; 2];
                    self.reader.read_exact(&mut end)?;
                }
            }
        }
        self.over = count == 0;
        Ok(count)
    }
}

/// Server-sent events.
pub struct Events<R>(pub R);

#[derive(Debug, Default)]
pub struct Event {
    pub name: String,
    pub data: String,
}

impl<R: BufRead> Events<R> {
    pub fn next(&mut self) -> Option<Event> {
        let mut event = Event::default();
        let mut begun = false;
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim_end_matches(['\r', '\n']);
            if line.is_empty() && begun {
                return Some(event);
            }
            if let Some(data) = line.strip_prefix("data:") {
                begun = true;
                event.data.push_str(data.strip_prefix(' ').unwrap_or(data));
            } else if let Some(name) = line.strip_prefix("event:") {
                begun = true;
                event.name = name.trim().to_owned();
            }
        }
    }
}
