//! Logging in by a browser, logging out, and the state of a login.

use std::time::{Duration, SystemTime};

use super::OAuthSettings;
use super::authorize::PendingAuthorization;
use super::discover::{DiscoveredServer, discover_server, is_same_issuer, probe_server};
use super::record::{ClientOrigin, KnownClient, LoginRecord, TokenGrant};
use super::redirect::{RedirectListener, redirect_uri};
use super::register::{find_client, register_client};
use super::secret::SecretText;
use super::store::{CredentialStore, StoreLock};
use super::token::{IssuedTokens, TokenFailure, exchange_code, revoke_token};
use super::web::OAuthWeb;
use crate::error::{ClientError, ErrorKind, Result};

/// How a login is carried out.
#[derive(Debug, Clone)]
pub struct LoginOptions {
    /// Time for the user in the browser.
    pub timeout: Duration,
    /// Port of the redirect address, for a client that was registered with a certain one.
    pub redirect_port: Option<u16>,
}

impl Default for LoginOptions {
    fn default() -> LoginOptions {
        LoginOptions { timeout: Duration::from_secs(300), redirect_port: None }
    }
}

/// State of a login, as it is stored. No server was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginStatus {
    /// Authorization server that issued the tokens.
    pub issuer: String,
    pub client_id: String,
    pub scopes: Vec<String>,
    /// End of the access token, if that is known.
    pub expires_at: Option<SystemTime>,
    /// Whether the access token is refreshed without the user.
    pub can_refresh: bool,
    /// Scopes that the server asked for and that the login does not have.
    pub missing_scopes: Vec<String>,
}

/// What logging out did. The stored login is gone in any case.
#[derive(Debug, Clone)]
pub enum LogoutOutcome {
    /// There was no login.
    LoggedOut,
    /// The authorization server no longer accepts the tokens.
    Revoked,
    /// The authorization server offers no revocation: the tokens stay valid until they end.
    NotSupported,
    /// Revoking failed: the tokens stay valid until they end.
    NotRevoked(ClientError),
}

/// Logs in. `open_url` is given the address that the user must open in a browser on this machine; it
/// is called once and must return at once.
///
/// Scopes are those that the server asked for, in addition to those of the login that exists.
pub async fn login(
    settings: &OAuthSettings,
    store: &dyn CredentialStore,
    options: &LoginOptions,
    open_url: &(dyn Fn(&url::Url) + Sync),
) -> Result<LoginStatus> {
    let web = settings.open_web();
    web.policy().check_url(&settings.server_url)?;
    let record = LoginRecord::load_or_reset(settings, store).await?;
    let demand = match &record.demand {
        Some(demand) => demand.clone(),
        None => probe_server(settings, &web).await?,
    };
    let server = discover_server(settings, &web, &demand).await?;
    let scopes = select_scopes(settings, &server, &record, &demand.scopes);
    let (client, listener) =
        prepare_client(settings, &web, &server, &record, options, &scopes).await?;
    // Before the user is asked: a registration must not be lost with a login that is given up.
    keep_client(settings, store, &client).await?;
    let pending =
        PendingAuthorization::new(&server, &client, &redirect_uri(listener.port), &scopes)?;
    open_url(&pending.url);
    match redeem_answer(settings, options, &server, &client, &listener, &pending).await {
        Ok(tokens) => keep_tokens(settings, store, server, client, tokens, scopes).await,
        Err(failure) => {
            if failure.may_concern_client() {
                reject_client(settings, store, &client).await?;
            }
            Err(ClientError::from(failure).with_hint(settings.login_hint.clone()))
        }
    }
}

/// Waits for the browser and exchanges the code that it brings for tokens.
async fn redeem_answer(
    settings: &OAuthSettings,
    options: &LoginOptions,
    server: &DiscoveredServer,
    client: &KnownClient,
    listener: &RedirectListener,
    pending: &PendingAuthorization,
) -> Result<IssuedTokens, TokenFailure> {
    let answer = listener.receive(|query| pending.read_callback(query));
    let code = tokio::time::timeout(options.timeout, answer).await.unwrap_or_else(|_| {
        let seconds = options.timeout.as_secs_f32();
        let message = format!("no answer came from the browser within {seconds} s");
        Err(ClientError::new(ErrorKind::DeadlineExceeded, message))
    });
    let code = code.map_err(TokenFailure::Other)?;
    // The user took time, so that the clock starts again.
    let web = settings.open_web();
    let redirect_uri = redirect_uri(listener.port);
    let fields = [
        ("code", code.expose()),
        ("redirect_uri", &redirect_uri),
        ("code_verifier", pending.verifier.expose()),
        ("resource", &server.resource),
    ];
    exchange_code(&web, &server.metadata.token_endpoint, client, &fields).await
}

