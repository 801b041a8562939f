//! Reads lines of bounded length. A longer one is skipped in constant memory.

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

/// Bytes of an overlong line that are kept from its beginning and its end, to find its id.
const KEPT_BYTES: usize = 128;
const BUFFER_BYTES: usize = 64 << 10;

/// One line.
pub(crate) enum Line {
    Text(String),
    /// It was too long; the id of the request that it answers, if it could be found.
    TooLong(Option<u64>),
    NotUtf8,
    End,
}

/// Reader of lines.
pub(crate) struct LineReader<R> {
    reader: BufReader<R>,
    max_bytes: usize,
    /// The rest of the current line belongs to one that was reported as too long.
    is_skipping: bool,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    pub(crate) fn new(reader: R, max_bytes: usize) -> LineReader<R> {
        LineReader {
            reader: BufReader::with_capacity(BUFFER_BYTES, reader),
            max_bytes,
            is_skipping: false,
        }
    }

    /// Reads the next line that is not empty. A read error is the end, as for a broken pipe.
    pub(crate) async fn next_line(&mut self) -> Line {
        loop {
            match self.read_line().await {
                Line::Text(text) if text.trim().is_empty() => continue,
                line => return line,
            }
        }
    }

    async fn read_line(&mut self) -> Line {
        let mut line = Vec::new();
        let mut overflow: Option<Overflow> = None;
        loop {
            let (taken, is_complete) = {
                let buffer = match self.reader.fill_buf().await {
                    Ok(buffer) if !buffer.is_empty() => buffer,
                    // A last line without its newline was cut off.
                    _ => return Line::End,
                };
                let newline = buffer.iter().position(|byte| *byte == b'\n');
                let part = buffer.get(..newline.unwrap_or(buffer.len())).unwrap_or_default();
                match &mut overflow {
                    _ if self.is_skipping => {}
                    Some(overflow) => overflow.skip(part),
                    None if line.len() + part.len() > self.max_bytes => {
                        let mut skipped = Overflow::new(&line);
                        skipped.skip(part);
                        line = Vec::new();
                        overflow = Some(skipped);
                    }
                    None => append(&mut line, part, self.max_bytes),
                }
                (newline.map_or(buffer.len(), |index| index + 1), newline.is_some())
            };
            self.reader.consume(taken);
            if is_complete && std::mem::take(&mut self.is_skipping) {
                continue;
            }
            // The call fails at once if its id is known: the line may never end.
            if !is_complete && let Some(id) = overflow.as_ref().and_then(Overflow::first_id) {
                self.is_skipping = true;
                return Line::TooLong(Some(id));
            }
            if is_complete {
                return match overflow {
                    Some(overflow) => Line::TooLong(overflow.find_id()),
                    None => String::from_utf8(line).map_or(Line::NotUtf8, Line::Text),
                };
            }
        }
    }
}

/// Appends, growing by a quarter: doubling would take twice the limit.
fn append(line: &mut Vec<u8>, part: &[u8], max_bytes: usize) {
    let needed = line.len() + part.len();
    if needed > line.capacity() {
        let capacity = needed.max((line.capacity() + line.capacity() / 4).min(max_bytes));
        line.reserve_exact(capacity - line.len());
    }
    line.extend_from_slice(part);
}

/// Beginning and end of a message that is skipped.
pub(crate) struct Overflow {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Overflow {
    pub(crate) fn new(line: &[u8]) -> Overflow {
        let tail = line.get(line.len().saturating_sub(KEPT_BYTES)..).unwrap_or_default().to_vec();
        Overflow { head: line.get(..KEPT_BYTES.min(line.len())).unwrap_or_default().to_vec(), tail }
    }

    pub(crate) fn skip(&mut self, part: &[u8]) {
        let missing = KEPT_BYTES.saturating_sub(self.head.len());
        self.head.extend(part.iter().take(missing));
        self.tail.extend(part.iter().skip(part.len().saturating_sub(KEPT_BYTES)));
        let surplus = self.tail.len().saturating_sub(KEPT_BYTES);
        self.tail.drain(..surplus);
    }

    /// Returns the id, if it is the first member apart from `jsonrpc`.
    pub(crate) fn first_id(&self) -> Option<u64> {
        first_member_id(&String::from_utf8_lossy(&self.head))
    }

