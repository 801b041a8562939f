//! Text document: the bytes of a text file, their decoded text, and the mapping from any position
//! in the text to the position in the bytes.
//!
//! The text has `\n` for every line ending; the bytes keep their own line endings wherever nothing
//! is spliced.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;

use encoding_rs::{Decoder, DecoderResult, Encoding, ISO_2022_JP};

use crate::base::{Error, Kind, Result};
use crate::tools::file::text::{self, Eol, Unit};

/// Approximate size of the pieces in which a file is decoded. Finding a position means decoding
/// only one of them again.
const PIECE: usize = 4 << 10;

/// Bytes of a text file and their decoded text.
pub struct Document<'b> {
    bytes: Cow<'b, [u8]>,
    /// Length of the byte order mark, which is not part of the text.
    bom: usize,
    encoding: &'static Encoding,
    eol: Eol,
    text: String,
    pieces: Vec<Place>,
}

/// Corresponding offsets in text and bytes.
#[derive(Debug, Clone, Copy)]
struct Place {
    text: usize,
    byte: usize,
}

/// Replacement of a range of the text.
pub struct Splice<'n> {
    pub range: Range<usize>,
    pub new: Cow<'n, str>,
}

impl<'b> Document<'b> {
    /// Decodes `bytes`, whose first `bom` bytes are a byte order mark.
    pub fn new(
        bytes: Cow<'b, [u8]>,
        bom: usize,
        encoding: &'static Encoding,
        eol: Eol,
    ) -> Document<'b> {
        let mut text = String::with_capacity(bytes.len());
        let mut pieces = Vec::new();
        let mut at = bom;
        while at < bytes.len() {
            pieces.push(Place { text: text.len(), byte: at });
            let end = piece_end(&bytes, at, encoding);
            let (part, _) = encoding.decode_without_bom_handling(&bytes[at..end]);
            push_normalised(&mut text, &part);
            at = end;
        }
        pieces.push(Place { text: text.len(), byte: bytes.len() });
        Document { bytes, bom, encoding, eol, text, pieces }
    }

    /// Returns the decoded text, with `\n` for every line ending.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the bytes of the document.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes and drops the text.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes.into_owned()
    }

    /// Applies splices, which must be in order and must not overlap, and leaves every other byte
    /// unchanged.
    pub fn splice(&self, splices: &[Splice<'_>], max: usize) -> Result<Document<'static>> {
        let mut places = Places::new(self);
        let mut ends = LineEnds::new(self);
        let mut bytes = Vec::with_capacity(self.bytes.len());
        let mut kept = 0;
        for splice in splices {
            let start = places.find(splice.range.start).ok_or_else(beside_broken_bytes)?;
            let end = places.find(splice.range.end).ok_or_else(beside_broken_bytes)?;
            self.check_broken(splice, &self.bytes[start..end])?;
            bytes.extend_from_slice(&self.bytes[kept..start]);
            let new = text::with_eol(&splice.new, ends.at(start));
            bytes.extend_from_slice(
                &text::encode(self.encoding, &new).ok_or_else(|| self.cannot_express(&new))?,
            );
            kept = end;
            if bytes.len() > max {
                return Err(too_large(max));
            }
        }
        bytes.extend_from_slice(&self.bytes[kept..]);
        if bytes.len() > max {
            return Err(too_large(max));
        }
        let spliced = Document::new(Cow::Owned(bytes), self.bom, self.encoding, self.eol);
        // An encoding may combine new bytes with their neighbours (a partial character, a shift
        // state). Decode the result again, so that nothing is written that reads differently from
        // what was meant.
        let expected = self.expected(splices);
        if spliced.text == expected
            || spliced.text.replace("\r\n", "\n") == expected.replace("\r\n", "\n")
        {
            return Ok(spliced);
        }
        Err(beside_broken_bytes())
    }

    fn expected(&self, splices: &[Splice<'_>]) -> String {
        let mut joined = String::with_capacity(self.text.len());
        let mut kept = 0;
        for splice in splices {
            joined.push_str(&self.text[kept..splice.range.start]);
            joined.push_str(&splice.new);
            kept = splice.range.end;
        }
        joined.push_str(&self.text[kept..]);
        joined
    }

    /// Refuses a replacement that would lose invalid bytes. They appear as U+FFFD in the text, and
    /// writing that character back would overwrite them.
    fn check_broken(&self, splice: &Splice<'_>, bytes: &[u8]) -> Result<()> {
        let shown =
            self.text[splice.range.clone()].contains('\u{fffd}') && splice.new.contains('\u{fffd}');
        if shown && self.encoding.decode_without_bom_handling(bytes).1 {
            return Err(Error::invalid_arguments(
                "the replacement would write U+FFFD over bytes that are not valid in the file's encoding",
            )
            .reason("encoding_error")
            .hint("Leave the U+FFFD characters out of `old` and `new`; their bytes then stay unchanged."));
        }
        Ok(())
    }

    fn cannot_express(&self, text: &str) -> Error {
        let name = self.encoding.name();
        let mut buffer = [0; 4];
        let odd = text
            .chars()
            .find(|c| text::encode(self.encoding, c.encode_utf8(&mut buffer)).is_none());
        let odd = odd.map_or(String::new(), |c| format!(": U+{:04X}", u32::from(c)));
        Error::invalid_arguments(format!("the file is in {name}, which cannot express the new text{odd}"))
            .reason("encoding_error")
            .hint("Leave that character out, or convert the file to UTF-8 first (file.write with encoding utf-8).")
            .with("encoding", name.to_ascii_lowercase())
    }
}

fn too_large(max: usize) -> Error {
    Error::new(Kind::TooLarge, format!("the file would become larger than {max} bytes"))
        .hint("Replace less, or with less text.")
}

fn beside_broken_bytes() -> Error {
    Error::invalid_arguments("the match begins or ends inside bytes that cannot be separated in the file's encoding")
        .reason("encoding_error")
        .hint("Choose `old` so that it begins and ends at character boundaries, for instance whole lines.")
}

/// Returns where a piece ends: after a newline. ISO-2022-JP is the only encoding that carries state
/// across a newline, so such a file is a single piece.
fn piece_end(bytes: &[u8], at: usize, encoding: &'static Encoding) -> usize {
    if bytes.len() - at <= PIECE || encoding == ISO_2022_JP {
        return bytes.len();
    }
    let from = at + PIECE;
    Unit::of(encoding).after_newline(&bytes[from..]).map_or(bytes.len(), |after| from + after)
}

fn push_normalised(text: &mut String, part: &str) {
    if !part.contains('\r') {
        return text.push_str(part);
    }
    let mut rest = part;
    while let Some(at) = rest.find("\r\n") {
        text.push_str(&rest[..at]);
        rest = &rest[at + 1..];
    }
    text.push_str(rest);
}

/// A decoded character (or the replacement for invalid bytes) and where its bytes end.
#[derive(Debug)]
struct Atom {
    text: usize,
    last: char,
    end: usize,
}

/// Cursor that maps text positions to byte positions, in ascending order.
struct Places<'d> {
    document: &'d Document<'d>,
    /// Index of the current piece.
    piece: usize,
    decoder: Decoder,
    /// Number of bytes fed to the decoder so far.
    fed: usize,
    finished: bool,
    ready: VecDeque<Atom>,
    here: Place,
}

impl<'d> Places<'d> {
    fn new(document: &'d Document<'_>) -> Places<'d> {
        let mut places = Places {
            document,
            piece: 0,
            decoder: document.encoding.new_decoder_without_bom_handling(),
            fed: 0,
            finished: false,
            ready: VecDeque::new(),
            here: document.pieces[0],
        };
        places.enter(0);
        places
    }

    fn enter(&mut self, piece: usize) {
        self.piece = piece;
        self.here = self.document.pieces[piece];
        self.decoder = self.document.encoding.new_decoder_without_bom_handling();
        (self.fed, self.finished) = (self.here.byte, false);
        self.ready.clear();
    }

    /// Returns the byte offset of a text position, or `None` if it is inside a character.
    fn find(&mut self, text: usize) -> Option<usize> {
        let pieces = &self.document.pieces;
        let piece = pieces.partition_point(|place| place.text <= text).saturating_sub(1);
        if piece > self.piece {
            self.enter(piece);
        }
        while self.here.text < text {
            let atom = self.next()?;
            self.here = Place { text: self.here.text + atom.text, byte: atom.end };
        }
        (self.here.text == text).then_some(self.here.byte)
    }

    /// Returns the next character; `\r\n` is one, and one byte of text.
    fn next(&mut self) -> Option<Atom> {
        let atom = self.raw()?;
        if atom.last != '\r' || atom.text != 1 {
            return Some(atom);
        }
        match self.raw() {
            Some(next) if next.last == '\n' && next.text == 1 => Some(next),
            Some(next) => {
                self.ready.push_front(next);
                Some(atom)
            }
            None => Some(atom),
        }
    }

    fn raw(&mut self) -> Option<Atom> {
        let end = self.document.pieces.get(self.piece + 1)?.byte;
        while self.ready.is_empty() && !self.finished {
            let last = self.fed == end;
            let byte = if last { &[][..] } else { &self.document.bytes[self.fed..=self.fed] };
            let mut out = [0; 64];
            let (result, read, written) =
                self.decoder.decode_to_utf8_without_replacement(byte, &mut out, last);
            self.fed += read;
            let (until, broken) = match result {
                DecoderResult::Malformed(length, after) => {
                    let end = self.fed - usize::from(after);
                    (end - usize::from(length), Some(end))
                }
                DecoderResult::InputEmpty => {
                    self.finished = last;
                    (self.fed, None)
                }
                DecoderResult::OutputFull => (self.fed, None),
            };
            if let Some(last) =
                std::str::from_utf8(&out[..written]).ok().and_then(|text| text.chars().next_back())
            {
                self.ready.push_back(Atom { text: written, last, end: until });
            }
            if let Some(end) = broken {
                self.ready.push_back(Atom { text: '\u{fffd}'.len_utf8(), last: '\u{fffd}', end });
            }
        }
        self.ready.pop_front()
    }
}

