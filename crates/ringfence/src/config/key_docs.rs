//! The keys of a config file and their descriptions, from the structures that parse it. The schema
//! for editors and the hints of errors both come from here.

use std::sync::LazyLock;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::parse::raw;
use super::parse::upstream_section::UpstreamSection;

/// Returns the schema without defaults. It is needed for every error, so it is computed once.
pub fn schema_structure() -> &'static Value {
    static STRUCTURE: LazyLock<Value> = LazyLock::new(build_structure);
    &STRUCTURE
}

fn build_structure() -> Value {
    let mut schema = schema_for::<raw::ConfigFile>();
    let mut entry = schema_for::<raw::CommandSection>();
    entry["required"] = json!(["command"]);
    schema["properties"]["mcp"] = json!({
        "description": "Your commands as tools: a table [mcp.<name>] for each.",
        "type": "object",
        "propertyNames": {"pattern": "^[A-Za-z0-9_.-]{1,64}$"},
        "additionalProperties": entry,
    });
    schema["properties"]["upstream"] = json!({
        "description": "Settings of other MCP servers: a table [upstream.<id>] for each.",
        "type": "object",
        "propertyNames": {"pattern": "^[A-Za-z0-9_-]{1,32}$"},
        "additionalProperties": schema_for::<UpstreamSection>(),
    });
    // The spelling of the environment variable is accepted in the file, too.
    schema["properties"]["ENABLE_MCP_SERVER_SURFACE"] = json!({
        "description": "The same as `enable_mcp_server_surface`.", "type": "boolean", "x-taplo": {"hidden": true},
    });
    schema["title"] = json!("config.toml of Ringfence");
    schema
}

fn schema_for<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    simplify_schema(&mut schema);
    schema
}

/// Simplifies a schema: TOML has no null, editors list plain values better than alternatives, and
/// line breaks are up to the display.
fn simplify_schema(schema: &mut Value) {
    let Value::Object(map) = schema else {
        if let Value::Array(items) = schema {
            items.iter_mut().for_each(simplify_schema);
        }
        return;
    };
    map.values_mut().for_each(simplify_schema);
    if map.get("default").is_some_and(|default| !default.is_boolean() && !default.is_number()) {
        map.remove("default");
    }
    if map.get("format").is_some_and(Value::is_string) {
        map.remove("format");
    }
    if let Some(Value::String(text)) = map.get_mut("description") {
        *text = text.replace('\n', " ");
    }
    if let Some(Value::Array(types)) = map.get_mut("type") {
        types.retain(|name| name != "null");
        if let [one] = types.as_slice() {
            let one = one.clone();
            map.insert("type".to_owned(), one);
        }
    }
    if let Some(Value::Array(values)) = map.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if let Some(Value::Array(mut alternatives)) = map.remove("anyOf") {
        alternatives.retain(|one| one["type"] != "null");
        merge_single(map, alternatives);
    }
    if let Some(Value::Array(parts)) = map.remove("allOf") {
        merge_single(map, parts);
    }
    if let Some(Value::Array(variants)) = map.remove("oneOf") {
        let (values, docs): (Vec<_>, Vec<_>) = variants
            .iter()
            .map(|variant| {
                let value = variant
                    .get("const")
                    .or_else(|| variant["enum"].get(0))
                    .cloned()
                    .unwrap_or_default();
                (value, variant["description"].clone())
            })
            .unzip();
        map.insert("type".to_owned(), json!("string"));
        map.insert("enum".to_owned(), json!(values));
        map.insert("x-taplo".to_owned(), json!({"docs": {"enumValues": docs}}));
    }
}

/// Adds the description of the type; the key's own takes precedence.
fn merge_single(map: &mut Map<String, Value>, alternatives: Vec<Value>) {
    if let [Value::Object(one)] = alternatives.as_slice() {
        for (key, value) in one {
            map.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
}

/// A key of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct SchemaKey {
    /// Path with its section: `sandbox.profile`; keys of a command or server have no section.
    pub path: String,
    pub schema: Map<String, Value>,
}

/// Returns the keys of a schema, in the order of the structures.
pub fn collect_keys(schema: &Value) -> Vec<SchemaKey> {
    let mut keys = Vec::new();
    collect_keys_below("", schema, &mut keys);
    keys
}

fn collect_keys_below(path: &str, schema: &Value, keys: &mut Vec<SchemaKey>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match (property.get("properties"), property.as_object()) {
            _ if ["mcp", "upstream", "ENABLE_MCP_SERVER_SURFACE"].contains(&path.as_str()) => {}
            (Some(_), _) => collect_keys_below(&path, property, keys),
            (None, Some(schema)) => keys.push(SchemaKey { path, schema: schema.clone() }),
            (None, None) => {}
        }
    }
}

/// Returns the schema of a key, by its path in a file: `mcp.lint.args[1]`. An item of a list and a
/// value in a map have the schema of the key that contains them.
pub fn find_key(path: &str) -> Option<&'static Value> {
    let path = path.split('[').next().unwrap_or(path);
    let mut node = schema_structure();
    for name in path.split('.').filter(|name| !name.is_empty()) {
        node = node
            .get("properties")
            .and_then(|properties| properties.get(name))
            .or_else(|| node.get("additionalProperties"))?;
        if node.get("properties").is_none() && node.get("additionalProperties").is_none() {
            break;
        }
    }
    Some(node)
}

/// Returns the description of a key, by its path in a file.
pub fn describe_key(path: &str) -> Option<String> {
    find_key(path)?.get("description").and_then(Value::as_str).map(str::to_owned)
}

/// Returns the sections that have a key of this name.
pub fn sections_with_key(name: &str) -> Vec<String> {
    let schema = schema_structure();
    let mut sections: Vec<String> = (collect_keys(schema).into_iter())
        .filter_map(|key| {
            key.path
                .rsplit_once('.')
                .filter(|(_, key)| *key == name)
                .map(|(section, _)| section.to_owned())
        })
        .collect();
    for (table, section) in [("mcp", "mcp.<name>"), ("upstream", "upstream.<id>")] {
        let keys = collect_keys(&schema["properties"][table]["additionalProperties"]);
        if keys.iter().any(|key| key.path == name) {
            sections.push(section.to_owned());
        }
    }
    sections
}
