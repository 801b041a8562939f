//! Arguments of a call from the command line: one JSON object, or `key=value` with the types of the
//! tool's schema.

use std::io::Read;

use serde_json::{Map, Value};

use crate::base::suggest::suggest_name;
use crate::base::{Error, Result};
use crate::cli::tool_schema::{SchemaField, json_type, list_fields};

/// Longest file that becomes an argument.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// Reads the arguments of a tool with this schema.
pub fn read_arguments(words: &[String], schema: &Value) -> Result<Map<String, Value>> {
    let arguments = match words {
        [word] if word.trim_start().starts_with('{') => parse_object(word)?,
        [word] if word.starts_with('@') => parse_object(&read_file(&word[1..])?)?,
        words => {
            let mut arguments = Map::new();
            for word in words {
                let (name, value) = read_pair(word, schema)?;
                if arguments.insert(name.clone(), value).is_some() {
                    return Err(usage_error(
                        format!("`{name}` is given twice"),
                        "Give a list as JSON: `name=[\"one\", \"two\"]`.",
                    ));
                }
            }
            arguments
        }
    };
    check_required(&arguments, schema)?;
    Ok(arguments)
}

fn usage_error(message: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::invalid_arguments(message).with_hint(hint)
}

fn parse_object(text: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(text).map_err(|error| {
        usage_error(
            format!("the arguments are not a JSON object: {error}"),
            "Write them as '{\"key\": \"value\"}', or one by one as `key=value`.",
        )
    })
}

fn read_pair(word: &str, schema: &Value) -> Result<(String, Value)> {
    let (name, text) = word.split_once('=').ok_or_else(|| {
        usage_error(
            format!("`{word}` is not an argument"),
            "Write arguments as `key=value`, or all of them as one JSON object.",
        )
    })?;
    let fields = list_fields(schema);
    let field = fields.iter().find(|field| field.name == name);
    // The server decides about other names only if its schema allows them.
    if field.is_none() && !allows_other_names(schema) {
        return Err(unknown_name_error(name, &fields));
    }
    let text = match text.strip_prefix('@') {
        // A text that begins with @ is written with two.
        Some(rest) if rest.starts_with('@') => rest.to_owned(),
        Some(path) => read_file(path)?,
        None => text.to_owned(),
    };
    Ok((name.to_owned(), convert_value(name, text, field)?))
}

fn allows_other_names(schema: &Value) -> bool {
    match schema.get("additionalProperties") {
        Some(Value::Bool(allowed)) => *allowed,
        Some(_) => true,
        // Without properties, nothing is known about the names.
        None => schema["properties"].as_object().is_none_or(Map::is_empty),
    }
}

fn unknown_name_error(name: &str, fields: &[SchemaField<'_>]) -> Error {
    let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
    let hint = match suggest_name(name, &names) {
        Some(suggestion) => format!("Did you mean `{suggestion}`?"),
        None if names.is_empty() => "The tool takes no arguments.".to_owned(),
        None => format!("There are: {}.", names.join(", ")),
    };
    usage_error(format!("the tool has no argument `{name}`"), hint)
}

/// Converts a text to the type of its argument. Text stays text wherever the schema allows text,
/// unless the schema also allows what the text is as JSON.
fn convert_value(name: &str, text: String, field: Option<&SchemaField<'_>>) -> Result<Value> {
    let types = field.map(SchemaField::types).unwrap_or_default();
    let accepts = |value: &Value| {
        let type_name = json_type(value);
        types.contains(type_name) || type_name == "integer" && types.contains("number")
    };
    let is_text_only = types.iter().all(|name| name == "string" || name == "null");
    if is_text_only && !types.is_empty() {
        return Ok(Value::String(text));
    }
    match serde_json::from_str::<Value>(&text) {
        Ok(value) if types.is_empty() || accepts(&value) => Ok(value),
        _ if types.is_empty() || types.contains("string") => Ok(Value::String(text)),
        parsed => {
            let expected = field.map(SchemaField::describe_type).unwrap_or_default();
            let actual = match parsed {
                Ok(value) => json_type(&value).to_owned(),
                Err(_) => "text that is not JSON".to_owned(),
            };
            Err(usage_error(
                format!("`{name}` must be {expected}, and is {actual}"),
                "`ringfence tools NAME` explains the arguments; arrays and objects are written as JSON.",
            ))
        }
    }
}

fn check_required(arguments: &Map<String, Value>, schema: &Value) -> Result<()> {
    let fields = list_fields(schema);
    let missing: Vec<String> = fields
        .iter()
        .filter(|field| field.is_required && !arguments.contains_key(field.name))
        .map(|field| format!("{}=<{}>", field.name, field.describe_type()))
        .collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(usage_error(
            format!("an argument is missing: {}", missing.join(" ")),
            "`ringfence tools NAME` explains the arguments.",
        )),
    }
}