/// Chooses the line ending of new text: that of the file or, if the file mixes them, that of the
/// current line.
struct LineEnds<'d> {
    document: &'d Document<'d>,
    /// End of the line ending at or after the last queried position, and its style.
    next: Option<(usize, Eol)>,
}

impl<'d> LineEnds<'d> {
    fn new(document: &'d Document<'_>) -> LineEnds<'d> {
        LineEnds { document, next: None }
    }

    fn at(&mut self, byte: usize) -> Eol {
        let Document { eol, encoding, bytes, bom, .. } = self.document;
        if *eol != Eol::Mixed {
            return *eol;
        }
        if let Some((end, eol)) = self.next
            && byte < end
        {
            return eol;
        }
        let unit = Unit::of(encoding);
        // The last line has no line ending, so use that of the line before.
        let (end, until) = match unit.after_newline(&bytes[byte..]) {
            Some(after) => (byte + after, byte + after),
            None => (last_newline(unit, &bytes[*bom..byte]).map_or(0, |end| bom + end), usize::MAX),
        };
        let width = unit.width();
        let before = end.checked_sub(bom + 2 * width).map(|at| &bytes[at + bom..][..width]);
        let crlf = before.is_some_and(|unit_before| unit.is(unit_before, b'\r'));
        let found = if crlf { Eol::Crlf } else { Eol::Lf };
        self.next = Some((until, found));
        found
    }
}

