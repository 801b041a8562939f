//! `describe_tools`: whole definitions of a few tools.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{EffectClass, MetaCatalog};
use crate::approval::Granted;
use crate::base::call::{Prepared, ToolOutput};
use crate::base::{Error, Result};
use crate::tools::{PrepareCx, RunCx, Tool, ToolSpec};

pub const NAME: &str = "describe_tools";
const MAX_NAMES: usize = 5;

/// Arguments of `describe_tools`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Names as search_tools returns them; at most 5.
    names: Vec<String>,
}

/// Result of `describe_tools`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Reply {
    tools: Vec<DescribedTool>,
}

/// One tool with its schemas.
#[derive(Debug, Serialize, JsonSchema)]
struct DescribedTool {
    name: String,
    server: String,
    description: String,
    /// JSON Schema of its arguments.
    input_schema: Map<String, Value>,
    /// JSON Schema of its structured result.
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: Option<Map<String, Value>>,
    /// The tool to call it with.
    call_with: &'static str,
}

/// Describes tools of other servers.
pub struct DescribeTools {
    spec: ToolSpec,
    catalog: Arc<MetaCatalog>,
}

impl DescribeTools {
    pub(super) fn new(catalog: &Arc<MetaCatalog>) -> DescribeTools {
        DescribeTools {
            spec: ToolSpec::from_types::<Args, Reply>(
                NAME,
                "Describe tools",
                "Returns the whole descriptions and schemas of tools that search_tools found.",
            ),
            catalog: Arc::clone(catalog),
        }
    }
}

impl Tool for DescribeTools {
    type Args = Args;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn parse(&self, arguments: &Map<String, Value>, _: &PrepareCx<'_>) -> Result<Args> {
        let args: Args = self.spec.parse_arguments(arguments)?;
        if args.names.is_empty() || args.names.len() > MAX_NAMES {
            return Err(Error::invalid_arguments(format!(
                "`names` has {} items",
                args.names.len()
            ))
            .with_hint(format!("Name one to {MAX_NAMES} tools.")));
        }
        for name in &args.names {
            self.catalog.find_tool(name)?;
        }
        Ok(args)
    }

    async fn run(
        self: Arc<Self>,
        _: Arc<RunCx>,
        args: Args,
        call: Granted<Prepared>,
    ) -> Result<ToolOutput> {
        call.consume();
        let mut tools = Vec::new();
        for name in &args.names {
            let tool = self.catalog.find_tool(name)?;
            let spec = tool.spec();
            tools.push(DescribedTool {
                name: spec.name.clone(),
                server: tool.server_id().to_owned(),
                description: spec.description.clone(),
                input_schema: Map::clone(&spec.input_schema),
                output_schema: spec.output_schema.as_deref().cloned(),
                call_with: EffectClass::from_annotations(tool.definition.annotations).caller_name(),
            });
        }
        let reply = json!(Reply { tools });
        Ok(ToolOutput::from_structured(reply.to_string(), reply))
    }
}
