//! Deserializes a table leniently: removes values that do not fit, so that every error is reported
//! and none hides another.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer, Error};

use super::places::{child, item};

/// Maximum number of errors: more help no one, and each takes time.
pub const MOST: usize = 100;

/// A value that does not fit, its position, and the parser's error.
pub struct Misfit {
    pub path: String,
    pub span: Range<usize>,
    pub error: Error,
}

/// Deserializes a table and removes from it what does not fit; `path` is the path of the table.
pub fn sift<T: DeserializeOwned + Default>(
    table: &mut Spanned<DeTable<'_>>,
    path: &str,
) -> (T, Vec<Misfit>) {
    let span = table.span();
    let mut misfits = Vec::new();
    match read(table.clone()) {
        Ok(whole) => return (whole, misfits),
        Err(error) => {
            let fits = |table: DeTable<'_>| read::<T>(Spanned::new(span.clone(), table)).map(drop);
            sift_table(table.get_mut(), path, &fits, &mut misfits);
            if misfits.is_empty() {
                // Each key fits alone, but not all together: a key under two of its names.
                let (path, span) = last_straw(table.get_ref(), path, &fits)
                    .unwrap_or((path.to_owned(), span.clone()));
                misfits.push(Misfit { path, span, error });
                return (T::default(), misfits);
            }
        }
    }
    match read(table.clone()) {
        Ok(rest) => (rest, misfits),
        Err(error) => {
            misfits.push(Misfit {
                path: path.to_owned(),
                span: error.span().unwrap_or(span),
                error,
            });
            (T::default(), misfits)
        }
    }
}

/// Returns the first key that does not fit together with the ones before it.
fn last_straw<'a>(
    table: &DeTable<'a>,
    path: &str,
    fits: &dyn Fn(DeTable<'a>) -> Result<(), Error>,
) -> Option<(String, Range<usize>)> {
    let mut before = DeTable::new();
    for (key, value) in table {
        before.insert(key.clone(), value.clone());
        if fits(before.clone()).is_err() {
            return Some((child(path, key.get_ref()), key.span()));
        }
    }
    None
}

fn read<T: DeserializeOwned>(table: Spanned<DeTable<'_>>) -> Result<T, Error> {
    T::deserialize(Deserializer::from(table))
}

fn sift_table<'a>(
    table: &mut DeTable<'a>,
    path: &str,
    fits: &dyn Fn(DeTable<'a>) -> Result<(), Error>,
    misfits: &mut Vec<Misfit>,
) {
    for (key, mut value) in std::mem::take(table) {
        if misfits.len() >= MOST {
            return;
        }
        let alone = |value: Spanned<DeValue<'a>>| fits(DeTable::from_iter([(key.clone(), value)]));
        if sift_value(&mut value, &child(path, key.get_ref()), &alone, misfits) {
            table.insert(key, value);
        }
    }
}

/// Removes what does not fit from a value. Returns whether anything of it can stay.
fn sift_value<'a>(
    value: &mut Spanned<DeValue<'a>>,
    path: &str,
    fits: &dyn Fn(Spanned<DeValue<'a>>) -> Result<(), Error>,
    misfits: &mut Vec<Misfit>,
) -> bool {
    let Err(error) = fits(value.clone()) else { return true };
    let span = value.span();
    let before = misfits.len();
    // If even an empty table or list does not fit, the items are not to blame.
    let of_itself = match value.get_mut() {
        DeValue::Table(table) => {
            match fits(Spanned::new(span.clone(), DeValue::Table(DeTable::new()))) {
                Err(error) => Some(error),
                Ok(()) => {
                    let around = |inner: DeTable<'a>| {
                        fits(Spanned::new(span.clone(), DeValue::Table(inner)))
                    };
                    sift_table(table, path, &around, misfits);
                    None
                }
            }
        }
        DeValue::Array(array) => {
            match fits(Spanned::new(span.clone(), DeValue::Array(Default::default()))) {
                Err(error) => Some(error),
                Ok(()) => {
                    for (at, value) in array.iter().enumerate() {
                        if misfits.len() >= MOST {
                            break;
                        }
                        let alone = |value| {
                            fits(Spanned::new(
                                span.clone(),
                                DeValue::Array([value].into_iter().collect()),
                            ))
                        };
                        sift_value(&mut value.clone(), &item(path, at), &alone, misfits);
                    }
                    None
                }
            }
        }
        _ => None,
    };
    if let Some(error) = of_itself.or((misfits.len() == before).then_some(error)) {
        // An unknown key is marked itself; for any other error its value is.
        let span = match error.message().starts_with("unknown field") {
            true => error.span().unwrap_or(span),
            false => span,
        };
        misfits.push(Misfit { path: path.to_owned(), span, error });
        return false;
    }
    // A list without one of its items would mean something else.
    value.get_ref().is_table()
}
