//! Formats the accessibility trees of a page's frames as indented lines.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::browser::page_log::truncate_text;

const ACTIONABLE_ROLES: &[&str] = &[
    "button",
    "link",
    "textbox",
    "searchbox",
    "combobox",
    "checkbox",
    "radio",
    "switch",
    "slider",
    "spinbutton",
    "menuitem",
    "menuitemcheckbox",
    "menuitemradio",
    "tab",
    "option",
    "treeitem",
    "listbox",
    "textField",
    "PopUpButton",
    "MenuListOption",
    "ComboBoxMenuButton",
    "ComboBoxGrouping",
    "ComboBoxSelect",
    "DisclosureTriangle",
    "Date",
    "DateTime",
    "InputTime",
    "ColorWell",
    "file",
    "Iframe",
    "IframePresentational",
];
/// Roles that give orientation.
const CONTEXT_ROLES: &[&str] = &[
    "heading",
    "dialog",
    "alertdialog",
    "alert",
    "status",
    "navigation",
    "main",
    "form",
    "search",
    "tablist",
    "menu",
];
/// Roles that mean nothing on their own.
const EMPTY_ROLES: &[&str] = &[
    "none",
    "generic",
    "InlineTextBox",
    "LineBreak",
    "RootWebArea",
    "LayoutTable",
    "ListMarker",
    "Ignored",
];
const MAX_NAME_BYTES: usize = 120;
const MAX_LONG_NAME_BYTES: usize = 400;
/// Maximum number of lines.
pub const MAX_LINES: usize = 20_000;
const MAX_DEPTH: usize = 200;
/// Maximum number of nodes visited, whether they get a line or not.
const MAX_NODES: usize = 100_000;

/// Accessibility tree of one frame.
pub struct AccessibilityTree {
    /// Id of the frame.
    pub frame: String,
    /// Node id of the element that contains the frame; None for the main frame.
    owner: Option<i64>,
    nodes: Vec<Value>,
    by_id: HashMap<String, usize>,
}

impl AccessibilityTree {
    /// Indexes the nodes of a tree.
    pub fn new(frame: String, owner: Option<i64>, nodes: Value) -> AccessibilityTree {
        let nodes = match nodes {
            Value::Array(nodes) => nodes,
            _ => Vec::new(),
        };
        let id = |node: &Value| node["nodeId"].as_str().unwrap_or_default().to_owned();
        let by_id = nodes.iter().enumerate().map(|(index, node)| (id(node), index)).collect();
        AccessibilityTree { frame, owner, nodes, by_id }
    }

    fn children(&self, index: usize) -> impl Iterator<Item = usize> {
        let ids = self.nodes[index]["childIds"].as_array().into_iter().flatten();
        ids.filter_map(|id| self.by_id.get(id.as_str()?).copied())
    }

    fn root(&self) -> Option<usize> {
        self.nodes.iter().position(|node| node.get("parentId").is_none())
    }
}

/// Writes the lines, and requests a name for each element that gets one.
pub struct OutlineWriter<'a> {
    trees: &'a [AccessibilityTree],
    by_owner: HashMap<i64, usize>,
    full: bool,
    depth: usize,
    name: &'a mut dyn FnMut(usize, i64) -> Option<String>,
    lines: Vec<String>,
    /// Nodes visited so far: a browser may name one node as the child of many.
    visited: HashSet<(usize, usize)>,
}

