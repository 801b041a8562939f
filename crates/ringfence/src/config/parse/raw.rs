//! `config.toml` as it is written: every key optional, nothing unknown accepted, values checked where they stand.
//!
//! What is said of a key here is what editors and docs/configuration.md say of it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::base::clock::parse_span;
use crate::config::resolve::entry::{Effect, EntryStdin};
use crate::config::resolve::log::{LogFormat, LogLevel};
use crate::config::resolve::surface::Names;
use crate::config::{Escalate, EscalateRisky, Heuristics, Profile, ToolNames, ToolSet};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    /// false leaves only the legacy pair of tools, `codex` and `codex-reply`.
    #[serde(alias = "ENABLE_MCP_SERVER_SURFACE")]
    pub enable_mcp_server_surface: Option<bool>,
    /// How tool names are spelled in a list. A call is accepted in either spelling.
    pub tool_names: Option<ToolNames>,
    /// Which of our own tools are listed.
    pub tools: Option<ToolSet>,
    /// Over HTTP, one workspace for all principals instead of one each.
    pub shared_workspace: Option<bool>,
    /// Where runtime files live: audit log, sockets, outputs. Default: $XDG_STATE_HOME/ringfence.
    pub root: Option<PathBuf>,
    /// The directory the tools work in. Default: the current directory on stdio, one for each principal over HTTP.
    pub workspace: Option<PathBuf>,
    /// Who is asked, and for how long.
    pub approval: Approval,
    /// How much and how long.
    pub limits: Limits,
    /// How long the audit log is kept.
    pub audit: AuditSection,
    /// The browser of the browser tools.
    pub browser: Browser,
    /// What every run may touch and use.
    pub sandbox: Sandbox,
    /// Which rules hold, and what becomes of what they allow.
    pub policy: Policy,
    /// Names the server answers to over HTTP.
    pub http: Http,
    /// Bearer tokens over HTTP. The secret itself has no key here: config files are copied, shown and checked in.
    pub auth: Auth,
    /// Which tools are there at all, and where they may work.
    pub surface: Surface,
    /// What a client may set for its own session.
    pub session: Session,
    /// Where the values of `${NAME}` and `${secret:NAME}` come from.
    pub secrets: Secrets,
    /// The server's own log.
    pub log: Log,
}

/// `[surface]`: which tools are there at all, and where they may work.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Surface {
    /// Patterns over the names of tools, ours too: only those that fit one are there. A tool that is usually only
    /// callable is listed when it is named in full.
    pub allow: Option<Vec<NamePattern>>,
    /// Patterns over the names of tools, in either spelling, that are not there. Deny wins over allow.
    pub deny: Option<Vec<NamePattern>>,
    /// Directories that commands of `[mcp.<name>]` may start in; those whose `cwd` lies elsewhere are not there.
    /// Relative ones lie in the workspace, "." is the workspace.
    pub cwd: Option<Vec<PathBuf>>,
    /// Directories that arguments with `format = "path"` in their schema must lie in. With none they may be
    /// anything.
    pub arguments: Option<Vec<PathBuf>>,
    /// How long a command of `[mcp.<name>]` may run that names no `timeout_ms`, in milliseconds.
    pub default_timeout_ms: Option<Within<1, 604_800_000>>,
}

/// `[session]`: what a client may set for its own session.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Session {
    /// true lets a client choose where in the workspace its commands start.
    pub cwd_override: Option<bool>,
    /// Patterns over the names of variables that a client may set, each in full or with the letters that it begins
    /// with. Names that decide what code runs are never accepted.
    pub env_overrides: Option<Vec<VariablePattern>>,
}

/// `[secrets]`: where the values of `${…}` come from.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Secrets {
    /// A file of `NAME=value` lines that `${NAME}` is looked for in before the environment. It is read again when
    /// it changes.
    pub env_file: Option<PathBuf>,
    /// Whether `${secret:NAME}` is looked for in the system's keyring after the store of `ringfence secret`.
    pub keyring: Option<bool>,
}

/// `[log]`: the server's own log.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// How much is logged.
    pub level: Option<LogLevel>,
    /// How a line looks.
    pub format: Option<LogFormat>,
    /// A file to append to. Without it the log goes to standard error.
    pub file: Option<PathBuf>,
}

