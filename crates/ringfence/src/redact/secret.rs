//! A value that must never be shown. It implements neither Display nor Serialize; Debug prints only
//! that it is set. Its memory is wiped on drop.

use std::borrow::Cow;
use std::fmt;

use zeroize::Zeroizing;

use super::known_secrets;

/// Secret value.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<Vec<u8>>) -> Self {
        Secret(Zeroizing::new(value.into()))
    }

    /// Returns the bytes. This is the only access to them, so that every use can be found by name.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

/// Parts of a name that mark its value as a secret.
const SENSITIVE_PARTS: [&str; 9] = [
    "token",
    "secret",
    "password",
    "passwd",
    "api_key",
    "apikey",
    "authorization",
    "cookie",
    "credential",
];

const SENSITIVE_ENDS: [&str; 3] = ["_key", "pass", "_pwd"];

/// Returns whether a variable, argument or field of this name must not be shown: `GITHUB_TOKEN`,
/// `signing_key` …
pub fn is_sensitive(name: &str) -> bool {
    let name = name.as_bytes();
    let contains = |part: &&str| {
        name.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part.as_bytes()))
    };
    SENSITIVE_PARTS.iter().any(contains)
        || SENSITIVE_ENDS.iter().any(|end| ends_with_ignoring_case(name, end))
}

/// Returns whether a name has this suffix, in upper or lower case.
pub fn ends_with_ignoring_case(name: &[u8], suffix: &str) -> bool {
    let end = name.len().checked_sub(suffix.len()).and_then(|start| name.get(start..));
    end.is_some_and(|end| end.eq_ignore_ascii_case(suffix.as_bytes()))
}

const REDACTED_TEXT: &str = "[redacted]";

/// Returns the arguments of a command, safe to show: the value after a sensitive name is hidden.
/// Only text that could be such a value is hidden: with blanks or shell metacharacters in it, it
/// could be code, and a human must see code.
pub fn redact_command_args(argv: &[String]) -> Vec<String> {
    let mut redacted = Vec::with_capacity(argv.len());
    let mut hide_next = false;
    for argument in argv {
        let hide = std::mem::take(&mut hide_next);
        let is_option = argument.starts_with('-');
        // Before anything quotes or cuts it, which would change the text.
        if let Cow::Owned(clean) = known_secrets::redact_str(argument) {
            redacted.push(clean);
            continue;
        }
        redacted.push(match argument.split_once(['=', ':']) {
            _ if hide && !is_option && is_plain_value(argument) => REDACTED_TEXT.to_owned(),
            Some((name, value))
                if is_plain_value(name)
                    && is_plain_value(strip_auth_scheme(value))
                    && is_sensitive(&name.replace('-', "_")) =>
            {
                format!("{}{REDACTED_TEXT}", &argument[..=name.len()])
            }
            _ => {
                hide_next =
                    is_option && is_sensitive(&argument.trim_start_matches('-').replace('-', "_"));
                redact_userinfo(argument)
            }
        });
    }
    redacted
}

/// Strips the scheme in front of a credential: `Authorization: Bearer …`.
fn strip_auth_scheme(value: &str) -> &str {
    let value = value.trim_start();
    let schemes = ["Bearer ", "Basic ", "Token ", "token "];
    schemes.iter().find_map(|scheme| value.strip_prefix(scheme)).unwrap_or(value)
}

fn is_plain_value(text: &str) -> bool {
    !text
        .contains(|c: char| c.is_whitespace() || c.is_control() || ";|&$`(){}<>'\"\\*?".contains(c))
}

/// Returns the value of a variable, safe to show: references to secrets stay, passwords in URLs are
/// hidden.
pub fn redact_url_passwords(value: &str) -> String {
    let mut redacted = String::new();
    let mut rest = value;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        redacted.push_str(before);
        let end = after.find(['/', '?', '#']).unwrap_or(after.len());
        rest = after;
        if let Some(at) = after[..end].rfind('@') {
            let is_named = after[..at]
                .split_once(':')
                .is_some_and(|(_, password)| is_secret_reference(password));
            redacted.push_str(if is_named { &after[..at] } else { REDACTED_TEXT });
            rest = &after[at..];
        }
    }
    redacted + rest
}

