//! A text file as it should behave, written down as simply as possible: a list of characters, line ends and bytes that
//! are nobody's.

use encoding_rs::{Encoding, GBK, SHIFT_JIS, UTF_8, UTF_16BE, UTF_16LE};
use regex::Regex;

use crate::rng::Rng;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    Char(char),
    /// A line end, and whether it is `\r\n`.
    End(bool),
    /// A byte that is not valid where it stands.
    Raw(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eol {
    None,
    Lf,
    Crlf,
    Mixed,
}

#[derive(Debug, Clone)]
pub struct Model {
    pub encoding: &'static Encoding,
    bom: bool,
    pub tokens: Vec<Token>,
}

/// Text by which an encoding is known for certain.
const CHINESE: &str =
    "这是一个用来测试编码检测的中文文件。内容要足够长才能判断清楚它到底是什么编码。";
const JAPANESE: &str =
    "日本語のテキストです。これは文字コードの判定を試すための文章です。ひらがなとカタカナ。";
const WIDE: &str =
    "grün und größer, 漢字 and кириллица: a line by which one knows what this is. ÄÖÜäöüß";

/// What one edit should do.
pub struct Edit {
    pub old: String,
    pub new: String,
    pub regex: bool,
    /// None is any number.
    pub expect: Option<usize>,
}

impl Model {
    /// Some file; the first line says what it is.
    pub fn any(rng: &mut Rng) -> Model {
        let (encoding, bom) = *rng.pick(&[
            (UTF_8, false),
            (UTF_8, false),
            (UTF_8, true),
            (UTF_16LE, true),
            (UTF_16BE, true),
            (GBK, false),
            (SHIFT_JIS, false),
        ]);
        let mut model = Model { encoding, bom, tokens: Vec::new() };
        let style = rng.below(4);
        let text = format!("{}\n{}", model.first_line(), any_text(rng, 300, model.is_unicode()));
        for c in text.chars() {
            model.tokens.push(match c {
                '\n' => Token::End(style == 1 || style == 2 && rng.one_in(2)),
                c => Token::Char(c),
            });
        }
        if encoding == UTF_8 && rng.one_in(3) {
            for _ in 0..1 + rng.below(4) {
                let at = model.first_line().chars().count()
                    + 1
                    + rng.below(model.tokens.len() - model.first_line().chars().count());
                model
                    .tokens
                    .insert(at.min(model.tokens.len()), Token::Raw(*rng.pick(&[0xff, 0xfe, 0xc0])));
            }
        }
        model
    }

    /// A new file of text as a write makes it.
    pub fn written(text: &str) -> Model {
        let mut model = Model { encoding: UTF_8, bom: false, tokens: Vec::new() };
        model.tokens = tokens(text, None);
        model
    }

    pub fn is_unicode(&self) -> bool {
        ![GBK, SHIFT_JIS].contains(&self.encoding)
    }

    pub fn first_line(&self) -> &'static str {
        if self.encoding == GBK {
            CHINESE
        } else if self.encoding == SHIFT_JIS {
            JAPANESE
        } else {
            WIDE
        }
    }

    /// Whether its encoding can still be detected. For a legacy encoding that is a matter of statistics: edits that
    /// multiply one character may outweigh the first line.
    pub fn is_certain(&self) -> bool {
        if self.bom {
            return true;
        }
        let text = self.text();
        let Some(rest) = text.strip_prefix(self.first_line()) else { return false };
        self.is_unicode()
            || rest.chars().filter(|c| !c.is_ascii()).count() <= self.first_line().chars().count()
    }

    /// With `\n` for every line end, and U+FFFD for what is nobody's.
    pub fn text(&self) -> String {
        let shown = |token: &Token| match token {
            Token::Char(c) => *c,
            Token::End(_) => '\n',
            Token::Raw(_) => '\u{fffd}',
        };
        self.tokens.iter().map(shown).collect()
    }

    /// With the line ends that it has.
    pub fn exact_text(&self) -> String {
        let mut text = String::new();
        for token in &self.tokens {
            match token {
                Token::Char(c) => text.push(*c),
                Token::End(crlf) => text.push_str(if *crlf { "\r\n" } else { "\n" }),
                Token::Raw(_) => text.push('\u{fffd}'),
            }
        }
        text
    }

    pub fn eol(&self) -> Eol {
        let ends: Vec<bool> = self.tokens.iter().filter_map(end).collect();
        match (ends.iter().any(|crlf| *crlf), ends.iter().any(|crlf| !crlf)) {
            (false, false) => Eol::None,
            (true, false) => Eol::Crlf,
            (false, true) => Eol::Lf,
            (true, true) => Eol::Mixed,
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes =
            if self.bom { encode(self.encoding, "\u{feff}").unwrap() } else { Vec::new() };
        for token in &self.tokens {
            match token {
                Token::Raw(byte) => bytes.push(*byte),
                Token::Char(c) => bytes.extend(encode(self.encoding, &c.to_string()).unwrap()),
                Token::End(crlf) => {
                    bytes.extend(encode(self.encoding, if *crlf { "\r\n" } else { "\n" }).unwrap());
                }
            }
        }
        bytes
    }

    pub fn can_say(&self, text: &str) -> bool {
        encode(self.encoding, text).is_some()
    }

    /// file.write: the whole text is another, its line ends are the file's where they are all alike.
    pub fn overwrite(&mut self, text: &str) {
        self.tokens = tokens(text, self.uniform());
    }

    pub fn append(&mut self, text: &str) {
        let new = tokens(text, self.uniform());
        self.tokens.extend(new);
    }

    fn uniform(&self) -> Option<bool> {
        match self.eol() {
            Eol::Crlf => Some(true),
            Eol::Lf => Some(false),
            Eol::None | Eol::Mixed => None,
        }
    }

    /// file.replace: how often each matched, or the reason why nothing was done.
    pub fn replace(&mut self, edits: &[Edit]) -> Result<Vec<usize>, &'static str> {
        let eol = self.eol();
        let mut result = self.clone();
        let mut counts = Vec::new();
        for edit in edits {
            counts.push(result.apply(edit, eol)?);
        }
        *self = result;
        Ok(counts)
    }

    fn apply(&mut self, edit: &Edit, eol: Eol) -> Result<usize, &'static str> {
        let text = self.text();
        let pattern = if edit.regex { edit.old.clone() } else { regex::escape(&edit.old) };
        let found: Vec<(usize, usize)> =
            Regex::new(&pattern).unwrap().find_iter(&text).map(|m| (m.start(), m.end())).collect();
        match edit.expect {
            Some(expect) if found.len() != expect => {
                return Err(if found.is_empty() { "no_match" } else { "ambiguous_match" });
            }
            _ => {}
        }
        // From the end, so that what is left of it keeps its place.
        let place = |at: usize| text[..at].chars().count();
        for (start, end_at) in found.iter().rev() {
            let new = if edit.regex {
                edit.new.replace("${0}", &text[*start..*end_at])
            } else {
                edit.new.clone()
            };
            if !self.can_say(&new) {
                return Err("encoding_error");
            }
            let (from, to) = (place(*start), place(*end_at));
            let crlf = match eol {
                Eol::None => None,
                Eol::Lf => Some(false),
                Eol::Crlf => Some(true),
                Eol::Mixed => {
                    let after = self.tokens[from..].iter().find_map(end);
                    Some(
                        after
                            .or_else(|| self.tokens[..from].iter().rev().find_map(end))
                            .unwrap_or(false),
                    )
                }
            };
            self.tokens.splice(from..to, tokens(&new, crlf));
        }
        Ok(found.len())
    }
}

