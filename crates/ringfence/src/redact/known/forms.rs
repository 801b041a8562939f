//! Encodings in which programs write a value.

mod base64_text;
mod url_encoding;

use std::collections::BTreeSet;

/// Minimum length of a line of a value that is searched for separately: programs number, indent and
/// wrap lines.
const LINE: usize = 16;

/// Returns a value as it is, in several styles of JSON, in URL encodings and in base64, also line
/// by line.
pub(super) fn of(value: &[u8]) -> BTreeSet<Vec<u8>> {
    let mut forms = BTreeSet::from([value.to_vec()]);
    let lines = value.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    // The frame of a key is not secret, and occurs in many files.
    let tells = |line: &&[u8]| line.len() >= LINE && !line.starts_with(b"-----");
    for part in std::iter::once(value).chain(lines.filter(tells)) {
        forms.insert(part.to_vec());
        if let Ok(text) = std::str::from_utf8(part) {
            forms.extend(KINDS.iter().map(|kind| kind.write(text).into_bytes()));
        }
        forms.extend(url_encoding::forms(part));
        forms.extend(base64_text::forms(part));
    }
    forms
}

/// Characters that a JSON writer escapes in addition to the required ones.
struct Json {
    /// Everything outside ASCII, as Python and PHP do.
    ascii: bool,
    /// `/`, as PHP does.
    slash: bool,
    /// `&`, `<` and `>`, as Go does.
    html: bool,
    upper: bool,
}

const fn json(ascii: bool, slash: bool, html: bool, upper: bool) -> Json {
    Json { ascii, slash, html, upper }
}

const KINDS: &[Json] = &[
    json(false, false, false, false),
    json(true, false, false, false),
    json(true, false, false, true),
    json(false, true, false, false),
    json(true, true, false, false),
    json(false, false, true, false),
    json(false, false, true, true),
    json(true, false, true, false),
    json(true, false, true, true),
    json(true, true, true, true),
];

impl Json {
    /// Escapes text, without surrounding quotes.
    fn write(&self, text: &str) -> String {
        let mut written = String::with_capacity(text.len());
        for letter in text.chars() {
            match letter {
                '"' => written.push_str("\\\""),
                '\\' => written.push_str("\\\\"),
                '\n' => written.push_str("\\n"),
                '\r' => written.push_str("\\r"),
                '\t' => written.push_str("\\t"),
                '\u{8}' => written.push_str("\\b"),
                '\u{c}' => written.push_str("\\f"),
                '/' if self.slash => written.push_str("\\/"),
                letter if self.escapes(letter) => {
                    for unit in letter.encode_utf16(&mut [0; 2]) {
                        written.push_str(&match self.upper {
                            true => format!("\\u{unit:04X}"),
                            false => format!("\\u{unit:04x}"),
                        });
                    }
                }
                letter => written.push(letter),
            }
        }
        written
    }

    fn escapes(&self, letter: char) -> bool {
        let of_html = matches!(letter, '&' | '<' | '>' | '\u{2028}' | '\u{2029}');
        letter < ' ' || self.ascii && !letter.is_ascii() || self.html && of_html
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(value: &str, form: &str) -> bool {
        of(value.as_bytes()).contains(form.as_bytes())
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
        let in_base64: BTreeSet<Vec<u8>> = base64_text::forms(b"plain-value").collect();
        assert_eq!(of(b"plain-value").difference(&in_base64).count(), 1);
    }

    #[test]
    fn long_lines_are_looked_for_by_themselves() {
        let pem = "-----BEGIN PRIVATE KEY-----\r\nMIIEvQIBADANBgkqhkiG\r\nshort\r\n-----END PRIVATE KEY-----\n";
        assert!(has(pem, "MIIEvQIBADANBgkqhkiG") && has(pem, pem));
        assert!(!has(pem, "short") && !has(pem, "-----BEGIN PRIVATE KEY-----"));
    }
}
