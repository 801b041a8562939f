//! The tools there are, under the names they are called by.

pub mod check;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::base::Error;
use crate::config::{Config, Entry, ToolNames, ToolSet};
use crate::session::Client;
use crate::tools::configured::Configured;
use crate::tools::{LEGACY, TOOLS, Tool, UNLISTED, shell};

/// One immutable set of tools. A reload builds a new one.
pub struct Registry {
    tools: Vec<Arc<dyn Tool>>,
    /// Those at the front are on the list; the others can only be called.
    listed: usize,
    by_name: HashMap<String, usize>,
    /// Of each tool, as lists have them: made once, since a list may be asked for as often as anybody likes.
    schemas: Vec<Schemas>,
    /// Commands of the operator's that cannot be tools, and why.
    pub dropped: Vec<(Arc<Entry>, Error)>,
}

/// The schemas of one tool, to be shared by every list.
pub struct Schemas {
    pub input: Arc<Map<String, Value>>,
    pub outline: Option<Arc<Map<String, Value>>>,
}

impl Registry {
    pub fn new(config: &Config) -> Self {
        let all = TOOLS.iter().map(|make| make(config));
        let is_shell = |tool: &Arc<dyn Tool>| tool.spec().name == shell::NAME;
        // An agent that must see one shell sees that and nothing else of ours; commands of the operator's are beside it.
        // Others that know `shell` may call it all the same, though a second shell on the list would only confuse.
        let is_legacy = |tool: &Arc<dyn Tool>| LEGACY.contains(&tool.spec().name.as_str());
        let (mut tools, unlisted): (Vec<_>, Vec<_>) = match config.tools {
            // Without the surface there is what was there before it, and nothing else.
            _ if !config.surface.enabled => (all.filter(is_legacy).collect(), Vec::new()),
            ToolSet::Shell => (all.filter(is_shell).collect(), Vec::new()),
            ToolSet::Core => all.partition(|tool| !UNLISTED.contains(&tool.spec().name.as_str())),
            ToolSet::All => (all.collect(), Vec::new()),
        };
        let mut dropped = Vec::new();
        for entry in config.entries.iter().filter(|_| config.surface.enabled) {
            match Configured::new(entry, config) {
                Ok(tool) => tools.push(Arc::new(tool)),
                Err(error) => dropped.push((Arc::clone(entry), error)),
            }
        }
        if config.conformance_fixtures && config.surface.enabled {
            tools.extend(crate::tools::fixtures::all());
        }
        let (named, unlisted): (Vec<_>, Vec<_>) =
            unlisted.into_iter().partition(|tool| config.surface.names(&tool.spec().name));
        tools.extend(named);
        tools.retain(|tool| !config.surface.enabled || config.surface.shows(&tool.spec().name));
        let listed = tools.len();
        tools.extend(unlisted.into_iter().filter(|tool| config.surface.shows(&tool.spec().name)));
        let mut by_name = HashMap::new();
        for (at, tool) in tools.iter().enumerate() {
            by_name.insert(tool.spec().name.clone(), at);
            by_name.entry(underscored(&tool.spec().name)).or_insert(at);
        }
        let schemas = tools.iter().map(|tool| {
            let spec = tool.spec();
            let outline = spec.output_schema.clone().map(outline).map(Arc::new);
            Schemas { input: Arc::new(spec.input_schema.clone()), outline }
        });
        let schemas = schemas.collect();
        Registry { tools, listed, by_name, schemas, dropped }
    }

