//! Merging of partial configurations, before validation.

use super::tree::{JsonContent, JsonNode};

/// Merges two trees: objects member by member, everything else is replaced by `later`.
///
/// A transport whose type changes is replaced as a whole: the settings of the other type would be
/// unknown keys, and headers meant for one server must not reach another.
pub(super) fn merge_trees(base: JsonNode, later: JsonNode) -> JsonNode {
    merge_nodes(base, later, &[])
}

fn merge_nodes(base: JsonNode, later: JsonNode, path: &[&str]) -> JsonNode {
    let is_transport = matches!(path, ["servers", _, "transport"]);
    if is_transport && changes_type(&base, &later) {
        return later;
    }
    match (base.content, later.content) {
        (JsonContent::Object(mut members), JsonContent::Object(later_members)) => {
            for (key, later_node) in later_members {
                let merged = match members.remove(&key) {
                    Some(node) => merge_nodes(node, later_node, &[path, &[key.as_str()]].concat()),
                    None => later_node,
                };
                members.insert(key, merged);
            }
            JsonNode { content: JsonContent::Object(members), position: base.position }
        }
        (_, content) => JsonNode { content, position: later.position },
    }
}

fn changes_type(base: &JsonNode, later: &JsonNode) -> bool {
    match (find_type(base), find_type(later)) {
        (Some(base), Some(later)) => base != later,
        _ => false,
    }
}

fn find_type(transport: &JsonNode) -> Option<&str> {
    let JsonContent::Object(members) = &transport.content else { return None };
    match &members.get("type")?.content {
        JsonContent::Text(name) => Some(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::problem::ProblemList;
    use super::super::tree::parse_tree;
    use super::*;

    /// Writes a tree as compact JSON, with the source of each value other than an object.
    fn show(node: &JsonNode) -> String {
        let source = node.position.source;
        match &node.content {
            JsonContent::Object(members) => {
                let members = members.iter().map(|(key, node)| format!("{key}:{}", show(node)));
                format!("{{{}}}", members.collect::<Vec<_>>().join(","))
            }
            JsonContent::Text(text) => format!("{text}@{source}"),
            JsonContent::List(items) => format!("[{}]@{source}", items.len()),
            other => format!("{}@{source}", other.describe()),
        }
    }

    #[track_caller]
    fn assert_merged(base: &str, later: &str, expected: &str) {
        let parse = |text: &str, source| {
            parse_tree(text, source, &mut ProblemList::default()).expect("valid JSON")
        };
        assert_eq!(show(&merge_trees(parse(base, 0), parse(later, 1))), expected);
    }

    #[test]
    fn objects_are_merged_member_by_member() {
        assert_merged(
            r#"{"servers": {"a": {"trust": "x"}, "b": {}}}"#,
            r#"{"servers": {"a": {"transport": {}}, "c": {}}, "bundles": {}}"#,
            "{bundles:{},servers:{a:{transport:{},trust:x@0},b:{},c:{}}}",
        );
    }

    #[test]
    fn scalars_and_lists_are_replaced() {
        assert_merged(
            r#"{"bundles": {"r": {"mode": "direct", "allowTools": ["a", "b"]}}}"#,
            r#"{"bundles": {"r": {"mode": "meta", "allowTools": ["c"]}}}"#,
            "{bundles:{r:{allowTools:[1]@1,mode:meta@1}}}",
        );
    }

    #[test]
    fn a_value_of_another_type_is_replaced() {
        assert_merged(r#"{"servers": {"a": {}}}"#, r#"{"servers": null}"#, "{servers:null@1}");
        assert_merged(r#"{"servers": 1}"#, r#"{"servers": {"a": {}}}"#, "{servers:{a:{}}}");
    }

    #[test]
    fn a_transport_of_the_same_type_is_merged() {
        let base = r#"{"servers": {"a": {"transport": {"type": "http", "url": "u",
            "headers": {"x": "1", "y": "1"}}}}}"#;
        assert_merged(
            base,
            r#"{"servers": {"a": {"transport": {"type": "http", "headers": {"x": "2"}}}}}"#,
            "{servers:{a:{transport:{headers:{x:2@1,y:1@0},type:http@1,url:u@0}}}}",
        );
        assert_merged(
            base,
            r#"{"servers": {"a": {"transport": {"headers": {"x": "2"}}}}}"#,
            "{servers:{a:{transport:{headers:{x:2@1,y:1@0},type:http@0,url:u@0}}}}",
        );
    }

    #[test]
    fn a_transport_of_another_type_is_replaced_as_a_whole() {
        assert_merged(
            r#"{"servers": {"a": {"trust": "t", "transport": {"type": "http", "headers": {}}}}}"#,
            r#"{"servers": {"a": {"transport": {"type": "stdio"}}}}"#,
            "{servers:{a:{transport:{type:stdio@1},trust:t@0}}}",
        );
    }

    #[test]
    fn only_the_type_of_a_transport_replaces_its_object() {
        assert_merged(
            r#"{"servers": {"transport": {"env": {"type": "x", "a": "1"}}}}"#,
            r#"{"servers": {"transport": {"env": {"type": "y"}}}}"#,
            "{servers:{transport:{env:{a:1@0,type:y@1}}}}",
        );
    }
}
