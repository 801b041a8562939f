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
use crate::tools::file::text::{self, CodeUnit, LineEnding};

/// Approximate size of the pieces in which a file is decoded. Finding a position means decoding
/// only one of them again.
const PIECE_BYTES: usize = 4 << 10;

/// Bytes of a text file and their decoded text.
pub struct TextDocument<'b> {
    bytes: Cow<'b, [u8]>,
    /// Length of the byte order mark, which is not part of the text.
    bom_len: usize,
    encoding: &'static Encoding,
    eol: LineEnding,
    text: String,
    pieces: Vec<TextPosition>,
}

/// Corresponding offsets in text and bytes.
#[derive(Debug, Clone, Copy)]
struct TextPosition {
    text: usize,
    byte: usize,
}

/// Replacement of a range of the text.
pub struct TextSplice<'n> {
    pub range: Range<usize>,
    pub new: Cow<'n, str>,
}

impl<'b> TextDocument<'b> {
    /// Decodes `bytes`, whose first `bom_len` bytes are a byte order mark.
    pub fn new(
        bytes: Cow<'b, [u8]>,
        bom_len: usize,
        encoding: &'static Encoding,
        eol: LineEnding,
    ) -> TextDocument<'b> {
        let mut text = String::with_capacity(bytes.len());
        let mut pieces = Vec::new();
        let mut offset = bom_len;
        while offset < bytes.len() {
            pieces.push(TextPosition { text: text.len(), byte: offset });
            let end = find_piece_end(&bytes, offset, encoding);
            let (part, _) = encoding.decode_without_bom_handling(&bytes[offset..end]);
            push_normalised(&mut text, &part);
            offset = end;
        }
        pieces.push(TextPosition { text: text.len(), byte: bytes.len() });
        TextDocument { bytes, bom_len, encoding, eol, text, pieces }
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
    pub fn apply_splices(
        &self,
        splices: &[TextSplice<'_>],
        max_bytes: usize,
    ) -> Result<TextDocument<'static>> {
        let mut positions = PositionFinder::new(self);
        let mut line_endings = LineEndingPicker::new(self);
        let mut bytes = Vec::with_capacity(self.bytes.len());
        let mut copied_end = 0;
        for splice in splices {
            let start =
                positions.find_byte(splice.range.start).ok_or_else(inseparable_bytes_error)?;
            let end = positions.find_byte(splice.range.end).ok_or_else(inseparable_bytes_error)?;
            self.check_invalid_bytes(splice, &self.bytes[start..end])?;
            bytes.extend_from_slice(&self.bytes[copied_end..start]);
            let new = text::convert_line_endings(&splice.new, line_endings.ending_at(start));
            bytes.extend_from_slice(
                &text::encode_text(self.encoding, &new)
                    .ok_or_else(|| self.unmappable_error(&new))?,
            );
            copied_end = end;
            if bytes.len() > max_bytes {
                return Err(too_large_error(max_bytes));
            }
        }
        bytes.extend_from_slice(&self.bytes[copied_end..]);
        if bytes.len() > max_bytes {
            return Err(too_large_error(max_bytes));
        }
        let spliced = TextDocument::new(Cow::Owned(bytes), self.bom_len, self.encoding, self.eol);
        // An encoding may combine new bytes with their neighbours (a partial character, a shift
        // state). Decode the result again, so that nothing is written that reads differently from
        // what was meant.
        let expected = self.expected_text(splices);
        if spliced.text == expected
            || spliced.text.replace("\r\n", "\n") == expected.replace("\r\n", "\n")
        {
            return Ok(spliced);
        }
        Err(inseparable_bytes_error())
    }

