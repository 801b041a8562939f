//! Refreshing tokens, and what ends a login.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use serde_json::{Map, Value, json};

use super::record::LoginRecord;
use super::scripted::{FixedReply, LOGIN_HINT, METADATA_PATH, ScriptedAuthority};
use super::{CredentialStore, LogoutOutcome, OAuthProvider, OAuthSettings, logout, status};
use crate::auth::{AuthProvider, AuthRefusal, Authorization};
use crate::call::{ToolCall, UnattendedCall};
use crate::config::{ServerConfig, TransportConfig, TrustLevel};
use crate::connection::scripted::{ScriptedAnswer, serve_answers};
use crate::error::{ClientError, ErrorKind, Result};
use crate::server_client::{ClientOptions, ServerClient};

fn provider(authority: &ScriptedAuthority) -> OAuthProvider {
    OAuthProvider::new([authority.settings()], Arc::new(authority.store()))
}

async fn token(provider: &OAuthProvider) -> Result<Option<String>> {
    let authorization = provider.authorization("test").await?;
    Ok(authorization.map(|authorization| authorization.header_value().to_owned()))
}

async fn load(authority: &ScriptedAuthority) -> LoginRecord {
    LoginRecord::load(&authority.settings(), &authority.store()).await.unwrap()
}

/// Logs in and lets the access token end.
async fn log_in_expired(authority: &ScriptedAuthority) {
    authority.log_in().await.unwrap();
    let mut record = load(authority).await;
    record.grant.as_mut().unwrap().received_at -= 3600;
    record.save(&authority.settings(), &authority.store()).await.unwrap();
}

fn refusal(status: u16, challenge: &str, token: Option<&str>, is_repeated: bool) -> AuthRefusal {
    AuthRefusal {
        server_id: "test".to_owned(),
        status,
        challenge: challenge.to_owned(),
        authorization: token.map(Authorization::new),
        is_repeated,
    }
}

#[tokio::test]
async fn a_token_is_refreshed_before_it_ends_and_once_for_all() {
    let authority = ScriptedAuthority::start().await;
    log_in_expired(&authority).await;
    let old = load(&authority).await.grant.unwrap();
    // Two providers stand for two processes.
    let providers = [provider(&authority), provider(&authority)];
    authority.set("/token", FixedReply::Late(Duration::from_millis(100)));
    let tokens = join_all((0..10).map(|number| token(&providers[number % 2]))).await;
    let tokens: Vec<String> = tokens.into_iter().map(|token| token.unwrap().unwrap()).collect();
    assert!(tokens.iter().all(|token| *token == tokens[0]));
    assert_ne!(tokens[0], format!("Bearer {}", old.access_token.expose()));
    let requests = authority.requests("/token");
    assert_eq!(requests.len(), 2, "a login and one refresh");
    let fields = &requests[1].fields;
    assert_eq!(fields["grant_type"], "refresh_token");
    assert_eq!(fields["refresh_token"], old.refresh_token.unwrap().expose());
    assert_eq!(fields["resource"], format!("{}/mcp", authority.base));
    assert!(!fields.contains_key("scope"));
    // The rotated token is what the next refresh uses.
    let new = load(&authority).await.grant.unwrap();
    assert!(new.refresh_token.unwrap().expose().starts_with("refresh-"));
    assert_eq!(new.scopes, ["read", "offline_access"]);
}

#[tokio::test]
async fn a_caller_that_gives_up_does_not_lose_the_tokens() {
    let authority = ScriptedAuthority::start().await;
    log_in_expired(&authority).await;
    authority.set("/token", FixedReply::Late(Duration::from_millis(200)));
    let provider = provider(&authority);
    let waiting = tokio::time::timeout(Duration::from_millis(50), token(&provider));
    assert!(waiting.await.is_err());
    let refreshed = token(&provider).await.unwrap().unwrap();
    assert_eq!(authority.requests("/token").len(), 2);
    let stored = load(&authority).await.grant.unwrap();
    assert_eq!(refreshed, format!("Bearer {}", stored.access_token.expose()));
}

