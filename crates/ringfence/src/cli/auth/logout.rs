//! `ringfence auth logout`.

use ringfence_client::oauth::{LogoutOutcome, logout};
use serde_json::json;

use super::{LoginOwner, find_server, show_text};
use crate::base::{Error, Result};
use crate::cli::upstream::run_connected;
use crate::upstream::client_error::to_call_error;
use crate::upstream::credentials::{LoginStore, oauth_settings};

/// Arguments of `ringfence auth logout`.
#[derive(clap::Args)]
pub struct AuthLogoutArgs {
    /// Server, as the upstreams file names it
    server: String,
    #[command(flatten)]
    owner: LoginOwner,
}

pub fn run(args: &AuthLogoutArgs) -> Result<String> {
    let principal = args.owner.principal();
    run_connected(&args.owner.location, async |local| {
        let state = local.state();
        let id = &args.server;
        let server = find_server(&state.config, id)?;
        let store = LoginStore::new(&state.config.login_store, &principal);
        store.check_readable()?;
        let settings = oauth_settings(&server, &state.config.secrets, &principal)?
            .ok_or_else(|| Error::internal("the server has no logins"))?;
        let outcome = logout(&settings, &store).await.map_err(|error| to_call_error(&error, id))?;
        let name = principal.name();
        let (outcome, text) = describe_outcome(id, name, &outcome);
        local.server.pipeline.audit.write_event(
            "upstream.logout",
            json!({"upstream": id, "principal": name, "outcome": outcome}),
        )?;
        Ok(text)
    })
}

/// Returns the outcome for the log, and for the operator.
fn describe_outcome(id: &str, principal: &str, outcome: &LogoutOutcome) -> (&'static str, String) {
    let removed = format!("Removed the login of `{principal}` to `{id}`");
    match outcome {
        LogoutOutcome::LoggedOut => {
            ("not_logged_in", format!("`{principal}` was not logged in to `{id}`.\n"))
        }
        LogoutOutcome::Revoked => ("revoked", format!("{removed}; its tokens are revoked.\n")),
        LogoutOutcome::NotSupported => (
            "removed",
            format!(
                "{removed}. Its authorization server cannot revoke tokens: they stay valid until they end.\n"
            ),
        ),
        LogoutOutcome::NotRevoked(error) => (
            "not_revoked",
            format!(
                "{removed}. Its tokens could not be revoked and stay valid until they end: {}\n",
                show_text(error.message())
            ),
        ),
    }
}
