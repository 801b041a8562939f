//! Words of a text in the form in which rules compare them: what a reader would take them for.
//!
//! Case, accents, styled letters, look-alikes of other scripts, digits in place of letters and
//! invisible characters make no difference.

use crate::hidden_chars::split_hidden;

/// Distance between the last word of a sentence and the first of the next, larger than any gap of a
/// rule.
const SENTENCE_DISTANCE: usize = 40;

/// Letters that look like Latin ones, each followed by the Latin one.
const LOOK_ALIKES: &str = "аaвbеeкkмmнhоoрpсcтtуyхxіiїiјjѕsһhԁdԛqԝwӏlґrпnгr\
                           αaβbεeηnιiκkνvοoρpτtυuχxγyωw\
                           ıiɡgɑaɩiʟlոnօoսuցgհhƖl";
/// Accented letters of several alphabets, each followed by the plain one.
const ACCENTED: &str =
    "àaáaâaãaäaåaāaçcćcčcèeéeêeëeēeęeìiíiîiïiīiñnńnòoóoôoõoöoøoōoùuúuûuüuūuýyÿyžzźzżzšsśsłlßs";

/// Word with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoldedWord {
    pub(super) text: String,
    /// Bytes in the text.
    pub(super) start: usize,
    pub(super) end: usize,
    /// Distance from the word before: 1, or more after the end of a sentence.
    pub(super) distance: usize,
}

/// Splits a text into words. Underscores and apostrophes are inside words, as is the dot with which
/// the name of a file begins (`.env`). Each ideograph is a word.
pub(super) fn fold_words(text: &str) -> Vec<FoldedWord> {
    let mut splitter =
        WordSplitter { words: Vec::new(), word: String::new(), start: 0, end: 0, distance: 1 };
    let visible = split_hidden(text).filter(|piece| piece.hidden.is_none());
    let mut characters = visible
        .flat_map(|piece| piece.text.char_indices().map(move |(at, c)| (piece.start + at, c)))
        .peekable();
    let mut previous = None;
    while let Some((at, c)) = characters.next() {
        let next = characters.peek().map(|(_, next)| *next);
        splitter.add_char(at, c, previous, next);
        previous = Some(c);
    }
    splitter.finish_word();
    splitter.words
}

struct WordSplitter {
    words: Vec<FoldedWord>,
    word: String,
    start: usize,
    end: usize,
    distance: usize,
}

impl WordSplitter {
    fn add_char(&mut self, at: usize, c: char, previous: Option<char>, next: Option<char>) {
        let plain = plain_char(c);
        let next_is_letter = next.is_some_and(char::is_alphanumeric);
        if is_ideograph(c) {
            self.finish_word();
            self.push_char(at, c, plain);
            self.finish_word();
        } else if plain.is_alphanumeric() || plain == '_' {
            self.push_char(at, c, plain);
        } else if matches!(c, '\'' | '’') && next_is_letter {
            // `don't` is `dont`.
        } else if c == '.' && next_is_letter && !previous.is_some_and(char::is_alphanumeric) {
            self.finish_word();
            self.push_char(at, c, c);
        } else if matches!(c, '\u{300}'..='\u{36f}') {
            // Accent of the letter before.
        } else {
            self.finish_word();
            if ends_sentence(c, next) {
                self.distance = SENTENCE_DISTANCE;
            }
        }
    }

    fn push_char(&mut self, at: usize, c: char, plain: char) {
        if self.word.is_empty() {
            self.start = at;
        }
        self.word.extend(plain.to_lowercase());
        self.end = at + c.len_utf8();
    }

    fn finish_word(&mut self) {
        let word = std::mem::take(&mut self.word);
        let text = fold_word(word.trim_matches('_'));
        if !text.is_empty() {
            let (start, end, distance) = (self.start, self.end, self.distance);
            self.words.push(FoldedWord { text, start, end, distance });
            self.distance = 1;
        }
    }
}

/// Tells whether a sentence or an item of a list ends.
fn ends_sentence(c: char, next: Option<char>) -> bool {
    match c {
        '.' | '!' | '?' => next.is_none_or(char::is_whitespace),
        '。' | '！' | '？' => true,
        '\n' => next.is_some_and(|next| matches!(next, '\n' | '\r' | '-' | '*' | '#' | '|' | '•')),
        _ => false,
    }
}

fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{20000}'..='\u{3ffff}')
}

/// Returns a styled or wide letter in its plain form.
fn plain_char(c: char) -> char {
    let code = u32::from(c);
    let letter = |first: u8, offset: u32| char::from(first + (offset % 26) as u8);
    match code {
        0xff01..=0xff5e => char::from_u32(code - 0xfee0).unwrap_or(c),
        0x1d400..=0x1d6a3 => letter(b'a', code - 0x1d400),
        0x1d7ce..=0x1d7ff => char::from(b'0' + ((code - 0x1d7ce) % 10) as u8),
        0x24b6..=0x24e9 => letter(b'a', code - 0x24b6),
        0x1f110..=0x1f189 if (code - 0x1f110) % 32 < 26 => letter(b'a', (code - 0x1f110) % 32),
        _ => c,
    }
}