/// Returns the position just after the last newline.
fn last_newline(unit: Unit, bytes: &[u8]) -> Option<usize> {
    let width = unit.width();
    bytes.chunks_exact(width).rposition(|part| unit.is(part, b'\n')).map(|at| (at + 1) * width)
}

#[cfg(test)]
mod tests {
    use encoding_rs::{
        BIG5, EUC_KR, GB18030, GBK, SHIFT_JIS, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252,
    };

    use super::*;

    fn document<'a>(bytes: &'a [u8], encoding: &'static Encoding, eol: Eol) -> Document<'a> {
        Document::new(Cow::Borrowed(bytes), 0, encoding, eol)
    }

    /// Every character of a long text is found at the bytes that its encoding gives it, broken bytes or not.
    #[test]
    fn every_place_in_the_text_is_found_in_the_bytes() {
        let line = "a\tbé漢字 ü日本語か 中文 ¥\r\nx\ny\r\r\n";
        for encoding in [UTF_8, UTF_16LE, UTF_16BE, GB18030] {
            let mut bytes = Vec::new();
            let mut expected = Vec::new();
            let mut length = 0;
            for c in line.repeat(300).replace("\r\n", "\u{1}").chars() {
                let written = if c == '\u{1}' { "\r\n".to_owned() } else { c.to_string() };
                expected.push((length, bytes.len()));
                length += if c == '\u{1}' { 1 } else { c.len_utf8() };
                bytes.extend(text::encode(encoding, &written).unwrap());
            }
            let document = document(&bytes, encoding, Eol::Mixed);
            assert_eq!(document.text.len(), length);
            let mut places = Places::new(&document);
            for (text, byte) in &expected {
                assert_eq!(places.find(*text), Some(*byte), "{} at {text}", encoding.name());
            }
            assert_eq!(places.find(length), Some(bytes.len()));
            // And by leaps.
            let mut places = Places::new(&document);
            for (text, byte) in expected.iter().step_by(997) {
                assert_eq!(places.find(*text), Some(*byte), "{} at {text}", encoding.name());
            }
        }
    }

