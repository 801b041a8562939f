//! Supplies access tokens to connections, and refreshes them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use tokio::sync::Mutex as AsyncMutex;

use super::OAuthSettings;
use super::challenge::BearerChallenge;
use super::login::{not_logged_in, take_lock, with_configured_secret};
use super::record::{AccessDemand, KnownClient, LoginRecord, TokenGrant};
use super::secret::SecretText;
use super::store::CredentialStore;
use super::token::{IssuedTokens, TokenFailure, refresh_tokens};
use crate::auth::{AuthProvider, AuthRefusal, Authorization};
use crate::error::{ClientError, ErrorKind, Result};

/// First wait after a refresh that failed; each further one is twice as long.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(300);

/// Time for which a token is used before the store is read again: a user who logs out, or logs in as
/// someone else, does so in another process.
const REREAD_INTERVAL: Duration = Duration::from_secs(10);

/// Supplies the tokens of servers that someone has logged in to.
pub struct OAuthProvider {
    accounts: BTreeMap<String, Arc<OAuthAccount>>,
}

/// Login of one server.
struct OAuthAccount {
    settings: OAuthSettings,
    store: Arc<dyn CredentialStore>,
    /// Token that is in use, so that not every request reads the store.
    current: Mutex<Option<CurrentGrant>>,
    /// Taken while tokens are renewed: callers that come together cause one refresh.
    renewal: AsyncMutex<RenewalState>,
    /// The credentials that the server refused last; there may have been none.
    refused: Mutex<Option<Option<Authorization>>>,
}

struct CurrentGrant {
    grant: TokenGrant,
    read_at: Instant,
}

#[derive(Default)]
struct RenewalState {
    failure: Option<RenewalFailure>,
}

struct RenewalFailure {
    error: ClientError,
    count: u32,
    retry_at: Instant,
}

impl OAuthProvider {
    /// Creates the provider of some servers. Nothing is read yet.
    pub fn new(
        servers: impl IntoIterator<Item = OAuthSettings>,
        store: Arc<dyn CredentialStore>,
    ) -> OAuthProvider {
        let accounts = servers.into_iter().map(|settings| {
            let id = settings.server_id.clone();
            let account = OAuthAccount {
                settings,
                store: Arc::clone(&store),
                current: Mutex::default(),
                renewal: AsyncMutex::default(),
                refused: Mutex::default(),
            };
            (id, Arc::new(account))
        });
        OAuthProvider { accounts: accounts.collect() }
    }

    fn account(&self, server_id: &str) -> Result<Arc<OAuthAccount>> {
        self.accounts.get(server_id).cloned().ok_or_else(|| {
            let message = format!("there are no OAuth settings for server `{server_id}`");
            ClientError::new(ErrorKind::InvalidConfig, message)
        })
    }
}

impl AuthProvider for OAuthProvider {
    fn authorization(&self, server_id: &str) -> BoxFuture<'_, Result<Option<Authorization>>> {
        let account = self.account(server_id);
        Box::pin(async move {
            let account = account?;
            if let Some(authorization) = account.current_authorization() {
                return Ok(Some(authorization));
            }
            let grant = account.renew(None).await?;
            Ok(grant.map(|grant| bearer(&grant.access_token)))
        })
    }

    fn handle_refusal(&self, refusal: AuthRefusal) -> BoxFuture<'_, Result<bool>> {
        let account = self.account(&refusal.server_id);
        Box::pin(async move {
            let account = account?;
            *lock(&account.refused) = Some(refusal.authorization.clone());
            account.handle_refusal(refusal).await
        })
    }

    fn has_new_credentials(&self, server_id: &str) -> BoxFuture<'_, bool> {
        let account = self.account(server_id);
        Box::pin(async move {
            let Ok(account) = account else { return false };
            // What cannot be read is no new login.
            let record = LoginRecord::load(&account.settings, &*account.store).await;
            let grant = record.ok().and_then(|record| record.grant);
            let token = grant.map(|grant| bearer(&grant.access_token));
            token.is_some() && lock(&account.refused).as_ref().is_some_and(|it| *it != token)
        })
    }
}

impl OAuthAccount {
    /// Returns the token that is in use, if there is no reason to look for another.
    fn current_authorization(&self) -> Option<Authorization> {
        let current = lock(&self.current);
        let current =
            current.as_ref().filter(|current| current.read_at.elapsed() < REREAD_INTERVAL)?;
        current.grant.is_fresh().then(|| bearer(&current.grant.access_token))
    }

