//! The authorization request that a browser opens, and the answer that it brings back.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use url::Url;

use super::discover::{DiscoveredServer, show_text};
use super::record::KnownClient;
use super::secret::SecretText;
use crate::error::{ClientError, ErrorKind, Result};

/// One authorization request. It can be answered once.
#[derive(Debug)]
pub(super) struct PendingAuthorization {
    /// What the browser opens.
    pub(super) url: Url,
    /// Proves at the token endpoint that we made this request (PKCE).
    pub(super) verifier: SecretText,
    state: SecretText,
    issuer: String,
    requires_issuer: bool,
}

impl PendingAuthorization {
    pub(super) fn new(
        server: &DiscoveredServer,
        client: &KnownClient,
        redirect_uri: &str,
        scopes: &[String],
    ) -> Result<PendingAuthorization> {
        let (verifier, state) = (random_text()?, random_text()?);
        let challenge = digest(&SHA256, verifier.expose().as_bytes());
        let challenge = BASE64_URL_SAFE_NO_PAD.encode(challenge);
        let metadata = &server.metadata;
        let mut url = metadata.authorization_endpoint.clone();
        let mut query = url.query_pairs_mut();
        query
            .append_pair("response_type", "code")
            .append_pair("client_id", &client.client_id)
            .append_pair("redirect_uri", redirect_uri)
            .append_pair("state", state.expose())
            .append_pair("code_challenge", &challenge)
            .append_pair("code_challenge_method", "S256")
            .append_pair("resource", &server.resource);
        if !scopes.is_empty() {
            query.append_pair("scope", &scopes.join(" "));
        }
        if scopes.iter().any(|scope| scope == "offline_access") {
            // OpenID Connect ignores that scope without it.
            query.append_pair("prompt", "consent");
        }
        drop(query);
        Ok(PendingAuthorization {
            url,
            verifier,
            state,
            issuer: metadata.issuer.clone(),
            requires_issuer: metadata.authorization_response_iss_parameter_supported,
        })
    }

    /// Reads the query that a browser brings back, and returns the authorization code. `None` if it
    /// does not have our `state`: any page in the browser can send such a request, and it must not
    /// end the login.
    pub(super) fn read_callback(&self, query: &str) -> Option<Result<SecretText>> {
        let mut states = find_values(query, "state");
        let (state, further) = (states.next()?, states.next());
        let is_ours =
            verify_slices_are_equal(state.as_bytes(), self.state.expose().as_bytes()).is_ok();
        (is_ours && further.is_none()).then(|| self.read_answer(query))
    }

    /// Reads the answer to this request.
    fn read_answer(&self, query: &str) -> Result<SecretText> {
        let fail = |message: &str| Err(ClientError::new(ErrorKind::Unauthenticated, message));
        let find = |name: &str| {
            let mut values = find_values(query, name);
            match (values.next(), values.next()) {
                (value, None) => Ok(value),
                // Readers that disagree on which one is meant are a way around checks.
                _ => Err(ClientError::new(
                    ErrorKind::BadResponse,
                    format!("the browser's answer repeats the parameter `{name}`"),
                )),
            }
        };
        // Compared as text: the issuer of an attacker may differ in nothing else.
        match find("iss")? {
            Some(issuer) if issuer != self.issuer => {
                let message = format!(
                    "the answer is from `{}`, but `{}` was asked",
                    show_text(&issuer),
                    show_text(&self.issuer)
                );
                return fail(&message);
            }
            None if self.requires_issuer => {
                return fail(
                    "the answer does not say which authorization server it is from (no `iss`)",
                );
            }
            _ => {}
        }
        if let Some(code) = find("error")? {
            let description = find("error_description")?.unwrap_or_default();
            let (code, description) = (show_text(&code), show_text(&description));
            let message = format!("the authorization server refused: {code} {description}");
            return fail(message.trim_end());
        }
        match find("code")?.filter(|code| !code.is_empty()) {
            Some(code) => Ok(SecretText::new(code)),
            None => fail("the browser's answer contains no code"),
        }
    }
}

fn find_values(query: &str, name: &str) -> impl Iterator<Item = String> {
    url::form_urlencoded::parse(query.as_bytes())
        .filter(move |(key, _)| key == name)
        .map(|(_, value)| value.into_owned())
}

/// Returns 256 random bits as text.
fn random_text() -> Result<SecretText> {
    let mut bytes = [0; 32];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| {
        ClientError::new(ErrorKind::Unavailable, "this machine provides no random numbers")
    })?;
    Ok(SecretText::new(BASE64_URL_SAFE_NO_PAD.encode(bytes)))
}