    #[test]
    fn broken_bytes_stay_where_they_are() {
        let samples: [(&'static Encoding, &[u8]); 8] = [
            (UTF_8, b"one \xff\xe2\x82 two \xc3\xc3\xa9 three\r\n"),
            (UTF_8, b"\xe2\x82\xc3\xa9 two \x80"),
            (GBK, b"one \xff\x81 two \xd6\xd0 \x81"),
            (SHIFT_JIS, b"\x81\xff two \x93\xfa \xa0\x81"),
            (BIG5, b"\x88\x62 two \x88\x20 \xff"),
            (EUC_KR, b"\xff\xfe two \xb0\xa1 \xb0"),
            (WINDOWS_1252, b"\x81\x8d two \xe9"),
            (GB18030, b"\x81\x30\x81 two \x81\x30\x81\x30 \x81\x30"),
        ];
        for (encoding, bytes) in samples {
            let document = document(bytes, encoding, Eol::None);
            let at = document.text.find("two").unwrap();
            let splice = Splice { range: at..at + 3, new: "TWO!".into() };
            let spliced = document.splice(&[splice], 1000).unwrap();
            let found = bytes.windows(3).position(|window| window == b"two").unwrap();
            let expected = [&bytes[..found], b"TWO!", &bytes[found + 3..]].concat();
            assert_eq!(spliced.bytes(), expected, "{}", encoding.name());
        }
        let odd = [&b"t\0w\0o\0"[..], b"\xd8"].concat();
        let document = document(&odd, UTF_16LE, Eol::None);
        let spliced = document.splice(&[Splice { range: 0..3, new: "ü".into() }], 1000).unwrap();
        assert_eq!(spliced.bytes(), b"\xfc\0\xd8");
    }

    #[test]
    fn what_would_read_otherwise_is_not_written() {
        // A partial character before this position would combine with the first new byte.
        let document = document(b"\x81 x", GBK, Eol::None);
        let at = document.text.find(' ').unwrap();
        assert!(document.splice(&[Splice { range: at..at + 2, new: "@".into() }], 1000).is_err());
        assert!(document.splice(&[Splice { range: at..at + 2, new: " y".into() }], 1000).is_ok());
    }

    #[test]
    fn mixed_line_ends_follow_their_line() {
        let bytes = b"one\r\ntwo\nthree\r\nfour";
        let document = document(bytes, UTF_8, Eol::Mixed);
        assert_eq!(document.text(), "one\ntwo\nthree\nfour");
        let splices = ["one", "two", "three", "four"].map(|word| {
            let at = document.text().find(word).unwrap();
            Splice { range: at..at + word.len(), new: format!("{word}\nX").into() }
        });
        let spliced = document.splice(&splices, 1000).unwrap();
        assert_eq!(spliced.bytes(), b"one\r\nX\r\ntwo\nX\nthree\r\nX\r\nfour\r\nX");
    }
}
