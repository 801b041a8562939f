//! Bearer tokens: which principal a request comes from, and the answer to a request without a valid
//! token.
//!
//! A key allows exactly one algorithm, so a token cannot choose how it is checked. Only the
//! `Authorization` header is read; a token in a query string would end up in logs and is ignored.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, ED25519, ParsedPublicKey};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::base::{Error, Kind, Result};
use crate::config::{AuthKey, AuthSettings};
use crate::session::Principal;

/// Tolerance around the times of a token, because the clocks of two machines differ.
const LEEWAY_S: f64 = 30.0;
/// A token that is valid for longer than a year is treated as valid for a year.
const MAX_VALIDITY_S: f64 = 365.0 * 86_400.0;
/// Longest token. No honest token is longer, and a longer one costs work before it is refused.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
const MAX_NAME_BYTES: usize = 512;

/// Verifier of bearer tokens, for one key and one algorithm.
pub struct TokenVerifier {
    key: DecodingKey,
    algorithm: Algorithm,
    validation: Validation,
    audience: Option<String>,
    issuer: Option<String>,
}

/// Principal that a token identifies, and how long it remains valid.
#[derive(Debug)]
pub struct VerifiedToken {
    pub principal: Principal,
    /// From now, including the leeway.
    pub valid_for: Duration,
}

#[derive(Deserialize)]
struct TokenClaims {
    #[serde(default)]
    exp: Value,
    #[serde(default)]
    nbf: Value,
    #[serde(default)]
    sub: Value,
    #[serde(default)]
    iss: Value,
    #[serde(default)]
    aud: Value,
}

impl TokenVerifier {
    /// Creates a verifier for the configured key. Fails if the key is too weak or of an unsupported
    /// kind.
    pub fn new(auth: &AuthSettings) -> Result<TokenVerifier> {
        let (key, algorithm) = match &auth.key {
            AuthKey::Secret(secret) => (read_secret_key(secret.expose())?, Algorithm::HS256),
            AuthKey::PublicPem(pem) => read_public_key(pem)?,
        };
        let mut validation = Validation::new(algorithm);
        // Times are checked below: RFC 7519 allows fractions of a second, and the expiry is needed
        // later.
        validation.validate_exp = false;
        validation.required_spec_claims.clear();
        // Audience and issuer are checked below: if they are configured, a token without them is
        // refused as well.
        validation.validate_aud = false;
        if auth.audience.is_none() {
            tracing::warn!(
                "no audience is set, so a token made for another service is accepted; set MCP_AUTH_AUDIENCE"
            );
        }
        Ok(TokenVerifier {
            key,
            algorithm,
            validation,
            audience: auth.audience.clone(),
            issuer: auth.issuer.clone(),
        })
    }

    /// Verifies the token in this `Authorization` header.
    pub fn verify_header(&self, authorization_header: Option<&str>) -> Result<VerifiedToken> {
        let token = bearer_token(authorization_header)?;
        self.check_header(token)?;
        let claims = jsonwebtoken::decode::<TokenClaims>(token, &self.key, &self.validation)
            .map_err(map_library_error)?
            .claims;
        let valid_for = remaining_validity(&claims, SystemTime::now())?;
        if let Some(issuer) = &self.issuer
            && claims.iss.as_str() != Some(issuer)
        {
            return Err(token_error(
                "wrong_issuer",
                "the token is not from the issuer that this server trusts",
            ));
        }
        if let Some(audience) = &self.audience
            && !has_audience(&claims.aud, audience)
        {
            return Err(token_error("wrong_audience", "the token was not issued for this server"));
        }
        Ok(VerifiedToken { principal: principal_from_claims(&claims)?, valid_for })
    }

    /// Requires the algorithm of our key. This also refuses `none`, which the library calls
    /// malformed.
    fn check_header(&self, token: &str) -> Result<()> {
        let malformed = || token_error("malformed_token", "the token is not a signed JWT");
        let part = token.split('.').next().unwrap_or_default();
        let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| malformed())?;
        let header: Value = serde_json::from_slice(&bytes).map_err(|_| malformed())?;
        let algorithm = header.get("alg").and_then(Value::as_str).ok_or_else(malformed)?;
        if algorithm != algorithm_name(self.algorithm) {
            let hint =
                format!("Sign tokens for this server with {}.", algorithm_name(self.algorithm));
            return Err(token_error(
                "wrong_algorithm",
                "the token's algorithm does not match this server's key",
            )
            .with_hint(hint));
        }
        // Critical extensions, none of which we support (RFC 7515, 4.1.11).
        if header.get("crit").is_some() {
            return Err(malformed());
        }
        Ok(())
    }
}

