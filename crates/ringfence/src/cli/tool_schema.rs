//! Schemas of tools, for people: which arguments a tool takes, of which types. The schema may be that
//! of another server, so every walk through it is bounded.

use std::collections::BTreeSet;

use serde_json::Value;

/// Most parts of a schema that are looked at for one field. References may lead in circles.
const MAX_PARTS: usize = 500;
/// Most choices that are listed.
const MAX_CHOICES: usize = 12;

/// Member of an object schema: an argument of a tool, or a field of its result.
pub struct SchemaField<'a> {
    pub name: &'a str,
    pub schema: &'a Value,
    pub is_required: bool,
    root: &'a Value,
}

/// Returns the members of an object schema, required ones first.
pub fn list_fields(root: &Value) -> Vec<SchemaField<'_>> {
    let required: Vec<&str> =
        root["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = root["properties"].as_object().into_iter().flatten();
    let mut fields: Vec<SchemaField<'_>> = properties
        .map(|(name, schema)| SchemaField {
            name,
            schema,
            is_required: required.contains(&name.as_str()),
            root,
        })
        .collect();
    fields.sort_by_key(|field| !field.is_required);
    fields
}

impl SchemaField<'_> {
    /// Returns the JSON types that the field accepts; none if the schema does not say.
    pub fn types(&self) -> BTreeSet<String> {
        let mut types = BTreeSet::new();
        collect_types(self.schema, self.root, &mut { MAX_PARTS }, &mut types);
        types
    }

    /// Returns the type in words: `string`, `integer`, `array of string`, `once|session`.
    pub fn describe_type(&self) -> String {
        describe_type(self.schema, self.root, &mut { MAX_PARTS })
    }

    /// Returns the description, of the field or else of its type.
    pub fn description(&self) -> &str {
        let own = self.schema["description"].as_str();
        own.or_else(|| resolve_ref(self.schema, self.root)["description"].as_str())
            .unwrap_or_default()
    }

    /// Returns the default, as JSON text.
    pub fn default_text(&self) -> Option<String> {
        self.schema.get("default").filter(|value| !value.is_null()).map(Value::to_string)
    }
}

/// Follows one local reference (`#/$defs/Name`).
fn resolve_ref<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    let pointer = schema["$ref"].as_str().and_then(|text| text.strip_prefix('#'));
    pointer.and_then(|pointer| root.pointer(pointer)).unwrap_or(schema)
}

fn alternatives(schema: &Value) -> impl Iterator<Item = &Value> {
    ["anyOf", "oneOf", "allOf"]
        .into_iter()
        .flat_map(move |key| schema[key].as_array().into_iter().flatten())
}

fn collect_types(
    schema: &Value,
    root: &Value,
    parts_left: &mut usize,
    types: &mut BTreeSet<String>,
) {
    if !take_part(parts_left) {
        return;
    }
    let schema = resolve_ref(schema, root);
    match &schema["type"] {
        Value::String(name) => {
            types.insert(name.clone());
        }
        Value::Array(names) => {
            types.extend(names.iter().filter_map(Value::as_str).map(str::to_owned));
        }
        _ => {
            let constants =
                schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
            types.extend(constants.map(|constant| json_type(constant).to_owned()));
            alternatives(schema).for_each(|other| collect_types(other, root, parts_left, types));
        }
    }
}

/// Counts one part. Returns false when there were too many.
fn take_part(parts_left: &mut usize) -> bool {
    match parts_left.checked_sub(1) {
        Some(rest) => {
            *parts_left = rest;
            true
        }
        None => false,
    }
}

/// Returns the JSON type of a value. Whole numbers are integers.
pub fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn describe_type(schema: &Value, root: &Value, parts_left: &mut usize) -> String {
    if !take_part(parts_left) {
        return "any".to_owned();
    }
    let schema = resolve_ref(schema, root);
    if let Some(choices) = schema["enum"].as_array() {
        let mut names: Vec<String> = choices
            .iter()
            .filter(|choice| !choice.is_null())
            .map(|choice| choice.as_str().map_or_else(|| choice.to_string(), str::to_owned))
            .collect();
        if names.len() > MAX_CHOICES {
            names.truncate(MAX_CHOICES);
            names.push("…".to_owned());
        }
        return names.join("|");
    }
    if let Some(constant) = schema["const"].as_str() {
        return constant.to_owned();
    }
    let mut names: Vec<String> = match &schema["type"] {
        Value::String(name) => vec![name.clone()],
        Value::Array(names) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => alternatives(schema).map(|other| describe_type(other, root, parts_left)).collect(),
    };
    for name in names.iter_mut().filter(|name| *name == "array") {
        if let Some(items) = schema.get("items").filter(|items| items.is_object()) {
            *name = format!("array of {}", describe_type(items, root, parts_left));
        }
    }
    names.retain(|name| name != "null" && !name.is_empty());
    names.dedup();
    // Constants are choices; types are alternatives.
    let is_choice =
        schema["type"].is_null() && alternatives(schema).all(|other| other.get("const").is_some());
    match names.is_empty() {
        true => "any".to_owned(),
        false if is_choice => names.join("|"),
        false => names.join(" or "),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_are_found_through_references_and_alternatives() {
        let schema = json!({
            "type": "object",
            "required": ["path"],
            "properties": {
                "limit": {"type": ["integer", "null"], "default": 5},
                "mode": {"$ref": "#/$defs/Mode", "default": null},
                "path": {"type": "string", "description": "Where."},
                "edits": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object"}]}},
                "loop": {"$ref": "#/$defs/Loop"},
                "any": {},
            },
            "$defs": {
                "Mode": {"description": "How.", "oneOf": [{"const": "fast"}, {"const": "slow"}]},
                "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"$ref": "#/$defs/Loop"}]},
            },
        });
        let fields = list_fields(&schema);
        let field = |name: &str| fields.iter().find(|field| field.name == name).unwrap();
        assert_eq!(fields[0].name, "path");
        assert!(field("path").is_required && !field("limit").is_required);
        assert_eq!(field("limit").describe_type(), "integer");
        assert_eq!(field("limit").default_text().as_deref(), Some("5"));
        assert_eq!(
            (field("mode").describe_type().as_str(), field("mode").description()),
            ("fast|slow", "How.")
        );
        assert_eq!(field("mode").default_text(), None);
        assert!(field("mode").types().contains("string"));
        assert_eq!(field("edits").describe_type(), "array of string or object");
        assert_eq!((field("any").describe_type().as_str(), field("any").types().len()), ("any", 0));
        assert_eq!(field("loop").types().len(), 0);
    }
}
