//! Parses the head of an HTTP/1 message strictly: anything that another parser might read
//! differently is refused, because that is how requests are smuggled past a filter.

use std::fmt;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// Maximum size of a request head in bytes.
pub const MAX_REQUEST_HEAD_BYTES: u64 = 16 * 1024;

/// Reason why a message could not be read.
#[derive(Debug)]
pub enum HeadError {
    /// Not valid HTTP/1.
    Malformed,
    TooLarge,
    /// The other side closed the connection before the head was complete.
    Closed,
}

/// Header field as received; names are compared case-insensitively.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderField {
    pub name: Vec<u8>,
    pub value: Vec<u8>,
}

impl HeaderField {
    /// Returns whether the field has this name.
    pub fn has_name(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name.as_bytes())
    }
}

/// First line and header fields, without line endings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageHead {
    pub start_line: Vec<u8>,
    pub fields: Vec<HeaderField>,
}

/// How the end of a body is determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFraming {
    Empty,
    Length(u64),
    Chunked,
    /// A response that ends when the connection closes.
    UntilClosed,
}

/// Fields that are meant only for the next hop. The fields that carry the body length are written
/// anew.
const HOP_BY_HOP_FIELDS: &[&str] = &[
    "connection",
    "proxy-connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "content-length",
    "upgrade",
    "http2-settings",
];

/// Reads one line including its line ending, and subtracts it from the bytes left.
pub async fn read_line(
    reader: &mut (impl AsyncBufRead + Unpin),
    remaining: &mut u64,
) -> Result<Vec<u8>, HeadError> {
    let mut line = Vec::new();
    let byte_count = reader
        .take(*remaining)
        .read_until(b'\n', &mut line)
        .await
        .map_err(|_| HeadError::Closed)?;
    *remaining -= byte_count as u64;
    match line.as_slice() {
        [text @ .., b'\r', b'\n'] if !text.contains(&b'\r') => Ok(line),
        [.., b'\n'] => Err(HeadError::Malformed),
        _ if *remaining == 0 => Err(HeadError::TooLarge),
        _ => Err(HeadError::Closed),
    }
}

impl MessageHead {
    /// Reads a head of at most `max_bytes` bytes.
    pub async fn read(
        reader: &mut (impl AsyncBufRead + Unpin),
        max_bytes: u64,
    ) -> Result<MessageHead, HeadError> {
        let mut remaining = max_bytes;
        let mut text = Vec::new();
        loop {
            let line = read_line(reader, &mut remaining).await?;
            let is_last = line == b"\r\n";
            text.extend(line);
            if is_last {
                return MessageHead::parse(&text).ok_or(HeadError::Malformed);
            }
        }
    }

    /// Parses the complete text of a head, including the empty line at its end.
    pub fn parse(text: &[u8]) -> Option<MessageHead> {
        let text = text.strip_suffix(b"\r\n")?;
        let mut lines =
            text.split_inclusive(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r\n"));
        let start_line = lines.next()??.to_vec();
        let fields = lines.map(|line| parse_field(line?)).collect::<Option<Vec<HeaderField>>>()?;
        let is_valid = !start_line.is_empty()
            && start_line.iter().all(|byte| is_field_byte(*byte) && *byte != b'\t');
        is_valid.then_some(MessageHead { start_line, fields })
    }

    /// Returns the value of a field that may occur at most once.
    pub fn single_value(&self, name: &str) -> Result<Option<&[u8]>, HeadError> {
        let mut values = self
            .fields
            .iter()
            .filter(|field| field.has_name(name))
            .map(|field| field.value.as_slice());
        match (values.next(), values.next()) {
            (_, Some(_)) => Err(HeadError::Malformed),
            (value, None) => Ok(value),
        }
    }

    /// Returns the body length given by the fields, if any. Conflicting fields are an error: that
    /// is how requests are smuggled.
    pub fn body_framing(&self) -> Result<Option<BodyFraming>, HeadError> {
        match (self.single_value("content-length")?, self.single_value("transfer-encoding")?) {
            (None, None) => Ok(None),
            (Some(length), None) => {
                parse_length(length).map(|length| Some(BodyFraming::Length(length)))
            }
            (None, Some(coding)) if coding.eq_ignore_ascii_case(b"chunked") => {
                Ok(Some(BodyFraming::Chunked))
            }
            _ => Err(HeadError::Malformed),
        }
    }

    /// Returns the fields that are meant for the other end.
    pub fn end_to_end_fields(&self) -> impl Iterator<Item = &HeaderField> {
        let connection_options: Vec<&[u8]> = self
            .fields
            .iter()
            .filter(|field| field.has_name("connection") || field.has_name("proxy-connection"))
            .flat_map(|field| field.value.split(|byte| *byte == b','))
            .map(<[u8]>::trim_ascii)
            .collect();
        self.fields.iter().filter(move |field| {
            !HOP_BY_HOP_FIELDS.iter().any(|name| field.has_name(name))
                && !connection_options.iter().any(|name| field.name.eq_ignore_ascii_case(name))
        })
    }
}

/// Serializes a head to forward. The caller must pass only what [`MessageHead::parse`] accepted.
pub fn write_head<'a>(
    start_line: &[u8],
    fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
) -> Vec<u8> {
    let mut text = [start_line, b"\r\n"].concat();
    for (name, value) in fields {
        text.extend([name, b": ", value, b"\r\n"].concat());
    }
    text.extend(b"\r\n");
    text
}

