//! `config.toml` as it is written: every key is optional, unknown keys are errors, and values are
//! checked at their position.
//!
//! Doc comments of keys are user documentation: editors show them, and the tables of docs/config.md
//! are generated from them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::base::clock::parse_duration;
use crate::config::values::{
    CommandStdin, EscalationMode, HeuristicsMode, HostRequirement, LogFormat, LogLevel, NameGlob,
    ProfileSetting, RiskyEscalation, SideEffect, ToolNameStyle, ToolSet,
};

/// The table of the operator's commands.
pub const COMMANDS_TABLE: &str = "mcp";

/// Keys of [`ConfigFile`] that are sections: tables with keys of their own, outer ones first. The
/// schema says so too, but takes longer to build than a server to start.
pub const SECTIONS: &[&str] = &[
    "approval",
    "limits",
    "audit",
    "browser",
    "sandbox",
    "policy",
    "policy.wider",
    "http",
    "auth",
    "surface",
    "session",
    "secrets",
    "log",
];

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConfigFile {
    /// false leaves only the legacy pair of tools, `codex` and `codex-reply`.
    #[serde(alias = "ENABLE_MCP_SERVER_SURFACE")]
    pub enable_mcp_server_surface: Option<bool>,
    /// Spelling of tool names in lists. Calls are accepted in either spelling.
    pub tool_names: Option<ToolNameStyle>,
    /// Built-in tools to list.
    pub tools: Option<ToolSet>,
    /// Over HTTP, one workspace for all principals instead of one each.
    pub shared_workspace: Option<bool>,
    /// Directory for runtime files: audit log, sockets, outputs. Default:
    /// $XDG_STATE_HOME/ringfence.
    pub root: Option<PathBuf>,
    /// Directory in which the tools work. Default: the current directory on stdio, one per
    /// principal over HTTP.
    pub workspace: Option<PathBuf>,
    /// JSON file with other MCP servers, whose tools are offered too. A relative path starts at the
    /// directory of this file. Settings of one server are under `[upstream.<id>]`.
    pub upstreams: Option<PathBuf>,
    /// When calls need approval, who answers, and for how long a question is open.
    pub approval: ApprovalSection,
    /// Limits on calls, outputs and messages.
    pub limits: LimitsSection,
    /// Retention of the audit log.
    pub audit: AuditSection,
    /// Browser that the browser tools use.
    pub browser: BrowserSection,
    /// Access and resource limits of every run.
    pub sandbox: SandboxSection,
    /// Rules files, and how commands that they allow are run.
    pub policy: PolicySection,
    /// Names under which the HTTP server is reached.
    pub http: HttpSection,
    /// Bearer tokens over HTTP. There is no key for the secret itself: config files are copied,
    /// shown and checked in.
    pub auth: AuthSection,
    /// Available tools, and the directories in which commands may work.
    pub surface: SurfaceSection,
    /// Settings that a client may override for its own session.
    pub session: SessionSection,
    /// Sources of the values of `${NAME}` and `${secret:NAME}`.
    pub secrets: SecretsSection,
    /// The server's own log.
    pub log: LogSection,
}

/// `[surface]`: available tools, and the directories in which commands may work.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SurfaceSection {
    /// Patterns over tool names, built-in tools included: only matching tools are available. A tool
    /// that is callable but usually not listed is listed if it is named in full.
    pub allow: Option<Vec<NamePattern>>,
    /// Patterns over tool names, in either spelling: matching tools are not available. Deny takes
    /// precedence over allow.
    pub deny: Option<Vec<NamePattern>>,
    /// Directories in which commands of `[mcp.<name>]` may start; commands with another `cwd` are
    /// not available. Relative paths start at the workspace, "." is the workspace.
    pub cwd: Option<Vec<PathBuf>>,
    /// Directories that must contain every argument with `format = "path"` in its schema. If empty,
    /// such arguments are not restricted.
    pub arguments: Option<Vec<PathBuf>>,
    /// Time limit for commands of `[mcp.<name>]` that set no `timeout_ms`, in milliseconds.
    pub default_timeout_ms: Option<BoundedInt<1, 604_800_000>>,
}

