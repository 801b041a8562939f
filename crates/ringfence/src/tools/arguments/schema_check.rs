//! Checks the arguments of a call against a schema that is not ours: an operator's or another
//! server's. The error says what is wrong and shows the schema, so that a model can correct itself.

use jsonschema::Validator;
use serde_json::{Map, Value};

use super::schema_depth::{check_depth, is_deeper, max_depth};
use super::schema_repeats::count_repeats;
use super::violations::describe_violation;
use crate::base::{Error, Kind, Result};
use crate::config::build_validator;

/// Maximum number of schema errors reported; the first few are enough to correct a call.
const MAX_REPORTED: usize = 8;
/// Fact of an error that has the schema. It is in the text of the error, too.
pub const SCHEMA_FACT: &str = "schema";
/// A larger schema is not repeated in an error.
const MAX_SCHEMA_BYTES: usize = 16 << 10;

/// Most often that a schema may apply to one value. Unions of unions need a few hundred.
const MAX_REPEATS: u64 = 2_000;
/// Most steps that a check may take; they are a second at worst.
const MAX_STEPS: u64 = 50_000_000;

/// Validator of one schema, with limits on nesting and size that keep its time bounded.
pub struct SchemaCheck {
    validator: Validator,
    max_depth: usize,
    /// Members and items that a value may have altogether.
    max_values: u64,
}

impl SchemaCheck {
    /// Compiles a schema of the operator's. The error says why it is not one.
    pub fn new(schema: &Map<String, Value>) -> Result<SchemaCheck, String> {
        let validator = build_validator(schema)?;
        Ok(SchemaCheck { validator, max_depth: max_depth(schema, 1), max_values: u64::MAX })
    }

    /// Compiles a schema of another server, which may be made to take long. The error says why it is
    /// not used.
    pub fn for_server(schema: &Map<String, Value>) -> Result<SchemaCheck, String> {
        // First, because compiling and checking such a schema takes as long.
        let repeats = count_repeats(schema)?;
        if repeats.most() > MAX_REPEATS || repeats.returns > MAX_REPEATS {
            return Err("its parts refer to one another too often".to_owned());
        }
        Ok(SchemaCheck {
            validator: build_validator(schema)?,
            max_depth: max_depth(schema, u32::try_from(repeats.returns).unwrap_or(u32::MAX)),
            max_values: MAX_STEPS / repeats.most().max(1),
        })
    }

    /// Returns the arguments if they match the schema. `schema` is shown in the error.
    pub fn check_arguments(
        &self,
        tool: &str,
        schema: &Map<String, Value>,
        arguments: Map<String, Value>,
    ) -> Result<Map<String, Value>> {
        check_depth(&arguments, self.max_depth)?;
        let value = Value::Object(arguments);
        if count_values(&value) > self.max_values {
            let message = "the arguments have too many members and items for this tool's schema";
            return Err(Error::new(Kind::TooLarge, message)
                .with_reason("values")
                .with_hint(format!("Send at most {} of them.", self.max_values)));
        }
        let is_valid = self.validator.is_valid(&value);
        match value {
            Value::Object(arguments) if is_valid => Ok(arguments),
            value => Err(self.describe_mismatch(tool, schema, &value)),
        }
    }

    /// Returns what is wrong with a result, or nothing if it matches. A result that cannot be checked
    /// in bounded time is left to the client.
    pub fn check_result(&self, result: &Value) -> Vec<String> {
        if is_deeper(result, self.max_depth) || count_values(result) > self.max_values {
            return Vec::new();
        }
        self.find_violations(result)
    }

    fn find_violations(&self, value: &Value) -> Vec<String> {
        let errors = self.validator.iter_errors(value).take(MAX_REPORTED);
        errors.map(|error| describe_violation(value, &error)).collect()
    }

    fn describe_mismatch(&self, tool: &str, schema: &Map<String, Value>, value: &Value) -> Error {
        let violations = self.find_violations(value);
        let message =
            format!("the arguments of `{tool}` do not match its schema: {}", violations.join("; "));
        let error =
            Error::invalid_arguments(message).with_reason("schema").with_fact("faults", violations);
        let schema = Value::Object(schema.clone());
        match schema.to_string().len() <= MAX_SCHEMA_BYTES {
            true => error
                .with_fact(SCHEMA_FACT, schema)
                .with_hint("Correct the call according to the schema in this error."),
            false => {
                error.with_hint("Correct the call according to the schema in the list of tools, or in the answer of `describe_tools`.")
            }
        }
    }
}

/// Returns the number of members and items at any depth.
fn count_values(value: &Value) -> u64 {
    let mut waiting = vec![value];
    let mut count = 0;
    while let Some(value) = waiting.pop() {
        count += 1;
        match value {
            Value::Object(members) => waiting.extend(members.values()),
            Value::Array(items) => waiting.extend(items),
            _ => {}
        }
    }
    count
}
