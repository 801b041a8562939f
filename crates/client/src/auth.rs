//! Credentials for remote servers. Where they come from is up to the embedding program.

use std::fmt;

use futures::future::BoxFuture;

use crate::error::Result;

/// Supplies the credentials of the servers whose `authProviderId` names it.
pub trait AuthProvider: Send + Sync {
    /// Returns the value of the `Authorization` header, if there is one.
    fn authorization(&self, server_id: &str) -> BoxFuture<'_, Result<Option<Authorization>>>;

    /// Called when the server refused the request. Returns whether it is worth another try, for
    /// example because a token was refreshed. An error is reported instead of the refusal.
    fn handle_refusal(&self, refusal: AuthRefusal) -> BoxFuture<'_, Result<bool>>;

    /// Returns whether there are other credentials than those that the server refused last, for
    /// example because a user has logged in. Until then the server is not tried again.
    fn has_new_credentials(&self, _server_id: &str) -> BoxFuture<'_, bool> {
        Box::pin(async { false })
    }
}

/// Value of an `Authorization` header. Its debug output hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Authorization(String);

impl Authorization {
    /// Wraps a whole header value, such as `Bearer abc`.
    pub fn new(value: impl Into<String>) -> Authorization {
        Authorization(value.into())
    }

    pub(crate) fn header_value(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Authorization {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Authorization(hidden)")
    }
}

/// A server's refusal of credentials.
#[derive(Debug, Clone)]
pub struct AuthRefusal {
    pub server_id: String,
    /// HTTP status: 401 or 403.
    pub status: u16,
    /// The `WWW-Authenticate` header.
    pub challenge: String,
    /// The credentials that were refused.
    pub authorization: Option<Authorization>,
    /// Whether this was the second try, so that there is no other.
    pub is_repeated: bool,
}
