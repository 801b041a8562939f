//! `ringfence upstream diff`.

use super::run_connected;
use crate::base::Result;
use crate::cli::config::ConfigLocation;
use crate::upstream::review::OfferReview;

/// Arguments of `ringfence upstream diff`.
#[derive(clap::Args)]
pub struct UpstreamDiffArgs {
    /// Server, as the upstreams file names it
    id: String,
    #[command(flatten)]
    location: ConfigLocation,
}

pub fn run(args: &UpstreamDiffArgs) -> Result<String> {
    run_connected(&args.location, async |local| {
        let backend = local.find_backend(&args.id)?;
        let offer = local.ask(&backend).await?;
        let state = local.state();
        let accepted = state.config.upstreams.lock.servers.get(&args.id);
        let review = OfferReview::new(&args.id, accepted, &offer.locked, &state.config);
        let mut text = review.to_text();
        for rejected in &offer.rejected {
            text.push_str(&format!("left out: {}\n", ringfence_client::show_invisible(rejected)));
        }
        if review.is_empty() {
            return Ok(format!("{text}`{}` offers exactly what is accepted.\n", args.id));
        }
        Ok(format!("{text}\nAccept it with: ringfence upstream accept {}\n", args.id))
    })
}