    fn expected_text(&self, splices: &[TextSplice<'_>]) -> String {
        let mut joined = String::with_capacity(self.text.len());
        let mut copied_end = 0;
        for splice in splices {
            joined.push_str(&self.text[copied_end..splice.range.start]);
            joined.push_str(&splice.new);
            copied_end = splice.range.end;
        }
        joined.push_str(&self.text[copied_end..]);
        joined
    }

    /// Refuses a replacement that would lose invalid bytes. They appear as U+FFFD in the text, and
    /// writing that character back would overwrite them.
    fn check_invalid_bytes(&self, splice: &TextSplice<'_>, bytes: &[u8]) -> Result<()> {
        let has_replacement_char =
            self.text[splice.range.clone()].contains('\u{fffd}') && splice.new.contains('\u{fffd}');
        if has_replacement_char && self.encoding.decode_without_bom_handling(bytes).1 {
            return Err(Error::invalid_arguments(
                "the replacement would write U+FFFD over bytes that are not valid in the file's encoding",
            )
            .with_reason("encoding_error")
            .with_hint("Leave the U+FFFD characters out of `old` and `new`; their bytes then stay unchanged."));
        }
        Ok(())
    }

    fn unmappable_error(&self, text: &str) -> Error {
        let name = self.encoding.name();
        let mut buffer = [0; 4];
        let unmappable = text
            .chars()
            .find(|c| text::encode_text(self.encoding, c.encode_utf8(&mut buffer)).is_none());
        let unmappable = unmappable.map_or(String::new(), |c| format!(": U+{:04X}", u32::from(c)));
        Error::invalid_arguments(format!("the file is in {name}, which cannot express the new text{unmappable}"))
            .with_reason("encoding_error")
            .with_hint("Leave that character out, or convert the file to UTF-8 first (file.write with encoding utf-8).")
            .with_fact("encoding", name.to_ascii_lowercase())
    }
}

fn too_large_error(max_bytes: usize) -> Error {
    Error::new(Kind::TooLarge, format!("the file would become larger than {max_bytes} bytes"))
        .with_hint("Replace less, or with less text.")
}

fn inseparable_bytes_error() -> Error {
    Error::invalid_arguments("the match begins or ends inside bytes that cannot be separated in the file's encoding")
        .with_reason("encoding_error")
        .with_hint("Choose `old` so that it begins and ends at character boundaries, for instance whole lines.")
}

/// Returns where a piece ends: after a newline. ISO-2022-JP is the only encoding that carries state
/// across a newline, so such a file is a single piece.
fn find_piece_end(bytes: &[u8], start: usize, encoding: &'static Encoding) -> usize {
    if bytes.len() - start <= PIECE_BYTES || encoding == ISO_2022_JP {
        return bytes.len();
    }
    let search_start = start + PIECE_BYTES;
    CodeUnit::from_encoding(encoding)
        .position_after_newline(&bytes[search_start..])
        .map_or(bytes.len(), |after| search_start + after)
}

fn push_normalised(text: &mut String, part: &str) {
    if !part.contains('\r') {
        return text.push_str(part);
    }
    let mut rest = part;
    while let Some(line_end) = rest.find("\r\n") {
        text.push_str(&rest[..line_end]);
        rest = &rest[line_end + 1..];
    }
    text.push_str(rest);
}

/// A decoded character (or the replacement for invalid bytes) and where its bytes end.
#[derive(Debug)]
struct DecodedChar {
    text_len: usize,
    last: char,
    byte_end: usize,
}

/// Cursor that maps text positions to byte positions, in ascending order.
struct PositionFinder<'d> {
    document: &'d TextDocument<'d>,
    /// Index of the current piece.
    piece: usize,
    decoder: Decoder,
    /// Number of bytes fed to the decoder so far.
    fed: usize,
    finished: bool,
    ready: VecDeque<DecodedChar>,
    position: TextPosition,
}