/// `[session]`: settings that a client may override for its own session.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SessionSection {
    /// true lets a client choose where in the workspace its commands start.
    pub cwd_override: Option<bool>,
    /// Patterns over the names of variables that a client may set, each beginning with a literal
    /// character. Names that decide what code runs are never accepted.
    pub env_overrides: Option<Vec<VariablePattern>>,
}

/// `[secrets]`: sources of the values of `${…}`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SecretsSection {
    /// File of `NAME=value` lines in which `${NAME}` is looked up before the environment. It is
    /// read again when it changes.
    pub env_file: Option<PathBuf>,
    /// Look up `${secret:NAME}` in the system keyring if it is not in the store of `ringfence
    /// secret`.
    pub keyring: Option<bool>,
}

/// `[log]`: the server's own log.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogSection {
    /// Lowest severity that is logged.
    pub level: Option<LogLevel>,
    /// Format of log lines.
    pub format: Option<LogFormat>,
    /// File to append to. Without it, the log goes to standard error.
    pub file: Option<PathBuf>,
}

/// `[mcp.<name>]`: one of the operator's commands as a tool.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CommandSection {
    /// Program to run: a name that is looked up on PATH, or a path. A relative path starts at the
    /// directory of this file.
    pub command: Option<String>,
    /// Arguments of the program, never interpreted by a shell. `{name}` is an argument of the call,
    /// `{{` a brace, `${NAME}` and `${secret:NAME}` a secret. An item whose optional argument is
    /// missing is left out.
    pub args: Option<Vec<String>>,
    /// Standard input of the command.
    pub stdin: Option<CommandStdin>,
    /// Working directory. Relative paths start at the workspace, which is the default.
    pub cwd: Option<PathBuf>,
    /// Variables for the command in addition to the usual few. `${NAME}` and `${secret:NAME}` are
    /// secrets.
    pub env: Option<BTreeMap<String, String>>,
    /// Strength of its sandbox. "contained" hides nothing and is accepted only if the profile under
    /// `[sandbox]` is "contained" or "none".
    pub sandbox_profile: Option<ProfileSetting>,
    /// true gives it the host's whole network.
    pub allow_network: Option<bool>,
    /// Host names it may reach: `name` or `*.name`, either with `:port`.
    pub allow_domains: Option<Vec<String>>,
    /// Addresses it may reach, `address:port`, including private ones.
    pub allow_addresses: Option<Vec<String>>,
    /// Side effects of the command. The sandbox prevents those that are not declared.
    pub side_effects: Option<Vec<SideEffect>>,
    /// Ask a human before each call. A command that may write files, use the network or run without
    /// a sandbox needs approval whatever this says.
    pub requires_approval: Option<bool>,
    /// Time limit of one call, in milliseconds. Default: `surface.default_timeout_ms`.
    pub timeout_ms: Option<BoundedInt<1, 604_800_000>>,
    /// Pass its output on while it runs.
    pub streaming: Option<bool>,
    /// Description of the tool, for the model and for the human who approves calls.
    pub description: Option<String>,
    /// Name shown to humans. Default: the tool's name.
    pub display_name: Option<String>,
    /// JSON Schema of the arguments: a table, or JSON as text. Default: no arguments, or any
    /// arguments with `stdin = "json"`.
    pub input_schema: Option<InputSchema>,
    /// Arguments whose values are never shown, in addition to those with `writeOnly` or `format =
    /// "password"` in the schema.
    pub secret_args: Option<Vec<String>>,
    /// Part of what session trust is bound to: change it after a change to the command that is not
    /// visible here.
    pub version: Option<String>,
}

/// `[approval]`: when calls need approval, who answers, and for how long a question is open.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ApprovalSection {
    /// Seconds after which a question without an answer counts as denied.
    pub expiry_s: Option<BoundedInt<1, 86_400>>,
    /// true lets `ringfence approvals` answer. Otherwise, if a client cannot ask its user, the call
    /// is denied.
    pub terminal: Option<bool>,
    /// When calls of built-in tools need approval: `auto`, `always`, or patterns over the names of
    /// tools that always need it, in either spelling.
    pub own_tools: Option<OwnTools>,
}

