//! `config.toml` as it is written: every key optional, nothing unknown accepted, values checked where they stand.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::entry::{Effect, EntryStdin};
use super::log::{LogFormat, LogLevel};
use super::surface::Names;
use super::{Escalate, Heuristics, Profile, ToolNames, ToolSet};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    #[serde(alias = "ENABLE_MCP_SERVER_SURFACE")]
    pub enable_mcp_server_surface: Option<bool>,
    pub tool_names: Option<ToolNames>,
    pub tools: Option<ToolSet>,
    pub shared_workspace: Option<bool>,
    pub root: Option<PathBuf>,
    pub workspace: Option<PathBuf>,
    pub approval: Approval,
    pub limits: Limits,
    pub browser: Browser,
    pub sandbox: Sandbox,
    pub policy: Policy,
    pub http: Http,
    pub auth: Auth,
    pub surface: Surface,
    pub session: Session,
    pub secrets: Secrets,
    pub log: Log,
}

/// `[surface]`: which tools are there at all, and where they may work.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Surface {
    pub allow: Option<Vec<NamePattern>>,
    pub deny: Option<Vec<NamePattern>>,
    pub cwd: Option<Vec<PathBuf>>,
    pub arguments: Option<Vec<PathBuf>>,
    pub default_timeout_ms: Option<Within<1, 604_800_000>>,
}

/// `[session]`: what a client may set for its own session.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Session {
    pub cwd_override: Option<bool>,
    pub env_overrides: Option<Vec<NamePattern>>,
}

/// `[secrets]`: where the values of `${…}` come from.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Secrets {
    pub env_file: Option<PathBuf>,
    pub keyring: Option<bool>,
}

/// `[log]`: the server's own log.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    pub level: Option<LogLevel>,
    pub format: Option<LogFormat>,
    pub file: Option<PathBuf>,
}

/// `[mcp.<name>]`: one command of the operator's as a tool.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Entry {
    pub command: Option<String>,
    pub args: Option<Vec<String>>,
    pub stdin: Option<EntryStdin>,
    pub cwd: Option<PathBuf>,
    pub env: Option<BTreeMap<String, String>>,
    pub sandbox_profile: Option<Profile>,
    pub allow_network: Option<bool>,
    pub allow_domains: Option<Vec<String>>,
    pub allow_addresses: Option<Vec<String>>,
    pub side_effects: Option<Vec<Effect>>,
    pub requires_approval: Option<bool>,
    pub timeout_ms: Option<Within<1, 604_800_000>>,
    pub streaming: Option<bool>,
    pub description: Option<String>,
    pub display_name: Option<String>,
    pub input_schema: Option<InputSchema>,
    pub secret_args: Option<Vec<String>>,
    pub version: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Approval {
    pub expiry_s: Option<Within<1, 86_400>>,
    pub terminal: Option<bool>,
    pub own_tools: Option<OwnTools>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OwnTools {
    Auto,
    Always,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    pub timeout_ms: Option<Within<1, 604_800_000>>,
    pub grace_ms: Option<Within<0, 60_000>>,
    pub output_file_mb: Option<Within<1, 1_048_576>>,
    pub message_mb: Option<Within<1, 1024>>,
    pub audit_rotate_mb: Option<Within<1, 1_048_576>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Browser {
    pub program: Option<PathBuf>,
    pub idle_s: Option<Within<1, 86_400>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sandbox {
    pub profile: Option<Profile>,
    pub allow_network: Option<bool>,
    pub allow_domains: Option<Vec<String>>,
    pub deny_domains: Option<Vec<String>>,
    pub allow_addresses: Option<Vec<String>>,
    pub writable: Option<Vec<PathBuf>>,
    pub protect: Option<Vec<PathBuf>>,
    pub hide: Option<Vec<PathBuf>>,
    pub memory_mb: Option<Within<16, 1_048_576>>,
    pub processes: Option<Within<8, 1_000_000>>,
    pub open_files: Option<Within<16, 1_048_576>>,
    pub file_mb: Option<Within<1, 16_777_216>>,
    pub cpu_s: Option<Within<1, 604_800>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    pub rules: Option<Vec<PathBuf>>,
    pub escalate: Option<Escalate>,
    pub escalate_as: Option<String>,
    pub escalate_env: Option<Vec<String>>,
    pub heuristics: Option<Heuristics>,
    pub intercept: Option<bool>,
    pub audit_execs: Option<bool>,
    pub wider: Option<Wider>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Wider {
    pub allow_network: Option<bool>,
    pub allow_domains: Option<Vec<String>>,
    pub allow_addresses: Option<Vec<String>>,
    pub writable: Option<Vec<PathBuf>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    pub allowed_hosts: Option<Vec<HostName>>,
    pub allowed_origins: Option<Vec<OriginName>>,
}

/// The secret itself has no key here on purpose: config files are copied, shown and checked in.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    pub enabled: Option<bool>,
    pub jwt_secret_file: Option<PathBuf>,
    pub jwt_public_key: Option<String>,
    pub audience: Option<String>,
    pub issuer: Option<String>,
}

/// A pattern over names of tools or variables: `*`, `?`, `[a-z]`, `{one,two}`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct NamePattern(pub Names);

impl TryFrom<String> for NamePattern {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Names::parse(&text).map(NamePattern).ok_or("a pattern is a name in which `*` and `?` stand for others")
    }
}

/// A JSON Schema: a table, or JSON as text.
#[derive(Debug, Clone, PartialEq)]
pub struct InputSchema(pub Map<String, Value>);

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

/// A number with its bounds, so that a bad one is reported at its place in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Within<const LOW: u64, const HIGH: u64>(pub u64);

impl<'de, const LOW: u64, const HIGH: u64> Deserialize<'de> for Within<LOW, HIGH> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(deserializer)?;
        match u64::try_from(number) {
            Ok(number) if (LOW..=HIGH).contains(&number) => Ok(Within(number)),
            _ => Err(D::Error::custom(format!("{number} is not a number from {LOW} to {HIGH}"))),
        }
    }
}

/// `name` or `name:port`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct HostName(pub String);

impl TryFrom<String> for HostName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
        if text.is_empty() || !text.chars().all(known) {
            return Err("a host is written `name` or `name:port`, without wildcards");
        }
        Ok(HostName(text.to_ascii_lowercase()))
    }
}

/// `scheme://host[:port]`, as browsers send it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct OriginName(pub String);

impl TryFrom<String> for OriginName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let wrong = "an origin is written `scheme://host` or `scheme://host:port`, without path or wildcards";
        let (scheme, host) = text.split_once("://").ok_or(wrong)?;
        let scheme_fits =
            !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
        if !scheme_fits {
            return Err(wrong);
        }
        HostName::try_from(host.to_owned()).map_err(|_| wrong)?;
        Ok(OriginName(text.to_ascii_lowercase()))
    }
}
