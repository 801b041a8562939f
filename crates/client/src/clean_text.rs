//! Makes text of untrusted servers safe to show to a model or a human.
//!
//! What a human reviews must be what a model reads, so characters without a visible form are
//! removed. Text in any script keeps its meaning: [`crate::hidden_chars`] says which invisible
//! characters orthography needs. Hints for layout (soft hyphens, zero-width spaces of Thai, marks
//! of direction) are removed, because the words remain the same without them.

use crate::hidden_chars::{HiddenClass, TextPiece, split_hidden};

/// Removes everything from a text that is invisible or controls a terminal, and cuts it after
/// `max_chars` characters, with a note that says how many were cut. The note is not included in
/// `max_chars`.
///
/// Removed are control characters except `\n` and `\t`, terminal sequences as a whole, zero-width
/// and other invisible characters, controls of direction, Unicode tags, variation selectors, and
/// characters for private use; kept are those that orthography and emoji need. Other ends of lines,
/// such as `\r\n` and U+2028, become `\n`.
pub fn clean_text(text: &str, max_chars: usize) -> String {
    let mut cleaned = String::with_capacity(text.len().min(max_chars.saturating_mul(4)));
    let (mut kept_count, mut cut_count) = (0, 0_usize);
    for c in split_hidden(text).flat_map(visible_chars) {
        if kept_count < max_chars {
            cleaned.push(c);
            kept_count += 1;
        } else {
            cut_count += 1;
        }
    }
    match cut_count {
        0 => cleaned,
        1 => cleaned + "… [1 more character was cut]",
        _ => cleaned + &format!("… [{cut_count} more characters were cut]"),
    }
}

/// Cleans a text as [`clean_text()`] does and joins its lines, so that no part of it can pass for a
/// line of another.
pub fn clean_line(text: &str, max_chars: usize) -> String {
    clean_text(text, max_chars).replace(['\n', '\t'], " ")
}

/// Replaces each character that [`clean_text()`] removes by its code (`<U+200B>`), so that a
/// difference between two texts can be seen.
pub fn show_invisible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for piece in split_hidden(text) {
        match piece.hidden {
            None => shown.push_str(piece.text),
            Some(_) => piece.text.chars().for_each(|c| push_code(&mut shown, c)),
        }
    }
    shown
}

/// Returns the characters of a piece that are shown.
fn visible_chars(piece: TextPiece<'_>) -> impl Iterator<Item = char> {
    let (text, line_end) = match piece.hidden {
        None => (piece.text, None),
        Some(HiddenClass::LineEnd) => ("", Some('\n')),
        Some(_) => ("", None),
    };
    // The `\r` of `\r\n` is part of ordinary text, but no part of its meaning.
    text.chars().filter(|c| *c != '\r').chain(line_end)
}

