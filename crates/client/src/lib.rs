#![doc = include_str!("../README.md")]

pub mod auth;
mod call;
mod catalog;
mod clean_text;
pub mod config;
mod connection;
mod error;
mod handshake;
mod header_params;
mod hidden_chars;
mod limits;
mod lock;
mod manager;
mod message;
mod names;
#[cfg(feature = "oauth")]
pub mod oauth;
mod pages;
mod scan;
mod search;
mod server_client;
#[cfg(feature = "spawn")]
mod spawn;

pub use call::{CallHandler, Question, QuestionAnswer, ToolCall, UnattendedCall};
pub use catalog::{ToolAnnotations, ToolCatalog, ToolDefinition};
pub use clean_text::{clean_line, clean_text, show_invisible};
pub use connection::process::{ServerProcess, SpawnRequest, SpawnedServer, Spawner};
pub use connection::router::Root;
pub use error::{ClientError, ErrorKind, Result, RpcError};
pub use handshake::{ClientProfile, Era, ServerGreeting};
pub use limits::Limits;
pub use lock::{LockChange, LockFile, LockedPackage, LockedServer};
pub use manager::ClientManager;
pub use message::RawJson;
pub use names::{MAX_NAME_LENGTH, NameCollision, NameMap, ToolKey, namespaced_name};
pub use scan::{ScanFinding, ScanRule, ScanSeverity, scan_server, scan_servers};
pub use search::{SearchHit, SearchableTool, ToolIndex, compact_signature};
pub use server_client::{ClientOptions, ClientStatus, ServerClient};
#[cfg(feature = "spawn")]
pub use spawn::ChildSpawner;