/// Selects the scopes of a login: those of the server's challenge, else those of its metadata, else
/// those of the configuration, together with those that were granted before.
fn select_scopes(
    settings: &OAuthSettings,
    server: &DiscoveredServer,
    record: &LoginRecord,
    demanded: &[String],
) -> Vec<String> {
    let metadata = &server.metadata;
    let mut scopes = [demanded, &server.resource_scopes, &settings.scopes]
        .into_iter()
        .find(|scopes| !scopes.is_empty())
        .map_or_else(Vec::new, <[String]>::to_vec);
    let granted = record.grant.as_ref().filter(|grant| grant.issuer == metadata.issuer);
    // Without any, the authorization server chooses; naming one would be a restriction.
    if !scopes.is_empty() {
        scopes.extend(granted.into_iter().flat_map(|grant| grant.scopes.clone()));
        let offline = metadata.scopes_supported.iter().filter(|scope| *scope == "offline_access");
        scopes.extend(offline.cloned());
    }
    let mut seen = std::collections::BTreeSet::new();
    scopes.retain(|scope| seen.insert(scope.clone()));
    scopes
}

/// Returns the client to log in with, and the listener on its redirect address.
async fn prepare_client(
    settings: &OAuthSettings,
    web: &OAuthWeb,
    server: &DiscoveredServer,
    record: &LoginRecord,
    options: &LoginOptions,
    scopes: &[String],
) -> Result<(KnownClient, RedirectListener)> {
    let metadata = &server.metadata;
    if let Some(client) = find_client(settings, metadata, record)? {
        let is_registered = client.origin == ClientOrigin::Registered;
        let port = if is_registered { client.redirect_port } else { options.redirect_port };
        match RedirectListener::bind(port).await {
            Ok(listener) => return Ok((client, listener)),
            // Its port is in use, and authorization servers may insist on it.
            Err(_) if is_registered => {}
            Err(error) => return Err(error),
        }
    }
    let listener = RedirectListener::bind(options.redirect_port).await?;
    let client = register_client(settings, web, metadata, listener.port, scopes).await?;
    Ok((client, listener))
}

async fn keep_client(
    settings: &OAuthSettings,
    store: &dyn CredentialStore,
    client: &KnownClient,
) -> Result<()> {
    let _lock = take_lock(settings, store).await?;
    let mut record = LoginRecord::load_or_reset(settings, store).await?;
    let client = client.to_stored();
    // Tokens of an earlier client work until the login is complete.
    if record.grant.is_some() || record.client.as_ref() == Some(&client) {
        return Ok(());
    }
    record.client = Some(client);
    record.save(settings, store).await
}

/// Notes that an authorization server may no longer know a client, so that the next login registers
/// again. Many show an error in the browser then, and do not tell us.
async fn reject_client(
    settings: &OAuthSettings,
    store: &dyn CredentialStore,
    client: &KnownClient,
) -> Result<()> {
    let _lock = take_lock(settings, store).await?;
    let mut record = LoginRecord::load_or_reset(settings, store).await?;
    match &mut record.client {
        Some(known) if known.client_id == client.client_id => known.is_rejected = true,
        _ => return Ok(()),
    }
    record.save(settings, store).await
}

async fn keep_tokens(
    settings: &OAuthSettings,
    store: &dyn CredentialStore,
    server: DiscoveredServer,
    client: KnownClient,
    tokens: IssuedTokens,
    asked_scopes: Vec<String>,
) -> Result<LoginStatus> {
    let _lock = take_lock(settings, store).await?;
    let mut record = LoginRecord::load_or_reset(settings, store).await?;
    record.grant = Some(TokenGrant {
        issuer: server.metadata.issuer,
        client_id: client.client_id.clone(),
        token_endpoint: server.metadata.token_endpoint,
        revocation_endpoint: server.metadata.revocation_endpoint,
        resource: server.resource,
        access_token: tokens.access_token,
        refresh_token: tokens.refresh_token,
        received_at: tokens.received_at,
        lifetime: tokens.lifetime,
        scopes: tokens.scopes.unwrap_or(asked_scopes),
    });
    record.client = Some(client.to_stored());
    record.demand = None;
    record.save(settings, store).await?;
    read_status(&record).ok_or_else(|| not_logged_in(settings))
}