fn push_code(shown: &mut String, c: char) {
    match c {
        // The visible rest of a terminal sequence.
        ' '..='~' => shown.push(c),
        _ => shown.push_str(&format!("<U+{:04X}>", u32::from(c))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text, what is left of it, and what is shown of it.
    const HIDDEN: &[(&str, &str, &str)] = &[
        ("a\0b\u{7f}c", "abc", "a<U+0000>b<U+007F>c"),
        ("a\u{8}\u{86}", "a", "a<U+0008><U+0086>"),
        ("one\rtwo\u{2028}three\u{85}", "one\ntwo\nthree\n", "one<U+000D>two<U+2028>three<U+0085>"),
        ("a\u{1b}[31;1mred\u{1b}[0m", "ared", "a<U+001B>[31;1mred<U+001B>[0m"),
        ("\u{9b}8mx", "x", "<U+009B>8mx"),
        ("\u{1b}]0;title\u{7}x", "x", "<U+001B>]0;title<U+0007>x"),
        ("\u{1b}]8;;http://a\u{1b}\\x", "x", "<U+001B>]8;;http://a<U+001B>\\x"),
        ("\u{1b}Pq#0\u{9c}x", "x", "<U+001B>Pq#0<U+009C>x"),
        ("\u{1b}]no end\nx", "no end\nx", "<U+001B>]no end\nx"),
        ("\u{1b}(Bx\u{1b}cy\u{1b} z", "xy z", "<U+001B>(Bx<U+001B>cy<U+001B> z"),
        ("x\u{1b}", "x", "x<U+001B>"),
        (
            "ig\u{200b}no\u{2060}re\u{ad}d\u{feff}",
            "ignored",
            "ig<U+200B>no<U+2060>re<U+00AD>d<U+FEFF>",
        ),
        ("a\u{200d}b\u{200c}c", "abc", "a<U+200D>b<U+200C>c"),
        ("\u{3164}x\u{115f}", "x", "<U+3164>x<U+115F>"),
        ("a\u{202e}b\u{2066}c\u{200f}\u{61c}", "abc", "a<U+202E>b<U+2066>c<U+200F><U+061C>"),
        ("a\u{e0041}\u{e007f}", "a", "a<U+E0041><U+E007F>"),
        ("x\u{fe0f}\u{fe01}\u{e0100}", "x", "x<U+FE0F><U+FE01><U+E0100>"),
        ("😀\u{fe0f}\u{fe0f}", "😀\u{fe0f}", "😀\u{fe0f}<U+FE0F>"),
        ("a\u{e000}\u{10fffd}\u{ffff}", "a", "a<U+E000><U+10FFFD><U+FFFF>"),
        (
            "\u{1f3f4}\u{e0067}\u{e0062}\u{e007f}",
            "\u{1f3f4}",
            "\u{1f3f4}<U+E0067><U+E0062><U+E007F>",
        ),
        ("می\u{200c}\u{200c}خواهم", "می\u{200c}خواهم", "می\u{200c}<U+200C>خواهم"),
    ];

    /// Text that stays as it is.
    const ORDINARY: &[&str] = &[
        "",
        "Plain text\n\twith lines — “quotes”, a × b ≠ c, naïve, ½",
        "هذا نص عربي ٣٫١٤",
        "می\u{200c}خواهم",
        "क्\u{200d}ष और क्\u{200c}ष",
        "ශ්\u{200d}රී ලංකා",
        "ภาษาไทย 日本語 한국어 中文 Ελληνικά Русский עברית",
        "葛\u{e0100}",
        "👨\u{200d}👩\u{200d}👧\u{200d}👦 🏳\u{fe0f}\u{200d}🌈 👩🏽\u{200d}💻 ❤\u{fe0f} ☑\u{fe0e} 1\u{fe0f}\u{20e3}",
        "\u{1f3f4}\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f} 🇩🇪",
    ];

    #[test]
    fn hidden_characters_are_removed_or_shown() {
        for (text, cleaned, shown) in HIDDEN {
            assert_eq!(clean_text(text, 100), *cleaned, "{shown}");
            assert_eq!(show_invisible(text), *shown);
        }
    }

    #[test]
    fn ordinary_text_of_all_scripts_stays_as_it_is() {
        for text in ORDINARY {
            assert_eq!(clean_text(text, 1000), *text);
            assert_eq!(show_invisible(text), *text);
        }
        assert_eq!(clean_text("\r\na\u{200b}\r\nb", 9), "\na\nb");
    }

    #[test]
    fn a_line_has_no_further_lines() {
        assert_eq!(clean_line("a\u{2028}b\r\nc\u{b}d\te\u{1b}[2J", 100), "a b c d e");
        assert_eq!(clean_line("a\nbc", 2), "a … [2 more characters were cut]");
    }

    #[test]
    fn the_rest_of_a_long_text_is_cut_with_a_note() {
        assert_eq!(clean_text("äöü", 3), "äöü");
        assert_eq!(clean_text("äöüß", 3), "äöü… [1 more character was cut]");
        assert_eq!(clean_text("a\u{200b}bcd", 2), "ab… [2 more characters were cut]");
        assert_eq!(clean_text("\u{1b}[1mab", 0), "… [2 more characters were cut]");
    }

    #[test]
    fn the_result_has_no_hidden_character_and_cleaning_it_changes_nothing() {
        let parts: Vec<&str> =
            HIDDEN.iter().map(|(text, ..)| *text).chain(ORDINARY.to_vec()).collect();
        for one in &parts {
            for other in &parts {
                let cleaned = clean_text(&format!("{one}{other}"), 1000);
                assert_eq!(clean_text(&cleaned, 1000), cleaned);
                assert_eq!(show_invisible(&cleaned), cleaned);
            }
        }
    }

    #[test]
    fn a_megabyte_of_sequences_without_end_is_cleaned_at_once() {
        let started = std::time::Instant::now();
        for part in
            ["\u{1b}]", "\u{1b}[", "\u{90}x", "\u{200d}", "\u{1f3f4}\u{e0067}", "\u{1b}]abc\n"]
        {
            let text = part.repeat((1 << 20) / part.len());
            assert!(show_invisible(&text).len() >= text.len());
            clean_text(&text, 10);
        }
        assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    }
}
