//! What is wrong with the arguments of a call, in words that do not depend on the validator.

use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind;
use serde_json::Value;

/// Maximum length of a name that the caller chose.
const MAX_NAME_CHARS: usize = 64;

/// Describes one violation of the schema. No value is repeated, because an argument may be a secret.
pub fn describe_violation(arguments: &Value, error: &ValidationError<'_>) -> String {
    let path = error.instance_path().to_string();
    let noun = if path.is_empty() { "argument" } else { "property" };
    let description = match error.kind() {
        ValidationErrorKind::AdditionalProperties { unexpected }
        | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
            format!("there is no {noun} {}", list_names(unexpected))
        }
        ValidationErrorKind::Required { property } => {
            let name = property.as_str().map_or_else(|| property.to_string(), str::to_owned);
            format!("the {noun} {} is missing", list_names(&[name]))
        }
        // An object that may have no properties at all; the path is that of the object.
        ValidationErrorKind::FalseSchema
            if error.schema_path().to_string().ends_with("/additionalProperties") =>
        {
            let object = arguments.pointer(&path).and_then(Value::as_object);
            let names: Vec<String> =
                object.into_iter().flat_map(|map| map.keys().cloned()).collect();
            format!("there is no {noun} {} (it takes none)", list_names(&names))
        }
        ValidationErrorKind::FalseSchema => "no value is allowed here".to_owned(),
        _ => error.masked().to_string(),
    };
    match path.trim_start_matches('/') {
        "" => description,
        path => format!("{path}: {description}"),
    }
}

/// Quotes the first few names.
fn list_names(names: &[String]) -> String {
    const MAX_NAMES: usize = 4;
    let quote = |name: &String| match name.char_indices().nth(MAX_NAME_CHARS) {
        Some((end, _)) => format!("`{}…`", &name[..end]),
        None => format!("`{name}`"),
    };
    let mut listed: Vec<String> = names.iter().take(MAX_NAMES).map(quote).collect();
    if names.len() > MAX_NAMES {
        listed.push("…".to_owned());
    }
    listed.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn describe(schema: Value, arguments: Value) -> Vec<String> {
        let validator = jsonschema::validator_for(&schema).unwrap();
        validator
            .iter_errors(&arguments)
            .map(|error| describe_violation(&arguments, &error))
            .collect()
    }

    #[test]
    fn names_that_are_unknown_or_missing_are_told_in_our_words() {
        let none = json!({"type": "object", "additionalProperties": false});
        assert_eq!(
            describe(none.clone(), json!({"x": 1})),
            ["there is no argument `x` (it takes none)"]
        );
        let schema = json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["a"],
            "properties": {
                "a": {"type": "string"},
                "never": false,
                "none": none,
                "object": {"type": "object", "additionalProperties": false, "required": ["k"], "properties": {"k": true}},
            },
        });
        assert_eq!(
            describe(schema.clone(), json!({"x": 1})),
            ["there is no argument `x`", "the argument `a` is missing"]
        );
        assert_eq!(
            describe(schema, json!({"a": "", "never": 1, "none": {"y": 1}, "object": {"z": 1}})),
            [
                "never: no value is allowed here",
                "none: there is no property `y` (it takes none)",
                "object: there is no property `z`",
                "object: the property `k` is missing",
            ]
        );
    }

    #[test]
    fn values_are_not_repeated() {
        let schema =
            json!({"properties": {"a": {"type": "string", "maxLength": 3}, "b": {"enum": ["x"]}}});
        let all = describe(schema, json!({"a": "hunter2", "b": "hunter2"})).join("; ");
        assert!(all.contains("a: ") && all.contains("b: ") && !all.contains("hunter2"), "{all}");
    }

    #[test]
    fn long_names_are_cut() {
        let none = json!({"type": "object", "additionalProperties": false});
        let arguments: serde_json::Map<String, Value> =
            (0..9).map(|number| (format!("{number}{}", "x".repeat(1000)), json!(1))).collect();
        let all = describe(none, Value::Object(arguments)).join("; ");
        assert!(all.len() < 500 && all.contains("…"), "{all}");
    }
}