impl<'d> PositionFinder<'d> {
    fn new(document: &'d TextDocument<'_>) -> PositionFinder<'d> {
        let mut finder = PositionFinder {
            document,
            piece: 0,
            decoder: document.encoding.new_decoder_without_bom_handling(),
            fed: 0,
            finished: false,
            ready: VecDeque::new(),
            position: document.pieces[0],
        };
        finder.enter_piece(0);
        finder
    }

    fn enter_piece(&mut self, piece: usize) {
        self.piece = piece;
        self.position = self.document.pieces[piece];
        self.decoder = self.document.encoding.new_decoder_without_bom_handling();
        (self.fed, self.finished) = (self.position.byte, false);
        self.ready.clear();
    }

    /// Returns the byte offset of a text position, or `None` if it is inside a character.
    fn find_byte(&mut self, text_offset: usize) -> Option<usize> {
        let pieces = &self.document.pieces;
        let piece =
            pieces.partition_point(|position| position.text <= text_offset).saturating_sub(1);
        if piece > self.piece {
            self.enter_piece(piece);
        }
        while self.position.text < text_offset {
            let decoded = self.next_char()?;
            self.position = TextPosition {
                text: self.position.text + decoded.text_len,
                byte: decoded.byte_end,
            };
        }
        (self.position.text == text_offset).then_some(self.position.byte)
    }

    /// Returns the next character; `\r\n` is one, and one byte of text.
    fn next_char(&mut self) -> Option<DecodedChar> {
        let decoded = self.next_raw_char()?;
        if decoded.last != '\r' || decoded.text_len != 1 {
            return Some(decoded);
        }
        match self.next_raw_char() {
            Some(next) if next.last == '\n' && next.text_len == 1 => Some(next),
            Some(next) => {
                self.ready.push_front(next);
                Some(decoded)
            }
            None => Some(decoded),
        }
    }

    fn next_raw_char(&mut self) -> Option<DecodedChar> {
        let end = self.document.pieces.get(self.piece + 1)?.byte;
        while self.ready.is_empty() && !self.finished {
            let last = self.fed == end;
            let byte = if last { &[][..] } else { &self.document.bytes[self.fed..=self.fed] };
            let mut buffer = [0; 64];
            let (result, read, written) =
                self.decoder.decode_to_utf8_without_replacement(byte, &mut buffer, last);
            self.fed += read;
            let (char_end, malformed_end) = match result {
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
            if let Some(last) = std::str::from_utf8(&buffer[..written])
                .ok()
                .and_then(|text| text.chars().next_back())
            {
                self.ready.push_back(DecodedChar { text_len: written, last, byte_end: char_end });
            }
            if let Some(end) = malformed_end {
                self.ready.push_back(DecodedChar {
                    text_len: '\u{fffd}'.len_utf8(),
                    last: '\u{fffd}',
                    byte_end: end,
                });
            }
        }
        self.ready.pop_front()
    }
}

/// Chooses the line ending of new text: that of the file or, if the file mixes them, that of the
/// current line.
struct LineEndingPicker<'d> {
    document: &'d TextDocument<'d>,
    /// End of the line ending at or after the last queried position, and its style.
    cached: Option<(usize, LineEnding)>,
}

impl<'d> LineEndingPicker<'d> {
    fn new(document: &'d TextDocument<'_>) -> LineEndingPicker<'d> {
        LineEndingPicker { document, cached: None }
    }

    fn ending_at(&mut self, byte: usize) -> LineEnding {
        let TextDocument { eol, encoding, bytes, bom_len, .. } = self.document;
        if *eol != LineEnding::Mixed {
            return *eol;
        }
        if let Some((end, eol)) = self.cached
            && byte < end
        {
            return eol;
        }
        let unit = CodeUnit::from_encoding(encoding);
        // The last line has no line ending, so use that of the line before.
        let (end, valid_until) = match unit.position_after_newline(&bytes[byte..]) {
            Some(after) => (byte + after, byte + after),
            None => (
                position_after_last_newline(unit, &bytes[*bom_len..byte])
                    .map_or(0, |end| bom_len + end),
                usize::MAX,
            ),
        };
        let width = unit.width();
        let previous_unit =
            end.checked_sub(bom_len + 2 * width).map(|at| &bytes[at + bom_len..][..width]);
        let is_crlf =
            previous_unit.is_some_and(|unit_before| unit.is_ascii_char(unit_before, b'\r'));
        let ending = if is_crlf { LineEnding::Crlf } else { LineEnding::Lf };
        self.cached = Some((valid_until, ending));
        ending
    }
}