/// When calls of built-in tools need approval. `auto`: if they would leave the sandbox. `always`:
/// every call. A list: every call of a tool that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnTools {
    Auto,
    Always,
    Named(Vec<NamePattern>),
}

impl JsonSchema for OwnTools {
    fn schema_name() -> Cow<'static, str> {
        "OwnTools".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["string", "array"], "pattern": "^(auto|always)$", "items": {"type": "string"}})
    }
}

impl<'de> Deserialize<'de> for OwnTools {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WordOrList;
        impl<'de> Visitor<'de> for WordOrList {
            type Value = OwnTools;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`auto`, `always` or a list of tool names")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<OwnTools, E> {
                match text {
                    "auto" => Ok(OwnTools::Auto),
                    "always" => Ok(OwnTools::Always),
                    other => Err(E::unknown_variant(other, &["auto", "always"])),
                }
            }

            /// One item at a time, so that an invalid one is reported at its position.
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<OwnTools, A::Error> {
                let mut patterns = Vec::new();
                while let Some(pattern) = items.next_element()? {
                    patterns.push(pattern);
                }
                Ok(OwnTools::Named(patterns))
            }
        }
        deserializer.deserialize_any(WordOrList)
    }
}

/// `[limits]`: limits on calls, outputs and messages.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsSection {
    /// Maximum duration of any call, whatever it or its tool requests, in milliseconds.
    pub timeout_ms: Option<BoundedInt<1, 604_800_000>>,
    /// Time between SIGTERM and SIGKILL, in milliseconds.
    pub grace_ms: Option<BoundedInt<0, 60_000>>,
    /// Maximum size of one stored output, in MiB. A session may store 16 times as much, a principal
    /// 32 times.
    pub output_file_mb: Option<BoundedInt<1, 1_048_576>>,
    /// Maximum size of one JSON-RPC message, in MiB.
    pub message_mb: Option<BoundedInt<1, 1024>>,
    /// Size at which an audit file is closed and the next one started, in MiB.
    pub audit_rotate_mb: Option<BoundedInt<1, 1_048_576>>,
}

/// `[audit]`: retention of the audit log.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AuditSection {
    /// Audit files whose records are all older than this are pruned, when a server starts and then
    /// daily: `90d`, `12w`, at least one day. Without it, everything is kept.
    pub keep: Option<RetentionSpan>,
}

/// Duration of at least one day, and the text in which it was written.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct RetentionSpan {
    pub span: Duration,
    pub text: String,
}

impl JsonSchema for RetentionSpan {
    fn schema_name() -> Cow<'static, str> {
        "KeepSpan".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": "^[0-9]+[smhdw]$"})
    }
}

impl TryFrom<String> for RetentionSpan {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        const DAY: Duration = Duration::from_secs(86_400);
        match parse_duration(&text) {
            // A shorter duration would remove records before anyone could look at them.
            Some(span) if span < DAY => Err("records are kept for at least a day: `1d`, `24h`"),
            Some(span) => Ok(RetentionSpan { span, text }),
            None => Err("a span of time is a whole number and a unit: `90d`, `12w`, `48h`"),
        }
    }
}

/// `[browser]`: the browser that the browser tools use.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BrowserSection {
    /// Browser to use. Without it, the first Chromium on PATH, preferably the headless shell.
    pub program: Option<PathBuf>,
    /// Seconds after which an unused browser is stopped; the next call starts another.
    pub idle_s: Option<BoundedInt<1, 86_400>>,
}

