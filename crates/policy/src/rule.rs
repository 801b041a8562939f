//! Data model of the rules.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Decision of a rule, from loosest to strictest. The strictest of all matching rules applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// The command may run without approval.
    Allow,
    /// The command requires approval.
    Prompt,
    /// The command is refused.
    Forbidden,
}

/// Location of a rule in its source file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RuleOrigin {
    pub file: String,
    /// Starts at one.
    pub line: u32,
}

/// One position of a pattern: matches any of these words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PatternToken(pub Vec<String>);

/// A rule for commands that begin with certain words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixRule {
    /// The first word: a name or an absolute path.
    pub program: String,
    /// The words after it.
    pub rest: Vec<PatternToken>,
    pub decision: Decision,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub justification: Option<String>,
    pub origin: RuleOrigin,
    /// The rule comes from the project and not from the operator: it can restrict commands, but
    /// never lets one run outside the sandbox.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub project: bool,
}

/// Protocol of a network rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkProtocol {
    Http,
    Https,
    Socks5Tcp,
    Socks5Udp,
}

/// A rule for connections to a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRule {
    /// A host name or IP address in lower case, without a port.
    pub host: String,
    pub protocol: NetworkProtocol,
    pub decision: Decision,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub justification: Option<String>,
    pub origin: RuleOrigin,
}

/// A file on the host, as found when the rules were loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFile {
    /// The real path, without symbolic links.
    pub path: String,
    pub device: u64,
    pub inode: u64,
    pub size: u64,
}

/// Files on this host that the first word of a rule refers to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostProgram {
    /// The files it refers to: found through the operator's search path, or listed by
    /// `host_executable`.
    pub files: Vec<HostFile>,
    /// Other files of the same name, further down the search path. Rules that restrict apply to
    /// these as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<HostFile>,
    /// Every path on the host that leads to one of these files. A program called by any other path
    /// is a copy or a planted link.
    pub paths: Vec<String>,
}

impl HostProgram {
    /// Returns every file with this name.
    pub fn all_files(&self) -> impl Iterator<Item = &HostFile> {
        self.files.iter().chain(&self.also)
    }
}

/// All rules from all files, in the order in which they were read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleTable {
    /// Rules for commands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<PrefixRule>,
    /// Rules for network connections.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<NetworkRule>,
    /// Files that may be used under a program name. The last entry for a name takes precedence.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub host_executables: BTreeMap<String, Vec<String>>,
    /// Files on this host, by the first word of the rules. Filled in by the server; without it, no
    /// program may run outside the sandbox.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub programs: BTreeMap<String, HostProgram>,
}