/// Returns whether the text is exactly one `${NAME}`.
fn is_secret_reference(text: &str) -> bool {
    text.strip_prefix("${")
        .and_then(|text| text.strip_suffix('}'))
        .is_some_and(|name| !name.contains(['$', '{', '}']))
}

/// Hides the part before the `@` in `https://name:password@host`.
fn redact_userinfo(argument: &str) -> String {
    let Some((scheme, rest)) = argument.split_once("://") else { return argument.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at_sign) if is_plain_value(scheme) && is_plain_value(&rest[..at_sign]) => {
            format!("{scheme}://{REDACTED_TEXT}{}", &rest[at_sign..])
        }
        _ => argument.to_owned(),
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(set)")
    }
}

#[cfg(test)]
mod word_tests {
    use super::*;

    #[test]
    fn a_value_is_shown_without_its_passwords() {
        for (value, shown) in [
            ("postgres://u:pw@h/db", "postgres://[redacted]@h/db"),
            ("postgres://u:p$w{d@h/db?x=a@b", "postgres://[redacted]@h/db?x=a@b"),
            ("https://t0ken@h", "https://[redacted]@h"),
            ("https://u:${DB}@h/", "https://u:${DB}@h/"),
            ("https://u:${DB}x@h/", "https://[redacted]@h/"),
            ("a://h,b://u:p@i/ c", "a://h,b://[redacted]@i/ c"),
            ("http://h/x b://u:p@i/", "http://h/x b://[redacted]@i/"),
            ("user@host", "user@host"),
        ] {
            assert_eq!(redact_url_passwords(value), shown);
        }
    }

    #[test]
    fn names_of_secrets_are_known() {
        for name in ["GITHUB_TOKEN", "signing_key", "DB_PASS", "dbpass", "MYSQL_PWD", "PGPASSWORD"]
        {
            assert!(is_sensitive(name), "{name}");
        }
        for name in ["PWD", "OLDPWD", "PASSES", "LANG", "BYPASS_X"] {
            assert!(!is_sensitive(name), "{name}");
        }
    }

    #[test]
    fn secrets_in_the_words_of_a_command_are_not_shown() {
        let shown = |words: &[&str]| {
            redact_command_args(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
                .join(" ")
        };
        assert_eq!(
            shown(&["curl", "--token", "hunter2", "-X", "POST"]),
            "curl --token [redacted] -X POST"
        );
        assert_eq!(
            shown(&["x", "--api-key=hunter2", "GITHUB_TOKEN=hunter2", "a=b"]),
            "x --api-key=[redacted] GITHUB_TOKEN=[redacted] a=b"
        );
        assert_eq!(
            shown(&["git", "push", "https://me:hunter2@host/x@y"]),
            "git push https://[redacted]@host/x@y"
        );
        assert_eq!(
            shown(&["curl", "-H", "X-Api-Token: hunter2"]),
            "curl -H X-Api-Token:[redacted]"
        );
        assert_eq!(
            shown(&["curl", "-H", "Authorization: Bearer hunter2"]),
            "curl -H Authorization:[redacted]"
        );
        assert_eq!(shown(&["x", "--password", "--force", "y"]), "x --password --force y");
        known_secrets::register_secrets([("DB", &Secret::new("pg://me:it's@host/x"))]);
        assert_eq!(
            shown(&["psql", "--token", "pg://me:it's@host/x", "a=pg://me:it's@host/x,b"]),
            "psql --token [secret:DB] a=[secret:DB],b"
        );
        for code in ["token=1; rm -rf ~", "token=1;rm", "secret=$(id)", "https://x;rm -rf ~@host"] {
            assert_eq!(shown(&["sh", "-c", code]), format!("sh -c {code}"));
        }
    }
}
