//! Fields of a call that servers of 2026-07-28 want in HTTP headers too: the tool's name, and the
//! parameters that its schema annotates with `x-mcp-header`.
//!
//! A tool with a wrong annotation is left out of the catalog: an intermediary that routes by these
//! headers must never see something else than the server.

use std::collections::BTreeSet;

use base64::Engine;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::{Map, Value};

const ANNOTATION: &str = "x-mcp-header";
/// Marks of an encoded value.
const ENCODED_PREFIX: &str = "=?base64?";
const ENCODED_SUFFIX: &str = "?=";

/// Parameter of a tool whose value goes into a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeaderParam {
    header: HeaderName,
    /// Keys that lead to the value in the arguments.
    path: Vec<String>,
}

impl HeaderParam {
    /// Finds the annotated parameters in a tool's definition. The error says which annotation is
    /// wrong.
    pub(crate) fn find_all(definition: &str) -> Result<Vec<HeaderParam>, String> {
        #[derive(Deserialize)]
        struct SchemaField {
            #[serde(rename = "inputSchema")]
            input_schema: Value,
        }
        // Few tools have annotations.
        if !definition.contains(ANNOTATION) {
            return Ok(Vec::new());
        }
        let fields: SchemaField =
            serde_json::from_str(definition).map_err(|error| error.to_string())?;
        let mut search = AnnotationSearch::default();
        search.visit_schema(&fields.input_schema, Some(&[]))?;
        Ok(search.params)
    }
}

#[derive(Default)]
struct AnnotationSearch {
    params: Vec<HeaderParam>,
    seen: BTreeSet<String>,
}

impl AnnotationSearch {
    /// Visits a schema. `path` leads to its value; `None` if that is not at one fixed place, as in the
    /// items of an array.
    fn visit_schema(&mut self, schema: &Value, path: Option<&[String]>) -> Result<(), String> {
        match schema {
            Value::Object(schema) => {
                if let Some(annotation) = schema.get(ANNOTATION) {
                    self.add_param(annotation, schema, path)?;
                }
                schema.iter().try_for_each(|(key, value)| self.visit_keyword(key, value, path))
            }
            // A list of alternatives, and the like.
            Value::Array(schemas) => {
                schemas.iter().try_for_each(|schema| self.visit_schema(schema, None))
            }
            _ => Ok(()),
        }
    }

    fn visit_keyword(
        &mut self,
        keyword: &str,
        value: &Value,
        path: Option<&[String]>,
    ) -> Result<(), String> {
        match (keyword, value) {
            ("properties", Value::Object(properties)) => {
                properties.iter().try_for_each(|(name, property)| {
                    let path = path.map(|path| [path, std::slice::from_ref(name)].concat());
                    self.visit_schema(property, path.as_deref())
                })
            }
            // Keys of these are names, not keywords.
            (
                "patternProperties" | "$defs" | "definitions" | "dependentSchemas",
                Value::Object(schemas),
            ) => schemas.values().try_for_each(|schema| self.visit_schema(schema, None)),
            // Values of these are data.
            ("default" | "const" | "enum" | "examples", _) => Ok(()),
            _ => self.visit_schema(value, None),
        }
    }

    fn add_param(
        &mut self,
        annotation: &Value,
        schema: &Map<String, Value>,
        path: Option<&[String]>,
    ) -> Result<(), String> {
        let Some(path) = path.filter(|path| !path.is_empty()) else {
            return Err(format!("`{ANNOTATION}` is not at a property"));
        };
        if !is_primitive(schema.get("type")) {
            return Err(format!("`{ANNOTATION}` is at a property that is not primitive"));
        }
        let name = annotation.as_str().filter(|name| !name.is_empty());
        let header = name
            .and_then(|name| HeaderName::from_bytes(format!("mcp-param-{name}").as_bytes()).ok());
        let Some(header) = header else {
            return Err(format!("an `{ANNOTATION}` is not the name of a header"));
        };
        // Names of headers are in lower case.
        if !self.seen.insert(header.as_str().to_owned()) {
            return Err(format!("two properties have the same `{ANNOTATION}`"));
        }
        self.params.push(HeaderParam { header, path: path.to_vec() });
        Ok(())
    }
}

/// Returns whether a type is one that a header can hold. A value may be null: it has no header.
fn is_primitive(schema_type: Option<&Value>) -> bool {
    let is_named = |name: &Value| matches!(name.as_str(), Some("string" | "integer" | "boolean"));
    match schema_type {
        Some(Value::Array(names)) => {
            names.iter().any(is_named) && names.iter().all(|name| is_named(name) || name == "null")
        }
        Some(name) => is_named(name),
        None => false,
    }
}

