//! `ringfence token`: makes a bearer token for an HTTP server, signed with the server's own secret.
//!
//! The secret comes from where the server takes it and is never printed; only `--new-secret` prints
//! one, which no server uses yet.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

use super::write_output;
use crate::base::clock::parse_duration;
use crate::base::ids::random_bytes;
use crate::base::{Error, Kind, Result};
use crate::config::env::MCP_AUTH_ENABLED;
use crate::config::{AuthKey, AuthSettings, ConfigFlags, ProcessEnv, resolve_config};
use crate::mcp::auth::TokenVerifier;

/// Longest validity. A server treats a token that is valid for longer as valid for a year.
const MAX_TTL: Duration = Duration::from_secs(365 * 86_400);
/// Bytes of a new secret: as many as HS256 calls for.
const SECRET_BYTES: usize = 32;

/// Make a bearer token (JWT) for an HTTP server with `[auth]`, and print it
///
/// The token is signed (HS256) with the secret that the server uses: MCP_AUTH_JWT_SECRET, or the
/// file that `jwt_secret_file` in the config file names. Audience and issuer are those that the
/// server requires, unless you give others.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  export MCP_AUTH_JWT_SECRET=$(ringfence token --new-secret)\n  export RINGFENCE_TOKEN=$(ringfence token --sub ann --ttl 30d)\n  ringfence tools --url http://127.0.0.1:8931/mcp"
)]
pub struct TokenArgs {
    /// Subject: who the caller is, which also selects the workspace (default: your user name)
    #[arg(long, value_name = "NAME")]
    sub: Option<String>,
    /// Audience of the token (default: MCP_AUTH_AUDIENCE, or `audience` in the config file)
    #[arg(long, value_name = "AUDIENCE")]
    audience: Option<String>,
    /// Issuer of the token (default: MCP_AUTH_ISSUER, or `issuer` in the config file)
    #[arg(long, value_name = "ISSUER")]
    issuer: Option<String>,
    /// Validity: 30s, 10m, 2h, 7d, up to 365d
    #[arg(long, value_name = "DURATION", default_value = "30d", value_parser = parse_ttl)]
    ttl: Duration,
    /// Config file to read (default: $XDG_CONFIG_HOME/ringfence/config.toml)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print a new random secret for MCP_AUTH_JWT_SECRET instead of a token
    #[arg(long, conflicts_with_all = ["sub", "audience", "issuer", "ttl", "config"])]
    new_secret: bool,
}

/// Runs `ringfence token`.
pub fn run(args: TokenArgs, out: &mut impl Write) -> Result<()> {
    if args.new_secret {
        let secret = STANDARD.encode(random_bytes::<SECRET_BYTES>());
        return write_output(out, &format!("{secret}\n"));
    }
    let auth = resolve_auth(args.config.clone(), ProcessEnv::from_process())?;
    let token = make_token(&args, &auth)?;
    write_output(out, &format!("{token}\n"))
}

/// Resolves `[auth]` as an HTTP server does, whether or not auth is enabled here: the variables of
/// the server's shell are usually not all set in that of the client.
fn resolve_auth(config: Option<PathBuf>, env: ProcessEnv) -> Result<AuthSettings> {
    let flags = ConfigFlags {
        config,
        http: Some("127.0.0.1:0".to_owned()),
        ignores_upstreams: true,
        ..ConfigFlags::default()
    };
    let resolved = resolve_config(&flags, &env.with_variable(MCP_AUTH_ENABLED, "true"));
    let auth = resolved.map_err(explain_missing_key)?.auth;
    auth.ok_or_else(|| Error::internal("auth is enabled, but not resolved"))
}

fn explain_missing_key(error: Error) -> Error {
    if error.reason_name() != Some("auth_key") || error.message().contains("both") {
        return error;
    }
    Error::new(Kind::NotFound, "there is no secret to sign the token with")
        .with_reason("auth_key")
        .with_hint("Set the server's secret in MCP_AUTH_JWT_SECRET, or name its file with `jwt_secret_file` under [auth] in the config file. `ringfence token --new-secret` prints a new one.")
}

fn make_token(args: &TokenArgs, auth: &AuthSettings) -> Result<String> {
    let AuthKey::Secret(secret) = &auth.key else {
        return Err(Error::invalid_arguments(
            "the server checks tokens with a public key, whose private key is not here",
        )
        .with_hint("Have its issuer sign the token, or use MCP_AUTH_JWT_SECRET in its place."));
    };
    // It refuses what the server would refuse, first of all a secret that could be guessed.
    let verifier = TokenVerifier::new(auth)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let subject = args.sub.clone().or_else(find_user_name).ok_or_else(|| {
        Error::invalid_arguments("your user name is not known")
            .with_hint("Say who the token is for with `--sub NAME`.")
    })?;
    let mut claims = json!({
        "sub": subject,
        "iat": now.as_secs(),
        "exp": now.saturating_add(args.ttl).as_secs(),
    });
    let audience = args.audience.as_ref().or(auth.audience.as_ref());
    let issuer = args.issuer.as_ref().or(auth.issuer.as_ref());
    for (claim, value) in [("aud", audience), ("iss", issuer)] {
        if let Some(value) = value {
            claims[claim] = Value::from(value.as_str());
        }
    }
    let key = EncodingKey::from_secret(secret.expose());
    let token = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key)
        .map_err(|_| Error::internal("the token cannot be signed"))?;
    verifier.verify_header(Some(&format!("Bearer {token}"))).map_err(|error| {
        let message = format!("the server would refuse this token: {}", error.message());
        Error::invalid_arguments(message)
            .with_hint("Give the audience and the issuer that the server requires, or leave them out; `ringfence config show` lists them.")
    })?;
    Ok(token)
}

fn find_user_name() -> Option<String> {
    ["USER", "LOGNAME"]
        .iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|name| !name.is_empty())
}

fn parse_ttl(text: &str) -> std::result::Result<Duration, String> {
    match parse_duration(text) {
        Some(ttl) if !ttl.is_zero() && ttl <= MAX_TTL => Ok(ttl),
        Some(_) => Err("give 1s at the least and 365d at the most".to_owned()),
        None => Err("give a duration such as 30s, 10m, 2h, 7d".to_owned()),
    }
}
