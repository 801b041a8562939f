//! Edits: compiles them, finds their matches and applies them.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use regex::{Regex, RegexBuilder};

use super::document::{TextDocument, TextSplice};
use super::{RawEdit, groups, mismatch_help};
use crate::base::{CancelToken, Error, Kind, Result};
use crate::tools::file::chunk_size::{ChunkSize, MAX_CHUNK_BYTES};
use crate::tools::file::content::check_cancelled;

/// Size limits of a pattern and of its compiled form.
const MAX_PATTERN_BYTES: usize = 64 << 10;
const MAX_COMPILED_BYTES: usize = 1 << 20;
/// Maximum number of matches of an edit.
pub const MAX_MATCHES: usize = 500_000;
/// Number of line numbers listed in a result or an error.
pub const MAX_LINES: usize = 20;
/// Time limit for probing a long text in pieces. Searching the whole text takes a few times as long
/// at worst.
const MAX_PROBE_TIME: Duration = Duration::from_secs(4);

const BAD_SYNTAX: &str = "Rust regex syntax: no look-around, no back-references. Set regex to false to match plain text.";
const TOO_BIG: &str = "Simplify it: fewer or smaller repetitions, `[0-9A-Za-z_]` instead of `\\w`.";

/// Compiled edit.
pub struct CompiledEdit {
    pattern: EditPattern,
    new: String,
    /// Required number of matches; `None` means any number.
    pub expected_count: Option<u64>,
}

enum EditPattern {
    Literal(String),
    Regex(Regex),
}

/// Number of matches of an edit, and the lines of the first ones in the text that it was applied
/// to.
#[derive(Debug, Clone, Default)]
pub struct MatchTally {
    pub count: u64,
    pub lines: Vec<u64>,
}

impl CompiledEdit {
    /// Compiles the edit at index `index`. `expect` is the required number of matches if the caller
    /// does not give one.
    pub fn compile(raw: &RawEdit, index: usize, expect: u64) -> Result<CompiledEdit> {
        let argument_error =
            |message: String| Error::invalid_arguments(message).with_fact("edit", index);
        if raw.old.is_empty() {
            return Err(argument_error(format!("`edits[{index}].old` is empty")).with_hint(
                "Give the text to replace. To write a whole file or append to it, use file.write.",
            ));
        }
        // The caller need not know the file's line endings: both sides are matched with `\n`.
        let old = raw.old.replace("\r\n", "\n");
        let pattern = if raw.regex.unwrap_or(false) {
            if old.len() > MAX_PATTERN_BYTES {
                return Err(argument_error(format!(
                    "the pattern of `edits[{index}]` is longer than {MAX_PATTERN_BYTES} bytes"
                )));
            }
            let built = RegexBuilder::new(&old)
                .size_limit(MAX_COMPILED_BYTES)
                .dfa_size_limit(2 * MAX_COMPILED_BYTES)
                .build();
            let regex = built.map_err(|error| {
                argument_error(mismatch_help::bad_pattern_message(index, &error))
                    .with_reason("bad_pattern")
                    .with_hint(match error {
                        regex::Error::CompiledTooBig(_) => TOO_BIG,
                        _ => BAD_SYNTAX,
                    })
            })?;
            if let Some((name, hint)) = groups::find_unknown_group(&regex, &raw.new) {
                let message = format!(
                    "`new` of `edits[{index}]` names the group `{name}`, which the pattern does not have"
                );
                return Err(argument_error(message).with_reason("no_such_group").with_hint(hint));
            }
            EditPattern::Regex(regex)
        } else {
            if raw.old == raw.new {
                return Err(argument_error(format!(
                    "`old` and `new` of `edits[{index}]` are the same"
                )));
            }
            EditPattern::Literal(old)
        };
        let expect = raw.expect.unwrap_or(expect);
        Ok(CompiledEdit {
            pattern,
            new: raw.new.clone(),
            expected_count: (expect > 0).then_some(expect),
        })
    }

    /// Returns whether `old` is a regular expression.
    pub fn is_regex(&self) -> bool {
        matches!(self.pattern, EditPattern::Regex(_))
    }

    /// Returns what it searches for, as the caller wrote it (with `\n` as line ending).
    pub fn search_text(&self) -> &str {
        match &self.pattern {
            EditPattern::Literal(old) => old,
            EditPattern::Regex(regex) => regex.as_str(),
        }
    }