/// Returns the position just after the last newline.
fn position_after_last_newline(unit: CodeUnit, bytes: &[u8]) -> Option<usize> {
    let width = unit.width();
    bytes
        .chunks_exact(width)
        .rposition(|part| unit.is_ascii_char(part, b'\n'))
        .map(|at| (at + 1) * width)
}

#[cfg(test)]
mod tests {
    use encoding_rs::{
        BIG5, EUC_KR, GB18030, GBK, SHIFT_JIS, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252,
    };

    use super::*;

    fn document<'a>(
        bytes: &'a [u8],
        encoding: &'static Encoding,
        eol: LineEnding,
    ) -> TextDocument<'a> {
        TextDocument::new(Cow::Borrowed(bytes), 0, encoding, eol)
    }

    /// Every character of a long text is found at the bytes that its encoding gives it, broken
    /// bytes or not.
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
                bytes.extend(text::encode_text(encoding, &written).unwrap());
            }
            let document = document(&bytes, encoding, LineEnding::Mixed);
            assert_eq!(document.text.len(), length);
            let mut places = PositionFinder::new(&document);
            for (text, byte) in &expected {
                assert_eq!(places.find_byte(*text), Some(*byte), "{} at {text}", encoding.name());
            }
            assert_eq!(places.find_byte(length), Some(bytes.len()));
            // And by leaps.
            let mut places = PositionFinder::new(&document);
            for (text, byte) in expected.iter().step_by(997) {
                assert_eq!(places.find_byte(*text), Some(*byte), "{} at {text}", encoding.name());
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
            let document = document(bytes, encoding, LineEnding::None);
            let at = document.text.find("two").unwrap();
            let splice = TextSplice { range: at..at + 3, new: "TWO!".into() };
            let spliced = document.apply_splices(&[splice], 1000).unwrap();
            let found = bytes.windows(3).position(|window| window == b"two").unwrap();
            let expected = [&bytes[..found], b"TWO!", &bytes[found + 3..]].concat();
            assert_eq!(spliced.bytes(), expected, "{}", encoding.name());
        }
        let odd = [&b"t\0w\0o\0"[..], b"\xd8"].concat();
        let document = document(&odd, UTF_16LE, LineEnding::None);
        let spliced =
            document.apply_splices(&[TextSplice { range: 0..3, new: "ü".into() }], 1000).unwrap();
        assert_eq!(spliced.bytes(), b"\xfc\0\xd8");
    }

    #[test]
    fn what_would_read_otherwise_is_not_written() {
        // A partial character before this position would combine with the first new byte.
        let document = document(b"\x81 x", GBK, LineEnding::None);
        let at = document.text.find(' ').unwrap();
        assert!(
            document
                .apply_splices(&[TextSplice { range: at..at + 2, new: "@".into() }], 1000)
                .is_err()
        );
        assert!(
            document
                .apply_splices(&[TextSplice { range: at..at + 2, new: " y".into() }], 1000)
                .is_ok()
        );
    }

    #[test]
    fn mixed_line_ends_follow_their_line() {
        let bytes = b"one\r\ntwo\nthree\r\nfour";
        let document = document(bytes, UTF_8, LineEnding::Mixed);
        assert_eq!(document.text(), "one\ntwo\nthree\nfour");
        let splices = ["one", "two", "three", "four"].map(|word| {
            let at = document.text().find(word).unwrap();
            TextSplice { range: at..at + word.len(), new: format!("{word}\nX").into() }
        });
        let spliced = document.apply_splices(&splices, 1000).unwrap();
        assert_eq!(spliced.bytes(), b"one\r\nX\r\ntwo\nX\nthree\r\nX\r\nfour\r\nX");
    }
}
