//! The protocol: the only module that knows JSON-RPC and MCP.
//!
//! `rmcp` is the engine. Our own envelope validation comes before it, because every malformed
//! message must get an error that says what to do, on every transport alike.

pub mod attach;
pub mod auth;
mod codex;
pub mod codex_legacy;
mod direct_call;
pub mod dispatch;
pub mod envelope;
pub mod failed_start;
pub mod fixtures;
pub mod http;
mod in_flight;
mod log_limit;
mod message_limits;
pub mod meta;
mod methods;
mod overrides;
mod peer;
pub mod render;
pub mod server;
mod server_status;
pub mod sse;
pub mod stdio;
mod stdio_streams;
pub mod tasks;
pub mod version;

pub use server::Server;
