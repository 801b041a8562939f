//! JSON Schemas of the tools' argument types, and parsing of a caller's JSON into those types.

pub mod schema_check;
mod schema_depth;
mod schema_repeats;
mod violations;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::base::suggest::suggest_name;
use crate::base::{Error, Result};

/// Returns the JSON Schema (2020-12) of `T` as one flat object. Some clients reject the whole tool
/// list because of top-level combinators, type unions or references, so an optional argument is
/// simply not required.
pub fn input_schema<T: JsonSchema>() -> Map<String, Value> {
    flat_schema::<T>(SchemaSettings::draft2020_12())
}

/// Returns the schema of a reply as it is serialized: a field that may be omitted is not required.
/// Clients validate results against it and drop those that do not conform.
pub fn reply_schema<T: JsonSchema>() -> Map<String, Value> {
    flat_schema::<T>(SchemaSettings::draft2020_12().for_serialize())
}

fn flat_schema<T: JsonSchema>(mut settings: SchemaSettings) -> Map<String, Value> {
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    simplify_schema(&mut schema);
    match schema {
        Value::Object(mut map) => {
            map.remove("title");
            map.remove("description");
            map
        }
        _ => Map::new(),
    }
}

fn simplify_schema(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            // `Option<T>` becomes ["T", "null"]; omitting the argument means the same.
            if let Some(Value::Array(types)) = map.get_mut("type") {
                types.retain(|name| name != "null");
                if let [one] = types.as_slice() {
                    let one = one.clone();
                    map.insert("type".into(), one);
                }
            }
            if let Some(Value::Array(options)) = map.get_mut("anyOf") {
                options.retain(|option| option.get("type") != Some(&json!("null")));
                if let [Value::Object(one)] = options.as_slice() {
                    let one = one.clone();
                    map.remove("anyOf");
                    for (key, value) in one {
                        map.entry(key).or_insert(value);
                    }
                }
            }
            if let Some(Value::Array(options)) = map.get_mut("enum") {
                options.retain(|option| !option.is_null());
            }
            if map.get("default").is_some_and(Value::is_null) {
                map.remove("default");
            }
            // Rust's integer widths mean nothing to a caller, and counts are never negative anyway.
            // A `format` that is not a string is not the keyword but an argument of that name.
            if map.get("format").is_some_and(Value::is_string) {
                map.remove("format");
            }
            if map.get("minimum") == Some(&json!(0)) {
                map.remove("minimum");
            }
            map.values_mut().for_each(simplify_schema);
        }
        Value::Array(items) => items.iter_mut().for_each(simplify_schema),
        _ => {}
    }
}

/// Parses arguments into `T`, or reports which argument is wrong and what is expected.
pub fn parse_arguments<T: DeserializeOwned>(
    arguments: &Map<String, Value>,
    schema: &Map<String, Value>,
) -> Result<T> {
    if let Some(Value::Object(properties)) = schema.get("properties") {
        for name in arguments.keys() {
            if !properties.contains_key(name) {
                return Err(unknown_argument(name, properties));
            }
        }
        for name in schema
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            if !arguments.contains_key(name) {
                return Err(Error::invalid_arguments(format!("the argument `{name}` is missing"))
                    .with_hint(describe_argument(name, properties))
                    .with_fact("argument", name));
            }
        }
    }
    let value = Value::Object(arguments.clone());
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let top_level = path.split(['.', '[']).next().unwrap_or_default().to_owned();
        // Both can contain an argument name or value sent by the caller, at full length.
        let (path, message) = (
            truncate_text(&path, 128),
            truncate_text(&reword_mismatch(&error.inner().to_string()), 512),
        );
        let hint = match schema.get("properties").and_then(Value::as_object) {
            Some(properties) if properties.contains_key(&top_level) => {
                describe_argument(&top_level, properties)
            }
            _ => "Compare the arguments with the tool's inputSchema.".to_owned(),
        };
        Error::invalid_arguments(format!("the argument `{path}` is invalid: {message}"))
            .with_hint(hint)
            .with_fact("argument", path)
    })
}

/// Rewords a message of the deserializer in terms of JSON: a caller knows no fields, variants or
/// structs.
fn reword_mismatch(message: &str) -> String {
    let (problem, expected) = message.split_once(", expected ").unwrap_or((message, ""));
    let expected = expected.trim_start_matches("one of ");
    if let Some(name) = problem.strip_prefix("missing field ") {
        return format!("{name} is missing");
    }
    if let Some(name) = problem.strip_prefix("unknown field ") {
        return format!("there is no {name}; valid names: {expected}");
    }
    if let Some(value) = problem.strip_prefix("unknown variant ") {
        return format!("{value} is not one of {expected}");
    }
    match problem.strip_prefix("invalid type: ") {
        Some(found) if !expected.is_empty() => {
            let expected = match expected {
                "a sequence" => "an array",
                "a map" => "an object",
                name if name.starts_with("struct ") => "an object",
                "u16" | "u32" | "u64" | "usize" | "i32" | "i64" => "a whole number",
                "f32" | "f64" => "a number",
                _ => expected,
            };
            let found = match found {
                "sequence" => "an array",
                "map" => "an object",
                "number" => "a number",
                _ => found,
            };
            format!("expected {expected}, found {found}")
        }
        _ => message.to_owned(),
    }
}

