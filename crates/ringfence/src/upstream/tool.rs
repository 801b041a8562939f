//! A tool of another server, as one of our tools.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use ringfence_client::{RawJson, ToolCall, ToolDefinition};
use serde_json::{Map, Value, json};

use super::backend::UpstreamBackend;
use super::bridge::{CallFailure, call_server, cancelled_error};
use super::catalog::ServerPins;
use super::definition::{approval_reason, build_spec, find_secret_arguments};
use super::pool::ConnectionLease;
use super::result::{ResultOptions, convert_result};
use crate::approval::Granted;
use crate::base::call::{Prepared, ToolOutput, digest_json};
use crate::base::{Error, Result};
use crate::config::Config;
use crate::sandbox::DedicatedSandbox;
use crate::session::{Overrides, Principal, Session};
use crate::tools::arguments::schema_check::SchemaCheck;
use crate::tools::limit_docs::ToolLimit;
use crate::tools::{CallPlan, PrepareCx, RunCx, Tool, ToolOrigin, ToolSpec};

/// Longer results are converted apart from the thread that serves clients.
const LONG_RESULT_BYTES: usize = 64 << 10;

/// Tool of another server.
pub struct UpstreamTool {
    spec: ToolSpec,
    /// Name on its own server.
    pub server_tool: String,
    pub definition: ToolDefinition,
    backend: Arc<UpstreamBackend>,
    pins: Arc<ServerPins>,
    definition_hash: String,
    approval_reason: Option<String>,
    /// Arguments whose values are not shown.
    hidden_arguments: BTreeSet<String>,
    /// Compiled with the first call. A schema that is none checks nothing; the server will.
    input_check: OnceLock<Option<SchemaCheck>>,
    output_check: OnceLock<Option<SchemaCheck>>,
}

impl UpstreamTool {
    /// Creates the tool from its accepted definition.
    pub fn new(
        name: String,
        backend: &Arc<UpstreamBackend>,
        pins: &Arc<ServerPins>,
        definition: &ToolDefinition,
        version: Option<&str>,
        config: &Config,
    ) -> UpstreamTool {
        let spec = build_spec(name, backend, definition, version, config);
        let definition_hash =
            digest_json(&json!([spec.name, definition.text, backend.server.trust_fingerprint()]));
        let hidden_arguments = find_secret_arguments(&spec.input_schema);
        UpstreamTool {
            spec,
            server_tool: definition.name.clone(),
            approval_reason: approval_reason(backend, definition.annotations),
            definition: definition.clone(),
            backend: Arc::clone(backend),
            pins: Arc::clone(pins),
            definition_hash,
            hidden_arguments,
            input_check: OnceLock::new(),
            output_check: OnceLock::new(),
        }
    }

    /// Returns the id of its server.
    pub fn server_id(&self) -> &str {
        &self.backend.server.id
    }

    /// Returns the arguments if they match the schema.
    pub fn check_arguments(&self, arguments: &Map<String, Value>) -> Result<Map<String, Value>> {
        let schema = &self.spec.input_schema;
        let check = self.input_check.get_or_init(|| self.compile_schema(schema));
        match check {
            Some(check) => check.check_arguments(&self.spec.name, schema, arguments.clone()),
            None => Ok(arguments.clone()),
        }
    }

    fn compile_schema(&self, schema: &Map<String, Value>) -> Option<SchemaCheck> {
        SchemaCheck::for_server(schema)
            .inspect_err(|error| {
                tracing::warn!("a schema of `{}` is not valid: {error}", self.spec.name);
            })
            .ok()
    }

    /// Returns whether its server last offered another definition of it to this principal.
    pub fn is_withheld(&self, principal: &Principal) -> bool {
        self.backend.pool.observations.is_withheld(&self.pins, principal, &self.server_tool)
    }

    /// Returns what a call of the tool needs.
    fn plan_call(&self, principal: &Principal) -> Result<CallPlan> {
        // What is missing must fail the call before the user is asked.
        self.backend.check_ready()?;
        // And no one is asked about a tool that is known to be another one by now. A call that asks
        // no one connects instead, and so notices that a change was taken back.
        if self.approval_reason.is_some() {
            let observations = &self.backend.pool.observations;
            observations.check_tool(&self.pins, principal, &self.server_tool)?;
        }
        let place = self.backend.describe_place();
        Ok(CallPlan {
            approval_reason: self.approval_reason.clone(),
            hidden_arguments: self.hidden_arguments.clone(),
            command: Some(format!(
                "{} on the MCP server {} ({place})",
                self.server_tool,
                self.server_id()
            )),
            target: Some(format!("{}/{}", self.server_id(), self.server_tool)),
            ..CallPlan::default()
        })
    }

