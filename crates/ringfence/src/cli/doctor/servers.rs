//! Whether other MCP servers can be started or reached, and offer what is accepted.

use std::sync::Arc;

use jail::probe::ProbeOutcome;
use ringfence_client::clean_text;

use super::health::HealthCheck;
use crate::base::{Error, Result};
use crate::cli::upstream::{LocalServer, run_with_config};
use crate::config::Config;
use crate::upstream::backend::UpstreamBackend;
use crate::upstream::review::OfferReview;

/// Longest text about one server.
const MAX_TEXT_CHARS: usize = 300;

/// Tries every configured server.
pub fn check_servers(config: &Config) -> Vec<HealthCheck> {
    if config.upstreams.servers.is_empty() {
        return Vec::new();
    }
    match run_with_config(config.clone(), try_all) {
        Ok(checks) => checks,
        Err(error) => vec![failed_check("other MCP servers", &error)],
    }
}

async fn try_all(local: &LocalServer) -> Result<Vec<HealthCheck>> {
    let state = local.state();
    let mut checks = Vec::new();
    for backend in state.registry.upstreams.backends.values() {
        checks.push(try_server(local, backend).await);
    }
    for problem in &state.registry.upstreams.problems {
        checks.push(HealthCheck {
            name: "server",
            outcome: ProbeOutcome::Refused,
            text: problem.clone(),
            fix: None,
        });
    }
    Ok(checks)
}

async fn try_server(local: &LocalServer, backend: &Arc<UpstreamBackend>) -> HealthCheck {
    let (state, id) = (local.state(), &backend.server.id);
    let offer = match local.ask(backend).await {
        Ok(offer) => offer,
        Err(error) => return failed_check(id, &error),
    };
    let accepted = state.config.upstreams.lock.servers.get(id);
    let review = OfferReview::new(id, accepted, &offer.locked, &state.config);
    let count = offer.locked.tools.len();
    let (text, fix) = match review.is_empty() {
        true => (format!("`{id}` offers {count} tools, as accepted"), None),
        false => (
            format!("`{id}` offers {count} tools, with changes that no one has accepted"),
            Some(format!("Run `ringfence upstream diff {id}`.")),
        ),
    };
    HealthCheck { name: "server", outcome: ProbeOutcome::Ok, text, fix }
}

fn failed_check(id: &str, error: &Error) -> HealthCheck {
    HealthCheck {
        name: "server",
        outcome: ProbeOutcome::Refused,
        text: clean_text(&format!("`{id}`: {}", error.message_chain()), MAX_TEXT_CHARS),
        fix: error.hint_text().map(str::to_owned),
    }
}
