//! `call_tool_read`, `call_tool_write` and `call_tool_destructive`: call a tool that search found.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{EffectClass, MetaCatalog};
use crate::approval::Granted;
use crate::base::call::{Prepared, ToolOutput};
use crate::base::{Error, Result};
use crate::tools::{DelegatedCall, PrepareCx, RunCx, Tool, ToolHints, ToolSpec};

/// Arguments of the three tools.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Name as search_tools returns it.
    name: String,
    /// Arguments of that tool, by its schema.
    #[serde(default)]
    arguments: Map<String, Value>,
}

/// Calls tools of one class.
pub struct CallTool {
    spec: ToolSpec,
    class: EffectClass,
    catalog: Arc<MetaCatalog>,
}

impl CallTool {
    pub(super) fn new(class: EffectClass, catalog: &Arc<MetaCatalog>) -> CallTool {
        let (title, what) = match class {
            EffectClass::Read => ("Call a reading tool", "only reads"),
            EffectClass::Write => ("Call a writing tool", "changes something but deletes nothing"),
            EffectClass::Destructive => {
                ("Call a destructive tool", "may change or delete something")
            }
        };
        let spec = ToolSpec::from_types::<Args, ()>(
            class.caller_name(),
            title,
            &format!("Calls a tool that search_tools found and that {what}."),
        );
        CallTool {
            spec: ToolSpec {
                hints: ToolHints {
                    read_only: class == EffectClass::Read,
                    destructive: class == EffectClass::Destructive,
                    idempotent: false,
                    open_world: true,
                },
                output_schema: None,
                streaming: true,
                ..spec
            },
            class,
            catalog: Arc::clone(catalog),
        }
    }
}

impl Tool for CallTool {
    type Args = Args;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn delegate_call(&self, arguments: &Map<String, Value>) -> Result<Option<DelegatedCall>> {
        let args: Args = self.spec.parse_arguments(arguments)?;
        let tool = self.catalog.find_tool(&args.name)?;
        let class = EffectClass::from_annotations(tool.definition.annotations);
        if class != self.class {
            return Err(Error::invalid_arguments(format!(
                "`{}` is not a tool for {}",
                tool.spec().name,
                self.spec.name
            ))
            .with_reason("wrong_caller")
            .with_hint(format!("Call it with {}.", class.caller_name())));
        }
        let tool = Arc::clone(tool);
        Ok(Some(DelegatedCall { tool, arguments: args.arguments }))
    }

    fn parse(&self, _: &Map<String, Value>, _: &PrepareCx<'_>) -> Result<Args> {
        Err(Error::internal("the call was not passed on"))
    }

    async fn run(
        self: Arc<Self>,
        _: Arc<RunCx>,
        _: Args,
        _: Granted<Prepared>,
    ) -> Result<ToolOutput> {
        Err(Error::internal("the call was not passed on"))
    }
}
