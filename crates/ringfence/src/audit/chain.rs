//! The keyed chain: how a record becomes a line, and how a line proves which line precedes it.
//!
//! A line is `{"seq":7,…,"mac":"<64 hex>"}`. Its mac is HMAC-SHA256 over the mac of the previous
//! line (32 zero bytes for the first) and the line's exact bytes without the `mac` member. The
//! first line names its own file, so one file cannot be substituted for another.

use std::io::Write;

use aws_lc_rs::hmac;
use serde_json::{Map, Value};

use crate::base::clock::now_utc;
use crate::base::ids::to_hex;
use crate::redact::record::write_redacted_members;

pub(super) const MAC_LEN: usize = 32;
pub(super) type Mac = [u8; MAC_LEN];

/// Mac that precedes the first line.
pub(super) const FIRST_MAC: Mac = [0; MAC_LEN];

const MAC_OPEN: &[u8] = b",\"mac\":\"";
const MAC_CLOSE: &[u8] = b"\"}";

/// Members that the chain writes itself; a caller's member of the same name is dropped.
const RESERVED_MEMBERS: [&str; 4] = ["seq", "ts", "event", "mac"];

pub(super) struct ChainKey(hmac::Key);

impl ChainKey {
    pub(super) fn new(bytes: &[u8; 32]) -> Self {
        ChainKey(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// Computes a mac. Each purpose has its own domain, so that a mac made for one is never valid
    /// for another.
    pub(super) fn compute_mac(&self, purpose: &str, parts: &[&[u8]]) -> Mac {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(purpose.as_bytes());
        context.update(b"\n");
        for part in parts {
            context.update(part);
        }
        let mut mac = FIRST_MAC;
        // An HMAC-SHA256 tag has exactly this length.
        mac.copy_from_slice(context.sign().as_ref());
        mac
    }
}

/// Event before it is placed in the chain.
pub(super) struct AuditEntry {
    ts: String,
    event: &'static str,
    members: RecordMembers,
}

impl AuditEntry {
    /// Creates an entry with the current time. Call this with the sink locked, so that times within
    /// a file never run backwards.
    pub(super) fn new(event: &'static str, members: RecordMembers) -> Self {
        AuditEntry { ts: now_utc(), event, members }
    }

    pub(super) fn members(&self) -> &RecordMembers {
        &self.members
    }
}

/// Returns the members of an object by reference.
pub(super) fn borrow_fields(fields: &Map<String, Value>) -> impl Iterator<Item = (&str, &Value)> {
    fields.iter().map(|(name, value)| (name.as_str(), value))
}

/// Members of a record as they are written: redacted JSON (`,"name":value` for each). A record is
/// serialized once, before it has a place in the chain.
#[derive(Clone, Default)]
pub(super) struct RecordMembers {
    json: Vec<u8>,
}

impl RecordMembers {
    /// Serializes and redacts members.
    pub(super) fn redacted<'a>(fields: impl IntoIterator<Item = (&'a str, &'a Value)>) -> Self {
        let mut members = RecordMembers { json: Vec::with_capacity(1024) };
        members.add_redacted(fields);
        members
    }

    /// Serializes members that the log itself creates (names of files, links). They are not
    /// redacted: a link must be what it names.
    pub(super) fn unredacted(fields: &Map<String, Value>) -> Self {
        let mut json = Vec::new();
        for (name, value) in fields {
            let _ = write!(json, ",{}:{value}", Value::from(name.as_str()));
        }
        RecordMembers { json }
    }

    /// Adds members. Those that the chain writes itself are dropped.
    pub(super) fn add_redacted<'a>(
        &mut self,
        fields: impl IntoIterator<Item = (&'a str, &'a Value)>,
    ) {
        let own_fields = fields.into_iter().filter(|(name, _)| !RESERVED_MEMBERS.contains(name));
        write_redacted_members(&mut self.json, own_fields);
    }

    /// Parses the members, as a reader of the log sees them.
    pub(super) fn parse(&self) -> Map<String, Value> {
        let members = self.json.strip_prefix(b",").unwrap_or_default();
        serde_json::from_slice(&[b"{", members, b"}"].concat()).unwrap_or_default()
    }
}

