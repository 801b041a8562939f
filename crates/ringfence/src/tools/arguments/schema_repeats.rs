//! How often a schema applies to one and the same value. A few definitions that each refer to the
//! next one twice apply a million times, so a schema of one page could keep a server busy for years.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// References that may follow from one another.
const MAX_REFERENCES: usize = 200;
/// Members with plain values, and definitions, which are counted where they are used.
const NO_SCHEMAS: [&str; 7] =
    ["$defs", "definitions", "enum", "const", "default", "examples", "required"];

/// How often a schema applies.
#[derive(Debug, Clone, Copy)]
pub struct Repeats {
    /// To the value itself.
    here: u64,
    /// To one of its members or items.
    below: u64,
    /// How often it leads back to where it is.
    pub returns: u64,
}

impl Repeats {
    const ONCE: Repeats = Repeats { here: 1, below: 0, returns: 0 };

    /// Adds a schema for the same value.
    fn add(&mut self, other: Repeats) {
        self.here = self.here.saturating_add(other.here);
        self.below = self.below.saturating_add(other.below);
        self.returns = self.returns.saturating_add(other.returns);
    }

    /// Adds schemas for a member or an item.
    fn add_below(&mut self, other: Repeats) {
        self.below = self.below.saturating_add(other.most());
        self.returns = self.returns.saturating_add(other.returns);
    }

    /// Returns how often it applies to one value at most.
    pub fn most(self) -> u64 {
        self.here.max(self.below)
    }
}

/// Returns how often the parts of a schema apply to one value at most. References that lead back to
/// where they are count once: [`super::schema_depth`] bounds those. The error says why the number is
/// not known.
pub fn count_repeats(schema: &Map<String, Value>) -> Result<Repeats, String> {
    let root = Value::Object(schema.clone());
    let visiting = vec!["#".to_owned()];
    let mut counter = RepeatCounter { root: &root, known: BTreeMap::new(), visiting };
    counter.count_members(schema, true)
}

struct RepeatCounter<'a> {
    root: &'a Value,
    /// Targets of references that have been counted.
    known: BTreeMap<String, Repeats>,
    visiting: Vec<String>,
}

