//! What a tool is. Adding one is a file beside this one and a line in [`TOOLS`]; the list, the capabilities,
//! the documents, the risk and the words of a prompt all come from its [`Spec`].

pub mod arguments;
mod browser;
pub mod code;
pub mod codex;
pub mod configured;
pub mod file;
pub mod fixtures;
pub mod limits;
pub mod run;
pub mod shell;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};
use tokio_util::task::TaskTracker;

use crate::redact::own::Own;
use limits::Limit;

use crate::approval::{AskCx, Gate, Granted, Prompt};
use crate::audit::Approvals;
use crate::base::call::{Output, Prepared, digest};
use crate::base::caller::Caller;
use crate::base::change::Changes;
use crate::base::clock::Deadline;
use crate::base::workspace::Workspace;
use crate::base::{Cancel, Result, TraceId};
use crate::config::Config;
use crate::redact::secret::{is_sensitive, shown_value};
use crate::rulebook::Policy;
use crate::sandbox::env::merge;
use crate::sandbox::{Cell, Ground, Launcher};
use crate::session::{Session, Shape, View};

/// Where a tool reaches: the words of `permission.scope`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Workspace,
    Network,
    Exec,
}

impl Scope {
    pub fn name(self) -> &'static str {
        match self {
            Scope::Workspace => "workspace",
            Scope::Network => "network",
            Scope::Exec => "exec",
        }
    }
}

/// What a client may tell its user about a tool. Honest: a write is destructive even inside the fence.
#[derive(Debug, Clone, Copy)]
pub struct Hints {
    pub read_only: bool,
    pub destructive: bool,
    pub idempotent: bool,
    pub open_world: bool,
}

#[derive(Debug, Clone)]
pub struct Spec {
    /// Dotted; lists for clients that reject dots spell it with underscores.
    pub name: String,
    pub title: String,
    pub description: String,
    pub version: String,
    pub scope: Scope,
    pub hints: Hints,
    /// `filesystem_write`, `network`, `exec`: what it may do to the world.
    pub effects: Vec<&'static str>,
    pub profile: &'static str,
    pub input_schema: Map<String, Value>,
    pub output_schema: Option<Map<String, Value>>,
    /// Whether `tools/list` declares the output schema, which obliges every result to carry `structuredContent`. Clients
    /// then drop images, and Codex shows the model nothing else, so tools that can return an image, and `shell` with
    /// its text to the letter, declare none there: their schema is in the capabilities and in `_meta`.
    pub lists_output_schema: bool,
    pub requires_approval: bool,
    pub streaming: bool,
    pub timeout: Duration,
    /// Why this host cannot run it, when it cannot.
    pub unavailable: Option<String>,
}

impl Spec {
    /// Hash of everything that a human who trusts the tool has been told about it.
    pub fn definition(&self) -> String {
        digest(&json!({
            "name": self.name, "description": self.description, "version": self.version,
            "effects": self.effects, "profile": self.profile, "input": self.input_schema,
            "approval": self.requires_approval,
        }))
    }
}

/// What `prepare` found out about one call, before anything happens.
#[derive(Debug, Default)]
pub struct Plan {
    /// Shown in the prompt and the audit record; the workspace when empty.
    pub cwd: Option<String>,
    /// What a process would get, for the prompt.
    pub env: Vec<(String, String)>,
    /// The time the caller asked for.
    pub timeout: Option<Duration>,
    /// Why a human must be asked for this call, if one must.
    pub asks: Option<String>,
    /// What trust in it is good for, where calls of one tool may do more or less.
    pub extent: Option<String>,
    /// Arguments that are not shown, by their names.
    pub hidden: BTreeSet<String>,
    /// What would be run, for the prompt.
    pub command: Option<String>,
    /// The arguments that `command` shows whole, so that a question does not show them twice.
    pub command_covers: &'static [&'static str],
}

/// What a tool may look at while it prepares. Nothing here can change anything.
pub struct PrepareCx<'a> {
    pub session: &'a Session,
    /// As this call may touch it, which may be less than its session may.
    pub workspace: &'a Workspace,
    /// What the session has chosen for its commands.
    pub shape: &'a Shape,
    pub config: &'a Config,
}

/// What a running call has in its hands.
pub struct RunCx {
    pub trace_id: TraceId,
    pub session: Arc<Session>,
    /// As this call may touch it, which may be less than its session may.
    pub workspace: Arc<Workspace>,
    pub config: Arc<Config>,
    pub ground: Option<Arc<Ground>>,
    pub shape: Arc<Shape>,
    pub policy: Policy,
    pub cancel: Cancel,
    pub deadline: Arc<Deadline>,
    pub caller: Caller,
    pub gate: Arc<Gate>,
    pub changes: Changes,
    /// How much text this client takes before it cuts by itself.
    pub budget: usize,
    pub view: View,
    pub approvals: Approvals,
    pub patience: Option<Duration>,
    /// What gives a call like this one more time, for an error that says it took too long.
    pub timeout_hint: String,
    /// Where work goes that may outlive the call; a server that stops waits for it.
    pub tasks: TaskTracker,
}

impl RunCx {
    /// Returns the secrets of the call's own sandbox that are too short to be redacted everywhere.
    pub fn own(&self) -> Own {
        Own::new(self.ground.as_ref().map(|ground| ground.short_secrets()).unwrap_or_default())
    }

