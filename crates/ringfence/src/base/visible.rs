//! Makes untrusted text fully visible to a human who decides by it.
//!
//! One table lists the characters that cannot be seen or that change how the text around them is
//! drawn. Questions to clients, the terminal commands and the log all use it. Nothing here removes
//! anything: a character that cannot be shown is written as an escape, so a human reads exactly
//! what will be used.

use std::sync::LazyLock;

use regex::Regex;

/// Control, format, private and unassigned characters; every space but U+0020; everything that
/// Unicode tells a renderer to ignore. Also characters that are blank although Unicode classifies
/// them as symbols: the braille blank, a musical and two hieroglyphic blanks.
const HIDDEN_CHARS: &str = r"^[\p{C}\p{Z}\p{White_Space}\p{Default_Ignorable_Code_Point}\u{2800}\u{1D159}\u{13441}\u{13442}]$";

/// Maximum number of combining marks drawn after one letter; no language needs more, and a stack of
/// them covers its neighbours.
const MAX_MARKS: usize = 3;

/// From this many spaces in a row on, their number is shown instead: they would push the rest out
/// of sight.
const SPACES_TO_COUNT: usize = 16;

fn compile_class(pattern: &'static str) -> Option<Regex> {
    Regex::new(pattern)
        .inspect_err(|error| {
            tracing::error!("cannot compile the table of hidden characters: {error}")
        })
        .ok()
}

fn matches_class(class: &Option<Regex>, c: char) -> bool {
    // If the table is unavailable, everything beyond ASCII is escaped: ugly but safe.
    class.as_ref().is_none_or(|class| class.is_match(c.encode_utf8(&mut [0; 4])))
}

/// Returns whether a character must not be drawn as it is.
pub fn is_hidden_char(c: char) -> bool {
    static TABLE: LazyLock<Option<Regex>> = LazyLock::new(|| compile_class(HIDDEN_CHARS));
    match c {
        ' '..='~' => false,
        c => matches_class(&TABLE, c),
    }
}

fn is_combining_mark(c: char) -> bool {
    static TABLE: LazyLock<Option<Regex>> = LazyLock::new(|| compile_class(r"^\p{M}$"));
    !c.is_ascii() && matches_class(&TABLE, c)
}

/// Renders text as one line. Line breaks are escaped too, and long runs of spaces are replaced by
/// their number.
pub fn escape_to_line(text: &str) -> String {
    let mut escaper = LineEscaper::default();
    text.chars().for_each(|c| escaper.push_char(c));
    escaper.finish()
}

/// Renders text of several lines, keeping its line breaks.
pub fn escape_lines(text: &str) -> String {
    text.split('\n').map(escape_to_line).collect::<Vec<_>>().join("\n")
}

#[derive(Default)]
struct LineEscaper {
    text: String,
    spaces: usize,
    /// How many more combining marks the last character may carry.
    marks_left: usize,
}

impl LineEscaper {
    fn push_char(&mut self, c: char) {
        if c == ' ' {
            self.spaces += 1;
            self.marks_left = 0;
            return;
        }
        self.flush_spaces();
        match c {
            '\n' => self.push_escape("\\n"),
            '\t' => self.push_escape("\\t"),
            c if is_hidden_char(c) => self.push_escape(&format!("\\u{{{:x}}}", u32::from(c))),
            c if is_combining_mark(c) => match self.marks_left.checked_sub(1) {
                Some(remaining_marks) => {
                    self.marks_left = remaining_marks;
                    self.text.push(c);
                }
                None => self.push_escape(&format!("\\u{{{:x}}}", u32::from(c))),
            },
            c => {
                self.marks_left = MAX_MARKS;
                self.text.push(c);
            }
        }
    }

    /// Appends an escape. No mark may follow it, since it would be drawn over the escape.
    fn push_escape(&mut self, escape: &str) {
        self.marks_left = 0;
        self.text.push_str(escape);
    }

    fn flush_spaces(&mut self) {
        match std::mem::take(&mut self.spaces) {
            many @ SPACES_TO_COUNT.. => self.text.push_str(&format!(" [{many} spaces] ")),
            few => self.text.push_str(&" ".repeat(few)),
        }
    }

    fn finish(mut self) -> String {
        self.flush_spaces();
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_can_redraw_a_line_or_hide_in_it() {
        let shown = escape_to_line("ls\u{1b}[2K\rrm -rf ~\u{202e}\nAllow");
        assert_eq!(shown, "ls\\u{1b}[2K\\u{d}rm -rf ~\\u{202e}\\nAllow");
        assert_eq!(
            escape_to_line(&format!("make{};evil", " ".repeat(2100))),
            "make [2100 spaces] ;evil"
        );
        assert_eq!(escape_to_line("a\tb  c"), "a\\tb  c");
        assert_eq!(escape_lines("a\u{9b}\r\n\nb"), "a\\u{9b}\\u{d}\n\nb");
    }

    /// One of each kind, and the first and last of each block that is easily forgotten.
    #[test]
    fn everything_that_cannot_be_seen_is_an_escape() {
        let hidden = [
            0x00, 0x07, 0x1f, 0x7f, 0x80, 0x85, 0x9f, // control
            0xa0, 0x1680, 0x2000, 0x2007, 0x200a, 0x2028, 0x2029, 0x202f, 0x205f,
            0x3000, // spaces
            0xad, 0x34f, 0x61c, 0x70f, 0x180b, 0x180e, 0x180f, 0x200b, 0x200d, 0x200f, 0x202a,
            0x202e, 0x2060, 0x2061, 0x2065, 0x2066, 0x2069, 0x206f, 0xfeff, 0xfff0, 0xfff9, 0xfffb,
            0x110bd, 0x13430, 0x1bca0, 0x1d173, // format
            0x115f, 0x1160, 0x17b4, 0x17b5, 0x3164, 0xffa0, 0x2800, 0x1d159,
            0x13441, // blanks and fillers
            0xfe00, 0xfe0f, 0xe0100, 0xe01ef, 0xe0001, 0xe0020, 0xe0041, 0xe007f,
            0xe0fff, // selectors and tags
            0xe000, 0xf8ff, 0xf0000, 0x10fffd, 0x378, 0x10ffff, 0xfdd0,
            0x1ffff, // private, unassigned
        ];
        for code in hidden {
            let c = char::from_u32(code).unwrap();
            assert_eq!(escape_to_line(&format!("a{c}b")), format!("a\\u{{{code:x}}}b"));
        }
        for c in char::MIN..=char::MAX {
            let invisible = c.is_control() || c.is_whitespace() && c != ' ';
            assert!(!invisible || is_hidden_char(c), "{:x}", u32::from(c));
        }
        let visible = "aZ09~ üßéñ Ωλ Жж עברית العربية हिन्दी ไทย 漢字 かな 한글 ½€→✓ 😀";
        assert_eq!(escape_to_line(visible), visible);
    }

    #[test]
    fn a_pile_of_marks_does_not_cover_its_neighbours() {
        assert_eq!(escape_to_line("e\u{301}"), "e\u{301}");
        let pile = escape_to_line(&format!("e{}x", "\u{301}".repeat(5)));
        assert_eq!(pile, "e\u{301}\u{301}\u{301}\\u{301}\\u{301}x");
        assert_eq!(escape_to_line("\u{301}a"), "\\u{301}a");
        assert_eq!(escape_to_line("a \u{301}"), "a \\u{301}");
        assert_eq!(escape_to_line("\u{202e}\u{301}"), "\\u{202e}\\u{301}");
    }
}