/// Replaces accents, and look-alikes in words that mix them with Latin letters.
fn fold_word(word: &str) -> String {
    if word.is_ascii() && !word.bytes().any(|byte| byte.is_ascii_digit()) {
        return word.to_owned();
    }
    let plain: String = word.chars().map(|c| find_pair(ACCENTED, c).unwrap_or(c)).collect();
    if !plain.chars().any(|c| c.is_ascii_alphabetic()) {
        return plain;
    }
    plain.chars().map(|c| look_alike(c).or(digit_letter(c)).unwrap_or(c)).collect()
}

fn find_pair(pairs: &str, c: char) -> Option<char> {
    let mut characters = pairs.chars();
    while let (Some(from), Some(to)) = (characters.next(), characters.next()) {
        if from == c {
            return Some(to);
        }
    }
    None
}

/// Returns the Latin letter that a letter of another script looks like.
pub(super) fn look_alike(c: char) -> Option<char> {
    if c.is_ascii() { None } else { find_pair(LOOK_ALIKES, c) }
}

fn digit_letter(c: char) -> Option<char> {
    Some(match c {
        '0' => 'o',
        '1' => 'i',
        '3' => 'e',
        '4' => 'a',
        '5' => 's',
        '7' => 't',
        _ => return None,
    })
}

/// Returns what a name looks like: equal for names that a reader confuses.
pub(super) fn name_skeleton(name: &str) -> String {
    let visible = split_hidden(name).filter(|piece| piece.hidden.is_none());
    let plain = visible.flat_map(|piece| piece.text.chars()).map(plain_char);
    plain
        .flat_map(char::to_lowercase)
        .map(|c| look_alike(c).unwrap_or(c))
        .map(|c| match c {
            '0' => 'o',
            '1' | 'i' | '|' => 'l',
            '5' => 's',
            _ => c,
        })
        .collect()
}

/// Tells whether a name mixes Latin letters with letters of other scripts that look like them.
pub(super) fn mixes_look_alikes(name: &str) -> bool {
    let has_latin = name.chars().any(|c| c.is_ascii_alphabetic());
    has_latin
        && name
            .chars()
            .flat_map(char::to_lowercase)
            .any(|c| look_alike(c).is_some() || plain_char(c) != c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_the_form_that_a_reader_sees() {
        for (text, words) in [
            ("Don't Ignore `read_file`!", "dont ignore read_file"),
            ("1gn0re prev10us 2024", "ignore previous 2024"),
            ("ign\u{43e}re \u{200b}all", "ignore all"),
            ("i\u{200b}g\u{200b}nore", "ignore"),
            ("𝐃𝐨 ｎｏｔ Ⓣell", "do not tell"),
            ("cat ~/.ssh/id_rsa .env.", "cat .ssh id_rsa .env"),
            ("précédentes übrigens e\u{301}", "precedentes ubrigens e"),
            ("忽略 все", "忽 略 все"),
            ("_em_ __x__ _", "em x"),
        ] {
            let found: Vec<String> = fold_words(text).into_iter().map(|word| word.text).collect();
            assert_eq!(found.join(" "), words, "{text}");
        }
    }

    #[test]
    fn sentences_and_items_are_far_apart() {
        let distances = |text: &str| -> Vec<bool> {
            fold_words(text).iter().map(|word| word.distance == SENTENCE_DISTANCE).collect()
        };
        assert_eq!(distances("a b. c d.e"), [false, false, true, false, false]);
        assert_eq!(distances("a\nb\n\nc\n- d。e"), [false, false, true, true, true]);
    }

    #[test]
    fn places_are_bytes_of_the_text() {
        let text = "ü „ignore“ x";
        let words = fold_words(text);
        assert_eq!(&text[words[1].start..words[1].end], "ignore");
    }

    #[test]
    fn names_that_look_alike_have_one_skeleton() {
        for (one, other) in [
            ("read_file", "read_fi\u{4cf}e"),
            ("query", "qu\u{435}ry"),
            ("fi1e", "file"),
            ("g0", "go"),
        ] {
            assert_eq!(name_skeleton(one), name_skeleton(other));
        }
        assert_ne!(name_skeleton("read_file"), name_skeleton("read-file"));
        assert!(mixes_look_alikes("qu\u{435}ry") && !mixes_look_alikes("запрос"));
        assert!(!mixes_look_alikes("query") && !mixes_look_alikes("größe"));
    }
}