/// `[sandbox]`: access and resource limits of every run.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxSection {
    /// Strength of the sandbox around a run.
    pub profile: Option<ProfileSetting>,
    /// true gives runs the host's whole network. Otherwise they reach only what `allow_domains` and
    /// `allow_addresses` list.
    pub allow_network: Option<bool>,
    /// Host names that runs may reach: `name` or `*.name`, either with `:port`; without a port, 80
    /// and 443.
    pub allow_domains: Option<Vec<String>>,
    /// Host names that are blocked on all ports even if `allow_domains` matches them.
    pub deny_domains: Option<Vec<String>>,
    /// Addresses that runs may reach, `address:port`, including private ones.
    pub allow_addresses: Option<Vec<String>>,
    /// Directories that runs may write to in addition to the workspace.
    pub writable: Option<Vec<PathBuf>>,
    /// Paths that stay read-only inside writable directories. Relative paths start at the
    /// workspace.
    pub protect: Option<Vec<PathBuf>>,
    /// Paths to make writable although they are protected by default: `.vscode`, `.git/hooks`.
    pub unprotect: Option<Vec<PathBuf>>,
    /// Paths that no run and no tool can read. Relative paths start at the workspace.
    pub hide: Option<Vec<PathBuf>>,
    /// Features of the kernel without which no command runs: "landlock3".
    pub require: Option<Vec<HostRequirement>>,
    /// Maximum memory of one run with all its processes, in MiB.
    pub memory_mb: Option<BoundedInt<16, 1_048_576>>,
    /// Maximum number of processes of one run.
    pub processes: Option<BoundedInt<8, 1_000_000>>,
    /// Maximum number of open files of one process.
    pub open_files: Option<BoundedInt<16, 1_048_576>>,
    /// Maximum size of a file that a process writes, in MiB.
    pub file_mb: Option<BoundedInt<1, 16_777_216>>,
    /// Maximum CPU time of one process, in seconds.
    pub cpu_s: Option<BoundedInt<1, 604_800>>,
}

/// `[policy]`: rules files, and how commands that they allow are run.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PolicySection {
    /// Rules files in addition to those in $CODEX_HOME/rules.
    pub rules: Option<Vec<PathBuf>>,
    /// Where a command that a rule allows is run. "outside" is the default with `tools = "shell"`.
    pub escalate: Option<EscalationMode>,
    /// Meaning of an `allow` for a command with more words than the rule, unless the program is
    /// known to be harmless. "ask" asks whether to run it outside or inside, and runs it inside if
    /// no one can be asked.
    pub escalate_risky: Option<RiskyEscalation>,
    /// User that commands outside the sandbox run as. Required if the server runs as root.
    pub escalate_as: Option<String>,
    /// Variables that a command keeps when it leaves the sandbox.
    pub escalate_env: Option<Vec<String>>,
    /// Questions about known destructive commands that no rule covers.
    pub heuristics: Option<HeuristicsMode>,
    /// false turns exec interception off, for hosts that do not support it; then no rules are
    /// accepted.
    pub intercept: Option<bool>,
    /// true records every exec in the audit log, not only those that a rule decided.
    pub audit_execs: Option<bool>,
    /// What `escalate = "wider"` allows in addition to the sandbox.
    pub wider: Option<WiderSection>,
}

/// `[policy.wider]`: what `escalate = "wider"` allows in addition to the sandbox.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WiderSection {
    /// true gives the command the host's whole network.
    pub allow_network: Option<bool>,
    /// Host names in addition to those of the sandbox.
    pub allow_domains: Option<Vec<String>>,
    /// Addresses in addition to those of the sandbox.
    pub allow_addresses: Option<Vec<String>>,
    /// Directories in addition to those of the sandbox.
    pub writable: Option<Vec<PathBuf>>,
}

/// `[http]`: names under which the HTTP server is reached.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HttpSection {
    /// `name` or `name:port` accepted in Host, in addition to the loopback names.
    pub allowed_hosts: Option<Vec<HostName>>,
    /// `scheme://host` or `scheme://host:port` accepted in Origin, in addition to the loopback
    /// names.
    pub allowed_origins: Option<Vec<OriginName>>,
    /// URL at which clients reach this server through a proxy, without `/mcp`: for OAuth metadata
    /// and challenges. Its host is accepted in Host, its origin in Origin.
    pub public_url: Option<PublicUrl>,
}

/// `[auth]`: bearer tokens over HTTP. There is deliberately no key for the secret itself: config
/// files are copied, shown and checked in.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AuthSection {
    /// Require bearer tokens over HTTP.
    pub enabled: Option<bool>,
    /// File that holds the secret of HS256 tokens, if MCP_AUTH_JWT_SECRET is not set.
    pub jwt_secret_file: Option<PathBuf>,
    /// Key of RS256, ES256 or EdDSA tokens: PEM text or a file.
    pub jwt_public_key: Option<String>,
    /// Audience that the `aud` of a token must name.
    pub audience: Option<String>,
    /// Issuer that the `iss` of a token must name.
    pub issuer: Option<String>,
}

