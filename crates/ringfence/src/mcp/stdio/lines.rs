//! Lines of standard input, of bounded length.

use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// Reader of lines. It may be dropped half-way through a line and called again: the engine drops a
/// `receive` when it has other things to do, so nothing may be kept in that future alone.
pub struct InputLines<R> {
    input: R,
    max_bytes: usize,
    /// Dropping the rest of a line that was too long.
    skipping: bool,
    /// Part of the current line that has been read.
    buffer: Vec<u8>,
}

/// What was read.
pub enum StdioInput {
    Line(Vec<u8>),
    TooLong,
    End,
}

impl<R: AsyncBufRead + Unpin> InputLines<R> {
    /// Creates a reader of lines with at most `max_bytes` bytes, newline included.
    pub fn new(input: R, max_bytes: usize) -> InputLines<R> {
        InputLines { input, max_bytes, skipping: false, buffer: Vec::new() }
    }

    /// Reads the next line.
    pub async fn read_line(&mut self) -> std::io::Result<StdioInput> {
        loop {
            let available = self.input.fill_buf().await?;
            if available.is_empty() {
                // The last line is accepted without its newline too; if it was truncated, it is not
                // valid JSON and is refused as such.
                let rest = std::mem::take(&mut self.buffer);
                return Ok(if rest.is_empty() { StdioInput::End } else { StdioInput::Line(rest) });
            }
            let end = memchr::memchr(b'\n', available);
            let consumed = end.map_or(available.len(), |index| index + 1);
            if !self.skipping {
                self.buffer.extend_from_slice(&available[..consumed]);
            }
            self.input.consume(consumed);
            let is_too_long = self.buffer.len() > self.max_bytes;
            match end {
                Some(_) if std::mem::take(&mut self.skipping) => return Ok(StdioInput::TooLong),
                Some(_) if is_too_long => {
                    self.buffer = Vec::new();
                    return Ok(StdioInput::TooLong);
                }
                Some(_) => return Ok(StdioInput::Line(std::mem::take(&mut self.buffer))),
                None if is_too_long => {
                    self.buffer = Vec::new();
                    self.skipping = true;
                }
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::BufReader;

    use super::*;

    async fn lines(input: &[u8], max_bytes: usize) -> Vec<String> {
        let mut lines = InputLines::new(BufReader::with_capacity(4, input), max_bytes);
        let mut seen = Vec::new();
        loop {
            match lines.read_line().await.unwrap() {
                StdioInput::Line(bytes) => seen.push(String::from_utf8(bytes).unwrap()),
                StdioInput::TooLong => seen.push("too long".into()),
                StdioInput::End => return seen,
            }
        }
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_dropped_whole_and_the_next_one_is_read() {
        assert_eq!(
            lines(b"one\nthis is far too long\ntwo\n", 8).await,
            ["one\n", "too long", "two\n"]
        );
        assert_eq!(lines(b"12345678\n", 8).await, ["too long"]);
        assert_eq!(lines(b"1234567\n", 8).await, ["1234567\n"]);
        assert_eq!(lines(b"one\nend", 8).await, ["one\n", "end"]);
        assert_eq!(lines(b"far too long without an end", 8).await, Vec::<String>::new());
    }
}
