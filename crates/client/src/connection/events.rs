//! Reads server-sent events from a response body, each of bounded size.

use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::error::{ClientError, ErrorKind, Result};

/// One event.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerEvent {
    /// Type; empty means `message`.
    pub(crate) event: String,
    pub(crate) data: String,
    pub(crate) id: Option<String>,
    /// Time after which to reconnect, in milliseconds.
    pub(crate) retry_ms: Option<u64>,
}

/// Stream of events.
pub(crate) struct EventReader {
    body: Incoming,
    parser: EventParser,
}

impl EventReader {
    pub(crate) fn new(body: Incoming, max_bytes: usize) -> EventReader {
        EventReader { body, parser: EventParser::new(max_bytes) }
    }

    /// Returns the next event; `None` at the end of the stream.
    pub(crate) async fn next_event(&mut self) -> Result<Option<ServerEvent>> {
        loop {
            if let Some(event) = self.parser.take_event()? {
                return Ok(Some(event));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Some(bytes) = frame.data_ref() {
                        self.parser.add_bytes(bytes);
                    }
                }
                Some(Err(error)) => {
                    return Err(ClientError::new(
                        ErrorKind::Unavailable,
                        format!("the event stream broke off: {error}"),
                    ));
                }
            }
        }
    }
}

/// Parser of an event stream.
struct EventParser {
    max_bytes: usize,
    /// Bytes that have not been parsed.
    buffer: Vec<u8>,
    /// Position up to which the buffer holds no line end.
    scanned: usize,
    event: ServerEvent,
    has_data: bool,
    has_started: bool,
}

impl EventParser {
    fn new(max_bytes: usize) -> EventParser {
        EventParser {
            max_bytes,
            buffer: Vec::new(),
            scanned: 0,
            event: ServerEvent::default(),
            has_data: false,
            has_started: false,
        }
    }

    fn add_bytes(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    fn take_event(&mut self) -> Result<Option<ServerEvent>> {
        while let Some(line) = self.take_line()? {
            if !line.is_empty() {
                self.add_line(&line)?;
                continue;
            }
            let event = std::mem::take(&mut self.event);
            // An event without data only sets the id and the time to reconnect.
            if std::mem::take(&mut self.has_data) || event.id.is_some() || event.retry_ms.is_some()
            {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Takes a line that ends with LF, CRLF or CR.
    fn take_line(&mut self) -> Result<Option<String>> {
        let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
        let rest = self.buffer.get(self.scanned..).unwrap_or_default();
        let Some(end) = rest.iter().position(is_end).map(|index| index + self.scanned) else {
            self.scanned = self.buffer.len();
            self.check_size(self.buffer.len())?;
            return Ok(None);
        };
        let length = match self.buffer.get(end..end + 2) {
            Some(b"\r\n") => end + 2,
            // The LF of a CRLF may not have arrived.
            None if self.buffer.get(end) == Some(&b'\r') => {
                self.scanned = end;
                return Ok(None);
            }
            _ => end + 1,
        };
        let line: Vec<u8> = self.buffer.drain(..length).take(end).collect();
        self.scanned = 0;
        let mut line = String::from_utf8(line).map_err(|_| {
            ClientError::new(ErrorKind::BadResponse, "the event stream is not UTF-8")
        })?;
        if !std::mem::replace(&mut self.has_started, true) && line.starts_with('\u{feff}') {
            line.remove(0);
        }
        Ok(Some(line))
    }

    fn add_line(&mut self, line: &str) -> Result<()> {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "data" => {
                self.check_size(self.event.data.len() + value.len())?;
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            "event" => self.event.event = value.to_owned(),
            "id" if !value.contains('\0') => self.event.id = Some(value.to_owned()),
            "retry" => self.event.retry_ms = value.parse().ok(),
            // A comment, or a field that does not exist.
            _ => {}
        }
        Ok(())
    }

    fn check_size(&self, bytes: usize) -> Result<()> {
        match bytes > self.max_bytes {
            false => Ok(()),
            true => Err(ClientError::new(
                ErrorKind::TooLarge,
                format!("the server's answer is longer than {} bytes", self.max_bytes),
            )
            .with_hint("Ask for less: a smaller range, fewer items or a narrower query.")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pieces: &[&str], max_bytes: usize) -> Result<Vec<ServerEvent>> {
        let mut parser = EventParser::new(max_bytes);
        let mut events = Vec::new();
        for piece in pieces {
            parser.add_bytes(piece.as_bytes());
            while let Some(event) = parser.take_event()? {
                events.push(event);
            }
        }
        Ok(events)
    }

    fn message(data: &str) -> ServerEvent {
        ServerEvent { data: data.to_owned(), ..ServerEvent::default() }
    }

    #[test]
    fn events_are_the_same_however_they_are_cut() {
        let text = ": hello\n\nevent: endpoint\r\ndata: /x?y=1\r\n\r\nid: 7\nretry: 20\ndata:one\ndata:  two\n\ndata: end\r\r";
        let whole = parse(&[text], 1000).unwrap();
        assert_eq!(
            whole,
            [
                ServerEvent { event: "endpoint".to_owned(), ..message("/x?y=1") },
                ServerEvent {
                    id: Some("7".to_owned()),
                    retry_ms: Some(20),
                    ..message("one\n two")
                },
            ]
        );
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert_eq!(parse(&letters, 1000).unwrap(), whole);
        assert_eq!(parse(&[text, "\n"], 1000).unwrap().len(), 3);
    }

    #[test]
    fn an_event_that_is_too_long_is_an_error_in_one_line_or_many() {
        assert_eq!(parse(&["data: 12345", "6789"], 10).unwrap_err().kind(), ErrorKind::TooLarge);
        let many = "data: 123\n".repeat(10);
        assert_eq!(parse(&[&many], 20).unwrap_err().kind(), ErrorKind::TooLarge);
    }
}
