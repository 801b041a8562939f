//! Configuration: read once, resolved into one immutable [`Config`], replaced as a whole on reload.
//!
//! `parse` reads the file as written, `env` captures the environment, `resolve` combines them (a
//! flag takes precedence over the environment, the environment over the file, the file over the
//! default). `resolve/directories.rs` decides where the root and the workspace may be.

mod check;
mod client_home;
mod config_sources;
pub mod env;
mod fault;
mod key_docs;
pub mod link_chain;
pub mod parse;
pub mod resolve;
pub mod schema;
#[cfg(test)]
pub(crate) mod scratch;
pub mod secrets;
mod show;
mod show_upstreams;
pub mod template;
pub mod trusted_files;
pub mod upstreams;
mod values;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use check::{
    ConfigCheck, ConfigFinding, FindingSeverity, check_config, describe_unmatched_patterns,
};
pub use config_sources::{ConfigSource, FileStamps};
pub use env::ProcessEnv;
pub use fault::ConfigError;
pub use parse::config_text::{command_key, upstream_key};
pub use resolve::codex_home::find_rules_dirs;
pub use resolve::command_tool::{BUILT_IN_TOOLS, CommandTool, build_validator};
use resolve::config_path;
pub use resolve::declared_access::DeclaredAccess;
pub use resolve::directories::{open_workspace_for, prepare_root, prepare_root_dir};
pub use resolve::hidden_dirs::is_system_path;
pub use resolve::policy::{PolicyFlags, PolicySettings};
pub use resolve::program::{ProgramError, ProgramSearch, REPLACED_DIRECTORIES};
pub use resolve::sandbox::{FlagEntryCounts, SandboxFlags, SandboxSettings};
pub use resolve::surface::{OverridePolicy, ToolSurface};
pub use resolve::{
    ConfigFlags, SecretBackends, resolve_config, resolve_root, resolve_secret_backends,
};
pub use secrets::{SecretStore, SecretValues};
pub use show::{ConfigListing, ShownKey, show_config};
pub use template::{TemplatePart, ValueTemplate};
pub use trusted_files::TrustCandidate;
pub use upstreams::{UpstreamConfig, UpstreamServer};
pub use values::{
    CommandStdin, EscalationMode, HeuristicsMode, HostRequirement, LogFormat, LogLevel, NameGlob,
    ProfileSetting, RiskyEscalation, SideEffect, ToolNameStyle, ToolSet, UpstreamApproval,
    UpstreamShare,
};

/// The defaults, in the form of a config file.
pub const DEFAULT_CONFIG: &str = include_str!("defaults.toml");

/// Everything the operator configured, resolved.
#[derive(Debug, Clone)]
pub struct Config {
    /// Counts reloads, so that a grant can say under which config it was given.
    pub generation: u64,
    /// Directory for runtime files; nothing is written elsewhere without a request.
    pub root: PathBuf,
    /// The workspace for stdio, or the one configured for all principals. `None` over HTTP means
    /// one below root, per principal or shared.
    pub workspace: Option<PathBuf>,
    /// Over HTTP without a configured workspace, all principals share one.
    pub shared_workspace: bool,
    /// The user's own home directory, with credentials and toolchains. A run has a different one.
    pub home: Option<PathBuf>,
    /// Directory in which Codex keeps its configuration, credentials and threads.
    pub codex_home: Option<PathBuf>,
    /// Paths that variables name as the location of credentials, each with the name of its
    /// variable.
    pub credential_paths: Vec<(&'static str, PathBuf)>,
    /// Directory of Rust's toolchains, which a run may use but not change.
    pub rustup_home: Option<PathBuf>,
    /// Paths inside the workspace that are closed to every tool: the root, if it is there.
    pub closed_paths: Vec<PathBuf>,
    pub surface: ToolSurface,
    /// Settings that a client may override for its session.
    pub override_policy: OverridePolicy,
    /// The operator's commands, in the order of the file.
    pub commands: Arc<[Arc<CommandTool>]>,
    /// Errors in the commands that were dropped.
    pub command_errors: Arc<[ConfigError]>,
    /// Other MCP servers.
    pub upstreams: Arc<UpstreamConfig>,
    /// Errors in the tables `[upstream.<id>]`. A config with any is only checked, never used.
    pub upstream_errors: Arc<[ConfigError]>,
    pub secrets: Arc<SecretValues>,
    /// Where logins to other servers are kept.
    pub login_store: SecretStore,
    /// Files outside the workspace that hold secrets or keys. They are hidden from runs.
    pub private_paths: Vec<PathBuf>,
    pub tools: ToolSet,
    pub tool_names: ToolNameStyle,
    pub approval: ApprovalSettings,
    pub limits: CallLimits,
    /// Audit files whose records are all older are pruned; `None` keeps everything.
    pub audit_retention: Option<Duration>,
    pub browser: BrowserSettings,
    pub log: resolve::log::LogSettings,
    /// The sandbox of commands that have none of their own.
    pub default_sandbox: SandboxSettings,
    pub policy: PolicySettings,
    pub http: HttpSettings,
    pub auth: Option<AuthSettings>,
    /// Hidden option: registers the fixtures of the conformance suite.
    pub conformance_fixtures: bool,
    /// Files with secrets whose directories cannot be hidden as a whole.
    pub exposed_secrets: Vec<PathBuf>,
    /// Files from which the keys for checking tokens were read.
    pub key_files: Vec<PathBuf>,
    /// The config file that was read, if any.
    pub file: Option<PathBuf>,
    /// Every setting as it may be shown, with its origin.
    pub settings: Vec<ResolvedSetting>,
}

impl Config {
    /// Returns whether the operator set this key.
    fn is_explicit(&self, key: &str) -> bool {
        self.settings.iter().any(|row| row.key == key && row.origin.is_explicit())
    }
}

/// Settings for approvals.
#[derive(Debug, Clone)]
pub struct ApprovalSettings {
    pub expiry: Duration,
    /// Questions may be answered with `ringfence approvals`.
    pub allows_terminal: bool,
    pub own_tools: OwnToolsApproval,
}

/// Built-in tools whose calls need approval even if they stay in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnToolsApproval {
    Never,
    Always,
    /// Tools whose name matches one of these patterns.
    Named(Vec<NameGlob>),
}