impl<'a> OutlineWriter<'a> {
    /// Creates a writer. `name` returns the ref for a node of a tree.
    pub fn new(
        trees: &'a [AccessibilityTree],
        full: bool,
        depth: Option<usize>,
        name: &'a mut dyn FnMut(usize, i64) -> Option<String>,
    ) -> OutlineWriter<'a> {
        let by_owner = trees
            .iter()
            .enumerate()
            .filter_map(|(index, tree)| Some((tree.owner?, index)))
            .collect();
        OutlineWriter {
            trees,
            by_owner,
            full,
            depth: depth.unwrap_or(usize::MAX),
            name,
            lines: Vec::new(),
            visited: HashSet::new(),
        }
    }

    /// Writes from the root, or from this element; returns None if it does not exist.
    pub fn write(mut self, start_node: Option<i64>) -> Option<Vec<String>> {
        let (tree, root) = match start_node {
            None => (0, self.trees.first()?.root()?),
            Some(backend_node) => self.trees.iter().enumerate().find_map(|(index, tree)| {
                let node = tree
                    .nodes
                    .iter()
                    .position(|node| node["backendDOMNodeId"].as_i64() == Some(backend_node))?;
                Some((index, node))
            })?,
        };
        self.visit_node(tree, root, 0, 0, "");
        Some(self.lines)
    }

    fn visit_node(
        &mut self,
        tree: usize,
        index: usize,
        indent: usize,
        nesting: usize,
        parent_label: &str,
    ) {
        let limit_reached =
            self.lines.len() >= MAX_LINES || self.visited.len() >= MAX_NODES || nesting > MAX_DEPTH;
        if limit_reached || !self.visited.insert((tree, index)) {
            return;
        }
        let trees = self.trees;
        let node = &trees[tree].nodes[index];
        let role = node["role"]["value"].as_str().unwrap_or_default();
        let label = collapse_whitespace(node["name"]["value"].as_str().unwrap_or_default());
        let backend_node = node["backendDOMNodeId"].as_i64();
        let is_shown = node["ignored"] != true && self.keeps_node(node, role, &label, parent_label);
        let line_count = self.lines.len();
        let mut child_indent = indent;
        if is_shown && indent < self.depth {
            let line = self.format_line(tree, node, role, &label, backend_node);
            self.lines.push(format!("{}{line}", "  ".repeat(indent)));
            child_indent = indent + 1;
        }
        if child_indent <= self.depth {
            let parent_label =
                if is_shown && !label.is_empty() { label.as_str() } else { parent_label };
            for child in trees[tree].children(index) {
                self.visit_node(tree, child, child_indent, nesting + 1, parent_label);
            }
            if let Some(inner_tree) =
                backend_node.and_then(|backend_node| self.by_owner.get(&backend_node).copied())
                && let Some(root) = trees[inner_tree].root()
            {
                self.visit_node(inner_tree, root, child_indent, nesting + 1, "");
            }
        }
        // Drop the line of an unlabelled container without anything to act on.
        let is_childless = self.lines.len() == line_count + 1;
        if is_shown
            && is_childless
            && !self.full
            && label.is_empty()
            && CONTEXT_ROLES.contains(&role)
        {
            self.lines.truncate(line_count);
        }
    }

    fn keeps_node(&self, node: &Value, role: &str, label: &str, parent_label: &str) -> bool {
        if EMPTY_ROLES.contains(&role) {
            // Anything focusable can be acted on, whatever its role.
            return node_property(node, "focusable") == Some(&Value::Bool(true))
                && role != "RootWebArea";
        }
        if role == "StaticText" {
            return self.full && !label.is_empty() && !parent_label.contains(label);
        }
        if self.full {
            return !label.is_empty()
                || ACTIONABLE_ROLES.contains(&role)
                || CONTEXT_ROLES.contains(&role)
                || is_structure(role);
        }
        ACTIONABLE_ROLES.contains(&role)
            || CONTEXT_ROLES.contains(&role)
            || node_property(node, "focusable") == Some(&Value::Bool(true))
            || node_property(node, "editable").is_some()
    }

    fn format_line(
        &mut self,
        tree: usize,
        node: &Value,
        role: &str,
        label: &str,
        backend_node: Option<i64>,
    ) -> String {
        let mut line = match role {
            "StaticText" => "text".to_owned(),
            "Iframe" | "IframePresentational" => "iframe".to_owned(),
            role => role.to_owned(),
        };
        let max_bytes = if self.full { MAX_LONG_NAME_BYTES } else { MAX_NAME_BYTES };
        if !label.is_empty() {
            line.push_str(&format!(" {}", quote_text(&truncate_text(label, max_bytes))));
        }
        let needs_ref = role != "StaticText" && (self.full || role != "heading");
        if let Some(name) = backend_node
            .filter(|_| needs_ref)
            .and_then(|backend_node| (self.name)(tree, backend_node))
        {
            line.push_str(&format!(" [{name}]"));
        }
        let value = match &node["value"]["value"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        if !value.is_empty() && value != label && role != "StaticText" {
            line.push_str(&format!(
                " value={}",
                quote_text(&truncate_text(&collapse_whitespace(&value), max_bytes))
            ));
        }
        for flag in ["disabled", "required", "readonly", "focused", "selected", "expanded", "modal"]
        {
            match node_property(node, flag) {
                Some(Value::Bool(true)) => line.push_str(&format!(" {flag}")),
                Some(Value::Bool(false)) if flag == "expanded" => line.push_str(" collapsed"),
                _ => {}
            }
        }
        for state in ["checked", "pressed"] {
            match node_property(node, state) {
                Some(Value::String(text)) if text != "false" => {
                    line.push_str(&if text == "true" {
                        format!(" {state}")
                    } else {
                        format!(" {state}={text}")
                    });
                }
                Some(Value::Bool(true)) => line.push_str(&format!(" {state}")),
                _ => {}
            }
        }
        if let Some(Value::String(invalid)) = node_property(node, "invalid")
            && invalid != "false"
        {
            line.push_str(" invalid");
        }
        if let (true, Some(level)) = (role == "heading", node_property(node, "level")) {
            line.push_str(&format!(" level={level}"));
        }
        if self.full
            && let (true, Some(Value::String(url))) = (role == "link", node_property(node, "url"))
        {
            line.push_str(&format!(" -> {}", truncate_text(url, 200)));
        }
        line
    }
}

fn is_structure(role: &str) -> bool {
    [
        "list",
        "table",
        "row",
        "cell",
        "gridcell",
        "columnheader",
        "rowheader",
        "grid",
        "tree",
        "article",
        "region",
    ]
    .contains(&role)
}

fn node_property<'a>(node: &'a Value, name: &str) -> Option<&'a Value> {
    let properties = node["properties"].as_array()?;
    properties
        .iter()
        .find(|property| property["name"] == name)
        .map(|property| &property["value"]["value"])
}