/// `[mcp.<name>]`: one command of the operator's as a tool.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Entry {
    /// The program to run: a name that is looked for on PATH, or a path, which starts from the directory of this
    /// file.
    pub command: Option<String>,
    /// Its arguments, each one word and never a shell's text. `{name}` is an argument of the call, `{{` a brace,
    /// `${NAME}` and `${secret:NAME}` a secret. A word whose optional argument is missing is left out.
    pub args: Option<Vec<String>>,
    /// What the command reads from standard input.
    pub stdin: Option<EntryStdin>,
    /// Where it starts. Relative paths lie in the workspace, which is the default.
    pub cwd: Option<PathBuf>,
    /// Variables of the command beside the usual few. `${NAME}` and `${secret:NAME}` stand for secrets.
    pub env: Option<BTreeMap<String, String>>,
    /// How strong the fence around it is. "contained" hides nothing and needs the same under `[sandbox]`.
    pub sandbox_profile: Option<Profile>,
    /// true opens the host's whole network to it.
    pub allow_network: Option<bool>,
    /// Names it may reach: `name`, `*.name`, either with `:port`.
    pub allow_domains: Option<Vec<String>>,
    /// Addresses it may reach, `address:port`, private ones too.
    pub allow_addresses: Option<Vec<String>>,
    /// What it does to the world. What is not declared, the fence does not allow.
    pub side_effects: Option<Vec<Effect>>,
    /// Whether a human is asked before each call. One that may write files, use the network or run without a fence
    /// asks whatever this says.
    pub requires_approval: Option<bool>,
    /// How long one call may run, in milliseconds. Default: `surface.default_timeout_ms`.
    pub timeout_ms: Option<Within<1, 604_800_000>>,
    /// Whether its output is passed on while it runs.
    pub streaming: Option<bool>,
    /// What it does, for the model and the human who is asked.
    pub description: Option<String>,
    /// Its name for humans. Default: its name.
    pub display_name: Option<String>,
    /// A JSON Schema of its arguments: a table, or JSON as text. Default: no arguments, or with `stdin = "json"`
    /// any.
    pub input_schema: Option<InputSchema>,
    /// Arguments whose values are never shown, beside those with `writeOnly` or `format = "password"` in the
    /// schema.
    pub secret_args: Option<Vec<String>>,
    /// Changes what session trust is bound to, for a change that cannot be seen here.
    pub version: Option<String>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Approval {
    /// A question that nobody answers in so many seconds is a no.
    pub expiry_s: Option<Within<1, 86_400>>,
    /// true lets `ringfence approvals` answer; without it a client that cannot ask its user means no.
    pub terminal: Option<bool>,
    /// When our own tools ask: `auto`, `always`, or patterns over the names of those that always do, in either spelling.
    pub own_tools: Option<OwnTools>,
}

/// `auto`: when a call would leave the sandbox. `always`: for every call. A list: for every call of those it names.
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
                f.write_str("`auto`, `always` or a list of names of tools")
            }

            fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<OwnTools, E> {
                match word {
                    "auto" => Ok(OwnTools::Auto),
                    "always" => Ok(OwnTools::Always),
                    other => Err(E::unknown_variant(other, &["auto", "always"])),
                }
            }

            /// Item by item, so that a bad one is reported at its place.
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

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// No call runs longer, whatever it or its tool asks for, in milliseconds.
    pub timeout_ms: Option<Within<1, 604_800_000>>,
    /// Between SIGTERM and SIGKILL, in milliseconds.
    pub grace_ms: Option<Within<0, 60_000>>,
    /// One stored output, in MiB; those of a session take 16 times as much at most, those of a principal 32 times.
    pub output_file_mb: Option<Within<1, 1_048_576>>,
    /// One JSON-RPC message, in MiB.
    pub message_mb: Option<Within<1, 1024>>,
    /// The size at which an audit file is closed and the next begun, in MiB.
    pub audit_rotate_mb: Option<Within<1, 1_048_576>>,
}

