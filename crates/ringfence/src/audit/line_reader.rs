//! Reads the lines of a log file in place: a line is a part of the buffer.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use super::store::MAX_LINE;

/// Size of the buffer at first. A line that does not fit makes it larger.
const BUFFER_LENGTH: usize = 1 << 17;

/// File with a current line. A line without a newline is not a line yet: it is still being written,
/// or torn.
pub(super) struct LineReader {
    file: File,
    buffer: Vec<u8>,
    /// Number of bytes of the buffer that were read from the file.
    filled: usize,
    /// The current line, without its newline.
    line: std::ops::Range<usize>,
    /// Where the next line begins, in the buffer and in the file.
    next: usize,
    next_offset: u64,
}

impl LineReader {
    /// Starts to read before the line at `offset`.
    pub(super) fn new(mut file: File, offset: u64) -> io::Result<LineReader> {
        file.seek(SeekFrom::Start(offset))?;
        Ok(LineReader {
            file,
            buffer: vec![0; BUFFER_LENGTH],
            filled: 0,
            line: 0..0,
            next: 0,
            next_offset: offset,
        })
    }

    /// Returns the current line: empty before the first, and if it is longer than [`MAX_LINE`].
    pub(super) fn line(&self) -> &[u8] {
        &self.buffer[self.line.clone()]
    }

    /// Returns where the line after the current one begins in the file.
    pub(super) fn offset(&self) -> u64 {
        self.next_offset
    }

    /// Moves to the next complete line. Returns false if there is none.
    pub(super) fn advance(&mut self) -> io::Result<bool> {
        let mut searched = self.next;
        // Pieces of a line that is too long. The rest may look like a record, so none of it counts.
        let mut dropped = 0u64;
        loop {
            if let Some(length) = memchr::memchr(b'\n', &self.buffer[searched..self.filled]) {
                let end = searched + length;
                let is_whole = dropped == 0 && end - self.next < MAX_LINE;
                self.next_offset += dropped + (end + 1 - self.next) as u64;
                self.line = if is_whole { self.next..end } else { 0..0 };
                self.next = end + 1;
                return Ok(true);
            }
            if self.filled - self.next >= MAX_LINE {
                dropped += (self.filled - self.next) as u64;
                self.filled = self.next;
            }
            if self.filled == self.buffer.len() {
                self.make_room();
            }
            searched = self.filled;
            match self.file.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Ok(false),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes room behind the beginning of the next line, which moves to the front.
    fn make_room(&mut self) {
        self.buffer.copy_within(self.next..self.filled, 0);
        self.filled -= self.next;
        self.next = 0;
        self.line = 0..0;
        if self.filled > self.buffer.len() / 2 {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::testing::Dir;
    use super::*;

    fn lines(content: &[u8]) -> (Vec<Vec<u8>>, u64) {
        let dir = Dir::new();
        let path = dir.path().join("lines");
        File::create(&path).unwrap().write_all(content).unwrap();
        let mut reader = LineReader::new(File::open(&path).unwrap(), 0).unwrap();
        let mut lines = Vec::new();
        while reader.advance().unwrap() {
            lines.push(reader.line().to_vec());
        }
        assert!(!reader.advance().unwrap(), "the end stays the end");
        (lines, reader.offset())
    }

    #[test]
    fn lines_of_every_length_are_read_whole() {
        // Lengths around the sizes of the buffer, so that lines end and begin at its borders.
        let lengths = [0, 1, 500, BUFFER_LENGTH - 503, 0, BUFFER_LENGTH - 1, BUFFER_LENGTH];
        let lengths = lengths.into_iter().chain([3 * BUFFER_LENGTH, 7, 0, MAX_LINE - 1, 9]);
        let wanted: Vec<Vec<u8>> =
            lengths.zip(b'a'..).map(|(length, letter)| vec![letter; length]).collect();
        let content: Vec<u8> = wanted.iter().flat_map(|line| [line, &b"\n"[..]].concat()).collect();
        let (found, offset) = lines(&[&content, &b"not finished"[..]].concat());
        assert!(found == wanted, "{:?}", found.iter().map(Vec::len).collect::<Vec<_>>());
        assert_eq!(offset, content.len() as u64);
    }

    #[test]
    fn a_line_that_is_too_long_is_empty_and_counts() {
        for length in [MAX_LINE, MAX_LINE + 1, 2 * MAX_LINE + BUFFER_LENGTH] {
            let long_line = vec![b'x'; length];
            let (found, offset) = lines(&[&b"a\n"[..], &long_line, b"\n{}\n"].concat());
            assert_eq!(found, [&b"a"[..], b"", b"{}"], "{length}");
            assert_eq!(offset, length as u64 + 6);
        }
    }
}
