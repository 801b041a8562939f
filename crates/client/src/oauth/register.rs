//! How we are known to an authorization server: by configuration, by a metadata document, or by
//! dynamic registration (RFC 7591).

use serde::Deserialize;
use serde_json::json;

use super::OAuthSettings;
use super::address::show_url;
use super::discover::{ServerMetadata, is_same_issuer, show_text};
use super::record::{ClientAuthMethod, ClientOrigin, KnownClient, LoginRecord};
use super::redirect::redirect_uri;
use super::secret::SecretText;
use super::web::{OAuthRequest, OAuthWeb};
use crate::error::{ClientError, ErrorKind, Result};

/// Longest client id or secret that is accepted.
const MAX_CLIENT_BYTES: usize = 4 << 10;

#[derive(Deserialize)]
struct RegistrationAnswer {
    client_id: String,
    #[serde(default)]
    client_secret: Option<SecretText>,
    #[serde(default)]
    token_endpoint_auth_method: Option<String>,
}

/// Returns the client that the authorization server knows already. `None` if one must be registered.
pub(super) fn find_client(
    settings: &OAuthSettings,
    metadata: &ServerMetadata,
    record: &LoginRecord,
) -> Result<Option<KnownClient>> {
    let known = record.client.as_ref().filter(|client| !client.is_rejected);
    if let Some(configured) = &settings.configured_client {
        check_issuer(settings, metadata, record)?;
        return Ok(Some(KnownClient {
            issuer: metadata.issuer.clone(),
            client_id: configured.client_id.clone(),
            client_secret: configured.client_secret.clone(),
            method: choose_method(configured.client_secret.is_some(), metadata),
            origin: ClientOrigin::Configured,
            redirect_port: None,
            is_rejected: false,
        }));
    }
    if let Some(url) = &settings.client_metadata_url
        && metadata.client_id_metadata_document_supported
    {
        return Ok(Some(KnownClient {
            issuer: metadata.issuer.clone(),
            client_id: url.to_string(),
            client_secret: None,
            method: ClientAuthMethod::None,
            origin: ClientOrigin::Document,
            redirect_port: None,
            is_rejected: false,
        }));
    }
    let is_usable = |client: &&KnownClient| {
        client.origin == ClientOrigin::Registered && client.issuer == metadata.issuer
    };
    Ok(known.filter(is_usable).cloned())
}

/// Checks that a configured client is for this authorization server. If the configuration does not
/// say which one it is for, it is the first that saw it: a server that changes its authorization
/// server must not get the secret for the old one.
fn check_issuer(
    settings: &OAuthSettings,
    metadata: &ServerMetadata,
    record: &LoginRecord,
) -> Result<()> {
    let Some(configured) = &settings.configured_client else { return Ok(()) };
    let seen = record.client.as_ref().filter(|client| {
        client.origin == ClientOrigin::Configured && client.client_id == configured.client_id
    });
    let expected = configured.issuer.as_ref().or(seen.map(|client| &client.issuer));
    match expected {
        Some(expected) if !is_same_issuer(expected, &metadata.issuer) => Err(ClientError::new(
            ErrorKind::Unauthenticated,
            format!(
                "the configured client of server `{}` is for the authorization server {}, but the \
                 server now uses {}",
                settings.server_id,
                show_text(expected),
                show_text(&metadata.issuer)
            ),
        )
        .with_hint("If that is right, configure a client for the new one, log out and log in.")),
        _ => Ok(()),
    }
}

/// Chooses how a client identifies itself, by what the authorization server supports.
fn choose_method(has_secret: bool, metadata: &ServerMetadata) -> ClientAuthMethod {
    let methods = metadata.token_endpoint_auth_methods_supported.as_deref();
    let supports = |name: &str| methods.is_some_and(|methods| methods.iter().any(|it| it == name));
    match has_secret {
        false => ClientAuthMethod::None,
        true if supports("client_secret_post") && !supports("client_secret_basic") => {
            ClientAuthMethod::ClientSecretPost
        }
        true => ClientAuthMethod::ClientSecretBasic,
    }
}

/// Registers a client.
pub(super) async fn register_client(
    settings: &OAuthSettings,
    web: &OAuthWeb,
    metadata: &ServerMetadata,
    redirect_port: u16,
    scopes: &[String],
) -> Result<KnownClient> {
    let Some(endpoint) = &metadata.registration_endpoint else {
        let message = format!(
            "the authorization server {} does not support dynamic client registration",
            show_text(&metadata.issuer)
        );
        return Err(ClientError::new(ErrorKind::Unauthenticated, message)
            .with_hint("Register a client there by hand and configure its client id."));
    };
    // A program on a user's machine can keep no secret from the user, so that none is wanted.
    let methods = metadata.token_endpoint_auth_methods_supported.as_deref().unwrap_or_default();
    let wants_secret = !methods.is_empty() && !methods.iter().any(|method| method == "none");
    let method = choose_method(wants_secret, metadata);
    let mut request = json!({
        "client_name": settings.client_name,
        "redirect_uris": [redirect_uri(redirect_port)],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        "application_type": "native",
    });
    if !scopes.is_empty() {
        request["scope"] = scopes.join(" ").into();
    }
    let answer = web.send(endpoint, OAuthRequest::Post(request.to_string())).await?;
    let registered: Option<RegistrationAnswer> =
        answer.status.is_success().then(|| answer.read_json()).flatten();
    let Some(registered) = registered.filter(is_sendable) else {
        let (place, status) = (show_url(endpoint), answer.status);
        let message = format!("{place} did not register a client (HTTP status {status})");
        return Err(ClientError::new(ErrorKind::BadResponse, message)
            .with_hint("Register a client there by hand and configure its client id."));
    };
    let secret = registered.client_secret.filter(|secret| !secret.expose().is_empty());
    let method = match registered.token_endpoint_auth_method.as_deref() {
        _ if secret.is_none() => ClientAuthMethod::None,
        Some("none") => ClientAuthMethod::None,
        Some("client_secret_basic") => ClientAuthMethod::ClientSecretBasic,
        Some("client_secret_post") => ClientAuthMethod::ClientSecretPost,
        _ => method,
    };
    Ok(KnownClient {
        issuer: metadata.issuer.clone(),
        client_id: registered.client_id,
        client_secret: secret,
        method,
        origin: ClientOrigin::Registered,
        redirect_port: Some(redirect_port),
        is_rejected: false,
    })
}

fn is_sendable(registered: &RegistrationAnswer) -> bool {
    let secret = registered.client_secret.as_ref().map_or("", SecretText::expose);
    let is_text = |text: &str| text.len() <= MAX_CLIENT_BYTES && !text.contains(char::is_control);
    !registered.client_id.is_empty() && is_text(&registered.client_id) && is_text(secret)
}
