//! `ringfence upstream accept`.

use std::io::Write;

use serde_json::json;

use super::{confirm, run_connected, write_text};
use crate::base::{Error, Result};
use crate::cli::config::ConfigLocation;
use crate::upstream::learn::write_accepted;
use crate::upstream::review::OfferReview;

/// Arguments of `ringfence upstream accept`.
#[derive(clap::Args)]
pub struct UpstreamAcceptArgs {
    /// Server, as the upstreams file names it
    id: String,
    /// Do not ask; tools with findings are left out unless `--with-findings` is given too
    #[arg(long)]
    yes: bool,
    /// Accept tools in which the scanner found something dangerous
    #[arg(long)]
    with_findings: bool,
    #[command(flatten)]
    location: ConfigLocation,
}

pub fn run(args: &UpstreamAcceptArgs, out: &mut impl Write) -> Result<String> {
    run_connected(&args.location, async |local| {
        let backend = local.find_backend(&args.id)?;
        let offer = local.ask(&backend).await?;
        let state = local.state();
        let upstreams = &state.config.upstreams;
        let accepted = upstreams.lock.servers.get(&args.id);
        let review = OfferReview::new(&args.id, accepted, &offer.locked, &state.config);
        if review.is_empty() {
            return Ok(format!("`{}` offers exactly what is accepted.\n", args.id));
        }
        write_text(out, &review.to_text())?;
        let locked = match args.with_findings {
            true => offer.locked.clone(),
            false => review.without_dangerous_tools(&offer.locked),
        };
        let left_out = offer.locked.tools.len() - locked.tools.len();
        let question = match left_out {
            0 => format!("Accept these {} tools of `{}`?", locked.tools.len(), args.id),
            _ => format!(
                "Accept {} tools of `{}` and leave out {left_out} with findings (`--with-findings` accepts them)?",
                locked.tools.len(),
                args.id
            ),
        };
        confirm(&question, args.yes, out)?;
        let count = locked.tools.len();
        // Recorded first: what is not in the log must not take effect.
        local.server.pipeline.audit.write_event(
            "upstream.accept",
            json!({"upstream": args.id, "tools": count, "left_out": left_out, "changes": review.changes.len()}),
        )?;
        write_accepted(upstreams, &args.id, locked)?;
        let path = upstreams.lock_path.as_ref().ok_or_else(|| Error::internal("no lock file"))?;
        Ok(format!(
            "Accepted {count} tools of `{}` in {}. Running servers take it over at once.\n",
            args.id,
            path.display()
        ))
    })
}
