//! Bounds for everything that a server can send, and for every wait.

use std::time::Duration;

/// Bounds of one connection. The defaults are above what any of the known public servers needs.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of one message. A call whose answer is longer fails with `TooLarge`, and the connection
    /// stays usable.
    pub message_bytes: usize,
    /// Calls in flight at a time; further ones wait.
    pub calls_in_flight: usize,
    /// Log lines kept for a call that does not take them; the oldest go first.
    pub log_lines: usize,
    /// Bytes of these log lines.
    pub log_bytes: usize,
    /// Requests of the server that wait for an answer at a time; further ones are refused.
    pub server_requests: usize,
    /// Pages of a tool list.
    pub pages: usize,
    /// Tools of a server.
    pub tools: usize,
    /// Bytes of one tool's definition.
    pub tool_bytes: usize,
    /// Bytes of all definitions of a server.
    pub catalog_bytes: usize,
    /// Depth of a tool's definition.
    pub schema_depth: usize,
    /// Bytes of one question, or of the questions of one round.
    pub question_bytes: usize,
    /// Rounds of questions in one call.
    pub input_rounds: usize,
    /// Messages in a row that are not JSON-RPC before the connection is given up.
    pub bad_messages: usize,
    /// Time for starting the server's process, or for connecting to its host.
    pub connect_timeout: Duration,
    /// Time for an answer to `server/discover`. A server that does not know it may say nothing.
    pub discover_timeout: Duration,
    /// Time for the rest of the handshake.
    pub handshake_timeout: Duration,
    /// Time for the whole tool list.
    pub list_timeout: Duration,
    /// Time for one call, while no human is being asked.
    pub call_timeout: Duration,
    /// Bytes of one answer during OAuth work.
    pub oauth_bytes: usize,
    /// Time for all requests of one piece of OAuth work: finding the authorization server, getting a
    /// token, refreshing one, or revoking one.
    pub oauth_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            message_bytes: 8 << 20,
            calls_in_flight: 32,
            log_lines: 100,
            log_bytes: 1 << 20,
            server_requests: 16,
            pages: 100,
            tools: 1_000,
            tool_bytes: 256 << 10,
            catalog_bytes: 8 << 20,
            schema_depth: 64,
            question_bytes: 1 << 20,
            input_rounds: 10,
            bad_messages: 100,
            connect_timeout: Duration::from_secs(30),
            discover_timeout: Duration::from_secs(3),
            handshake_timeout: Duration::from_secs(30),
            list_timeout: Duration::from_secs(30),
            call_timeout: Duration::from_secs(300),
            oauth_bytes: 256 << 10,
            oauth_timeout: Duration::from_secs(30),
        }
    }
}
