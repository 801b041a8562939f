//! Recognizes JSON Schemas that are certainly valid, without compiling them.
//!
//! A server reads the schema of every command when it starts, only to report errors with their line;
//! to compile one takes some ten times as long as this check, and the compiler itself as much again
//! for its first schema. A schema that this module does not recognize is compiled, so a wrong "no"
//! costs time and nothing else. A wrong "yes" would hide an error until the first call: no keyword is
//! recognized here whose value could be refused for a reason that is not checked.

use std::collections::HashSet;

use serde_json::{Map, Value};

/// Nesting that is recognized; people write less.
const MAX_DEPTH: usize = 16;
/// The dialect that a schema without `$schema` has.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];

/// Returns whether a schema is certainly valid.
pub fn is_surely_valid(schema: &Map<String, Value>) -> bool {
    schema.iter().all(|(key, value)| match key.as_str() {
        "$schema" => value == DIALECT,
        _ => is_valid_keyword(key, value, MAX_DEPTH),
    })
}

/// Returns whether a default certainly fits its own schema, of which [`is_surely_valid`] is true.
pub fn surely_fits(schema: &Value, default: &Value) -> bool {
    let Value::Object(schema) = schema else { return false };
    let has_type = match schema.get("type").and_then(Value::as_str) {
        Some("boolean") => default.is_boolean(),
        Some("integer") => default.is_i64(),
        Some("number") => default.is_number(),
        Some("string") => default.is_string(),
        _ => false,
    };
    has_type
        && schema.iter().all(|(key, value)| match key.as_str() {
            "enum" => value.as_array().is_some_and(|values| values.contains(default)),
            "minimum" => both_integers(default, value).is_some_and(|(number, low)| number >= low),
            "maximum" => both_integers(default, value).is_some_and(|(number, high)| number <= high),
            // In this dialect a format is a comment.
            "type" | "default" | "format" => true,
            key => is_annotation(key),
        })
}

fn is_valid_subschema(schema: &Value, depth: usize) -> bool {
    match (schema, depth.checked_sub(1)) {
        (Value::Bool(_), _) => true,
        (Value::Object(schema), Some(depth)) => {
            schema.iter().all(|(key, value)| is_valid_keyword(key, value, depth))
        }
        _ => false,
    }
}

fn is_valid_keyword(key: &str, value: &Value, depth: usize) -> bool {
    match key {
        "type" => is_type(value),
        "properties" => value.as_object().is_some_and(|properties| {
            properties
                .iter()
                .all(|(name, schema)| !name.starts_with('$') && is_valid_subschema(schema, depth))
        }),
        "additionalProperties" | "items" => is_valid_subschema(value, depth),
        "required" => has_distinct_strings(value),
        "enum" => value
            .as_array()
            .is_some_and(|values| !values.is_empty() && values.iter().all(is_scalar)),
        "const" | "default" => is_scalar(value),
        "title" | "description" | "format" => value.is_string(),
        "deprecated" | "readOnly" | "writeOnly" | "uniqueItems" => value.is_boolean(),
        "minimum" | "maximum" => value.is_i64(),
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
            value.as_u64().is_some_and(|count| u32::try_from(count).is_ok())
        }
        _ => false,
    }
}

fn both_integers(one: &Value, other: &Value) -> Option<(i64, i64)> {
    one.as_i64().zip(other.as_i64())
}

fn is_annotation(key: &str) -> bool {
    matches!(key, "title" | "description" | "deprecated" | "readOnly" | "writeOnly")
}

fn is_type(value: &Value) -> bool {
    let is_known = |name: &Value| name.as_str().is_some_and(|name| TYPES.contains(&name));
    match value {
        Value::Array(names) => {
            !names.is_empty() && names.iter().all(is_known) && has_distinct_strings(value)
        }
        name => is_known(name),
    }
}

fn has_distinct_strings(value: &Value) -> bool {
    let mut seen = HashSet::new();
    value.as_array().is_some_and(|items| {
        items.iter().all(|item| item.as_str().is_some_and(|text| seen.insert(text)))
    })
}

