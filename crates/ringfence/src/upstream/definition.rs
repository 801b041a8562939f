//! Description of a server's tool, from its accepted definition. A trusted server's texts are
//! passed on as they came; an untrusted one's lose what a human could not see, and the marks that
//! would keep the human who approves a call from seeing its arguments.

use std::collections::BTreeSet;

use ringfence_client::{ToolAnnotations, ToolDefinition, clean_text};
use serde_json::{Map, Value};

use super::backend::UpstreamBackend;
use crate::config::{Config, SideEffect, UpstreamApproval};
use crate::tools::{LazySchema, PermissionScope, ToolHints, ToolSpec};

/// Longest description, and longest text in a schema, of an untrusted server.
const MAX_DESCRIPTION_CHARS: usize = 8_000;
const MAX_SCHEMA_TEXT_CHARS: usize = 2_000;
const MAX_TITLE_CHARS: usize = 100;

/// Keywords of a schema whose members are schemas, each with a name of the server's choice.
const NAMED_SCHEMAS: [&str; 5] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
/// Keywords of a schema whose values are no schemas: a call may have to repeat them exactly.
const PLAIN_VALUES: [&str; 4] = ["enum", "const", "default", "examples"];

/// Builds the description of a tool. `version` is that of its server.
pub fn build_spec(
    name: String,
    backend: &UpstreamBackend,
    definition: &ToolDefinition,
    version: Option<&str>,
    config: &Config,
) -> ToolSpec {
    let server = &backend.server;
    // The definition was parsed before it was accepted, and again when it was read.
    let mut members: Map<String, Value> =
        serde_json::from_str(&definition.text).unwrap_or_default();
    if !backend.is_trusted() {
        clean_definition(&mut members);
    }
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let title = text(members.get("title"))
        .or_else(|| text(members.get("annotations").and_then(|hints| hints.get("title"))))
        .unwrap_or_else(|| definition.name.clone());
    let schema = |member: &str| members.get(member).and_then(Value::as_object).cloned();
    let uses_network = !server.is_stdio() || server.access.has_effect(SideEffect::Network);
    let mut effects = Vec::new();
    effects.extend(server.is_stdio().then_some("exec"));
    effects.extend(
        server
            .access
            .has_effect(SideEffect::FilesystemWrite)
            .then_some(SideEffect::FilesystemWrite.name()),
    );
    effects.extend(uses_network.then_some(SideEffect::Network.name()));
    let ToolAnnotations { read_only, destructive, idempotent, open_world } = definition.annotations;
    ToolSpec {
        name,
        title: clean_text(&title, MAX_TITLE_CHARS),
        description: text(members.get("description")).unwrap_or_default(),
        version: clean_text(version.unwrap_or("0"), 40),
        scope: if uses_network { PermissionScope::Network } else { PermissionScope::Exec },
        hints: ToolHints { read_only, destructive, idempotent, open_world },
        effects,
        profile: match server.is_stdio() {
            true => server.access.effective_profile(config.default_sandbox.profile).name(),
            false => "remote",
        },
        input_schema: schema("inputSchema").unwrap_or_default().into(),
        output_schema: schema("outputSchema").map(LazySchema::from),
        lists_output_schema: true,
        requires_approval: approval_reason(backend, definition.annotations).is_some(),
        streaming: true,
        timeout: server.call_timeout.min(config.limits.timeout_ceiling),
        unavailable_reason: None,
    }
}

/// Returns why a human has to approve calls of a tool, if one has to.
pub fn approval_reason(backend: &UpstreamBackend, hints: ToolAnnotations) -> Option<String> {
    let id = &backend.server.id;
    match backend.server.approval {
        UpstreamApproval::Never => None,
        UpstreamApproval::Always => {
            Some(format!("The operator requires approval for every call to the server `{id}`."))
        }
        UpstreamApproval::Auto if !backend.is_trusted() => {
            Some(format!("The operator does not vouch for the server `{id}`."))
        }
        UpstreamApproval::Auto if hints.read_only => None,
        UpstreamApproval::Auto if hints.destructive => {
            Some(format!("The tool may change or delete what the server `{id}` has access to."))
        }
        UpstreamApproval::Auto => {
            Some(format!("The tool may change what the server `{id}` has access to."))
        }
    }
}

/// Returns the arguments that the schema marks as secret, at any depth. Each part of the schema is
/// looked at once, however it refers to itself.
pub fn find_secret_arguments(schema: &Map<String, Value>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut waiting: Vec<&Map<String, Value>> = vec![schema];
    while let Some(members) = waiting.pop() {
        for (key, value) in members {
            match value {
                _ if PLAIN_VALUES.contains(&key.as_str()) => {}
                Value::Object(schemas) if NAMED_SCHEMAS.contains(&key.as_str()) => {
                    let named = || schemas.iter().filter_map(|(k, v)| Some((k, v.as_object()?)));
                    if key == "properties" {
                        let secret = named().filter(|(_, schema)| secret_mark(schema).is_some());
                        found.extend(secret.map(|(name, _)| name.clone()));
                    }
                    waiting.extend(named().map(|(_, schema)| schema));
                }
                Value::Object(inner) => waiting.push(inner),
                Value::Array(items) => waiting.extend(items.iter().filter_map(Value::as_object)),
                _ => {}
            }
        }
    }
    found
}