impl RepeatCounter<'_> {
    fn count(&mut self, schema: &Value) -> Result<Repeats, String> {
        match schema {
            Value::Object(members) => self.count_members(members, false),
            _ => Ok(Repeats::ONCE),
        }
    }

    fn count_members(
        &mut self,
        members: &Map<String, Value>,
        is_root: bool,
    ) -> Result<Repeats, String> {
        let mut repeats = Repeats::ONCE;
        for (key, value) in members {
            match (key.as_str(), value) {
                ("$ref", Value::String(target)) => repeats.add(self.count_target(target)?),
                ("$dynamicRef" | "$recursiveRef", _) => {
                    return Err(format!("`{key}` is not supported"));
                }
                // It changes what the references below it mean.
                ("$id" | "id", Value::String(_)) if !is_root => {
                    return Err(format!("`{key}` is supported at the top only"));
                }
                ("allOf" | "anyOf" | "oneOf", Value::Array(branches)) => {
                    for branch in branches {
                        repeats.add(self.count(branch)?);
                    }
                }
                ("if" | "then" | "else" | "not", branch) => repeats.add(self.count(branch)?),
                ("dependentSchemas" | "dependencies", Value::Object(branches)) => {
                    for branch in branches.values() {
                        repeats.add(self.count(branch)?);
                    }
                }
                // One of them applies to a member.
                ("properties", Value::Object(properties)) => {
                    let mut most = Repeats { here: 0, ..Repeats::ONCE };
                    for property in properties.values() {
                        let property = self.count(property)?;
                        most.here = most.here.max(property.most());
                        most.returns = most.returns.max(property.returns);
                    }
                    repeats.add_below(most);
                }
                (key, _) if NO_SCHEMAS.contains(&key) => {}
                (_, value) => repeats.add_below(self.count_below(value)?),
            }
        }
        Ok(repeats)
    }

    /// Counts the schemas of a keyword such as `items` or `patternProperties`. All of them may apply
    /// to one member.
    fn count_below(&mut self, value: &Value) -> Result<Repeats, String> {
        let mut total = Repeats { here: 0, ..Repeats::ONCE };
        match value {
            Value::Object(_) => total = self.count(value)?,
            Value::Array(items) => {
                for item in items.iter().filter(|item| item.is_object()) {
                    total.add(self.count(item)?);
                }
            }
            _ => {}
        }
        Ok(total)
    }

    fn count_target(&mut self, target: &str) -> Result<Repeats, String> {
        if let Some(known) = self.known.get(target) {
            return Ok(*known);
        }
        if self.visiting.iter().any(|one| one == target) {
            return Ok(Repeats { returns: 1, ..Repeats::ONCE });
        }
        if self.visiting.len() >= MAX_REFERENCES {
            return Err("its references follow from one another too often".to_owned());
        }
        let root = self.root;
        let Some(schema) = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer))
        else {
            return Err(format!("the reference `{target}` does not lead into the schema itself"));
        };
        self.visiting.push(target.to_owned());
        let repeats = self.count(schema)?;
        self.visiting.pop();
        self.known.insert(target.to_owned(), repeats);
        Ok(repeats)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn count(schema: Value) -> Result<u64, String> {
        count_repeats(schema.as_object().unwrap()).map(Repeats::most)
    }

    /// Definitions that each refer to the next one twice.
    fn doubling(levels: usize, refer: impl Fn(Value) -> Value) -> Value {
        let name = |number: usize| format!("d{number}");
        let definitions = (0..levels).map(|number| {
            let next = json!({"$ref": format!("#/$defs/{}", name(number + 1))});
            (name(number), refer(next))
        });
        let mut definitions: Map<String, Value> = definitions.collect();
        definitions.insert(name(levels), json!({"type": "string"}));
        json!({"properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": definitions})
    }

    #[test]
    fn ordinary_schemas_apply_a_few_times() {
        assert_eq!(count(json!({"type": "object"})), Ok(1));
        let union = json!({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}});
        assert_eq!(count(union), Ok(3));
        let properties =
            json!({"properties": {"a": {}, "b": {"items": {"enum": [{"$ref": "x"}]}}}});
        assert_eq!(count(properties), Ok(1));
        let tree = json!({"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"kids": {"items": {"$ref": "#/$defs/n"}}}}}});
        assert_eq!(count(tree), Ok(2));
        // Each member is another value.
        let members = doubling(60, |next| json!({"properties": {"a": next, "b": next}}));
        assert!(count(members).unwrap() < 10);
    }

    #[test]
    fn ways_back_are_counted_for_each_turn() {
        let returns = |schema: Value| count_repeats(schema.as_object().unwrap()).unwrap().returns;
        assert_eq!(returns(json!({"properties": {"a": {"anyOf": [{}, {}]}}})), 0);
        let node = json!({"$ref": "#/$defs/n"});
        let list = json!({"anyOf": [{"format": "path"}, {"items": node}, {"contains": node}]});
        assert_eq!(returns(json!({"properties": {"n": node}, "$defs": {"n": list}})), 2);
        let member = json!({"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}});
        let twice = json!({"allOf": [member, member]});
        assert_eq!(returns(json!({"allOf": [twice, twice]})), 4);
    }

    #[test]
    fn what_doubles_is_counted_and_not_tried() {
        assert!(count(doubling(60, |next| json!({"allOf": [next, next]}))).unwrap() > 1 << 60);
        let below = |next| {
            let branch = json!({"properties": {"x": next}});
            json!({"anyOf": [branch, branch]})
        };
        assert!(count(doubling(30, below)).unwrap() > 1 << 29);
        assert_eq!(count(doubling(100, |next| json!({"oneOf": [next, next]}))), Ok(u64::MAX));
    }

    #[test]
    fn what_cannot_be_counted_is_refused() {
        for schema in [
            json!({"$ref": "#name"}),
            json!({"$ref": "https://example.com/x"}),
            json!({"$dynamicRef": "#x"}),
            json!({"properties": {"a": {"$id": "https://example.com/x"}}}),
            doubling(1_000, |next| next),
        ] {
            assert!(count(schema).is_err());
        }
    }
}
