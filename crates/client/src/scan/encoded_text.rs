//! Rule for orders in base64, hexadecimal or percent encoding, which a model can read.

use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::definition_texts::ServerText;
use super::excerpt::make_excerpt;
use super::phrases::PhraseScanner;
use super::{ScanRule, ScanSeverity, TextFinding};

/// Shortest encoded text that can be an order.
const MIN_ENCODED_LENGTH: usize = 24;
/// Percent codes from which on a text is decoded.
const MIN_PERCENT_CODES: usize = 8;
/// Lenient, because a model is.
const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);

/// Finds orders in encoded form. No reason exists to encode one, so each is hard.
pub(super) fn find_encoded_orders(
    text: &ServerText<'_>,
    phrases: &mut PhraseScanner,
) -> Vec<TextFinding> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '-' | '_');
    let mut decoded: Vec<String> = text
        .text
        .split(|c| !is_part(c))
        .filter(|word| word.len() >= MIN_ENCODED_LENGTH)
        .flat_map(decode_word)
        .collect();
    decoded.extend(decode_percent(text.text));
    let order = decoded.iter().find_map(|decoded| {
        let orders = phrases.find_orders(decoded);
        orders.into_iter().next().map(|range| make_excerpt(decoded, &range))
    });
    let finding = order.map(|excerpt| TextFinding {
        rule: ScanRule::EncodedOrder,
        severity: ScanSeverity::Hard,
        excerpt: format!("decoded: {excerpt}"),
    });
    finding.into_iter().collect()
}

/// Returns the readable texts that a word may encode.
fn decode_word(word: &str) -> Vec<String> {
    let engines = [&STANDARD, &URL_SAFE].map(|alphabet| GeneralPurpose::new(alphabet, LENIENT));
    // What precedes the encoded part may be made of the same characters, as in a path.
    let parts = (0..4).filter_map(|skipped| word.get(skipped..)).map(|part| {
        // One letter alone at the end encodes nothing.
        if part.len() % 4 == 1 { part.get(..part.len() - 1).unwrap_or(part) } else { part }
    });
    let base64 =
        parts.flat_map(|part| engines.iter().filter_map(move |engine| engine.decode(part).ok()));
    base64.chain(hex_parts(word).filter_map(decode_hex)).filter_map(readable_text).collect()
}

/// Returns the parts of a word that can be hexadecimal.
fn hex_parts(word: &str) -> impl Iterator<Item = &str> {
    word.split(|c: char| !c.is_ascii_hexdigit()).filter(|part| part.len() >= MIN_ENCODED_LENGTH)
}

fn decode_hex(word: &str) -> Option<Vec<u8>> {
    let pairs = word.as_bytes().chunks_exact(2);
    pairs.map(|pair| Some(hex_digit(pair.first()?)? << 4 | hex_digit(pair.get(1)?)?)).collect()
}

fn hex_digit(digit: &u8) -> Option<u8> {
    char::from(*digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

fn decode_percent(text: &str) -> Option<String> {
    let (mut bytes, mut codes) = (Vec::new(), 0);
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = match (first, after) {
            (b'%', [high, low, ..]) => hex_digit(high).zip(hex_digit(low)),
            _ => None,
        };
        bytes.push(code.map_or(*first, |(high, low)| high << 4 | low));
        codes += usize::from(code.is_some());
        rest = if code.is_some() { after.get(2..).unwrap_or_default() } else { after };
    }
    if codes >= MIN_PERCENT_CODES { readable_text(bytes) } else { None }
}

/// Returns bytes as text if nearly all of them are readable.
fn readable_text(bytes: Vec<u8>) -> Option<String> {
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let unreadable = |c: &char| *c == '\u{fffd}' || c.is_control() && !c.is_whitespace();
    let (total, bad) = (text.chars().count(), text.chars().filter(unreadable).count());
    (bad * 10 <= total).then_some(text)
}