    /// Returns the id, if it is the first member apart from `jsonrpc`, or the last one. Anywhere
    /// else it could be part of the result.
    pub(crate) fn find_id(&self) -> Option<u64> {
        self.first_id().or_else(|| last_member_id(&String::from_utf8_lossy(&self.tail)))
    }
}

fn first_member_id(head: &str) -> Option<u64> {
    let head: String = head.chars().filter(|c| !c.is_whitespace()).collect();
    let rest = head.strip_prefix('{')?;
    let rest = rest.strip_prefix("\"jsonrpc\":\"2.0\",").unwrap_or(rest);
    let rest = rest.strip_prefix("\"id\":")?;
    let length = rest.find(|c: char| !c.is_ascii_digit())?;
    let (digits, rest) = rest.split_at(length);
    // A request or notification of the server has an id of its own kind, or none.
    rest.strip_prefix(",\"")?.strip_prefix("result\"").or(rest.strip_prefix(",\"error\""))?;
    digits.parse().ok()
}

fn last_member_id(tail: &str) -> Option<u64> {
    let rest = tail.trim_end().strip_suffix('}')?.trim_end();
    let rest = rest
        .strip_suffix("\"jsonrpc\":\"2.0\"")
        .map_or(rest, |rest| rest.trim_end().strip_suffix(',').unwrap_or(rest).trim_end());
    let digits_start = rest.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (before, digits) = rest.split_at(digits_start);
    before.trim_end().strip_suffix(':')?.trim_end().strip_suffix("\"id\"")?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    async fn read_all(input: &[u8], max_bytes: usize) -> Vec<String> {
        let mut reader = LineReader::new(input, max_bytes);
        let mut lines = Vec::new();
        loop {
            lines.push(match reader.next_line().await {
                Line::Text(text) => text,
                Line::TooLong(id) => format!("too long {id:?}"),
                Line::NotUtf8 => "not utf-8".to_owned(),
                Line::End => return lines,
            });
        }
    }

    #[tokio::test]
    async fn a_long_line_is_skipped_and_the_next_is_read() {
        let long =
            format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"{}\"}}\n", "x".repeat(300_000));
        let input = format!("{{}}\n\n{long}{{\"a\":1}}\n");
        let lines = read_all(input.as_bytes(), 1000).await;
        assert_eq!(lines, ["{}", "too long Some(7)", "{\"a\":1}"]);
    }

    #[tokio::test]
    async fn a_line_without_end_is_reported_at_once() {
        let (mut writer, reader) = tokio::io::duplex(1 << 20);
        let mut lines = LineReader::new(reader, 1000);
        let start = format!("{{\"id\":7,\"result\":\"{}", "x".repeat(200_000));
        writer.write_all(start.as_bytes()).await.unwrap();
        assert!(matches!(lines.next_line().await, Line::TooLong(Some(7))));
        writer.write_all(b"xx\"}\n{}\n").await.unwrap();
        assert!(matches!(lines.next_line().await, Line::Text(text) if text == "{}"));
    }

    #[tokio::test]
    async fn a_line_of_exactly_the_limit_is_read() {
        assert_eq!(read_all(b"12345\n123456\n", 5).await, ["12345", "too long None"]);
    }

    #[tokio::test]
    async fn what_is_cut_off_and_what_is_not_text_is_not_taken() {
        assert_eq!(read_all(b"\xff\xfe\n{}\n{\"id\":", 100).await, ["not utf-8", "{}"]);
    }

    #[test]
    fn an_id_is_found_first_or_last_and_never_inside_a_result() {
        assert_eq!(first_member_id("{ \"id\" : 12, \"result\""), Some(12));
        assert_eq!(first_member_id("{ \"id\" : 12, \"method\""), None);
        assert_eq!(first_member_id("{\"result\":{\"id\":12"), None);
        assert_eq!(last_member_id("xx\"},\"id\":34}"), Some(34));
        assert_eq!(last_member_id("xx\"}, \"id\": 34, \"jsonrpc\":\"2.0\"}"), Some(34));
        assert_eq!(last_member_id("\"id\":34}}"), None);
        assert_eq!(last_member_id("\"x\":34}"), None);
    }
}