/// Collapses whitespace to one bounded line: pages can make names of any length.
fn collapse_whitespace(text: &str) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > MAX_LONG_NAME_BYTES {
            return truncate_text(&line, MAX_LONG_NAME_BYTES);
        }
    }
    line
}

/// Quotes text so that a page cannot close the quotes.
fn quote_text(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(
        id: &str,
        parent: Option<&str>,
        role: &str,
        name: &str,
        children: &[&str],
        backend: i64,
    ) -> Value {
        let mut node = json!({
            "nodeId": id, "ignored": false, "role": {"value": role}, "name": {"value": name},
            "childIds": children, "backendDOMNodeId": backend, "properties": [],
        });
        if let Some(parent) = parent {
            node["parentId"] = json!(parent);
        }
        node
    }

    fn page() -> Vec<AccessibilityTree> {
        let mut button = node("4", Some("2"), "button", "Save \"it\"\n now", &["5"], 14);
        button["properties"] = json!([{"name": "disabled", "value": {"value": true}}]);
        let nodes = json!([
            node("1", None, "RootWebArea", "Title", &["2", "3"], 11),
            node("2", Some("1"), "generic", "", &["4", "8"], 12),
            node("3", Some("1"), "Iframe", "inner", &[], 13),
            button,
            node("5", Some("4"), "StaticText", "Save \"it\" now", &[], 15),
            node("8", Some("2"), "StaticText", "Some words", &[], 18),
        ]);
        let inner = json!([
            node("1", None, "RootWebArea", "", &["2"], 91),
            node("2", Some("1"), "link", "Away", &[], 92)
        ]);
        vec![
            AccessibilityTree::new("main".into(), None, nodes),
            AccessibilityTree::new("child".into(), Some(13), inner),
        ]
    }

    fn written(full: bool, depth: Option<usize>, from: Option<i64>) -> Option<Vec<String>> {
        let trees = page();
        let mut name = |tree: usize, backend: i64| Some(format!("e{tree}.{backend}"));
        OutlineWriter::new(&trees, full, depth, &mut name).write(from)
    }

    #[test]
    fn what_can_be_acted_on_is_shown_frames_included() {
        assert_eq!(
            written(false, None, None).unwrap(),
            [
                r#"button "Save \"it\" now" [e0.14] disabled"#,
                r#"iframe "inner" [e0.13]"#,
                r#"  link "Away" [e1.92]"#
            ]
        );
    }

    #[test]
    fn everything_is_shown_once_when_asked_for() {
        let lines = written(true, None, None).unwrap();
        assert!(lines.contains(&r#"text "Some words""#.to_owned()), "{lines:?}");
        assert_eq!(lines.iter().filter(|line| line.contains("Save")).count(), 1, "{lines:?}");
    }

    /// Each child twice over many levels, and a node that is its own child: as a renderer may say
    /// it.
    #[test]
    fn a_node_is_visited_once_however_often_it_is_named() {
        let names: Vec<String> = (0..=60).map(|number| number.to_string()).collect();
        let mut nodes = vec![node("0", None, "RootWebArea", "", &["1", "1"], 100)];
        for at in 1..60 {
            let (child, parent) = (names[at + 1].as_str(), names[at - 1].as_str());
            nodes.push(node(
                &names[at],
                Some(parent),
                "button",
                "x",
                &[child, child, &names[at], "0"],
                100 + at as i64,
            ));
        }
        let trees = [AccessibilityTree::new("main".into(), None, json!(nodes))];
        let mut name = |_: usize, _: i64| None;
        assert_eq!(
            OutlineWriter::new(&trees, false, None, &mut name).write(None).unwrap().len(),
            59
        );
    }

    #[test]
    fn names_of_any_length_cost_no_more_than_what_is_shown() {
        let long = "ab ".repeat(1_000_000);
        let texts: Vec<String> = (2..3000).map(|number| number.to_string()).collect();
        let children: Vec<&str> = texts.iter().map(String::as_str).collect();
        let mut nodes = vec![
            node("0", None, "RootWebArea", "", &["1"], 1),
            node("1", Some("0"), "button", &long, &children, 2),
        ];
        nodes.extend(
            texts.iter().map(|id| node(id, Some("1"), "StaticText", &"ab ".repeat(1000), &[], 3)),
        );
        let trees = [AccessibilityTree::new("main".into(), None, json!(nodes))];
        let mut name = |_: usize, _: i64| None;
        let begun = std::time::Instant::now();
        let lines = OutlineWriter::new(&trees, true, None, &mut name).write(None).unwrap();
        assert_eq!(lines.len(), 1, "the words are in the name above");
        assert!(lines[0].len() < MAX_LONG_NAME_BYTES + 100);
        assert!(begun.elapsed() < std::time::Duration::from_secs(2), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_part_and_a_depth_can_be_asked_for() {
        assert_eq!(written(false, None, Some(92)).unwrap(), [r#"link "Away" [e1.92]"#]);
        assert_eq!(written(false, Some(1), None).unwrap().len(), 2);
        assert!(written(false, None, Some(777)).is_none());
    }
}
