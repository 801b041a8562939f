//! Access to every HTTP route: the names we answer to, and authentication.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{CONNECTION, HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use axum::middleware::Next;
use axum::response::Response;

use tokio::time::Instant;

use super::limits::{LimitedResource, SlotHandle};
use super::{AuthenticatedCaller, HttpServer, hold_guards_until, json_error, json_response};
use crate::base::{Error, Kind};
use crate::mcp::auth;
use crate::mcp::peer::AcceptedConnection;
use crate::session::Principal;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Checks Host, Origin and Sec-Fetch-Site: a web page must not reach a local server under another
/// name (DNS rebinding).
pub(super) async fn check_host_and_origin(
    State(app): State<Arc<HttpServer>>,
    request: Request,
    next: Next,
) -> Response {
    let http = &app.server.config.http;
    let refused = |reason, message| {
        let hint = "Use a loopback name, or ask the operator to add yours to [http] allowed_hosts or allowed_origins.";
        json_error(None, &Error::permission_denied(reason, message).with_hint(hint))
    };
    let host = request
        .headers()
        .get(HOST)
        .and_then(|host| host.to_str().ok())
        .or_else(|| request.uri().authority().map(|authority| authority.as_str()));
    let public = http.public_url.as_deref().and_then(split_origin);
    let is_public =
        |host: &str| public.is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host));
    if !host.is_some_and(|host| {
        is_loopback_name(host) || is_allowed_host(host, &http.allowed_hosts) || is_public(host)
    }) {
        return refused("host", "this Host is not allowed");
    }
    let is_listed_origin = |origin: &str| {
        http.allowed_origins.iter().any(|listed| listed == origin)
            || public.is_some_and(|(public, _)| public == origin)
    };
    // A browser says where a request comes from, even if it sends no Origin. Pages of other sites,
    // and of this site under another port or name, are refused unless the operator lists their
    // origin.
    let listed = request
        .headers()
        .get(ORIGIN)
        .and_then(|origin| origin.to_str().ok())
        .is_some_and(is_listed_origin);
    let own = |site: &HeaderValue| {
        ["none", "same-origin"].iter().any(|own| site.as_bytes() == own.as_bytes())
    };
    if !listed && !request.headers().get_all(FETCH_SITE).iter().all(own) {
        return refused("fetch_site", "this request comes from another site");
    }
    if let Some(origin) = request.headers().get(ORIGIN) {
        let allowed = origin.to_str().is_ok_and(|origin| {
            let local = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            local.is_some_and(is_loopback_name) || is_listed_origin(origin)
        });
        if !allowed {
            return refused("origin", "this Origin is not allowed");
        }
    }
    next.run(request).await
}

/// Returns `scheme://host[:port]` of a URL, and its `host[:port]`.
fn split_origin(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split('/').next()?;
    Some((url.get(..scheme.len() + 3 + authority.len())?, authority))
}

/// Returns whether this is a loopback name, with or without a port.
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
    text.strip_prefix(':')
        .is_some_and(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_allowed_host(host: &str, allowed: &[String]) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    allowed
        .iter()
        .any(|listed| listed.eq_ignore_ascii_case(host) || listed.eq_ignore_ascii_case(name))
}

