//! Reads server-sent events from a response body, each of bounded size.

use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::lines::Overflow;
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
    /// Set instead of the data if they are too long.
    pub(crate) overlong: Option<OverlongData>,
}

/// Data of an event that was too long and is skipped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OverlongData {
    /// Id of the request that it answers, if it could be found.
    pub(crate) answered_id: Option<u64>,
}

/// Stream of events.
pub(crate) struct EventReader {
    body: Incoming,
    parser: EventParser,
}

impl EventReader {
    /// Reads a stream that answers one request.
    pub(crate) fn new(body: Incoming, max_bytes: usize) -> EventReader {
        EventReader { body, parser: EventParser::new(max_bytes, false) }
    }

    /// Reads a stream that answers many requests.
    pub(crate) fn new_shared(body: Incoming, max_bytes: usize) -> EventReader {
        EventReader { body, parser: EventParser::new(max_bytes, true) }
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
                    )
                    .with_interruption());
                }
            }
        }
    }
}

/// Parser of an event stream.
struct EventParser {
    max_bytes: usize,
    /// Events answer different requests, so that the id of one that is too long is looked for.
    is_shared: bool,
    /// Bytes that have come.
    buffer: Vec<u8>,
    /// Position up to which the buffer has been parsed.
    parsed: usize,
    /// Position up to which the rest of the buffer holds no line end.
    scanned: usize,
    event: ServerEvent,
    has_data: bool,
    has_started: bool,
    overflow: Option<SkippedEvent>,
}

/// Event that is skipped because it is too long.
struct SkippedEvent {
    data: Overflow,
    is_reported: bool,
    is_line_empty: bool,
    is_after_cr: bool,
}

impl SkippedEvent {
    /// Skips bytes. Returns how many belong to the event, if it ends in them.
    fn skip(&mut self, bytes: &[u8]) -> Option<usize> {
        for (index, byte) in bytes.iter().enumerate() {
            let is_after_cr = std::mem::replace(&mut self.is_after_cr, *byte == b'\r');
            match byte {
                b'\n' if is_after_cr => {}
                b'\n' | b'\r' if self.is_line_empty => return Some(index + 1),
                b'\n' | b'\r' => self.is_line_empty = true,
                _ => self.is_line_empty = false,
            }
        }
        None
    }
}

impl EventParser {
    fn new(max_bytes: usize, is_shared: bool) -> EventParser {
        EventParser {
            max_bytes,
            is_shared,
            buffer: Vec::new(),
            parsed: 0,
            scanned: 0,
            event: ServerEvent::default(),
            has_data: false,
            has_started: false,
            overflow: None,
        }
    }

    fn add_bytes(&mut self, bytes: &[u8]) {
        // Once for many lines: moving the rest for each would take quadratic time.
        self.buffer.drain(..self.parsed);
        self.scanned -= self.parsed;
        self.parsed = 0;
        self.buffer.extend_from_slice(bytes);
    }

    fn take_event(&mut self) -> Result<Option<ServerEvent>> {
        loop {
            if self.overflow.is_some() {
                match self.skip_bytes() {
                    Some(event) => return Ok(Some(event)),
                    None if self.overflow.is_some() => return Ok(None),
                    None => {}
                }
            }
            let Some((start, end)) = self.take_line() else {
                if self.buffer.len() - self.parsed > self.max_bytes {
                    self.start_overflow(self.parsed, self.buffer.len());
                    continue;
                }
                return Ok(None);
            };
            if start == end {
                let event = std::mem::take(&mut self.event);
                // An event without data only sets the id and the time to reconnect.
                if std::mem::take(&mut self.has_data)
                    || event.id.is_some()
                    || event.retry_ms.is_some()
                {
                    return Ok(Some(event));
                }
            } else if self.event.data.len() + (end - start) > self.max_bytes {
                self.start_overflow(start, end);
                if let Some(overflow) = &mut self.overflow {
                    overflow.is_line_empty = true;
                }
            } else {
                self.add_line(start, end)?;
            }
        }
    }

