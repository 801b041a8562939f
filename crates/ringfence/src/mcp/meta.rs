//! Our own keys in `_meta`, in one place. docs/protocol.md explains each; a test compares the two.

/// On `initialize` and `server/discover`: the tool and permission table.
pub const TOOLS: &str = "dev.ringfence/tools";
/// On a `tools/list` entry: the dotted name, if the entry uses underscores.
pub const NAME: &str = "dev.ringfence/name";
/// On a `tools/list` entry: the version of the tool.
pub const VERSION: &str = "dev.ringfence/version";
/// On a `tools/list` entry: `{allow, scope, reason?}`.
pub const PERMISSION: &str = "dev.ringfence/permission";
/// On a `tools/list` entry: whether every call needs approval.
pub const REQUIRES_APPROVAL: &str = "dev.ringfence/requires_approval";
/// On a `tools/list` entry: the sandbox profile.
pub const SANDBOX_PROFILE: &str = "dev.ringfence/sandbox_profile";
/// On a `tools/list` entry: the time limit of a call that sets none.
pub const DEFAULT_TIMEOUT_MS: &str = "dev.ringfence/default_timeout_ms";
/// On a `tools/list` entry: whether output is sent as progress.
pub const ALLOWS_STREAMING: &str = "dev.ringfence/allows_streaming";
/// On a `tools/list` entry: the kinds of side effects.
pub const SIDE_EFFECTS: &str = "dev.ringfence/side_effects";
/// On a `tools/list` entry: the defaults that apply in this session.
pub const SESSION_DEFAULTS: &str = "dev.ringfence/session_defaults";
/// On a `tools/list` entry: the outline of the output schema, if the entry has no `outputSchema`.
pub const OUTPUT_SCHEMA: &str = "dev.ringfence/output_schema";
/// On every tool result: the trace id.
pub const TRACE_ID: &str = "dev.ringfence/trace_id";
/// On a failed call of another server's tool: the error, which other failed calls have in their
/// structured content.
pub const ERROR: &str = "dev.ringfence/error";
/// On results of calls that a client's own sandbox applied to.
pub use crate::base::client_sandbox::META_KEY as CLIENT_SANDBOX;
/// On a result of `file.read`: the metadata that is also in its JSON text block.
pub use crate::tools::file::read::META as FILE;
/// On results and requests of 2026-07-28: the sealed session handle.
pub const SESSION: &str = "dev.ringfence/session";
/// On a `tools/call` request: the directory for its command, if the operator allows it.
pub const CWD_OVERRIDE: &str = "dev.ringfence/cwd_override";
/// On a `tools/call` request: variables for its command, if the operator allows them.
pub const ENV_OVERRIDES: &str = "dev.ringfence/env_overrides";
/// On a `tools/call` request: how long the client will wait.
pub use crate::call::TIMEOUT_META as TIMEOUT_MS;
/// On results of calls that ran with overrides.
pub use crate::call::overrides::OVERRIDES_META as OVERRIDES;
/// The same handle as an argument, for models whose client cannot set `_meta`.
pub const SESSION_ARGUMENT: &str = "ringfence_session";

/// All keys in `_meta`.
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
    ERROR,
    CLIENT_SANDBOX,
    FILE,
    SESSION,
    TIMEOUT_MS,
    CWD_OVERRIDE,
    ENV_OVERRIDES,
    OVERRIDES,
];
