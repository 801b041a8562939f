//! Registry of the tools that clients can list and call, by either spelling of their names.

pub mod config_check;
pub mod names;
mod output_schema;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

use crate::base::Error;
use crate::config::{CommandTool, Config, ToolSet};
use crate::sandbox::SandboxConfig;
use crate::session::Session;
use crate::tools::configured::ConfiguredTool;
use crate::tools::{BUILTIN_TOOLS, DynTool, LEGACY_TOOLS, ToolOrigin, UNLISTED_TOOLS, shell};

use crate::tools::with_underscores;
use crate::upstream::meta::build_meta_tools;
use crate::upstream::{UpstreamPool, UpstreamTools};

use names::NameRewriter;
pub use names::NameStyle;

/// Immutable set of tools. A reload builds a new one.
pub struct Registry {
    tools: Vec<Arc<dyn DynTool>>,
    /// Number of tools at the front that lists show; the others can only be called.
    listed_count: usize,
    by_name: HashMap<String, usize>,
    /// Schemas of each tool as lists show them. Built once, because clients may request lists at
    /// any rate, and not before the first list.
    schemas: Vec<OnceLock<ToolSchemas>>,
    surface_enabled: bool,
    /// Definition hash of each tool, computed with its first call.
    definition_hashes: Vec<OnceLock<String>>,
    name_rewriter: NameRewriter,
    /// Operator commands that could not become tools, and why.
    pub failed_commands: Vec<(Arc<CommandTool>, Error)>,
    /// Tools of other servers, with those that only meta tools reach.
    pub upstreams: UpstreamTools,
}

/// Schemas of one tool, shared by all lists.
pub struct ToolSchemas {
    /// For clients that get dotted names.
    dotted: ToolTexts,
    /// For clients that get underscores.
    underscored: ToolTexts,
    /// Full schema of its results.
    pub output_schema: Option<Map<String, Value>>,
    pub output_outline: Option<Arc<Map<String, Value>>>,
}

/// Description and input schema of a tool, which may name other tools.
pub struct ToolTexts {
    pub description: String,
    pub input_schema: Arc<Map<String, Value>>,
}

impl ToolSchemas {
    fn new(tool: &dyn DynTool, surface_enabled: bool, name_rewriter: &NameRewriter) -> ToolSchemas {
        let spec = tool.spec();
        let texts_in_style = |style| {
            // Texts of an operator's command or of another server are passed on as written.
            if tool.origin() != ToolOrigin::BuiltIn {
                return ToolTexts {
                    description: spec.description.clone(),
                    input_schema: Arc::new(Map::clone(&spec.input_schema)),
                };
            }
            let mut input = Map::clone(&spec.input_schema);
            name_rewriter.rewrite_schema(style, &mut input);
            ToolTexts {
                description: name_rewriter.rewrite_text(style, &spec.description),
                input_schema: Arc::new(input),
            }
        };
        // What another server declares is passed on as it is.
        if tool.origin() == ToolOrigin::Upstream {
            return ToolSchemas {
                dotted: texts_in_style(NameStyle::Dots),
                underscored: texts_in_style(NameStyle::Underscores),
                output_outline: spec.output_schema.as_deref().cloned().map(Arc::new),
                output_schema: spec.output_schema.as_deref().cloned(),
            };
        }
        // With the surface off, the list matches that of `codex mcp-server` word for word, and
        // errors are plain text.
        let output = spec.output_schema.as_deref().cloned();
        let output = match surface_enabled {
            true => output.map(output_schema::add_error_property),
            false => output,
        };
        ToolSchemas {
            dotted: texts_in_style(NameStyle::Dots),
            underscored: texts_in_style(NameStyle::Underscores),
            output_outline: output.clone().map(output_schema::outline_schema).map(Arc::new),
            output_schema: output,
        }
    }

    /// Returns description and input schema, with other tools named in this style.
    pub fn texts_for(&self, style: NameStyle) -> &ToolTexts {
        match style {
            NameStyle::Dots => &self.dotted,
            NameStyle::Underscores => &self.underscored,
        }
    }
}

