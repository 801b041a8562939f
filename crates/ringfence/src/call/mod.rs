//! The call pipeline: open the audit record, find the tool, prepare the call, pass the gate, run
//! it, and record how it ended.
//!
//! Every call runs in its own task. The request is attached to it through a [`RunningCall`] and may
//! detach and come back (see [`park`]); the task does the same whether or not anyone is attached.

pub mod overrides;
pub mod park;
mod prepare;
mod refused_calls;
mod reload;
mod run;
mod upstreams;

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use crate::approval::Gate;
use crate::audit::AuditLog;
use crate::base::IgnorePoison;
use crate::base::call::digest_json;
use crate::base::client_handle::ClientCapabilities;
use crate::base::client_sandbox::ClientSandbox;
use crate::base::list_changes::ListChanges;
use crate::base::{Result, TraceId};
use crate::config::Config;
use crate::registry::Registry;
use crate::rulebook::{RuleLocations, RulebookCache};
use crate::sandbox::{SandboxConfig, SessionSandboxes};
use crate::session::Overrides;
use crate::tools::SessionRef;
use crate::upstream::UpstreamPool;

pub use prepare::{TIMEOUT_META, needs_approval};
pub use reload::ConfigReloader;
pub use run::{RunningCall, request_digest};

/// Request to run a tool, independent of any wire format.
pub struct CallRequest {
    pub trace_id: TraceId,
    pub tool: String,
    pub arguments: Map<String, Value>,
    pub session_ref: SessionRef,
    pub client_capabilities: ClientCapabilities,
    /// Sandbox that the client reports for its own commands, if any.
    pub client_sandbox: Option<Arc<ClientSandbox>>,
    /// Overrides sent with this call; they take precedence over those of the session.
    pub overrides: Overrides,
    /// Time limit that the client sets, if any.
    pub timeout: Option<Duration>,
    /// How long the client waits for this particular request, if it says so. `None` on 2026-07-28,
    /// where the request ends before a human is asked.
    pub response_timeout: Option<Duration>,
    pub protocol: String,
    pub client: String,
    pub output_budget: usize,
}

/// Effective config and tools at one moment. A call uses the same state from start to end.
pub struct PipelineState {
    pub config: Arc<Config>,
    /// The sandbox of tools that have none of their own.
    pub sandbox: Arc<SandboxConfig>,
    pub registry: Registry,
    /// How often each tool has changed or disappeared. Trust given before such a change no longer
    /// applies.
    change_counts: BTreeMap<String, u64>,
}

impl PipelineState {
    /// Builds the state for a config, without any changes counted.
    pub fn new(config: Arc<Config>, upstreams: &Arc<UpstreamPool>) -> PipelineState {
        PipelineState {
            registry: Registry::new(&config, upstreams),
            sandbox: Arc::new(SandboxConfig::from_config(&config)),
            config,
            change_counts: BTreeMap::new(),
        }
    }

    /// Continues the change counts of the previous state, counting the tools that differ.
    fn succeeding(mut self, previous: &PipelineState) -> PipelineState {
        let (old_definitions, new_definitions) =
            (reload::tool_definitions(previous), reload::tool_definitions(&self));
        self.change_counts.clone_from(&previous.change_counts);
        for name in old_definitions
            .iter()
            .filter(|(name, definition)| new_definitions.get(*name) != Some(definition))
            .map(|(name, _)| name)
        {
            *self.change_counts.entry(name.clone()).or_default() += 1;
        }
        self
    }

    /// Returns the key that trust in a tool is stored under. It differs after every change of the
    /// tool, so that restoring an earlier definition does not restore trust in it.
    fn trust_key(&self, tool: &str, definition: String) -> String {
        match self.change_counts.get(tool) {
            Some(changes) => digest_json(&json!([definition, changes])),
            None => definition,
        }
    }

    /// Logs which operator commands were not loaded, with the reason, and which patterns match
    /// nothing.
    pub fn log_failed_commands(&self) {
        for command_error in self.config.command_errors.iter() {
            let entry = command_error.tool.as_deref().unwrap_or_default();
            tracing::warn!(
                "tool `{entry}` was not loaded: {}. {}",
                command_error.to_line(),
                command_error.hint
            );
        }
        for warning in crate::config::describe_unmatched_patterns(&self.config) {
            tracing::warn!("{warning}");
        }
        let file =
            self.config.file.as_deref().unwrap_or(std::path::Path::new("config.toml")).display();
        for (entry, error) in &self.registry.failed_commands {
            tracing::warn!(
                "tool `{}` was not loaded: {file}:{}: {}",
                entry.name,
                entry.line,
                error.log_line()
            );
        }
        for problem in &self.registry.upstreams.problems {
            tracing::warn!("{problem}");
        }
    }
}

/// Everything a call needs, shared by all transports.
pub struct Pipeline {
    state: RwLock<Arc<PipelineState>>,
    pub policy: RulebookCache,
    pub gate: Arc<Gate>,
    pub audit: AuditLog,
    pub parked: park::ParkedCalls,
    pub list_changes: ListChanges,
    /// Connections to other servers.
    pub upstreams: Arc<UpstreamPool>,
    /// Notified when the state is replaced.
    state_changed: Notify,
    /// Calls in flight.
    running_calls: TaskTracker,
    /// Source of the state; `None` if the config cannot change.
    reloader: Option<ConfigReloader>,
}

impl Pipeline {
    /// Opens the audit log and builds the first state.
    pub fn new(config: Arc<Config>, reloader: Option<ConfigReloader>) -> Result<Self> {
        let audit = AuditLog::open(&config.root, config.limits.audit_rotate_bytes)?;
        let upstreams = Arc::default();
        Ok(Pipeline {
            policy: RulebookCache::new(RuleLocations::from_config(&config)),
            gate: Arc::new(Gate::new(config.approval.allows_terminal)),
            parked: park::ParkedCalls::new()?,
            list_changes: ListChanges::default(),
            running_calls: TaskTracker::new(),
            state_changed: Notify::new(),
            audit,
            reloader,
            state: RwLock::new(Arc::new(PipelineState::new(config, &upstreams))),
            upstreams,
        })
    }

    /// Releases what a session keeps for operator commands that have changed or no longer exist.
    pub fn release_stale_sandboxes(&self, sandboxes: &SessionSandboxes) {
        let state = self.state();
        sandboxes.release_stale(|name, definition| state.registry.uses_sandbox(name, definition));
    }

    /// Returns the current state.
    pub fn state(&self) -> Arc<PipelineState> {
        Arc::clone(&self.state.read().ignore_poison())
    }
}

impl Pipeline {
    /// Returns the number of calls that have not ended.
    pub fn running_call_count(&self) -> usize {
        self.running_calls.len()
    }

    /// Waits until every call has ended and is on record, for `max_wait` at the longest.
    pub async fn wait_until_idle(&self, max_wait: Duration) {
        self.running_calls.close();
        if tokio::time::timeout(max_wait, self.running_calls.wait()).await.is_err() {
            tracing::error!("{} calls did not end in time", self.running_calls.len());
        }
    }
}
