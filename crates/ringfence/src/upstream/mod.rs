//! Tools of other MCP servers, behind the same gate, sandbox and log as our own.
//!
//! A server is hostile input: its definitions are pinned in `mcp.lock` ([`catalog`]), a stdio
//! server runs in a sandbox that contains what its entry declares ([`start`]), and whatever it
//! answers is bounded, cleaned and redacted ([`result`]). No header or credential of our client is
//! ever passed on, and no connection or login is shared between principals ([`pool`],
//! [`credentials`]).

pub mod backend;
mod bridge;
pub mod catalog;
pub mod client_error;
pub mod credentials;
mod definition;
mod failures;
pub mod learn;
pub mod meta;
pub mod packages;
pub mod pool;
mod questions;
mod result;
pub mod review;
pub mod start;
pub mod status;
mod tool;

pub use catalog::UpstreamTools;
pub use pool::UpstreamPool;
