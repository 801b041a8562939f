//! The operator's word: read once, resolved into one immutable value, swapped whole on reload.
//!
//! `raw` is the file as written, `env` the environment, `resolve` puts them together (flag over environment
//! over file over default), `place` says where the root and the workspace may be.

mod check;
pub mod env;
mod fault;
mod files;
pub mod parse;
pub mod resolve;
pub mod schema;
#[cfg(test)]
pub(crate) mod scratch;
pub mod secrets;
mod show;
pub mod trail;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

pub use check::{Finding, Look, Severity, idle_patterns, look};
pub use env::Env;
pub use fault::Fault;
pub use files::{Made, Prints};
pub use parse::read::entry_key;
pub use parse::template::{Part, Template};
pub use resolve::bind::check_bind;
pub use resolve::codex_home::{RulesDirs, rules_dirs};
use resolve::config_path;
pub use resolve::entry::{Effect, Entry, EntryStdin, OURS, validator};
pub use resolve::place::{prepare_root, workspace_for};
pub use resolve::policy::{Escalate, EscalateRisky, Heuristics, Policy, PolicyFlags};
pub use resolve::program::{ProgramFault, ProgramSearch, REPLACED_DIRECTORIES};
pub use resolve::sandbox::{Profile, Sandbox, SandboxFlags};
pub use resolve::seclusion::is_system;
pub use resolve::surface::{Names, Shaping, Surface};
pub use resolve::{Flags, Keeping, resolve, resolve_keeping, resolve_root};
pub use secrets::Secrets;
pub use show::{Needed, Show, Shown, show};

/// The defaults, as the config file that they are.
pub const DEFAULTS: &str = include_str!("defaults.toml");

/// Which of our own tools are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ToolSet {
    /// Those that most agents need; the others can be called all the same
    Core,
    /// `shell` alone, and nothing else can be called
    Shell,
    /// Everything
    All,
}

impl ToolSet {
    pub const ALL: &[ToolSet] = &[ToolSet::Core, ToolSet::Shell, ToolSet::All];

    pub fn name(self) -> &'static str {
        match self {
            ToolSet::Core => "core",
            ToolSet::Shell => "shell",
            ToolSet::All => "all",
        }
    }
}

/// How tool names are spelled in a list. A call is accepted in either style.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ToolNames {
    /// Dotted, except for clients known or likely to reject dots
    Auto,
    /// `file.read`
    Dot,
    /// `file_read`
    Underscore,
}

