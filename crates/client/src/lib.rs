//! Client for MCP servers: configuration, connections, tool catalogs and calls.
//!
//! It speaks stdio, Streamable HTTP and the SSE transport of 2024, with servers of both protocol
//! eras (2026-07-28, and those with `initialize`). A server is treated as hostile: every size, count
//! and duration is bounded, and what it sends is passed on as the bytes that came, never as a
//! re-serialized copy that could lose a field.
//!
//! [`config::load_config`] finds and checks the configuration, [`ClientManager`] connects to its
//! servers when they are used.

pub mod auth;
mod call;
mod catalog;
pub mod config;
mod connection;
mod error;
mod handshake;
mod limits;
mod manager;
mod message;
mod server_client;
#[cfg(feature = "spawn")]
mod spawn;

pub use call::{CallHandler, Question, QuestionAnswer, ToolCall, UnattendedCall};
pub use catalog::{ToolAnnotations, ToolCatalog, ToolDefinition};
pub use connection::process::{ServerProcess, SpawnRequest, SpawnedServer, Spawner};
pub use connection::router::Root;
pub use error::{ClientError, ErrorKind, Result, RpcError};
pub use handshake::{ClientProfile, Era, ServerGreeting};
pub use limits::Limits;
pub use manager::ClientManager;
pub use message::RawJson;
pub use server_client::{ClientOptions, ClientStatus, ServerClient};
#[cfg(feature = "spawn")]
pub use spawn::ChildSpawner;