fn algorithm_name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::RS256 => "RS256",
        Algorithm::ES256 => "ES256",
        Algorithm::EdDSA => "EdDSA",
        _ => "HS256",
    }
}

fn read_secret_key(secret: &[u8]) -> Result<DecodingKey> {
    if secret.len() < 16 {
        return Err(Error::invalid_arguments(
            "MCP_AUTH_JWT_SECRET is shorter than 16 bytes and could be guessed",
        )
        .with_reason("weak_secret")
        .with_hint("Make one with `ringfence token --new-secret`."));
    }
    // A public key used as the secret would be known to everyone.
    if secret.starts_with(b"-----BEGIN ") {
        return Err(Error::invalid_arguments(
            "MCP_AUTH_JWT_SECRET holds a PEM key and not a secret",
        )
        .with_reason("wrong_key")
        .with_hint("Put a public key into MCP_AUTH_JWT_PUBLIC_KEY."));
    }
    if secret.len() < 32 {
        tracing::warn!("MCP_AUTH_JWT_SECRET is shorter than the 32 bytes that HS256 calls for");
    }
    Ok(DecodingKey::from_secret(secret))
}

/// Returns the key in the PEM and the one algorithm that goes with its kind.
fn read_public_key(pem: &str) -> Result<(DecodingKey, Algorithm)> {
    let key_error = |problem: &str| {
        Error::invalid_arguments(format!("MCP_AUTH_JWT_PUBLIC_KEY {problem}"))
            .with_reason("wrong_key")
            .with_hint(
                "Give one public key in PEM form: RSA (2048 to 8192 bits), EC P-256 or Ed25519.",
            )
    };
    let labels: Vec<&str> =
        pem.split("-----BEGIN ").skip(1).filter_map(|rest| rest.split("-----").next()).collect();
    match labels[..] {
        ["PUBLIC KEY" | "RSA PUBLIC KEY"] => {}
        [label] if label.ends_with("PRIVATE KEY") => {
            return Err(key_error("holds a private key, which does not belong here"));
        }
        _ => return Err(key_error("is not one public key in PEM form")),
    }
    let with_algorithm = |result: jsonwebtoken::errors::Result<DecodingKey>, algorithm| {
        result.ok().map(|key| (key, algorithm))
    };
    let bytes = pem.as_bytes();
    let parsed = with_algorithm(DecodingKey::from_rsa_pem(bytes), Algorithm::RS256)
        .or_else(|| with_algorithm(DecodingKey::from_ed_pem(bytes), Algorithm::EdDSA))
        .or_else(|| with_algorithm(DecodingKey::from_ec_pem(bytes), Algorithm::ES256));
    let (key, algorithm) = parsed.ok_or_else(|| key_error("cannot be read"))?;
    if !is_usable_key(&key, algorithm) {
        return Err(key_error("is of a kind or size that is not accepted"));
    }
    Ok((key, algorithm))
}

/// Returns whether the algorithm accepts the key. Detects an unsupported curve, point or size at
/// the start instead of with the first token.
fn is_usable_key(key: &DecodingKey, algorithm: Algorithm) -> bool {
    let Ok(bytes) = key.try_get_as_bytes() else { return false };
    match algorithm {
        Algorithm::RS256 => aws_lc_rs::rsa::PublicKey::from_der(bytes)
            .is_ok_and(|key| (256..=1024).contains(&key.modulus_len())),
        Algorithm::ES256 => ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, bytes).is_ok(),
        _ => ParsedPublicKey::new(&ED25519, bytes).is_ok(),
    }
}

fn bearer_token(header: Option<&str>) -> Result<&str> {
    let missing = || token_error("missing_token", "this server requires a bearer token");
    let header = header.map(str::trim).ok_or_else(missing)?;
    let (scheme, token) = header.split_once(' ').unwrap_or((header, ""));
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(missing());
    }
    let token = token.trim_start();
    let is_token_byte = |byte: u8| {
        byte.is_ascii_alphanumeric()
            || matches!(byte, b'-' | b'_' | b'.' | b'~' | b'+' | b'/' | b'=')
    };
    if token.is_empty() || token.len() > MAX_TOKEN_BYTES || !token.bytes().all(is_token_byte) {
        return Err(token_error("malformed_token", "the token is not a signed JWT"));
    }
    Ok(token)
}