/// Pattern over names of tools or variables: `*`, `?`, `[a-z]`, `{one,two}`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct NamePattern(pub NameGlob);

impl TryFrom<String> for NamePattern {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        NameGlob::parse(&text)
            .map(NamePattern)
            .ok_or("a pattern is a name, in which `*` and `?` are wildcards")
    }
}

/// Pattern over names of variables that begins with a literal character.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct VariablePattern(pub NameGlob);

impl TryFrom<String> for VariablePattern {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let starts_valid = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let pattern = NameGlob::parse(&text).filter(|_| starts_valid);
        pattern
            .map(VariablePattern)
            .ok_or("give the full name of a variable, or its first letters and `*`")
    }
}

/// JSON Schema: a table, or JSON as text.
#[derive(Debug, Clone, PartialEq)]
pub struct InputSchema(pub Map<String, Value>);

impl JsonSchema for InputSchema {
    fn schema_name() -> Cow<'static, str> {
        "InputSchema".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["object", "string"]})
    }
}

impl<'de> Deserialize<'de> for InputSchema {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = match Value::deserialize(deserializer)? {
            Value::String(text) => serde_json::from_str(&text)
                .map_err(|error| D::Error::custom(format!("the schema is not JSON: {error}")))?,
            other => other,
        };
        match value {
            Value::Object(map) => Ok(InputSchema(map)),
            _ => Err(D::Error::custom("a schema is a table, or a JSON object as text")),
        }
    }
}

/// Number with bounds, so that an invalid one is reported at its position in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoundedInt<const LOW: u64, const HIGH: u64>(pub u64);

impl<const LOW: u64, const HIGH: u64> JsonSchema for BoundedInt<LOW, HIGH> {
    fn schema_name() -> Cow<'static, str> {
        format!("From{LOW}To{HIGH}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "minimum": LOW, "maximum": HIGH})
    }
}

impl<'de, const LOW: u64, const HIGH: u64> Deserialize<'de> for BoundedInt<LOW, HIGH> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(deserializer)?;
        match u64::try_from(number) {
            Ok(number) if (LOW..=HIGH).contains(&number) => Ok(BoundedInt(number)),
            _ => Err(D::Error::custom(format!("{number} is not a number from {LOW} to {HIGH}"))),
        }
    }
}

/// `name` or `name:port`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct HostName(pub String);

impl TryFrom<String> for HostName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let is_allowed =
            |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
        if text.is_empty() || !text.chars().all(is_allowed) {
            return Err("a host is written `name` or `name:port`, without wildcards");
        }
        Ok(HostName(text.to_ascii_lowercase()))
    }
}

/// `https://host[:port][/path]`, without a trailing slash.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct PublicUrl(pub String);

impl TryFrom<String> for PublicUrl {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let message =
            "a public URL is written `https://host`, `https://host:port` or `https://host/path`";
        let (scheme, rest) = text.split_once("://").ok_or(message)?;
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = HostName::try_from(host.to_owned()).map_err(|_| message)?.0;
        let scheme = Some(scheme.to_ascii_lowercase())
            .filter(|scheme| ["http", "https"].contains(&scheme.as_str()));
        let is_plain =
            |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.' | '~');
        // The full address of the endpoint is accepted, too.
        let path = path.trim_end_matches('/');
        let path = path.strip_suffix("/mcp").unwrap_or(path);
        match scheme.filter(|_| path.chars().all(is_plain)) {
            Some(scheme) => Ok(PublicUrl(format!("{scheme}://{host}{path}"))),
            None => Err(message),
        }
    }
}

/// `scheme://host[:port]`, as browsers send it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct OriginName(pub String);

impl TryFrom<String> for OriginName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let message = "an origin is written `scheme://host` or `scheme://host:port`, without path or wildcards";
        let (scheme, host) = text.split_once("://").ok_or(message)?;
        let scheme_fits = !scheme.is_empty()
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
        if !scheme_fits {
            return Err(message);
        }
        HostName::try_from(host.to_owned()).map_err(|_| message)?;
        Ok(OriginName(text.to_ascii_lowercase()))
    }
}
