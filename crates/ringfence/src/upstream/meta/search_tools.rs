//! `search_tools`: finds tools by what they do.

use std::sync::Arc;

use ringfence_client::{clean_text, compact_signature};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{EffectClass, MetaCatalog};
use crate::approval::Granted;
use crate::base::call::{Prepared, ToolOutput};
use crate::base::{Error, Result};
use crate::tools::{PrepareCx, RunCx, Tool, ToolSpec};

pub const NAME: &str = "search_tools";
const DEFAULT_LIMIT: usize = 10;
const MAX_LIMIT: usize = 50;
const MAX_DESCRIPTION_CHARS: usize = 200;
const MAX_SIGNATURE_CHARS: usize = 400;

/// Arguments of `search_tools`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// What you want to do, in your own words.
    query: String,
    /// Only tools of this server.
    #[serde(default)]
    server: Option<String>,
    /// Number of results; default 10, at most 50.
    #[serde(default)]
    limit: Option<usize>,
}

/// Result of `search_tools`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Reply {
    /// Best match first.
    tools: Vec<FoundTool>,
}

/// One tool that was found.
#[derive(Debug, Serialize, JsonSchema)]
struct FoundTool {
    name: String,
    server: String,
    /// Parameters; `?` marks those that may be left out.
    signature: String,
    description: String,
    /// The tool to call it with.
    call_with: &'static str,
}

/// Finds tools of other servers.
pub struct SearchTools {
    spec: ToolSpec,
    catalog: Arc<MetaCatalog>,
}

impl SearchTools {
    pub(super) fn new(catalog: &Arc<MetaCatalog>) -> SearchTools {
        SearchTools {
            spec: ToolSpec::from_types::<Args, Reply>(
                NAME,
                "Search tools",
                "Finds tools of connected MCP servers by what they do. Returns names and compact \
                 signatures; describe_tools returns whole schemas, and `call_with` names the tool \
                 that calls each.",
            ),
            catalog: Arc::clone(catalog),
        }
    }
}

impl Tool for SearchTools {
    type Args = Args;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn parse(&self, arguments: &Map<String, Value>, _: &PrepareCx<'_>) -> Result<Args> {
        let args: Args = self.spec.parse_arguments(arguments)?;
        match args.query.trim().is_empty() {
            false => Ok(args),
            true => Err(Error::invalid_arguments("`query` is empty")
                .with_hint("Say what you want to do, for example \"create an issue\".")),
        }
    }

    async fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        args: Args,
        call: Granted<Prepared>,
    ) -> Result<ToolOutput> {
        call.consume();
        let limit = args.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
        let principal = &cx.session().principal;
        let found = self.catalog.search(&args.query, args.server.as_deref(), principal, limit);
        let tools: Vec<FoundTool> = found
            .into_iter()
            .map(|tool| FoundTool {
                name: tool.spec().name.clone(),
                server: tool.server_id().to_owned(),
                signature: clean_text(&compact_signature(&tool.definition), MAX_SIGNATURE_CHARS),
                description: first_sentence(&tool.spec().description),
                call_with: EffectClass::from_annotations(tool.definition.annotations).caller_name(),
            })
            .collect();
        let mut text: String = tools
            .iter()
            .map(|tool| {
                format!(
                    "{}{} – {} [{}]\n",
                    tool.name, tool.signature, tool.description, tool.call_with
                )
            })
            .collect();
        if text.is_empty() {
            text.push_str("No tool matches. Try other words.");
        }
        Ok(ToolOutput::from_structured(text, json!(Reply { tools })))
    }
}

fn first_sentence(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let sentence = line.split_inclusive(". ").next().unwrap_or_default();
    clean_text(sentence.trim(), MAX_DESCRIPTION_CHARS)
}
