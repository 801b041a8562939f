//! How a sound JSON value is spoiled: in its structure, in its text, in its bytes.

use serde_json::{Map, Value, json};

use crate::rng::Rng;

const STRINGS: &[&str] = &[
    "",
    " ",
    "0",
    "null",
    "2.0",
    "..",
    "../../etc/passwd",
    "/etc/passwd",
    "a/b/../../..",
    "file.txt",
    "dir",
    "output:o-1",
    "~",
    "-",
    "--",
    "\0",
    "a\0b",
    "\u{202e}abc",
    "\u{feff}",
    "\u{200b}",
    "\u{1b}[2J",
    "\r\n",
    "😀",
    "ﷺ",
    "İ",
    "ß",
    "e\u{301}",
    "\u{10ffff}",
    "%s%n",
    "${HOME}",
    "__proto__",
    "tools/call",
    "initialize",
    "2026-07-28",
    "9999-99-99",
    "sha256:",
    "b3:",
];

/// Numbers no `Value` can hold, and text that only looks like JSON.
const TOKENS: &[&str] = &[
    "1e400",
    "-1e400",
    "1e-400",
    "18446744073709551616",
    "-9223372036854775809",
    "123456789012345678901234567890",
    "0.1e1",
    "-0",
    "-0.0",
    "00",
    "01",
    "+1",
    "0x10",
    "1.",
    ".5",
    "NaN",
    "Infinity",
    "undefined",
    "'a'",
    "tru",
    "nul",
    r#""\ud800""#,
    r#""\udc00\ud800""#,
    r#""\u0000""#,
    r#""\x""#,
    "[1,]",
    "{,}",
    r#"{"a":1,"a":2}"#,
    "/**/1",
    "\u{a0}1",
];

const NAMES: &[&str] = &[
    "jsonrpc",
    "id",
    "method",
    "params",
    "result",
    "error",
    "name",
    "arguments",
    "_meta",
    "protocolVersion",
    "capabilities",
    "clientInfo",
    "progressToken",
    "requestState",
    "inputResponses",
    "path",
    "content",
    "command",
    "argv",
    "env",
    "cwd",
    "x",
];

/// A lone continuation, an overlong form, a surrogate, beyond the last character, a byte order mark, a cut character.
const INVALID_UTF8: &[&[u8]] =
    &[b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff\xfe", b"\xe2\x82"];

/// Any value at all.
pub fn any_value(rng: &mut Rng, depth: usize) -> Value {
    match rng.below(if depth == 0 { 7 } else { 9 }) {
        0 => Value::Null,
        1 => json!(rng.one_in(2)),
        2 => any_number(rng),
        3..=5 => json!(any_string(rng)),
        6 => json!([]),
        7 => (0..rng.below(4)).map(|_| any_value(rng, depth - 1)).collect(),
        _ => Value::Object(
            (0..rng.below(4)).map(|_| (any_name(rng), any_value(rng, depth - 1))).collect(),
        ),
    }
}

pub fn any_number(rng: &mut Rng) -> Value {
    match rng.below(4) {
        0 => json!(rng.below(10)),
        1 => json!(rng.pick(&[
            i64::MIN,
            i64::MIN + 1,
            -1,
            0,
            1,
            255,
            65_536,
            1 << 31,
            1 << 53,
            i64::MAX
        ])),
        2 => json!(rng.pick(&[u64::MAX, u64::MAX - 1, 1 << 63])),
        _ => json!(rng.pick(&[0.0, -0.0, 0.5, 1.0, -1.5, 1e300, 5e-324, f64::MAX])),
    }
}

pub fn any_string(rng: &mut Rng) -> String {
    let text = (*rng.pick(STRINGS)).to_owned();
    match rng.below(12) {
        0 => text.repeat(1 + rng.below(300)),
        1 => "x".repeat(1 << rng.below(17)),
        2 => (0..rng.below(40))
            .map(|_| char::from_u32(rng.next() as u32 % 0x11_0000).unwrap_or('\u{fffd}'))
            .collect(),
        3 => (*rng.pick(STRINGS)).to_owned() + &text,
        _ => text,
    }
}

fn any_name(rng: &mut Rng) -> String {
    if rng.one_in(3) { any_string(rng) } else { (*rng.pick(NAMES)).to_owned() }
}

/// Spoils one place of a value.
pub fn spoil(rng: &mut Rng, value: &mut Value) {
    // Downwards with luck, so that the envelope and the innermost arguments both get their share.
    if !rng.one_in(3) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                let at = rng.below(map.len());
                return spoil(rng, map.values_mut().nth(at).unwrap());
            }
            Value::Array(items) if !items.is_empty() => {
                let at = rng.below(items.len());
                return spoil(rng, &mut items[at]);
            }
            _ => {}
        }
    }
    match value {
        Value::Object(map) if !rng.one_in(4) => spoil_members(rng, map),
        _ if rng.one_in(8) => *value = nested(rng, value.take()),
        _ => *value = any_value(rng, 3),
    }
}

