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

use super::{Hints, Plan, PrepareCx, RunCx, Scope, Spec, Tool, arguments};
use crate::approval::Granted;
use crate::base::call::{Output, Prepared};
use crate::base::{Error, Kind, Result};

/// One call of a fixture: its context and its arguments.
struct Call {
    cx: Arc<RunCx>,
    prepared: Prepared,
}

impl Call {
    fn text<'a>(&'a self, argument: &str, otherwise: &'a str) -> &'a str {
        self.prepared.arguments.get(argument).and_then(Value::as_str).unwrap_or(otherwise)
    }

    /// Waits for `time`, or fails when the call is cancelled first.
    async fn wait(&self, time: Duration) -> Result<()> {
        tokio::select! {
            () = tokio::time::sleep(time) => Ok(()),
            _ = self.cx.cancel.cancelled() => Err(Error::new(Kind::Cancelled, "the call was cancelled")),
        }
    }
}

type Body = fn(Call) -> BoxFuture<'static, Result<Output>>;

struct Fixture {
    spec: Spec,
    body: Body,
}

impl Tool for Fixture {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn prepare(&self, arguments: &Map<String, Value>, _cx: &PrepareCx<'_>) -> Result<Plan> {
        arguments::parse::<Map<String, Value>>(arguments, &self.spec.input_schema)?;
        Ok(Plan::default())
    }

    fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        call: Granted<Prepared>,
    ) -> BoxFuture<'static, Result<Output>> {
        (self.body)(Call { cx, prepared: call.consume() })
    }
}

/// Builds a fixture. `properties` describes its arguments; those with `"required": true` are
/// required.
fn fixture(name: &str, description: &str, properties: Value, body: Body) -> Arc<dyn Tool> {
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
    with_schema(name, description, schema, body)
}

fn with_schema(
    name: &str,
    description: &str,
    input_schema: Map<String, Value>,
    body: Body,
) -> Arc<dyn Tool> {
    let spec = Spec {
        name: name.to_owned(),
        title: name.replace('_', " "),
        description: description.to_owned(),
        version: "1.0.0".to_owned(),
        scope: Scope::Workspace,
        hints: Hints { read_only: false, destructive: false, idempotent: false, open_world: false },
        effects: Vec::new(),
        profile: "default",
        input_schema,
        output_schema: None,
        lists_output_schema: true,
        requires_approval: false,
        streaming: false,
        timeout: Duration::from_secs(120),
        unavailable: None,
    };
    Arc::new(Fixture { spec, body })
}

/// Returns every fixture.
pub fn all() -> Vec<Arc<dyn Tool>> {
    [plain::tools(), asking::tools(), background::tools()].concat()
}
