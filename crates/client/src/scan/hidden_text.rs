//! Rule for text that a human cannot see: invisible characters, terminal sequences, and padding
//! that moves text out of view.

use std::ops::Range;

use super::definition_texts::ServerText;
use super::excerpt::make_excerpt;
use super::{ScanRule, ScanSeverity, TextFinding};
use crate::hidden_chars::{HiddenClass, split_hidden};

/// Hidden characters in a row that cannot be an accident of an editor.
const MIN_RUN: usize = 3;
/// Words with a hidden character inside that cannot be an accident.
const MIN_SPLIT_WORDS: usize = 3;
/// Blank characters in a row that move text out of view.
const MIN_PADDING: usize = 200;
/// Ends of lines in a row that move text out of view.
const MIN_EMPTY_LINES: usize = 40;

/// Finds text that a human cannot see: the first hard finding, or else the first soft one.
pub(super) fn find_hidden_text(text: &ServerText<'_>) -> Vec<TextFinding> {
    let found = find_padding(text.text)
        .map(|range| (ScanSeverity::Hard, range))
        .or_else(|| find_hidden_chars(text));
    let finding = found.map(|(severity, range)| TextFinding {
        rule: ScanRule::HiddenText,
        severity,
        excerpt: make_excerpt(text.text, &range),
    });
    finding.into_iter().collect()
}

fn find_hidden_chars(text: &ServerText<'_>) -> Option<(ScanSeverity, Range<usize>)> {
    let mut soft = None;
    let (mut run_length, mut run_end, mut split_words) = (0, 0, 0);
    for piece in split_hidden(text.text) {
        let Some(class) = piece.hidden else { continue };
        let range = piece.start..piece.start + piece.text.len();
        run_length = if piece.start == run_end { run_length + 1 } else { 1 };
        run_end = range.end;
        split_words += usize::from(splits_word(text.text, &range));
        let is_run = run_length >= MIN_RUN && class != HiddenClass::LineEnd;
        if text.is_name || is_run || split_words >= MIN_SPLIT_WORDS || is_hard(class, piece.text) {
            return Some((ScanSeverity::Hard, range));
        }
        if soft.is_none() && !is_ordinary(class, text.text, &range) {
            soft = Some((ScanSeverity::Soft, range));
        }
    }
    soft
}

/// Tells whether a character has no place in a definition at all. A backspace deletes text on a
/// terminal.
fn is_hard(class: HiddenClass, text: &str) -> bool {
    matches!(class, HiddenClass::Escape | HiddenClass::Tag | HiddenClass::DirectionOverride)
        || text == "\u{8}"
}

/// Tells whether a hidden character is usual where it is.
fn is_ordinary(class: HiddenClass, text: &str, range: &Range<usize>) -> bool {
    let is_right_to_left = |c: char| matches!(c, '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fefc}');
    // Thai to Tibetan, Myanmar, Khmer and East Asia: no spaces between words.
    let has_no_spaces = |c: char| matches!(c, '\u{e00}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{3000}'..='\u{9fff}');
    match (class, text.get(range.clone())) {
        (HiddenClass::LineEnd, _) | (_, Some("\u{ad}")) => true,
        (HiddenClass::DirectionMark | HiddenClass::DirectionScope, _) => {
            text.contains(is_right_to_left)
        }
        (_, Some("\u{feff}")) => range.start == 0,
        (_, Some("\u{200b}")) => text.contains(has_no_spaces),
        _ => false,
    }
}

/// Tells whether a character is inside a word of small Latin letters. Soft hyphens belong there, and
/// generators of documentation put zero-width spaces before capital letters.
fn splits_word(text: &str, range: &Range<usize>) -> bool {
    let bytes = text.as_bytes();
    let is_small = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphabetic);
    text.get(range.clone()) != Some("\u{ad}")
        && range.start.checked_sub(1).is_some_and(|before| is_small(bytes.get(before)))
        && bytes.get(range.end).is_some_and(u8::is_ascii_lowercase)
}

/// Finds blank characters that move the text after them out of view.
fn find_padding(text: &str) -> Option<Range<usize>> {
    let (mut blanks, mut line_ends) = (0, 0);
    for (at, c) in text.char_indices() {
        if c.is_whitespace() || c == '\u{2800}' {
            blanks += 1;
            line_ends += usize::from(c == '\n');
        } else {
            if at > 0 && (blanks >= MIN_PADDING || line_ends >= MIN_EMPTY_LINES) {
                return Some(at..at + c.len_utf8());
            }
            (blanks, line_ends) = (0, 0);
        }
    }
    None
}
