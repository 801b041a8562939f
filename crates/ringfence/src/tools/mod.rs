//! The tool interface, and the list of built-in tools.
//!
//! To add a tool, write a module in this folder and a line in [`BUILTIN_TOOLS`]. The tool list, the
//! capabilities, the documentation, the risk and the text of approval prompts are all derived from
//! its [`ToolSpec`].

pub mod arguments;
mod browser;
pub mod code;
pub mod codex;
pub mod configured;
pub mod file;
pub mod fixtures;
mod lazy_schema;
pub mod limit_docs;
pub mod run;
mod session_state;
pub mod shell;
mod tool;

pub use lazy_schema::LazySchema;
use run::background::BackgroundRuns;
pub use session_state::{SessionRef, SessionState};
pub use tool::{CheckedCall, DelegatedCall, DynTool, Tool, ToolOrigin, with_underscores};

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio_util::task::TaskTracker;

use crate::approval::{ApprovalPrompt, Gate, Granted, QuestionContext, TrustKey};
use crate::audit::CallEvents;
use crate::base::call::digest_json;
use crate::base::client_handle::ClientHandle;
use crate::base::clock::Deadline;
use crate::base::list_changes::ListChanges;
use crate::base::workspace::Workspace;
use crate::base::{CancelToken, Result, TraceId};
use crate::config::Config;
use crate::redact::secret::{is_sensitive, redact_url_passwords};
use crate::redact::short_secrets::ShortSecrets;
use crate::rulebook::RulebookCache;
use crate::sandbox::env::merge_env;
use crate::sandbox::{DedicatedSandbox, Launcher, SandboxConfig, SessionSandbox};
use crate::session::{Overrides, Session};

/// Scope of a tool's effects; the values of `permission.scope`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermissionScope {
    Workspace,
    Network,
    Exec,
}

impl PermissionScope {
    /// Returns the name used in `permission.scope`.
    pub fn name(self) -> &'static str {
        match self {
            PermissionScope::Workspace => "workspace",
            PermissionScope::Network => "network",
            PermissionScope::Exec => "exec",
        }
    }
}

/// Hints about a tool that a client may show its user. They must be accurate: a write is
/// destructive even inside the sandbox.
#[derive(Debug, Clone, Copy)]
pub struct ToolHints {
    pub read_only: bool,
    pub destructive: bool,
    pub idempotent: bool,
    pub open_world: bool,
}

/// Static description of a tool: its names, schemas, effects and defaults.
#[derive(Debug, Clone)]
pub struct ToolSpec {
    /// Dotted name; lists for clients that reject dots spell it with underscores.
    pub name: String,
    pub title: String,
    pub description: String,
    pub version: String,
    pub scope: PermissionScope,
    pub hints: ToolHints,
    /// Side effects outside the process: `filesystem_write`, `network`, `exec`.
    pub effects: Vec<&'static str>,
    pub profile: &'static str,
    pub input_schema: LazySchema,
    pub output_schema: Option<LazySchema>,
    /// `tools/list` declares the output schema, which obliges every result to carry
    /// `structuredContent`. Clients then drop images, and Codex shows the model nothing else. So
    /// tools that can return an image, and `shell`, whose text must arrive verbatim, do not declare
    /// one there: their schema is in the capabilities and in `_meta`.
    pub lists_output_schema: bool,
    pub requires_approval: bool,
    pub streaming: bool,
    pub timeout: Duration,
    /// Why this host cannot run it, if it cannot.
    pub unavailable_reason: Option<String>,
}

impl ToolSpec {
    /// Creates the description of a tool with these arguments and this reply, which works in the
    /// workspace, changes nothing and needs no approval. Callers replace what differs.
    pub fn from_types<A: JsonSchema + 'static, R: JsonSchema + 'static>(
        name: &str,
        title: &str,
        description: &str,
    ) -> ToolSpec {
        ToolSpec {
            name: name.to_owned(),
            title: title.to_owned(),
            description: description.to_owned(),
            version: "1.0.0".to_owned(),
            scope: PermissionScope::Workspace,
            hints: ToolHints {
                read_only: true,
                destructive: false,
                idempotent: true,
                open_world: false,
            },
            effects: Vec::new(),
            profile: "default",
            input_schema: LazySchema::new(arguments::input_schema::<A>),
            output_schema: Some(LazySchema::new(arguments::reply_schema::<R>)),
            lists_output_schema: true,
            requires_approval: false,
            streaming: false,
            timeout: Duration::from_secs(30),
            unavailable_reason: None,
        }
    }

