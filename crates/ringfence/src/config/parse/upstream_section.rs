//! `[upstream.<id>]` as it is written.
//!
//! Doc comments of keys are user documentation, as in [`super::raw`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::raw::BoundedInt;
use crate::config::values::{ProfileSetting, SideEffect, UpstreamApproval, UpstreamShare};

/// The table of settings for other MCP servers.
pub const UPSTREAMS_TABLE: &str = "upstream";

/// `[upstream.<id>]`: settings of one MCP server of the upstreams file.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamSection {
    /// Strength of the sandbox of a stdio server. "contained" hides nothing and is accepted only if
    /// the profile under `[sandbox]` is "contained" or "none".
    pub sandbox_profile: Option<ProfileSetting>,
    /// true gives a stdio server the host's whole network.
    pub allow_network: Option<bool>,
    /// Host names a stdio server may reach: `name` or `*.name`, either with `:port`.
    pub allow_domains: Option<Vec<String>>,
    /// Addresses a stdio server may reach, `address:port`, including private ones.
    pub allow_addresses: Option<Vec<String>>,
    /// Side effects of a stdio server. The sandbox prevents those that are not declared.
    pub side_effects: Option<Vec<SideEffect>>,
    /// Working directory of a stdio server, instead of the one in the upstreams file. Relative
    /// paths start at the workspace, which is the default; a server with secrets starts in its own
    /// home instead.
    pub cwd: Option<PathBuf>,
    /// Variables of a stdio server in addition to those of the upstreams file, which they override.
    /// `${NAME}` and `${secret:NAME}` are secrets.
    pub env: Option<BTreeMap<String, String>>,
    /// When calls need approval. "auto": all but those of tools that a trusted server annotates as
    /// read-only. "never" is accepted only for a stdio server that has a sandbox, no network and no
    /// side effects.
    pub approval: Option<UpstreamApproval>,
    /// Who may use the same connection.
    pub share: Option<UpstreamShare>,
    /// true lets the server ask the client's model.
    pub sampling: Option<bool>,
    /// Time limit of one call, in milliseconds. Default: `surface.default_timeout_ms`.
    pub timeout_ms: Option<BoundedInt<1, 604_800_000>>,
    /// Time limit for starting or connecting, in milliseconds.
    pub start_timeout_ms: Option<BoundedInt<1, 3_600_000>>,
    /// Seconds after which an unused connection is closed; the next call opens another.
    pub idle_s: Option<BoundedInt<1, 86_400>>,
    /// Client id for logins to a server with `authProviderId: "oauth"`, if you registered a client
    /// with its authorization server. Without it, ringfence registers itself.
    pub oauth_client_id: Option<String>,
    /// Secret of that client: `${secret:NAME}` or `${NAME}`. Plain text is refused.
    pub oauth_client_secret: Option<String>,
    /// Scopes that a login asks for if the server names none.
    pub oauth_scopes: Option<Vec<String>>,
    /// true lets the authorization server be in a private network although the address of the
    /// server does not show that it is in one.
    pub oauth_private_addresses: Option<bool>,
}
