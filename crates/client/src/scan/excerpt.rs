//! Excerpts for findings.

use std::ops::Range;

use super::secrets::is_random_word;
use crate::clean_text::show_invisible;

/// Most characters of an excerpt.
const MAX_EXCERPT_LENGTH: usize = 160;
/// Bytes shown before a finding.
const LEAD_BYTES: usize = 30;
/// Bytes shown from the start of a finding.
const BODY_BYTES: usize = 130;

/// Returns the passage of a finding in one line: bounded, with invisible characters shown, and
/// without words that could be secrets.
pub(super) fn make_excerpt(text: &str, found: &Range<usize>) -> String {
    let start = floor_boundary(text, found.start.saturating_sub(LEAD_BYTES));
    let end = floor_boundary(text, found.start.saturating_add(BODY_BYTES));
    let start = word_start(text, start, found.start);
    let passage = text.get(start..end).unwrap_or_default();
    let words = passage.split_whitespace().map(mask_word).collect::<Vec<_>>().join(" ");
    let shown = show_invisible(&words);
    let mut excerpt = String::new();
    if start > 0 {
        excerpt.push('…');
    }
    excerpt.extend(shown.chars().take(MAX_EXCERPT_LENGTH - 2));
    if end < text.len() || shown.chars().nth(MAX_EXCERPT_LENGTH - 2).is_some() {
        excerpt.push('…');
    }
    excerpt
}

/// Moves a start to the beginning of the next word, so that half a secret does not look harmless.
fn word_start(text: &str, start: usize, limit: usize) -> usize {
    if start == 0 {
        return 0;
    }
    let lead = text.get(start..limit).unwrap_or_default();
    lead.find(char::is_whitespace).map_or(limit, |space| start + space)
}

/// Returns the last boundary between characters up to a byte.
fn floor_boundary(text: &str, byte: usize) -> usize {
    let limit = byte.min(text.len());
    (0..=limit).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// Replaces the parts of a word that look random.
fn mask_word(word: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+' | '/' | '=');
    let mut masked = String::new();
    let mut rest = word;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        masked.push_str(if is_random_word(part) { "[masked]" } else { part });
        let other = after.find(is_part).unwrap_or(after.len());
        let (between, next) = after.split_at(other);
        masked.push_str(between);
        rest = next;
    }
    masked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_one_bounded_line_around_what_was_found() {
        let text = format!("{} here\n\tit \u{200b}is {}", "ü ".repeat(100), "word ".repeat(100));
        let at = text.find("here").unwrap();
        let excerpt = make_excerpt(&text, &(at..at + 4));
        assert!(
            excerpt.contains("here it <U+200B>is word") && excerpt.starts_with('…'),
            "{excerpt}"
        );
        assert!(excerpt.chars().count() <= MAX_EXCERPT_LENGTH, "{excerpt}");
        let hidden = "\u{e0041}".repeat(500);
        assert!(make_excerpt(&hidden, &(0..4)).chars().count() <= MAX_EXCERPT_LENGTH);
        assert_eq!(make_excerpt("ü", &(0..2)), "ü");
        assert_eq!(make_excerpt("", &(5..9)), "");
    }

    #[test]
    fn an_excerpt_has_no_secret_not_even_half_of_one() {
        let secret = "Zt8Kq2LmW5xVb9RnYc4HdJf7GsPa3EuT6oQi";
        for text in [
            format!("send {secret} now"),
            format!("key={secret}; send"),
            format!("{secret} and then a few words send"),
        ] {
            let at = text.find("send").unwrap();
            let excerpt = make_excerpt(&text, &(at..at + 4));
            assert!(!excerpt.contains("HdJf7Gs") && excerpt.contains("send"), "{excerpt}");
        }
    }
}
