//! The two traits of a tool: [`Tool`], which a tool implements with its own argument type, and
//! [`DynTool`], through which the registry and the pipeline use all tools alike.

use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Map, Value};

use super::limit_docs::ToolLimit;
use super::{CallPlan, PrepareCx, RunCx, ToolSpec, describe_defaults};
use crate::approval::Granted;
use crate::base::call::{ParsedArgs, Prepared, ToolOutput};
use crate::base::{Error, Result};
use crate::sandbox::DedicatedSandbox;
use crate::session::{Overrides, Principal, Session};

/// Whose tool it is, which decides how its texts are passed on and when its calls need approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolOrigin {
    /// Built in.
    BuiltIn,
    /// A command of the operator.
    Command,
    /// A tool of another MCP server.
    Upstream,
}

/// Replaces the dots of a name with underscores.
pub fn with_underscores(name: &str) -> String {
    name.replace('.', "_")
}

/// Call that a tool passes on to another tool.
pub struct DelegatedCall {
    pub tool: Arc<dyn DynTool>,
    /// Arguments of that tool.
    pub arguments: Map<String, Value>,
}

/// A tool. Its arguments are parsed and validated once, before anyone is asked; the parsed value is
/// what runs.
pub trait Tool: Send + Sync + 'static {
    /// The arguments of a call, valid and complete.
    type Args: Send + Sync + 'static;

    /// Returns the static description.
    fn spec(&self) -> &ToolSpec;

    /// Returns whose tool it is.
    fn origin(&self) -> ToolOrigin {
        ToolOrigin::BuiltIn
    }

    /// Returns a hash of everything a human who trusts the tool relies on.
    fn definition_hash(&self) -> String {
        self.spec().definition_hash()
    }

    /// Returns the tool that a call is passed on to, for tools that only find others. The call is
    /// then one of that tool in everything: checks, approval, trust, sandbox and record.
    fn delegate_call(&self, _arguments: &Map<String, Value>) -> Result<Option<DelegatedCall>> {
        Ok(None)
    }

    /// Returns the tool's own sandbox, if it does not run in that of the session.
    fn own_sandbox(&self) -> Option<&Arc<DedicatedSandbox>> {
        None
    }

    /// Returns whether the tool is offered to sessions that work in this directory.
    fn is_offered_in(&self, _workspace: &Path) -> bool {
        true
    }

    /// Returns whether lists leave the tool out for this principal, because it is not what was
    /// accepted. A call says so.
    fn is_withheld_from(&self, _principal: &Principal) -> bool {
        false
    }

    /// Returns the working directory and environment that calls start with, for clients that
    /// inspect a tool before they call it.
    fn session_defaults(&self, session: &Session, overrides: &Overrides) -> Value {
        describe_defaults(session, overrides, None, Vec::new())
    }

    /// Returns the tool's limits, for the documentation.
    fn limits(&self) -> Vec<ToolLimit> {
        Vec::new()
    }

    /// Returns why this host cannot run the tool now, if it cannot. Some tools check again on each
    /// call.
    fn unavailable_reason(&self) -> Option<String> {
        self.spec().unavailable_reason.clone()
    }

    /// Parses and validates the arguments.
    fn parse(&self, arguments: &Map<String, Value>, cx: &PrepareCx<'_>) -> Result<Self::Args>;

    /// Returns what the call needs. Must have no side effects; those belong in [`Tool::run`].
    fn prepare(&self, _args: &Self::Args, _cx: &PrepareCx<'_>) -> Result<CallPlan> {
        Ok(CallPlan::default())
    }

    /// Runs the call. Consumes the grant, so that an approval can be used only once.
    fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        args: Self::Args,
        call: Granted<Prepared>,
    ) -> impl Future<Output = Result<ToolOutput>> + Send + 'static;
}

/// A call whose arguments a tool has accepted.
pub struct CheckedCall {
    pub plan: CallPlan,
    pub args: ParsedArgs,
}

/// A tool as the registry and the pipeline see it, whatever its arguments are. Every [`Tool`] is
/// one; nothing else implements it.
pub trait DynTool: Send + Sync + 'static {
    /// See [`Tool::spec`].
    fn spec(&self) -> &ToolSpec;

    /// See [`Tool::origin`].
    fn origin(&self) -> ToolOrigin;

    /// See [`Tool::definition_hash`].
    fn definition_hash(&self) -> String;

    /// See [`Tool::delegate_call`].
    fn delegate_call(&self, arguments: &Map<String, Value>) -> Result<Option<DelegatedCall>>;

    /// See [`Tool::own_sandbox`].
    fn own_sandbox(&self) -> Option<&Arc<DedicatedSandbox>>;

    /// See [`Tool::is_offered_in`].
    fn is_offered_in(&self, workspace: &Path) -> bool;

    /// See [`Tool::is_withheld_from`].
    fn is_withheld_from(&self, principal: &Principal) -> bool;

    /// See [`Tool::session_defaults`].
    fn session_defaults(&self, session: &Session, overrides: &Overrides) -> Value;

    /// See [`Tool::limits`].
    fn limits(&self) -> Vec<ToolLimit>;

    /// See [`Tool::unavailable_reason`].
    fn unavailable_reason(&self) -> Option<String>;

    /// Parses the arguments and plans the call: [`Tool::parse`], then [`Tool::prepare`].
    fn check_call(&self, arguments: &Map<String, Value>, cx: &PrepareCx<'_>)
    -> Result<CheckedCall>;

    /// Runs a call that [`DynTool::check_call`] of the same tool has accepted.
    fn run_call(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        call: Granted<Prepared>,
    ) -> BoxFuture<'static, Result<ToolOutput>>;
}

impl<T: Tool> DynTool for T {
    fn spec(&self) -> &ToolSpec {
        Tool::spec(self)
    }

    fn origin(&self) -> ToolOrigin {
        Tool::origin(self)
    }

    fn definition_hash(&self) -> String {
        Tool::definition_hash(self)
    }

    fn delegate_call(&self, arguments: &Map<String, Value>) -> Result<Option<DelegatedCall>> {
        Tool::delegate_call(self, arguments)
    }

    fn own_sandbox(&self) -> Option<&Arc<DedicatedSandbox>> {
        Tool::own_sandbox(self)
    }

    fn is_offered_in(&self, workspace: &Path) -> bool {
        Tool::is_offered_in(self, workspace)
    }

    fn is_withheld_from(&self, principal: &Principal) -> bool {
        Tool::is_withheld_from(self, principal)
    }

    fn session_defaults(&self, session: &Session, overrides: &Overrides) -> Value {
        Tool::session_defaults(self, session, overrides)
    }

    fn limits(&self) -> Vec<ToolLimit> {
        Tool::limits(self)
    }

    fn unavailable_reason(&self) -> Option<String> {
        Tool::unavailable_reason(self)
    }

    fn check_call(
        &self,
        arguments: &Map<String, Value>,
        cx: &PrepareCx<'_>,
    ) -> Result<CheckedCall> {
        let args = self.parse(arguments, cx)?;
        let plan = self.prepare(&args, cx)?;
        Ok(CheckedCall { plan, args: ParsedArgs::new(args) })
    }

    fn run_call(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        call: Granted<Prepared>,
    ) -> BoxFuture<'static, Result<ToolOutput>> {
        let mut args = None;
        let call = call.map(|mut prepared| {
            args = prepared.args.take::<T::Args>();
            prepared
        });
        Box::pin(async move {
            let args = args.ok_or_else(|| {
                Error::internal("the call was prepared for another tool, or has run already")
            })?;
            self.run(cx, args, call).await
        })
    }
}