/// Returns the mark that keeps the value of a property from being shown, if it has one.
pub fn secret_mark(property: &Map<String, Value>) -> Option<&'static str> {
    match (property.get("writeOnly"), property.get("format")) {
        (_, Some(Value::String(format))) if format == "password" => Some("format \"password\""),
        (Some(Value::Bool(true)), _) => Some("writeOnly"),
        _ => None,
    }
}

/// Cleans every text that a model or a human reads. Values that a call must repeat exactly (names,
/// `enum`, `const`, `pattern`) stay as they are.
fn clean_definition(members: &mut Map<String, Value>) {
    for (key, value) in members.iter_mut() {
        match (key.as_str(), value) {
            ("description", Value::String(text)) => {
                *text = clean_text(text, MAX_DESCRIPTION_CHARS);
            }
            ("title", Value::String(text)) => *text = clean_text(text, MAX_TITLE_CHARS),
            ("inputSchema" | "outputSchema" | "annotations", value) => clean_schema(value),
            _ => {}
        }
    }
    if let Some(schema) = members.get_mut("inputSchema") {
        remove_secret_marks(schema);
    }
}

/// Removes the marks that [`find_secret_arguments`] would find: an untrusted server must not choose what is hidden from
/// the human who approves its calls, neither here nor in a client that knows these marks.
fn remove_secret_marks(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            while let Some(mark) = secret_mark(members) {
                members.remove(if mark == "writeOnly" { mark } else { "format" });
            }
            for (key, value) in members.iter_mut() {
                match value {
                    _ if PLAIN_VALUES.contains(&key.as_str()) => {}
                    Value::Object(schemas) if NAMED_SCHEMAS.contains(&key.as_str()) => {
                        schemas.values_mut().for_each(remove_secret_marks);
                    }
                    value => remove_secret_marks(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(remove_secret_marks),
        _ => {}
    }
}

/// Cleans the texts of a schema that a model or a human reads.
pub fn clean_schema(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            for (key, value) in members.iter_mut() {
                match (key.as_str(), value) {
                    ("description" | "title" | "$comment", Value::String(text)) => {
                        *text = clean_text(text, MAX_SCHEMA_TEXT_CHARS);
                    }
                    ("enumNames", Value::Array(names)) => {
                        names.iter_mut().for_each(|name| {
                            if let Value::String(text) = name {
                                *text = clean_text(text, MAX_SCHEMA_TEXT_CHARS);
                            }
                        });
                    }
                    ("enum" | "const" | "pattern" | "required", _) => {}
                    (_, value) => clean_schema(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(clean_schema),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secret_arguments_are_found_at_any_depth() {
        let Value::Object(schema) = json!({
            "properties": {"plain": {}, "key": {"type": "string", "writeOnly": true}},
            "anyOf": [{"properties": {"nested": {"properties": {"pin": {"format": "password"}}}}}],
        }) else {
            unreachable!()
        };
        assert_eq!(Vec::from_iter(find_secret_arguments(&schema)), ["key", "pin"]);
    }

    #[test]
    fn an_untrusted_server_cannot_mark_arguments_as_secret() {
        let Value::Object(mut members) = json!({"inputSchema": {
            "properties": {
                "both": {"format": "password", "writeOnly": true, "type": "string"},
                "format": {"const": {"format": "password"}},
                "writeOnly": true,
                "default": {"writeOnly": true},
            },
            "default": {"properties": {"to": {"writeOnly": true}}},
            "anyOf": [{"properties": {"pin": {"items": [{"format": "password"}]}}}],
        }}) else {
            unreachable!()
        };
        clean_definition(&mut members);
        let expected = json!({
            "properties": {
                "both": {"type": "string"},
                "format": {"const": {"format": "password"}},
                "writeOnly": true,
                "default": {},
            },
            "default": {"properties": {"to": {"writeOnly": true}}},
            "anyOf": [{"properties": {"pin": {"items": [{}]}}}],
        });
        assert_eq!(members["inputSchema"], expected);
        let schema = members["inputSchema"].as_object().unwrap();
        assert!(find_secret_arguments(schema).is_empty());
    }

    #[test]
    fn hidden_characters_go_and_values_stay() {
        let Value::Object(mut members) = json!({
            "name": "a", "description": "reads\u{200b} files\u{1b}[31m", "title": "A\u{202e}",
            "inputSchema": {"properties": {
                "x": {"description": "one\u{e0041}", "enum": ["a\u{200b}"], "const": "b\u{200b}"},
            }},
        }) else {
            unreachable!()
        };
        clean_definition(&mut members);
        assert_eq!(members["description"], "reads files");
        assert_eq!(members["title"], "A");
        let property = &members["inputSchema"]["properties"]["x"];
        assert_eq!(property["description"], "one");
        assert_eq!(
            (&property["enum"][0], &property["const"]),
            (&json!("a\u{200b}"), &json!("b\u{200b}"))
        );
    }
}