    /// The tool of this name, in either spelling.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.by_name.get(name).map(|at| &self.tools[*at])
    }

    /// The schemas of the tool of this name, in either spelling.
    pub fn schemas(&self, name: &str) -> Option<&Schemas> {
        self.by_name.get(name).map(|at| &self.schemas[*at])
    }

    /// The tools of the list with their schemas, for those who work in this directory.
    pub fn listed(&self, workspace: Option<&Path>) -> impl Iterator<Item = (&Arc<dyn Tool>, &Schemas)> {
        let is_shown = move |tool: &Arc<dyn Tool>| workspace.is_none_or(|workspace| tool.is_shown_in(workspace));
        self.tools().iter().zip(&self.schemas).filter(move |(tool, _)| is_shown(tool))
    }

    /// In the order of the list, which never changes by itself.
    pub fn tools(&self) -> &[Arc<dyn Tool>] {
        &self.tools[..self.listed]
    }
}

/// The outline of a schema that results are checked by: names and types, no words, nothing of what is inside. The whole
/// is in the capabilities, and every byte of a list is paid for by a model.
fn outline(mut schema: Map<String, Value>) -> Map<String, Value> {
    fn strip(schema: &mut Value) {
        let Value::Object(schema) = schema else { return };
        schema.retain(|key, _| key == "type" || key == "items");
        if let Some(items) = schema.get_mut("items") {
            strip(items);
        }
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(strip);
    }
    schema
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
            // That of `shell` is another's, to the letter.
            let strict = spec.input_schema.get("additionalProperties") == Some(&Value::Bool(false));
            assert!(strict || spec.name == shell::NAME, "{}", spec.name);
            for schema in [Some(&spec.input_schema), spec.output_schema.as_ref()].into_iter().flatten() {
                check(&spec.name, &Value::Object(schema.clone()));
                bytes += serde_json::to_string(schema).unwrap().len();
            }
            bytes += spec.description.len();
        }
        assert!(bytes < 3000 * TOOLS.len(), "the list has grown to {bytes} bytes");
    }

    #[test]
    fn each_set_lists_and_answers_to_its_own() {
        let scratch = Scratch::new();
        let flags = Flags { root: Some(scratch.path().join("root")), ..Flags::default() };
        let env = Env::new([("HOME", "/nonexistent")], scratch.dir("project"));
        let config = resolve(&flags, &env).unwrap();
        let registry = |tools: &str| {
            Registry::new(&resolve(&Flags { tools: Some(tools.to_owned()), ..flags.clone() }, &env).unwrap())
        };
        let listed =
            |registry: &Registry| registry.tools().iter().map(|tool| tool.spec().name.clone()).collect::<Vec<_>>();
        let [core, shell, all] = ["core", "shell", "all"].map(registry);
        let names: Vec<String> = TOOLS.iter().map(|make| make(&config).spec().name.clone()).collect();
        let usual: Vec<&String> = names.iter().filter(|name| !UNLISTED.contains(&name.as_str())).collect();
        assert_eq!(listed(&core).iter().collect::<Vec<_>>(), usual);
        for name in ["file.read", "shell.exec", "browser.navigate", "browser.screenshot"] {
            assert!(usual.iter().any(|listed| *listed == name), "{name}");
        }
        for name in UNLISTED {
            assert!(core.get(name).is_some(), "`{name}` can always be called");
        }
        assert_eq!(listed(&shell), ["shell"]);
        assert!(shell.get("shell.exec").is_none() && shell.get("file_read").is_none());
        assert_eq!(listed(&all), names);
    }

    #[test]
    fn without_the_surface_there_is_the_legacy_pair_alone() {
        let scratch = Scratch::new();
        for tools in ["core", "shell", "all"] {
            let flags = Flags {
                root: Some(scratch.path().join("root")),
                tools: Some(tools.to_owned()),
                conformance_fixtures: true,
                ..Flags::default()
            };
            let vars = [("HOME", "/nonexistent"), ("ENABLE_MCP_SERVER_SURFACE", "off")];
            let registry = Registry::new(&resolve(&flags, &Env::new(vars, scratch.dir(tools))).unwrap());
            let listed: Vec<&str> = registry.tools().iter().map(|tool| tool.spec().name.as_str()).collect();
            assert_eq!(listed, LEGACY);
            assert_eq!(registry.by_name.len(), LEGACY.len(), "nothing else can be called");
        }
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