/// `[audit]`: how long the audit log is kept.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AuditSection {
    /// Audit files whose records are all older than this are pruned, at the start of a server and then daily: `90d`,
    /// `12w`, at least a day. Without it everything is kept.
    pub keep: Option<KeepSpan>,
}

/// A span of time of at least a day, and how it was written.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct KeepSpan {
    pub span: Duration,
    pub text: String,
}

impl JsonSchema for KeepSpan {
    fn schema_name() -> Cow<'static, str> {
        "KeepSpan".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": "^[0-9]+[smhdw]$"})
    }
}

impl TryFrom<String> for KeepSpan {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        const DAY: Duration = Duration::from_secs(86_400);
        match parse_span(&text) {
            // Less would remove what happened before anyone could look at it.
            Some(span) if span < DAY => Err("records are kept for at least a day: `1d`, `24h`"),
            Some(span) => Ok(KeepSpan { span, text }),
            None => Err("a span of time is a whole number and a unit: `90d`, `12w`, `48h`"),
        }
    }
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Browser {
    /// The browser to use. Without it the first Chromium on PATH, the headless shell before the others.
    pub program: Option<PathBuf>,
    /// A browser that nobody uses for so many seconds is ended; the next call starts another.
    pub idle_s: Option<Within<1, 86_400>>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sandbox {
    /// How strong the fence around a run is.
    pub profile: Option<Profile>,
    /// true opens the host's whole network. Otherwise only what `allow_domains` and `allow_addresses` name.
    pub allow_network: Option<bool>,
    /// Names that runs may reach: `name`, `*.name`, either with `:port`; without one 80 and 443 are meant.
    pub allow_domains: Option<Vec<String>>,
    /// Names that stay shut, on all ports, though `allow_domains` fits them.
    pub deny_domains: Option<Vec<String>>,
    /// Addresses that runs may reach, `address:port`, private ones too.
    pub allow_addresses: Option<Vec<String>>,
    /// Directories that runs may write to beside the workspace.
    pub writable: Option<Vec<PathBuf>>,
    /// Paths that stay read-only inside what is writable. Relative ones lie in the workspace.
    pub protect: Option<Vec<PathBuf>>,
    /// Paths that are protected by default and may be written all the same: `.vscode`, `.git/hooks`.
    pub unprotect: Option<Vec<PathBuf>>,
    /// Paths that no run and no tool can read. Relative ones lie in the workspace.
    pub hide: Option<Vec<PathBuf>>,
    /// Memory of one run with all its processes, in MiB.
    pub memory_mb: Option<Within<16, 1_048_576>>,
    /// Processes of one run.
    pub processes: Option<Within<8, 1_000_000>>,
    /// Open files of one process.
    pub open_files: Option<Within<16, 1_048_576>>,
    /// One file that a process writes, in MiB.
    pub file_mb: Option<Within<1, 16_777_216>>,
    /// CPU time of one process, in seconds.
    pub cpu_s: Option<Within<1, 604_800>>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Rules files beside those in $CODEX_HOME/rules.
    pub rules: Option<Vec<PathBuf>>,
    /// Where a command runs that a rule allows. "outside" is the default with `tools = "shell"`.
    pub escalate: Option<Escalate>,
    /// What an `allow` means for a command with more words than the rule, unless the program is known to be harmless.
    /// "ask" asks whether it runs outside or inside, and runs it inside where no one can be asked.
    pub escalate_risky: Option<EscalateRisky>,
    /// The user that commands outside run as. A server that runs as root needs it.
    pub escalate_as: Option<String>,
    /// Variables that a command keeps on its way out.
    pub escalate_env: Option<Vec<String>>,
    /// Whether to ask about commands that are known to destroy, where no rule speaks.
    pub heuristics: Option<Heuristics>,
    /// false leaves execs unwatched, for hosts that cannot; then no rules are accepted.
    pub intercept: Option<bool>,
    /// true writes every exec into the audit log, not only those that a rule decided.
    pub audit_execs: Option<bool>,
    /// What `escalate = "wider"` has beside the sandbox.
    pub wider: Option<Wider>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Wider {
    /// true opens the host's whole network.
    pub allow_network: Option<bool>,
    /// Names beside those of the sandbox.
    pub allow_domains: Option<Vec<String>>,
    /// Addresses beside those of the sandbox.
    pub allow_addresses: Option<Vec<String>>,
    /// Directories beside those of the sandbox.
    pub writable: Option<Vec<PathBuf>>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// `name` or `name:port` accepted in Host beside the loopback names.
    pub allowed_hosts: Option<Vec<HostName>>,
    /// `scheme://host` or `scheme://host:port` accepted in Origin beside the loopback names.
    pub allowed_origins: Option<Vec<OriginName>>,
    /// The URL at which clients reach this server through a proxy, without `/mcp`: for OAuth metadata and challenges. Its host is accepted in Host, its origin in Origin.
    pub public_url: Option<PublicUrl>,
}

/// The secret itself has no key here on purpose: config files are copied, shown and checked in.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    /// Whether bearer tokens are required over HTTP.
    pub enabled: Option<bool>,
    /// The file that holds the secret of HS256 tokens, if MCP_AUTH_JWT_SECRET does not.
    pub jwt_secret_file: Option<PathBuf>,
    /// The key of RS256, ES256 or EdDSA tokens: PEM text or a file.
    pub jwt_public_key: Option<String>,
    /// What `aud` of a token must name.
    pub audience: Option<String>,
    /// What `iss` of a token must be.
    pub issuer: Option<String>,
}

/// A pattern over names of tools or variables: `*`, `?`, `[a-z]`, `{one,two}`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct NamePattern(pub Names);

impl TryFrom<String> for NamePattern {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Names::parse(&text)
            .map(NamePattern)
            .ok_or("a pattern is a name in which `*` and `?` stand for others")
    }
}