#[tokio::test]
async fn only_invalid_grant_ends_the_tokens() {
    for (reply, kind) in [
        (FixedReply::Text(500, "{\"error\":\"invalid_grant\"}"), ErrorKind::Unavailable),
        (FixedReply::Text(429, ""), ErrorKind::Unavailable),
        (FixedReply::Text(200, "rubbish"), ErrorKind::BadResponse),
        (FixedReply::Redirect("http://127.0.0.1:1/".to_owned()), ErrorKind::Unavailable),
        (FixedReply::Endless, ErrorKind::TooLarge),
        (
            FixedReply::Json(400, json!({"error": "temporarily_unavailable"})),
            ErrorKind::Unavailable,
        ),
        (FixedReply::Json(400, json!({"error": "invalid_scope"})), ErrorKind::Unauthenticated),
        (FixedReply::Json(401, json!({"error": "invalid_client"})), ErrorKind::Unauthenticated),
    ] {
        let authority = ScriptedAuthority::start().await;
        log_in_expired(&authority).await;
        authority.set("/token", reply);
        let provider = provider(&authority);
        let error = token(&provider).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        let needs_login = matches!(kind, ErrorKind::BadResponse | ErrorKind::Unauthenticated);
        assert_eq!(error.hint(), needs_login.then_some(LOGIN_HINT), "{error}");
        assert!(load(&authority).await.grant.is_some(), "{error}");
        // No storm of requests.
        let count = authority.requests("/token").len();
        assert_eq!(token(&provider).await.unwrap_err().kind(), kind);
        assert_eq!(authority.requests("/token").len(), count);
        // With the trouble over, the tokens still work, here for a process that has no pause to keep.
        authority.reset("/token");
        assert!(token(&self::provider(&authority)).await.unwrap().is_some());
    }
    let authority = ScriptedAuthority::start().await;
    log_in_expired(&authority).await;
    authority.set("/token", FixedReply::Json(400, json!({"error": "invalid_grant"})));
    let error = token(&provider(&authority)).await.unwrap_err();
    assert_eq!((error.kind(), error.hint()), (ErrorKind::Unauthenticated, Some(LOGIN_HINT)));
    let record = load(&authority).await;
    assert!(record.grant.is_none() && record.client.is_some());
}

#[tokio::test]
async fn a_client_that_is_no_longer_known_is_registered_again() {
    let authority = ScriptedAuthority::start().await;
    log_in_expired(&authority).await;
    authority.set("/token", FixedReply::Json(401, json!({"error": "invalid_client"})));
    assert!(token(&provider(&authority)).await.is_err());
    authority.reset("/token");
    authority.log_in().await.unwrap();
    assert_eq!(authority.requests("/register").len(), 2);
}

#[tokio::test]
async fn a_token_about_to_end_is_used_while_the_authority_is_down() {
    let authority = ScriptedAuthority::start().await;
    authority.log_in().await.unwrap();
    let mut record = load(&authority).await;
    record.grant.as_mut().unwrap().received_at -= 3590;
    record.save(&authority.settings(), &authority.store()).await.unwrap();
    authority.set("/token", FixedReply::Text(503, ""));
    assert!(token(&provider(&authority)).await.unwrap().is_some());
    assert_eq!(authority.requests("/token").len(), 2);
}

#[tokio::test]
async fn a_refused_token_is_refreshed_once() {
    let authority = ScriptedAuthority::start().await;
    authority.log_in().await.unwrap();
    let provider = provider(&authority);
    let old = token(&provider).await.unwrap().unwrap();
    let refuse = |is_repeated| provider.handle_refusal(refusal(401, "", Some(&old), is_repeated));
    assert!(refuse(false).await.unwrap());
    assert_ne!(token(&provider).await.unwrap().unwrap(), old);
    // A second request that was refused with the old token causes no second refresh.
    assert!(refuse(false).await.unwrap());
    assert_eq!(authority.requests("/token").len(), 2);
    let error = refuse(true).await.unwrap_err();
    assert_eq!((error.kind(), error.hint()), (ErrorKind::Unauthenticated, Some(LOGIN_HINT)));
    assert_eq!(authority.requests("/token").len(), 2);
}

#[tokio::test]
async fn missing_scopes_are_asked_for_at_the_next_login() {
    let authority = ScriptedAuthority::start().await;
    authority.log_in().await.unwrap();
    let provider = provider(&authority);
    let old = token(&provider).await.unwrap().unwrap();
    let challenge = "Bearer error=\"insufficient_scope\", scope=\"write\"";
    let refuse = || provider.handle_refusal(refusal(403, challenge, Some(&old), false));
    let error = refuse().await.unwrap_err();
    assert!(error.is_scope_missing() && error.message().contains("write"), "{error}");
    let state = status(&authority.settings(), &authority.store()).await.unwrap().unwrap();
    assert_eq!(state.missing_scopes, ["write"]);
    authority.log_in().await.unwrap();
    let scope = &authority.requests("/authorize")[1].fields["scope"];
    assert_eq!(scope, "write read offline_access");
    // The new login is found, although the old token is still valid.
    assert!(refuse().await.unwrap());
    assert_ne!(token(&provider).await.unwrap().unwrap(), old);
    // A refusal for another reason is not ours.
    let forbidden = provider.handle_refusal(refusal(403, "", Some(&old), false));
    assert!(!forbidden.await.unwrap());
}

