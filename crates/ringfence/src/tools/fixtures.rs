//! Tools that the official conformance suite calls by name, and tools for our own tests. They are
//! listed only with `--conformance-fixtures`, and their calls take the same path as those of every
//! other tool.

mod asking;
mod background;
mod plain;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use super::{DynTool, PermissionScope, PrepareCx, RunCx, Tool, ToolHints, ToolSpec};
use crate::approval::Granted;
use crate::base::call::{Prepared, ToolOutput};
use crate::base::{Error, Kind, Result};

/// One call of a fixture: its context and its arguments.
struct FixtureCall {
    cx: Arc<RunCx>,
    arguments: Map<String, Value>,
    prepared: Prepared,
}

impl FixtureCall {
    fn text_argument<'a>(&'a self, argument: &str, default_text: &'a str) -> &'a str {
        self.arguments.get(argument).and_then(Value::as_str).unwrap_or(default_text)
    }

    /// Waits for `duration`, or fails when the call is cancelled first.
    async fn sleep_unless_cancelled(&self, duration: Duration) -> Result<()> {
        tokio::select! {
            () = tokio::time::sleep(duration) => Ok(()),
            _ = self.cx.control.cancel.cancelled() => Err(Error::new(Kind::Cancelled, "the call was cancelled")),
        }
    }
}

type FixtureBody = fn(FixtureCall) -> BoxFuture<'static, Result<ToolOutput>>;

struct FixtureTool {
    spec: ToolSpec,
    body: FixtureBody,
}

impl Tool for FixtureTool {
    type Args = Map<String, Value>;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn parse(
        &self,
        arguments: &Map<String, Value>,
        _: &PrepareCx<'_>,
    ) -> Result<Map<String, Value>> {
        self.spec.parse_arguments(arguments)
    }

    async fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        args: Map<String, Value>,
        call: Granted<Prepared>,
    ) -> Result<ToolOutput> {
        (self.body)(FixtureCall { cx, arguments: args, prepared: call.consume() }).await
    }
}

/// Builds a fixture. `properties` describes its arguments; those with `"required": true` are
/// required.
fn build_fixture(
    name: &str,
    description: &str,
    properties: Value,
    body: FixtureBody,
) -> Arc<dyn DynTool> {
    let mut properties = properties;
    let mut required = Vec::new();
    for (name, property) in properties.as_object_mut().into_iter().flatten() {
        if property.as_object_mut().and_then(|property| property.remove("required")).is_some() {
            required.push(name.clone());
        }
    }
    let mut schema = Map::new();
    schema.insert("type".into(), json!("object"));
    schema.insert("properties".into(), properties);
    if !required.is_empty() {
        schema.insert("required".into(), json!(required));
    }
    build_with_schema(name, description, schema, body)
}

fn build_with_schema(
    name: &str,
    description: &str,
    input_schema: Map<String, Value>,
    body: FixtureBody,
) -> Arc<dyn DynTool> {
    let spec = ToolSpec {
        name: name.to_owned(),
        title: name.replace('_', " "),
        description: description.to_owned(),
        version: "1.0.0".to_owned(),
        scope: PermissionScope::Workspace,
        hints: ToolHints {
            read_only: false,
            destructive: false,
            idempotent: false,
            open_world: false,
        },
        effects: Vec::new(),
        profile: "default",
        input_schema: input_schema.into(),
        output_schema: None,
        lists_output_schema: true,
        requires_approval: false,
        streaming: false,
        timeout: Duration::from_secs(120),
        unavailable_reason: None,
    };
    Arc::new(FixtureTool { spec, body })
}

/// Returns every fixture.
pub fn all_fixtures() -> Vec<Arc<dyn DynTool>> {
    [plain::list_tools(), asking::list_tools(), background::list_tools()].concat()
}