impl ToolNames {
    pub fn name(self) -> &'static str {
        match self {
            ToolNames::Auto => "auto",
            ToolNames::Dot => "dot",
            ToolNames::Underscore => "underscore",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Config {
    /// Counts reloads, so that a grant can say under which config it was given.
    pub generation: u64,
    /// Where runtime files live; nothing else is written anywhere unasked.
    pub root: PathBuf,
    /// The workspace of stdio, or the one named for everybody; None on the network means one under root, for
    /// each principal or shared.
    pub workspace: Option<PathBuf>,
    /// Without a named workspace, every principal on the network gets the same one.
    pub shared_workspace: bool,
    /// The user's own home directory, where credentials and toolchains are. A run has another.
    pub home: Option<PathBuf>,
    /// Where Codex keeps its configuration, credentials and threads.
    pub codex_home: Option<PathBuf>,
    /// Where variables say that programs keep credentials, each with the name of its variable.
    pub credential_paths: Vec<(&'static str, PathBuf)>,
    /// Where Rust's toolchains are, which a run may use but not change.
    pub rustup_home: Option<PathBuf>,
    /// Inside the workspace and shut to every tool: the root, when it lies there.
    pub closed: Vec<PathBuf>,
    pub surface: Surface,
    /// What a client may set for its session.
    pub shaping: Shaping,
    /// The operator's commands, in the order of the file.
    pub entries: Arc<[Arc<Entry>]>,
    /// What is wrong with the commands that are not among them.
    pub dropped: Arc<[Fault]>,
    pub secrets: Arc<Secrets>,
    /// Files outside the workspace that hold secrets or keys. No run sees them.
    pub private: Vec<PathBuf>,
    pub tools: ToolSet,
    pub tool_names: ToolNames,
    pub approval: Approval,
    pub limits: Limits,
    /// Audit files whose records are all older are pruned; None keeps them all.
    pub audit_keep: Option<Duration>,
    pub browser: Browser,
    pub log: resolve::log::Log,
    pub sandbox: Sandbox,
    pub policy: Policy,
    pub http: Http,
    pub auth: Option<Auth>,
    /// Hidden: registers the fixtures of the conformance suite.
    pub conformance_fixtures: bool,
    /// Secrets in directories that cannot be hidden as a whole.
    pub exposed: Vec<PathBuf>,
    /// What tokens are checked with was read from these.
    pub key_files: Vec<PathBuf>,
    /// The file that was read, if there was one.
    pub file: Option<PathBuf>,
    /// Every setting as it may be shown, and who set it.
    pub settings: Vec<Setting>,
}

impl Config {
    /// Whether somebody chose this one.
    fn names(&self, key: &str) -> bool {
        self.settings.iter().any(|row| row.key == key && row.origin.is_named())
    }
}

#[derive(Debug, Clone)]
pub struct Approval {
    pub expiry: Duration,
    /// Questions may be answered with `ringfence approvals`.
    pub terminal: bool,
    pub own_tools: OwnToolsAsk,
}

/// When a tool of our own asks although the call stays in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnToolsAsk {
    Never,
    Always,
    /// For tools whose name fits one of these.
    Named(Vec<Names>),
}

impl OwnToolsAsk {
    /// Whether every call of the tool asks. Both spellings of a name are the same tool.
    pub fn covers(&self, tool: &str) -> bool {
        match self {
            OwnToolsAsk::Never => false,
            OwnToolsAsk::Always => true,
            OwnToolsAsk::Named(patterns) => patterns.iter().any(|pattern| pattern.fits(tool)),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Limits {
    /// No call runs longer, whatever it asks for.
    pub timeout_ceiling: Duration,
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Of one stored output.
    pub output_file_bytes: u64,
    /// Of one JSON-RPC message.
    pub message_bytes: usize,
    pub audit_rotate_bytes: u64,
}

/// Which browser the browser tools use, and for how long.
#[derive(Debug, Clone)]
pub struct Browser {
    /// Instead of the first one that is found.
    pub program: Option<PathBuf>,
    /// Where one is looked for: the directories of PATH.
    pub path: Vec<PathBuf>,
    /// One that nobody uses for so long is ended.
    pub idle: Duration,
}

#[derive(Debug, Clone, Default)]
pub struct Http {
    /// Where to listen; None is stdio.
    pub listen: Option<SocketAddr>,
    /// Names and `name:port` allowed in Host, beside loopback.
    pub allowed_hosts: Vec<String>,
    pub allowed_origins: Vec<String>,
    /// Where clients reach the server through a proxy, without `/mcp` and without a slash at its end.
    pub public_url: Option<String>,
    pub insecure_no_auth: bool,
}

/// How bearer tokens are checked.
#[derive(Debug, Clone)]
pub struct Auth {
    pub key: AuthKey,
    pub audience: Option<String>,
    pub issuer: Option<String>,
}

#[derive(Debug, Clone)]
pub enum AuthKey {
    /// HS256.
    Secret(crate::redact::secret::Secret),
    /// RS256, ES256 or EdDSA, by the kind of key: PEM text.
    PublicPem(String),
}

/// One resolved value and where it came from. A secret is shown as `set`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    pub key: &'static str,
    pub value: String,
    pub origin: Origin,
    /// In the file, where that said it.
    pub line: Option<usize>,
}

/// Who set a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Flag(&'static str),
    Env(&'static str),
    File(PathBuf),
    Default,
}

impl Origin {
    /// Somebody chose it for this server; it is not what happens by itself.
    pub fn is_named(&self) -> bool {
        *self != Origin::Default
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(name) | Origin::Env(name) => f.write_str(name),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Default => f.write_str("default"),
        }
    }
}
