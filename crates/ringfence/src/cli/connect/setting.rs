//! Settings that a client needs, independent of the format of its file.

use serde_json::{Value, json};

use super::document::ConfigDocument;
use crate::base::Result;

/// One setting in a client's file.
#[derive(Debug, Clone)]
pub struct ClientSetting {
    pub path: Vec<String>,
    pub wanted: WantedValue,
}

/// Value that a setting should have. What the user chose is kept wherever the connection works
/// with it.
#[derive(Debug, Clone)]
pub enum WantedValue {
    /// Exactly this value.
    Fixed(Value),
    /// This value, unless there is one.
    Default(Value),
    /// A list that contains this item.
    ListItem(Value),
    /// A command line: the leading words are fixed; the words from `serve` on are the user's, if
    /// there are any.
    ServeCommand { leading: Vec<String>, default: Vec<String> },
    /// No value: the key belongs to another transport.
    Missing,
}

impl ClientSetting {
    /// Creates a setting; the path is that of a table, and a key in it.
    pub fn new(table: &[&str], key: &str, wanted: WantedValue) -> ClientSetting {
        let path = table.iter().copied().chain([key]).map(str::to_owned).collect();
        ClientSetting { path, wanted }
    }

    /// Describes the setting for people.
    pub fn describe(&self) -> String {
        match &self.wanted {
            WantedValue::ListItem(item) => format!("{item} in `{}`", self.path.join(".")),
            _ => format!("`{}`", self.path.join(".")),
        }
    }

    /// Gives the setting its value in `document`, unless it has it already.
    pub fn apply_to(&self, document: &mut ConfigDocument) -> Result<()> {
        let current = document.get(&self.path);
        match &self.wanted {
            WantedValue::Missing if current.is_some() => document.remove(&self.path),
            WantedValue::Missing => Ok(()),
            WantedValue::Default(_) if current.is_some() => Ok(()),
            WantedValue::Default(value) => document.set(&self.path, value),
            WantedValue::Fixed(value) => set_if_different(document, &self.path, current, value),
            WantedValue::ServeCommand { leading, default } => {
                let value = merge_command(leading, default, current.as_ref());
                set_if_different(document, &self.path, current, &value)
            }
            WantedValue::ListItem(item) => match current {
                None => document.set(&self.path, &json!([item])),
                Some(Value::Array(items)) if items.contains(item) => Ok(()),
                Some(_) => document.push_item(&self.path, item),
            },
        }
    }

    /// Undoes the setting in `document` where `base`, the file before it was connected, differs.
    /// Returns whether it was kept because there is no base to compare with.
    pub fn undo_in(
        &self,
        document: &mut ConfigDocument,
        base: Option<&ConfigDocument>,
    ) -> Result<bool> {
        let Some(current) = document.get(&self.path) else { return Ok(false) };
        let before = base.and_then(|base| base.get(&self.path));
        match &self.wanted {
            WantedValue::ListItem(item) => {
                let has_item =
                    |value: &Value| value.as_array().is_some_and(|items| items.contains(item));
                let is_ours = item.as_str().is_some_and(|item| item.contains("ringfence"));
                if !has_item(&current) || before.as_ref().is_some_and(has_item) {
                    return Ok(false);
                }
                if base.is_none() && !is_ours {
                    return Ok(true);
                }
                document.remove_item(&self.path, item)?;
            }
            WantedValue::Fixed(value) => {
                if !is_same_value(&current, value) {
                    return Ok(false);
                }
                match (base, before) {
                    (None, _) => return Ok(true),
                    (_, Some(before)) => {
                        set_if_different(document, &self.path, Some(current), &before)?;
                    }
                    (_, None) => document.remove(&self.path)?,
                }
            }
            _ => return Ok(false),
        }
        remove_empty_tables(document, &self.path, base)?;
        Ok(false)
    }
}

/// Removes the tables and lists on a path that are empty now and that `base` does not have.
pub fn remove_empty_tables(
    document: &mut ConfigDocument,
    path: &[String],
    base: Option<&ConfigDocument>,
) -> Result<()> {
    for length in (1..=path.len()).rev() {
        let path = &path[..length];
        let is_empty = match document.get(path) {
            None => continue,
            Some(Value::Object(members)) => members.is_empty(),
            Some(Value::Array(items)) => items.is_empty(),
            Some(_) => false,
        };
        if !is_empty || base.is_some_and(|base| base.get(path).is_some()) {
            return Ok(());
        }
        document.remove(path)?;
    }
    Ok(())
}

fn set_if_different(
    document: &mut ConfigDocument,
    path: &[String],
    current: Option<Value>,
    value: &Value,
) -> Result<()> {
    match current {
        Some(current) if is_same_value(&current, value) => Ok(()),
        _ => document.set(path, value),
    }
}

/// Keeps the user's arguments of `serve`, whatever started it before.
fn merge_command(leading: &[String], default: &[String], current: Option<&Value>) -> Value {
    let words = current.and_then(Value::as_array);
    let kept = words.and_then(|words| {
        let start = words.iter().position(|word| word == "serve")?;
        Some(words[start..].to_vec())
    });
    let kept = kept.unwrap_or_else(|| default.iter().map(|word| json!(word)).collect());
    leading.iter().map(|word| json!(word)).chain(kept).collect()
}

/// Returns whether two values are equal. Codex writes an integer back as a float.
pub fn is_same_value(left: &Value, right: &Value) -> bool {
    match (left.as_f64(), right.as_f64()) {
        (Some(left), Some(right)) => left == right,
        _ => left == right,
    }
}
