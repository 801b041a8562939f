//! Output schemas as clients get them: in full in `mcp.capabilities`, as an outline in `tools/list`.
//!
//! Every tool can fail, and then its `structuredContent` is `{"error": …}`. SDKs validate that by the declared schema as
//! well, and throw the result away with kind, hint and trace id when it does not fit. So whatever a tool declares for
//! its success, the published schema requires nothing at its top and knows `error`.

use serde_json::{Map, Value, json};

/// A tool's schema with room for an error.
pub fn with_error(mut schema: Map<String, Value>) -> Map<String, Value> {
    schema.remove("required");
    if let Value::Object(properties) = schema.entry("properties").or_insert_with(|| json!({})) {
        let text = || json!({"type": "string"});
        let error = json!({
            "type": "object",
            "description": "Present when the call failed.",
            "properties": {
                "code": {"type": "integer"}, "kind": text(), "reason": text(), "message": text(), "hint": text(),
                "trace_id": text(),
            },
        });
        properties.insert("error".to_owned(), error);
    }
    schema
}

/// The outline of a schema that results are checked by: names and types, no words, nothing of what is inside. Every byte
/// of a list is paid for by a model. What a schema does not name it accepts, so the outline names no `error` unless the
/// tool's own schema is closed.
pub fn outline(mut schema: Map<String, Value>) -> Map<String, Value> {
    fn strip(schema: &mut Value) {
        let Value::Object(schema) = schema else { return };
        schema.retain(|key, _| key == "type" || key == "items");
        if let Some(items) = schema.get_mut("items") {
            strip(items);
        }
    }
    let is_open = !schema.contains_key("additionalProperties");
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        if is_open {
            properties.remove("error");
        }
        properties.values_mut().for_each(strip);
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_alone_is_valid_whatever_a_tool_requires() {
        let Value::Object(strict) = json!({
            "type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"],
            "additionalProperties": false,
        }) else {
            unreachable!()
        };
        for schema in [with_error(strict.clone()), outline(with_error(strict))] {
            let validator = jsonschema::draft202012::new(&Value::Object(schema)).unwrap();
            assert!(
                validator
                    .is_valid(&json!({"error": {"code": -32600, "kind": "conflict", "etag": "x"}}))
            );
            assert!(validator.is_valid(&json!({"id": "x"})));
            assert!(!validator.is_valid(&json!({"id": 1})));
        }
    }
}
