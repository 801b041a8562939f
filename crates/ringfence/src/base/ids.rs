//! Identifiers: what they look like and how they are made.

use std::fmt;

use serde::Serialize;

/// Random bytes from the system. Nothing of ours works without them, so there is no weaker stand-in.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0u8; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            // Interrupted before the pool was ready: ask again. The call has no other failure on Linux.
            Err(_) => continue,
        }
    }
    bytes
}

pub fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Follows one call through answer, log and audit. 128 random bits in hex, as W3C trace ids are.
#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct TraceId(String);

impl TraceId {
    pub fn mint() -> Self {
        TraceId(hex(&random::<16>()))
    }

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

/// A short name for something that lives in this process: `s-3f9a01c2…` for a session, `o-…` for an output.
pub fn short(prefix: &str) -> String {
    format!("{prefix}-{}", hex(&random::<8>()))
}
