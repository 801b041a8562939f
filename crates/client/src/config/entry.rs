//! Typed access to the values of a tree. Every method that returns `None` for a value of the wrong
//! type has added a problem, so that an incomplete configuration is never returned as valid.

use std::collections::BTreeMap;

use super::problem::{ConfigProblem, ProblemList, child_path, item_path, quote_text};
use super::tree::{JsonContent, JsonNode};

/// A value of the configuration with the full path of its key.
#[derive(Debug, Clone)]
pub(super) struct ConfigEntry<'a> {
    pub path: String,
    pub node: &'a JsonNode,
}

impl<'a> ConfigEntry<'a> {
    /// Returns the entry of the whole configuration.
    pub fn from_root(node: &'a JsonNode) -> ConfigEntry<'a> {
        ConfigEntry { path: String::new(), node }
    }

    /// Creates a problem with this value.
    pub fn new_problem(&self, reason: impl Into<String>, hint: impl Into<String>) -> ConfigProblem {
        ConfigProblem {
            position: self.node.position,
            path: self.path.clone(),
            reason: reason.into(),
            hint: hint.into(),
        }
    }

    /// Returns the members of an object.
    pub fn read_members(
        &self,
        problems: &mut ProblemList,
    ) -> Option<Vec<(&'a str, ConfigEntry<'a>)>> {
        let JsonContent::Object(members) = &self.node.content else {
            self.add_type_problem("an object", "Write its keys between `{` and `}`.", problems);
            return None;
        };
        let to_entry = |(key, node): (&'a String, &'a JsonNode)| {
            (key.as_str(), ConfigEntry { path: child_path(&self.path, key), node })
        };
        Some(members.iter().map(to_entry).collect())
    }

    /// Checks that the value is an object without unknown keys. Returns whether it is an object.
    pub fn check_keys(&self, known: &[&str], problems: &mut ProblemList) -> bool {
        let Some(members) = self.read_members(problems) else { return false };
        for (_, member) in members.iter().filter(|(key, _)| !known.contains(key)) {
            let hint = format!("Valid keys: {}.", known.join(", "));
            problems.add(member.new_problem("there is no such key", hint));
        }
        true
    }

    /// Returns the member with this key, if the value is an object that contains it.
    pub fn get(&self, key: &str) -> Option<ConfigEntry<'a>> {
        match &self.node.content {
            JsonContent::Object(members) => {
                members.get(key).map(|node| ConfigEntry { path: child_path(&self.path, key), node })
            }
            _ => None,
        }
    }

    /// Returns the member with this key; it must exist.
    pub fn require(
        &self,
        key: &str,
        hint: &str,
        problems: &mut ProblemList,
    ) -> Option<ConfigEntry<'a>> {
        let member = self.get(key);
        if member.is_none() {
            let path = child_path(&self.path, key);
            problems.add(ConfigProblem { path, ..self.new_problem("this key is missing", hint) });
        }
        member
    }

    /// Returns the text without reporting another type.
    pub fn as_text(&self) -> Option<&'a str> {
        match &self.node.content {
            JsonContent::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the text.
    pub fn read_text(&self, problems: &mut ProblemList) -> Option<&'a str> {
        let text = self.as_text();
        if text.is_none() {
            self.add_type_problem("text", "Write it in double quotes.", problems);
        }
        text
    }

    /// Returns the text, which must not be empty.
    pub fn read_name(&self, problems: &mut ProblemList) -> Option<&'a str> {
        let text = self.read_text(problems)?;
        if text.is_empty() {
            problems.add(self.new_problem("this must not be empty", "Give it a value."));
            return None;
        }
        Some(text)
    }

    /// Returns text that the operating system accepts as an argument or variable.
    pub fn read_os_text(&self, problems: &mut ProblemList) -> Option<&'a str> {
        let text = self.read_text(problems)?;
        if text.contains('\0') {
            problems.add(self.new_problem("this contains a NUL character", "Remove `\\u0000`."));
            return None;
        }
        Some(text)
    }

    /// Returns the items of a list.
    pub fn read_items(&self, problems: &mut ProblemList) -> Option<Vec<ConfigEntry<'a>>> {
        let JsonContent::List(items) = &self.node.content else {
            self.add_type_problem("a list", "Write its items between `[` and `]`.", problems);
            return None;
        };
        let to_entry = |(index, node)| ConfigEntry { path: item_path(&self.path, index), node };
        Some(items.iter().enumerate().map(to_entry).collect())
    }

    /// Returns the value that a text stands for.
    pub fn read_choice<T: Copy>(
        &self,
        choices: &[(&str, T)],
        problems: &mut ProblemList,
    ) -> Option<T> {
        let text = self.read_text(problems)?;
        let choice = choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        if choice.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            let reason = format!("{} is not a valid value", quote_text(text));
            let hint = format!("Valid values: {}.", names.join(", "));
            problems.add(self.new_problem(reason, hint));
        }
        choice
    }

    fn add_type_problem(&self, expected: &str, hint: &str, problems: &mut ProblemList) {
        let reason = match (self.path.as_str(), self.node.content.describe()) {
            ("", found) => format!("the configuration must be {expected}, not {found}"),
            (_, found) => format!("this must be {expected}, not {found}"),
        };
        let hint = match self.node.content {
            JsonContent::Null => "Give it a value, or remove the key.",
            _ => hint,
        };
        problems.add(self.new_problem(reason, hint));
    }
}

/// Collects values that were read one by one; `None` if one is not valid.
pub(super) fn collect_valid<T, C: FromIterator<T>>(
    values: impl Iterator<Item = Option<T>>,
) -> Option<C> {
    // Reads all values before it fails: each one may have a problem to report.
    let values: Vec<Option<T>> = values.collect();
    values.into_iter().collect()
}

/// Reads the members of an object whose keys are free; `read_value` checks key and value.
pub(super) fn read_text_map<'a>(
    entry: &ConfigEntry<'a>,
    problems: &mut ProblemList,
    mut read_value: impl FnMut(&'a str, &ConfigEntry<'a>, &mut ProblemList) -> Option<&'a str>,
) -> Option<BTreeMap<String, String>> {
    let members = entry.read_members(problems)?;
    collect_valid(members.iter().map(|(key, member)| {
        read_value(key, member, problems).map(|value| ((*key).to_owned(), value.to_owned()))
    }))
}
