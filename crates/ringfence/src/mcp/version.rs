//! Protocol versions: those we support, and the answer to others.

use serde_json::json;

use crate::base::{Error, Kind, Result};

/// Versions with `initialize`, oldest first.
pub const WITH_INITIALIZE: &[&str] = &["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
/// Version with `server/discover` and per-request `_meta`.
pub const STATELESS: &str = "2026-07-28";
/// Key in the `_meta` of a request that carries its version.
pub const VERSION_META: &str = "io.modelcontextprotocol/protocolVersion";
/// Beginning of every member of `_meta` that MCP defines for a request itself.
pub const META_PREFIX: &str = "io.modelcontextprotocol/";

/// Returns all supported versions, oldest first.
pub fn supported_versions() -> Vec<&'static str> {
    WITH_INITIALIZE.iter().copied().chain([STATELESS]).collect()
}

/// Returns the version to answer `initialize` with. An unknown date gets our newest, as MCP
/// demands; anything that is not a date, or is older than the first release, is refused.
pub fn negotiate_version(requested: &str) -> Result<&'static str> {
    if let Some(version) = WITH_INITIALIZE.iter().find(|version| **version == requested) {
        return Ok(version);
    }
    if !is_date(requested) || requested < WITH_INITIALIZE[0] {
        let shown_version: String = requested.chars().take(64).collect();
        return Err(Error::new(Kind::UnsupportedVersion, "this protocol version is not supported")
            .with_hint(format!("Ask for one of {}.", supported_versions().join(", ")))
            .with_fact("supported", json!(supported_versions()))
            .with_fact("requested", json!(shown_version)));
    }
    Ok(WITH_INITIALIZE[WITH_INITIALIZE.len() - 1])
}

fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    let number =
        |range: std::ops::Range<usize>| text.get(range).and_then(|part| part.parse::<u32>().ok());
    bytes.len() == 10
        && bytes.iter().enumerate().all(|(index, byte)| {
            if index == 4 || index == 7 { *byte == b'-' } else { byte.is_ascii_digit() }
        })
        && number(5..7).is_some_and(|month| (1..=12).contains(&month))
        && number(8..10).is_some_and(|day| (1..=31).contains(&day))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_versions_are_echoed_and_later_dates_get_our_newest() {
        for known in WITH_INITIALIZE {
            assert_eq!(negotiate_version(known).unwrap(), *known);
        }
        for later in ["2026-07-28", "2027-01-01", "2025-07-01", "9999-12-31"] {
            assert_eq!(negotiate_version(later).unwrap(), "2025-11-25");
        }
        for refused in [
            "1.0.0",
            "",
            "2024-11-04",
            "1999-01-01",
            "2025-13-01",
            "2025-1-1",
            "latest",
            "２０２５-01-01",
        ] {
            assert_eq!(
                negotiate_version(refused).unwrap_err().kind(),
                Kind::UnsupportedVersion,
                "{refused}"
            );
        }
    }
}