/// Returns the field that states the length of the body.
pub fn framing_field(framing: BodyFraming) -> Option<(&'static [u8], Vec<u8>)> {
    match framing {
        BodyFraming::Length(length) => Some((b"Content-Length", length.to_string().into_bytes())),
        BodyFraming::Chunked => Some((b"Transfer-Encoding", b"chunked".to_vec())),
        BodyFraming::Empty | BodyFraming::UntilClosed => None,
    }
}

/// Parses `name: value`. Some parsers treat a line that starts with a space as a continuation; here
/// it has no valid name and is refused.
fn parse_field(line: &[u8]) -> Option<HeaderField> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let is_valid = is_token(name) && value.iter().all(|byte| is_field_byte(*byte));
    is_valid.then(|| HeaderField { name: name.to_vec(), value: value.trim_ascii().to_vec() })
}

/// Parses digits only: no sign, no list, and not too many digits for a `u64`.
fn parse_length(text: &[u8]) -> Result<u64, HeadError> {
    let is_numeric = (1..=18).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    let length =
        std::str::from_utf8(text).ok().filter(|_| is_numeric).and_then(|text| text.parse().ok());
    length.ok_or(HeadError::Malformed)
}

/// Returns whether the text is an HTTP token.
pub fn is_token(text: &[u8]) -> bool {
    let is_token_byte =
        |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_token_byte)
}

