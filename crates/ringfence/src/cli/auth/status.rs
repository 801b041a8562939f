//! `ringfence auth status`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;

use ringfence_client::oauth::{LoginStatus, OAuthSettings, status};
use serde_json::{Value, json};

use super::{LoginOwner, describe_login, find_server, format_time, show_text};
use crate::base::{Error, Result};
use crate::cli::upstream::load_config;
use crate::config::{Config, UpstreamServer};
use crate::session::Principal;
use crate::upstream::credentials::{LoginStore, login_command, login_hint};

/// Arguments of `ringfence auth status`.
#[derive(clap::Args)]
pub struct AuthStatusArgs {
    /// Server, as the upstreams file names it (default: all that need a login)
    server: Option<String>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    owner: LoginOwner,
}

/// One login, or the lack of one.
struct LoginRow {
    server_id: String,
    principal: Principal,
    /// What is stored, or why it cannot be used.
    state: std::result::Result<Option<LoginStatus>, String>,
}

pub fn run(args: &AuthStatusArgs) -> Result<String> {
    let config = load_config(&args.owner.location)?;
    let servers: Vec<Arc<UpstreamServer>> = match &args.server {
        Some(id) => vec![find_server(&config, id)?],
        None => {
            config.upstreams.servers.values().filter(|one| one.login.is_some()).cloned().collect()
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::internal("cannot start the runtime").with_source(error))?;
    let rows = runtime.block_on(read_rows(&config, &servers, args))?;
    Ok(match args.json {
        true => format!("{}\n", json!({"logins": rows.iter().map(to_json).collect::<Vec<_>>()})),
        false if rows.is_empty() => {
            "No server needs a login: none has `\"authProviderId\": \"oauth\"`.\n".to_owned()
        }
        false => format_rows(&rows),
    })
}

async fn read_rows(
    config: &Config,
    servers: &[Arc<UpstreamServer>],
    args: &AuthStatusArgs,
) -> Result<Vec<LoginRow>> {
    let stored = LoginStore::list_logins(&config.login_store)?;
    let mut rows = Vec::new();
    for server in servers {
        let owners = stored.iter().filter(|(id, _)| *id == server.id);
        let mut principals: BTreeSet<&str> = owners.map(|(_, owner)| owner.name()).collect();
        let default = args.owner.principal();
        if args.owner.principal.is_some() {
            principals.clear();
        }
        principals.insert(default.name());
        for name in principals {
            let principal = Principal::from_name(name);
            let state = read_login(config, server, &principal).await;
            rows.push(LoginRow { server_id: server.id.clone(), principal, state });
        }
    }
    Ok(rows)
}

async fn read_login(
    config: &Config,
    server: &UpstreamServer,
    principal: &Principal,
) -> std::result::Result<Option<LoginStatus>, String> {
    let Some(remote) = server.server.transport.as_remote() else { return Ok(None) };
    let hint = login_hint(&server.id, principal);
    let settings = OAuthSettings::new(&server.id, remote.url.clone(), hint);
    let store = LoginStore::new(&config.login_store, principal);
    status(&settings, &store).await.map_err(|error| show_text(error.message()))
}

fn to_json(row: &LoginRow) -> Value {
    let mut value = json!({"server": row.server_id, "principal": row.principal.name()});
    match &row.state {
        Ok(Some(status)) => {
            value["logged_in"] = json!(true);
            value["issuer"] = json!(status.issuer);
            value["client_id"] = json!(status.client_id);
            value["scopes"] = json!(status.scopes);
            value["missing_scopes"] = json!(status.missing_scopes);
            value["access_token_ends"] = json!(status.expires_at.map(format_time));
            value["is_renewed"] = json!(status.can_refresh);
        }
        Ok(None) => value["logged_in"] = json!(false),
        Err(error) => {
            value["logged_in"] = json!(false);
            value["error"] = json!(error);
        }
    }
    value
}

fn format_rows(rows: &[LoginRow]) -> String {
    let width = |text: fn(&LoginRow) -> &str| {
        rows.iter().map(|row| text(row).chars().count()).max().unwrap_or(0)
    };
    let id_width = width(|row| &row.server_id);
    let name_width = width(|row| row.principal.name());
    let mut text = String::new();
    for row in rows {
        let command = login_command("login", &row.server_id, &row.principal);
        let state = match &row.state {
            Ok(Some(status)) => format!("logged in {}", describe_login(status)),
            Ok(None) => format!("not logged in; run `{command}`"),
            Err(error) => format!("{error}; run `{command}`"),
        };
        let (id, name) = (&row.server_id, show_text(row.principal.name()));
        // Writing to a string does not fail.
        let _ = writeln!(text, "{id:id_width$}  {name:name_width$}  {state}");
    }
    text
}
