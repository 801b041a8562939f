//! Text in bytes: detects encoding and line endings, and converts in both directions without
//! changing a byte.

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE};

use crate::base::Result;

/// Bytes of non-UTF-8 text given to the encoding detector; more does not change its result.
const DETECTOR_BYTES: usize = 1 << 20;
/// A NUL within this many bytes marks a file as binary, as in git and grep.
pub const HEAD_BYTES: usize = 64 << 10;

/// Returns the encoding that a byte order mark announces, and the length of the mark.
pub fn detect_bom(head: &[u8]) -> Option<(&'static Encoding, usize)> {
    Encoding::for_bom(head)
}

/// Line ending style of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineEnding {
    Lf,
    Crlf,
    Mixed,
    None,
}

impl LineEnding {
    /// Returns the name used in results.
    pub fn name(self) -> &'static str {
        match self {
            LineEnding::Lf => "lf",
            LineEnding::Crlf => "crlf",
            LineEnding::Mixed => "mixed",
            LineEnding::None => "none",
        }
    }
}

/// Code unit in which newlines are searched for. Every supported encoding except UTF-16 writes a
/// newline as the byte 0x0A, which is never part of another character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeUnit {
    Byte,
    Utf16Le,
    Utf16Be,
}

impl CodeUnit {
    /// Returns the code unit of an encoding.
    pub fn from_encoding(encoding: &'static Encoding) -> CodeUnit {
        if encoding == UTF_16LE {
            CodeUnit::Utf16Le
        } else if encoding == UTF_16BE {
            CodeUnit::Utf16Be
        } else {
            CodeUnit::Byte
        }
    }

    /// Returns the size of the unit in bytes.
    pub fn width(self) -> usize {
        if self == CodeUnit::Byte { 1 } else { 2 }
    }

    /// Returns whether `unit` is this ASCII character.
    pub fn is_ascii_char(self, unit: &[u8], ascii: u8) -> bool {
        match self {
            CodeUnit::Byte => unit == [ascii],
            CodeUnit::Utf16Le => unit == [ascii, 0],
            CodeUnit::Utf16Be => unit == [0, ascii],
        }
    }

    /// Counts the newlines in `bytes`.
    pub fn count_newlines(self, bytes: &[u8]) -> u64 {
        let count = match self {
            CodeUnit::Byte => memchr::memchr_iter(b'\n', bytes).count(),
            wide => bytes.chunks_exact(2).filter(|unit| wide.is_ascii_char(unit, b'\n')).count(),
        };
        count as u64
    }

    /// Returns the position just after the first newline.
    pub fn position_after_newline(self, bytes: &[u8]) -> Option<usize> {
        match self {
            CodeUnit::Byte => memchr::memchr(b'\n', bytes).map(|at| at + 1),
            wide => bytes
                .chunks_exact(2)
                .position(|unit| wide.is_ascii_char(unit, b'\n'))
                .map(|at| at * 2 + 2),
        }
    }
}

/// Counts the control characters that text does not have. Each piece is as long as a count that fits
/// into a byte, and no comparison is skipped, so that the compiler examines many bytes at once.
fn count_control_bytes(bytes: &[u8]) -> usize {
    let is_control = |byte: u8| {
        (byte.wrapping_sub(1) <= 5)
            | (byte.wrapping_sub(14) <= 12)
            | (byte.wrapping_sub(28) <= 3)
            | (byte == 127)
    };
    let pieces = bytes.chunks(255);
    pieces
        .map(|piece| usize::from(piece.iter().map(|byte| u8::from(is_control(*byte))).sum::<u8>()))
        .sum()
}

/// Streaming detector that classifies bytes as text or binary. Each chunk must consist of whole
/// code units.
pub struct TextDetector {
    unit: CodeUnit,
    known_encoding: Option<&'static Encoding>,
    utf8: Utf8Stats,
    newlines: u64,
    crlf_count: u64,
    last_unit: [u8; 2],
    bytes_seen: u64,
    has_nul: bool,
    control_count: usize,
    head_len: usize,
}

/// Result of a [`TextDetector`].
#[derive(Debug, Clone, Copy)]
pub struct TextFormat {
    pub encoding: &'static Encoding,
    /// The bytes do not look like text in any encoding.
    pub is_binary: bool,
    pub eol: LineEnding,
    pub lines: u64,
    pub has_final_newline: bool,
}

impl TextDetector {
    /// Creates a detector. `known_encoding` is the encoding given by the caller or by a byte order
    /// mark.
    pub fn new(known_encoding: Option<&'static Encoding>) -> TextDetector {
        TextDetector {
            unit: known_encoding.map_or(CodeUnit::Byte, CodeUnit::from_encoding),
            known_encoding,
            utf8: Utf8Stats::default(),
            newlines: 0,
            crlf_count: 0,
            last_unit: [0; 2],
            bytes_seen: 0,
            has_nul: false,
            control_count: 0,
            head_len: 0,
        }
    }