    /// Finds all non-overlapping matches, from left to right.
    fn find_matches<'a>(
        &'a self,
        text: &str,
        max_bytes: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<TextSplice<'a>>> {
        let mut splices: Vec<TextSplice<'a>> = Vec::new();
        let mut bytes_left = max_bytes;
        let mut add_match = |range: std::ops::Range<usize>, new: Cow<'a, str>| -> Result<()> {
            if splices.len() >= MAX_MATCHES {
                return Err(Error::new(
                    Kind::TooLarge,
                    format!("there are more than {MAX_MATCHES} matches"),
                )
                .with_hint("Look for something more specific."));
            }
            check_cancelled(cancel)?;
            bytes_left = bytes_left.checked_sub(new.len()).ok_or_else(|| {
                Error::new(Kind::TooLarge, format!("the new text exceeds {max_bytes} bytes"))
                    .with_hint("Replace less, or with less text.")
            })?;
            splices.push(TextSplice { range, new });
            Ok(())
        };
        match &self.pattern {
            EditPattern::Literal(old) => {
                for (start, _) in text.match_indices(old.as_str()) {
                    add_match(start..start + old.len(), Cow::Borrowed(&self.new))?;
                }
            }
            EditPattern::Regex(regex) => {
                probe_pattern(regex, text, MAX_PROBE_TIME, cancel)?;
                for captures in regex.captures_iter(text) {
                    let Some(full_match) = captures.get(0) else { continue };
                    let mut new = String::new();
                    captures.expand(&self.new, &mut new);
                    add_match(full_match.range(), Cow::Owned(new))?;
                }
            }
        }
        Ok(splices)
    }
}

/// Estimates the cost of a pattern on a long text. A single search cannot be interrupted, so the
/// text is first searched in small pieces, between which we can stop.
fn probe_pattern(
    regex: &Regex,
    text: &str,
    max_time: Duration,
    cancel: &CancelToken,
) -> Result<()> {
    let deadline = Instant::now() + max_time;
    let mut rest = if text.len() > 2 * MAX_CHUNK_BYTES { text } else { "" };
    let mut chunk_size = ChunkSize::default();
    while !rest.is_empty() {
        let end = (chunk_size.bytes()..rest.len())
            .find(|at| rest.is_char_boundary(*at))
            .unwrap_or(rest.len());
        let (slice, tail) = rest.split_at(end);
        rest = tail;
        let started_at = Instant::now();
        let mut captures = regex.captures_iter(slice);
        loop {
            check_cancelled(cancel)?;
            if Instant::now() > deadline {
                return Err(Error::new(Kind::DeadlineExceeded, "the pattern takes too long on this file")
                    .with_reason("slow_pattern")
                    .with_hint("Nothing was written. Simplify the pattern: fewer repetitions within repetitions."));
            }
            if captures.next().is_none() {
                break;
            }
        }
        chunk_size = chunk_size.adjusted_since(started_at);
    }
    Ok(())
}

/// Applies all edits, each to the result of the previous one. Returns the edited document and the
/// matches of each edit. With `strict`, each edit must match as often as it requires.
pub fn apply_edits<'b>(
    mut document: TextDocument<'b>,
    edits: &[CompiledEdit],
    strict: bool,
    max_bytes: usize,
    cancel: &CancelToken,
) -> Result<(TextDocument<'b>, Vec<MatchTally>)> {
    let mut tallies = Vec::new();
    for (index, edit) in edits.iter().enumerate() {
        check_cancelled(cancel)?;
        let splices = edit.find_matches(document.text(), max_bytes, cancel)?;
        let tally = MatchTally {
            count: splices.len() as u64,
            lines: match_lines(document.text(), &splices),
        };
        if strict && edit.expected_count.is_some_and(|expect| expect != tally.count) {
            return Err(mismatch_help::mismatch_error(&document, edits, index, &tally, cancel)?);
        }
        tallies.push(tally);
        if !splices.is_empty() {
            document = document.apply_splices(&splices, max_bytes)?;
        }
    }
    Ok((document, tallies))
}

/// Returns the lines in which the first matches begin.
fn match_lines(text: &str, splices: &[TextSplice<'_>]) -> Vec<u64> {
    let (mut line, mut position) = (1, 0);
    let mut lines = Vec::new();
    for splice in splices.iter().take(MAX_LINES) {
        line += text.as_bytes()[position..splice.range.start]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count() as u64;
        position = splice.range.start;
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::CancelCause;

    #[test]
    fn a_slow_pattern_is_given_up() {
        let mut seed = 7u32;
        let text: String = (0..300_000)
            .map(|_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if seed >> 31 == 0 { 'a' } else { 'b' }
            })
            .collect();
        let regex = Regex::new("[ab]*a[ab]{900}[ab]{900}[ab]{900}c").unwrap();
        let begun = Instant::now();
        let error = probe_pattern(&regex, &text, Duration::from_millis(200), &CancelToken::new())
            .unwrap_err();
        assert_eq!(
            (error.kind(), error.reason_name()),
            (Kind::DeadlineExceeded, Some("slow_pattern"))
        );
        let cancel = CancelToken::new();
        cancel.cancel(CancelCause::Client);
        assert_eq!(
            probe_pattern(&regex, &text, MAX_PROBE_TIME, &cancel).unwrap_err().kind(),
            Kind::Cancelled
        );
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        probe_pattern(&Regex::new("[ab]+a").unwrap(), &text, MAX_PROBE_TIME, &CancelToken::new())
            .unwrap();
    }
}
