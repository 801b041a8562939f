//! Ringfence: an MCP server whose tools coding agents can be trusted with.
//!
//! Every tool call takes the same path: transport, session, registry, prepare, gate, tool, render,
//! audit. Start reading at `docs/life-of-a-call.md`.

mod approval;
mod audit;
mod base;
mod browser;
mod call;
mod cli;
mod config;
mod mcp;
mod net;
mod redact;
mod registry;
mod rulebook;
mod sandbox;
mod session;
mod tools;
mod upstream;

pub use cli::run;

// For the tests in `tests/` and for doctests. Everything else is private, so that the compiler
// reports what nothing uses.
pub use approval::{Grant, Granted};
pub use base::error::{KINDS, Kind};
pub use base::ids::{TraceId, short_id};
pub use base::workspace::{Workspace, WriteTarget};
pub use config::{ConfigFlags, ProcessEnv, prepare_root, resolve_config};
pub use mcp::Server;
pub use mcp::envelope::{EnvelopeVerdict, judge_message};
pub use mcp::meta::ALL as META_KEYS;
pub use session::{Overrides, Principal};
pub use tools::PrepareCx;
pub use tools::file::content::etag_from_bytes;