/// Record placed in the chain: the bytes to write, including the newline.
pub(super) struct SealedLine {
    pub(super) bytes: Vec<u8>,
    pub(super) seq: u64,
    pub(super) mac: Mac,
}

pub(super) fn seal_entry(
    key: &ChainKey,
    previous: &Mac,
    seq: u64,
    entry: &AuditEntry,
) -> SealedLine {
    let mut bytes = Vec::with_capacity(entry.members.json.len() + 256);
    // Neither a time nor the name of an event has characters that JSON escapes, and writing to
    // memory does not fail.
    let _ = write!(bytes, r#"{{"seq":{seq},"ts":"{}","event":"{}""#, entry.ts, entry.event);
    bytes.extend_from_slice(&entry.members.json);
    let mac = key.compute_mac("record", &[previous, &bytes, b"}"]);
    bytes.extend_from_slice(MAC_OPEN);
    bytes.extend_from_slice(to_hex(&mac).as_bytes());
    bytes.extend_from_slice(MAC_CLOSE);
    bytes.push(b'\n');
    SealedLine { bytes, seq, mac }
}

/// Returns the mac of a line (without its newline) if it follows `previous`, or what is wrong with
/// it. Nothing in a line may be trusted before this check has passed.
pub(super) fn check_line(
    key: &ChainKey,
    previous: &Mac,
    seq: u64,
    line: &[u8],
) -> Result<Mac, String> {
    let found_seq = parse_seq(line);
    let misplaced = || match found_seq {
        Some(found_seq) if found_seq != seq => Some(format!(
            "found seq {found_seq} where seq {seq} was expected: a record was removed, inserted or moved"
        )),
        _ => None,
    };
    let Some((body, stated_mac)) = split_mac(line) else {
        return Err(misplaced().unwrap_or_else(|| {
            "this is not a whole record: its mac is missing or damaged".into()
        }));
    };
    let mac = key.compute_mac("record", &[previous, body, b"}"]);
    // Compare as text, so that an upper-case digit is detected as a change, too.
    if to_hex(&mac).as_bytes() != stated_mac {
        return Err(misplaced().unwrap_or_else(|| {
            "its mac does not match: the record, or its mac, was changed".into()
        }));
    }
    match misplaced() {
        Some(problem) => Err(problem),
        None => Ok(mac),
    }
}

/// Splits a line into its body without the closing brace, and its mac in hex.
fn split_mac(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = line.strip_suffix(MAC_CLOSE)?;
    let (rest, mac) = rest.split_at_checked(rest.len().checked_sub(2 * MAC_LEN)?)?;
    Some((rest.strip_suffix(MAC_OPEN)?, mac))
}

/// Returns the sequence number that a line claims to have.
pub(super) fn parse_seq(line: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(b"{\"seq\":")?;
    let digit_count = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&rest[..digit_count]).ok()?.parse().ok()
}

/// Returns the time that a line claims, if the line begins as [`seal_entry`] writes it.
pub(super) fn parse_time(line: &[u8]) -> Option<&str> {
    let rest = line.strip_prefix(b"{\"seq\":")?;
    let digit_count = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    let rest = rest[digit_count..].strip_prefix(b",\"ts\":\"")?;
    let length = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
    let (time, rest) = rest.split_at(length);
    rest.starts_with(b"\"").then(|| std::str::from_utf8(time).ok())?
}

/// Returns whether these bytes can be the start of record `seq`, cut off in mid-write.
pub(super) fn begins_record(bytes: &[u8], seq: u64) -> bool {
    let start = format!("{{\"seq\":{seq},");
    let start = start.as_bytes();
    let shared = start.len().min(bytes.len());
    bytes[..shared] == start[..shared]
}

