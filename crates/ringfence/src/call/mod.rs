//! The pipeline of a call: open the record, find the tool, prepare, pass the gate, run, record how it ended.
//!
//! A call runs as a task of its own. Whoever made the request is attached to it through [`Run`] and may let go
//! and come back (see [`park`]); what the task does never depends on who is listening.

pub mod park;
mod prepare;
mod refused;
mod reload;
mod run;
pub mod shape;
mod watch;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio_util::task::TaskTracker;

use crate::approval::Gate;
use crate::audit::Audit;
use crate::base::call::digest;
use crate::base::caller::Abilities;
use crate::base::change::Changes;
use crate::base::narrowing::Narrowing;
use crate::base::{Result, TraceId};
use crate::config::Config;
use crate::registry::Registry;
use crate::rulebook::{Places, Policy};
use crate::sandbox::Ground;
use crate::session::{Session, Shape, View};

pub use prepare::{TIMEOUT_META, asks};
pub use reload::Reload;
pub use run::{Run, request_digest};

/// One request to run a tool, free of any wire format.
pub struct CallRequest {
    pub trace_id: TraceId,
    pub tool: String,
    pub arguments: Map<String, Value>,
    pub view: View,
    pub abilities: Abilities,
    /// What the client's own sandbox allows, where it says so.
    pub narrowing: Option<Arc<Narrowing>>,
    /// What it chooses for itself, over what its session has chosen.
    pub shape: Shape,
    /// The time the client gives us, where it says so.
    pub timeout: Option<Duration>,
    /// How long it waits for this very request, which on 2026-07-28 ends before a human is asked.
    pub patience: Option<Duration>,
    pub protocol: String,
    pub client: String,
    pub budget: usize,
}

/// What an operator's files come to, at one moment. A call takes one and keeps it to its end.
pub struct State {
    pub config: Arc<Config>,
    pub registry: Registry,
    /// How often each tool has changed or gone. What was trusted before it did is not trusted again.
    changes: BTreeMap<String, u64>,
}

impl State {
    pub fn new(config: Arc<Config>) -> State {
        State { registry: Registry::new(&config), config, changes: BTreeMap::new() }
    }

    /// As what comes after this one.
    fn after(mut self, before: &State) -> State {
        let (was, is) = (reload::definitions(before), reload::definitions(&self));
        self.changes.clone_from(&before.changes);
        for name in
            was.iter().filter(|(name, made)| is.get(*name) != Some(made)).map(|(name, _)| name)
        {
            *self.changes.entry(name.clone()).or_default() += 1;
        }
        self
    }

    /// What trust in a tool is given to.
    fn marked(&self, tool: &str, definition: String) -> String {
        match self.changes.get(tool) {
            Some(changes) => digest(&json!([definition, changes])),
            None => definition,
        }
    }

    /// Tells which commands of the operator's are not there, and why.
    pub fn log_dropped(&self) {
        for fault in self.config.dropped.iter() {
            let entry = fault.entry.as_deref().unwrap_or_default();
            tracing::warn!("the tool `{entry}` is not there: {}. {}", fault.line(), fault.hint);
        }
        for said in crate::config::idle_patterns(&self.config) {
            tracing::warn!("{said}");
        }
        let file =
            self.config.file.as_deref().unwrap_or(std::path::Path::new("config.toml")).display();
        for (entry, error) in &self.registry.dropped {
            tracing::warn!(
                "the tool `{}` is not there: {file}:{}: {}",
                entry.name,
                entry.line,
                error.log_line()
            );
        }
    }
}

/// Everything a call needs, shared by all transports.
pub struct Pipeline {
    state: RwLock<Arc<State>>,
    pub policy: Policy,
    pub gate: Arc<Gate>,
    pub audit: Audit,
    pub parked: park::Parked,
    pub changes: Changes,
    /// The calls in flight.
    runs: TaskTracker,
    /// Where the state comes from, when it may change.
    reload: Option<Reload>,
}

impl Pipeline {
    pub fn new(config: Arc<Config>, reload: Option<Reload>) -> Result<Self> {
        let audit = Audit::open(&config.root, config.limits.audit_rotate_bytes)?;
        Ok(Pipeline {
            policy: Policy::new(Places::of_config(&config)),
            gate: Arc::new(Gate::new(config.approval.terminal)),
            parked: park::Parked::new()?,
            changes: Changes::default(),
            runs: TaskTracker::new(),
            audit,
            reload,
            state: RwLock::new(Arc::new(State::new(config))),
        })
    }

    /// Lets go of what a session keeps for commands of the operator's that are not there any more.
    pub fn tidy(&self, session: &Session) {
        let state = self.state();
        let is_there = |name: &str, definition: &str| {
            state
                .registry
                .get(name)
                .is_some_and(|tool| tool.ground().is_some() && tool.definition() == definition)
        };
        if let Err(error) = Ground::tidy(session, is_there) {
            tracing::warn!("fences of former tools are still there: {}", error.log_line());
        }
    }

    /// What holds now.
    pub fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Pipeline {
    /// Waits until every call has ended and is on record, but not for ever.
    pub async fn idle(&self, at_most: Duration) {
        self.runs.close();
        if tokio::time::timeout(at_most, self.runs.wait()).await.is_err() {
            tracing::error!("{} calls did not end in time", self.runs.len());
        }
    }
}
