//! Finds the authorization server of an MCP server (RFC 9728, RFC 8414, OpenID Connect discovery).
//!
//! Everything that is found here comes from the server or from a host that it named. It is bound to
//! the server by its `resource` and to the authorization server by its `issuer`, which must be those
//! that were asked for.

use serde::Deserialize;
use url::Url;

use super::OAuthSettings;
use super::address::show_url;
use super::challenge::{BearerChallenge, read_scopes};
use super::record::AccessDemand;
use super::web::{OAuthRequest, OAuthWeb};
use crate::clean_text::clean_line;
use crate::error::{ClientError, ErrorKind, Result};

/// Authorization servers of one resource that are tried.
const MAX_SERVERS: usize = 4;

/// A resource, and the authorization server that issues tokens for it.
#[derive(Debug, Clone)]
pub(super) struct DiscoveredServer {
    /// Resource indicator, exactly as it is published.
    pub(super) resource: String,
    /// Scopes that the resource offers.
    pub(super) resource_scopes: Vec<String>,
    pub(super) metadata: ServerMetadata,
}

/// Metadata of an authorization server.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ServerMetadata {
    pub(super) issuer: String,
    pub(super) authorization_endpoint: Url,
    pub(super) token_endpoint: Url,
    pub(super) registration_endpoint: Option<Url>,
    pub(super) revocation_endpoint: Option<Url>,
    #[serde(default, deserialize_with = "null_as_default")]
    pub(super) scopes_supported: Vec<String>,
    #[serde(default)]
    response_types_supported: Option<Vec<String>>,
    #[serde(default, deserialize_with = "null_as_default")]
    code_challenge_methods_supported: Vec<String>,
    #[serde(default)]
    pub(super) token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    pub(super) client_id_metadata_document_supported: bool,
    #[serde(default)]
    pub(super) authorization_response_iss_parameter_supported: bool,
}

/// Metadata of a protected resource.
#[derive(Deserialize)]
struct ResourceMetadata {
    resource: String,
    #[serde(default)]
    authorization_servers: Vec<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    scopes_supported: Vec<String>,
}

fn null_as_default<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Asks the server what it wants, by a request without credentials that changes nothing.
pub(super) async fn probe_server(settings: &OAuthSettings, web: &OAuthWeb) -> Result<AccessDemand> {
    let message = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#;
    let request = OAuthRequest::Post(message.to_owned());
    let headers = web.send_for_headers(&settings.server_url, request).await?;
    let headers = headers.get_all(http::header::WWW_AUTHENTICATE).iter();
    let headers: Vec<&str> = headers.filter_map(|value| value.to_str().ok()).collect();
    let challenge = BearerChallenge::parse(&headers.join(", "));
    Ok(AccessDemand { resource_metadata: challenge.resource_metadata, scopes: challenge.scopes })
}

/// Finds the authorization server.
pub(super) async fn discover_server(
    settings: &OAuthSettings,
    web: &OAuthWeb,
    demand: &AccessDemand,
) -> Result<DiscoveredServer> {
    let server_url = &settings.server_url;
    let Some(resource) = find_resource(server_url, web, demand).await? else {
        // Servers of 2025-03-26 publish no resource metadata: they are their authorization server.
        let mut issuer = server_url.clone();
        issuer.set_path("");
        issuer.set_query(None);
        let metadata = find_metadata(issuer.as_str(), web).await?.ok_or_else(|| {
            let message = format!(
                "the server `{}` publishes no OAuth metadata, so there is no way to log in",
                settings.server_id
            );
            ClientError::new(ErrorKind::BadResponse, message)
                .with_hint("If it wants a fixed token, put that into `headers` of the server.")
        })?;
        let (resource, resource_scopes) = (resource_indicator(server_url), Vec::new());
        return Ok(DiscoveredServer { resource, resource_scopes, metadata });
    };
    let mut last_error = None;
    for issuer in resource.authorization_servers.iter().take(MAX_SERVERS) {
        match find_metadata(issuer, web).await {
            Ok(Some(metadata)) => {
                return Ok(DiscoveredServer {
                    resource: resource.resource,
                    resource_scopes: read_scopes(&resource.scopes_supported.join(" ")),
                    metadata,
                });
            }
            Ok(None) => {}
            Err(error) => last_error = Some(error),
        }
    }
    Err(last_error.unwrap_or_else(|| {
        let message = format!(
            "none of the {} authorization servers that server `{}` names publishes metadata",
            resource.authorization_servers.len(),
            settings.server_id
        );
        ClientError::new(ErrorKind::BadResponse, message)
    }))
}

