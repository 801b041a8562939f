//! Logins against servers that do not keep to the rules.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use url::Url;

use super::address::AddressPolicy;
use super::scripted::{FixedReply, METADATA_PATH, RESOURCE_PATH, ScriptedAuthority, fetch};
use super::web::{OAuthRequest, OAuthWeb};
use super::{ConfiguredClient, LoginOptions, OAuthSettings, SecretText, login, status};
use crate::error::ErrorKind;
use crate::limits::Limits;

/// Paths of all requests that a login makes, apart from the one that the browser makes.
const LOGIN_PATHS: [&str; 4] = [RESOURCE_PATH, METADATA_PATH, "/register", "/token"];

async fn assert_not_logged_in(authority: &ScriptedAuthority) {
    assert_eq!(status(&authority.settings(), &authority.store()).await.unwrap(), None);
}

#[tokio::test]
async fn a_login_follows_the_rules() {
    let authority = ScriptedAuthority::start().await;
    let first = authority.log_in().await.unwrap();
    assert_eq!(first.scopes, ["read", "offline_access"]);
    assert!(first.can_refresh && first.expires_at.is_some() && first.missing_scopes.is_empty());
    let asked = authority.requests("/authorize").remove(0).fields;
    let resource = format!("{}/mcp", authority.base);
    assert_eq!(asked["resource"], resource);
    assert_eq!(asked["code_challenge_method"], "S256");
    assert_eq!((&*asked["scope"], &*asked["prompt"]), ("read offline_access", "consent"));
    let exchanged = authority.requests("/token").remove(0).fields;
    assert_eq!(exchanged["resource"], resource);
    assert_eq!(exchanged["redirect_uri"], asked["redirect_uri"]);
    assert!(exchanged["code_verifier"].len() >= 43);
    assert_ne!(exchanged["code_verifier"], asked["code_challenge"]);

    // The registration and its port are used again, secrets of the request are not.
    let second = authority.log_in().await.unwrap();
    let again = authority.requests("/authorize").remove(1).fields;
    assert_eq!(authority.requests("/register").len(), 1);
    assert_eq!(second.client_id, first.client_id);
    assert_eq!(again["redirect_uri"], asked["redirect_uri"]);
    for name in ["state", "code_challenge"] {
        assert_ne!(again[name], asked[name], "{name}");
    }
    assert_eq!(status(&authority.settings(), &authority.store()).await.unwrap(), Some(second));
}

#[tokio::test]
async fn bodies_without_an_end_are_cut_off() {
    for path in LOGIN_PATHS {
        let authority = ScriptedAuthority::start().await;
        authority.set(path, FixedReply::Endless);
        let error = authority.log_in().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{path}: {error}");
        assert_not_logged_in(&authority).await;
    }
}