    /// What its commands run in.
    pub fn cell(&self, launcher: &Launcher) -> Result<Arc<Cell>> {
        Cell::of_call(
            &self.session,
            &self.config,
            launcher,
            self.ground.as_deref(),
            &self.workspace,
        )
    }

    /// Asks a human in mid-run about one step of this call. The clock stands still meanwhile.
    pub async fn confirm<T>(&self, prompt: Prompt, subject: T) -> Result<Granted<T>> {
        self.gate.confirm(&self.ask(), prompt, subject).await
    }

    /// The same, for a question whose answer may be kept for the session under this key.
    pub async fn confirm_for_session<T>(
        &self,
        prompt: Prompt,
        key: (String, String),
        subject: T,
    ) -> Result<Granted<T>> {
        self.gate.confirm_for_session(&self.ask(), prompt, key, subject).await
    }

    fn ask(&self) -> AskCx<'_> {
        AskCx {
            view: &self.view,
            caller: &self.caller,
            cancel: &self.cancel,
            deadline: &self.deadline,
            approvals: &self.approvals,
            expiry: self.config.approval.expiry,
            patience: self.patience,
        }
    }
}

pub trait Tool: Send + Sync + 'static {
    fn spec(&self) -> &Spec;

    /// Hash of everything that a human who trusts it relies on.
    fn definition(&self) -> String {
        self.spec().definition()
    }

    /// Where it runs, when it is not where its session's commands do.
    fn ground(&self) -> Option<&Arc<Ground>> {
        None
    }

    /// Whether it is there at all for those who work in this directory.
    fn is_shown_in(&self, _workspace: &Path) -> bool {
        true
    }

    /// Where its calls start and with what, for those who look before they call.
    fn session_defaults(&self, session: &Session, shape: &Shape) -> Value {
        defaults((session, shape), None, Vec::new())
    }

    /// What bounds it, for the documents.
    fn limits(&self) -> Vec<Limit> {
        Vec::new()
    }

    /// Why this host cannot run it now, when it cannot. Some look again each time.
    fn unavailable(&self) -> Option<String> {
        self.spec().unavailable.clone()
    }

    /// Checks the arguments and says what the call would need. Acting comes later, in `run`.
    fn prepare(&self, arguments: &Map<String, Value>, cx: &PrepareCx<'_>) -> Result<Plan>;

    /// Runs the call. The grant is consumed, so it can be used once.
    fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        call: Granted<Prepared>,
    ) -> BoxFuture<'static, Result<Output>>;
}

/// What a call gets that says nothing itself: the session's choice over the tool's own.
fn defaults(
    (session, shape): (&Session, &Shape),
    cwd: Option<&Path>,
    env: Vec<(String, String)>,
) -> Value {
    let below = shape.cwd.as_deref().map(Path::new).or(cwd).unwrap_or(Path::new(""));
    let show = |(name, value): (String, String)| {
        let value = if is_sensitive(&name) { "[set]".to_owned() } else { shown_value(&value) };
        (name, Value::from(value))
    };
    let env: Map<String, Value> = merge(env, shape.env.clone()).into_iter().map(show).collect();
    let cwd: PathBuf = session.workspace.path().join(below).components().collect();
    json!({"cwd": cwd.display().to_string(), "env": env, "overrides": !shape.is_plain()})
}

/// How a tool is made; what it says of itself depends on the operator's word.
pub type Make = fn(&Config) -> Arc<dyn Tool>;

/// Our own tools, in the order of the list.
pub const TOOLS: &[Make] = &[
    |_| Arc::new(file::file_read::FileRead::new()),
    |_| Arc::new(file::file_write::FileWrite::new()),
    |_| Arc::new(file::file_list::FileList::new()),
    |_| Arc::new(file::file_search::FileSearch::new()),
    |_| Arc::new(file::file_replace::FileReplace::new()),
    |config| Arc::new(shell::shell_exec::ShellExec::new(config)),
    |config| Arc::new(shell::shell_session::ShellSession::new(config)),
    |config| Arc::new(code::code_exec::CodeExec::new(config)),
    |config| Arc::new(browser::browser_navigate::BrowserNavigate::new(config)),
    |config| Arc::new(browser::browser_screenshot::BrowserScreenshot::new(config)),
    |config| Arc::new(browser::browser_snapshot::BrowserSnapshot::new(config)),
    |config| Arc::new(browser::browser_act::BrowserAct::new(config)),
    |config| Arc::new(browser::browser_eval::BrowserEval::new(config)),
    |config| Arc::new(browser::browser_logs::BrowserLogs::new(config)),
    |config| Arc::new(browser::browser_tabs::BrowserTabs::new(config)),
    |config| Arc::new(shell::Shell::new(config)),
    |config| Arc::new(codex::Codex::new(config)),
    |config| Arc::new(codex::codex_reply::CodexReply::new(config)),
];

/// Not in the default list, though they can be called: `shell` would be a second shell, those of the browser are of use
/// once a page is open, whose description names them, and an agent has no need of another unless it was told so.
pub const UNLISTED: &[&str] = &[
    shell::NAME,
    "browser.snapshot",
    "browser.act",
    "browser.eval",
    "browser.logs",
    "browser.tabs",
    codex::NAME,
    codex::codex_reply::NAME,
];

/// All there is when the operator has switched the surface off.
pub const LEGACY: &[&str] = &[codex::NAME, codex::codex_reply::NAME];