/// Authenticates a request: by its token if auth is on, else by the owner of the connection.
pub(super) async fn authenticate_request(
    State(app): State<Arc<HttpServer>>,
    ConnectInfo(connection): ConnectInfo<AcceptedConnection>,
    Extension(slot): Extension<SlotHandle>,
    mut request: Request,
    next: Next,
) -> Response {
    let identity = match &app.verifier {
        None => {
            let owner_check =
                connection.require_owner(app.server.config.http.insecure_no_auth).await;
            owner_check.map(|()| (Principal::local(), None))
        }
        Some(verifier) => {
            let header = request.headers().get(axum::http::header::AUTHORIZATION);
            let verified = verifier.verify_header(header.map(|value| value.to_str().unwrap_or("")));
            verified.map(|token| (token.principal, Some(Instant::now() + token.valid_for)))
        }
    };
    // Only for the log.
    let with_address = |error: Error| {
        error.with_source(std::io::Error::other(format!("from {}", connection.remote_address())))
    };
    let (principal, expiry) = match identity {
        Ok(identity) => identity,
        Err(error) => return refuse_with_challenge(&app, request.headers(), with_address(error)),
    };
    let request_guard = match slot
        .mark_authenticated()
        .and_then(|()| app.limits.acquire_resource(&principal, LimitedResource::Request))
    {
        Ok(request_guard) => request_guard,
        Err(error) => return close_after(json_error(None, &error)),
    };
    request.extensions_mut().insert(AuthenticatedCaller { principal });
    // Nothing outlives the token that opened it: neither an answer that has not begun, nor a
    // stream.
    let headers = request.headers().clone();
    let response_future = next.run(request);
    let response = match expiry {
        None => response_future.await,
        Some(expiry) => match tokio::time::timeout_at(expiry, response_future).await {
            Ok(response) => response,
            Err(_) => {
                return refuse_with_challenge(&app, &headers, with_address(auth::expired_error()));
            }
        },
    };
    hold_guards_until(response, request_guard, expiry)
}

/// Returns an error response, with a challenge if a token is missing or invalid.
fn refuse_with_challenge(app: &HttpServer, headers: &HeaderMap, error: Error) -> Response {
    let mut response = json_error(None, &error);
    if error.kind() == Kind::Unauthenticated {
        let metadata = metadata_url(app, headers);
        if let Ok(challenge) =
            HeaderValue::from_str(&auth::challenge_header(&error, metadata.as_deref()))
        {
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
    }
    response
}

/// Closes the connection after this response, so that it does not hold a slot.
fn close_after(mut response: Response) -> Response {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Returns the URL where clients reach this server: the operator's setting, since a proxy in front
/// of us may have another scheme and name; else the Host of the request, which has been checked
/// against the names we answer to.
fn public_url(app: &HttpServer, headers: &HeaderMap) -> String {
    if let Some(url) = &app.server.config.http.public_url {
        return url.clone();
    }
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("127.0.0.1");
    format!("http://{host}")
}

const METADATA_PATH: &str = "/.well-known/oauth-protected-resource";

/// Returns the URL of the metadata. By RFC 9728, 3.1, the well-known part comes between the host
/// and the path of the resource.
fn metadata_url(app: &HttpServer, headers: &HeaderMap) -> Option<String> {
    app.server.config.auth.as_ref()?.issuer.as_ref()?;
    let url = public_url(app, headers);
    let path_start = url
        .find("://")
        .and_then(|scheme_end| Some(scheme_end + 3 + url.get(scheme_end + 3..)?.find('/')?))
        .unwrap_or(url.len());
    let (origin, prefix) = url.split_at(path_start);
    Some(format!("{origin}{METADATA_PATH}{prefix}/mcp"))
}

/// Serves the RFC 9728 metadata, if an issuer is configured.
pub(super) async fn serve_metadata(
    State(app): State<Arc<HttpServer>>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let is_served = |url: &String| {
        url.ends_with(uri.path())
            || [METADATA_PATH, &format!("{METADATA_PATH}/mcp")].contains(&uri.path())
    };
    let issuer = app.server.config.auth.as_ref().and_then(|auth| auth.issuer.as_deref());
    match (issuer, metadata_url(&app, &headers).filter(is_served)) {
        (Some(issuer), Some(_)) => {
            let resource = format!("{}/mcp", public_url(&app, &headers));
            json_response(200, &auth::protected_resource_metadata(issuer, &resource))
        }
        (None, _) => {
            json_error(None, &Error::new(Kind::NotFound, "no authorization server is configured"))
        }
        (Some(_), None) => {
            json_error(None, &Error::new(Kind::NotFound, "this resource is not served here"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_pass_by_themselves() {
        for name in ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8080", "[::1]", "[::1]:80"]
        {
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