    /// Parses arguments into their type, or reports which argument is wrong and what is expected.
    pub fn parse_arguments<T: DeserializeOwned>(
        &self,
        arguments: &Map<String, Value>,
    ) -> Result<T> {
        arguments::parse_arguments(arguments, &self.input_schema)
    }

    /// Returns a hash of everything a human who trusts the tool has been told about it.
    pub fn definition_hash(&self) -> String {
        digest_json(&json!({
            "name": self.name, "description": self.description, "version": self.version,
            "effects": self.effects, "profile": self.profile, "input": self.input_schema,
            "approval": self.requires_approval,
        }))
    }
}

/// Result of preparing one call, before anything runs.
#[derive(Debug, Default)]
pub struct CallPlan {
    /// Working directory, shown in the prompt and the audit record; the workspace if absent.
    pub cwd: Option<String>,
    /// Environment of the process, shown in the prompt.
    pub env: Vec<(String, String)>,
    /// The timeout that the caller asked for.
    pub timeout: Option<Duration>,
    /// Why this call needs approval by a human, if it does.
    pub approval_reason: Option<String>,
    /// Identifies how far trust in this call extends, for tools whose calls differ in what they may
    /// do. Trust given to one value does not cover another.
    pub trust_scope: Option<String>,
    /// Names of arguments that are never shown.
    pub hidden_arguments: BTreeSet<String>,
    /// The command line to run, shown in the prompt.
    pub command: Option<String>,
    /// Server and tool that the call is passed on to, for the audit record.
    pub target: Option<String>,
    /// The arguments that `command` shows in full, so that the prompt does not repeat them.
    pub command_covers: &'static [&'static str],
}

/// Context in which a tool prepares a call. Nothing in it can change any state.
pub struct PrepareCx<'a> {
    pub state: &'a SessionState,
    /// The workspace as this call may access it, which may be less than its session may.
    pub workspace: &'a Workspace,
    /// The overrides that the session has chosen for its commands.
    pub overrides: &'a Overrides,
    pub config: &'a Config,
    /// The sandbox that its commands would run in.
    pub sandbox: &'a SandboxConfig,
}

/// Context of a running call.
pub struct RunCx {
    pub trace_id: TraceId,
    pub session_ref: SessionRef,
    pub settings: CallSettings,
    pub control: CallControl,
    pub services: CallServices,
}

/// What applies to one call, as it was when the call was approved.
pub struct CallSettings {
    pub config: Arc<Config>,
    /// The sandbox that its commands run in.
    pub sandbox: Arc<SandboxConfig>,
    /// The workspace as this call may access it, which may be less than its session may.
    pub workspace: Arc<Workspace>,
    /// The tool's own sandbox, for one that the operator configured.
    pub own_sandbox: Option<Arc<DedicatedSandbox>>,
    pub overrides: Arc<Overrides>,
    /// Bytes of text that this client accepts before it truncates a result.
    pub text_budget: usize,
    /// How to give a call like this one more time, for errors that report a timeout.
    pub timeout_hint: String,
}

/// The ways in which a call is followed, asked and ended.
pub struct CallControl {
    pub client: ClientHandle,
    pub cancel: CancelToken,
    pub deadline: Arc<Deadline>,
    pub call_events: CallEvents,
    pub max_approval_wait: Option<Duration>,
}

/// Parts of the server that all calls share.
pub struct CallServices {
    pub policy: RulebookCache,
    pub gate: Arc<Gate>,
    pub list_changes: ListChanges,
    /// Tracks work that may outlive the call; the server waits for it on shutdown.
    pub tasks: TaskTracker,
}

impl RunCx {
    /// Returns the secrets of the call's own sandbox that are too short to be redacted everywhere.
    pub fn short_secrets(&self) -> ShortSecrets {
        ShortSecrets::new(
            self.settings
                .own_sandbox
                .as_ref()
                .map(|own_sandbox| own_sandbox.short_secrets())
                .unwrap_or_default(),
        )
    }

    /// Returns the session of the call.
    pub fn session(&self) -> &Arc<Session> {
        self.session_ref.session()
    }

    /// Returns the session's commands and shells that run in the background.
    pub fn background_runs(&self) -> &Arc<BackgroundRuns> {
        &self.session_ref.state.background_runs
    }

