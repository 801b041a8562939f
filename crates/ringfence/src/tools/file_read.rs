//! placeholder
use std::sync::Arc;
use futures::future::BoxFuture;
use serde_json::{Map, Value};
use super::{Hints, Plan, PrepareCx, RunCx, Scope, Spec, Tool};
use crate::approval::Granted;
use crate::base::call::{Output, Prepared};
use crate::base::Result;

pub struct FileRead { spec: Spec }
impl FileRead {
    pub fn new() -> Self {
        FileRead { spec: Spec { name: "file.read".into(), title: "file.read".into(), description: "file.read".into(), version: "1.0.0".into(), scope: Scope::Workspace,
            hints: Hints { read_only: true, destructive: false, idempotent: true, open_world: false }, effects: vec![], profile: "default",
            input_schema: Map::from_iter([("type".to_owned(), Value::from("object"))]), output_schema: None, can_return_image: false, requires_approval: false, streaming: false,
            timeout: std::time::Duration::from_secs(60), unavailable: None } }
    }
}
impl Tool for FileRead {
    fn spec(&self) -> &Spec { &self.spec }
    fn prepare(&self, _: &Map<String, Value>, _: &PrepareCx<'_>) -> Result<Plan> { Ok(Plan::default()) }
    fn run(self: Arc<Self>, _cx: Arc<RunCx>, _call: Granted<Prepared>) -> BoxFuture<'static, Result<Output>> {
        Box::pin(async { Ok(Output::text("placeholder")) })
    }
}
