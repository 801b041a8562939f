//! Rule for secrets: tokens in the formats of well-known services, private keys, and values that
//! look random next to a word such as `password`.

use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{ScanRule, ScanSeverity, TextFinding};

const TOKEN_FORMATS: &str = include_str!("token_formats.list");
/// Parts of values that documentation uses in place of secrets.
const PLACEHOLDERS: [&str; 14] = [
    "example",
    "xxxx",
    "your",
    "test",
    "dummy",
    "sample",
    "placeholder",
    "redacted",
    "1234567890",
    "abcdef",
    "changeme",
    "fake",
    "0000",
    "token",
];
/// Words that announce a secret.
const SECRET_NAMES: [&str; 8] =
    ["password", "passwd", "secret", "api_key", "apikey", "token", "authorization", "bearer"];
/// Shortest value after such a word.
const MIN_VALUE_LENGTH: usize = 16;
/// Bits per character of a random text, at least.
const MIN_ENTROPY: f64 = 3.3;
/// Letters of a private key that are enough to be sure.
const MIN_KEY_LETTERS: usize = 64;
/// Longest word that is examined, so that a text of one word costs no more than others.
const MAX_WORD_LENGTH: usize = 4096;

/// Finds secrets: the first certain one, or else the first that only looks like one.
pub(super) fn find_secrets(text: &str) -> Vec<TextFinding> {
    let mut found = find_private_key(text);
    let mut announced = false;
    for range in secret_words(text) {
        let word = text.get(range).unwrap_or_default();
        if let Some(name) = token_format(word) {
            found = Some((ScanSeverity::Hard, format!("a value with the format of {name}")));
            break;
        }
        if found.is_none() && announced && word.len() >= MIN_VALUE_LENGTH && is_random_word(word) {
            found =
                Some((ScanSeverity::Soft, "a random value after the name of a secret".to_owned()));
        }
        announced = is_secret_name(word) || announced && word.len() < 4;
    }
    let finding = found.map(|(severity, excerpt)| TextFinding {
        rule: ScanRule::EmbeddedSecret,
        severity,
        excerpt,
    });
    finding.into_iter().collect()
}

fn is_secret_name(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    SECRET_NAMES.iter().any(|name| word.ends_with(name))
}

/// Returns the words of which tokens consist.
fn secret_words(text: &str) -> impl Iterator<Item = Range<usize>> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let mut position = 0;
    std::iter::from_fn(move || {
        let rest = text.get(position..)?;
        let start = position + rest.find(is_part)?;
        let word = text.get(start..)?;
        let end = start + word.find(|c| !is_part(c)).unwrap_or(word.len());
        position = end;
        Some(start..end)
    })
}

/// Returns the name of the format of a token, unless the token is a placeholder.
fn token_format(word: &str) -> Option<&'static str> {
    let word = word.trim_matches('.');
    if word.len() > MAX_WORD_LENGTH || is_placeholder(word) {
        return None;
    }
    if is_json_token(word) {
        return Some("a JSON web token");
    }
    TOKEN_FORMATS.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut columns = line.splitn(4, ' ');
        let (prefix, characters) = (columns.next()?, columns.next()?);
        let lengths = columns.next()?;
        let (least, most) = lengths.split_once('-')?;
        let body = word.strip_prefix(prefix)?;
        let has_length = body.len() >= least.parse().ok()? && body.len() <= most.parse().ok()?;
        let has_format = body.chars().all(|c| is_of(characters, c));
        (has_length && has_format && entropy(body) >= MIN_ENTROPY - 0.5).then_some(columns.next()?)
    })
}

fn is_of(characters: &str, c: char) -> bool {
    match characters {
        "upper" => c.is_ascii_uppercase() || c.is_ascii_digit(),
        "hex" => c.is_ascii_hexdigit(),
        "alnum" => c.is_ascii_alphanumeric(),
        _ => c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'),
    }
}

fn is_placeholder(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    PLACEHOLDERS.iter().any(|placeholder| word.contains(placeholder))
}

/// Tells whether a word is a signed token, and not one of the examples of the documentation.
fn is_json_token(word: &str) -> bool {
    let parts: Vec<&str> = word.split('.').collect();
    let [header, payload, signature] = parts[..] else { return false };
    let decode = |part: &str| {
        URL_SAFE_NO_PAD.decode(part).ok().and_then(|bytes| String::from_utf8(bytes).ok())
    };
    let (Some(header), Some(payload)) = (decode(header), decode(payload)) else { return false };
    header.contains("\"alg\"")
        && payload.starts_with('{')
        && !is_placeholder(&payload)
        && signature.len() >= 20
        && entropy(signature) >= MIN_ENTROPY
}

/// Finds a private key that is more than its first line.
fn find_private_key(text: &str) -> Option<(ScanSeverity, String)> {
    let mut rest = text;
    while let Some((_, after)) = rest.split_once("-----BEGIN ") {
        rest = after;
        let Some((title, body)) = after.split_once("-----") else { break };
        let is_letter = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
        let letters: String = body
            .chars()
            .take_while(|c| is_letter(c) || c.is_whitespace() || *c == '\\')
            .filter(is_letter)
            .take(MIN_KEY_LETTERS)
            .collect();
        let is_key = title.len() < 40 && title.ends_with("PRIVATE KEY");
        if is_key && letters.len() == MIN_KEY_LETTERS && entropy(&letters) >= MIN_ENTROPY {
            return Some((ScanSeverity::Hard, format!("-----BEGIN {title}-----")));
        }
    }
    None
}

/// Tells whether a word looks random enough to be a secret.
pub(super) fn is_random_word(word: &str) -> bool {
    let has = |test: fn(&u8) -> bool| word.bytes().any(|byte| test(&byte));
    word.len() >= MIN_VALUE_LENGTH
        && has(u8::is_ascii_digit)
        && has(u8::is_ascii_alphabetic)
        && entropy(word) >= MIN_ENTROPY
}

/// Returns the bits per character of a text, by how often each character occurs in it.
fn entropy(text: &str) -> f64 {
    let mut counts = [0_u32; 256];
    let bytes = text.as_bytes().get(..MAX_WORD_LENGTH).unwrap_or(text.as_bytes());
    bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let total = bytes.len() as f64;
    let shares = counts.iter().filter(|count| **count > 0).map(|count| f64::from(*count) / total);
    shares.map(|share| -share * share.log2()).sum()
}
