//! JSON, with or without comments, edited through a lossless syntax tree.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstObjectProp, CstRootNode};
use serde_json::Value;

use super::document::{SyntaxProblem, line_number};

/// A parsed JSON file.
pub struct JsonText {
    text: String,
    root: CstRootNode,
    options: ParseOptions,
}

impl JsonText {
    /// Parses a file; `relaxed` allows comments and trailing commas, as editors do.
    pub fn parse(text: &str, relaxed: bool) -> Result<JsonText, SyntaxProblem> {
        let options = ParseOptions {
            allow_comments: relaxed,
            allow_trailing_commas: relaxed,
            allow_loose_object_property_names: false,
            allow_missing_commas: false,
            allow_single_quoted_strings: false,
            allow_hexadecimal_numbers: false,
            allow_unary_plus_numbers: false,
            allow_bare_decimal_point_numbers: false,
            allow_non_finite_numbers: false,
            allow_extended_string_escapes: false,
        };
        if !relaxed && !text.trim().is_empty() {
            check_strict(text)?;
        }
        let root = parse_tree(text, &options)?;
        if root.value().is_some() && root.object_value().is_none() {
            return Err(SyntaxProblem { line: 1, message: "this is not an object".to_owned() });
        }
        Ok(JsonText { text: text.to_owned(), root, options })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn get(&self, path: &[String]) -> Option<Value> {
        if path.is_empty() {
            return self.root.object_value()?.to_serde_value();
        }
        self.property(path)?.value()?.to_serde_value()
    }

    pub fn set(&mut self, path: &[String], value: &Value) -> Result<(), SyntaxProblem> {
        let Some((name, tables)) = path.split_last() else { return Ok(()) };
        self.check_unique(path)?;
        let object = self.object_or_create(tables)?;
        match object.get(name) {
            Some(property) => property.set_value(to_input(value)),
            None => {
                object.append(name, to_input(value));
            }
        }
        self.finish_edit()
    }

    pub fn remove(&mut self, path: &[String]) -> Result<(), SyntaxProblem> {
        self.check_unique(path)?;
        if let Some(property) = self.property(path) {
            property.remove();
        }
        self.finish_edit()
    }

    pub fn push_item(&mut self, path: &[String], item: &Value) -> Result<(), SyntaxProblem> {
        self.check_unique(path)?;
        let array = self.property(path).and_then(|property| property.array_value());
        array.ok_or_else(|| self.problem(path, "this is not a list"))?.append(to_input(item));
        self.finish_edit()
    }

    pub fn remove_item(&mut self, path: &[String], item: &Value) -> Result<(), SyntaxProblem> {
        self.check_unique(path)?;
        let array = self.property(path).and_then(|property| property.array_value());
        let elements = array.map(|array| array.elements()).unwrap_or_default();
        let is_item = |element: &jsonc_parser::cst::CstNode| {
            element.to_serde_value().is_some_and(|value| value == *item)
        };
        if let Some(element) = elements.into_iter().find(is_item) {
            element.remove();
        }
        self.finish_edit()
    }

    fn property(&self, path: &[String]) -> Option<CstObjectProp> {
        let (name, tables) = path.split_last()?;
        let root = self.root.object_value()?;
        let object = tables.iter().try_fold(root, |object, name| object.object_value(name))?;
        object.get(name)
    }

    fn object_or_create(&self, path: &[String]) -> Result<CstObject, SyntaxProblem> {
        let root = self.root.object_value_or_create();
        let mut object = root.ok_or_else(|| self.problem(&[], "this is not an object"))?;
        for (depth, name) in path.iter().enumerate() {
            object = object
                .object_value_or_create(name)
                .ok_or_else(|| self.problem(&path[..=depth], "this is not an object"))?;
        }
        Ok(object)
    }

    /// A key that occurs twice means one thing to us and another to the client.
    fn check_unique(&self, path: &[String]) -> Result<(), SyntaxProblem> {
        let mut object = self.root.object_value();
        for (depth, name) in path.iter().enumerate() {
            let Some(current) = object else { return Ok(()) };
            let properties = current.properties();
            let same = properties
                .iter()
                .filter(|property| property.decoded_name().is_some_and(|other| other == *name));
            if same.count() > 1 {
                return Err(self.problem(&path[..=depth], "this key occurs twice"));
            }
            object = current.object_value(name);
        }
        Ok(())
    }

    fn finish_edit(&mut self) -> Result<(), SyntaxProblem> {
        self.text = self.root.to_string();
        // Positions and values of later edits come from the text that is written.
        self.root = parse_tree(&self.text, &self.options)?;
        Ok(())
    }

    /// Describes a problem, at the line of the key where it can be found.
    fn problem(&self, path: &[String], message: &str) -> SyntaxProblem {
        let key = path.last().map(|name| Value::from(name.as_str()).to_string());
        let offset = key.and_then(|key| self.text.rfind(&key)).unwrap_or(0);
        SyntaxProblem { line: line_number(&self.text, offset), message: message.to_owned() }
    }
}

/// The syntax tree keeps comments whether they are allowed or not; this parser knows none.
fn check_strict(text: &str) -> Result<(), SyntaxProblem> {
    serde_json::from_str::<serde::de::IgnoredAny>(text).map(|_| ()).map_err(|error| {
        let message = error.to_string();
        // Our error has a field for the position.
        let message = message.split(" at line ").next().unwrap_or_default().to_owned();
        SyntaxProblem { line: error.line(), message }
    })
}

fn parse_tree(text: &str, options: &ParseOptions) -> Result<CstRootNode, SyntaxProblem> {
    CstRootNode::parse(text, options).map_err(|error| SyntaxProblem {
        line: line_number(text, error.range().start),
        message: error.kind().to_string(),
    })
}

fn to_input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(value) => CstInputValue::Bool(*value),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text.clone()),
        Value::Array(items) => CstInputValue::Array(items.iter().map(to_input).collect()),
        Value::Object(members) => CstInputValue::Object(
            members.iter().map(|(name, value)| (name.clone(), to_input(value))).collect(),
        ),
    }
}
