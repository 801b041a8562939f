//! Quotes a command as it would be typed in a shell, for people and for the record.
//!
//! The result is only shown. Nothing that runs is built from it.

use std::borrow::Cow;

use shlex::Quoter;

use crate::redact::known_secrets;

/// Joins words with spaces and quotes those that a shell would not take as they are. Values of
/// secrets are redacted first, because quoting changes the text that a later search looks for.
pub fn quote_command<'w>(argv: impl IntoIterator<Item = &'w str>) -> String {
    let argv: Vec<Cow<'_, str>> = argv.into_iter().map(known_secrets::redact_str).collect();
    Quoter::new()
        .allow_nul(true)
        .join(argv.iter().map(AsRef::as_ref))
        // Only NUL could fail, and it is allowed; a list of quoted words is unambiguous, too.
        .unwrap_or_else(|_| format!("{argv:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redact::secret::Secret;

    #[test]
    fn a_command_line_keeps_its_words_apart() {
        let cases: [(&[&str], &str); 5] = [
            (&["ls", "-la", "/a/b.c"], "ls -la /a/b.c"),
            (&["ls", "a b", "it's", ""], r#"ls 'a b' "it's" ''"#),
            (&["a;b", "$(id)", "[x]", "--key=value", "é"], "'a;b' '$(id)' '[x]' '--key=value' 'é'"),
            (&[r#"a"b"#, r"a\b", "a'$b"], r#"'a"b' "a\\b" "a'"'$b'"#),
            (&["a\0b"], "'a\0b'"),
        ];
        for (words, expected) in cases {
            let quoted = quote_command(words.iter().copied());
            assert_eq!(quoted, expected);
            assert_eq!(shlex::split(&quoted).unwrap(), words);
        }
    }

    #[test]
    fn a_secret_is_redacted_before_quotes_change_it() {
        known_secrets::register_secrets([("QUOTED", &Secret::new(r"it's\a$value"))]);
        assert_eq!(quote_command(["login", r"-pit's\a$value"]), "login '-p[secret:QUOTED]'");
    }
}