impl Registry {
    /// Builds the registry for a config, and collects the operator commands that fail.
    pub fn new(config: &Config, pool: &Arc<UpstreamPool>) -> Self {
        let builtin_tools = BUILTIN_TOOLS.iter().map(|make| make(config));
        let is_shell = |tool: &Arc<dyn DynTool>| tool.spec().name == shell::NAME;
        // An agent that must see exactly one shell gets `shell` and none of our other tools; the
        // operator's commands are still listed. In the default set `shell` can be called by agents
        // that know it, but is not listed, because a second shell would only confuse a model.
        let is_legacy = |tool: &Arc<dyn DynTool>| LEGACY_TOOLS.contains(&tool.spec().name.as_str());
        let (mut tools, unlisted): (Vec<_>, Vec<_>) = match config.tools {
            // With the surface off, only the legacy tools exist.
            _ if !config.surface.enabled => (builtin_tools.filter(is_legacy).collect(), Vec::new()),
            ToolSet::Shell => (builtin_tools.filter(is_shell).collect(), Vec::new()),
            ToolSet::Core => {
                builtin_tools.partition(|tool| !UNLISTED_TOOLS.contains(&tool.spec().name.as_str()))
            }
            ToolSet::All => (builtin_tools.collect(), Vec::new()),
        };
        let mut failed_commands = Vec::new();
        let default_sandbox = SandboxConfig::from_config(config);
        for entry in config.commands.iter().filter(|_| config.surface.enabled) {
            match ConfiguredTool::new(entry, config, &default_sandbox) {
                Ok(tool) => tools.push(Arc::new(tool)),
                Err(error) => failed_commands.push((Arc::clone(entry), error)),
            }
        }
        let upstreams = UpstreamTools::build(config, pool);
        tools.extend(upstreams.direct.iter().map(|tool| Arc::clone(tool) as Arc<dyn DynTool>));
        if config.surface.enabled && config.upstreams.has_meta_bundle() {
            let taken: Vec<String> = tools.iter().map(|tool| tool.spec().name.clone()).collect();
            let meta_tools = build_meta_tools(&upstreams.searchable).into_iter();
            tools.extend(meta_tools.filter(|tool| !taken.contains(&tool.spec().name)));
        }
        if config.conformance_fixtures && config.surface.enabled {
            tools.extend(crate::tools::fixtures::all_fixtures());
        }
        let (named_tools, unlisted): (Vec<_>, Vec<_>) =
            unlisted.into_iter().partition(|tool| config.surface.names_tool(&tool.spec().name));
        tools.extend(named_tools);
        tools.retain(|tool| {
            !config.surface.enabled || config.surface.allows_tool(&tool.spec().name)
        });
        let listed_count = tools.len();
        tools.extend(
            unlisted.into_iter().filter(|tool| config.surface.allows_tool(&tool.spec().name)),
        );
        let mut by_name = HashMap::new();
        for (index, tool) in tools.iter().enumerate() {
            by_name.insert(tool.spec().name.clone(), index);
            by_name.entry(with_underscores(&tool.spec().name)).or_insert(index);
        }
        let own_tools = tools.iter().filter(|tool| tool.origin() == ToolOrigin::BuiltIn);
        let name_rewriter = NameRewriter::new(own_tools.map(|tool| tool.spec().name.clone()));
        let schemas = tools.iter().map(|_| OnceLock::new()).collect();
        let definition_hashes = vec![OnceLock::new(); tools.len()];
        Registry {
            tools,
            listed_count,
            by_name,
            schemas,
            surface_enabled: config.surface.enabled,
            definition_hashes,
            name_rewriter,
            failed_commands,
            upstreams,
        }
    }

    /// Rewrites the names of our tools in one of our texts to this style.
    pub fn rewrite_names(&self, style: NameStyle, text: &str) -> String {
        self.name_rewriter.rewrite_text(style, text)
    }

