//! What rules are made of.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a rule says. The later, the stricter; the strictest of all that match decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    Allow,
    Prompt,
    Forbidden,
}

/// Where a rule was written.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Origin {
    pub file: String,
    /// From one.
    pub line: u32,
}

/// One place of a pattern: any of these words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub Vec<String>);

/// A command that begins with these words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixRule {
    /// The first word: a name, or an absolute path.
    pub program: String,
    pub rest: Vec<Token>,
    pub decision: Decision,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub justification: Option<String>,
    pub origin: Origin,
    /// Written by whoever wrote the project, and not by the operator: it can hold something back, and let nothing out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub project: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    Http,
    Https,
    Socks5Tcp,
    Socks5Udp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRule {
    pub host: String,
    pub protocol: Protocol,
    pub decision: Decision,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub justification: Option<String>,
    pub origin: Origin,
}

/// A file of the host, as its name led to it when the rules were loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Without links.
    pub path: String,
    pub device: u64,
    pub inode: u64,
    pub size: u64,
}

/// What the first word of a rule stands for on this host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The files it leads to: by the operator's search path, or as `host_executable` lists them.
    pub files: Vec<File>,
    /// Other files of the same name, further down the search path. A rule that tightens is for these as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<File>,
    /// Every path of the host that leads to one of these files. Under any other it is a copy or a planted link.
    pub paths: Vec<String>,
}

impl Program {
    /// Every file that goes by the name.
    pub fn all(&self) -> impl Iterator<Item = &File> {
        self.files.iter().chain(&self.also)
    }
}

/// All rules, from all files, in the order in which they were read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<PrefixRule>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<NetworkRule>,
    /// Which files may go by a name. The last word on a name counts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub host_executables: BTreeMap<String, Vec<String>>,
    /// By the first word of rules. Filled in by whoever knows the host; without it nothing is allowed out by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub programs: BTreeMap<String, Program>,
}