#[tokio::test]
async fn a_login_in_another_process_is_noticed() {
    let authority = ScriptedAuthority::start().await;
    let provider = provider(&authority);
    assert_eq!(token(&provider).await.unwrap(), None);
    let challenge = "Bearer scope=\"other\"";
    let error = provider.handle_refusal(refusal(401, challenge, None, false)).await.unwrap_err();
    assert_eq!((error.kind(), error.hint()), (ErrorKind::Unauthenticated, Some(LOGIN_HINT)));
    assert!(!provider.has_new_credentials("test").await);
    authority.log_in().await.unwrap();
    // The stored challenge was used instead of a new one.
    assert!(authority.requests("/mcp").is_empty());
    assert!(authority.requests(METADATA_PATH).len() == 1);
    assert!(provider.has_new_credentials("test").await);
    assert!(token(&provider).await.unwrap().is_some());
}

#[tokio::test]
async fn tokens_stay_with_their_server_and_their_client() {
    let authority = ScriptedAuthority::start().await;
    authority.log_in().await.unwrap();
    let other_url = format!("{}/other", authority.base).parse().unwrap();
    let moved = OAuthSettings { server_url: other_url, ..authority.settings() };
    let moved = OAuthProvider::new([moved], Arc::new(authority.store()));
    assert_eq!(token(&moved).await.unwrap(), None);
    assert!(moved.authorization("unknown").await.is_err());
}

#[tokio::test]
async fn logging_out_revokes_and_forgets() {
    let authority = ScriptedAuthority::start().await;
    let (settings, store) = (authority.settings(), authority.store());
    let outcome = logout(&settings, &store).await.unwrap();
    assert!(matches!(outcome, LogoutOutcome::LoggedOut));
    authority.log_in().await.unwrap();
    assert!(matches!(logout(&settings, &store).await.unwrap(), LogoutOutcome::Revoked));
    let revoked = authority.requests("/revoke");
    let kinds: Vec<&str> = revoked.iter().map(|it| &*it.fields["token_type_hint"]).collect();
    assert_eq!(kinds, ["refresh_token", "access_token"]);
    assert!(store.load("test").await.unwrap().is_none());

    authority.log_in().await.unwrap();
    authority.set("/revoke", FixedReply::Text(503, ""));
    assert!(matches!(logout(&settings, &store).await.unwrap(), LogoutOutcome::NotRevoked(_)));
    assert!(store.load("test").await.unwrap().is_none());
}

#[tokio::test]
async fn nothing_shows_a_token() {
    let authority = ScriptedAuthority::start().await;
    authority.log_in().await.unwrap();
    let record = load(&authority).await;
    let grant = record.grant.clone().unwrap();
    let shown = format!("{record:?} {:?}", authority.store().load("test").await.unwrap());
    assert!(!shown.contains(grant.access_token.expose()), "{shown}");
    assert!(!shown.contains(grant.refresh_token.unwrap().expose()), "{shown}");
}

#[tokio::test]
async fn a_broken_record_is_replaced_by_a_login() {
    let authority = ScriptedAuthority::start().await;
    let secret = super::SecretText::new("{\"access_token\": \"abc");
    authority.store().save("test", secret).await.unwrap();
    let error = token(&provider(&authority)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    assert!(!error.message().contains("abc"));
    authority.log_in().await.unwrap();
    assert!(token(&provider(&authority)).await.unwrap().is_some());
}

/// Provider whose login has too few rights.
struct LimitedRights;

impl AuthProvider for LimitedRights {
    fn authorization(&self, _: &str) -> BoxFuture<'_, Result<Option<Authorization>>> {
        Box::pin(async { Ok(None) })
    }

    fn handle_refusal(&self, _: AuthRefusal) -> BoxFuture<'_, Result<bool>> {
        let error = ClientError::new(ErrorKind::Unauthenticated, "more rights are needed");
        Box::pin(async { Err(error.with_scope_missing()) })
    }
}

#[tokio::test]
async fn a_call_that_needs_more_rights_does_not_end_the_connection() {
    let answer = |status, body: Value| ScriptedAnswer {
        status,
        media_type: "application/json",
        body: json!({"jsonrpc": "2.0", "id": 1, "result": body}).to_string(),
    };
    let (transport, server) = serve_answers(vec![
        answer(200, json!({"supportedVersions": ["2026-07-28"], "capabilities": {}})),
        answer(200, json!({"tools": []})),
        answer(403, json!({})),
        answer(200, json!({"content": []})),
    ])
    .await;
    let config =
        ServerConfig { trust: TrustLevel::Untrusted, transport: TransportConfig::Http(transport) };
    let provider: Arc<dyn AuthProvider> = Arc::new(LimitedRights);
    let options = ClientOptions::default();
    let client = ServerClient::new("test", config, options, Some(provider));
    let call = |tool: &str| ToolCall {
        tool: tool.to_owned(),
        arguments: Map::new(),
        timeout: None,
        is_read_only: false,
        runs_as_task: false,
        connection: None,
        is_repeated: false,
    };
    let error = client.call_tool(&call("write"), &UnattendedCall).await.unwrap_err();
    assert!(error.is_scope_missing(), "{error}");
    client.call_tool(&call("read"), &UnattendedCall).await.unwrap();
    assert_eq!(server.await.unwrap().len(), 4);
}
