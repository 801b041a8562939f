//! Limit on the nesting depth of a call's arguments. Validating against a schema that refers to
//! itself through several branches takes time that doubles with every level, so a single line of
//! text could keep a server busy indefinitely. So could a schema whose parts refer to each other
//! twice ([`super::schema_repeats`]).

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::base::{Error, Kind, Result};

/// Maximum number of branch combinations tried for one value.
const MAX_BRANCHES: f64 = 50_000.0;
/// No legitimate call nests deeper, whatever the schema.
const MAX_DEPTH: usize = 64;

/// Returns the depth up to which arguments can be validated against a schema in bounded time.
/// `returns` is how often the schema leads back to itself in one turn, as far as that is known.
pub fn max_depth(schema: &Map<String, Value>, returns: u32) -> usize {
    let root = Value::Object(schema.clone());
    if !refers_to_itself(&root, &root, &mut Vec::new(), &mut BTreeSet::new()) {
        return MAX_DEPTH;
    }
    let branches = u32::try_from(count_branches(&root)).unwrap_or(u32::MAX);
    match branches.max(returns) {
        0 | 1 => MAX_DEPTH,
        many => (MAX_BRANCHES.ln() / f64::from(many).ln()).max(1.0) as usize,
    }
}

/// Returns whether a value is nested more deeply than this.
pub fn is_deeper(value: &Value, limit: usize) -> bool {
    let mut level = vec![value];
    for _ in 0..=limit {
        level = level.into_iter().flat_map(child_values).collect();
        if level.is_empty() {
            return false;
        }
    }
    true
}

/// Refuses deeper arguments.
pub fn check_depth(arguments: &Map<String, Value>, limit: usize) -> Result<()> {
    // Each level is an object or a list; the arguments themselves are the first.
    let mut level: Vec<&Value> = arguments.values().collect();
    for _ in 0..limit {
        level = level.into_iter().flat_map(child_values).collect();
        if level.is_empty() {
            return Ok(());
        }
    }
    Err(Error::new(Kind::TooLarge, "the arguments are nested too deeply for this tool")
        .with_reason("depth")
        .with_hint(format!("Nest at most {limit} levels.")))
}

fn child_values(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Object(map) => Box::new(map.values()),
        Value::Array(items) => Box::new(items.iter()),
        _ => Box::new(std::iter::empty()),
    }
}

/// Returns whether a schema leads back to itself. Assumes so for any reference that is not a
/// pointer into the same schema.
fn refers_to_itself<'a>(
    root: &'a Value,
    schema: &'a Value,
    visiting: &mut Vec<&'a str>,
    finished: &mut BTreeSet<&'a str>,
) -> bool {
    if let Value::Object(map) = schema {
        for (key, value) in map {
            match (key.as_str(), value.as_str()) {
                ("$dynamicRef" | "$recursiveRef", Some(_)) => return true,
                ("$ref", Some(target)) => {
                    let Some(target_schema) =
                        target.strip_prefix('#').and_then(|pointer| root.pointer(pointer))
                    else {
                        return true;
                    };
                    if target == "#" || visiting.contains(&target) {
                        return true;
                    }
                    // Once for each target: the number of ways that lead there may be huge.
                    if !finished.contains(target) {
                        visiting.push(target);
                        if refers_to_itself(root, target_schema, visiting, finished) {
                            return true;
                        }
                        visiting.pop();
                        finished.insert(target);
                    }
                }
                // Definitions are visited where they are used.
                ("$defs" | "definitions", _) => {}
                _ => {
                    if refers_to_itself(root, value, visiting, finished) {
                        return true;
                    }
                }
            }
        }
        return false;
    }
    match schema {
        Value::Array(items) => {
            items.iter().any(|item| refers_to_itself(root, item, visiting, finished))
        }
        _ => false,
    }
}

/// Returns the largest number of branches that any part of a schema offers for one value: every
/// keyword that applies a subschema in place is one.
fn count_branches(schema: &Value) -> usize {
    let own_count = match schema {
        Value::Object(map) => {
            let count = |key: &str| match map.get(key) {
                Some(Value::Array(branches)) => branches.len(),
                Some(Value::Object(branches)) if key == "dependentSchemas" => branches.len(),
                Some(_) => 1,
                None => 0,
            };
            let branch_keys: BTreeSet<&str> = [
                "anyOf",
                "oneOf",
                "allOf",
                "if",
                "then",
                "else",
                "not",
                "dependentSchemas",
                "$ref",
            ]
            .into();
            branch_keys.into_iter().map(count).sum::<usize>()
                + usize::from(map.contains_key("properties"))
                + map.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len)
        }
        _ => 0,
    };
    child_values(schema).map(count_branches).max().unwrap_or(0).max(own_count)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(schema: Value) -> usize {
        max_depth(schema.as_object().unwrap(), 1)
    }

    #[test]
    fn only_a_schema_that_refers_to_itself_in_several_ways_is_bounded() {
        assert_eq!(of(json!({"type": "object"})), MAX_DEPTH);
        let tree = json!({"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"kids": {"items": {"$ref": "#/$defs/n"}}}}}});
        assert_eq!(of(tree), MAX_DEPTH);
        let plain = json!({"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "string"}}});
        assert_eq!(of(plain), MAX_DEPTH);
        let twice = json!({"$defs": {"n": {"anyOf": [
            {"properties": {"all": {"items": {"$ref": "#/$defs/n"}}}, "required": ["name"]},
            {"properties": {"all": {"items": {"$ref": "#/$defs/n"}}}, "required": ["id"]},
        ]}}, "properties": {"all": {"items": {"$ref": "#/$defs/n"}}}});
        assert!((8..=20).contains(&of(twice)));
        assert!(of(json!({"oneOf": [{"$ref": "#"}, {"$ref": "#"}, {"$ref": "#"}]})) <= 10);
    }

    #[test]
    fn a_schema_that_returns_often_is_bounded_more_tightly() {
        let again = json!({"properties": {"a": {"$ref": "#"}}});
        let schema = json!({"allOf": [again]});
        let bounds = [2, 1_000].map(|returns| max_depth(schema.as_object().unwrap(), returns));
        assert_eq!(bounds, [15, 1]);
    }

    #[test]
    fn what_is_deeper_is_refused() {
        let nest = |depth: usize| (0..depth).fold(json!(1), |inner, _| json!({"a": inner}));
        assert!(check_depth(nest(5).as_object().unwrap(), 5).is_ok());
        assert!(check_depth(nest(6).as_object().unwrap(), 5).is_err());
        assert!(!is_deeper(&nest(5), 5) && is_deeper(&nest(6), 5));
    }
}