/// Returns how long the token remains valid. Times are seconds since 1970 (RFC 7519, NumericDate),
/// whole or not.
fn remaining_validity(claims: &TokenClaims, now: SystemTime) -> Result<Duration> {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let malformed = |message| token_error("malformed_token", message);
    let number = |claim: &Value| claim.as_f64().filter(|seconds| seconds.is_finite());
    let expires = number(&claims.exp)
        .ok_or_else(|| malformed("the token does not say when it expires (exp)"))?;
    if !claims.nbf.is_null() {
        let not_before = number(&claims.nbf)
            .ok_or_else(|| malformed("the token's start time (nbf) is not a number"))?;
        if not_before > now + LEEWAY_S {
            return Err(token_error("not_yet_valid", "the token is not valid yet"));
        }
    }
    match Duration::try_from_secs_f64((expires + LEEWAY_S - now).min(MAX_VALIDITY_S)) {
        Ok(remaining) if !remaining.is_zero() => Ok(remaining),
        _ => Err(expired_error()),
    }
}

fn has_audience(claim: &Value, audience: &str) -> bool {
    match claim {
        Value::String(one) => one == audience,
        Value::Array(many) => many.iter().any(|one| one.as_str() == Some(audience)),
        _ => false,
    }
}

/// Returns the principal `subject@issuer`. The issuer's own `@` is escaped, so the last one always
/// separates the two, and different pairs of subject and issuer never give the same name. A token
/// without issuer ends in the bare `@`.
fn principal_from_claims(claims: &TokenClaims) -> Result<Principal> {
    let subject_error = || token_error("no_subject", "the token does not say whom it is for (sub)");
    let subject =
        claims.sub.as_str().filter(|text| is_printable_name(text)).ok_or_else(subject_error)?;
    let issuer = match &claims.iss {
        Value::Null => "",
        Value::String(text) if text.is_empty() || is_printable_name(text) => text,
        _ => return Err(token_error("wrong_issuer", "the token's issuer (iss) is not plain text")),
    };
    let issuer = issuer.replace('%', "%25").replace('@', "%40");
    Ok(Principal::from_name(format!("{subject}@{issuer}")))
}

/// Returns whether a text may appear in logs and prompts: short, not blank, without control
/// characters.
fn is_printable_name(text: &str) -> bool {
    !text.trim().is_empty() && text.len() <= MAX_NAME_BYTES && !text.chars().any(char::is_control)
}

/// Returns the error for an expired token, also if it expires before its request has been answered.
pub fn expired_error() -> Error {
    token_error("expired", "the token has expired")
}

fn token_error(reason: &'static str, message: &str) -> Error {
    let hint = match reason {
        "missing_token" => {
            "Send `Authorization: Bearer <token>` with a token made for this server."
        }
        "expired" => "Get a new token.",
        "not_yet_valid" => "Wait, or check the clocks of this server and of the issuer.",
        "wrong_audience" => "Get a token whose audience (aud) is this server.",
        "wrong_issuer" => "Get a token from the issuer that this server's operator set.",
        "no_subject" => "Get a token with a subject (sub).",
        _ => "Get a token that is signed with this server's key.",
    };
    Error::new(Kind::Unauthenticated, message).with_reason(reason).with_hint(hint)
}

/// Replaces the library's messages by our own, because they may quote the token.
fn map_library_error(error: jsonwebtoken::errors::Error) -> Error {
    match error.kind() {
        ErrorKind::InvalidSignature => {
            token_error("bad_signature", "the token's signature does not match this server's key")
        }
        ErrorKind::InvalidAlgorithm => {
            token_error("wrong_algorithm", "the token's algorithm does not match this server's key")
        }
        _ => token_error("malformed_token", "the token is not a signed JWT"),
    }
}

/// Returns the `WWW-Authenticate` header of a 401. By RFC 6750, a request without a token gets no
/// error code.
pub fn challenge_header(error: &Error, resource_metadata_url: Option<&str>) -> String {
    let mut text = "Bearer realm=\"ringfence\"".to_owned();
    if error.reason_name() != Some("missing_token") {
        text.push_str(&format!(
            ", error=\"invalid_token\", error_description=\"{}\"",
            strip_unquotable(error.message())
        ));
    }
    if let Some(url) = resource_metadata_url {
        text.push_str(&format!(", resource_metadata=\"{}\"", strip_unquotable(url)));
    }
    text
}

/// Keeps what may appear between quotes in a header: printable ASCII without quotes and
/// backslashes.
fn strip_unquotable(text: &str) -> String {
    text.chars().filter(|c| matches!(c, ' '..='~') && !matches!(c, '"' | '\\')).collect()
}

/// Returns the RFC 9728 metadata, which says where a client gets a token for this server.
pub fn protected_resource_metadata(issuer: &str, resource_url: &str) -> Value {
    json!({
        "resource": resource_url,
        "resource_name": "Ringfence",
        "authorization_servers": [issuer],
        "bearer_methods_supported": ["header"],
    })
}

#[cfg(test)]
mod tests;
