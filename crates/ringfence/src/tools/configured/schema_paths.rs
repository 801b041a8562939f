//! Finds the values that a schema marks as paths, by walking schema and value together.
//!
//! Every subschema that could apply to a value is considered, whether or not another one is what
//! makes the value valid: missing a path is worse than checking a string in vain.

use std::collections::{HashMap, HashSet};
use std::ptr;
use std::rc::Rc;

use regex::Regex;
use serde_json::{Map, Value};

/// A string that is a path, and its location in the arguments.
pub struct MarkedPath<'v> {
    pub location: String,
    pub path: &'v str,
}

/// Returns whether a schema marks anything as a path.
pub fn has_paths(schema: &Map<String, Value>) -> bool {
    fn has_paths_within(value: &Value) -> bool {
        match value {
            Value::Object(schema) => has_paths(schema),
            Value::Array(items) => items.iter().any(has_paths_within),
            _ => false,
        }
    }
    is_path(schema) || schema.values().any(has_paths_within)
}

/// Returns every string in `arguments` that the schema marks as a path.
pub fn find_paths<'v>(schema: &'v Value, arguments: &'v Value) -> Vec<MarkedPath<'v>> {
    let mut walk = SchemaWalk {
        root: schema,
        seen: HashSet::new(),
        targets: HashMap::new(),
        patterns: HashMap::new(),
        location: Vec::new(),
        found: Vec::new(),
    };
    walk.visit_schema(schema, Some(arguments), None);
    walk.found
}

struct SchemaWalk<'v> {
    root: &'v Value,
    /// Pairs of subschema and value already visited. Each is visited once, so a recursive schema
    /// terminates, and the time is bounded by the size of the schema times that of the value.
    seen: HashSet<(*const Value, *const u8)>,
    /// Targets of references, resolved once.
    targets: HashMap<&'v str, Vec<&'v Value>>,
    /// Compiled property name patterns of a schema.
    patterns: HashMap<*const Map<String, Value>, NamePatterns<'v>>,
    location: Vec<String>,
    found: Vec<MarkedPath<'v>>,
}

/// Patterns with their subschemas. One that cannot be compiled matches every name.
type NamePatterns<'v> = Rc<[(Option<Regex>, &'v Value)]>;

fn is_path(schema: &Map<String, Value>) -> bool {
    schema.get("format").is_some_and(|format| format == "path")
}

/// Returns whether the schema excludes this string outright. No other keyword does so without
/// looking further.
fn excludes_text(schema: &Map<String, Value>, text: &str) -> bool {
    let differs = |allowed: &Value| allowed != text;
    schema.get("const").is_some_and(differs)
        || schema
            .get("enum")
            .and_then(Value::as_array)
            .is_some_and(|values| values.iter().all(differs))
}

impl<'v> SchemaWalk<'v> {
    /// Visits `value`, or the name of a property, which is a string as well.
    fn visit_schema(&mut self, schema: &'v Value, value: Option<&'v Value>, name: Option<&'v str>) {
        let address: *const u8 = match (value, name) {
            (Some(value), _) => ptr::from_ref(value).cast(),
            (None, Some(name)) => name.as_ptr(),
            (None, None) => return,
        };
        let Value::Object(schema_map) = schema else { return };
        if !self.seen.insert((ptr::from_ref(schema), address)) {
            return;
        }
        if let Some(text) = name.or_else(|| value.and_then(Value::as_str)) {
            if excludes_text(schema_map, text) {
                return;
            }
            if is_path(schema_map) {
                self.found.push(MarkedPath { location: self.location.join("/"), path: text });
            }
        }
        for key in ["$ref", "$dynamicRef", "$recursiveRef"] {
            if let Some(reference) = schema_map.get(key).and_then(Value::as_str) {
                let targets = self
                    .targets
                    .entry(reference)
                    .or_insert_with(|| resolve_reference(self.root, reference))
                    .clone();
                // The target of an unresolved reference could mark anything.
                if targets.is_empty() {
                    self.mark_all(value, name);
                }
                for target in targets {
                    self.visit_schema(target, value, name);
                }
            }
        }
        for key in ["allOf", "anyOf", "oneOf"] {
            for branch in schema_map.get(key).and_then(Value::as_array).into_iter().flatten() {
                self.visit_schema(branch, value, name);
            }
        }
        for key in ["if", "then", "else"] {
            if let Some(branch) = schema_map.get(key) {
                self.visit_schema(branch, value, name);
            }
        }
        match value {
            Some(Value::Object(object)) => self.visit_object(schema_map, value, object),
            Some(Value::Array(items)) => self.visit_array(schema_map, items),
            _ => {}
        }
    }

    fn mark_all(&mut self, value: Option<&'v Value>, name: Option<&'v str>) {
        match value {
            Some(Value::Object(object)) => {
                object.values().for_each(|inner| self.mark_all(Some(inner), None))
            }
            Some(Value::Array(items)) => {
                items.iter().for_each(|inner| self.mark_all(Some(inner), None))
            }
            _ => {
                let text = name.or_else(|| value.and_then(Value::as_str));
                self.found.extend(
                    text.map(|path| MarkedPath { location: self.location.join("/"), path }),
                );
            }
        }
    }

