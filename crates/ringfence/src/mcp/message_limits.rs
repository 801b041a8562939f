//! Limit on the number of values in a message, checked on its bytes before a tree is built.
//!
//! A limit on bytes does not limit memory: each `[],` of three bytes becomes a node of more than a
//! hundred. This scan counts values without allocating or recursing, whatever the bytes are. It
//! does not check syntax, and the parser limits nesting: it rejects more than 127 levels.

use std::ops::Range;

use serde_json::Value;

use crate::base::{Error, Kind};

/// Largest number of values in one message. Arguments of real calls hold a few hundred.
const MAX_VALUES: usize = 100_000;
/// Longest id, in bytes, that is extracted from a refused message.
const MAX_ID_BYTES: usize = 1024;

/// Number of values and envelope of one message, as found by a scan of its bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct MessageOutline {
    values: usize,
    id: Option<Range<usize>>,
    has_method: bool,
    is_answer: bool,
}

impl MessageOutline {
    pub(super) fn scan_bytes(bytes: &[u8]) -> MessageOutline {
        let mut outline = MessageOutline { values: 1, ..MessageOutline::default() };
        let (mut depth, mut index) = (0_usize, 0);
        // The last string at the top level, which is a key if a colon follows, and the start of the
        // value of `id`.
        let (mut key, mut id_start) = (0..0, None);
        while index < bytes.len() {
            match bytes[index] {
                b'"' => {
                    let end = find_string_end(bytes, index);
                    if depth == 1 {
                        key = index + 1..end;
                    }
                    index = end;
                }
                b':' if depth == 1 => match &bytes[key.clone()] {
                    b"id" => id_start = Some(index + 1),
                    b"method" => outline.has_method = true,
                    b"result" | b"error" => outline.is_answer = true,
                    _ => {}
                },
                b',' => {
                    outline.values += 1;
                    if depth == 1 {
                        outline.id = id_start.take().map(|start| start..index).or(outline.id);
                    }
                }
                b'[' | b'{' => {
                    depth += 1;
                    // For the first value inside: the others have a comma. An empty container
                    // counts one too many.
                    outline.values += 1;
                }
                b']' | b'}' => {
                    if depth == 1 {
                        outline.id = id_start.take().map(|start| start..index).or(outline.id);
                    }
                    depth = depth.saturating_sub(1);
                }
                _ => {}
            }
            index += 1;
        }
        outline
    }

    /// Refuses a message with too many values.
    pub(super) fn check_size(&self) -> Result<(), Error> {
        if self.values <= MAX_VALUES {
            return Ok(());
        }
        Err(Error::new(Kind::TooLarge, format!("a message may have at most {MAX_VALUES} values"))
            .with_hint("Send less in one message: split the call, or write the data to a file and pass its path.")
            .with_fact("limit", MAX_VALUES))
    }

    /// Returns the id of a request, so that the refusal reaches the caller that waits for it.
    pub(super) fn request_id(&self, bytes: &[u8]) -> Option<Value> {
        let is_request = self.has_method || !self.is_answer;
        let id = self.id.clone().filter(|id| is_request && id.len() <= MAX_ID_BYTES)?;
        serde_json::from_slice(&bytes[id]).ok()
    }

    pub(super) fn is_notification(&self) -> bool {
        self.has_method && self.id.is_none()
    }
}

/// Returns the index of the closing quote, or the length of the message if there is none.
fn find_string_end(bytes: &[u8], start: usize) -> usize {
    let mut index = start + 1;
    while index < bytes.len() {
        match bytes[index] {
            b'\\' => index += 2,
            b'"' => return index,
            _ => index += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn count(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
            Value::Object(members) => 1 + members.values().map(count).sum::<usize>(),
            _ => 1,
        }
    }

    #[test]
    fn values_are_counted_as_the_parser_builds_them() {
        for value in [
            json!({"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"a": [1, [2, 3], {"b": "],[{\\\"\""}]}}),
            json!({"a": {"b": {"c": [[[1]]]}}}),
            json!("text, with [ and {"),
        ] {
            assert_eq!(
                MessageOutline::scan_bytes(value.to_string().as_bytes()).values,
                count(&value),
                "{value}"
            );
        }
    }

    #[test]
    fn more_than_the_bound_is_refused_and_the_bound_itself_is_not() {
        let list = |count: usize| format!("[{}0]", "0,".repeat(count - 2));
        assert!(MessageOutline::scan_bytes(list(MAX_VALUES).as_bytes()).check_size().is_ok());
        let error =
            MessageOutline::scan_bytes(list(MAX_VALUES + 1).as_bytes()).check_size().unwrap_err();
        assert_eq!(error.kind(), Kind::TooLarge);
        for lean in ["[]", "{}", "[[]]", "\"\"", "{\"\":0}"] {
            let many = format!("[{}0]", format!("{lean},").repeat(MAX_VALUES));
            assert!(MessageOutline::scan_bytes(many.as_bytes()).check_size().is_err(), "{lean}");
        }
    }

    #[test]
    fn the_id_of_a_request_is_found_wherever_it_is() {
        let id =
            |text: &str| MessageOutline::scan_bytes(text.as_bytes()).request_id(text.as_bytes());
        assert_eq!(id(r#"{"id": 7, "method": "x"}"#), Some(json!(7)));
        assert_eq!(
            id(r#"{"params": {"id": 8}, "method": "x", "id":"a\"}" }"#),
            Some(json!("a\"}"))
        );
        assert_eq!(id(r#"{"params": {"id": 8}, "method": "x"}"#), None);
        assert_eq!(id(r#"{"a": "id", "method": "x"}"#), None);
        assert_eq!(id(r#"{"id": 7, "result": {}}"#), None, "the id of a request of ours");
        assert!(
            MessageOutline::scan_bytes(br#"{"method": "x", "params": {"id": 8}}"#)
                .is_notification()
        );
    }

    #[test]
    fn no_bytes_make_it_fail() {
        for bytes in [
            &b""[..],
            b"\"",
            b"\"\\",
            b"]]]]",
            b"{\"id\":",
            b"{\"id\"",
            b":::",
            b"{:}",
            b"\xff\xfe",
        ] {
            let outline = MessageOutline::scan_bytes(bytes);
            let _ = outline.request_id(bytes);
            assert!(outline.check_size().is_ok());
        }
    }
}
