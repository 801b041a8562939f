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
pub fn bom(head: &[u8]) -> Option<(&'static Encoding, usize)> {
    Encoding::for_bom(head)
}

/// Line ending style of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eol {
    Lf,
    Crlf,
    Mixed,
    None,
}

impl Eol {
    /// Returns the name used in results.
    pub fn name(self) -> &'static str {
        match self {
            Eol::Lf => "lf",
            Eol::Crlf => "crlf",
            Eol::Mixed => "mixed",
            Eol::None => "none",
        }
    }
}

/// Code unit in which newlines are searched for. Every supported encoding except UTF-16 writes a
/// newline as the byte 0x0A, which is never part of another character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Byte,
    Utf16Le,
    Utf16Be,
}

impl Unit {
    /// Returns the code unit of an encoding.
    pub fn of(encoding: &'static Encoding) -> Unit {
        if encoding == UTF_16LE {
            Unit::Utf16Le
        } else if encoding == UTF_16BE {
            Unit::Utf16Be
        } else {
            Unit::Byte
        }
    }

    /// Returns the size of the unit in bytes.
    pub fn width(self) -> usize {
        if self == Unit::Byte { 1 } else { 2 }
    }

    /// Returns whether `unit` is this ASCII character.
    pub fn is(self, unit: &[u8], ascii: u8) -> bool {
        match self {
            Unit::Byte => unit == [ascii],
            Unit::Utf16Le => unit == [ascii, 0],
            Unit::Utf16Be => unit == [0, ascii],
        }
    }

    /// Counts the newlines in `bytes`.
    pub fn count_newlines(self, bytes: &[u8]) -> u64 {
        let count = match self {
            Unit::Byte => bytes.iter().filter(|byte| **byte == b'\n').count(),
            wide => bytes.chunks_exact(2).filter(|unit| wide.is(unit, b'\n')).count(),
        };
        count as u64
    }

    /// Returns the position just after the first newline.
    pub fn after_newline(self, bytes: &[u8]) -> Option<usize> {
        match self {
            Unit::Byte => bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1),
            wide => {
                bytes.chunks_exact(2).position(|unit| wide.is(unit, b'\n')).map(|at| at * 2 + 2)
            }
        }
    }
}

/// Streaming detector that classifies bytes as text or binary. Each chunk must consist of whole
/// code units.
pub struct Detector {
    unit: Unit,
    known: Option<&'static Encoding>,
    utf8: Utf8,
    newlines: u64,
    crlf: u64,
    last: [u8; 2],
    seen: u64,
    nul: bool,
    controls: usize,
    head: usize,
}

/// Result of a [`Detector`].
#[derive(Debug, Clone, Copy)]
pub struct Found {
    pub encoding: &'static Encoding,
    /// The bytes do not look like text in any encoding.
    pub binary: bool,
    pub eol: Eol,
    pub lines: u64,
    pub final_newline: bool,
}

impl Detector {
    /// Creates a detector. `known` is the encoding given by the caller or by a byte order mark.
    pub fn new(known: Option<&'static Encoding>) -> Detector {
        Detector {
            unit: known.map_or(Unit::Byte, Unit::of),
            known,
            utf8: Utf8::default(),
            newlines: 0,
            crlf: 0,
            last: [0; 2],
            seen: 0,
            nul: false,
            controls: 0,
            head: 0,
        }
    }

    /// Examines the next chunk.
    pub fn feed(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.utf8.feed(bytes);
        let head = &bytes[..bytes.len().min(HEAD_BYTES - self.head)];
        self.nul |= head.contains(&0);
        self.controls +=
            head.iter().filter(|byte| matches!(**byte, 1..=6 | 14..=26 | 28..=31 | 127)).count();
        self.head += head.len();
        self.count_lines(bytes);
        self.seen += bytes.len() as u64;
    }

    fn count_lines(&mut self, bytes: &[u8]) {
        let unit = self.unit;
        let width = unit.width();
        self.newlines += unit.count_newlines(bytes);
        self.crlf += match unit {
            Unit::Byte if !bytes.contains(&b'\r') => 0,
            Unit::Byte => bytes.windows(2).filter(|pair| **pair == *b"\r\n").count() as u64,
            wide => bytes
                .chunks_exact(2)
                .zip(bytes.chunks_exact(2).skip(1))
                .filter(|(cr, lf)| wide.is(cr, b'\r') && wide.is(lf, b'\n'))
                .count() as u64,
        };
        let before = &self.last[2 - width..];
        if self.seen > 0
            && bytes.len() >= width
            && unit.is(before, b'\r')
            && unit.is(&bytes[..width], b'\n')
        {
            self.crlf += 1;
        }
        if let Some(last) = bytes.len().checked_sub(width).map(|at| &bytes[at..]) {
            self.last[2 - width..].copy_from_slice(last);
        }
    }

