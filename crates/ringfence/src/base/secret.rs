//! A value that must never be shown. It has no Display and no Serialize; Debug says only that it is there.

use std::fmt;

#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl Secret {
    pub fn new(value: impl Into<Vec<u8>>) -> Self {
        Secret(value.into())
    }

    /// The one way to the bytes, so that every use can be found by name.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

/// Parts of a name that say its value is a secret.
const SENSITIVE: [&str; 9] =
    ["token", "secret", "password", "passwd", "api_key", "apikey", "authorization", "cookie", "credential"];

/// Whether a variable, argument or field of this name must not be shown: `GITHUB_TOKEN`, `signing_key` …
pub fn is_sensitive(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SENSITIVE.iter().any(|part| name.contains(part)) || name.ends_with("_key")
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(set)")
    }
}