    fn visit_object(
        &mut self,
        schema: &'v Map<String, Value>,
        value: Option<&'v Value>,
        object: &'v Map<String, Value>,
    ) {
        for key in ["dependentSchemas", "dependencies"] {
            for branch in
                schema.get(key).and_then(Value::as_object).into_iter().flat_map(Map::values)
            {
                self.visit_schema(branch, value, None);
            }
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        let patterns = Rc::clone(self.patterns.entry(ptr::from_ref(schema)).or_insert_with(|| {
            let pattern_properties =
                schema.get("patternProperties").and_then(Value::as_object).into_iter().flatten();
            pattern_properties.map(|(pattern, schema)| (Regex::new(pattern).ok(), schema)).collect()
        }));
        for (name, inner) in object {
            self.location.push(name.clone());
            if let Some(names) = schema.get("propertyNames") {
                self.visit_schema(names, None, Some(name));
            }
            let property = properties.and_then(|properties| properties.get(name));
            let matching = patterns
                .iter()
                .filter(|(pattern, _)| pattern.as_ref().is_none_or(|one| one.is_match(name)));
            let mut schemas: Vec<&Value> =
                property.into_iter().chain(matching.map(|(_, schema)| *schema)).collect();
            if schemas.is_empty() {
                schemas.extend(schema.get("additionalProperties"));
            }
            schemas.extend(schema.get("unevaluatedProperties"));
            for schema in schemas {
                self.visit_schema(schema, Some(inner), None);
            }
            self.location.pop();
        }
    }

    fn visit_array(&mut self, schema: &'v Map<String, Value>, items: &'v [Value]) {
        // An array under `items` is the old form of `prefixItems`.
        let prefix_schemas =
            schema.get("prefixItems").or_else(|| schema.get("items")).and_then(Value::as_array);
        let prefix_schemas = prefix_schemas.map(Vec::as_slice).unwrap_or_default();
        let item_schemas = ["items", "additionalItems"].iter().filter_map(|key| schema.get(*key));
        let item_schemas: Vec<&Value> = item_schemas.filter(|schema| schema.is_object()).collect();
        let any_schemas: Vec<&Value> =
            ["contains", "unevaluatedItems"].iter().filter_map(|key| schema.get(*key)).collect();
        for (index, item) in items.iter().enumerate() {
            self.location.push(index.to_string());
            match prefix_schemas.get(index) {
                Some(schema) => self.visit_schema(schema, Some(item), None),
                None => item_schemas
                    .iter()
                    .for_each(|schema| self.visit_schema(schema, Some(item), None)),
            }
            any_schemas.iter().for_each(|schema| self.visit_schema(schema, Some(item), None));
            self.location.pop();
        }
    }
}

/// Returns the targets of a reference, given by location or by a name that a subschema declares.
fn resolve_reference<'v>(root: &'v Value, reference: &str) -> Vec<&'v Value> {
    let (document, fragment) = reference.split_once('#').unwrap_or((reference, ""));
    // A subschema with its own id is a document of its own. Relative ids are suffixes of absolute
    // ones.
    let has_id = |map: &Map<String, Value>| {
        let id = map.get("$id").or_else(|| map.get("id")).and_then(Value::as_str);
        id.is_some_and(|id| id.trim_end_matches('#').ends_with(document.trim_start_matches("./")))
    };
    let mut documents = find_subschemas(root, &has_id);
    if document.is_empty() && !documents.iter().any(|one| ptr::eq(*one, root)) {
        documents.push(root);
    }
    let mut targets = Vec::new();
    for document in documents {
        match fragment {
            "" => targets.push(document),
            _ if fragment.starts_with('/') => {
                targets.extend(document.pointer(&decode_fragment(fragment)))
            }
            _ => targets.extend(find_subschemas(document, &|map| {
                ["$anchor", "$dynamicAnchor"]
                    .iter()
                    .any(|key| map.get(*key).is_some_and(|name| name == fragment))
                    || map
                        .get("$id")
                        .or_else(|| map.get("id"))
                        .is_some_and(|id| *id == format!("#{fragment}").as_str())
            })),
        }
    }
    targets
}

/// Returns every subschema that satisfies a condition.
fn find_subschemas<'v>(
    schema: &'v Value,
    predicate: &dyn Fn(&Map<String, Value>) -> bool,
) -> Vec<&'v Value> {
    let mut found = Vec::new();
    let mut pending = vec![schema];
    while let Some(subschema) = pending.pop() {
        match subschema {
            Value::Object(map) => {
                if predicate(map) {
                    found.push(subschema);
                }
                pending.extend(map.values());
            }
            Value::Array(items) => pending.extend(items),
            _ => {}
        }
    }
    found
}

/// Percent-decodes a URI fragment into a JSON pointer.
fn decode_fragment(fragment: &str) -> String {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let [first, more @ ..] = rest {
        let code = match (first, more) {
            (b'%', [high, low, ..]) => std::str::from_utf8(&[*high, *low])
                .ok()
                .and_then(|code| u8::from_str_radix(code, 16).ok()),
            _ => None,
        };
        bytes.push(code.unwrap_or(*first));
        rest = &more[if code.is_some() { 2 } else { 0 }..];
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