    /// Examines the next chunk.
    pub fn feed(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.utf8.feed(bytes);
        let head = &bytes[..bytes.len().min(HEAD_BYTES - self.head_len)];
        self.has_nul |= memchr::memchr(0, head).is_some();
        self.control_count += count_control_bytes(head);
        self.head_len += head.len();
        self.count_lines(bytes);
        self.bytes_seen += bytes.len() as u64;
    }

    fn count_lines(&mut self, bytes: &[u8]) {
        let unit = self.unit;
        let width = unit.width();
        self.newlines += unit.count_newlines(bytes);
        self.crlf_count += match unit {
            CodeUnit::Byte => {
                let newlines_after = memchr::memchr_iter(b'\r', bytes)
                    .filter(|at| bytes.get(at + 1) == Some(&b'\n'));
                newlines_after.count() as u64
            }
            wide => bytes
                .chunks_exact(2)
                .zip(bytes.chunks_exact(2).skip(1))
                .filter(|(cr, lf)| wide.is_ascii_char(cr, b'\r') && wide.is_ascii_char(lf, b'\n'))
                .count() as u64,
        };
        let previous_unit = &self.last_unit[2 - width..];
        if self.bytes_seen > 0
            && bytes.len() >= width
            && unit.is_ascii_char(previous_unit, b'\r')
            && unit.is_ascii_char(&bytes[..width], b'\n')
        {
            self.crlf_count += 1;
        }
        if let Some(last) = bytes.len().checked_sub(width).map(|at| &bytes[at..]) {
            self.last_unit[2 - width..].copy_from_slice(last);
        }
    }

    /// Returns the result. `complete` says that the input ended here, so a partial character at the
    /// end is an error. `guess_encoding` is called for text that is not UTF-8.
    pub fn finish(
        self,
        complete: bool,
        guess_encoding: impl FnOnce() -> Result<&'static Encoding>,
    ) -> Result<TextFormat> {
        let is_binary = self.known_encoding.is_none()
            && (self.has_nul || self.control_count * 10 > self.head_len);
        let encoding = match self.known_encoding {
            Some(known) => known,
            None if is_binary || self.utf8.is_valid(complete) || self.utf8.is_mostly_valid() => {
                UTF_8
            }
            None => guess_encoding()?,
        };
        let has_final_newline = self.bytes_seen > 0
            && self.unit.is_ascii_char(&self.last_unit[2 - self.unit.width()..], b'\n');
        Ok(TextFormat {
            encoding,
            is_binary,
            eol: match (self.newlines, self.crlf_count) {
                (0, _) => LineEnding::None,
                (_, 0) => LineEnding::Lf,
                (newlines, crlf) if newlines == crlf => LineEnding::Crlf,
                _ => LineEnding::Mixed,
            },
            lines: self.newlines + u64::from(self.bytes_seen > 0 && !has_final_newline),
            has_final_newline,
        })
    }
}

/// Guesses the encoding of text that is not UTF-8. Only non-ASCII chunks are examined, up to a
/// limit.
pub struct EncodingGuesser {
    detector: EncodingDetector,
    bytes_fed: usize,
}

impl Default for EncodingGuesser {
    fn default() -> Self {
        EncodingGuesser { detector: EncodingDetector::new(Iso2022JpDetection::Allow), bytes_fed: 0 }
    }
}

impl EncodingGuesser {
    /// Returns whether more bytes could still change the result.
    pub fn wants_more(&self) -> bool {
        self.bytes_fed < DETECTOR_BYTES
    }

    /// Examines the next chunk, unless it is plain ASCII or enough has been seen.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.wants_more() && !bytes.is_ascii() {
            let part = &bytes[..bytes.len().min(DETECTOR_BYTES - self.bytes_fed)];
            self.detector.feed(part, false);
            self.bytes_fed += part.len();
        }
    }

    /// Returns the most likely encoding of the bytes seen so far.
    pub fn best_encoding(&self) -> &'static Encoding {
        self.detector.guess(None, Utf8Detection::Deny)
    }
}

/// Validates UTF-8 across chunk borders and counts the evidence for and against it.
#[derive(Default)]
struct Utf8Stats {
    /// Number of multi-byte characters.
    multibyte: u64,
    invalid: u64,
    carry: Vec<u8>,
}