/// Returns whether these bytes can be the start of record `seq` while its process is writing it: a
/// running process leaves nothing else there. After a power failure the disk may contain other
/// bytes.
pub(super) fn is_being_written(bytes: &[u8], seq: u64) -> bool {
    let start = format!("{{\"seq\":{seq},\"ts\":\"");
    let shared = start.len().min(bytes.len());
    // JSON escapes control characters.
    bytes[..shared] == start.as_bytes()[..shared] && bytes.iter().all(|byte| *byte >= b' ')
}

/// Reference to a record in another file, as headers contain it. Without `seq` and `mac` it says
/// only that the file existed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RecordLink {
    pub(super) file: String,
    pub(super) record: Option<(u64, String)>,
}

impl RecordLink {
    pub(super) fn new(file: &str, seq: u64, mac: &Mac) -> Self {
        RecordLink { file: file.to_owned(), record: Some((seq, to_hex(mac))) }
    }

    pub(super) fn to_json(&self) -> Value {
        let (seq, mac) = self.record.clone().unzip();
        serde_json::json!({"file": self.file, "seq": seq, "mac": mac})
    }

    pub(super) fn from_json(value: &Value) -> Option<RecordLink> {
        let record = value["seq"].as_u64().zip(value["mac"].as_str().map(str::to_owned));
        Some(RecordLink { file: value["file"].as_str()?.to_owned(), record })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(fields: Value) -> AuditEntry {
        let members = RecordMembers::redacted(borrow_fields(fields.as_object().unwrap()));
        AuditEntry { ts: "t".into(), event: "e", members }
    }

    #[test]
    fn the_mac_covers_the_line_without_its_mac_and_the_mac_before() {
        let key = ChainKey::new(&[7; 32]);
        let line =
            seal_entry(&key, &FIRST_MAC, 1, &entry(json!({"a": "ü\n", "mac": "mine", "seq": 9})));
        let text = String::from_utf8(line.bytes.clone()).unwrap();
        assert_eq!(
            text,
            format!(
                "{{\"seq\":1,\"ts\":\"t\",\"event\":\"e\",\"a\":\"ü\\n\",\"mac\":\"{}\"}}\n",
                to_hex(&line.mac)
            )
        );
        // The definition, computed independently of `seal_entry`.
        let mut input = b"record\n".to_vec();
        input.extend_from_slice(&FIRST_MAC);
        input.extend_from_slice(
            "{\"seq\":1,\"ts\":\"t\",\"event\":\"e\",\"a\":\"ü\\n\"}".as_bytes(),
        );
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &[7; 32]), &input);
        assert_eq!(tag.as_ref(), line.mac);

        let bare = &line.bytes[..line.bytes.len() - 1];
        assert_eq!(check_line(&key, &FIRST_MAC, 1, bare), Ok(line.mac));
        let members = entry(json!({"a": "ü\n"})).members;
        assert_eq!(Value::Object(members.parse()), json!({"a": "ü\n"}));
        assert!(RecordMembers::default().parse().is_empty());
        assert!(check_line(&key, &[1; 32], 1, bare).is_err(), "another predecessor");
        assert!(check_line(&ChainKey::new(&[8; 32]), &FIRST_MAC, 1, bare).is_err(), "another key");
        assert!(
            check_line(&key, &FIRST_MAC, 2, bare)
                .unwrap_err()
                .contains("found seq 1 where seq 2 was expected")
        );
    }

    #[test]
    fn the_beginning_of_a_record_is_known_at_any_length() {
        for cut in [&b"{"[..], b"{\"seq\":12", b"{\"seq\":12,\"ts\":\"2"] {
            assert!(begins_record(cut, 12));
        }
        assert!(!begins_record(b"{\"seq\":13,", 12));
        assert!(!begins_record(b"x", 12));
        for cut in [&b"{"[..], b"{\"seq\":12,\"ts", b"{\"seq\":12,\"ts\":\"2026"] {
            assert!(is_being_written(cut, 12));
        }
        for other in
            [&b"{\"seq\":12,\"x"[..], b"{\"seq\":12,\"ts\":\"2\0", b"{\"seq\":13", b"x", b"\0"]
        {
            assert!(!is_being_written(other, 12));
        }
    }
}
