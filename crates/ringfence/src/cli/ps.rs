//! `ringfence ps`: shows the running servers of this root.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use super::screen::{ColumnFit, TextTable, stdout_width};
use super::{server_sockets, write_output};
use crate::approval::terminal::{ServerStatus, SocketRequest};
use crate::base::clock::{format_duration, unix_millis};
use crate::base::{Error, Result, visible};

/// Show the running servers of this root: address, clients, workspace, sessions, calls in flight
#[derive(clap::Args)]
pub struct PsArgs {
    /// Runtime directory of the servers (default: $XDG_STATE_HOME/ringfence)
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Print as JSON, with every session
    #[arg(long)]
    json: bool,
}

/// Runs `ringfence ps`.
pub fn run(args: &PsArgs, root: &Path, out: &mut impl Write) -> Result<()> {
    let replies = server_sockets::ask_all(root, &SocketRequest::Status {})?;
    let mut servers = Vec::new();
    for (pid, _, reply) in replies {
        match serde_json::from_value::<ServerStatus>(reply["status"].clone()) {
            Ok(status) => servers.push(status),
            Err(error) => tracing::warn!("server {pid} sent an invalid reply: {error}"),
        }
    }
    servers.sort_by_key(|status| (status.started_unix_ms, status.pid));
    if args.json {
        let text = serde_json::to_string_pretty(&json!({"servers": servers}))
            .map_err(|error| Error::internal("the servers cannot be shown").with_source(error))?;
        return write_output(out, &format!("{text}\n"));
    }
    if servers.is_empty() {
        let root = visible::escape_to_line(&root.display().to_string());
        return write_output(out, &format!("No server runs in this root ({root}).\n"));
    }
    write_output(out, &format_servers(&servers, unix_millis(), stdout_width()))
}

fn format_servers(servers: &[ServerStatus], now_ms: u64, width: Option<usize>) -> String {
    let mut table = TextTable::new(&[
        ("PID", ColumnFit::Fixed),
        ("ADDRESS", ColumnFit::Fixed),
        ("UP", ColumnFit::Fixed),
        ("SESSIONS", ColumnFit::Fixed),
        ("CALLS", ColumnFit::Fixed),
        ("CLIENT", ColumnFit::CutEnd),
        ("WORKSPACE", ColumnFit::CutStart),
    ]);
    for server in servers {
        let uptime = Duration::from_millis(now_ms.saturating_sub(server.started_unix_ms));
        let address = server
            .address
            .as_deref()
            .map_or("stdio", |url| url.trim_start_matches("http://").trim_end_matches("/mcp"));
        let workspace = match &server.workspace {
            Some(path) => path.display().to_string(),
            None => "one per principal".to_owned(),
        };
        table.add_row([
            server.pid.to_string(),
            visible::escape_to_line(address),
            format_duration(uptime),
            server.sessions.len().to_string(),
            server.calls.to_string(),
            // A client chooses its name, which must not drive the terminal.
            visible::escape_to_line(&name_clients(server)),
            visible::escape_to_line(&workspace),
        ]);
    }
    table.render(width)
}

/// Returns the names of all clients, with their number where there are several of one name.
fn name_clients(server: &ServerStatus) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for session in &server.sessions {
        *counts.entry(&session.client).or_default() += 1;
    }
    let names = counts.into_iter().map(|(name, count)| match (name, count) {
        ("", 1) => "-".to_owned(),
        ("", count) => format!("- ({count})"),
        (name, 1) => name.to_owned(),
        (name, count) => format!("{name} ({count})"),
    });
    let names: Vec<String> = names.collect();
    if names.is_empty() { "-".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::approval::terminal::SessionStatus;

    fn session(client: &str) -> SessionStatus {
        SessionStatus {
            id: "s-1".to_owned(),
            client: client.to_owned(),
            principal: "local".to_owned(),
            transport: "http".to_owned(),
            workspace: "/w".into(),
        }
    }

    #[test]
    fn every_row_fits_and_no_client_drives_the_terminal() {
        let server = ServerStatus {
            pid: 4_194_304,
            version: "1".to_owned(),
            transport: "http".to_owned(),
            address: Some("http://127.0.0.1:65535/mcp".to_owned()),
            workspace: Some(format!("/home/me/{}", "deep/".repeat(20)).into()),
            started_unix_ms: 0,
            calls: 120,
            sessions: vec![
                session("a\u{1b}[2J/1"),
                session("editor/2"),
                session("editor/2"),
                session(""),
            ],
        };
        assert_eq!(name_clients(&server), "-, a\u{1b}[2J/1, editor/2 (2)");
        let text = format_servers(std::slice::from_ref(&server), 90_061_000, Some(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(!text.contains('\u{1b}') && text.contains("4194304"), "{text}");
        let whole = format_servers(&[server], 90_061_000, None);
        assert!(whole.contains(&"deep/".repeat(20)) && whole.contains("editor/2 (2)"), "{whole}");
    }
}