impl Utf8Stats {
    fn feed(&mut self, mut bytes: &[u8]) {
        while !self.carry.is_empty() {
            let Some((first, rest)) = bytes.split_first() else { return };
            self.carry.push(*first);
            match std::str::from_utf8(&self.carry) {
                Ok(_) => {
                    self.multibyte += 1;
                    self.carry.clear();
                }
                Err(error) if error.error_len().is_some() => {
                    // The last byte does not continue the character, but it may start another one.
                    self.invalid += 1;
                    self.carry.clear();
                    continue;
                }
                Err(_) => {}
            }
            bytes = rest;
        }
        // Plain ASCII, the usual case, tells nothing either way.
        if bytes.is_ascii() {
            return;
        }
        loop {
            match std::str::from_utf8(bytes) {
                Ok(text) => {
                    self.count_multibyte(text);
                    return;
                }
                Err(error) => {
                    let (valid, rest) = bytes.split_at(error.valid_up_to());
                    self.count_multibyte(std::str::from_utf8(valid).unwrap_or_default());
                    let Some(length) = error.error_len() else {
                        self.carry.extend_from_slice(rest);
                        return;
                    };
                    self.invalid += 1;
                    bytes = &rest[length..];
                }
            }
        }
    }

    fn count_multibyte(&mut self, text: &str) {
        self.multibyte += text.bytes().filter(|byte| *byte >= 0xc0).count() as u64;
    }

    fn is_valid(&self, complete: bool) -> bool {
        self.invalid == 0 && (!complete || self.carry.is_empty())
    }

    /// Returns whether the bytes are UTF-8 apart from a few errors. In other encodings, byte
    /// sequences that look like UTF-8 occur only by chance and are rare.
    fn is_mostly_valid(&self) -> bool {
        self.multibyte >= 4 * (self.invalid + u64::from(!self.carry.is_empty()))
    }
}

/// Text decoded from the beginning of some bytes.
pub struct DecodedText {
    pub text: String,
    /// Number of input bytes that `text` represents.
    pub bytes_used: usize,
    /// Some of them are invalid in the encoding and appear as U+FFFD.
    pub is_lossy: bool,
}

/// Decodes as much of `bytes` as yields at most `max_bytes` bytes of text. If there is `has_more`
/// input to follow, a partial character at the end is left for the next read.
pub fn decode_prefix(
    encoding: &'static Encoding,
    bytes: &[u8],
    max_bytes: usize,
    has_more: bool,
) -> DecodedText {
    let mut bytes_used = if has_more { whole_characters_len(encoding, bytes) } else { bytes.len() };
    loop {
        let (text, is_lossy) = encoding.decode_without_bom_handling(&bytes[..bytes_used]);
        if text.len() <= max_bytes {
            return DecodedText { text: text.into_owned(), bytes_used, is_lossy };
        }
        // The text length grows with the number of bytes, so scaling proportionally converges in a
        // few rounds.
        let fewer = (bytes_used * max_bytes / text.len()).min(bytes_used - 1);
        bytes_used = whole_characters_len(encoding, &bytes[..fewer]);
    }
}

/// Returns the length of `bytes` without a character that is cut off at the end.
fn whole_characters_len(encoding: &'static Encoding, bytes: &[u8]) -> usize {
    let len = bytes.len();
    if encoding == UTF_8 {
        let tail = len.saturating_sub(3);
        let lead = bytes[tail..].iter().rposition(|byte| *byte >= 0xc0).map(|at| tail + at);
        return match lead {
            Some(at)
                if std::str::from_utf8(&bytes[at..])
                    .is_err_and(|error| error.error_len().is_none()) =>
            {
                at
            }
            _ => len,
        };
    }
    if CodeUnit::from_encoding(encoding) != CodeUnit::Byte {
        let even = len & !1;
        let high = match (CodeUnit::from_encoding(encoding), even.checked_sub(2)) {
            (CodeUnit::Utf16Le, Some(at)) => bytes[at + 1],
            (_, Some(at)) => bytes[at],
            (_, None) => 0,
        };
        return if (0xd8..0xdc).contains(&high) { even - 2 } else { even };
    }
    (0..4.min(len))
        .map(|cut| len - cut)
        .find(|len| {
            encoding.decode_without_bom_handling_and_without_replacement(&bytes[..*len]).is_some()
        })
        .unwrap_or(len)
}

/// Encodes `text`, or returns `None` if the encoding cannot represent some character.
pub fn encode_text(encoding: &'static Encoding, text: &str) -> Option<Vec<u8>> {
    match CodeUnit::from_encoding(encoding) {
        CodeUnit::Utf16Le => Some(text.encode_utf16().flat_map(u16::to_le_bytes).collect()),
        CodeUnit::Utf16Be => Some(text.encode_utf16().flat_map(u16::to_be_bytes).collect()),
        CodeUnit::Byte => {
            let (bytes, _, unmappable) = encoding.encode(text);
            (!unmappable).then(|| bytes.into_owned())
        }
    }
}