/// Returns the headers of a call.
pub(crate) fn call_headers(
    tool: &str,
    params: &[HeaderParam],
    arguments: &Map<String, Value>,
) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.extend(encode_value(tool).map(|value| (HeaderName::from_static("mcp-name"), value)));
    for param in params {
        let mut steps = param.path.iter();
        let first = steps.next().and_then(|name| arguments.get(name));
        let text = match steps.try_fold(first, |value, name| Some(value?.get(name))).flatten() {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            Some(Value::Bool(is_true)) => is_true.to_string(),
            // Other values do not match the schema, which is for the server to say.
            _ => continue,
        };
        headers.extend(encode_value(&text).map(|value| (param.header.clone(), value)));
    }
    headers
}

/// Writes a value as a header. What could be changed on the way is encoded, and so is what looks as
/// if it were.
fn encode_value(text: &str) -> Option<HeaderValue> {
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
        && text.trim() == text
        && !(text.starts_with(ENCODED_PREFIX) && text.ends_with(ENCODED_SUFFIX));
    if is_plain {
        return HeaderValue::from_str(text).ok();
    }
    let encoded = base64::engine::general_purpose::STANDARD.encode(text);
    HeaderValue::from_str(&format!("{ENCODED_PREFIX}{encoded}{ENCODED_SUFFIX}")).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn find(schema: Value) -> Result<Vec<HeaderParam>, String> {
        HeaderParam::find_all(&json!({"name": "a", "inputSchema": schema}).to_string())
    }

    #[test]
    fn values_are_read_from_their_exact_place_and_left_out_if_absent() {
        let params = find(json!({"type": "object", "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "count": {"type": ["integer", "null"], "x-mcp-header": "Count"},
            "verbose": {"type": "boolean", "x-mcp-header": "Verbose"},
            "nested": {"type": "object", "properties": {
                "region": {"type": "string", "x-mcp-header": "Inner"}}},
            // The name of a parameter, and data: no annotations.
            "x-mcp-header": {"type": "string", "default": {"x-mcp-header": ""}},
        }}))
        .unwrap();
        let arguments = json!({"region": "eu", "count": null, "verbose": false,
            "nested": {"region": " eu "}, "x-mcp-header": "no"});
        let headers = call_headers("search", &params, arguments.as_object().unwrap());
        let mut shown: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        shown.sort();
        assert_eq!(
            shown,
            [
                "mcp-name: search",
                "mcp-param-inner: =?base64?IGV1IA==?=",
                "mcp-param-region: eu",
                "mcp-param-verbose: false",
            ]
        );
        let arguments = json!({"nested": "text", "count": -7});
        let headers = call_headers("search", &params, arguments.as_object().unwrap());
        assert_eq!(headers.len(), 2);
        assert_eq!(headers["mcp-param-count"], "-7");
    }

    #[test]
    fn annotations_that_are_not_allowed_are_refused() {
        let property = |property: Value| json!({"properties": {"a": property}});
        let annotated = json!({"type": "string", "x-mcp-header": "A"});
        for schema in [
            property(json!({"type": "string", "x-mcp-header": ""})),
            property(json!({"type": "string", "x-mcp-header": 1})),
            property(json!({"type": "string", "x-mcp-header": "a b"})),
            property(json!({"type": "string", "x-mcp-header": "a:b"})),
            property(json!({"type": "string", "x-mcp-header": "a\r\nb"})),
            property(json!({"type": "string", "x-mcp-header": "\u{e9}"})),
            property(json!({"type": "number", "x-mcp-header": "A"})),
            property(json!({"type": "null", "x-mcp-header": "A"})),
            property(json!({"$ref": "#/$defs/a", "x-mcp-header": "A"})),
            property(json!({"type": "array", "items": annotated})),
            property(json!({"anyOf": [annotated]})),
            json!({"type": "string", "x-mcp-header": "A"}),
            json!({"$defs": {"a": annotated}}),
            json!({"allOf": [{"properties": {"a": annotated}}]}),
            json!({"if": {"properties": {"a": annotated}}}),
            json!({"properties": {"a": annotated, "b": {"type": "string", "x-mcp-header": "a"}}}),
        ] {
            assert!(find(schema.clone()).is_err(), "{schema}");
        }
    }

    #[test]
    fn values_that_could_be_changed_on_the_way_are_encoded() {
        for (text, value) in [
            ("us west 1", "us west 1"),
            ("", ""),
            ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
            ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ] {
            assert_eq!(encode_value(text).unwrap(), value);
        }
    }
}
