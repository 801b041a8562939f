//! The token endpoint and the revocation endpoint.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::Value;
use url::Url;

use super::address::show_url;
use super::challenge::read_scopes;
use super::discover::show_text;
use super::record::{ClientAuthMethod, KnownClient, TokenGrant, unix_now};
use super::secret::SecretText;
use super::web::{OAuthAnswer, OAuthRequest, OAuthWeb};
use crate::error::{ClientError, ErrorKind, Result};

/// Longest token that is accepted. A server would refuse longer headers.
const MAX_TOKEN_BYTES: usize = 16 << 10;
/// Longest life of a token that is believed, in seconds.
const MAX_LIFETIME: u64 = 10 * 365 * 24 * 3600;

/// Why there is no token.
#[derive(Debug)]
pub(super) enum TokenFailure {
    /// The authorization server refuses with a code of OAuth, such as `invalid_grant`.
    Refused { code: String, error: ClientError },
    /// Nothing is known about the tokens.
    Other(ClientError),
}

impl TokenFailure {
    /// Returns whether the reason may be that the authorization server does not know the client.
    pub(super) fn may_concern_client(&self) -> bool {
        match self {
            TokenFailure::Refused { code, .. } => {
                ["invalid_client", "unauthorized_client"].contains(&code.as_str())
            }
            TokenFailure::Other(error) => error.kind() == ErrorKind::DeadlineExceeded,
        }
    }
}

impl From<TokenFailure> for ClientError {
    fn from(failure: TokenFailure) -> ClientError {
        match failure {
            TokenFailure::Refused { error, .. } | TokenFailure::Other(error) => error,
        }
    }
}

/// Tokens of a successful answer.
#[derive(Debug)]
pub(super) struct IssuedTokens {
    pub(super) access_token: SecretText,
    pub(super) refresh_token: Option<SecretText>,
    pub(super) received_at: u64,
    pub(super) lifetime: Option<u64>,
    /// `None` if they are those that were asked for.
    pub(super) scopes: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct TokenAnswer {
    access_token: SecretText,
    token_type: String,
    #[serde(default)]
    refresh_token: Option<SecretText>,
    /// Some servers send a string.
    #[serde(default)]
    expires_in: Value,
    #[serde(default)]
    scope: Option<String>,
}

#[derive(Deserialize)]
struct ErrorAnswer {
    error: String,
    #[serde(default)]
    error_description: String,
}

/// Exchanges an authorization code for tokens.
pub(super) async fn exchange_code(
    web: &OAuthWeb,
    endpoint: &Url,
    client: &KnownClient,
    fields: &[(&str, &str)],
) -> Result<IssuedTokens, TokenFailure> {
    let mut form = vec![("grant_type", "authorization_code")];
    form.extend_from_slice(fields);
    request_tokens(web, endpoint, client, form).await
}

/// Refreshes tokens. No scope is named: the same ones are wanted again, and naming one that was not
/// granted, such as `offline_access`, would be an error.
pub(super) async fn refresh_tokens(
    web: &OAuthWeb,
    client: &KnownClient,
    grant: &TokenGrant,
    refresh_token: &SecretText,
) -> Result<IssuedTokens, TokenFailure> {
    let form = vec![
        ("grant_type", "refresh_token"),
        ("refresh_token", refresh_token.expose()),
        ("resource", &grant.resource),
    ];
    request_tokens(web, &grant.token_endpoint, client, form).await
}

/// Revokes a token.
pub(super) async fn revoke_token(
    web: &OAuthWeb,
    endpoint: &Url,
    client: &KnownClient,
    token: &SecretText,
    kind: &str,
) -> Result<()> {
    let form = vec![("token", token.expose()), ("token_type_hint", kind)];
    let answer = send_form(web, endpoint, client, form).await?;
    match answer.status.is_success() {
        true => Ok(()),
        false => Err(read_refusal(endpoint, &answer).into()),
    }
}

async fn request_tokens(
    web: &OAuthWeb,
    endpoint: &Url,
    client: &KnownClient,
    form: Vec<(&str, &str)>,
) -> Result<IssuedTokens, TokenFailure> {
    let answer = send_form(web, endpoint, client, form).await.map_err(TokenFailure::Other)?;
    if !answer.status.is_success() {
        return Err(read_refusal(endpoint, &answer));
    }
    let issued = answer.read_json::<TokenAnswer>().map(read_tokens);
    let issued = issued.unwrap_or_else(|| Err("it is not a token answer".to_owned()));
    issued.map_err(|reason| {
        let message = format!("the answer of {} cannot be used: {reason}", show_url(endpoint));
        TokenFailure::Other(ClientError::new(ErrorKind::BadResponse, message))
    })
}

async fn send_form(
    web: &OAuthWeb,
    endpoint: &Url,
    client: &KnownClient,
    mut form: Vec<(&str, &str)>,
) -> Result<OAuthAnswer> {
    let secret = client.client_secret.as_ref().map_or("", SecretText::expose);
    let mut authorization = None;
    match client.method {
        ClientAuthMethod::ClientSecretBasic => {
            let encode = |text: &str| {
                url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>()
            };
            let pair = format!("{}:{}", encode(&client.client_id), encode(secret));
            let value = format!("Basic {}", BASE64_STANDARD.encode(pair));
            authorization = Some(SecretText::new(value));
        }
        ClientAuthMethod::ClientSecretPost => {
            form.extend([("client_id", client.client_id.as_str()), ("client_secret", secret)]);
        }
        ClientAuthMethod::None => form.push(("client_id", &client.client_id)),
    }
    web.send(endpoint, OAuthRequest::Form(&form, authorization)).await
}

fn read_tokens(answer: TokenAnswer) -> Result<IssuedTokens, String> {
    if !answer.token_type.eq_ignore_ascii_case("bearer") {
        return Err(format!("its tokens are of type `{}`", show_text(&answer.token_type)));
    }
    // What is not a word cannot be sent as a header, or would be read as something else there.
    let is_token = |token: &SecretText| {
        let bytes = token.expose().as_bytes();
        (1..=MAX_TOKEN_BYTES).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    };
    if !is_token(&answer.access_token) {
        return Err("its access token is empty, too long or not plain text".to_owned());
    }
    let refresh_token = answer.refresh_token.filter(|token| !token.expose().is_empty());
    if refresh_token.as_ref().is_some_and(|token| token.expose().len() > MAX_TOKEN_BYTES) {
        return Err("its refresh token is too long".to_owned());
    }
    Ok(IssuedTokens {
        access_token: answer.access_token,
        refresh_token,
        received_at: unix_now(),
        lifetime: read_lifetime(&answer.expires_in),
        scopes: answer.scope.as_deref().map(read_scopes),
    })
}

fn read_lifetime(value: &Value) -> Option<u64> {
    let seconds = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.trim().parse().ok()?,
        _ => return None,
    };
    // Some servers send 0 or less for tokens without an end. Taken at its word, every request would
    // cause a refresh.
    (seconds >= 1.0).then_some((seconds as u64).min(MAX_LIFETIME))
}