    /// Returns the result. `complete` says that the input ended here, so a partial character at the
    /// end is an error. `guess` is called for text that is not UTF-8.
    pub fn finish(
        self,
        complete: bool,
        guess: impl FnOnce() -> Result<&'static Encoding>,
    ) -> Result<Found> {
        let binary = self.known.is_none() && (self.nul || self.controls * 10 > self.head);
        let encoding = match self.known {
            Some(known) => known,
            None if binary || self.utf8.valid(complete) || self.utf8.mostly() => UTF_8,
            None => guess()?,
        };
        let final_newline =
            self.seen > 0 && self.unit.is(&self.last[2 - self.unit.width()..], b'\n');
        Ok(Found {
            encoding,
            binary,
            eol: match (self.newlines, self.crlf) {
                (0, _) => Eol::None,
                (_, 0) => Eol::Lf,
                (all, crlf) if all == crlf => Eol::Crlf,
                _ => Eol::Mixed,
            },
            lines: self.newlines + u64::from(self.seen > 0 && !final_newline),
            final_newline,
        })
    }
}

/// Guesses the encoding of text that is not UTF-8. Only non-ASCII chunks are examined, up to a
/// limit.
pub struct Guess {
    detector: EncodingDetector,
    shown: usize,
}

impl Default for Guess {
    fn default() -> Self {
        Guess { detector: EncodingDetector::new(Iso2022JpDetection::Allow), shown: 0 }
    }
}

impl Guess {
    /// Returns whether more bytes could still change the result.
    pub fn wants_more(&self) -> bool {
        self.shown < DETECTOR_BYTES
    }

    /// Examines the next chunk, unless it is plain ASCII or enough has been seen.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.wants_more() && !bytes.is_ascii() {
            let part = &bytes[..bytes.len().min(DETECTOR_BYTES - self.shown)];
            self.detector.feed(part, false);
            self.shown += part.len();
        }
    }

    /// Returns the most likely encoding of the bytes seen so far.
    pub fn encoding(&self) -> &'static Encoding {
        self.detector.guess(None, Utf8Detection::Deny)
    }
}

/// Validates UTF-8 across chunk borders and counts the evidence for and against it.
#[derive(Default)]
struct Utf8 {
    /// Number of multi-byte characters.
    wide: u64,
    invalid: u64,
    carry: Vec<u8>,
}