    /// Calls the tool on its server.
    async fn call(
        self: &Arc<Self>,
        cx: &Arc<RunCx>,
        arguments: Map<String, Value>,
    ) -> Result<ToolOutput> {
        let backend = &self.backend;
        backend.pool.notice_login(backend, &cx.session().principal).await;
        let lease = backend.pool.lease_connection(backend, cx)?;
        let mut call = ToolCall {
            tool: self.server_tool.clone(),
            arguments,
            timeout: None,
            is_read_only: self.spec.hints.read_only,
            runs_as_task: self.definition.requires_task,
            connection: None,
            is_repeated: false,
        };
        let client = &lease.connection.client;
        call.connection = Some(self.check_connection(cx, &lease).await?);
        let raw = match call_server(cx, &backend.server, client, &call).await {
            Err(CallFailure::ConnectionLost(_)) => {
                call.is_repeated = true;
                call.connection = Some(self.check_connection(cx, &lease).await?);
                call_server(cx, &backend.server, client, &call).await
            }
            answer => answer,
        };
        let raw = raw.map_err(CallFailure::into_error)?;
        let (tool, cx) = (Arc::clone(self), Arc::clone(cx));
        if raw.get().len() < LONG_RESULT_BYTES {
            return tool.convert(&cx, &raw);
        }
        let converting = tokio::task::spawn_blocking(move || tool.convert(&cx, &raw)).await;
        converting.unwrap_or_else(|error| {
            Err(Error::internal("the result cannot be converted").with_source(error))
        })
    }

    fn convert(&self, cx: &RunCx, raw: &RawJson) -> Result<ToolOutput> {
        let output_check = self.spec.output_schema.as_ref().and_then(|schema| {
            self.output_check.get_or_init(|| self.compile_schema(schema)).as_ref()
        });
        let options = ResultOptions {
            server_id: self.server_id(),
            is_trusted: self.backend.is_trusted(),
            text_budget: cx.settings.text_budget,
            outputs: &cx.session().outputs,
            output_check,
        };
        convert_result(raw.get(), &options)
    }
}

impl UpstreamTool {
    /// Returns the number of a connection that offers what was accepted, unless the call is
    /// cancelled meanwhile.
    async fn check_connection(&self, cx: &RunCx, lease: &ConnectionLease) -> Result<u64> {
        tokio::select! {
            checked = lease.check_offer(&self.pins, self, &cx.control.call_events) => checked,
            _ = cx.control.cancel.cancelled() => Err(cancelled_error(&cx.control.cancel)),
        }
    }
}

impl Tool for UpstreamTool {
    type Args = Map<String, Value>;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn origin(&self) -> ToolOrigin {
        ToolOrigin::Upstream
    }

    fn definition_hash(&self) -> String {
        self.definition_hash.clone()
    }

    fn own_sandbox(&self) -> Option<&Arc<DedicatedSandbox>> {
        self.backend.own_sandbox.as_ref()
    }

    fn is_withheld_from(&self, principal: &Principal) -> bool {
        self.is_withheld(principal)
    }

    fn session_defaults(&self, _: &Session, _: &Overrides) -> Value {
        json!({"upstream": self.server_id()})
    }

    fn limits(&self) -> Vec<ToolLimit> {
        vec![ToolLimit::for_time(self.spec.timeout)]
    }

    fn parse(
        &self,
        arguments: &Map<String, Value>,
        _: &PrepareCx<'_>,
    ) -> Result<Map<String, Value>> {
        self.check_arguments(arguments)
    }

    fn prepare(&self, _: &Map<String, Value>, cx: &PrepareCx<'_>) -> Result<CallPlan> {
        self.plan_call(&cx.state.session.principal)
    }

    async fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        args: Map<String, Value>,
        call: Granted<Prepared>,
    ) -> Result<ToolOutput> {
        call.consume();
        self.call(&cx, args).await
    }
}
