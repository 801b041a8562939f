//! Checks the arguments of a call against a schema that is not ours: an operator's or another
//! server's. The error says what is wrong and shows the schema, so that a model can correct itself.

use jsonschema::Validator;
use serde_json::{Map, Value};

use super::schema_depth::{check_depth, max_depth};
use super::violations::describe_violation;
use crate::base::{Error, Result};
use crate::config::build_validator;

/// Maximum number of schema errors reported; the first few are enough to correct a call.
const MAX_REPORTED: usize = 8;
/// A larger schema is not repeated in an error.
const MAX_SCHEMA_BYTES: usize = 16 << 10;

/// Validator of one schema, with a limit on nesting that keeps its time bounded.
pub struct SchemaCheck {
    validator: Validator,
    max_depth: usize,
}

impl SchemaCheck {
    /// Compiles a schema. The error says why it is not one.
    pub fn new(schema: &Map<String, Value>) -> Result<SchemaCheck, String> {
        Ok(SchemaCheck { validator: build_validator(schema)?, max_depth: max_depth(schema) })
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
        let is_valid = self.validator.is_valid(&value);
        match value {
            Value::Object(arguments) if is_valid => Ok(arguments),
            value => Err(self.describe_mismatch(tool, schema, &value)),
        }
    }

    /// Returns what is wrong with a value, or nothing if it matches.
    pub fn find_violations(&self, value: &Value) -> Vec<String> {
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
                .with_fact("schema", schema)
                .with_hint("Correct the call according to the schema in this error."),
            false => {
                error.with_hint("Correct the call according to the schema in the list of tools.")
            }
        }
    }
}
