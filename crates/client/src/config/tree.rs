//! JSON values with their positions.
//!
//! `serde_json` accepts a duplicate key silently, which lets a reviewer see one value while another
//! one applies, and it does not say where a value was written. This tree does both.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;

use super::problem::{ConfigProblem, ProblemList, ValuePosition, child_path, item_path};

/// Maximum size of each source.
pub const MAX_CONFIG_BYTES: usize = 1024 * 1024;

/// Nesting of the tree. The deepest valid value, a header, is five levels below the root: whatever
/// is deeper is below an error already. Each level scans its text again, so the bound also keeps
/// the time linear. Text below it is skipped by `serde_json` without recursion.
const MAX_TREE_DEPTH: usize = 7;

/// A JSON value with its position.
#[derive(Debug, Clone)]
pub(super) struct JsonNode {
    pub content: JsonContent,
    pub position: ValuePosition,
}

/// A JSON value. Values that no key accepts are not kept.
#[derive(Debug, Clone)]
pub(super) enum JsonContent {
    Null,
    Boolean,
    Number,
    Text(String),
    List(Vec<JsonNode>),
    Object(BTreeMap<String, JsonNode>),
}

impl JsonContent {
    /// Names the type of the value.
    pub fn describe(&self) -> &'static str {
        match self {
            JsonContent::Null => "null",
            JsonContent::Boolean => "a boolean",
            JsonContent::Number => "a number",
            JsonContent::Text(_) => "text",
            JsonContent::List(_) => "a list",
            JsonContent::Object(_) => "an object",
        }
    }
}

/// Parses a text. Duplicate keys are added to `problems`; the last one is kept.
pub(super) fn parse_tree(
    text: &str,
    source: usize,
    problems: &mut ProblemList,
) -> Result<JsonNode, ConfigProblem> {
    if text.len() > MAX_CONFIG_BYTES {
        return Err(describe_excess(source));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // Not `Value`: it treats an object with the private key of raw values as one of them.
    let root: &RawValue =
        serde_json::from_str(text).map_err(|error| describe_syntax_error(source, &error))?;
    let line_ends = text.match_indices('\n').map(|(offset, _)| offset).collect();
    let mut builder =
        TreeBuilder { text_start: text.as_ptr() as usize, line_ends, source, problems };
    builder.build_node(root, "", 0)
}

/// Returns the problem of a source that is larger than [`MAX_CONFIG_BYTES`].
pub(super) fn describe_excess(source: usize) -> ConfigProblem {
    let reason = "the configuration is larger than 1 MiB";
    ConfigProblem::with_source(source, reason, "Remove what is not configuration.")
}

const SYNTAX_HINT: &str = "Fix the syntax. JSON has no comments and no trailing commas.";

fn describe_syntax_error(source: usize, error: &serde_json::Error) -> ConfigProblem {
    let reason = match error.classify() {
        Category::Eof => "this is not valid JSON: the text ends too early".to_owned(),
        _ => {
            let (detail, column) = (strip_position(error), error.column());
            format!("this is not valid JSON: {detail} (column {column})")
        }
    };
    let position = ValuePosition { source, line: Some(error.line()) };
    ConfigProblem { position, ..ConfigProblem::with_source(source, reason, SYNTAX_HINT) }
}

/// Returns the message of an error without its position.
fn strip_position(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.split(" at line ").next().unwrap_or_default().to_owned()
}

struct TreeBuilder<'p> {
    /// Address of the text. Raw values borrow from it, so their addresses tell their offsets.
    text_start: usize,
    line_ends: Vec<usize>,
    source: usize,
    problems: &'p mut ProblemList,
}

impl TreeBuilder<'_> {
    fn build_node(
        &mut self,
        raw: &RawValue,
        path: &str,
        depth: usize,
    ) -> Result<JsonNode, ConfigProblem> {
        let text = raw.get();
        let offset = (text.as_ptr() as usize).saturating_sub(self.text_start);
        let line = self.line_ends.partition_point(|line_end| *line_end < offset) + 1;
        let position = ValuePosition { source: self.source, line: Some(line) };
        // Skipping a raw value has checked its syntax, except for surrogates in escapes.
        let describe = |error| ConfigProblem {
            position,
            path: path.to_owned(),
            reason: format!("this is not valid JSON: {}", strip_position(&error)),
            hint: SYNTAX_HINT.to_owned(),
        };
        let is_skipped = depth >= MAX_TREE_DEPTH;
        let content = match text.as_bytes().first() {
            Some(b'{') if is_skipped => JsonContent::Object(BTreeMap::new()),
            Some(b'[') if is_skipped => JsonContent::List(Vec::new()),
            Some(b'{') => {
                let RawMembers(members) = serde_json::from_str(text).map_err(describe)?;
                JsonContent::Object(self.build_members(members, path, depth + 1)?)
            }
            Some(b'[') => {
                let items: Vec<&RawValue> = serde_json::from_str(text).map_err(describe)?;
                let nodes = items
                    .into_iter()
                    .enumerate()
                    .map(|(index, raw)| self.build_node(raw, &item_path(path, index), depth + 1));
                JsonContent::List(nodes.collect::<Result<_, _>>()?)
            }
            Some(b'"') => JsonContent::Text(serde_json::from_str(text).map_err(describe)?),
            Some(b't' | b'f') => JsonContent::Boolean,
            Some(b'n') => JsonContent::Null,
            _ => JsonContent::Number,
        };
        Ok(JsonNode { content, position })
    }

    fn build_members(
        &mut self,
        members: Vec<(String, &RawValue)>,
        path: &str,
        depth: usize,
    ) -> Result<BTreeMap<String, JsonNode>, ConfigProblem> {
        let mut nodes = BTreeMap::new();
        for (key, raw) in members {
            let path = child_path(path, &key);
            let node = self.build_node(raw, &path, depth)?;
            let position = node.position;
            if nodes.insert(key, node).is_some() {
                let reason = "this key is set twice in the same object".to_owned();
                let hint = "Keep one of them.".to_owned();
                self.problems.add(ConfigProblem { position, path, reason, hint });
            }
        }
        Ok(nodes)
    }
}

