//! Deserializes a table leniently: removes values that do not fit, so that every error is reported
//! and none hides another.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer, Error};

use super::key_spans::{child_path, item_path};
use super::value_errors::ValueType;

/// Maximum number of errors: more help no one, and each takes time.
pub const MAX_MISMATCHES: usize = 100;

/// A value that does not fit, its position, and the parser's error.
pub struct ValueMismatch {
    pub path: String,
    pub span: Range<usize>,
    pub value_type: ValueType,
    pub error: Error,
}

/// Deserializes a table and removes from it what does not fit; `path` is the path of the table.
pub fn read_lenient<T: DeserializeOwned + Default>(
    table: &mut Spanned<DeTable<'_>>,
    path: &str,
) -> (T, Vec<ValueMismatch>) {
    let span = table.span();
    let mut mismatches = Vec::new();
    match deserialize_table(table.clone()) {
        Ok(complete) => return (complete, mismatches),
        Err(error) => {
            let fits = |table: DeTable<'_>| {
                deserialize_table::<T>(Spanned::new(span.clone(), table)).map(drop)
            };
            filter_table(table.get_mut(), path, &fits, &mut mismatches);
            if mismatches.is_empty() {
                // Each key fits alone, but not all together: a key under two of its names.
                let (path, span) = first_conflict(table.get_ref(), path, &fits)
                    .unwrap_or((path.to_owned(), span.clone()));
                mismatches.push(ValueMismatch { path, span, value_type: ValueType::Table, error });
                return (T::default(), mismatches);
            }
        }
    }
    match deserialize_table(table.clone()) {
        Ok(partial) => (partial, mismatches),
        Err(error) => {
            mismatches.push(ValueMismatch {
                path: path.to_owned(),
                span: error.span().unwrap_or(span),
                value_type: ValueType::Table,
                error,
            });
            (T::default(), mismatches)
        }
    }
}

/// Returns the first key that does not fit together with the ones before it.
fn first_conflict<'a>(
    table: &DeTable<'a>,
    path: &str,
    fits: &dyn Fn(DeTable<'a>) -> Result<(), Error>,
) -> Option<(String, Range<usize>)> {
    let mut prefix = DeTable::new();
    for (key, value) in table {
        prefix.insert(key.clone(), value.clone());
        if fits(prefix.clone()).is_err() {
            return Some((child_path(path, key.get_ref()), key.span()));
        }
    }
    None
}

fn deserialize_table<T: DeserializeOwned>(table: Spanned<DeTable<'_>>) -> Result<T, Error> {
    T::deserialize(Deserializer::from(table))
}

fn filter_table<'a>(
    table: &mut DeTable<'a>,
    path: &str,
    fits: &dyn Fn(DeTable<'a>) -> Result<(), Error>,
    mismatches: &mut Vec<ValueMismatch>,
) {
    for (key, mut value) in std::mem::take(table) {
        if mismatches.len() >= MAX_MISMATCHES {
            return;
        }
        let fits_alone =
            |value: Spanned<DeValue<'a>>| fits(DeTable::from_iter([(key.clone(), value)]));
        if filter_value(&mut value, &child_path(path, key.get_ref()), &fits_alone, mismatches) {
            table.insert(key, value);
        }
    }
}

/// Removes what does not fit from a value. Returns whether anything of it can stay.
fn filter_value<'a>(
    value: &mut Spanned<DeValue<'a>>,
    path: &str,
    fits: &dyn Fn(Spanned<DeValue<'a>>) -> Result<(), Error>,
    mismatches: &mut Vec<ValueMismatch>,
) -> bool {
    let Err(error) = fits(value.clone()) else { return true };
    let span = value.span();
    let mismatches_before = mismatches.len();
    // If even an empty table or list does not fit, the items are not to blame.
    let own_error = match value.get_mut() {
        DeValue::Table(table) => {
            match fits(Spanned::new(span.clone(), DeValue::Table(DeTable::new()))) {
                Err(error) => Some(error),
                Ok(()) => {
                    let fits_inside = |inner: DeTable<'a>| {
                        fits(Spanned::new(span.clone(), DeValue::Table(inner)))
                    };
                    filter_table(table, path, &fits_inside, mismatches);
                    None
                }
            }
        }
        DeValue::Array(array) => {
            match fits(Spanned::new(span.clone(), DeValue::Array(Default::default()))) {
                Err(error) => Some(error),
                Ok(()) => {
                    for (index, value) in array.iter().enumerate() {
                        if mismatches.len() >= MAX_MISMATCHES {
                            break;
                        }
                        let fits_alone = |value| {
                            fits(Spanned::new(
                                span.clone(),
                                DeValue::Array([value].into_iter().collect()),
                            ))
                        };
                        filter_value(
                            &mut value.clone(),
                            &item_path(path, index),
                            &fits_alone,
                            mismatches,
                        );
                    }
                    None
                }
            }
        }
        _ => None,
    };
    if let Some(error) = own_error.or((mismatches.len() == mismatches_before).then_some(error)) {
        // An unknown key is marked itself; for any other error its value is.
        let span = match error.message().starts_with("unknown field") {
            true => error.span().unwrap_or(span),
            false => span,
        };
        let value_type = ValueType::from_toml(value.get_ref());
        mismatches.push(ValueMismatch { path: path.to_owned(), span, value_type, error });
        return false;
    }
    // A list without one of its items would mean something else.
    value.get_ref().is_table()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Default, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct OneKey {
        known: Option<bool>,
    }

    fn first_mismatch(text: &str) -> ValueMismatch {
        let mut table = DeTable::parse(text).unwrap();
        let (_, mut mismatches) = read_lenient::<OneKey>(&mut table, "");
        mismatches.remove(0)
    }

    /// The phrase is English text of `serde`. If an update changes it, this test fails instead of
    /// the wrong word being marked.
    #[test]
    fn unknown_field_is_a_phrase_of_the_parser() {
        let text = "mistyped = true\n";
        let found = first_mismatch(text);
        assert!(found.error.message().starts_with("unknown field"), "{}", found.error);
        assert_eq!(&text[found.span], "mistyped");
        let text = "known = 1\n";
        assert_eq!(&text[first_mismatch(text).span], "1");
    }
}