    /// Skips the rest of an event. Returns what is known about it, once.
    fn skip_bytes(&mut self) -> Option<ServerEvent> {
        let overflow = self.overflow.as_mut()?;
        let rest = self.buffer.get(self.parsed..).unwrap_or_default();
        let end = overflow.skip(rest);
        let length = end.unwrap_or(rest.len());
        overflow.data.skip(rest.get(..length).unwrap_or_default());
        self.parsed += length;
        self.scanned = self.parsed;
        let was_reported = overflow.is_reported;
        let answered_id = match end {
            Some(_) => overflow.data.find_id(),
            None => overflow.data.first_id(),
        };
        let is_due = end.is_some() || answered_id.is_some() || !self.is_shared;
        overflow.is_reported |= is_due;
        if end.is_some() {
            self.overflow = None;
        }
        (is_due && !was_reported).then(|| ServerEvent {
            overlong: Some(OverlongData { answered_id }),
            ..ServerEvent::default()
        })
    }

    /// Starts to skip the current event, of which this line has been read.
    fn start_overflow(&mut self, start: usize, end: usize) {
        let line = self.buffer.get(start..end).unwrap_or_default();
        let line = line.strip_prefix(b"data:").unwrap_or(line).trim_ascii_start();
        let mut data = Overflow::new(self.event.data.as_bytes());
        data.skip(line);
        self.overflow = Some(SkippedEvent {
            data,
            is_reported: false,
            is_line_empty: false,
            is_after_cr: false,
        });
        (self.event, self.has_data) = (ServerEvent::default(), false);
        self.parsed = self.parsed.max(end);
        self.scanned = self.parsed;
        if self.parsed == self.buffer.len() {
            (self.buffer, self.parsed, self.scanned) = (Vec::new(), 0, 0);
        }
    }

    /// Takes a line that ends with LF, CRLF or CR. Returns its place in the buffer.
    fn take_line(&mut self) -> Option<(usize, usize)> {
        let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
        let rest = self.buffer.get(self.scanned..).unwrap_or_default();
        let Some(end) = rest.iter().position(is_end).map(|index| index + self.scanned) else {
            self.scanned = self.buffer.len();
            return None;
        };
        let next = match self.buffer.get(end..end + 2) {
            Some(b"\r\n") => end + 2,
            // The LF of a CRLF may not have arrived.
            None if self.buffer.get(end) == Some(&b'\r') => {
                self.scanned = end;
                return None;
            }
            _ => end + 1,
        };
        let start = std::mem::replace(&mut self.parsed, next);
        self.scanned = next;
        Some((start, end))
    }

    fn add_line(&mut self, start: usize, end: usize) -> Result<()> {
        let line = self.buffer.get(start..end).unwrap_or_default();
        let line = std::str::from_utf8(line).map_err(|_| {
            ClientError::new(ErrorKind::BadResponse, "the event stream is not UTF-8")
        })?;
        let is_first = !std::mem::replace(&mut self.has_started, true);
        let line = line.strip_prefix('\u{feff}').filter(|_| is_first).unwrap_or(line);
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "data" => {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pieces: &[&str], max_bytes: usize) -> Result<Vec<ServerEvent>> {
        let mut parser = EventParser::new(max_bytes, true);
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

    fn overlong(answered_id: Option<u64>) -> ServerEvent {
        ServerEvent { overlong: Some(OverlongData { answered_id }), ..ServerEvent::default() }
    }

    #[test]
    fn an_event_that_is_too_long_is_skipped_in_one_line_or_many() {
        let one = format!("data: {{\"id\":7,\"result\":\"{}\"}}\r\n\r\n", "x".repeat(1000));
        let last = format!("data: {{\"result\":\"{}\",\"id\":8}}\n\n", "x".repeat(1000));
        let many = format!("{}\n", "data: 123456789\n".repeat(100));
        let text = format!("data: a\n\n{one}data: b\n\n{last}data: c\n\n{many}data: d\n\n");
        let expected = [
            message("a"),
            overlong(Some(7)),
            message("b"),
            overlong(Some(8)),
            message("c"),
            overlong(None),
            message("d"),
        ];
        assert_eq!(parse(&[&text], 200).unwrap(), expected);
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert_eq!(parse(&letters, 200).unwrap(), expected);
    }

    #[test]
    fn an_event_without_end_is_reported_at_once() {
        let start = format!("data: {{\"id\":7,\"result\":\"{}", "x".repeat(1000));
        assert_eq!(parse(&[&start, "xx", "yy"], 200).unwrap(), [overlong(Some(7))]);
    }
}
