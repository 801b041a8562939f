//! Values that a config file can contain: enumerations and patterns.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::base::glob::Glob;

/// Set of built-in tools to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ToolSet {
    /// The tools that most agents need; the others can still be called
    Core,
    /// Only `shell`; nothing else can be called
    Shell,
    /// All tools
    All,
}

impl ToolSet {
    /// All sets, in the order of help texts.
    pub const ALL: &[ToolSet] = &[ToolSet::Core, ToolSet::Shell, ToolSet::All];

    /// Returns the name used in flags and in the file.
    pub fn name(self) -> &'static str {
        match self {
            ToolSet::Core => "core",
            ToolSet::Shell => "shell",
            ToolSet::All => "all",
        }
    }
}

/// Spelling of tool names in lists. Calls are accepted in either spelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ToolNameStyle {
    /// Dotted, except for clients known or likely to reject dots
    Auto,
    /// `file.read`
    Dot,
    /// `file_read`
    Underscore,
}

impl ToolNameStyle {
    /// Returns the name used in the file.
    pub fn name(self) -> &'static str {
        match self {
            ToolNameStyle::Auto => "auto",
            ToolNameStyle::Dot => "dot",
            ToolNameStyle::Underscore => "underscore",
        }
    }
}

/// Strength of the sandbox around a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ProfileSetting {
    /// Namespaces, Landlock and seccomp
    Default,
    /// Landlock and seccomp, for containers without namespaces; promises less
    Contained,
    /// macOS
    // Elsewhere it is refused with its own error, so it is parsed but not offered.
    #[cfg_attr(not(target_os = "macos"), value(hide = true))]
    Seatbelt,
    /// No sandbox; the server runs commands only after approval, `ringfence sandbox` immediately
    None,
}

impl ProfileSetting {
    /// Returns the name used in flags and in the file.
    pub fn name(self) -> &'static str {
        match self {
            ProfileSetting::Default => "default",
            ProfileSetting::Contained => "contained",
            ProfileSetting::Seatbelt => "seatbelt",
            ProfileSetting::None => "none",
        }
    }
}

/// Feature of the host without which no command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HostRequirement {
    /// Landlock version 3 or newer (Linux 6.2). Without it, `default` uses the tier `mounts`
    Landlock3,
}

impl HostRequirement {
    /// Returns the name used in the file.
    pub fn name(self) -> &'static str {
        match self {
            HostRequirement::Landlock3 => "landlock3",
        }
    }
}

/// Where to run a command that a rule allows, or that a human approves after a rule asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EscalationMode {
    /// In the sandbox, like everything else
    Off,
    /// In the wider sandbox of [policy.wider]
    Wider,
    /// Outside the sandbox
    Outside,
}

impl EscalationMode {
    /// Returns the name used in flags and in the file.
    pub fn name(self) -> &'static str {
        match self {
            EscalationMode::Off => "off",
            EscalationMode::Wider => "wider",
            EscalationMode::Outside => "outside",
        }
    }
}

/// Meaning of an `allow` for a command with more words than the rule, unless the program is known
/// to be harmless with any arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum RiskyEscalation {
    /// Ask whether to run it outside or inside; if no one can be asked, run it inside
    Ask,
    /// Run it inside the sandbox
    Inside,
    /// Run it where `escalate` says, without asking
    Outside,
}

impl RiskyEscalation {
    /// Returns the name used in flags and in the file.
    pub fn name(self) -> &'static str {
        match self {
            RiskyEscalation::Ask => "ask",
            RiskyEscalation::Inside => "inside",
            RiskyEscalation::Outside => "outside",
        }
    }
}

/// Questions about known destructive commands that no rule covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HeuristicsMode {
    /// Only rules ask
    Off,
    /// Ask before a forced removal
    Prompt,
}

impl HeuristicsMode {
    /// Returns the name used in the file.
    pub fn name(self) -> &'static str {
        match self {
            HeuristicsMode::Off => "off",
            HeuristicsMode::Prompt => "prompt",
        }
    }
}

/// Side effect of a command. The sandbox prevents those that are not declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SideEffect {
    /// Changes files in the workspace
    FilesystemWrite,
    /// Uses the network, as far as `allow_…` opens it
    Network,
}

impl SideEffect {
    /// Returns the name used in the file and in approvals.
    pub fn name(self) -> &'static str {
        match self {
            SideEffect::FilesystemWrite => "filesystem_write",
            SideEffect::Network => "network",
        }
    }
}

/// Standard input of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CommandStdin {
    /// Nothing
    None,
    /// All arguments of the call, as one JSON object
    Json,
}

/// When calls of another server's tools need approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamApproval {
    /// All but calls of tools that a trusted server annotates as read-only
    Auto,
    /// Every call
    Always,
    /// None; only for a stdio server that the sandbox confines
    Never,
}

impl UpstreamApproval {
    /// Returns the name used in the file.
    pub fn name(self) -> &'static str {
        match self {
            UpstreamApproval::Auto => "auto",
            UpstreamApproval::Always => "always",
            UpstreamApproval::Never => "never",
        }
    }
}

/// Who may use the same connection to another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamShare {
    /// One session
    Session,
    /// All sessions of one principal
    Principal,
}

impl UpstreamShare {
    /// Returns the name used in the file.
    pub fn name(self) -> &'static str {
        match self {
            UpstreamShare::Session => "session",
            UpstreamShare::Principal => "principal",
        }
    }
}

/// Lowest severity that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Errors
    Error,
    /// Errors and warnings
    Warn,
    /// Also one line per call, and changes of config and rules
    Info,
    /// Also details such as lost connections and undelivered messages
    Debug,
    /// Everything
    Trace,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Human-readable text
    Pretty,
    /// One JSON object per line
    Json,
}

/// Pattern over names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameGlob {
    text: String,
    /// `None` for `*`, which is the default and matches every name.
    glob: Option<Glob>,
}

impl NameGlob {
    /// Parses a pattern; `None` if it is malformed.
    pub fn parse(text: &str) -> Option<NameGlob> {
        if text.is_empty() || text.contains('/') {
            return None;
        }
        let glob = match text {
            "*" => None,
            _ => Some(Glob::parse(&format!("/{text}"))?),
        };
        Some(NameGlob { text: text.to_owned(), glob })
    }

    /// Returns whether a name matches.
    pub fn matches(&self, name: &str) -> bool {
        let matches = |glob: &Glob| glob.matches(&PathBuf::from(format!("/{name}")));
        !name.contains('/') && self.glob.as_ref().map_or(!name.is_empty(), matches)
    }

    /// Returns whether a tool's name matches in either spelling.
    pub fn matches_tool(&self, tool: &str) -> bool {
        self.matches(tool) || self.matches(&tool.replace('.', "_"))
    }

    /// Returns the pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}
