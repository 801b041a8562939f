//! Identifiers and the randomness they are made of.

use std::fmt;

use serde::Serialize;

/// Returns random bytes from the system. Security depends on them, so there is no weaker fallback.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0u8; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            // Interrupted before the pool was ready: retry. The call has no other failure on Linux.
            Err(_) => continue,
        }
    }
    bytes
}

/// Encodes bytes in lower-case hexadecimal.
pub fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 0xf)]));
    }
    text
}

/// Id that follows one call through answer, log and audit: 128 random bits in hex, like a W3C trace
/// id.
#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct TraceId(String);

impl TraceId {
    /// Creates a random trace id.
    pub fn generate() -> Self {
        TraceId(to_hex(&random_bytes::<16>()))
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Creates a short id for something that exists only in this process: `s-3f9a01c2…` for a session,
/// `o-…` for an output.
pub fn short_id(prefix: &str) -> String {
    format!("{prefix}-{}", to_hex(&random_bytes::<8>()))
}
