//! Base64 of any text that contains the value, such as `user:value` in Basic authentication.
//!
//! Three bytes become four characters, so the text before a value shifts it by zero, one or two
//! bytes. For each shift, the search covers all characters that depend on the value alone. At
//! either end up to four bits of the value share a character with a neighbour; only those bits can
//! remain visible.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};

pub(super) fn base64_encodings(value: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    (0..3).flat_map(move |shift| {
        let shifted = [&[0; 2][..shift], value].concat();
        // Six-bit characters that begin and end within the value.
        let stable_chars = (8 * shift).div_ceil(6)..8 * shifted.len() / 6;
        let extract = move |text: String| text.as_bytes()[stable_chars.clone()].to_vec();
        [extract(STANDARD.encode(&shifted)), extract(URL_SAFE.encode(&shifted))]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_at_every_shift_and_before_anything() {
        let value = b"s3cret?>~value";
        for before in ["", "u", "me", "bob", "user:", "user-name:", "\u{fc}:"] {
            for after in ["", "\n", ":x", "@host"] {
                let whole = [before.as_bytes(), value, after.as_bytes()].concat();
                for text in [STANDARD.encode(&whole), URL_SAFE.encode(&whole)] {
                    let found = base64_encodings(value)
                        .filter(|form| text.contains(std::str::from_utf8(form).unwrap()));
                    let longest = found.map(|form| form.len()).max();
                    // All but the bits that it shares with its neighbours.
                    assert!(
                        longest.is_some_and(|length| 6 * length + 8 >= 8 * value.len()),
                        "{before}|{after}: {text}"
                    );
                }
            }
        }
    }
}
