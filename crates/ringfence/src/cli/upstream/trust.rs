//! `ringfence upstream trust`.

use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;

use ringfence_client::config::TransportConfig;
use ringfence_client::show_invisible;

use super::{confirm, write_text};
use crate::base::{Result, shell_quote};
use crate::config::{ConfigFlags, ProcessEnv, TrustCandidate, resolve_root};

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
    candidate.trust(&root)?;
    Ok(format!(
        "{} is used with exactly these contents; after a change, trust it again.\n",
        candidate.path.display()
    ))
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
        let _ = writeln!(text, "{}", show_invisible(&line));
    }
    text
}