    /// Returns the tool with this name, in either spelling.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn DynTool>> {
        self.by_name.get(name).map(|index| &self.tools[*index])
    }

    /// Returns the definition hash of the tool with this name, in either spelling: see
    /// [`DynTool::definition_hash`]. A tool does not change while it is in a registry.
    pub fn get_definition_hash(&self, name: &str) -> Option<&str> {
        let index = *self.by_name.get(name)?;
        Some(self.definition_hashes[index].get_or_init(|| self.tools[index].definition_hash()))
    }

    /// Returns the schemas of the tool with this name, in either spelling.
    pub fn get_schemas(&self, name: &str) -> Option<&ToolSchemas> {
        self.by_name.get(name).map(|index| self.schemas_at(*index))
    }

    fn schemas_at(&self, index: usize) -> &ToolSchemas {
        let build =
            || ToolSchemas::new(&*self.tools[index], self.surface_enabled, &self.name_rewriter);
        self.schemas[index].get_or_init(build)
    }

    /// Returns the listed tools with their schemas; with a session, only those that it sees.
    pub fn tools_with_schemas(
        &self,
        session: Option<&Session>,
    ) -> impl Iterator<Item = (&Arc<dyn DynTool>, &ToolSchemas)> {
        let is_seen = move |tool: &dyn DynTool| {
            session.is_none_or(|session| {
                tool.is_offered_in(session.workspace.path())
                    && !tool.is_withheld_from(&session.principal)
            })
        };
        let tools = self.listed_tools().iter().enumerate();
        let tools = tools.filter(move |(_, tool)| is_seen(&***tool));
        tools.map(|(index, tool)| (tool, self.schemas_at(index)))
    }

    /// Returns the listed tools; with a workspace, only those visible in it.
    pub fn visible_tools(
        &self,
        workspace: Option<&Path>,
    ) -> impl Iterator<Item = &Arc<dyn DynTool>> {
        let is_shown = move |tool: &&Arc<dyn DynTool>| {
            workspace.is_none_or(|workspace| tool.is_offered_in(workspace))
        };
        self.listed_tools().iter().filter(is_shown)
    }

    /// Returns whether a dedicated sandbox of this name and definition still belongs to a tool or a
    /// server.
    pub fn uses_sandbox(&self, name: &str, definition: &str) -> bool {
        let mut backends = self.upstreams.backends.values();
        self.get(name).is_some_and(|tool| {
            tool.own_sandbox().is_some() && tool.definition_hash() == definition
        }) || backends
            .any(|backend| backend.sandbox_name() == name && backend.definition == definition)
    }

    /// Returns the listed tools in list order, which changes only with the config.
    pub fn listed_tools(&self) -> &[Arc<dyn DynTool>] {
        &self.tools[..self.listed_count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::scratch::Scratch;
    use crate::config::{ConfigFlags, ProcessEnv, resolve_config};

    /// Clients reject whole lists over schemas that are not flat, and every byte of a list is paid
    /// for by a model.
    #[test]
    fn our_own_schemas_are_flat_and_small() {
        fn check(name: &str, schema: &Value) {
            match schema {
                Value::Object(map) => {
                    for key in ["oneOf", "anyOf", "allOf", "$ref", "$defs"] {
                        assert!(!map.contains_key(key), "{name} has {key}");
                    }
                    assert!(
                        !map.get("type").is_some_and(Value::is_array),
                        "{name} has a type union"
                    );
                    assert!(
                        !map.get("default").is_some_and(Value::is_null),
                        "{name} has a null default"
                    );
                    map.values().for_each(|value| check(name, value));
                }
                Value::Array(items) => items.iter().for_each(|value| check(name, value)),
                _ => {}
            }
        }
        let mut bytes = 0;
        let scratch = Scratch::new();
        let flags =
            ConfigFlags { root: Some(scratch.path().join("root")), ..ConfigFlags::default() };
        let config = resolve_config(
            &flags,
            &ProcessEnv::new([("HOME", "/nonexistent")], scratch.dir("project")),
        )
        .unwrap();
        for tool in BUILTIN_TOOLS.iter().map(|make| make(&config)) {
            let spec = tool.spec();
            assert!(
                spec.name.len() <= 64
                    && spec.name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
            );
            assert_eq!(spec.input_schema["type"], "object");
            // The schema of `shell` is copied verbatim from another server.
            let strict = spec.input_schema.get("additionalProperties") == Some(&Value::Bool(false));
            assert!(strict || spec.name == shell::NAME, "{}", spec.name);
            for schema in
                [Some(&spec.input_schema), spec.output_schema.as_ref()].into_iter().flatten()
            {
                check(&spec.name, &Value::Object(Map::clone(schema)));
                bytes += serde_json::to_string(schema).unwrap().len();
            }
            bytes += spec.description.len();
        }
        assert!(bytes < 3000 * BUILTIN_TOOLS.len(), "the list has grown to {bytes} bytes");
    }

    #[test]
    fn each_set_lists_and_answers_to_its_own() {
        let scratch = Scratch::new();
        let flags =
            ConfigFlags { root: Some(scratch.path().join("root")), ..ConfigFlags::default() };
        let env = ProcessEnv::new([("HOME", "/nonexistent")], scratch.dir("project"));
        let config = resolve_config(&flags, &env).unwrap();
        let registry = |tools: &str| {
            Registry::new(
                &resolve_config(
                    &ConfigFlags { tools: Some(tools.to_owned()), ..flags.clone() },
                    &env,
                )
                .unwrap(),
                &Arc::default(),
            )
        };
        let listed = |registry: &Registry| {
            registry.listed_tools().iter().map(|tool| tool.spec().name.clone()).collect::<Vec<_>>()
        };
        let [core, shell, all] = ["core", "shell", "all"].map(registry);
        let names: Vec<String> =
            BUILTIN_TOOLS.iter().map(|make| make(&config).spec().name.clone()).collect();
        let usual: Vec<&String> =
            names.iter().filter(|name| !UNLISTED_TOOLS.contains(&name.as_str())).collect();
        assert_eq!(listed(&core).iter().collect::<Vec<_>>(), usual);
        for name in ["file.read", "shell.exec", "browser.navigate", "browser.screenshot"] {
            assert!(usual.iter().any(|listed| *listed == name), "{name}");
        }
        for name in UNLISTED_TOOLS {
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
            let flags = ConfigFlags {
                root: Some(scratch.path().join("root")),
                tools: Some(tools.to_owned()),
                conformance_fixtures: true,
                ..ConfigFlags::default()
            };
            let vars = [("HOME", "/nonexistent"), ("ENABLE_MCP_SERVER_SURFACE", "off")];
            let registry = Registry::new(
                &resolve_config(&flags, &ProcessEnv::new(vars, scratch.dir(tools))).unwrap(),
                &Arc::default(),
            );
            let listed: Vec<&str> =
                registry.listed_tools().iter().map(|tool| tool.spec().name.as_str()).collect();
            assert_eq!(listed, LEGACY_TOOLS);
            assert_eq!(registry.by_name.len(), LEGACY_TOOLS.len(), "nothing else can be called");
        }
    }
}