impl OwnToolsApproval {
    /// Returns whether every call of the tool needs approval. Both spellings of a name mean the
    /// same tool.
    pub fn covers_tool(&self, tool: &str) -> bool {
        match self {
            OwnToolsApproval::Never => false,
            OwnToolsApproval::Always => true,
            OwnToolsApproval::Named(patterns) => {
                patterns.iter().any(|pattern| pattern.matches_tool(tool))
            }
        }
    }
}

/// Limits on calls, outputs and messages.
#[derive(Debug, Clone)]
pub struct CallLimits {
    /// No call runs longer, whatever it requests.
    pub timeout_ceiling: Duration,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Maximum size of one stored output.
    pub output_file_bytes: u64,
    /// Maximum size of one JSON-RPC message.
    pub message_bytes: usize,
    pub audit_rotate_bytes: u64,
}

/// Browser that the browser tools use, and for how long.
#[derive(Debug, Clone)]
pub struct BrowserSettings {
    /// Used instead of the first browser found.
    pub program: Option<PathBuf>,
    /// Directories to search: those of PATH.
    pub search_path: Vec<PathBuf>,
    /// Time after which an unused browser is stopped.
    pub idle_timeout: Duration,
}

/// Settings of the HTTP server.
#[derive(Debug, Clone, Default)]
pub struct HttpSettings {
    /// Address to listen on; `None` means stdio.
    pub listen: Option<SocketAddr>,
    /// `name` or `name:port` allowed in Host, in addition to loopback.
    pub allowed_hosts: Vec<String>,
    pub allowed_origins: Vec<String>,
    /// URL at which clients reach the server through a proxy, without `/mcp` and without a trailing
    /// slash.
    pub public_url: Option<String>,
    pub insecure_no_auth: bool,
}

/// How bearer tokens are checked.
#[derive(Debug, Clone)]
pub struct AuthSettings {
    pub key: AuthKey,
    pub audience: Option<String>,
    pub issuer: Option<String>,
}

/// Key with which tokens are checked.
#[derive(Debug, Clone)]
pub enum AuthKey {
    /// HS256.
    Secret(crate::redact::secret::Secret),
    /// RS256, ES256 or EdDSA, depending on the key: PEM text.
    PublicPem(String),
}

/// A resolved value and its origin. A secret is shown as `set`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedSetting {
    pub key: &'static str,
    pub value: String,
    pub origin: SettingOrigin,
    /// Line in the config file, if the value comes from there.
    pub line: Option<usize>,
}

/// Source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingOrigin {
    Flag(&'static str),
    Env(&'static str),
    File(PathBuf),
    Default,
}

impl SettingOrigin {
    /// Returns whether the operator chose the value; otherwise it is the default.
    pub fn is_explicit(&self) -> bool {
        *self != SettingOrigin::Default
    }
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingOrigin::Flag(name) | SettingOrigin::Env(name) => f.write_str(name),
            SettingOrigin::File(path) => write!(f, "{}", path.display()),
            SettingOrigin::Default => f.write_str("default"),
        }
    }
}
