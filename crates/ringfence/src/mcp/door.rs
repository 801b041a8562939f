//! The door of every HTTP route: the names we answer to, and who is let in.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{CONNECTION, HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

use super::auth;
use super::http::places::{PlaceKind, SlotHandle};
use super::http::{App, Caller, hold, json_error, json_response};
use super::peer::Connection;
use crate::base::{Error, Kind};
use crate::session::Principal;

/// Host and Origin: a web page must not reach a local server under another name (DNS rebinding).
pub(super) async fn check_names(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let http = &app.server.config.http;
    let refused = |reason, message| {
        let hint = "Use a loopback name, or let the operator add yours to [http] allowed_hosts or allowed_origins.";
        json_error(None, &Error::permission_denied(reason, message).hint(hint))
    };
    let host = request
        .headers()
        .get(HOST)
        .and_then(|host| host.to_str().ok())
        .or_else(|| request.uri().authority().map(|authority| authority.as_str()));
    if !host.is_some_and(|host| is_loopback_name(host) || is_listed(host, &http.allowed_hosts)) {
        return refused("host", "this Host is not allowed");
    }
    if let Some(origin) = request.headers().get(ORIGIN) {
        let allowed = origin.to_str().is_ok_and(|origin| {
            let local = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            local.is_some_and(is_loopback_name) || http.allowed_origins.iter().any(|listed| listed == origin)
        });
        if !allowed {
            return refused("origin", "this Origin is not allowed");
        }
    }
    next.run(request).await
}

/// `name` or `name:port` with a loopback name.
fn is_loopback_name(authority: &str) -> bool {
    let name = match authority.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((name, port)) if port.is_empty() || is_port(port) => name,
            _ => return false,
        },
        None => match authority.split_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            Some(_) => return false,
            None => authority,
        },
    };
    name.eq_ignore_ascii_case("localhost") || name == "127.0.0.1" || name == "::1"
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_listed(host: &str, allowed: &[String]) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    allowed.iter().any(|listed| listed.eq_ignore_ascii_case(host) || listed.eq_ignore_ascii_case(name))
}

/// The token when auth is on; the owner of the connection when it is off.
pub(super) async fn authenticate(
    State(app): State<Arc<App>>,
    ConnectInfo(connection): ConnectInfo<Connection>,
    Extension(slot): Extension<SlotHandle>,
    mut request: Request,
    next: Next,
) -> Response {
    let in_flight = slot.begin_request();
    let principal = match &app.verifier {
        None => {
            let owned = connection.require_owner(app.server.config.http.insecure_no_auth).await;
            owned.map(|()| Principal::local())
        }
        Some(verifier) => {
            let header = request.headers().get(axum::http::header::AUTHORIZATION);
            let verified = verifier.verify(header.map(|value| value.to_str().unwrap_or("")));
            // For the log alone.
            verified.map_err(|error| error.source(std::io::Error::other(format!("from {}", connection.remote()))))
        }
    };
    match principal {
        Ok(principal) => {
            let place = slot.admit().and_then(|()| app.places.take(&principal, PlaceKind::Request));
            let place = match place {
                Ok(place) => place,
                Err(error) => return closing(json_error(None, &error)),
            };
            request.extensions_mut().insert(Caller { principal });
            hold(next.run(request).await, (in_flight, place))
        }
        Err(error) => {
            let mut response = json_error(None, &error);
            if error.kind() == Kind::Unauthenticated {
                let metadata = metadata_url(&app, request.headers());
                if let Ok(challenge) = HeaderValue::from_str(&auth::challenge(&error, metadata.as_deref())) {
                    response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
                }
            }
            response
        }
    }
}

/// Ends the connection with this answer, so that it does not hold a place.
fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

fn resource_url(headers: &HeaderMap) -> String {
    // Host has been checked against the names we answer to.
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("127.0.0.1");
    format!("http://{host}/mcp")
}

fn metadata_url(app: &App, headers: &HeaderMap) -> Option<String> {
    app.server.config.auth.as_ref()?.issuer.as_ref()?;
    Some(resource_url(headers).replace("/mcp", "/.well-known/oauth-protected-resource/mcp"))
}

/// RFC 9728, when there is an issuer to name.
pub(super) async fn resource_metadata(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    match app.server.config.auth.as_ref().and_then(|auth| auth.issuer.as_deref()) {
        Some(issuer) => json_response(200, &auth::protected_resource_metadata(issuer, &resource_url(&headers))),
        None => json_error(None, &Error::new(Kind::NotFound, "no authorization server is configured")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_pass_by_themselves() {
        for name in ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8080", "[::1]", "[::1]:80"] {
            assert!(is_loopback_name(name), "{name}");
        }
        for name in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "127.0.0.1@evil",
            "[::1]evil",
            "[::1",
            "localhost:80:80",
            "",
        ] {
            assert!(!is_loopback_name(name), "{name}");
        }
    }
}