impl Utf8 {
    fn feed(&mut self, mut bytes: &[u8]) {
        while !self.carry.is_empty() {
            let Some((first, rest)) = bytes.split_first() else { return };
            self.carry.push(*first);
            match std::str::from_utf8(&self.carry) {
                Ok(_) => {
                    self.wide += 1;
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
                    self.count(text);
                    return;
                }
                Err(error) => {
                    let (valid, rest) = bytes.split_at(error.valid_up_to());
                    self.count(std::str::from_utf8(valid).unwrap_or_default());
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

    fn count(&mut self, text: &str) {
        self.wide += text.bytes().filter(|byte| *byte >= 0xc0).count() as u64;
    }

    fn valid(&self, complete: bool) -> bool {
        self.invalid == 0 && (!complete || self.carry.is_empty())
    }

    /// Returns whether the bytes are UTF-8 apart from a few errors. In other encodings, byte
    /// sequences that look like UTF-8 occur only by chance and are rare.
    fn mostly(&self) -> bool {
        self.wide >= 4 * (self.invalid + u64::from(!self.carry.is_empty()))
    }
}

/// Text decoded from the beginning of some bytes.
pub struct Decoded {
    pub text: String,
    /// Number of input bytes that `text` represents.
    pub used: usize,
    /// Some of them are invalid in the encoding and appear as U+FFFD.
    pub lossy: bool,
}

/// Decodes as much of `bytes` as yields at most `max` bytes of text. If there is `more` input to
/// follow, a partial character at the end is left for the next read.
pub fn decode(encoding: &'static Encoding, bytes: &[u8], max: usize, more: bool) -> Decoded {
    let mut used = if more { whole_characters(encoding, bytes) } else { bytes.len() };
    loop {
        let (text, lossy) = encoding.decode_without_bom_handling(&bytes[..used]);
        if text.len() <= max {
            return Decoded { text: text.into_owned(), used, lossy };
        }
        // The text length grows with the number of bytes, so scaling proportionally converges in a
        // few rounds.
        let fewer = (used * max / text.len()).min(used - 1);
        used = whole_characters(encoding, &bytes[..fewer]);
    }
}

/// Returns the length of `bytes` without a character that is cut off at the end.
fn whole_characters(encoding: &'static Encoding, bytes: &[u8]) -> usize {
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
    if Unit::of(encoding) != Unit::Byte {
        let even = len & !1;
        let high = match (Unit::of(encoding), even.checked_sub(2)) {
            (Unit::Utf16Le, Some(at)) => bytes[at + 1],
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
pub fn encode(encoding: &'static Encoding, text: &str) -> Option<Vec<u8>> {
    match Unit::of(encoding) {
        Unit::Utf16Le => Some(text.encode_utf16().flat_map(u16::to_le_bytes).collect()),
        Unit::Utf16Be => Some(text.encode_utf16().flat_map(u16::to_be_bytes).collect()),
        Unit::Byte => {
            let (bytes, _, unmappable) = encoding.encode(text);
            (!unmappable).then(|| bytes.into_owned())
        }
    }
}

/// Returns the byte order mark to write before text that had one.
pub fn mark(encoding: &'static Encoding) -> &'static [u8] {
    match Unit::of(encoding) {
        Unit::Utf16Le => &[0xff, 0xfe],
        Unit::Utf16Be => &[0xfe, 0xff],
        Unit::Byte => &[0xef, 0xbb, 0xbf],
    }
}

/// Converts every line ending of `text` to `eol`. `Mixed` and `None` leave the text unchanged.
pub fn with_eol(text: &str, eol: Eol) -> String {
    match eol {
        Eol::Lf => text.replace("\r\n", "\n"),
        Eol::Crlf => text.replace("\r\n", "\n").replace('\n', "\r\n"),
        Eol::Mixed | Eol::None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(bytes: &[u8], chunk: usize) -> Found {
        let mut detector = Detector::new(bom(bytes).map(|(encoding, _)| encoding));
        bytes.chunks(chunk).for_each(|part| detector.feed(part));
        detector.finish(true, || unreachable!("it is known")).unwrap()
    }

    #[test]
    fn chunk_borders_do_not_change_what_is_found() {
        let samples: [(&[u8], &str, Eol, u64); 6] = [
            ("grün\r\nüber\r\n".as_bytes(), "UTF-8", Eol::Crlf, 2),
            ("a\nb\r\nc".as_bytes(), "UTF-8", Eol::Mixed, 3),
            (b"", "UTF-8", Eol::None, 0),
            (b"\xff\xfea\0\r\0\n\0b\0", "UTF-16LE", Eol::Crlf, 2),
            (b"\xfe\xff\0a\0\n\0\n", "UTF-16BE", Eol::Lf, 2),
            ("漢字".as_bytes(), "UTF-8", Eol::None, 1),
        ];
        for (bytes, encoding, eol, lines) in samples {
            for chunk in [2, 4, 1000] {
                let found = found(bytes, chunk);
                assert_eq!(
                    (found.encoding.name(), found.eol, found.lines),
                    (encoding, eol, lines),
                    "{bytes:?}"
                );
                assert!(!found.binary);
            }
        }
        assert!(found(b"\x7fELF\x02\x01\0\0", 3).binary);
        assert!(found(&(0..=255u8).collect::<Vec<_>>(), 64).binary);
    }

    #[test]
    fn a_cut_never_splits_a_character() {
        let text = "añ漢😀".repeat(20);
        for encoding in [UTF_8, UTF_16LE, UTF_16BE, encoding_rs::GB18030] {
            let bytes = encode(encoding, &text).unwrap();
            for max in 12..60 {
                let (mut at, mut back) = (0, String::new());
                while at < bytes.len() {
                    let window = &bytes[at..bytes.len().min(at + 37)];
                    let part = decode(encoding, window, max, at + window.len() < bytes.len());
                    assert!(
                        part.used > 0 && part.text.len() <= max && !part.lossy,
                        "{} {max}",
                        encoding.name()
                    );
                    at += part.used;
                    back += &part.text;
                }
                assert_eq!(back, text);
            }
        }
    }

    #[test]
    fn what_an_encoding_cannot_say_is_refused() {
        assert_eq!(encode(encoding_rs::GBK, "中文").unwrap(), b"\xd6\xd0\xce\xc4");
        assert!(encode(encoding_rs::SHIFT_JIS, "😀").is_none());
        assert!(encode(encoding_rs::WINDOWS_1252, "中").is_none());
    }

    #[test]
    fn line_ends_are_rewritten_once() {
        assert_eq!(with_eol("a\nb\r\nc", Eol::Crlf), "a\r\nb\r\nc");
        assert_eq!(with_eol("a\nb\r\nc", Eol::Lf), "a\nb\nc");
        assert_eq!(with_eol("a\nb\r\nc", Eol::Mixed), "a\nb\r\nc");
    }
}
