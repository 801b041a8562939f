//! Characters that a human does not see and a model reads: which ones exist, and where ordinary
//! text needs them.
//!
//! The same character can be an attack or orthography. These are part of ordinary text, once each:
//! - a joiner (U+200C, U+200D) after a letter of a script that writes with it, such as Arabic,
//!   Persian or Hindi, and U+200D between two emoji (families, flags, professions);
//! - U+FE0E and U+FE0F after an emoji, also inside a keycap;
//! - a variation selector after a Han or Mongolian letter, where it chooses the glyph;
//! - the tags of the three flags that Unicode recommends (England, Scotland, Wales).
//!
//! Marks of direction are never needed to understand a text, only to lay it out.

/// Kind of a hidden character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HiddenClass {
    /// C0 or C1, except tab and ends of lines.
    Control,
    /// Terminal sequence, as a whole.
    Escape,
    /// End of a line in another form than `\n`.
    LineEnd,
    /// Without width, or a hint for line breaks.
    ZeroWidth,
    /// Mark of direction: invisible, and common in right-to-left text.
    DirectionMark,
    /// Embedding or isolate, which orders a passage.
    DirectionScope,
    /// Override, which shows characters in another order than they are read.
    DirectionOverride,
    /// Unicode tag, or another character of that plane.
    Tag,
    /// Variation selector.
    Selector,
    /// Without a meaning that everyone shares.
    PrivateUse,
}

/// Hidden characters, in order.
const HIDDEN_RANGES: &[(u32, u32, HiddenClass)] = &[
    (0x0, 0x8, HiddenClass::Control),
    (0xb, 0xd, HiddenClass::LineEnd), // Vertical tab, form feed, carriage return.
    (0xe, 0x1f, HiddenClass::Control),
    (0x7f, 0x84, HiddenClass::Control),
    (0x85, 0x85, HiddenClass::LineEnd),
    (0x86, 0x9f, HiddenClass::Control),
    (0xad, 0xad, HiddenClass::ZeroWidth),       // Soft hyphen.
    (0x34f, 0x34f, HiddenClass::ZeroWidth),     // Combining grapheme joiner.
    (0x61c, 0x61c, HiddenClass::DirectionMark), // Arabic letter mark.
    (0x115f, 0x1160, HiddenClass::ZeroWidth),   // Hangul fillers.
    (0x17b4, 0x17b5, HiddenClass::ZeroWidth),   // Khmer inherent vowels.
    (0x180b, 0x180d, HiddenClass::Selector),    // Mongolian.
    (0x180e, 0x180e, HiddenClass::ZeroWidth),
    (0x180f, 0x180f, HiddenClass::Selector),
    (0x200b, 0x200d, HiddenClass::ZeroWidth), // Zero-width space and joiners.
    (0x200e, 0x200f, HiddenClass::DirectionMark),
    (0x2028, 0x2029, HiddenClass::LineEnd),
    (0x202a, 0x202c, HiddenClass::DirectionScope),
    (0x202d, 0x202e, HiddenClass::DirectionOverride),
    (0x2060, 0x2065, HiddenClass::ZeroWidth), // Word joiner, invisible operators.
    (0x2066, 0x2069, HiddenClass::DirectionScope),
    (0x206a, 0x206f, HiddenClass::ZeroWidth), // Deprecated format characters.
    (0x3164, 0x3164, HiddenClass::ZeroWidth), // Hangul filler.
    (0xe000, 0xf8ff, HiddenClass::PrivateUse),
    (0xfdd0, 0xfdef, HiddenClass::PrivateUse), // Never characters.
    (0xfe00, 0xfe0f, HiddenClass::Selector),
    (0xfeff, 0xfeff, HiddenClass::ZeroWidth), // Byte order mark.
    (0xffa0, 0xffa0, HiddenClass::ZeroWidth), // Half-width Hangul filler.
    (0xfff0, 0xfffb, HiddenClass::ZeroWidth), // Annotations.
    (0xfffe, 0xffff, HiddenClass::PrivateUse),
    (0x1bca0, 0x1bca3, HiddenClass::ZeroWidth), // Shorthand.
    (0x1d173, 0x1d17a, HiddenClass::ZeroWidth), // Musical scopes.
    (0xe0000, 0xe00ff, HiddenClass::Tag),
    (0xe0100, 0xe01ef, HiddenClass::Selector),
    (0xe01f0, 0xe0fff, HiddenClass::Tag),
    (0xf0000, 0x10ffff, HiddenClass::PrivateUse),
];