/// Returns the URL of a server as a resource indicator: without query, and without a slash that the
/// parser of URLs added.
fn resource_indicator(server_url: &Url) -> String {
    let mut url = server_url.clone();
    url.set_query(None);
    let text = url.to_string();
    text.strip_suffix('/').map(str::to_owned).unwrap_or(text)
}

/// Finds the metadata of the resource: where the challenge says, or at a well-known place.
async fn find_resource(
    server_url: &Url,
    web: &OAuthWeb,
    demand: &AccessDemand,
) -> Result<Option<ResourceMetadata>> {
    let named = demand.resource_metadata.as_ref().and_then(|url| server_url.join(url).ok());
    if let Some(url) = &named
        && let Some(metadata) = fetch_resource(url, web).await?
    {
        // The server named this one, so nothing else can take its place.
        return check_resource(server_url, &metadata).map(|()| Some(metadata));
    }
    for path in [server_url.path().trim_end_matches('/'), ""] {
        let mut url = server_url.clone();
        url.set_path(&format!("/.well-known/oauth-protected-resource{path}"));
        url.set_query(None);
        if let Some(metadata) = fetch_resource(&url, web).await? {
            return check_resource(server_url, &metadata).map(|()| Some(metadata));
        }
        if path.is_empty() {
            break;
        }
    }
    Ok(None)
}

async fn fetch_resource(url: &Url, web: &OAuthWeb) -> Result<Option<ResourceMetadata>> {
    let metadata: Option<ResourceMetadata> = fetch_document(url, web).await?;
    // Without an authorization server it is of no use.
    Ok(metadata.filter(|metadata| !metadata.authorization_servers.is_empty()))
}

/// Checks that metadata is for this server. A token for another resource would be a token that this
/// server can use there.
fn check_resource(server_url: &Url, metadata: &ResourceMetadata) -> Result<()> {
    let is_ours = Url::parse(&metadata.resource).is_ok_and(|resource| {
        let (ours, theirs) = (server_url.path(), resource.path());
        let is_prefix = ours
            .strip_prefix(theirs)
            .is_some_and(|rest| rest.is_empty() || theirs.ends_with('/') || rest.starts_with('/'));
        resource.origin() == server_url.origin()
            && resource.fragment().is_none()
            && (is_prefix || theirs.strip_suffix('/') == Some(ours))
    });
    match is_ours {
        true => Ok(()),
        false => Err(ClientError::new(
            ErrorKind::BadResponse,
            format!(
                "the server's metadata is for another resource, `{}`",
                show_text(&metadata.resource)
            ),
        )
        .with_hint("Check the server's `url`. If it is right, the server is set up wrongly.")),
    }
}

/// Finds the metadata of an authorization server. `None` if it publishes none.
async fn find_metadata(issuer: &str, web: &OAuthWeb) -> Result<Option<ServerMetadata>> {
    let Ok(issuer_url) = Url::parse(issuer) else { return Ok(None) };
    let path = issuer_url.path().trim_end_matches('/');
    let mut places = vec![
        format!("/.well-known/oauth-authorization-server{path}"),
        format!("/.well-known/openid-configuration{path}"),
    ];
    if !path.is_empty() {
        places.push(format!("{path}/.well-known/openid-configuration"));
    }
    for place in places {
        let mut url = issuer_url.clone();
        url.set_path(&place);
        url.set_query(None);
        if let Some(metadata) = fetch_document::<ServerMetadata>(&url, web).await? {
            check_metadata(issuer, &metadata, web)?;
            return Ok(Some(metadata));
        }
    }
    Ok(None)
}

