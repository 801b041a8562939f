//! Cursors that continue a truncated list.
//!
//! A cursor is the position of the last entry shown plus a digest of the query. It grants no
//! access; it only says where to continue, so it needs no key. A cursor that belongs to another
//! query, or was made up, is refused.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use crate::base::call::digest_json;
use crate::base::{Error, Result};

/// Longer than any cursor we create: a path, a line and the check bytes.
const MAX_BYTES: usize = 8192;
const CHECK_BYTES: usize = 12;

/// The query that a cursor belongs to, independent of the page size.
#[derive(Debug, Clone)]
pub struct CursorQuery(String);

impl CursorQuery {
    /// Creates the query from a tool's name and arguments, ignoring those that only concern paging.
    pub fn from_arguments(tool: &str, arguments: &Map<String, Value>) -> CursorQuery {
        const ABOUT_THE_PAGE: [&str; 6] =
            ["cursor", "limit", "max_results", "max_bytes", "timeout_ms", "details"];
        let mut query_arguments = arguments.clone();
        query_arguments.retain(|name, _| !ABOUT_THE_PAGE.contains(&name.as_str()));
        CursorQuery(format!("{tool} {}", digest_json(&Value::Object(query_arguments))))
    }

    fn compute_check(&self, position: &[u8]) -> [u8; CHECK_BYTES] {
        let mut hasher = blake3::Hasher::new_derive_key("ringfence cursor 1");
        hasher.update(self.0.as_bytes());
        hasher.update(position);
        let mut check = [0; CHECK_BYTES];
        check.copy_from_slice(&hasher.finalize().as_bytes()[..CHECK_BYTES]);
        check
    }

    /// Returns the cursor that continues after this path and line.
    pub fn encode_cursor(&self, path: &[u8], line: u64) -> String {
        let mut position = line.to_be_bytes().to_vec();
        position.extend_from_slice(path);
        let mut cursor_bytes = self.compute_check(&position).to_vec();
        cursor_bytes.extend_from_slice(&position);
        URL_SAFE_NO_PAD.encode(cursor_bytes)
    }

    /// Returns the path and line after which a cursor continues.
    pub fn decode_cursor(&self, cursor: &str) -> Result<(Vec<u8>, u64)> {
        let cursor_error = || {
            Error::invalid_arguments("the argument `cursor` does not belong to this call")
                .with_hint(
                    "Pass `next_cursor` exactly as returned, with the other arguments unchanged.",
                )
                .with_fact("argument", "cursor")
        };
        let cursor_bytes =
            Some(cursor).filter(|cursor| cursor.len() <= MAX_BYTES).ok_or_else(cursor_error)?;
        let cursor_bytes = URL_SAFE_NO_PAD
            .decode(cursor_bytes)
            .map_err(|error| cursor_error().with_source(error))?;
        let (check, position) =
            cursor_bytes.split_at_checked(CHECK_BYTES).ok_or_else(cursor_error)?;
        let (line, path) = position.split_first_chunk::<8>().ok_or_else(cursor_error)?;
        if check != self.compute_check(position) {
            return Err(cursor_error());
        }
        Ok((path.to_vec(), u64::from_be_bytes(*line)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn question(arguments: Value) -> CursorQuery {
        let Value::Object(map) = arguments else { panic!("an object") };
        CursorQuery::from_arguments("file.list", &map)
    }

    #[test]
    fn a_cursor_is_good_for_its_question_and_no_other() {
        let asked = question(json!({"path": "src", "limit": 3}));
        let cursor = asked.encode_cursor(b"src/a \xff\n", 7);
        let next = question(json!({"path": "src", "limit": 50, "cursor": cursor}));
        assert_eq!(next.decode_cursor(&cursor).unwrap(), (b"src/a \xff\n".to_vec(), 7));
        assert!(question(json!({"path": "lib"})).decode_cursor(&cursor).is_err());
    }

    #[test]
    fn a_forged_cursor_is_refused() {
        let asked = question(json!({}));
        let good = asked.encode_cursor(b"a", 1);
        let changed = format!("{}A", &good[..good.len() - 1]);
        let plain = URL_SAFE_NO_PAD.encode("a/b");
        for wrong in [
            "",
            "?",
            "a",
            "src/a",
            &good[1..],
            &format!("{good}AA"),
            &changed,
            &plain,
            &"A".repeat(9000),
        ] {
            let error = asked.decode_cursor(wrong).unwrap_err();
            assert_eq!(error.kind(), crate::base::Kind::InvalidArguments, "{wrong:.50}");
        }
    }
}