fn is_scalar(value: &Value) -> bool {
    !value.is_object() && !value.is_array()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::command_tool::build_validator;
    use super::*;

    fn to_map(schema: &Value) -> Map<String, Value> {
        schema.as_object().unwrap().clone()
    }

    /// Keywords that are recognized, others, and values that fit some of them and not others.
    const KEYWORDS: &[&str] = &[
        "$schema",
        "$id",
        "$ref",
        "$defs",
        "$anchor",
        "$comment",
        "type",
        "properties",
        "patternProperties",
        "additionalProperties",
        "items",
        "prefixItems",
        "required",
        "enum",
        "const",
        "default",
        "title",
        "description",
        "format",
        "pattern",
        "deprecated",
        "readOnly",
        "writeOnly",
        "uniqueItems",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "multipleOf",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "allOf",
        "not",
        "if",
        "examples",
        "dependentRequired",
        "unknown",
    ];

    fn values() -> Vec<Value> {
        vec![
            json!(null),
            json!(true),
            json!(0),
            json!(-1),
            json!(7),
            json!(2.5),
            json!(1e300),
            json!(u64::MAX),
            json!(""),
            json!("string"),
            json!("("),
            json!("regex"),
            json!("no such type"),
            json!(DIALECT),
            json!("http://json-schema.org/draft-07/schema#"),
            json!("#/nowhere"),
            json!([]),
            json!(["string", "null"]),
            json!(["string", "string"]),
            json!(["no such type"]),
            json!([1, 1]),
            json!([{}]),
            json!([{"type": 1}]),
            json!({}),
            json!({"type": "string"}),
            json!({"type": 1}),
            json!({"name": {}}),
            json!({"name": {"type": "no such type"}}),
            json!({"(": {}}),
            json!({"name": 1}),
            json!({"$ref": {"type": "string"}}),
            json!({"$ref": "#/nowhere"}),
            json!({"$id": "::"}),
            json!({"name": ["a"]}),
        ]
    }

    /// The compiler must accept whatever is recognized, or an error in a config would be hidden.
    #[test]
    fn what_is_recognized_compiles() {
        let mut recognized = 0;
        let mut check = |schema: Value| {
            let schema = to_map(&schema);
            if is_surely_valid(&schema) {
                recognized += 1;
                let compiled = build_validator(&schema);
                assert!(compiled.is_ok(), "{schema:?}: {:?}", compiled.err());
            }
        };
        for keyword in KEYWORDS {
            for value in values() {
                check(json!({"type": "object", *keyword: value}));
                check(json!({"type": "object", "properties": {"a": {*keyword: value}}}));
                check(json!({"type": "object", "properties": {*keyword: value}}));
                check(
                    json!({"type": "object", "additionalProperties": {"items": {*keyword: value}}}),
                );
            }
        }
        assert!(recognized > 200, "{recognized}");
    }

    #[test]
    fn common_schemas_are_recognized() {
        let schema = json!({
            "$schema": DIALECT, "type": "object", "additionalProperties": false, "required": ["path"],
            "properties": {
                "path": {"type": "string", "format": "path", "description": "A file", "minLength": 1},
                "level": {"type": "integer", "minimum": 0, "maximum": 9, "default": 3},
                "mode": {"enum": ["fast", "slow"], "default": "fast"},
                "files": {"type": "array", "items": {"type": ["string", "null"]}, "maxItems": 5},
                "token": {"type": "string", "writeOnly": true},
            },
        });
        assert!(is_surely_valid(&to_map(&schema)));
    }

    #[test]
    fn what_only_the_compiler_can_judge_is_left_to_it() {
        let mut deep = json!({"type": "string"});
        for _ in 0..MAX_DEPTH {
            deep = json!({"items": deep});
        }
        for property in [
            json!({"pattern": "^a$"}),
            json!({"$ref": "#/$defs/a"}),
            json!({"type": "strin"}),
            json!({"minLength": -1}),
            json!({"default": {"$id": "a"}}),
            deep,
        ] {
            let schema = json!({"type": "object", "properties": {"a": property}});
            assert!(!is_surely_valid(&to_map(&schema)), "{schema}");
        }
    }

    /// As above: whatever is said to fit must fit for the compiler, too.
    #[test]
    fn a_default_that_surely_fits_is_valid() {
        let mut fitting = 0;
        for name in TYPES {
            for keyword in KEYWORDS {
                for value in values() {
                    for default in values() {
                        let schema = json!({"type": name, *keyword: value, "default": default});
                        let root = to_map(&json!({"properties": {"a": schema}}));
                        if !is_surely_valid(&root)
                            || !surely_fits(&root["properties"]["a"], &default)
                        {
                            continue;
                        }
                        fitting += 1;
                        let validator = build_validator(&root).unwrap();
                        assert!(validator.is_valid(&json!({"a": default})), "{schema}");
                    }
                }
            }
        }
        assert!(fitting > 100, "{fitting}");
    }
}