/// A pattern over names of variables, which says at least how they begin.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct VariablePattern(pub Names);

impl TryFrom<String> for VariablePattern {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let names = Names::parse(&text).filter(|_| begins);
        names
            .map(VariablePattern)
            .ok_or("a variable is named in full, or by the letters it begins with and `*`")
    }
}

/// A JSON Schema: a table, or JSON as text.
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

/// A number with its bounds, so that a bad one is reported at its place in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Within<const LOW: u64, const HIGH: u64>(pub u64);

impl<const LOW: u64, const HIGH: u64> JsonSchema for Within<LOW, HIGH> {
    fn schema_name() -> Cow<'static, str> {
        format!("From{LOW}To{HIGH}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "minimum": LOW, "maximum": HIGH})
    }
}

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
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct HostName(pub String);

impl TryFrom<String> for HostName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let known =
            |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
        if text.is_empty() || !text.chars().all(known) {
            return Err("a host is written `name` or `name:port`, without wildcards");
        }
        Ok(HostName(text.to_ascii_lowercase()))
    }
}

/// `https://host[:port][/path]`, without a slash at its end.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct PublicUrl(pub String);

impl TryFrom<String> for PublicUrl {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let wrong =
            "a public URL is written `https://host`, `https://host:port` or `https://host/path`";
        let (scheme, rest) = text.split_once("://").ok_or(wrong)?;
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = HostName::try_from(host.to_owned()).map_err(|_| wrong)?.0;
        let scheme = Some(scheme.to_ascii_lowercase())
            .filter(|scheme| ["http", "https"].contains(&scheme.as_str()));
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.' | '~');
        // Who gives the whole address of the endpoint means the same.
        let path = path.trim_end_matches('/');
        let path = path.strip_suffix("/mcp").unwrap_or(path);
        match scheme.filter(|_| path.chars().all(plain)) {
            Some(scheme) => Ok(PublicUrl(format!("{scheme}://{host}{path}"))),
            None => Err(wrong),
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
        let wrong = "an origin is written `scheme://host` or `scheme://host:port`, without path or wildcards";
        let (scheme, host) = text.split_once("://").ok_or(wrong)?;
        let scheme_fits = !scheme.is_empty()
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
        if !scheme_fits {
            return Err(wrong);
        }
        HostName::try_from(host.to_owned()).map_err(|_| wrong)?;
        Ok(OriginName(text.to_ascii_lowercase()))
    }
}
