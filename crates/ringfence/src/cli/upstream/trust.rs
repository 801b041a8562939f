//! `ringfence upstream trust`.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use ringfence_client::config::TransportConfig;
use ringfence_client::show_invisible;
use serde_json::json;

use super::{confirm, write_text};
use crate::audit::AuditLog;
use crate::base::{Result, shell_quote};
use crate::config::{ConfigFlags, ProcessEnv, TrustCandidate, prepare_root_dir, resolve_root};

/// Arguments of `ringfence upstream trust`.
#[derive(clap::Args)]
pub struct UpstreamTrustArgs {
    /// Upstreams file, such as ./codex-toolloop.mcp.json
    file: PathBuf,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Directory for runtime files (default: $XDG_STATE_HOME/ringfence)
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

pub fn run(args: &UpstreamTrustArgs, out: &mut impl Write) -> Result<String> {
    let flags = ConfigFlags { root: args.root.clone(), ..ConfigFlags::default() };
    let root = resolve_root(&flags, &ProcessEnv::from_process())?;
    let candidate = TrustCandidate::read(&args.file)?;
    write_text(out, &describe_candidate(&candidate))?;
    confirm("Use these servers?", args.yes, out)?;
    record_trust(&root, &candidate)?;
    candidate.trust(&root)?;
    Ok(format!(
        "{} is used with exactly these contents; after a change, trust it again.\n",
        candidate.path.display()
    ))
}

/// Recorded first: what is not in the log must not take effect.
fn record_trust(root: &Path, candidate: &TrustCandidate) -> Result<()> {
    prepare_root_dir(root)?;
    // One record never makes a file that has to be rotated.
    let audit = AuditLog::open(root, u64::MAX)?;
    let servers: Vec<&String> = candidate.config.servers.keys().collect();
    audit.write_event(
        "upstream.trust",
        json!({"file": candidate.path, "sha256": candidate.sha256, "servers": servers}),
    )?;
    audit.close()
}

/// Shows what would be started or connected.
fn describe_candidate(candidate: &TrustCandidate) -> String {
    let mut text = format!("{} names these servers:\n", candidate.path.display());
    for (id, server) in &candidate.config.servers {
        let target = match &server.transport {
            TransportConfig::Stdio(stdio) => {
                let words = std::iter::once(&stdio.command).chain(&stdio.args).map(String::as_str);
                format!("runs `{}` in the sandbox", shell_quote::quote_command(words))
            }
            TransportConfig::Http(remote) | TransportConfig::Sse(remote) => {
                format!("connects to {}", remote.url)
            }
        };
        let line = format!("  {id} ({}): {target}", server.trust.name());
        for line in std::iter::once(line).chain(describe_settings(&server.transport)) {
            let _ = writeln!(text, "{}", show_invisible(&line.replace('\n', "<U+000A>")));
        }
    }
    text
}

/// Describes what else decides which program a command is, or what a server gets: a variable such as
/// `NODE_OPTIONS` can load another program.
fn describe_settings(transport: &TransportConfig) -> Vec<String> {
    match transport {
        TransportConfig::Stdio(stdio) => {
            let cwd = stdio.cwd.iter().map(|cwd| format!("    directory: {}", cwd.display()));
            let env = stdio.env.iter();
            cwd.chain(env.map(|(name, value)| format!("    variable: {name}={value}"))).collect()
        }
        TransportConfig::Http(remote) | TransportConfig::Sse(remote) => {
            let headers = remote.headers.iter();
            headers.map(|(name, value)| format!("    header: {name}: {value}")).collect()
        }
    }
}
