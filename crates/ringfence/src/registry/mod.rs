//! The tools there are, under the names they are called by.

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::{Config, ToolNames, ToolSet};
use crate::session::Client;
use crate::tools::{TOOLS, Tool};

/// One immutable set of tools. A reload builds a new one.
pub struct Registry {
    tools: Vec<Arc<dyn Tool>>,
    by_name: HashMap<String, usize>,
}

impl Registry {
    pub fn new(config: &Config) -> Self {
        // `shell` is the drop-in for agents that must see one shell and nothing else.
        let wanted = |name: &str| (config.tools == ToolSet::Shell) == (name == "shell");
        let mut tools: Vec<Arc<dyn Tool>> =
            TOOLS.iter().map(|make| make(config)).filter(|tool| wanted(&tool.spec().name)).collect();
        if config.conformance_fixtures {
            tools.extend(crate::tools::fixtures::all());
        }
        let mut by_name = HashMap::new();
        for (at, tool) in tools.iter().enumerate() {
            by_name.insert(tool.spec().name.clone(), at);
            by_name.entry(underscored(&tool.spec().name)).or_insert(at);
        }
        Registry { tools, by_name }
    }

    /// The tool of this name, in either spelling.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.by_name.get(name).map(|at| &self.tools[*at])
    }

    /// In the order of the list, which never changes by itself.
    pub fn tools(&self) -> &[Arc<dyn Tool>] {
        &self.tools
    }
}

/// A dotted name as clients that reject dots want it.
pub fn underscored(name: &str) -> String {
    name.replace('.', "_")
}

/// How names are spelled for this client. Claude Desktop drops the whole list over one dot, Copilot fails.
pub fn spells_with_dots(style: ToolNames, client: &Client) -> bool {
    const REJECT_DOTS: &[&str] = &["claude-ai", "claude-desktop", "copilot", "github-copilot", "intellij", "jetbrains"];
    match style {
        ToolNames::Dot => true,
        ToolNames::Underscore => false,
        ToolNames::Auto => {
            let name = client.name.to_ascii_lowercase();
            !REJECT_DOTS.iter().any(|rejects| name.contains(rejects))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::config::scratch::Scratch;
    use crate::config::{Env, Flags, resolve};

    /// Clients reject whole lists over schemas that are not flat, and every byte of a list is paid for by a model.
    #[test]
    fn our_own_schemas_are_flat_and_small() {
        fn check(name: &str, schema: &Value) {
            match schema {
                Value::Object(map) => {
                    for key in ["oneOf", "anyOf", "allOf", "$ref", "$defs"] {
                        assert!(!map.contains_key(key), "{name} has {key}");
                    }
                    assert!(!map.get("type").is_some_and(Value::is_array), "{name} has a type union");
                    assert!(!map.get("default").is_some_and(Value::is_null), "{name} has a null default");
                    map.values().for_each(|value| check(name, value));
                }
                Value::Array(items) => items.iter().for_each(|value| check(name, value)),
                _ => {}
            }
        }
        let mut bytes = 0;
        let scratch = Scratch::new();
        let flags = Flags { root: Some(scratch.path().join("root")), ..Flags::default() };
        let config = resolve(&flags, &Env::new([("HOME", "/nonexistent")], scratch.dir("project"))).unwrap();
        for tool in TOOLS.iter().map(|make| make(&config)) {
            let spec = tool.spec();
            assert!(
                spec.name.len() <= 64 && spec.name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
            );
            assert_eq!(spec.input_schema["type"], "object");
            assert_eq!(spec.input_schema["additionalProperties"], false, "{}", spec.name);
            for schema in [Some(&spec.input_schema), spec.output_schema.as_ref()].into_iter().flatten() {
                check(&spec.name, &Value::Object(schema.clone()));
                bytes += serde_json::to_string(schema).unwrap().len();
            }
            bytes += spec.description.len();
        }
        assert!(bytes < 3000 * TOOLS.len(), "the list has grown to {bytes} bytes");
    }

    #[test]
    fn names_follow_the_client_unless_forced() {
        let client = |name: &str| Client { name: name.to_owned(), version: String::new() };
        assert!(spells_with_dots(ToolNames::Auto, &client("codex-mcp-client")));
        assert!(spells_with_dots(ToolNames::Auto, &client("")));
        assert!(!spells_with_dots(ToolNames::Auto, &client("claude-ai")));
        assert!(!spells_with_dots(ToolNames::Auto, &client("GitHub-Copilot-CLI")));
        assert!(spells_with_dots(ToolNames::Dot, &client("claude-ai")));
        assert!(!spells_with_dots(ToolNames::Underscore, &client("codex-mcp-client")));
    }
}