    /// Returns the sandbox that the commands of this call run in.
    pub fn open_sandbox(&self, launcher: &Launcher) -> Result<Arc<SessionSandbox>> {
        let settings = &self.settings;
        self.session_ref.state.sandboxes.sandbox_for_call(
            &settings.sandbox,
            launcher,
            settings.own_sandbox.as_deref(),
            &settings.workspace,
        )
    }

    /// Asks a human, while the call runs, to approve one step of it. The call's deadline is paused
    /// meanwhile.
    pub async fn confirm_step<T>(&self, prompt: ApprovalPrompt, subject: T) -> Result<Granted<T>> {
        self.services.gate.confirm_once(&self.ask_context(), prompt, subject).await
    }

    /// Like [`RunCx::confirm_step`], for a question whose answer may be remembered for the session
    /// under `trust_key`.
    pub async fn confirm_for_session<T>(
        &self,
        prompt: ApprovalPrompt,
        trust_key: TrustKey,
        subject: T,
    ) -> Result<Granted<T>> {
        self.services
            .gate
            .confirm_for_session(&self.ask_context(), prompt, trust_key, subject)
            .await
    }

    fn ask_context(&self) -> QuestionContext<'_> {
        QuestionContext {
            session: self.session(),
            persistent: self.session_ref.persistent,
            client: &self.control.client,
            cancel: &self.control.cancel,
            deadline: &self.control.deadline,
            call_events: &self.control.call_events,
            expiry: self.settings.config.approval.expiry,
            response_timeout: self.control.max_approval_wait,
        }
    }
}

/// Describes the settings of a call that specifies none itself. The session's overrides take
/// precedence over the tool's own defaults.
fn describe_defaults(
    session: &Session,
    overrides: &Overrides,
    cwd: Option<&Path>,
    env: Vec<(String, String)>,
) -> Value {
    let relative_cwd = overrides.cwd.as_deref().map(Path::new).or(cwd).unwrap_or(Path::new(""));
    let show = |(name, value): (String, String)| {
        let value =
            if is_sensitive(&name) { "[set]".to_owned() } else { redact_url_passwords(&value) };
        (name, Value::from(value))
    };
    let env: Map<String, Value> =
        merge_env(env, overrides.env.clone()).into_iter().map(show).collect();
    let cwd: PathBuf = session.workspace.path().join(relative_cwd).components().collect();
    json!({"cwd": cwd.display().to_string(), "env": env, "overrides": !overrides.is_empty()})
}

/// Constructs a tool; its description depends on the configuration.
pub type ToolConstructor = fn(&Config) -> Arc<dyn DynTool>;

/// The built-in tools, in the order of the list.
pub const BUILTIN_TOOLS: &[ToolConstructor] = &[
    |_| Arc::new(file::read::FileRead::new()),
    |_| Arc::new(file::write::FileWrite::new()),
    |_| Arc::new(file::list::FileList::new()),
    |_| Arc::new(file::search::FileSearch::new()),
    |_| Arc::new(file::replace::FileReplace::new()),
    |config| Arc::new(shell::exec::ShellExec::new(config)),
    |config| Arc::new(shell::session::ShellSession::new(config)),
    |config| Arc::new(code::exec::CodeExec::new(config)),
    |config| Arc::new(browser::navigate::BrowserNavigate::new(config)),
    |config| Arc::new(browser::screenshot::BrowserScreenshot::new(config)),
    |config| Arc::new(browser::snapshot::BrowserSnapshot::new(config)),
    |config| Arc::new(browser::act::BrowserAct::new(config)),
    |config| Arc::new(browser::eval::BrowserEval::new(config)),
    |config| Arc::new(browser::logs::BrowserLogs::new(config)),
    |config| Arc::new(browser::tabs::BrowserTabs::new(config)),
    |config| Arc::new(shell::ShellTool::new(config)),
    |config| Arc::new(codex::CodexTool::new(config)),
    |config| Arc::new(codex::reply::CodexReply::new(config)),
];

/// Tools that can be called but are not in the default list. `shell` would be a second shell. The
/// browser tools are useful only once a page is open, and the description of `browser.navigate`
/// names them. An agent needs another agent only if its user says so.
pub const UNLISTED_TOOLS: &[&str] = &[
    shell::NAME,
    "browser.snapshot",
    "browser.act",
    "browser.eval",
    "browser.logs",
    "browser.tabs",
    codex::NAME,
    codex::reply::NAME,
];

/// The only tools offered when the operator has turned the surface off.
pub const LEGACY_TOOLS: &[&str] = &[codex::NAME, codex::reply::NAME];
