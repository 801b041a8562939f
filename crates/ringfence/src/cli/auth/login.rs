//! `ringfence auth login`.

use std::fmt::Display;
use std::io::Write;
use std::sync::{Arc, Mutex};

use ringfence_client::oauth::{LoginOptions, LoginStatus, OAuthSettings, login};
use serde_json::json;

use super::{LoginOwner, describe_login, find_server, format_time};
use crate::base::{Error, IgnorePoison, Result};
use crate::call::PipelineState;
use crate::cli::upstream::{LocalServer, run_connected, write_text};
use crate::session::Principal;
use crate::upstream::backend::UpstreamBackend;
use crate::upstream::client_error::to_call_error;
use crate::upstream::credentials::{LoginStore, login_command, oauth_settings};
use crate::upstream::learn::write_accepted;
use crate::upstream::review::OfferReview;

/// Arguments of `ringfence auth login`.
#[derive(clap::Args)]
pub struct AuthLoginArgs {
    /// Server, as the upstreams file names it
    server: String,
    /// Port of 127.0.0.1 that the browser comes back to (default: any free one)
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    #[command(flatten)]
    owner: LoginOwner,
}

pub fn run(args: &AuthLoginArgs, out: &mut (impl Write + Send)) -> Result<String> {
    let principal = args.owner.principal();
    run_connected(&args.owner.location, async |local| {
        let state = local.state();
        let server = find_server(&state.config, &args.server)?;
        let store = LoginStore::new(&state.config.login_store, &principal);
        store.check_readable()?;
        let settings = oauth_settings(&server, &state.config.secrets, &principal)?
            .ok_or_else(|| Error::internal("the server has no logins"))?;
        let attempt = LoginAttempt { local, principal: &principal, settings, store };
        // Recorded first: what is not in the log must not take effect.
        attempt.record("started", json!({}))?;
        let options = LoginOptions { redirect_port: args.port, ..LoginOptions::default() };
        let status = match attempt.log_in(&options, out).await {
            Ok(status) => status,
            Err(error) => {
                attempt.record("failed", json!({"error": error.kind().name()}))?;
                return Err(error);
            }
        };
        attempt.record("ok", json!({"issuer": super::show_text(&status.issuer)}))?;
        let mut text = describe_success(&args.server, &principal, &status);
        text.push_str(&attempt.take_over_tools().await);
        Ok(text)
    })
}

/// One login, and what it needs.
struct LoginAttempt<'a> {
    local: &'a LocalServer,
    principal: &'a Principal,
    settings: OAuthSettings,
    store: LoginStore,
}

impl LoginAttempt<'_> {
    async fn log_in(
        &self,
        options: &LoginOptions,
        out: &mut (impl Write + Send),
    ) -> Result<LoginStatus> {
        let id = &self.settings.server_id;
        let minutes = options.timeout.as_secs() / 60;
        let shown = Mutex::new((out, Ok(())));
        let show_url = |url: &dyn Display| {
            let text = format!(
                "Open this address in a browser, and check that you know the site:\n\n  {url}\n\nWaiting up to {minutes} minutes for the browser to come back (Ctrl-C gives up) …\n"
            );
            let (out, written) = &mut *shown.lock().ignore_poison();
            *written = write_text(*out, &text);
        };
        let command = login_command("login", id, self.principal);
        let settings = OAuthSettings {
            login_hint: format!("Try again: `{command}`."),
            ..self.settings.clone()
        };
        let result = login(&settings, &self.store, options, &|url| show_url(url)).await;
        let (_, written) = shown.into_inner().ignore_poison();
        written?;
        result.map_err(|error| to_call_error(&error, id))
    }

    fn record(&self, outcome: &str, facts: serde_json::Value) -> Result<()> {
        let mut fields = json!({
            "upstream": self.settings.server_id,
            "principal": self.principal.name(),
            "outcome": outcome,
        });
        if let (Some(fields), serde_json::Value::Object(facts)) = (fields.as_object_mut(), facts) {
            fields.extend(facts);
        }
        self.local.server.pipeline.audit.write_event("upstream.login", fields)
    }

    /// Takes over the tools of a trusted server, which could not be asked before the login. Running
    /// servers see the lock file change.
    async fn take_over_tools(&self) -> String {
        let (id, state) = (&self.settings.server_id, self.local.state());
        let Some(backend) = state.registry.upstreams.backends.get(id) else {
            return String::new();
        };
        let accept = format!("ringfence upstream accept {id}");
        match backend.is_trusted() {
            _ if state.config.upstreams.lock.servers.contains_key(id) => String::new(),
            true => self.accept_tools(&state, backend).await.unwrap_or_else(|error| {
                let reason = super::show_text(&error.message_chain());
                format!("Its tools could not be listed: {reason}\nTry again with: {accept}\n")
            }),
            false => format!("Accept its tools with: {accept}\n"),
        }
    }

    async fn accept_tools(
        &self,
        state: &PipelineState,
        backend: &Arc<UpstreamBackend>,
    ) -> Result<String> {
        let pipeline = &self.local.server.pipeline;
        let offer =
            pipeline.ask_upstream(state, backend, &self.local.session, self.principal).await?;
        let id = &backend.server.id;
        let review = OfferReview::new(id, None, &offer.locked, &state.config);
        let locked = review.without_dangerous_tools(&offer.locked);
        let (count, offered) = (locked.tools.len(), offer.locked.tools.len());
        let facts = json!({
            "upstream": id, "tools": count, "left_out": offered - count,
            "changes": review.changes.len(),
        });
        pipeline.audit.write_event("upstream.accept", facts)?;
        write_accepted(&state.config.upstreams, id, locked)?;
        Ok(match offered - count {
            0 => format!("Its {count} tools are offered from now on.\n"),
            left_out => format!(
                "{count} of its tools are offered from now on. The scanner found something in {left_out}: see `ringfence upstream diff {id}`.\n"
            ),
        })
    }
}

fn describe_success(id: &str, principal: &Principal, status: &LoginStatus) -> String {
    let end =
        status.expires_at.map(|end| format!(" The access token ends at {}.", format_time(end)));
    format!(
        "Logged in to `{id}` for the principal `{}` {}.{} Running servers use it from the next call on.\n",
        principal.name(),
        describe_login(status),
        end.unwrap_or_default()
    )
}