fn spoil_members(rng: &mut Rng, map: &mut Map<String, Value>) {
    let name = match map.len() {
        0 => any_name(rng),
        count => map.keys().nth(rng.below(count)).unwrap().clone(),
    };
    match rng.below(4) {
        0 => drop(map.shift_remove(&name)),
        1 => drop(map.insert(any_name(rng), any_value(rng, 3))),
        2 => {
            if let Some(value) = map.shift_remove(&name) {
                map.insert(any_name(rng), value);
            }
        }
        _ => drop(map.insert(name, any_value(rng, 3))),
    }
}

/// Around the depth where parsers give up, and far beneath it.
fn nested(rng: &mut Rng, mut value: Value) -> Value {
    for _ in 0..*rng.pick(&[1, 2, 16, 100, 120, 126, 127, 128, 129, 200]) {
        // By hand, since `json!` would copy what is inside at every level.
        value = match rng.one_in(2) {
            true => Value::Array(vec![value]),
            false => Value::Object(Map::from_iter([("x".to_owned(), value)])),
        };
    }
    value
}

/// Writes a value down, perhaps wrongly.
pub fn write(rng: &mut Rng, value: &Value) -> Vec<u8> {
    let mut text = value.to_string();
    match rng.below(12) {
        0..=1 => replace_a_value(rng, &mut text),
        2..=3 => repeat_a_member(rng, &mut text),
        4 if rng.one_in(4) => {
            let depth = *rng.pick(&[64, 127, 128, 129, 5000, 50_000]);
            text = format!("{}{text}", rng.pick(&["[", r#"{"x":"#]).repeat(depth));
        }
        _ => {}
    }
    let mut bytes = text.into_bytes();
    if rng.one_in(4) {
        for _ in 0..=rng.below(3) {
            damage(rng, &mut bytes);
        }
    }
    bytes
}

fn replace_a_value(rng: &mut Rng, text: &mut String) {
    let colons: Vec<usize> = text.match_indices(':').map(|(at, _)| at + 1).collect();
    if colons.is_empty() {
        return;
    }
    let start = *rng.pick(&colons);
    let end = text[start..].find([',', '}', ']']).map_or(text.len(), |at| start + at);
    let token = *rng.pick(TOKENS);
    text.replace_range(start..end, token);
}

/// The same name twice in one object.
fn repeat_a_member(rng: &mut Rng, text: &mut String) {
    let member = format!("{}:{},", json!(rng.pick(NAMES)), any_value(rng, 1));
    let braces: Vec<usize> = text.match_indices(r#"{""#).map(|(at, _)| at + 1).collect();
    if !braces.is_empty() {
        text.insert_str(*rng.pick(&braces), &member);
    }
}

fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let at = rng.below(bytes.len());
    match rng.below(6) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes.truncate(at),
        2 => bytes.insert(at, rng.next() as u8),
        3 => drop(bytes.remove(at)),
        4 => {
            let wrong = *rng.pick(INVALID_UTF8);
            bytes.splice(at..at, wrong.iter().copied());
        }
        _ => {
            let to = at + rng.below(bytes.len() - at);
            let piece = bytes[at..to].to_vec();
            bytes.splice(at..at, piece);
        }
    }
}
