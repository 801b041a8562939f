//! JSON Schema of `config.toml`, for editors. It is generated from the structures that parse the
//! file, so that it cannot differ from them.

use serde_json::{Map, Value};

pub use super::key_docs::SchemaKey;
use super::key_docs::{collect_keys, schema_structure};
use super::{DEFAULT_CONFIG, show, show_upstreams};

/// Returns the whole schema, in draft 7, which TOML editors support best, and without references.
pub fn config_schema() -> Value {
    let mut schema = schema_structure().clone();
    let defaults: Map<String, Value> = toml::from_str(DEFAULT_CONFIG).unwrap_or_default();
    insert_defaults(&mut schema, &defaults);
    let entry = &mut schema["properties"]["mcp"]["additionalProperties"];
    let keys: Vec<String> =
        entry["properties"].as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect();
    insert_defaults(entry, &show::command_defaults(&keys));
    let entry = &mut schema["properties"]["upstream"]["additionalProperties"];
    insert_defaults(entry, &show_upstreams::upstream_defaults());
    schema
}

/// Writes its default to each key.
fn insert_defaults(schema: &mut Value, values: &Map<String, Value>) {
    let Some(properties) = schema["properties"].as_object_mut() else { return };
    for (key, property) in properties {
        match values.get(key) {
            Some(Value::Object(inner)) if property.get("properties").is_some() => {
                insert_defaults(property, inner)
            }
            Some(value) => drop(
                property.as_object_mut().map(|map| map.insert("default".to_owned(), value.clone())),
            ),
            None => {}
        }
    }
}

/// Returns every key in the order of the structures, without the tables themselves. For those of
/// `[mcp.<name>]` see [`list_command_keys`], for those of `[upstream.<id>]` [`list_upstream_keys`].
pub fn list_keys() -> Vec<SchemaKey> {
    collect_keys(&config_schema())
}

/// Returns the keys of `[mcp.<name>]`.
pub fn list_command_keys() -> Vec<SchemaKey> {
    collect_keys(&config_schema()["properties"]["mcp"]["additionalProperties"])
}

/// Returns the keys of `[upstream.<id>]`.
pub fn list_upstream_keys() -> Vec<SchemaKey> {
    collect_keys(&config_schema()["properties"]["upstream"]["additionalProperties"])
}

#[cfg(test)]
mod tests;
