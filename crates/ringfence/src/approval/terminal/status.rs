//! State of a server, as it reports it on its socket.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// State of a running server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerStatus {
    pub pid: u32,
    /// Version of Ringfence.
    pub version: String,
    /// `stdio` or `http`.
    pub transport: String,
    /// URL of an HTTP server.
    pub address: Option<String>,
    /// Workspace of all sessions; `None` if each principal has its own.
    pub workspace: Option<PathBuf>,
    pub started_unix_ms: u64,
    /// Calls in flight, including those that wait for an answer.
    pub calls: usize,
    pub sessions: Vec<SessionStatus>,
}

/// State of one open session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SessionStatus {
    pub id: String,
    /// Name and version that the client reports for itself; empty if it has not said anything yet.
    pub client: String,
    pub principal: String,
    pub transport: String,
    pub workspace: PathBuf,
}