/// Reads a file, or standard input for `-`.
fn read_file(path: &str) -> Result<String> {
    let failed = |error: std::io::Error| {
        usage_error(
            format!("`{path}` cannot be read: {error}"),
            "Name a text file after `@`; write `@@` for a text that begins with @.",
        )
    };
    let mut text = String::new();
    let mut source: Box<dyn Read> = match path {
        "-" => Box::new(std::io::stdin()),
        path => Box::new(std::fs::File::open(path).map_err(failed)?),
    };
    (&mut source).take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    match text.len() as u64 > MAX_FILE_BYTES {
        true => Err(usage_error(
            format!("`{path}` is longer than {MAX_FILE_BYTES} bytes"),
            "Write it into the workspace, and let the tool read it there.",
        )),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::scratch::Scratch;

    fn schema() -> Value {
        json!({
            "type": "object",
            "required": ["path"],
            "additionalProperties": false,
            "properties": {
                "path": {"type": "string"},
                "limit": {"type": ["integer", "null"]},
                "ratio": {"type": "number"},
                "all": {"type": "boolean"},
                "edits": {"type": "array"},
                "env": {"type": "object"},
                "either": {"anyOf": [{"type": "string"}, {"type": "array"}]},
                "any": true,
            },
        })
    }

    fn read(words: &[&str]) -> Result<Map<String, Value>> {
        read_arguments(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>(), &schema())
    }

    #[test]
    fn values_have_the_types_of_the_schema() {
        let words = [
            "path=7",
            "limit=7",
            "ratio=2",
            "all=true",
            "edits=[1]",
            "env={\"A\":\"b\"}",
            "either=[1]",
            "any=x y",
        ];
        assert_eq!(
            Value::Object(read(&words).unwrap()),
            json!({"path": "7", "limit": 7, "ratio": 2, "all": true, "edits": [1], "env": {"A": "b"}, "either": [1], "any": "x y"})
        );
        let text = read(&["path=a=b", "either=plain", "limit=null"]).unwrap();
        assert_eq!(Value::Object(text), json!({"path": "a=b", "either": "plain", "limit": null}));
        assert_eq!(Value::Object(read(&[r#"{"path": 5}"#]).unwrap()), json!({"path": 5}));
    }

    #[test]
    fn files_become_values() {
        let scratch = Scratch::new();
        let file = scratch.file("text", "one\ntwo\n");
        let list = scratch.file("list", "[1, 2]\n");
        let whole = scratch.file("whole", "{\"path\": \"p\"}");
        let at = |name: &str, path: &std::path::Path| format!("{name}@{}", path.display());
        let read_words = |words: Vec<String>| read_arguments(&words, &schema()).map(Value::Object);
        assert_eq!(
            read_words(vec![at("path=", &file), at("edits=", &list)]).unwrap(),
            json!({"path": "one\ntwo\n", "edits": [1, 2]})
        );
        assert_eq!(read_words(vec![at("", &whole)]).unwrap(), json!({"path": "p"}));
        assert_eq!(read_words(vec!["path=@@me".to_owned()]).unwrap(), json!({"path": "@me"}));
        assert!(read_words(vec!["path=@/nosuch/file".to_owned()]).is_err());
    }

    #[test]
    fn mistakes_say_what_was_meant() {
        for (words, message, hint) in [
            (&["path=x", "limit=many"][..], "`limit` must be integer", "JSON"),
            (&["path=x", "limit=1.5"], "must be integer, and is number", ""),
            (&["path=x", "limti=1"], "no argument `limti`", "`limit`"),
            (&["path=x", "path=y"], "twice", ""),
            (&["limit=1"], "missing: path=<string>", "ringfence tools"),
            (&["nothing"], "not an argument", "key=value"),
            (&["{broken"], "not a JSON object", ""),
        ] {
            let error = read(words).unwrap_err();
            assert!(error.message().contains(message), "{words:?}: {error}");
            assert!(error.hint_text().unwrap().contains(hint), "{words:?}: {error:?}");
        }
    }
}