fn check_metadata(issuer: &str, metadata: &ServerMetadata, web: &OAuthWeb) -> Result<()> {
    let fail = |reason: String| {
        let message = format!("the authorization server {} {reason}", show_text(issuer));
        Err(ClientError::new(ErrorKind::BadResponse, message))
    };
    if !is_same_issuer(&metadata.issuer, issuer) {
        return fail(format!("calls itself `{}`", show_text(&metadata.issuer)));
    }
    if !metadata.code_challenge_methods_supported.iter().any(|method| method == "S256") {
        return fail("does not support PKCE with S256, which OAuth 2.1 requires".to_owned());
    }
    let types = &metadata.response_types_supported;
    if types.as_ref().is_some_and(|types| !types.iter().any(|kind| kind == "code")) {
        return fail("does not support authorization codes".to_owned());
    }
    web.policy().check_url(&metadata.authorization_endpoint)?;
    web.policy().check_url(&metadata.token_endpoint)
}

/// Fetches a JSON document. `None` if there is something else, or nothing.
async fn fetch_document<T: serde::de::DeserializeOwned>(
    url: &Url,
    web: &OAuthWeb,
) -> Result<Option<T>> {
    let answer = web.send(url, OAuthRequest::Get).await?;
    match answer.status {
        status if status.is_success() => Ok(answer.read_json()),
        // It may be there at another time, so that other places would be the wrong ones.
        status if status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429) => {
            let message = format!("{} answered with HTTP status {status}", show_url(url));
            Err(ClientError::new(ErrorKind::Unavailable, message))
        }
        _ => Ok(None),
    }
}

/// Compares issuers. Servers disagree with themselves about a slash at the end, which leads nowhere
/// else.
pub(super) fn is_same_issuer(first: &str, second: &str) -> bool {
    first.strip_suffix('/').unwrap_or(first) == second.strip_suffix('/').unwrap_or(second)
}

/// Shows text of a server in an error.
pub(super) fn show_text(text: &str) -> String {
    clean_line(text, 200)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_must_be_for_this_server() {
        let server: Url = "https://mcp.example.com/a/mcp".parse().unwrap();
        let check = |resource: &str| {
            let (authorization_servers, scopes_supported) = (Vec::new(), Vec::new());
            let resource = resource.to_owned();
            let metadata = ResourceMetadata { resource, authorization_servers, scopes_supported };
            check_resource(&server, &metadata).is_ok()
        };
        for resource in [
            "https://mcp.example.com",
            "https://mcp.example.com/",
            "https://mcp.example.com/a",
            "https://mcp.example.com/a/",
            "https://mcp.example.com/a/mcp",
            "https://mcp.example.com/a/mcp/",
            "https://mcp.example.com:443/a/mcp",
        ] {
            assert!(check(resource), "{resource}");
        }
        for resource in [
            "",
            "https://evil.example.com/a/mcp",
            "http://mcp.example.com/a/mcp",
            "https://mcp.example.com:444/a/mcp",
            "https://mcp.example.com/a/m",
            "https://mcp.example.com/b",
            "https://mcp.example.com/a/mcp/x",
            "https://mcp.example.com/a/mcp#x",
        ] {
            assert!(!check(resource), "{resource}");
        }
    }

    #[test]
    fn indicators_have_no_slash_that_was_not_there() {
        let indicator = |url: &str| resource_indicator(&url.parse().unwrap());
        assert_eq!(indicator("https://mcp.example.com"), "https://mcp.example.com");
        assert_eq!(indicator("https://mcp.example.com/mcp?x=1"), "https://mcp.example.com/mcp");
    }
}