/// Scripts that write with joiners: Arabic to N'Ko, Indic, Tibetan, Myanmar, Khmer, Mongolian.
const JOINED_SCRIPTS: &[(u32, u32)] = &[
    (0x600, 0x7ff),
    (0x840, 0x8ff),
    (0x900, 0xdff),
    (0xf00, 0x109f),
    (0x1780, 0x18af),
    (0xa8e0, 0xa8ff),
    (0xfb50, 0xfdcf),
    (0xfe70, 0xfefc),
    (0x11000, 0x1137f),
];

/// Symbols that can be shown as emoji.
const EMOJI_RANGES: &[(u32, u32)] = &[
    (0xa9, 0xa9),
    (0xae, 0xae),
    (0x203c, 0x203c),
    (0x2049, 0x2049),
    (0x2122, 0x2139),
    (0x2190, 0x21ff),
    (0x2300, 0x23ff),
    (0x24c2, 0x24c2),
    (0x25a0, 0x27bf),
    (0x2900, 0x297f),
    (0x2b00, 0x2bff),
    (0x3030, 0x303d),
    (0x3297, 0x3299),
    (0x1f000, 0x1faff),
];

const HAN_RANGES: &[(u32, u32)] = &[(0x3400, 0x9fff), (0xf900, 0xfaff), (0x20000, 0x3ffff)];

/// Tags of the flags of England, Scotland and Wales, after a black flag.
const FLAG_TAGS: [&str; 3] = ["gbeng", "gbsct", "gbwls"];

/// Part of a text: visible, or one hidden character, or one terminal sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TextPiece<'a> {
    pub(crate) text: &'a str,
    /// Byte at which the piece begins.
    pub(crate) start: usize,
    /// `None` for visible text, with the hidden characters that it needs.
    pub(crate) hidden: Option<HiddenClass>,
}

/// Iterator over the pieces of a text, which together are the text.
#[derive(Debug, Clone)]
pub(crate) struct TextPieces<'a> {
    text: &'a str,
    position: usize,
    /// Last character that was visible or needed.
    previous: Option<char>,
}

/// Splits a text where hidden characters begin and end, in linear time.
pub(crate) fn split_hidden(text: &str) -> TextPieces<'_> {
    TextPieces { text, position: 0, previous: None }
}

/// Returns the kind of a character that is hidden wherever it occurs without need.
pub(crate) fn hidden_class(c: char) -> Option<HiddenClass> {
    let code = u32::from(c);
    let position = HIDDEN_RANGES.partition_point(|(_, end, _)| *end < code);
    let (start, _, class) = HIDDEN_RANGES.get(position)?;
    (*start <= code).then_some(*class)
}

impl<'a> Iterator for TextPieces<'a> {
    type Item = TextPiece<'a>;

    fn next(&mut self) -> Option<TextPiece<'a>> {
        let rest = self.text.get(self.position..).filter(|rest| !rest.is_empty())?;
        let start = self.position;
        let visible = self.visible_length(rest);
        let (length, hidden) = match visible {
            0 => hidden_piece(rest),
            _ => (visible, None),
        };
        if hidden.is_some() {
            self.previous = None;
        }
        self.position = start + length;
        Some(TextPiece { text: rest.get(..length)?, start, hidden })
    }
}

impl TextPieces<'_> {
    /// Returns how many bytes are visible or needed.
    fn visible_length(&mut self, rest: &str) -> usize {
        let mut length = 0;
        while let Some(c) = rest.get(length..).and_then(|rest| rest.chars().next()) {
            let after = rest.get(length + c.len_utf8()..).unwrap_or_default();
            let needed = match hidden_class(c) {
                None => c.len_utf8(),
                Some(_) => self.needed_length(c, after),
            };
            if needed == 0 {
                break;
            }
            self.previous = Some(c);
            length += needed;
        }
        length
    }

    /// Returns how many bytes from a hidden character on are part of ordinary text.
    fn needed_length(&self, c: char, after: &str) -> usize {
        let next = after.chars().next();
        if c == '\r' && next == Some('\n') {
            return 1;
        }
        let Some(previous) = self.previous else { return 0 };
        let is_needed = match c {
            '\u{200c}' => is_in(JOINED_SCRIPTS, previous),
            '\u{200d}' => {
                is_in(JOINED_SCRIPTS, previous)
                    || (is_emoji(previous) || previous == '\u{fe0f}') && next.is_some_and(is_emoji)
            }
            '\u{fe0e}' | '\u{fe0f}' => is_emoji(previous) || next == Some('\u{20e3}'),
            '\u{180b}'..='\u{180f}' => matches!(previous, '\u{1820}'..='\u{18af}'),
            '\u{e0100}'..='\u{e01ef}' => is_in(HAN_RANGES, previous),
            '\u{e0000}'..='\u{e00ff}' if previous == '\u{1f3f4}' => return flag_length(c, after),
            _ => false,
        };
        if is_needed { c.len_utf8() } else { 0 }
    }
}

