//! Extracts the part of a text that the caller asked for, within what the client can take.

use super::too_large_error;
use crate::base::{CancelToken, Result};
use crate::redact::known_secrets;
use crate::tools::file::content::{ContentSurvey, FileContent};
use crate::tools::file::text::{self, CodeUnit};

/// The requested part.
#[derive(Debug, Clone, Copy)]
pub enum ExcerptWindow {
    Lines {
        from: i64,
        limit: u64,
        numbered: bool,
        /// The caller chose the limit, so stopping there is not a truncation.
        asked: bool,
    },
    Bytes {
        from: u64,
        length: Option<u64>,
    },
}

/// Extracted text and its position in the file.
#[derive(Debug, Default)]
pub struct TextExcerpt {
    pub text: String,
    pub start_line: Option<u64>,
    pub end_line: Option<u64>,
    pub byte_offset: Option<u64>,
    pub truncated: bool,
    pub next_offset: Option<u64>,
    pub next_byte_offset: Option<u64>,
    /// The only line shown is incomplete.
    pub line_cut: bool,
    pub lossy: bool,
}

/// Reads at most `max` bytes of text from the window.
pub fn read_excerpt(
    content: &FileContent,
    survey: &ContentSurvey,
    window: ExcerptWindow,
    max: usize,
    cancel: &CancelToken,
) -> Result<TextExcerpt> {
    match window {
        ExcerptWindow::Bytes { from, length } => {
            read_byte_window(content, survey, from, length, max)
        }
        ExcerptWindow::Lines { from, limit, numbered, asked } => {
            let Some((start, line)) = locate_line(content, survey, from, cancel)? else {
                return Ok(TextExcerpt::default());
            };
            if numbered && line.is_none() {
                return Err(too_large_error("to number lines from its end"));
            }
            let lines = LineWindow { first_line: line, limit, numbered, has_explicit_limit: asked };
            lines.read_lines(content, survey, start, max)
        }
    }
}

/// Masks secret values that are only partly inside the shown bytes. Later redaction does not find a
/// fragment, and two reads could be joined into the whole value. A value that is completely inside
/// is left for that redaction, which replaces it with its name. Returns whether anything was
/// masked.
fn mask_partial_secrets(
    content: &FileContent,
    survey: &ContentSurvey,
    at: u64,
    shown: &mut [u8],
) -> Result<bool> {
    if !known_secrets::has_secrets() || shown.is_empty() {
        return Ok(false);
    }
    // Decoded as UTF-16, an ASCII value becomes other characters, which reveal it and are not found
    // by later redaction.
    if !survey.format.encoding.is_ascii_compatible() {
        return mask_raw_secrets(content, at, shown);
    }
    let reach = known_secrets::max_overlap();
    let before = usize::try_from(at).unwrap_or(usize::MAX).min(reach);
    let around = content.read(at - before as u64, before + shown.len() + reach)?;
    let cut = known_secrets::find_crossing(&around, before..around.len().min(before + shown.len()));
    for byte in cut.iter().flat_map(|part| part.clone()) {
        // Keep line endings, so that line counts stay correct.
        if !matches!(shown[byte - before], b'\n' | b'\r') {
            shown[byte - before] = b'*';
        }
    }
    Ok(!cut.is_empty())
}

/// Masks values that occur as raw bytes in the file. Values in the file's own encoding are found in
/// its text later.
fn mask_raw_secrets(content: &FileContent, at: u64, shown: &mut [u8]) -> Result<bool> {
    let reach = known_secrets::max_overlap();
    let before = usize::try_from(at).unwrap_or(usize::MAX).min(reach);
    let around = content.read(at - before as u64, before + shown.len() + reach)?;
    let masked = known_secrets::mask_secrets(&around);
    let hidden = &masked[before..around.len().min(before + shown.len())];
    let is_hidden = shown.get(..hidden.len()).is_some_and(|plain| plain != hidden);
    if is_hidden {
        shown[..hidden.len()].copy_from_slice(hidden);
    }
    Ok(is_hidden)
}

/// Returns the number of raw bytes that is enough for `max` bytes of text in every encoding. UTF-16
/// needs two bytes per ASCII character.
fn max_raw_bytes(max: usize) -> usize {
    2 * max + 8
}

fn read_byte_window(
    content: &FileContent,
    survey: &ContentSurvey,
    from: u64,
    length: Option<u64>,
    max: usize,
) -> Result<TextExcerpt> {
    let bound = max_raw_bytes(max);
    let wanted = length.map_or(bound, |length| usize::try_from(length).unwrap_or(bound).min(bound));
    let encoding = survey.format.encoding;
    let mut at = from;
    if at < survey.bom_len as u64 {
        at = survey.bom_len as u64;
    } else if CodeUnit::from_encoding(encoding) != CodeUnit::Byte {
        at &= !1;
    }
    let mut raw = content.read(at, wanted)?;
    if encoding == encoding_rs::UTF_8 && at > survey.bom_len as u64 {
        // An offset that did not come from us may point into a character.
        let partial = raw.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
        raw.drain(..partial);
        at += partial as u64;
    }
    let more = at + (raw.len() as u64) < survey.size;
    let mut decoded = text::decode_prefix(encoding, &raw, max, more);
    raw.truncate(decoded.bytes_used);
    if mask_partial_secrets(content, survey, at, &mut raw)? {
        decoded = text::decode_prefix(encoding, &raw, max, false);
    }
    let end = at + decoded.bytes_used as u64;
    let asked_end = length.map_or(u64::MAX, |length| from.saturating_add(length));
    // A partial character at the end of the requested range is not a truncation.
    let truncated = end < survey.size && (length.is_none() || end.saturating_add(3) < asked_end);
    Ok(TextExcerpt {
        text: decoded.text,
        byte_offset: Some(at),
        truncated,
        next_byte_offset: (decoded.bytes_used > 0 && end < survey.size).then_some(end),
        lossy: decoded.is_lossy,
        ..TextExcerpt::default()
    })
}