/// Returns the byte order mark to write before text that had one.
pub fn bom_bytes(encoding: &'static Encoding) -> &'static [u8] {
    match CodeUnit::from_encoding(encoding) {
        CodeUnit::Utf16Le => &[0xff, 0xfe],
        CodeUnit::Utf16Be => &[0xfe, 0xff],
        CodeUnit::Byte => &[0xef, 0xbb, 0xbf],
    }
}

/// Converts every line ending of `text` to `eol`. `Mixed` and `None` leave the text unchanged.
pub fn convert_line_endings(text: &str, eol: LineEnding) -> String {
    match eol {
        LineEnding::Lf => text.replace("\r\n", "\n"),
        LineEnding::Crlf => text.replace("\r\n", "\n").replace('\n', "\r\n"),
        LineEnding::Mixed | LineEnding::None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(bytes: &[u8], chunk: usize) -> TextFormat {
        let mut detector = TextDetector::new(detect_bom(bytes).map(|(encoding, _)| encoding));
        bytes.chunks(chunk).for_each(|part| detector.feed(part));
        detector.finish(true, || unreachable!("it is known")).unwrap()
    }

    #[test]
    fn control_bytes_are_counted_in_every_place() {
        for byte in 0..=255 {
            let wanted = usize::from(matches!(byte, 1..=6 | 14..=26 | 28..=31 | 127));
            for length in [1, 255, 256, 1000] {
                assert_eq!(count_control_bytes(&vec![byte; length]), wanted * length, "{byte}");
            }
        }
    }

    #[test]
    fn chunk_borders_do_not_change_what_is_found() {
        let samples: [(&[u8], &str, LineEnding, u64); 6] = [
            ("grün\r\nüber\r\n".as_bytes(), "UTF-8", LineEnding::Crlf, 2),
            ("a\nb\r\nc".as_bytes(), "UTF-8", LineEnding::Mixed, 3),
            (b"", "UTF-8", LineEnding::None, 0),
            (b"\xff\xfea\0\r\0\n\0b\0", "UTF-16LE", LineEnding::Crlf, 2),
            (b"\xfe\xff\0a\0\n\0\n", "UTF-16BE", LineEnding::Lf, 2),
            ("漢字".as_bytes(), "UTF-8", LineEnding::None, 1),
        ];
        for (bytes, encoding, eol, lines) in samples {
            for chunk in [2, 4, 1000] {
                let found = found(bytes, chunk);
                assert_eq!(
                    (found.encoding.name(), found.eol, found.lines),
                    (encoding, eol, lines),
                    "{bytes:?}"
                );
                assert!(!found.is_binary);
            }
        }
        assert!(found(b"\x7fELF\x02\x01\0\0", 3).is_binary);
        assert!(found(&(0..=255u8).collect::<Vec<_>>(), 64).is_binary);
    }

    #[test]
    fn a_cut_never_splits_a_character() {
        let text = "añ漢😀".repeat(20);
        for encoding in [UTF_8, UTF_16LE, UTF_16BE, encoding_rs::GB18030] {
            let bytes = encode_text(encoding, &text).unwrap();
            for max in 12..60 {
                let (mut at, mut back) = (0, String::new());
                while at < bytes.len() {
                    let window = &bytes[at..bytes.len().min(at + 37)];
                    let part =
                        decode_prefix(encoding, window, max, at + window.len() < bytes.len());
                    assert!(
                        part.bytes_used > 0 && part.text.len() <= max && !part.is_lossy,
                        "{} {max}",
                        encoding.name()
                    );
                    at += part.bytes_used;
                    back += &part.text;
                }
                assert_eq!(back, text);
            }
        }
    }

    #[test]
    fn what_an_encoding_cannot_say_is_refused() {
        assert_eq!(encode_text(encoding_rs::GBK, "中文").unwrap(), b"\xd6\xd0\xce\xc4");
        assert!(encode_text(encoding_rs::SHIFT_JIS, "😀").is_none());
        assert!(encode_text(encoding_rs::WINDOWS_1252, "中").is_none());
    }

    #[test]
    fn line_ends_are_rewritten_once() {
        assert_eq!(convert_line_endings("a\nb\r\nc", LineEnding::Crlf), "a\r\nb\r\nc");
        assert_eq!(convert_line_endings("a\nb\r\nc", LineEnding::Lf), "a\nb\nc");
        assert_eq!(convert_line_endings("a\nb\r\nc", LineEnding::Mixed), "a\nb\r\nc");
    }
}