fn read_refusal(endpoint: &Url, answer: &OAuthAnswer) -> TokenFailure {
    let place = show_url(endpoint);
    let status = answer.status;
    // A server in trouble says nothing about tokens, whatever its body looks like.
    if !status.is_client_error() || matches!(status.as_u16(), 408 | 425 | 429) {
        let message = format!("{place} answered with HTTP status {status}");
        return TokenFailure::Other(ClientError::new(ErrorKind::Unavailable, message));
    }
    match answer.read_json::<ErrorAnswer>() {
        Some(answer) if ["server_error", "temporarily_unavailable"].contains(&&*answer.error) => {
            let message = format!("{place} refused for now: {}", answer.error);
            TokenFailure::Other(ClientError::new(ErrorKind::Unavailable, message))
        }
        Some(ErrorAnswer { error: code, error_description }) => {
            let description = show_text(&error_description);
            let message = format!("{place} refused: {} {description}", show_text(&code));
            let error = ClientError::new(ErrorKind::Unauthenticated, message.trim_end());
            TokenFailure::Refused { code, error }
        }
        None => {
            let message = format!("{place} answered with HTTP status {status}");
            TokenFailure::Other(ClientError::new(ErrorKind::BadResponse, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rubbish_in_token_answers_is_refused() {
        let read = |change: Value| {
            let mut answer = json!({"access_token": "abc", "token_type": "bearer"});
            for (key, value) in change.as_object().unwrap() {
                answer[key] = value.clone();
            }
            let answer: Option<TokenAnswer> = serde_json::from_value(answer).ok();
            answer.and_then(|answer| read_tokens(answer).ok())
        };
        assert!(read(json!({})).is_some());
        for change in [
            json!({"access_token": ""}),
            json!({"access_token": "a b"}),
            json!({"access_token": "a\r\nx: y"}),
            json!({"access_token": "ä"}),
            json!({"access_token": 5}),
            json!({"access_token": "a".repeat(MAX_TOKEN_BYTES + 1)}),
            json!({"refresh_token": "a".repeat(MAX_TOKEN_BYTES + 1)}),
            json!({"token_type": "mac"}),
            json!({"token_type": null}),
        ] {
            assert!(read(change.clone()).is_none(), "{change}");
        }
        let lifetime = |value: Value| read(json!({"expires_in": value})).unwrap().lifetime;
        assert_eq!(lifetime(json!(60)), Some(60));
        assert_eq!(lifetime(json!("60")), Some(60));
        assert_eq!(lifetime(json!(1e300)), Some(MAX_LIFETIME));
        for value in [json!(null), json!("soon"), json!([]), json!(0), json!(-1), json!("NaN")] {
            assert_eq!(lifetime(value), None);
        }
        assert!(read(json!({"refresh_token": ""})).unwrap().refresh_token.is_none());
        let shown = format!("{:?}", read(json!({"refresh_token": "def"})).unwrap());
        assert!(!shown.contains("abc") && !shown.contains("def"), "{shown}");
    }
}