fn is_field_byte(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

impl fmt::Display for HeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HeadError::Malformed => "not well-formed HTTP/1",
            HeadError::TooLarge => "too large",
            HeadError::Closed => "ended too soon",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(lines: &str) -> Option<MessageHead> {
        MessageHead::parse(format!("GET http://a.com/ HTTP/1.1\r\n{lines}\r\n").as_bytes())
    }

    #[test]
    fn a_head_is_a_line_and_its_fields() {
        let head = with("Host: a.com\r\nX-Empty:\r\nX-Padded: \t b c \t\r\n").unwrap();
        assert_eq!(head.start_line, b"GET http://a.com/ HTTP/1.1");
        assert_eq!(head.single_value("host").unwrap(), Some(&b"a.com"[..]));
        assert_eq!(head.single_value("x-empty").unwrap(), Some(&b""[..]));
        assert_eq!(head.single_value("X-PADDED").unwrap(), Some(&b"b c"[..]));
        assert_eq!(head.single_value("absent").unwrap(), None);
        assert!(with("").is_some());
    }

    #[test]
    fn what_is_not_strictly_http_is_no_head() {
        for lines in [
            " folded: x\r\n",
            "A: b\r\n folded\r\n",
            "A: b\r\n\tfolded\r\n",
            "A : b\r\n",
            "A\r\n",
            ": b\r\n",
            "A(: b\r\n",
            "A\0: b\r\n",
            "A: b\0\r\n",
            "A: b\x07\r\n",
            "A: b\x0c\r\n",
            "A: b\x7f\r\n",
            "A: b\rC: d\r\n",
            "A: b\nC: d\r\n",
            "A: b\r\r\n",
            "\r\nA: b\r\n",
            "Ä: b\r\n",
        ] {
            assert!(with(lines).is_none(), "{lines:?}");
        }
        for text in [
            "",
            "\r\n",
            "\r\n\r\n",
            "GET\tx HTTP/1.1\r\n\r\n",
            "GET x HTTP/1.1\n\n",
            "GET x HTTP/1.1\r\n",
        ] {
            assert!(MessageHead::parse(text.as_bytes()).is_none(), "{text:?}");
        }
    }

    #[test]
    fn a_body_has_one_length_or_none() {
        let framing = |lines: &str| with(lines).unwrap().body_framing();
        assert_eq!(framing("").unwrap(), None);
        assert_eq!(framing("Content-Length: 12\r\n").unwrap(), Some(BodyFraming::Length(12)));
        assert_eq!(framing("transfer-encoding: Chunked\r\n").unwrap(), Some(BodyFraming::Chunked));
        for lines in [
            "Content-Length: 1\r\nContent-Length: 1\r\n",
            "Content-Length: 1\r\ncontent-length: 2\r\n",
            "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: identity\r\n",
            "Transfer-Encoding: xchunked\r\n",
            "Transfer-Encoding:\r\n",
            "Content-Length:\r\n",
            "Content-Length: +1\r\n",
            "Content-Length: -1\r\n",
            "Content-Length: 1, 1\r\n",
            "Content-Length: 0x1\r\n",
            "Content-Length: 1 1\r\n",
            "Content-Length: 99999999999999999999\r\n",
        ] {
            assert!(framing(lines).is_err(), "{lines:?}");
        }
    }

    #[test]
    fn only_what_is_meant_for_the_other_end_is_sent_on() {
        let head = with(
            "Host: a.com\r\nConnection: close, X-Private\r\nX-Private: 1\r\nProxy-Authorization: Basic c2VjcmV0\r\n\
             Proxy-Connection: X-More\r\nX-More: 1\r\nTE: trailers\r\nUpgrade: h2c\r\nKeep-Alive: 5\r\nTrailer: X\r\nX-Public: 1\r\n",
        );
        let head = head.unwrap();
        let names: Vec<_> =
            head.end_to_end_fields().map(|field| String::from_utf8_lossy(&field.name)).collect();
        assert_eq!(names, ["Host", "X-Public"]);
    }

    /// Every accepted head can be written and parsed again, and nothing in it can end a line.
    #[test]
    fn random_heads_are_refused_or_come_back_the_same() {
        const PIECES: &[&[u8]] = &[
            b"GET ",
            b"http://a.com/",
            b" HTTP/1.1",
            b"\r\n",
            b"\n",
            b"\r",
            b"\r\n\r\n",
            b"Host: a.com",
            b":",
            b" ",
            b"\t",
            b"\0",
            b"Content-Length: 1",
            b"Transfer-Encoding: chunked",
            b"\xff",
            b"a",
            b"Connection: x,,y",
            b"\x7f",
        ];
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let mut accepted = 0;
        for _ in 0..50_000 {
            let mut text: Vec<u8> = Vec::new();
            for _ in 0..next(12) {
                text.extend(PIECES[next(PIECES.len())]);
                if next(3) == 0 {
                    text.extend(b"\r\nA: b");
                }
            }
            text.extend(b"\r\n\r\n");
            if next(4) == 0 {
                let at = next(text.len());
                text[at] = next(256) as u8;
            }
            let Some(head) = MessageHead::parse(&text) else { continue };
            accepted += 1;
            let parts = head
                .fields
                .iter()
                .flat_map(|field| [&field.name, &field.value])
                .chain([&head.start_line]);
            assert!(parts.flatten().all(|byte| !b"\r\n\0".contains(byte)), "{text:?}");
            let _ = head.body_framing();
            let written = write_head(
                &head.start_line,
                head.fields.iter().map(|field| (&*field.name, &*field.value)),
            );
            assert_eq!(MessageHead::parse(&written).as_ref(), Some(&head), "{text:?}");
        }
        assert!(accepted > 1000, "only {accepted} heads were read at all");
    }
}
