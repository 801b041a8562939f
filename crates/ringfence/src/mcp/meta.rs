//! Our own keys in `_meta`, in one place. docs/protocol.md explains each; a test holds the two together.

/// On `initialize`, `server/discover`: the tool and permission table.
pub const TOOLS: &str = "dev.ringfence/tools";
/// On a `tools/list` entry.
pub const NAME: &str = "dev.ringfence/name";
pub const VERSION: &str = "dev.ringfence/version";
pub const PERMISSION: &str = "dev.ringfence/permission";
pub const REQUIRES_APPROVAL: &str = "dev.ringfence/requires_approval";
pub const SANDBOX_PROFILE: &str = "dev.ringfence/sandbox_profile";
pub const DEFAULT_TIMEOUT_MS: &str = "dev.ringfence/default_timeout_ms";
pub const ALLOWS_STREAMING: &str = "dev.ringfence/allows_streaming";
pub const SIDE_EFFECTS: &str = "dev.ringfence/side_effects";
pub const SESSION_DEFAULTS: &str = "dev.ringfence/session_defaults";
pub const OUTPUT_SCHEMA: &str = "dev.ringfence/output_schema";
/// On every tool result.
pub const TRACE_ID: &str = "dev.ringfence/trace_id";
/// On results of calls that a client's own sandbox had a say in.
pub use crate::base::narrowing::META as CLIENT_SANDBOX;
/// On a result of `file.read`.
pub use crate::tools::file::file_read::META as FILE;
/// On results and requests of 2026-07-28: the sealed session handle.
pub const SESSION: &str = "dev.ringfence/session";
/// On a `tools/call` request: what it chooses for its command, where the operator lets it.
pub const CWD_OVERRIDE: &str = "dev.ringfence/cwd_override";
pub const ENV_OVERRIDES: &str = "dev.ringfence/env_overrides";
/// On a `tools/call` request: the time the client will wait.
pub use crate::call::TIMEOUT_META as TIMEOUT_MS;
/// On results of calls that something was chosen for.
pub use crate::call::shape::META as OVERRIDES;
/// The same handle as an argument, for models whose client cannot set `_meta`.
pub const SESSION_ARGUMENT: &str = "ringfence_session";

pub const ALL: &[&str] = &[
    TOOLS,
    NAME,
    VERSION,
    PERMISSION,
    REQUIRES_APPROVAL,
    SANDBOX_PROFILE,
    DEFAULT_TIMEOUT_MS,
    ALLOWS_STREAMING,
    SIDE_EFFECTS,
    SESSION_DEFAULTS,
    OUTPUT_SCHEMA,
    TRACE_ID,
    CLIENT_SANDBOX,
    FILE,
    SESSION,
    TIMEOUT_MS,
    CWD_OVERRIDE,
    ENV_OVERRIDES,
    OVERRIDES,
];