    /// Returns a token that can be used: from the store, or refreshed. `refused` is one that the server
    /// does not accept. `None` if no one has logged in.
    ///
    /// It runs in a task of its own: a caller that gives up must not interrupt a refresh, whose new
    /// token would be lost after the old one has become invalid.
    async fn renew(self: &Arc<Self>, refused: Option<Authorization>) -> Result<Option<TokenGrant>> {
        let account = Arc::clone(self);
        let renewing = tokio::spawn(async move { account.renew_grant(refused).await });
        renewing.await.unwrap_or_else(|error| {
            let message = format!("refreshing the login was interrupted: {error}");
            Err(ClientError::new(ErrorKind::Unavailable, message))
        })
    }

    async fn renew_grant(&self, refused: Option<Authorization>) -> Result<Option<TokenGrant>> {
        let mut renewal = self.renewal.lock().await;
        let is_usable = |grant: &TokenGrant| {
            grant.is_fresh() && refused.as_ref() != Some(&bearer(&grant.access_token))
        };
        let record = LoginRecord::load(&self.settings, &*self.store).await?;
        let Some(grant) = record.grant else { return Ok(self.set_current(None)) };
        if is_usable(&grant) {
            renewal.failure = None;
            return Ok(self.set_current(Some(grant)));
        }
        // A token that is about to end is better than none.
        let fallback = Some(grant).filter(|grant| refused.is_none() && grant.is_valid());
        let renewed = match renewal.check_backoff() {
            Ok(()) => self.refresh_locked(is_usable).await,
            Err(error) => Err(error),
        };
        match renewed {
            Ok(grant) => {
                renewal.failure = None;
                Ok(self.set_current(grant))
            }
            Err(error) => {
                renewal.note_failure(&error);
                self.set_current(None);
                fallback.map(Some).ok_or(error)
            }
        }
    }

    /// Refreshes under the lock of the store. Another process may have done it while we waited.
    async fn refresh_locked(
        &self,
        is_usable: impl Fn(&TokenGrant) -> bool,
    ) -> Result<Option<TokenGrant>> {
        let _lock = take_lock(&self.settings, &*self.store).await?;
        let mut record = LoginRecord::load(&self.settings, &*self.store).await?;
        let Some(grant) = record.grant.take() else { return Ok(None) };
        if is_usable(&grant) {
            return Ok(Some(grant));
        }
        let client = record.client.clone().filter(|client| self.is_client_of(client, &grant));
        let (Some(client), Some(refresh_token)) = (client, &grant.refresh_token) else {
            return Err(self.login_ended("has ended"));
        };
        let client = with_configured_secret(&self.settings, client);
        let web = self.settings.open_web();
        match refresh_tokens(&web, &client, &grant, refresh_token).await {
            Ok(tokens) => {
                let grant = update_grant(grant, tokens);
                record.grant = Some(grant.clone());
                record.save(&self.settings, &*self.store).await?;
                Ok(Some(grant))
            }
            // The only answer that ends the tokens; they are gone from the record already.
            Err(TokenFailure::Refused { code, .. }) if code == "invalid_grant" => {
                record.save(&self.settings, &*self.store).await?;
                Err(self.login_ended("has ended or was revoked"))
            }
            Err(TokenFailure::Refused { code, .. }) if code == "invalid_client" => {
                // The next login registers again.
                record.grant = Some(grant);
                record.client = Some(KnownClient { is_rejected: true, ..client.to_stored() });
                record.save(&self.settings, &*self.store).await?;
                Err(self.login_ended("is of a client that is no longer known"))
            }
            Err(TokenFailure::Refused { error, .. }) => {
                Err(error.with_hint(self.settings.login_hint.clone()))
            }
            Err(TokenFailure::Other(error)) => {
                let context = format!(
                    "the login of server `{}` cannot be refreshed",
                    self.settings.server_id
                );
                // A server that is down comes back; one that answers something else may have moved.
                Err(match error.kind() {
                    ErrorKind::BadResponse => error.with_hint(self.settings.login_hint.clone()),
                    _ => error,
                }
                .with_context(context))
            }
        }
    }

    /// Returns whether tokens are for this client, and the configuration names no other.
    fn is_client_of(&self, client: &KnownClient, grant: &TokenGrant) -> bool {
        let configured = self.settings.configured_client.as_ref();
        client.client_id == grant.client_id
            && client.issuer == grant.issuer
            && configured.is_none_or(|configured| configured.client_id == client.client_id)
    }

