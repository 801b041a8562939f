//! Comparing what came with the part of it that matters.

use serde_json::Value;

/// Why `actual` does not hold what is expected, or nothing when it does.
///
/// An object holds the expected members and may hold more; an expected list's items are found in the actual one
/// in this order; `"*"` is anything that is there, `"~text"` a string that holds the text, `"!~text"` one that
/// does not; `null` is null or absent. All else is equal or not.
pub fn mismatch(expected: &Value, actual: &Value, at: &str) -> Option<String> {
    match (expected, actual) {
        (Value::Object(expected), Value::Object(actual)) => {
            expected.iter().find_map(|(key, expected)| {
                mismatch(expected, actual.get(key).unwrap_or(&Value::Null), &format!("{at}.{key}"))
            })
        }
        (Value::Array(expected), Value::Array(actual)) => {
            let mut rest = actual.iter();
            expected.iter().enumerate().find_map(|(index, item)| {
                let found = rest.any(|actual| mismatch(item, actual, at).is_none());
                (!found).then(|| {
                    format!("{at}[{index}]: {item} is not in {}", Value::from(actual.clone()))
                })
            })
        }
        (Value::String(expected), actual) if expected == "*" => {
            actual.is_null().then(|| format!("{at}: there is nothing"))
        }
        (Value::String(expected), Value::String(actual)) if expected.starts_with("!~") => actual
            .contains(&expected[2..])
            .then(|| format!("{at}: {actual:?} holds {:?}", &expected[2..])),
        (Value::String(expected), Value::String(actual)) if expected.starts_with('~') => (!actual
            .contains(&expected[1..]))
        .then(|| format!("{at}: {actual:?} does not hold {:?}", &expected[1..])),
        _ => (expected != actual).then(|| format!("{at}: expected {expected}, got {actual}")),
    }
}

#[track_caller]
pub fn assert_holds(expected: Value, actual: &Value) {
    if let Some(why) = mismatch(&expected, actual, "") {
        panic!("{why}\nin {actual:#}");
    }
}