#[tokio::test]
async fn servers_that_say_nothing_are_given_up() {
    for path in ["/mcp"].into_iter().chain(LOGIN_PATHS) {
        let authority = ScriptedAuthority::start().await;
        authority.set(path, FixedReply::Silence);
        let mut settings = authority.settings();
        settings.limits.oauth_timeout = Duration::from_millis(300);
        let error = authority.log_in_with(&settings, |url| url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{path}: {error}");
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    for path in ["/mcp"].into_iter().chain(LOGIN_PATHS) {
        let (authority, other) =
            (ScriptedAuthority::start().await, ScriptedAuthority::start().await);
        authority.set(path, FixedReply::Redirect(format!("{}{path}", other.base)));
        let outcome = authority.log_in().await;
        assert_eq!(other.count_all(), 0, "{path}");
        // Without its challenge the server's metadata is looked for elsewhere, where there is none.
        let is_fatal = !matches!(path, "/mcp" | RESOURCE_PATH);
        assert!(outcome.is_err() || !is_fatal, "{path}");
    }
}

#[tokio::test]
async fn metadata_cannot_lead_into_private_networks() {
    let hosts =
        ["http://10.0.0.1", "http://169.254.169.254", "https://192.168.0.1", "http://example.com"];
    for host in hosts {
        for name in ["authorization_endpoint", "token_endpoint", "registration_endpoint"] {
            let authority = ScriptedAuthority::start().await;
            authority.set_metadata(name, format!("{host}/x").into());
            let error = authority.log_in().await.unwrap_err();
            assert!(error.message().contains(" is refused: "), "{name} {host}: {error}");
            assert!(authority.requests("/authorize").is_empty());
        }
        let authority = ScriptedAuthority::start().await;
        let resource = format!("{}/mcp", authority.base);
        let body = json!({"resource": resource, "authorization_servers": [host]});
        authority.set(RESOURCE_PATH, FixedReply::Json(200, body));
        let error = authority.log_in().await.unwrap_err();
        assert!(error.message().contains(" is refused: "), "{host}: {error}");
    }
    for url in ["javascript:alert(1)", "file:///etc/passwd", "http://a:b@127.0.0.1/"] {
        let authority = ScriptedAuthority::start().await;
        authority.set_metadata("authorization_endpoint", url.into());
        assert!(authority.log_in().await.is_err(), "{url}");
    }
}

#[tokio::test]
async fn a_public_server_cannot_make_us_ask_this_machine() {
    let authority = ScriptedAuthority::start().await;
    let server = "https://mcp.example.com/mcp".parse().unwrap();
    for host in ["127.0.0.1", "localhost"] {
        let web = OAuthWeb::new(AddressPolicy::new(&server, true), &Limits::default());
        let mut url: Url = authority.base.parse().unwrap();
        url.set_host(Some(host)).unwrap();
        assert!(web.send(&url, OAuthRequest::Get).await.is_err(), "{host}");
    }
    assert_eq!(authority.count_all(), 0);
}

#[tokio::test]
async fn metadata_of_others_is_refused() {
    let authority = ScriptedAuthority::start().await;
    for resource in ["https://evil.example.com/mcp", "http://127.0.0.1:1/mcp", "rubbish"] {
        let body = json!({"resource": resource, "authorization_servers": [authority.base]});
        authority.set(RESOURCE_PATH, FixedReply::Json(200, body));
        let error = authority.log_in().await.unwrap_err();
        assert!(error.message().contains("another resource"), "{error}");
    }
    authority.reset(RESOURCE_PATH);
    for issuer in ["https://evil.example.com", "", &format!("{}/x", authority.base)] {
        authority.set_metadata("issuer", issuer.into());
        let error = authority.log_in().await.unwrap_err();
        assert!(error.message().contains("calls itself"), "{error}");
    }
    assert!(authority.requests("/register").is_empty());
}

#[tokio::test]
async fn servers_without_pkce_are_refused() {
    let authority = ScriptedAuthority::start().await;
    for methods in [json!([]), json!(["plain"]), Value::Null] {
        authority.set_metadata("code_challenge_methods_supported", methods);
        let error = authority.log_in().await.unwrap_err();
        assert!(error.message().contains("PKCE"), "{error}");
    }
    assert!(authority.requests("/authorize").is_empty());
}

/// Replaces parameters of a callback.
fn change_query(url: Url, remove: &str, add: &[(&str, &str)]) -> Url {
    let kept: Vec<(String, String)> =
        url.query_pairs().into_owned().filter(|(name, _)| name != remove).collect();
    let mut url = url;
    url.query_pairs_mut().clear().extend_pairs(kept).extend_pairs(add);
    url
}

#[tokio::test]
async fn answers_of_another_login_or_server_are_refused() {
    type UrlChange = fn(Url) -> Url;
    let changes: [(&str, UrlChange); 5] = [
        ("repeats", |url| change_query(url, "", &[("code", "x")])),
        ("is from `https://evil`", |url| change_query(url, "iss", &[("iss", "https://evil")])),
        ("no `iss`", |url| change_query(url, "iss", &[])),
        ("refused: access_denied", |url| change_query(url, "code", &[("error", "access_denied")])),
        ("no code", |url| change_query(url, "code", &[])),
    ];
    for (reason, change) in changes {
        let authority = ScriptedAuthority::start().await;
        let error = authority.log_in_with(&authority.settings(), change).await.unwrap_err();
        assert!(error.message().contains(reason), "{reason}: {error}");
        assert!(authority.requests("/token").is_empty(), "{reason}");
        assert_not_logged_in(&authority).await;
    }
}

/// Anyone on this machine, or a page in the browser, can ask for the redirect address.
#[tokio::test]
async fn an_answer_that_does_not_know_the_state_does_not_end_the_login() {
    let authority = ScriptedAuthority::start().await;
    let options = LoginOptions { timeout: Duration::from_secs(5), redirect_port: None };
    let (sender, mut pages) = tokio::sync::mpsc::unbounded_channel();
    let open_url = move |url: &Url| {
        let (url, sender) = (url.clone(), sender.clone());
        tokio::spawn(async move {
            let location = fetch(&url).await.1.unwrap();
            for (remove, add) in [
                ("state", vec![("state", "x")]),
                ("state", vec![]),
                ("state", vec![("state", "x"), ("error", "access_denied")]),
                ("", vec![("state", "x")]),
            ] {
                let wrong = change_query(location.clone(), remove, &add);
                sender.send(fetch(&wrong).await.0).unwrap();
            }
            sender.send(fetch(&location).await.0).unwrap();
        });
    };
    let (settings, store) = (authority.settings(), authority.store());
    login(&settings, &store, &options, &open_url).await.unwrap();
    drop(open_url);
    let mut statuses = Vec::new();
    while let Some(page) = pages.recv().await {
        statuses.push(page["HTTP/1.1 ".len()..].chars().take(3).collect::<String>());
    }
    assert_eq!(statuses, ["400", "400", "400", "400", "200"]);
    assert_eq!(authority.requests("/token").len(), 1);
}

/// What an authorization server says is shown to the operator at a terminal.
#[tokio::test]
async fn words_of_an_authorization_server_stay_in_their_line() {
    let words = "no\u{2028}Logged in to `docs`\u{2029}\u{85}\u{202e}now\u{1b}[2J";
    let authority = ScriptedAuthority::start().await;
    let body = json!({"error": "invalid_grant\u{2028}", "error_description": words});
    authority.set("/token", FixedReply::Json(400, body));
    let error = authority.log_in().await.unwrap_err();
    assert!(error.message().ends_with("no Logged in to `docs`  now"), "{error:?}");
    let refuse = |url| {
        let add = [("error", "access_denied"), ("error_description", "no\u{2028}Logged in")];
        change_query(url, "code", &add)
    };
    let error = authority.log_in_with(&authority.settings(), refuse).await.unwrap_err();
    assert!(error.message().ends_with("access_denied no Logged in"), "{error:?}");
}

#[tokio::test]
async fn rubbish_from_the_token_endpoint_is_not_kept() {
    let authority = ScriptedAuthority::start().await;
    for reply in [
        FixedReply::Text(200, "<html>"),
        FixedReply::Text(200, ""),
        FixedReply::Json(200, json!([])),
        FixedReply::Json(200, json!({"access_token": "a", "token_type": "mac"})),
        FixedReply::Json(200, json!({"access_token": "a\u{a}b", "token_type": "Bearer"})),
        FixedReply::Text(500, "{}"),
        FixedReply::Json(400, json!({"error": "invalid_grant\u{1b}[31m"})),
    ] {
        authority.set("/token", reply);
        let error = authority.log_in().await.unwrap_err();
        assert!(!error.message().contains(char::is_control), "{error:?}");
        assert_not_logged_in(&authority).await;
    }
}

#[tokio::test]
async fn a_client_is_not_shown_to_another_authorization_server() {
    let (authority, other) = (ScriptedAuthority::start().await, ScriptedAuthority::start().await);
    let first = authority.log_in().await.unwrap();
    let client_id = "configured".to_owned();
    let client_secret = Some(SecretText::new("secret"));
    let configured = ConfiguredClient { client_id, client_secret, issuer: None };
    let mut settings = authority.settings();
    settings.server_id = "configured".to_owned();
    settings.configured_client = Some(configured);
    authority.log_in_with(&settings, |url| url).await.unwrap();
    assert!(authority.requests("/token").remove(1).head.contains("authorization: Basic "));

    let resource = format!("{}/mcp", authority.base);
    let body = json!({"resource": resource, "authorization_servers": [other.base]});
    authority.set(RESOURCE_PATH, FixedReply::Json(200, body));
    let second = authority.log_in().await.unwrap();
    assert_eq!(other.requests("/register").len(), 1);
    assert_ne!((&second.issuer, &second.client_id), (&first.issuer, &first.client_id));
    let error = authority.log_in_with(&settings, |url| url).await.unwrap_err();
    assert!(error.message().contains("configured client"), "{error}");
    assert_eq!(other.requests("/token").len(), 1);
}

#[tokio::test]
async fn the_listener_waits_for_the_answer_and_nothing_else() {
    let authority = ScriptedAuthority::start().await;
    let options = LoginOptions { timeout: Duration::from_millis(500), redirect_port: None };
    let (settings, store) = (authority.settings(), authority.store());
    let (sender, mut pages) = tokio::sync::mpsc::unbounded_channel();
    let open_url = move |url: &Url| {
        let redirect = url.query_pairs().find(|(name, _)| name == "redirect_uri").unwrap().1;
        let (redirect, sender) = (redirect.parse::<Url>().unwrap(), sender.clone());
        tokio::spawn(async move {
            let address = redirect.socket_addrs(|| None).unwrap();
            // One that says nothing, one that does not end its head, and an icon.
            let _silent = TcpStream::connect(&*address).await.unwrap();
            let mut endless = TcpStream::connect(&*address).await.unwrap();
            while endless.write_all(&[b'x'; 1024]).await.is_ok() {}
            sender.send(fetch(&redirect.join("/favicon.ico").unwrap()).await.0).unwrap();
            std::future::pending::<()>().await;
        });
    };
    let error = login(&settings, &store, &options, &open_url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
    assert!(pages.try_recv().unwrap().starts_with("HTTP/1.1 404 "));
}

#[tokio::test]
async fn a_client_that_the_authority_forgot_is_registered_again() {
    let authority = ScriptedAuthority::start().await;
    authority.set("/token", FixedReply::Json(401, json!({"error": "invalid_client"})));
    assert!(authority.log_in().await.is_err());
    authority.reset("/token");
    authority.log_in().await.unwrap();
    assert_eq!(authority.requests("/register").len(), 2);
    // The user sees an error in the browser, which never comes back.
    let options = LoginOptions { timeout: Duration::from_millis(50), redirect_port: None };
    let error = login(&authority.settings(), &authority.store(), &options, &|_| {}).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
    authority.log_in().await.unwrap();
    assert_eq!(authority.requests("/register").len(), 3);
}

#[tokio::test]
async fn there_is_no_login_without_encryption() {
    let authority = ScriptedAuthority::start().await;
    let server_url = "http://mcp.example.com/mcp".parse().unwrap();
    let settings = OAuthSettings { server_url, ..authority.settings() };
    let error = authority.log_in_with(&settings, |url| url).await.unwrap_err();
    assert!(error.message().contains("https"), "{error}");
}
