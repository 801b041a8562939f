//! Encodings in which programs write a value.

mod base64_text;
mod url_encoding;

use std::collections::BTreeSet;

/// Minimum length of a line of a value that is searched for separately: programs number, indent and
/// wrap lines.
const MIN_LINE_BYTES: usize = 16;

/// Returns a value as it is, in several styles of JSON, in URL encodings and in base64, also line
/// by line.
pub(super) fn all_encodings(value: &[u8]) -> BTreeSet<Vec<u8>> {
    let mut forms = BTreeSet::from([value.to_vec()]);
    let lines = value.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    // The frame of a key is not secret, and occurs in many files.
    let is_distinctive = |line: &&[u8]| line.len() >= MIN_LINE_BYTES && !line.starts_with(b"-----");
    for part in std::iter::once(value).chain(lines.filter(is_distinctive)) {
        forms.insert(part.to_vec());
        if let Ok(text) = std::str::from_utf8(part) {
            forms.extend(JSON_STYLES.iter().map(|kind| kind.escape_text(text).into_bytes()));
        }
        forms.extend(url_encoding::url_encodings(part));
        forms.extend(base64_text::base64_encodings(part));
    }
    forms
}

/// Characters that a JSON writer escapes in addition to the required ones.
struct JsonStyle {
    /// Everything outside ASCII, as Python and PHP do.
    escapes_non_ascii: bool,
    /// `/`, as PHP does.
    escapes_slash: bool,
    /// `&`, `<` and `>`, as Go does.
    escapes_html: bool,
    upper_case_hex: bool,
}

const fn json_style(ascii: bool, slash: bool, html: bool, upper: bool) -> JsonStyle {
    JsonStyle {
        escapes_non_ascii: ascii,
        escapes_slash: slash,
        escapes_html: html,
        upper_case_hex: upper,
    }
}

const JSON_STYLES: &[JsonStyle] = &[
    json_style(false, false, false, false),
    json_style(true, false, false, false),
    json_style(true, false, false, true),
    json_style(false, true, false, false),
    json_style(true, true, false, false),
    json_style(false, false, true, false),
    json_style(false, false, true, true),
    json_style(true, false, true, false),
    json_style(true, false, true, true),
    json_style(true, true, true, true),
];

impl JsonStyle {
    /// Escapes text, without surrounding quotes.
    fn escape_text(&self, text: &str) -> String {
        let mut escaped = String::with_capacity(text.len());
        for letter in text.chars() {
            match letter {
                '"' => escaped.push_str("\\\""),
                '\\' => escaped.push_str("\\\\"),
                '\n' => escaped.push_str("\\n"),
                '\r' => escaped.push_str("\\r"),
                '\t' => escaped.push_str("\\t"),
                '\u{8}' => escaped.push_str("\\b"),
                '\u{c}' => escaped.push_str("\\f"),
                '/' if self.escapes_slash => escaped.push_str("\\/"),
                letter if self.must_escape(letter) => {
                    for unit in letter.encode_utf16(&mut [0; 2]) {
                        escaped.push_str(&match self.upper_case_hex {
                            true => format!("\\u{unit:04X}"),
                            false => format!("\\u{unit:04x}"),
                        });
                    }
                }
                letter => escaped.push(letter),
            }
        }
        escaped
    }

    fn must_escape(&self, letter: char) -> bool {
        let is_html_char = matches!(letter, '&' | '<' | '>' | '\u{2028}' | '\u{2029}');
        letter < ' '
            || self.escapes_non_ascii && !letter.is_ascii()
            || self.escapes_html && is_html_char
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(value: &str, form: &str) -> bool {
        all_encodings(value.as_bytes()).contains(form.as_bytes())
    }

    #[test]
    fn json_of_every_kind_is_among_them() {
        let value = "p\u{e4}ss/w<o>r&d\"\u{1f511}";
        for form in [
            value,
            // serde and most others, Python, PHP, Go.
            "p\u{e4}ss/w<o>r&d\\\"\u{1f511}",
            r#"p\u00e4ss/w<o>r&d\"\ud83d\udd11"#,
            r#"p\u00e4ss\/w<o>r&d\"\ud83d\udd11"#,
            "p\u{e4}ss/w\\u003co\\u003er\\u0026d\\\"\u{1f511}",
            "p\u{e4}ss/w\\u003Co\\u003Er\\u0026d\\\"\u{1f511}",
        ] {
            assert!(has(value, form), "{form}");
        }
        let in_base64: BTreeSet<Vec<u8>> = base64_text::base64_encodings(b"plain-value").collect();
        assert_eq!(all_encodings(b"plain-value").difference(&in_base64).count(), 1);
    }

    #[test]
    fn long_lines_are_looked_for_by_themselves() {
        let pem = "-----BEGIN PRIVATE KEY-----\r\nMIIEvQIBADANBgkqhkiG\r\nshort\r\n-----END PRIVATE KEY-----\n";
        assert!(has(pem, "MIIEvQIBADANBgkqhkiG") && has(pem, pem));
        assert!(!has(pem, "short") && !has(pem, "-----BEGIN PRIVATE KEY-----"));
    }
}