fn end(token: &Token) -> Option<bool> {
    match token {
        Token::End(crlf) => Some(*crlf),
        _ => None,
    }
}

/// Text as tokens, with every line end the same where `crlf` says which.
fn tokens(text: &str, crlf: Option<bool>) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        tokens.push(match c {
            '\r' if rest.peek() == Some(&'\n') => {
                rest.next();
                Token::End(crlf.unwrap_or(true))
            }
            '\n' => Token::End(crlf.unwrap_or(false)),
            c => Token::Char(c),
        });
    }
    tokens
}

fn encode(encoding: &'static Encoding, text: &str) -> Option<Vec<u8>> {
    if encoding == UTF_16LE {
        return Some(text.encode_utf16().flat_map(u16::to_le_bytes).collect());
    }
    if encoding == UTF_16BE {
        return Some(text.encode_utf16().flat_map(u16::to_be_bytes).collect());
    }
    let (bytes, _, lost) = encoding.encode(text);
    (!lost).then(|| bytes.into_owned())
}

/// Few different characters, so that much of it comes again.
pub fn any_text(rng: &mut Rng, most: usize, unicode: bool) -> String {
    let narrow = ["a", "b", "c", " ", "\t", "\n", "ab", "$1", "${0}", ".", "中", "日本"];
    let wide = ["ü", "😀", "é", "漢字", "\u{200d}", "\u{feff}"];
    let mut text = String::new();
    for _ in 0..rng.below(most) {
        text.push_str(if unicode && rng.one_in(8) {
            rng.pick::<&str>(&wide)
        } else {
            rng.pick::<&str>(&narrow)
        });
    }
    text
}