fn is_in(ranges: &[(u32, u32)], c: char) -> bool {
    let code = u32::from(c);
    hidden_class(c).is_none() && ranges.iter().any(|(start, end)| (*start..=*end).contains(&code))
}

fn is_emoji(c: char) -> bool {
    is_in(EMOJI_RANGES, c)
}

/// Returns the length of the tags of a flag, or 0 if they are not those of a flag.
fn flag_length(first: char, after: &str) -> usize {
    let tags = || std::iter::once(first).chain(after.chars()).take(6);
    let letters: String =
        tags().take(5).filter_map(|c| char::from_u32(u32::from(c) & 0x7f)).collect();
    let is_flag = FLAG_TAGS.contains(&letters.as_str())
        && tags().all(|c| hidden_class(c) == Some(HiddenClass::Tag))
        && tags().nth(5) == Some('\u{e007f}');
    if is_flag { tags().map(char::len_utf8).sum() } else { 0 }
}

/// Returns length and kind of the hidden piece with which a text begins.
fn hidden_piece(rest: &str) -> (usize, Option<HiddenClass>) {
    let Some(first) = rest.chars().next() else { return (0, None) };
    match escape_length(first, rest) {
        0 => (first.len_utf8(), hidden_class(first)),
        length => (length, Some(HiddenClass::Escape)),
    }
}

/// Returns the length of the terminal sequence with which a text begins, or 0.
fn escape_length(first: char, rest: &str) -> usize {
    let mut characters = rest.char_indices().skip(1);
    let (kind, body) = match first {
        '\u{1b}' => match characters.next() {
            Some((at, kind)) => (kind, at + kind.len_utf8()),
            None => return 1,
        },
        // The same in one character.
        '\u{90}' | '\u{98}' | '\u{9b}' | '\u{9d}' | '\u{9e}' | '\u{9f}' => {
            (char::from_u32(u32::from(first) - 0x40).unwrap_or(first), first.len_utf8())
        }
        _ => return 0,
    };
    let after = rest.get(body..).unwrap_or_default();
    match kind {
        '[' => body + control_length(after),
        ']' | 'P' | 'X' | '^' | '_' => body + string_length(after),
        ' ' if after.starts_with(['F', 'G', 'L', 'M', 'N']) => body + 1,
        '#' | '%' | '(' | ')' | '*' | '+' | '-' | '.' | '/' => {
            body + usize::from(after.starts_with(|c: char| matches!(c, '0'..='~')))
        }
        '0'..='~' => body,
        _ => first.len_utf8(),
    }
}

/// Returns the length of parameters and final character of a control sequence.
fn control_length(after: &str) -> usize {
    let end = after.find(|c: char| !matches!(c, ' '..='?')).unwrap_or(after.len());
    let has_final =
        after.get(end..).is_some_and(|rest| rest.starts_with(|c| matches!(c, '@'..='~')));
    end + usize::from(has_final)
}

/// Returns the length of a control string with its end. Without an end in the same line, the text
/// is not part of it: otherwise two characters could hide everything that follows.
fn string_length(after: &str) -> usize {
    let is_end = |c: char| matches!(c, '\u{7}' | '\u{9c}' | '\u{1b}' | '\n' | '\u{90}'..='\u{9f}');
    let Some(end) = after.find(is_end) else { return 0 };
    let rest = after.get(end..).unwrap_or_default();
    match rest.chars().next() {
        Some('\u{7}') => end + 1,
        Some('\u{9c}') => end + '\u{9c}'.len_utf8(),
        Some('\u{1b}') if rest.starts_with("\u{1b}\\") => end + 2,
        _ => 0,
    }
}
