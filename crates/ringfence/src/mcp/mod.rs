//! The protocol: the only module that knows JSON-RPC and MCP.
//!
//! `rmcp` is the engine. Our own envelope validation comes before it, because every malformed
//! message must get an error that says what to do, on every transport alike.

pub mod ask;
pub mod auth;
mod bounds;
mod channel;
mod codex;
pub mod dispatch;
mod door;
pub mod edge;
pub mod failed_start;
pub mod fixtures;
pub mod http;
mod inflight;
pub mod legacy;
mod log_limit;
pub mod meta;
mod methods;
mod peer;
pub mod render;
pub mod server;
mod shaping;
pub mod sse;
pub mod stdio;
pub mod tasks;
pub mod version;

pub use server::Server;
