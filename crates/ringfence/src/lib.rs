//! Ringfence: an MCP server whose tools coding agents can be trusted with.
//!
//! Every tool call takes the same path: transport, session, registry, prepare, gate, tool, render,
//! audit. Start reading at `docs/life-of-a-call.md`.

pub mod approval;
pub mod audit;
pub mod base;
pub mod browser;
pub mod call;
pub mod cli;
pub mod config;
pub mod mcp;
pub mod net;
pub mod redact;
pub mod registry;
pub mod rulebook;
pub mod sandbox;
pub mod session;
pub mod tools;
