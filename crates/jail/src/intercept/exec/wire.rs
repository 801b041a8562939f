//! Messages between supervisor and server about execs: packets on a channel separate from the
//! control socket, because they carry descriptors.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;

use policy::{ExecVerdict, RuleTable};
use rustix::fs::MemfdFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Rules by which a run's execs are judged.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ExecRules {
    #[serde(default)]
    pub table: RuleTable,
    /// Ask about commands that are known to be destructive, where no rule applies.
    #[serde(default)]
    pub heuristics: bool,
    /// Allowed commands do not run here: the server is asked to run them elsewhere.
    #[serde(default)]
    pub lets_out: bool,
    /// The program itself was judged before; what it starts was not.
    #[serde(default)]
    pub granted: bool,
    /// Most threads that may watch at the same time; zero means the default.
    #[serde(default)]
    pub watchers: usize,
}

/// File as the run sees it. Device and inode identify it; rules and messages use the path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    pub path: String,
    pub device: u64,
    pub inode: u64,
}

/// Decision of a rule about an exec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuledExec {
    pub pid: i32,
    pub path: String,
    /// Arguments, cut where they are long.
    pub argv: Vec<String>,
    pub verdict: ExecVerdict,
    /// Reason why the command ran in the sandbox although its rule lets it out: the server could
    /// not be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_inside: Option<String>,
}

/// Description of the exec of a held process: what is asked about, and what is run elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldExec {
    pub pid: i32,
    pub program: FileIdentity,
    /// The script that the program interprets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<FileIdentity>,
    /// Index of the argument that names the script.
    #[serde(default)]
    pub script_at: usize,
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: FileIdentity,
    /// Number of words that the command has in the form that was judged.
    pub words: usize,
    /// Ancestors within the run, the nearest first, as `name(pid)`.
    pub parents: Vec<String>,
    /// Something of it is not text, so it cannot be run elsewhere.
    pub garbled: bool,
    /// It was recognised as the very program, and not through a loader: it may be run elsewhere.
    pub itself: bool,
    pub verdict: ExecVerdict,
    /// True for each of the standard streams that is attached, in their order.
    pub streams: [bool; 3],
}

/// Message from the supervisor to the server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecNotice {
    Ruled(RuledExec),
    /// A process is held. Comes with a descriptor that holds its [`HeldExec`], then its standard
    /// streams.
    Held(u64),
    /// A signal for the command that has begun elsewhere.
    Signal(u64, i32),
    /// The process is no longer held.
    Gone(u64),
}

/// Answer from the server about a held process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecAnswer {
    /// The command has begun elsewhere; from now on its signals are passed on.
    Begun,
    /// The command runs where it is.
    Run,
    /// The process exits with this code, after this message on its standard error.
    Refuse(String, i32),
    /// The command has ended elsewhere, and the process ends the same way.
    Ended { code: Option<i32>, signal: Option<i32> },
}

/// Answer, and the held process it is for.
#[derive(Debug, Serialize, Deserialize)]
pub struct ExecReply {
    pub id: u64,
    pub answer: ExecAnswer,
}

/// Writes a value of any length into a memory file, since the length of a packet is limited.
pub fn write_memory_file<T: Serialize>(value: &T) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create("exec", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(value)?)?;
    Ok(file.into())
}

/// Longest description of an exec, well above what the kernel accepts.
const MAX_DESCRIPTION_BYTES: u64 = 64 << 20;

/// Reads a value back from its memory file.
pub fn read_memory_file<T: DeserializeOwned>(descriptor: OwnedFd) -> io::Result<T> {
    let mut file = File::from(descriptor);
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(MAX_DESCRIPTION_BYTES).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}
