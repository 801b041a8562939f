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

/// Reads at most `max_bytes` bytes of text from the window.
pub fn read_excerpt(
    content: &FileContent,
    survey: &ContentSurvey,
    window: ExcerptWindow,
    max_bytes: usize,
    cancel: &CancelToken,
) -> Result<TextExcerpt> {
    match window {
        ExcerptWindow::Bytes { from, length } => {
            read_byte_window(content, survey, from, length, max_bytes)
        }
        ExcerptWindow::Lines { from, limit, numbered, asked } => {
            let Some((start, line)) = locate_line(content, survey, from, cancel)? else {
                return Ok(TextExcerpt::default());
            };
            if numbered && line.is_none() {
                return Err(too_large_error("to number lines from its end"));
            }
            let lines = LineWindow { first_line: line, limit, numbered, has_explicit_limit: asked };
            lines.read_lines(content, survey, start, max_bytes)
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
    offset: u64,
    bytes: &mut [u8],
) -> Result<bool> {
    if !known_secrets::has_secrets() || bytes.is_empty() {
        return Ok(false);
    }
    // Decoded as UTF-16, an ASCII value becomes other characters, which reveal it and are not found
    // by later redaction.
    if !survey.format.encoding.is_ascii_compatible() {
        return mask_raw_secrets(content, offset, bytes);
    }
    let overlap = known_secrets::max_overlap();
    let leading = usize::try_from(offset).unwrap_or(usize::MAX).min(overlap);
    let context = content.read(offset - leading as u64, leading + bytes.len() + overlap)?;
    let crossing =
        known_secrets::find_crossing(&context, leading..context.len().min(leading + bytes.len()));
    for byte in crossing.iter().flat_map(|part| part.clone()) {
        // Keep line endings, so that line counts stay correct.
        if !matches!(bytes[byte - leading], b'\n' | b'\r') {
            bytes[byte - leading] = b'*';
        }
    }
    Ok(!crossing.is_empty())
}

/// Masks values that occur as raw bytes in the file. Values in the file's own encoding are found in
/// its text later.
fn mask_raw_secrets(content: &FileContent, offset: u64, bytes: &mut [u8]) -> Result<bool> {
    let overlap = known_secrets::max_overlap();
    let leading = usize::try_from(offset).unwrap_or(usize::MAX).min(overlap);
    let context = content.read(offset - leading as u64, leading + bytes.len() + overlap)?;
    let masked = known_secrets::mask_secrets(&context);
    let masked_part = &masked[leading..context.len().min(leading + bytes.len())];
    let is_hidden = bytes.get(..masked_part.len()).is_some_and(|plain| plain != masked_part);
    if is_hidden {
        bytes[..masked_part.len()].copy_from_slice(masked_part);
    }
    Ok(is_hidden)
}

/// Returns the number of raw bytes that is enough for `max_bytes` bytes of text in every encoding.
/// UTF-16 needs two bytes per ASCII character.
fn max_raw_bytes(max_bytes: usize) -> usize {
    2 * max_bytes + 8
}

fn read_byte_window(
    content: &FileContent,
    survey: &ContentSurvey,
    from: u64,
    length: Option<u64>,
    max_bytes: usize,
) -> Result<TextExcerpt> {
    let max_raw = max_raw_bytes(max_bytes);
    let requested =
        length.map_or(max_raw, |length| usize::try_from(length).unwrap_or(max_raw).min(max_raw));
    let encoding = survey.format.encoding;
    let mut offset = from;
    if offset < survey.bom_len as u64 {
        offset = survey.bom_len as u64;
    } else if CodeUnit::from_encoding(encoding) != CodeUnit::Byte {
        offset &= !1;
    }
    let mut raw = content.read(offset, requested)?;
    if encoding == encoding_rs::UTF_8 && offset > survey.bom_len as u64 {
        // An offset that did not come from us may point into a character.
        let partial = raw.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
        raw.drain(..partial);
        offset += partial as u64;
    }
    let has_more = offset + (raw.len() as u64) < survey.size;
    let mut decoded = text::decode_prefix(encoding, &raw, max_bytes, has_more);
    raw.truncate(decoded.bytes_used);
    if mask_partial_secrets(content, survey, offset, &mut raw)? {
        decoded = text::decode_prefix(encoding, &raw, max_bytes, false);
    }
    let end = offset + decoded.bytes_used as u64;
    let requested_end = length.map_or(u64::MAX, |length| from.saturating_add(length));
    // A partial character at the end of the requested range is not a truncation.
    let truncated =
        end < survey.size && (length.is_none() || end.saturating_add(3) < requested_end);
    Ok(TextExcerpt {
        text: decoded.text,
        byte_offset: Some(offset),
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
        max_bytes: usize,
    ) -> Result<TextExcerpt> {
        let mut raw = content.read(start, max_raw_bytes(max_bytes))?;
        let reaches_end = start + raw.len() as u64 >= survey.size;
        let (mut excerpt, bytes_used, count) =
            self.fill_excerpt(survey, &raw, reaches_end, max_bytes);
        raw.truncate(bytes_used);
        if mask_partial_secrets(content, survey, start, &mut raw)? {
            let truncated = excerpt.truncated;
            (excerpt, ..) = self.fill_excerpt(survey, &raw, reaches_end, max_bytes);
            excerpt.truncated |= truncated;
        }
        self.set_position(&mut excerpt, survey, start + bytes_used as u64, count);
        Ok(excerpt)
    }

    /// Returns the lines that fit, how many bytes of the file they take, and how many lines they
    /// are.
    fn fill_excerpt(
        &self,
        survey: &ContentSurvey,
        raw: &[u8],
        reaches_end: bool,
        max_bytes: usize,
    ) -> (TextExcerpt, usize, u64) {
        let encoding = survey.format.encoding;
        let unit = CodeUnit::from_encoding(encoding);
        let mut excerpt = TextExcerpt::default();
        let (mut offset, mut count) = (0, 0);
        while offset < raw.len() && count < self.limit {
            let (line, is_complete) = match unit.position_after_newline(&raw[offset..]) {
                Some(after) => (&raw[offset..offset + after], true),
                None => (&raw[offset..], reaches_end),
            };
            let prefix = self.number_prefix(count);
            let bytes_left = max_bytes.saturating_sub(excerpt.text.len() + prefix.len());
            let decoded = text::decode_prefix(encoding, line, bytes_left, !is_complete);
            let fits = is_complete && decoded.bytes_used == line.len();
            if !fits {
                excerpt.truncated = true;
                // A line that does not fit is left for the next read, unless it is the first and
                // would not fit there either.
                if count > 0 {
                    break;
                }
                excerpt.line_cut = true;
            }
            excerpt.text.push_str(&prefix);
            excerpt.text.push_str(&decoded.text);
            excerpt.lossy |= decoded.is_lossy;
            offset += decoded.bytes_used;
            count += 1;
            if !fits {
                break;
            }
        }
        (excerpt, offset, count)
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
        let has_more = end < survey.size;
        if count > 0 {
            excerpt.start_line = self.first_line;
            excerpt.end_line = self.first_line.map(|line| line + count - 1);
        }
        excerpt.truncated |= has_more && !self.has_explicit_limit;
        if has_more {
            excerpt.next_byte_offset = Some(end);
            // Next line after a truncated one, if any. Where the file ends is known only for files
            // that were read completely.
            let next = self.first_line.map(|line| line + count);
            excerpt.next_offset =
                next.filter(|next| !survey.is_complete || *next <= survey.format.lines);
        }
    }
}