    async fn handle_refusal(self: &Arc<Self>, refusal: AuthRefusal) -> Result<bool> {
        let challenge = BearerChallenge::parse(&refusal.challenge);
        if refusal.status == 403 {
            if challenge.error.as_deref() != Some("insufficient_scope") {
                return Ok(false);
            }
            if !refusal.is_repeated && self.find_other(refusal.authorization.as_ref()).await? {
                return Ok(true);
            }
            let scopes = challenge.scopes.join(" ");
            self.note_demand(challenge).await?;
            let message = format!(
                "the login of server `{}` has too few rights; it also needs: {scopes}",
                self.settings.server_id
            );
            return Err(ClientError::new(ErrorKind::Unauthenticated, message)
                .with_hint(self.settings.login_hint.clone())
                .with_scope_missing());
        }
        let Some(refused) = refusal.authorization.filter(|_| !refusal.is_repeated) else {
            self.note_demand(challenge).await?;
            return Err(not_logged_in(&self.settings));
        };
        match self.renew(Some(refused)).await {
            Ok(Some(_)) => Ok(true),
            Ok(None) => {
                self.note_demand(challenge).await?;
                Err(not_logged_in(&self.settings))
            }
            Err(error) => {
                if error.kind() == ErrorKind::Unauthenticated {
                    self.note_demand(challenge).await?;
                }
                Err(error)
            }
        }
    }

    /// Returns whether someone has logged in with other rights in the meantime.
    async fn find_other(&self, refused: Option<&Authorization>) -> Result<bool> {
        let record = LoginRecord::load(&self.settings, &*self.store).await?;
        let is_other =
            |grant: &TokenGrant| grant.is_fresh() && refused != Some(&bearer(&grant.access_token));
        Ok(self.set_current(record.grant.filter(is_other)).is_some())
    }

    /// Stores what the server asks for, for the next login.
    async fn note_demand(&self, challenge: BearerChallenge) -> Result<()> {
        let BearerChallenge { resource_metadata, scopes, .. } = challenge;
        let demand = AccessDemand { resource_metadata, scopes };
        let _lock = take_lock(&self.settings, &*self.store).await?;
        let mut record = LoginRecord::load(&self.settings, &*self.store).await?;
        if demand != AccessDemand::default() && record.demand.as_ref() != Some(&demand) {
            record.demand = Some(demand);
            record.save(&self.settings, &*self.store).await?;
        }
        Ok(())
    }

    fn set_current(&self, grant: Option<TokenGrant>) -> Option<TokenGrant> {
        let read_at = Instant::now();
        *lock(&self.current) = grant.clone().map(|grant| CurrentGrant { grant, read_at });
        grant
    }

    fn login_ended(&self, reason: &str) -> ClientError {
        let message = format!("the login of server `{}` {reason}", self.settings.server_id);
        ClientError::new(ErrorKind::Unauthenticated, message)
            .with_hint(self.settings.login_hint.clone())
    }
}

impl RenewalState {
    /// Fails while the wait after the last failure is not over.
    fn check_backoff(&self) -> Result<()> {
        match &self.failure {
            Some(failure) if Instant::now() < failure.retry_at => Err(failure.error.clone()),
            _ => Ok(()),
        }
    }

    fn note_failure(&mut self, error: &ClientError) {
        if self.check_backoff().is_err() {
            return;
        }
        let count = self.failure.as_ref().map_or(0, |failure| failure.count) + 1;
        let wait = FIRST_BACKOFF.saturating_mul(1 << (count - 1).min(16)).min(MAX_BACKOFF);
        let retry_at = Instant::now() + wait;
        self.failure = Some(RenewalFailure { error: error.clone(), count, retry_at });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bearer(token: &SecretText) -> Authorization {
    Authorization::new(format!("Bearer {}", token.expose()))
}

/// Puts new tokens in place of old ones. What the answer leaves out stays as it was.
fn update_grant(grant: TokenGrant, tokens: IssuedTokens) -> TokenGrant {
    TokenGrant {
        access_token: tokens.access_token,
        refresh_token: tokens.refresh_token.or(grant.refresh_token),
        received_at: tokens.received_at,
        lifetime: tokens.lifetime,
        scopes: tokens.scopes.unwrap_or(grant.scopes),
        ..grant
    }
}