fn describe_argument(name: &str, properties: &Map<String, Value>) -> String {
    let property = &properties[name];
    let kind = match property.get("enum") {
        Some(options) => format!("one of {}", list_options(options)),
        None => property.get("type").and_then(Value::as_str).unwrap_or("value").to_owned(),
    };
    match property.get("description").and_then(Value::as_str) {
        Some(text) => format!("`{name}` ({kind}): {text}"),
        None => format!("`{name}`: {kind}."),
    }
}

/// Lists the values of an `enum` without JSON's quotes and brackets.
fn list_options(options: &Value) -> String {
    let to_text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    options.as_array().into_iter().flatten().map(to_text).collect::<Vec<_>>().join(", ")
}

fn unknown_argument(name: &str, properties: &Map<String, Value>) -> Error {
    let names: Vec<&str> = properties.keys().map(String::as_str).collect();
    let hint = match suggest_name(name, &names) {
        Some(suggestion) => format!("Did you mean `{suggestion}`?"),
        None => format!("Valid arguments: {}.", names.join(", ")),
    };
    Error::invalid_arguments(format!("there is no argument `{}`", truncate_text(name, 64)))
        .with_hint(hint)
}

/// Truncates text from the caller, so that an error stays short whatever was sent.
fn truncate_text(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        /// Where.
        path: String,
        limit: Option<u32>,
        mode: Option<Mode>,
    }

    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    enum Mode {
        Fast,
        Slow,
    }

    fn read(arguments: Value) -> Result<Sample> {
        let Value::Object(map) = arguments else { panic!("an object") };
        parse_arguments(&map, &input_schema::<Sample>())
    }

    #[test]
    fn a_schema_is_flat() {
        let schema = Value::Object(input_schema::<Sample>());
        assert_eq!(
            schema,
            json!({
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "Where."},
                    "limit": {"type": "integer"},
                    "mode": {"type": "string", "enum": ["fast", "slow"]},
                },
                "required": ["path"],
                "additionalProperties": false,
            })
        );
    }

    #[test]
    fn a_wrong_argument_is_named_with_what_would_be_right() {
        let error = read(json!({"pth": "x"})).unwrap_err();
        assert_eq!(error.hint_text(), Some("Did you mean `path`?"));
        let error = read(json!({})).unwrap_err();
        assert_eq!(error.message(), "the argument `path` is missing");
        let error = read(json!({"path": 3})).unwrap_err();
        assert!(error.message().starts_with("the argument `path` is invalid"), "{error}");
        let error = read(json!({"path": "x", "mode": "medium"})).unwrap_err();
        assert!(error.hint_text().unwrap().contains("one of fast, slow"), "{error:?}");
        let sample = read(json!({"path": "x", "limit": 3, "mode": "slow"})).unwrap();
        assert_eq!((sample.path.as_str(), sample.limit), ("x", Some(3)));
        assert!(matches!(sample.mode, Some(Mode::Slow)));
    }

    /// The phrases are English text of `serde`. If an update changes one, this test fails instead
    /// of the phrase reaching a caller.
    #[test]
    fn phrases_of_the_deserializer_are_reworded() {
        #[derive(Debug, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        struct Nested {
            #[expect(dead_code, reason = "only its type matters")]
            name: String,
        }
        #[derive(Debug, Deserialize, JsonSchema)]
        struct Outer {
            #[expect(dead_code, reason = "only its type matters")]
            list: Option<Vec<Nested>>,
            #[expect(dead_code, reason = "only its type matters")]
            mode: Option<Mode>,
            #[expect(dead_code, reason = "only its type matters")]
            flag: Option<bool>,
        }
        for (arguments, message) in [
            (json!({"list": 5}), "`list` is invalid: expected an array, found a number"),
            (json!({"list": [5]}), "`list[0]` is invalid: expected an object, found a number"),
            (json!({"list": [{}]}), "`list[0]` is invalid: `name` is missing"),
            (
                json!({"list": [{"nam": ""}]}),
                "`list[0].nam` is invalid: there is no `nam`; valid names: `name`",
            ),
            (
                json!({"list": [{"name": ["x"]}]}),
                "`list[0].name` is invalid: expected a string, found an array",
            ),
            (
                json!({"mode": "medium"}),
                "`mode` is invalid: `medium` is not one of `fast` or `slow`",
            ),
            (json!({"flag": {}}), "`flag` is invalid: expected a boolean, found an object"),
        ] {
            let error =
                parse_arguments::<Outer>(arguments.as_object().unwrap(), &input_schema::<Outer>());
            let message = format!("the argument {message}");
            assert_eq!(error.unwrap_err().message(), message, "{arguments}");
        }
    }

    #[test]
    fn an_error_is_short_however_long_the_argument() {
        let long = "ü".repeat(50_000);
        for arguments in [
            json!({"path": "x", "limit": long}),
            json!({"path": "x", "mode": long}),
            json!({&long: 1}),
        ] {
            let error = read(arguments).unwrap_err();
            assert!(
                error.to_body(&crate::base::TraceId::generate()).to_string().len() < 2048,
                "{:.200}",
                error.to_string()
            );
        }
    }
}
