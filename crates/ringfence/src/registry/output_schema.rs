//! Output schemas as published to clients: in full in `mcp.capabilities`, as an outline in
//! `tools/list`.
//!
//! Every tool can fail, and its `structuredContent` is then `{"error": …}`. SDKs validate that
//! against the declared schema too, and discard the result, including kind, hint and trace id, if
//! it does not match. So the published schema requires nothing at the top level and includes
//! `error`, whatever a tool declares for its success.

use serde_json::{Map, Value, json};

/// Returns a tool's schema extended to accept an error.
pub fn add_error_property(mut schema: Map<String, Value>) -> Map<String, Value> {
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

/// Returns the outline of a schema, against which clients validate results: names and types,
/// without descriptions and nested properties. A model pays for every byte of a list. A schema
/// accepts what it does not name, so the outline omits `error` unless the tool's own schema is
/// closed.
pub fn outline_schema(mut schema: Map<String, Value>) -> Map<String, Value> {
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
        for schema in
            [add_error_property(strict.clone()), outline_schema(add_error_property(strict))]
        {
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
