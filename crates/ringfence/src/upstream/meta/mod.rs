//! Meta tools: they let a model find and call tools that are not on the list, so that hundreds of
//! them cost a model nothing until it needs one.
//!
//! Their texts never change, whatever servers offer, so that lists stay byte-stable. They reach
//! exactly the tools of `meta` bundles. A call through them is a call of that tool: the same
//! arguments are checked, the same question is asked, and trust is for that tool alone.

mod call_tool;
mod describe_tools;
mod search_tools;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use ringfence_client::{SearchHit, SearchableTool, ToolAnnotations, ToolIndex};

use super::tool::UpstreamTool;
use crate::base::suggest::suggest_name;
use crate::base::{Error, Kind, Result};
use crate::session::Principal;
use crate::tools::{DynTool, with_underscores};

/// Names of the meta tools.
pub const NAMES: [&str; 5] = [
    search_tools::NAME,
    describe_tools::NAME,
    "call_tool_read",
    "call_tool_write",
    "call_tool_destructive",
];

/// What a tool may do, by its own annotations. Each kind has a meta tool that calls it, so that a
/// client can treat them differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EffectClass {
    Read,
    Write,
    Destructive,
}

impl EffectClass {
    /// All classes.
    pub const ALL: [EffectClass; 3] =
        [EffectClass::Read, EffectClass::Write, EffectClass::Destructive];

    /// Returns the class of a tool with these annotations.
    pub fn from_annotations(hints: ToolAnnotations) -> EffectClass {
        match (hints.read_only, hints.destructive) {
            (true, _) => EffectClass::Read,
            (false, true) => EffectClass::Destructive,
            (false, false) => EffectClass::Write,
        }
    }

    /// Returns the name of the meta tool that calls tools of this class.
    pub fn caller_name(self) -> &'static str {
        match self {
            EffectClass::Read => "call_tool_read",
            EffectClass::Write => "call_tool_write",
            EffectClass::Destructive => "call_tool_destructive",
        }
    }
}

/// Tools that the meta tools reach.
pub struct MetaCatalog {
    tools: BTreeMap<String, Arc<UpstreamTool>>,
    /// Built with the first search.
    index: OnceLock<ToolIndex>,
}

impl MetaCatalog {
    fn new(tools: &[Arc<UpstreamTool>]) -> MetaCatalog {
        let by_name = tools.iter().map(|tool| (tool.spec().name.clone(), Arc::clone(tool)));
        MetaCatalog { tools: by_name.collect(), index: OnceLock::new() }
    }

    /// Returns the tool with this name, in either spelling.
    fn find_tool(&self, name: &str) -> Result<&Arc<UpstreamTool>> {
        let underscored = with_underscores(name);
        let found = self.tools.get(name).or_else(|| {
            let mut tools = self.tools.iter();
            tools.find(|(known, _)| with_underscores(known) == underscored).map(|(_, tool)| tool)
        });
        found.ok_or_else(|| {
            let known: Vec<&str> = self.tools.keys().map(String::as_str).collect();
            let shown: String = name.chars().take(64).collect();
            let hint = match suggest_name(name, &known) {
                Some(suggestion) => format!("Did you mean `{suggestion}`?"),
                None => "Find its name with search_tools.".to_owned(),
            };
            Error::new(Kind::NotFound, format!("there is no tool `{shown}`"))
                .with_reason("unknown_tool")
                .with_hint(hint)
        })
    }

    /// Returns the tools that fit best, without those that this principal is not to see.
    fn search(
        &self,
        query: &str,
        server: Option<&str>,
        principal: &Principal,
        limit: usize,
    ) -> Vec<&Arc<UpstreamTool>> {
        let index = self.index.get_or_init(|| {
            ToolIndex::new(self.tools.values().map(|tool| SearchableTool {
                server_id: tool.server_id(),
                definition: &tool.definition,
            }))
        });
        let find = |hit: SearchHit| {
            let is_hit = |tool: &&Arc<UpstreamTool>| {
                tool.server_id() == hit.key.server_id && tool.server_tool == hit.key.tool
            };
            self.tools.values().find(is_hit)
        };
        let hits = index.search(query, self.tools.len()).into_iter().filter_map(find);
        hits.filter(|tool| server.is_none_or(|server| tool.server_id() == server))
            .filter(|tool| !tool.is_withheld(principal))
            .take(limit)
            .collect()
    }
}

/// Makes the meta tools for the tools of `meta` bundles.
pub fn build_meta_tools(searchable: &[Arc<UpstreamTool>]) -> Vec<Arc<dyn DynTool>> {
    let catalog = Arc::new(MetaCatalog::new(searchable));
    let mut tools: Vec<Arc<dyn DynTool>> = vec![
        Arc::new(search_tools::SearchTools::new(&catalog)),
        Arc::new(describe_tools::DescribeTools::new(&catalog)),
    ];
    for class in EffectClass::ALL {
        tools.push(Arc::new(call_tool::CallTool::new(class, &catalog)));
    }
    tools
}