/// Logs out: revokes the tokens where that is possible, and removes the stored login.
pub async fn logout(
    settings: &OAuthSettings,
    store: &dyn CredentialStore,
) -> Result<LogoutOutcome> {
    let _lock = take_lock(settings, store).await?;
    let record = LoginRecord::load_or_reset(settings, store).await?;
    let outcome = match (record.grant, record.client) {
        (Some(grant), Some(client)) => revoke_grant(settings, &grant, client).await,
        _ => LogoutOutcome::LoggedOut,
    };
    store.clear(&settings.server_id).await?;
    Ok(outcome)
}

async fn revoke_grant(
    settings: &OAuthSettings,
    grant: &TokenGrant,
    client: KnownClient,
) -> LogoutOutcome {
    let Some(endpoint) = &grant.revocation_endpoint else { return LogoutOutcome::NotSupported };
    let (web, client) = (settings.open_web(), with_configured_secret(settings, client));
    // The refresh token first: with it, new access tokens could be had.
    let tokens = grant.refresh_token.iter().map(|token| (token, "refresh_token"));
    for (token, kind) in tokens.chain([(&grant.access_token, "access_token")]) {
        match revoke_token(&web, endpoint, &client, token, kind).await {
            Ok(()) => {}
            // Access tokens that are not stored by the server cannot be revoked; they end soon.
            Err(_) if kind == "access_token" && grant.refresh_token.is_some() => {}
            Err(error) => return LogoutOutcome::NotRevoked(error),
        }
    }
    LogoutOutcome::Revoked
}

/// Returns the state of the login. `None` if there is none.
pub async fn status(
    settings: &OAuthSettings,
    store: &dyn CredentialStore,
) -> Result<Option<LoginStatus>> {
    Ok(read_status(&LoginRecord::load(settings, store).await?))
}

fn read_status(record: &LoginRecord) -> Option<LoginStatus> {
    let grant = record.grant.as_ref()?;
    let demanded = record.demand.iter().flat_map(|demand| &demand.scopes);
    Some(LoginStatus {
        issuer: grant.issuer.clone(),
        client_id: grant.client_id.clone(),
        scopes: grant.scopes.clone(),
        expires_at: grant.expires_at(),
        can_refresh: grant.refresh_token.is_some(),
        missing_scopes: demanded.filter(|scope| !grant.scopes.contains(scope)).cloned().collect(),
    })
}

/// Takes the lock of a server, and gives up when the time for OAuth work is over.
pub(super) async fn take_lock(
    settings: &OAuthSettings,
    store: &dyn CredentialStore,
) -> Result<StoreLock> {
    let timeout = settings.limits.oauth_timeout;
    tokio::time::timeout(timeout, store.lock(&settings.server_id)).await.unwrap_or_else(|_| {
        let message = format!(
            "another process has been changing the login of server `{}` for {} s",
            settings.server_id,
            timeout.as_secs_f32()
        );
        Err(ClientError::new(ErrorKind::DeadlineExceeded, message).with_hint("Try again."))
    })
}

/// Adds the secret of the configuration, which is not stored.
pub(super) fn with_configured_secret(settings: &OAuthSettings, client: KnownClient) -> KnownClient {
    let configured = settings.configured_client.as_ref().filter(|configured| {
        let issuer = configured.issuer.as_deref();
        client.client_id == configured.client_id
            && issuer.is_none_or(|issuer| is_same_issuer(issuer, &client.issuer))
    });
    let secret: Option<SecretText> = configured.and_then(|client| client.client_secret.clone());
    KnownClient { client_secret: client.client_secret.or(secret), ..client }
}

pub(super) fn not_logged_in(settings: &OAuthSettings) -> ClientError {
    ClientError::new(
        ErrorKind::Unauthenticated,
        format!("the server `{}` wants a login", settings.server_id),
    )
    .with_hint(settings.login_hint.clone())
}
