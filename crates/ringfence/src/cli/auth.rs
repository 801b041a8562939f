//! `ringfence auth`: logs in to other MCP servers, logs out, and shows who is logged in. No command
//! prints a token.

mod login;
mod logout;
mod status;

use std::io::Write;
use std::sync::Arc;
use std::time::SystemTime;

use ringfence_client::clean_text;
use ringfence_client::oauth::LoginStatus;

use super::config::ConfigLocation;
use super::upstream::write_text;
use crate::base::clock::format_utc;
use crate::base::suggest::suggest_name;
use crate::base::{Error, Kind, Result};
use crate::config::{Config, UpstreamServer};
use crate::session::Principal;

/// Longest text of an authorization server that is shown.
const MAX_SHOWN_CHARS: usize = 300;

/// Log in to other MCP servers that need it, log out, and show who is logged in
///
/// For servers with `"authProviderId": "oauth"` in the upstreams file. The login is stored
/// encrypted, for one server and one principal, and renewed without you for as long as the server
/// allows it. Running servers use it from the next call on. No command shows a token.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  ringfence auth status                   show all servers that need a login\n  ringfence auth login docs               print an address to open in a browser, and wait\n  ringfence auth login docs --port 8765   come back to a port that `ssh -L` forwards\n  ringfence auth login docs --principal ann@https://id.example.com\n                                          log in for one principal of a server with auth\n  ringfence auth logout docs              revoke the tokens and remove the login"
)]
pub struct AuthArgs {
    #[command(subcommand)]
    command: AuthCommand,
}

#[derive(clap::Subcommand)]
enum AuthCommand {
    /// Log in to a server with a browser
    ///
    /// Prints the address of the login page and waits, for up to five minutes, until the browser
    /// comes back to this machine.
    Login(login::AuthLoginArgs),
    /// Log out: revoke the tokens where the authorization server allows it, and remove the login
    Logout(logout::AuthLogoutArgs),
    /// Show who is logged in, with which rights and until when; asks no server
    Status(status::AuthStatusArgs),
}

/// Whose login a command is about.
#[derive(clap::Args)]
struct LoginOwner {
    /// Principal whose calls use the login, as the audit log names it (default: `local`, which is
    /// everyone on stdio and over HTTP without auth)
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
    #[command(flatten)]
    location: ConfigLocation,
}

impl LoginOwner {
    fn principal(&self) -> Principal {
        self.principal.as_deref().map_or_else(Principal::local, Principal::from_name)
    }
}

/// Runs `ringfence auth` and returns the exit code.
pub fn run(args: &AuthArgs, out: &mut (impl Write + Send)) -> Result<u8> {
    let text = match &args.command {
        AuthCommand::Login(args) => login::run(args, out)?,
        AuthCommand::Logout(args) => logout::run(args)?,
        AuthCommand::Status(args) => status::run(args)?,
    };
    write_text(out, &text).map(|()| 0)
}

/// Returns a server that has logins.
fn find_server(config: &Config, id: &str) -> Result<Arc<UpstreamServer>> {
    let servers = &config.upstreams.servers;
    if let Some(server) = servers.get(id) {
        return match server.login {
            Some(_) => Ok(Arc::clone(server)),
            None => Err(Error::invalid_arguments(format!("the server `{id}` needs no login"))
                .with_hint(
                    "Add `\"authProviderId\": \"oauth\"` to its `transport` in the upstreams file if it does.",
                )),
        };
    }
    let with_login = servers.values().filter(|server| server.login.is_some());
    let known: Vec<&str> = with_login.map(|server| server.id.as_str()).collect();
    let hint = match (suggest_name(id, &known), known.as_slice()) {
        (Some(suggestion), _) => format!("Did you mean `{suggestion}`?"),
        (None, []) => "No server has `\"authProviderId\": \"oauth\"`.".to_owned(),
        (None, known) => format!("Servers with logins: {}.", known.join(", ")),
    };
    Err(Error::new(Kind::NotFound, format!("there is no server `{id}`")).with_hint(hint))
}

/// Describes a login in a few words.
fn describe_login(status: &LoginStatus) -> String {
    let mut parts = vec![format!("at {}", show_text(&status.issuer))];
    match (status.can_refresh, status.expires_at) {
        (true, _) => parts.push("renewed without you".to_owned()),
        (false, Some(end)) if end <= SystemTime::now() => {
            parts.push(format!("ended at {}", format_time(end)));
        }
        (false, Some(end)) => parts.push(format!("until {}", format_time(end))),
        (false, None) => parts.push("until the server ends it".to_owned()),
    }
    if !status.scopes.is_empty() {
        parts.push(format!("scopes: {}", show_text(&status.scopes.join(" "))));
    }
    if !status.missing_scopes.is_empty() {
        let missing = show_text(&status.missing_scopes.join(" "));
        parts.push(format!("the server also wants: {missing} (log in again to grant it)"));
    }
    parts.join(", ")
}

/// Returns a text of an authorization server, safe to show in a terminal.
fn show_text(text: &str) -> String {
    clean_text(text, MAX_SHOWN_CHARS)
}

/// Formats a time to the second: `2026-11-16T15:50:33Z`.
fn format_time(time: SystemTime) -> String {
    let text = format_utc(time);
    format!("{}Z", text.split(['.', 'Z']).next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_login_is_described_with_its_end_and_without_control_characters() {
        let mut status = LoginStatus {
            issuer: "https://id.example.com\u{1b}[2J".to_owned(),
            client_id: "c".to_owned(),
            scopes: vec!["read".to_owned()],
            expires_at: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1)),
            can_refresh: true,
            missing_scopes: Vec::new(),
        };
        let text = describe_login(&status);
        assert!(text.contains("renewed without you, scopes: read"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
        status.can_refresh = false;
        assert!(describe_login(&status).contains("ended at 1970-01-01T00:00:01Z"));
        status.expires_at = Some(SystemTime::now() + Duration::from_secs(60));
        status.missing_scopes = vec!["write".to_owned()];
        let text = describe_login(&status);
        assert!(text.contains("until 2") && text.contains("also wants: write"), "{text}");
    }
}