/// Members of an object in their order, including duplicates.
struct RawMembers<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for RawMembers<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor).map(RawMembers)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::ConfigSource;
    use super::*;

    fn parse(text: &str) -> (Result<JsonNode, ConfigProblem>, Vec<String>) {
        let mut problems = ProblemList::default();
        let tree = parse_tree(text, 0, &mut problems);
        let duplicates = match problems.into_result((), &[ConfigSource::new_unnamed()]) {
            Ok(()) => Vec::new(),
            Err(error) => error.message().lines().map(str::to_owned).collect(),
        };
        (tree, duplicates)
    }

    fn find<'a>(node: &'a JsonNode, key: &str) -> &'a JsonNode {
        match &node.content {
            JsonContent::Object(members) => &members[key],
            other => panic!("{other:?} has no key"),
        }
    }

    #[test]
    fn values_know_their_lines() {
        let (tree, _) = parse("\u{feff}\n{ \"a\": 1,\r\n\n \"b\": {\"c\":\n [true,\nnull] } }");
        let tree = tree.unwrap();
        let line = |node: &JsonNode| node.position.line.unwrap();
        let list = find(find(&tree, "b"), "c");
        let JsonContent::List(items) = &list.content else { panic!("{list:?}") };
        assert_eq!(
            [&tree, find(&tree, "a"), find(&tree, "b"), list, &items[0], &items[1]].map(line),
            [2, 2, 4, 5, 5, 6]
        );
    }

    #[test]
    fn escapes_in_text_are_decoded() {
        let (tree, _) = parse(r#"{"a\u0062": "\n\ud83d\ude00"}"#);
        let tree = tree.unwrap();
        assert!(matches!(&find(&tree, "ab").content, JsonContent::Text(text) if text == "\n😀"));
    }

    #[test]
    fn duplicate_keys_are_reported_at_every_level() {
        let (tree, duplicates) = parse(
            "{\"a\": {\"b\": 1,\n\"\\u0062\": 2},\n\"c\": [{\"d\": 1, \"d\": 1}],\n\"a\": 3}",
        );
        assert!(tree.is_ok());
        let starts: Vec<&str> =
            duplicates.iter().map(|line| line.split(": this key").next().unwrap()).collect();
        assert_eq!(starts, ["line 2: a.b", "line 3: c[0].d", "line 4: a"]);
    }

    #[test]
    fn the_same_key_in_two_objects_is_not_a_duplicate() {
        let (tree, duplicates) = parse(r#"{"a": {"x": 1}, "b": {"x": 1}, "x": [{"x": 1}]}"#);
        assert!(tree.is_ok() && duplicates.is_empty(), "{duplicates:?}");
    }

    #[test]
    fn syntax_errors_name_the_line_and_the_cause() {
        for (text, line, words) in [
            ("", 1, "the text ends too early"),
            ("{\"a\": 1", 1, "the text ends too early"),
            ("{\n\"a\": 1,\n}", 3, "key must be a string (column 1)"),
            ("{} x", 1, "trailing characters (column 4)"),
            ("{\n// no\n}", 2, "(column 1)"),
            ("{\n\"a\": \"\\ud800\"}", 2, "this is not valid JSON: "),
            ("{\n\"a\": {\n\"\\ud800\": 1}}", 2, "this is not valid JSON: "),
            ("{\"a\": \"x\ny\"}", 1, "control character"),
        ] {
            let problem = parse(text).0.unwrap_err();
            assert_eq!(problem.position.line, Some(line), "{text}: {problem:?}");
            assert!(problem.reason.contains(words), "{text}: {problem:?}");
            assert!(!problem.reason.contains("at line"), "{problem:?}");
        }
    }

    #[test]
    fn deep_nesting_is_skipped() {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let levels = (MAX_CONFIG_BYTES - 1) / (open.len() + close.len());
            let mut node = parse(&[&open.repeat(levels), "1", &close.repeat(levels)].concat()).0;
            for _ in 0..MAX_TREE_DEPTH {
                let node_below = match node.unwrap().content {
                    JsonContent::List(mut items) => items.pop(),
                    JsonContent::Object(mut members) => members.remove("a"),
                    other => panic!("{other:?}"),
                };
                node = Ok(node_below.unwrap());
            }
            let is_empty = match node.unwrap().content {
                JsonContent::List(items) => items.is_empty(),
                JsonContent::Object(members) => members.is_empty(),
                other => panic!("{other:?}"),
            };
            assert!(is_empty);
        }
    }

    #[test]
    fn the_private_key_of_raw_values_is_an_ordinary_key() {
        let (tree, duplicates) = parse(r#"{"$serde_json::private::RawValue": "{\"a\": 1}"}"#);
        let JsonContent::Object(members) = tree.unwrap().content else { panic!("not an object") };
        assert!(members.contains_key("$serde_json::private::RawValue") && duplicates.is_empty());
    }

    #[test]
    fn the_largest_text_is_one_mebibyte() {
        let text = format!("{{}}{}", " ".repeat(MAX_CONFIG_BYTES - 2));
        assert!(parse(&text).0.is_ok());
        let problem = parse(&(text + " ")).0.unwrap_err();
        assert_eq!(problem.reason, "the configuration is larger than 1 MiB");
    }
}
