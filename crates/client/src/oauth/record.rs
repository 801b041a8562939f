//! The login of one server, as it is stored.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use url::Url;

use super::OAuthSettings;
use super::secret::SecretText;
use super::store::CredentialStore;
use crate::error::{ClientError, ErrorKind, Result};

/// Version of the format.
const FORMAT_VERSION: u32 = 1;
/// A token is refreshed this long before its end, or a tenth of its life if that is shorter.
const MAX_REFRESH_MARGIN: u64 = 30;

/// Everything that is kept about one server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LoginRecord {
    version: u32,
    /// Server that the rest is for. With another address in the configuration nothing of it is used:
    /// tokens must not go to another server.
    server_url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) client: Option<KnownClient>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) grant: Option<TokenGrant>,
    /// What the server asked for when it last refused us; the next login asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) demand: Option<AccessDemand>,
}

/// How we are known to an authorization server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownClient {
    /// Authorization server that knows the client. Another one must not see its credentials.
    pub(super) issuer: String,
    pub(super) client_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) client_secret: Option<SecretText>,
    pub(super) method: ClientAuthMethod,
    pub(super) origin: ClientOrigin,
    /// Port of the redirect address that was registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) redirect_port: Option<u16>,
    /// Whether the authorization server no longer knows the client.
    #[serde(default)]
    pub(super) is_rejected: bool,
}

/// How a client identifies itself at the token endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ClientAuthMethod {
    None,
    ClientSecretBasic,
    ClientSecretPost,
}

/// Where a client id comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ClientOrigin {
    /// The configuration.
    Configured,
    /// The address of a metadata document.
    Document,
    /// Dynamic registration.
    Registered,
}

/// Tokens, and where to refresh or revoke them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct TokenGrant {
    pub(super) issuer: String,
    pub(super) client_id: String,
    pub(super) token_endpoint: Url,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) revocation_endpoint: Option<Url>,
    /// Resource indicator, exactly as the server publishes it.
    pub(super) resource: String,
    pub(super) access_token: SecretText,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refresh_token: Option<SecretText>,
    pub(super) received_at: u64,
    /// Seconds for which the access token is valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lifetime: Option<u64>,
    pub(super) scopes: Vec<String>,
}

/// What a server asks for in a challenge.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AccessDemand {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) resource_metadata: Option<String>,
    #[serde(default)]
    pub(super) scopes: Vec<String>,
}

impl LoginRecord {
    fn new(settings: &OAuthSettings) -> LoginRecord {
        LoginRecord {
            version: FORMAT_VERSION,
            server_url: settings.server_url.to_string(),
            client: None,
            grant: None,
            demand: None,
        }
    }

    /// Loads the record of a server. A record for another address is as good as none.
    pub(super) async fn load(
        settings: &OAuthSettings,
        store: &dyn CredentialStore,
    ) -> Result<LoginRecord> {
        let Some(text) = store.load(&settings.server_id).await? else {
            return Ok(LoginRecord::new(settings));
        };
        // The error of the parser would quote the text.
        let record: Option<LoginRecord> = serde_json::from_str(text.expose()).ok();
        match record.filter(|record| record.version == FORMAT_VERSION) {
            Some(record) if record.server_url == settings.server_url.as_str() => Ok(record),
            Some(_) => Ok(LoginRecord::new(settings)),
            None => Err(ClientError::new(
                ErrorKind::Unauthenticated,
                format!("the stored login of server `{}` cannot be read", settings.server_id),
            )
            .with_hint(settings.login_hint.clone())),
        }
    }

    /// Loads the record of a server for a login, which replaces one that cannot be read.
    pub(super) async fn load_or_reset(
        settings: &OAuthSettings,
        store: &dyn CredentialStore,
    ) -> Result<LoginRecord> {
        match LoginRecord::load(settings, store).await {
            Err(error) if error.kind() == ErrorKind::Unauthenticated => {
                Ok(LoginRecord::new(settings))
            }
            loaded => loaded,
        }
    }

    pub(super) async fn save(
        &self,
        settings: &OAuthSettings,
        store: &dyn CredentialStore,
    ) -> Result<()> {
        let text = serde_json::to_string(self).map_err(|error| {
            ClientError::new(ErrorKind::Unavailable, format!("the login cannot be stored: {error}"))
        })?;
        store.save(&settings.server_id, SecretText::new(text)).await
    }
}

impl KnownClient {
    /// Returns the client as it is stored: without a secret that the configuration has.
    pub(super) fn to_stored(&self) -> KnownClient {
        let secret = self.client_secret.clone();
        let client_secret = secret.filter(|_| self.origin == ClientOrigin::Registered);
        KnownClient { client_secret, ..self.clone() }
    }
}

impl TokenGrant {
    /// Returns when the access token ends, if that is known.
    pub(super) fn expires_at(&self) -> Option<SystemTime> {
        let seconds = self.received_at.saturating_add(self.lifetime?);
        UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    }

    /// Returns whether the access token can be used without a refresh.
    pub(super) fn is_fresh(&self) -> bool {
        self.lifetime.is_none_or(|lifetime| {
            let margin = MAX_REFRESH_MARGIN.min(lifetime / 10);
            unix_now() < self.received_at.saturating_add(lifetime - margin)
        })
    }

    /// Returns whether the access token is valid, as far as the clock says.
    pub(super) fn is_valid(&self) -> bool {
        self.lifetime.is_none_or(|lifetime| unix_now() < self.received_at.saturating_add(lifetime))
    }
}

/// Returns the seconds since 1970.
pub(super) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}
