//! What supervisor and server say to each other about execs: packets on a channel of their own, beside the control
//! socket, since descriptors travel with them.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;

use policy::{Table, Verdict};
use rustix::fs::MemfdFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What the run's execs are judged by.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Rules {
    #[serde(default)]
    pub table: Table,
    /// Ask about commands that are known to destroy, where no rule speaks.
    #[serde(default)]
    pub heuristics: bool,
    /// What is allowed is not run where it is: the server is asked to run it elsewhere.
    #[serde(default)]
    pub lets_out: bool,
    /// The program itself was judged before; what it starts was not.
    #[serde(default)]
    pub granted: bool,
    /// How many threads may watch at the same time; zero leaves it to us.
    #[serde(default)]
    pub watchers: usize,
}

/// One file, as the run sees it. Device and inode identify it; the path is what rules and messages call it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    pub path: String,
    pub device: u64,
    pub inode: u64,
}

/// A decision of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ruled {
    pub pid: i32,
    pub path: String,
    /// Cut, where it is long.
    pub argv: Vec<String>,
    pub verdict: Verdict,
    /// Why the command ran in the sandbox although its rule lets it out: the server could not be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_inside: Option<String>,
}

/// All about the exec of a held process: this is what is asked about, and what is run elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldExec {
    pub pid: i32,
    pub program: FileIdentity,
    /// The script that it is the interpreter of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<FileIdentity>,
    /// Which of the arguments names the script.
    #[serde(default)]
    pub script_at: usize,
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: FileIdentity,
    /// How many words the command has in the form that was judged.
    pub words: usize,
    /// Its ancestors within the run, the nearest first, as `name(pid)`.
    pub parents: Vec<String>,
    /// Something of it is no text, so it cannot be run elsewhere.
    pub garbled: bool,
    /// It was recognised as the very program, and not through a loader: it may be run elsewhere.
    pub itself: bool,
    pub verdict: Verdict,
    /// Which of the standard streams come along, in their order.
    pub streams: [bool; 3],
}

/// What the supervisor tells.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    Ruled(Ruled),
    /// A process is held. A descriptor with what there is to know of it comes along, then its standard streams.
    Held(u64),
    /// A signal for it, since it began elsewhere.
    Signal(u64, i32),
    /// It is not held any more.
    Gone(u64),
}

/// What the server says to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It has begun elsewhere; from now on its signals are passed on.
    Begun,
    /// It runs where it is.
    Run,
    /// It ends with this message on its standard error, and this code.
    Refuse(String, i32),
    /// It has ended elsewhere, and ends here alike.
    Ended { code: Option<i32>, signal: Option<i32> },
}

/// An answer and whom it is for.
#[derive(Debug, Serialize, Deserialize)]
pub struct Reply {
    pub id: u64,
    pub answer: Answer,
}

/// Something of any length as a descriptor, for a packet has none.
pub fn enclose<T: Serialize>(value: &T) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create("exec", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(value)?)?;
    Ok(file.into())
}

/// The most that one exec can amount to, well above what the kernel takes.
const LONGEST: u64 = 64 << 20;

pub fn disclose<T: DeserializeOwned>(letter: OwnedFd) -> io::Result<T> {
    let mut file = File::from(letter);
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}