/// Returns the offset at which the requested line starts, and its number if that is known.
fn locate_line(
    content: &FileContent,
    survey: &ContentSurvey,
    from: i64,
    cancel: &CancelToken,
) -> Result<Option<(u64, Option<u64>)>> {
    if from > 0 {
        let line = from.unsigned_abs();
        return Ok(content.find_line_start(line, survey, cancel)?.map(|start| (start, Some(line))));
    }
    let count = from.unsigned_abs();
    if survey.is_complete {
        let line = survey.format.lines.saturating_sub(count) + 1;
        return Ok(content.find_line_start(line, survey, cancel)?.map(|start| (start, Some(line))));
    }
    if CodeUnit::from_encoding(survey.format.encoding) != CodeUnit::Byte {
        return Err(too_large_error("to count UTF-16 lines from its end"));
    }
    Ok(Some((content.find_line_start_from_end(count, survey, cancel)?, None)))
}

/// A requested range of lines.
struct LineWindow {
    /// Number of the first line.
    first_line: Option<u64>,
    limit: u64,
    numbered: bool,
    has_explicit_limit: bool,
}

impl LineWindow {
    /// Reads the lines. Everything that fits is within a window of bounded size, so one read is
    /// enough.
    fn read_lines(
        &self,
        content: &FileContent,
        survey: &ContentSurvey,
        start: u64,
        max: usize,
    ) -> Result<TextExcerpt> {
        let mut raw = content.read(start, max_raw_bytes(max))?;
        let to_end = start + raw.len() as u64 >= survey.size;
        let (mut excerpt, at, count) = self.fill_excerpt(survey, &raw, to_end, max);
        raw.truncate(at);
        if mask_partial_secrets(content, survey, start, &mut raw)? {
            let truncated = excerpt.truncated;
            (excerpt, ..) = self.fill_excerpt(survey, &raw, to_end, max);
            excerpt.truncated |= truncated;
        }
        self.set_position(&mut excerpt, survey, start + at as u64, count);
        Ok(excerpt)
    }

    /// Returns the lines that fit, how many bytes of the file they take, and how many lines they
    /// are.
    fn fill_excerpt(
        &self,
        survey: &ContentSurvey,
        raw: &[u8],
        to_end: bool,
        max: usize,
    ) -> (TextExcerpt, usize, u64) {
        let encoding = survey.format.encoding;
        let unit = CodeUnit::from_encoding(encoding);
        let mut excerpt = TextExcerpt::default();
        let (mut at, mut count) = (0, 0);
        while at < raw.len() && count < self.limit {
            let (line, whole) = match unit.position_after_newline(&raw[at..]) {
                Some(after) => (&raw[at..at + after], true),
                None => (&raw[at..], to_end),
            };
            let number = self.number_prefix(count);
            let room = max.saturating_sub(excerpt.text.len() + number.len());
            let decoded = text::decode_prefix(encoding, line, room, !whole);
            let fits = whole && decoded.bytes_used == line.len();
            if !fits {
                excerpt.truncated = true;
                // A line that does not fit is left for the next read, unless it is the first and
                // would not fit there either.
                if count > 0 {
                    break;
                }
                excerpt.line_cut = true;
            }
            excerpt.text.push_str(&number);
            excerpt.text.push_str(&decoded.text);
            excerpt.lossy |= decoded.is_lossy;
            at += decoded.bytes_used;
            count += 1;
            if !fits {
                break;
            }
        }
        (excerpt, at, count)
    }

    fn number_prefix(&self, count: u64) -> String {
        match self.first_line {
            Some(line) if self.numbered => format!("{}\t", line + count),
            _ => String::new(),
        }
    }

    fn set_position(
        &self,
        excerpt: &mut TextExcerpt,
        survey: &ContentSurvey,
        end: u64,
        count: u64,
    ) {
        let more = end < survey.size;
        if count > 0 {
            excerpt.start_line = self.first_line;
            excerpt.end_line = self.first_line.map(|line| line + count - 1);
        }
        excerpt.truncated |= more && !self.has_explicit_limit;
        if more {
            excerpt.next_byte_offset = Some(end);
            // Next line after a truncated one, if any. Where the file ends is known only for files
            // that were read completely.
            let next = self.first_line.map(|line| line + count);
            excerpt.next_offset =
                next.filter(|next| !survey.is_complete || *next <= survey.format.lines);
        }
    }
}
