//! OAuth 2.1 for remote servers, as MCP's authorization specification wants it.
//!
//! [`login()`] finds the authorization server of a server, lets the user agree in a browser and keeps
//! the tokens in a [`CredentialStore`]. [`OAuthProvider`] then supplies them to connections, and
//! refreshes them. Nothing here opens a browser or knows where tokens are kept: both come from the
//! embedding program.
//!
//! The flow is written by hand, on this crate's own HTTP client, although the crate `rmcp` has one.
//! Version 3.8.0 of that one does not fit: it writes authorization codes to the log, quotes whole
//! bodies of hostile servers in errors, follows redirects during discovery, guesses endpoints that no
//! one published, accepts servers without PKCE, keeps no client secrets with the tokens (so that a
//! new process cannot refresh), makes every process that waited for a refresh refresh once more, asks
//! for scopes in a refresh that were not granted, and cannot revoke. It also brings 16 packages, with
//! a second HTTP client among them.

mod address;
mod authorize;
mod challenge;
mod discover;
mod file_store;
#[cfg(test)]
mod hostile_tests;
mod login;
mod provider;
#[cfg(test)]
mod provider_tests;
mod record;
mod redirect;
mod register;
#[cfg(test)]
mod scripted;
mod secret;
mod store;
mod token;
mod web;

use url::Url;

use crate::limits::Limits;

pub use file_store::FileCredentialStore;
pub use login::{LoginOptions, LoginStatus, LogoutOutcome, login, logout, status};
pub use provider::OAuthProvider;
pub use secret::SecretText;
pub use store::{CredentialStore, StoreLock};

/// Name under which clients register themselves.
const DEFAULT_CLIENT_NAME: &str = "ringfence";

/// How to log in to one server.
#[derive(Debug, Clone)]
pub struct OAuthSettings {
    pub server_id: String,
    /// Address of the server, as in its configuration.
    pub server_url: Url,
    /// What to tell a user who must log in, such as `Run "ringfence auth login docs".`
    pub login_hint: String,
    /// Client that was registered by hand. It takes precedence over the ways below.
    pub configured_client: Option<ConfiguredClient>,
    /// Address of a client id metadata document that lists the redirect address
    /// `http://127.0.0.1/callback`. It is the client id where the authorization server supports that;
    /// elsewhere a client is registered dynamically.
    pub client_metadata_url: Option<Url>,
    /// Name for dynamic registration, which authorization servers show to the user.
    pub client_name: String,
    /// Scopes to ask for where the server names none.
    pub scopes: Vec<String>,
    /// Whether the authorization server may be in a private network although the address of the
    /// server does not show that it is in one.
    pub allow_private_addresses: bool,
    pub limits: Limits,
}

/// Client that was registered with an authorization server by hand.
#[derive(Debug, Clone)]
pub struct ConfiguredClient {
    pub client_id: String,
    pub client_secret: Option<SecretText>,
    /// Authorization server that knows the client; without it, the first one that the server names.
    pub issuer: Option<String>,
}

impl OAuthSettings {
    /// Creates settings with defaults: a client is registered dynamically.
    pub fn new(
        server_id: impl Into<String>,
        server_url: Url,
        login_hint: impl Into<String>,
    ) -> OAuthSettings {
        OAuthSettings {
            server_id: server_id.into(),
            server_url,
            login_hint: login_hint.into(),
            configured_client: None,
            client_metadata_url: None,
            client_name: DEFAULT_CLIENT_NAME.to_owned(),
            scopes: Vec::new(),
            allow_private_addresses: false,
            limits: Limits::default(),
        }
    }

    fn open_web(&self) -> web::OAuthWeb {
        let policy = address::AddressPolicy::new(&self.server_url, self.allow_private_addresses);
        web::OAuthWeb::new(policy, &self.limits)
    }
}
