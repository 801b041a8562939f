//! `ringfence upstream list`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use ringfence_client::{LockedServer, clean_text};
use serde_json::{Value, json};

use super::{LocalServer, load_config, run_connected, show_path};
use crate::base::Result;
use crate::cli::config::ConfigLocation;
use crate::cli::screen::{stdout_width, wrap_line};
use crate::config::{Config, UpstreamServer};
use crate::upstream::packages::PackageServer;
use crate::upstream::review::OfferReview;

/// Arguments of `ringfence upstream list`.
#[derive(clap::Args)]
pub struct UpstreamListArgs {
    #[command(flatten)]
    location: ConfigLocation,
    /// Connect to every server, and show its state and what has changed
    #[arg(long)]
    connect: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &UpstreamListArgs) -> Result<String> {
    let (config, states) = match args.connect {
        true => run_connected(&args.location, ask_all)?,
        false => (Arc::new(load_config(&args.location)?), BTreeMap::new()),
    };
    let rows: Vec<Value> = config
        .upstreams
        .servers
        .values()
        .map(|server| describe_server(&config, server, states.get(&server.id)))
        .collect();
    Ok(match args.json {
        true => format!("{}\n", json!({"servers": rows})),
        false => format_rows(&config, &rows, stdout_width()),
    })
}

/// What a server answered, or why it did not.
type AskedState = std::result::Result<Value, String>;

async fn ask_all(local: &LocalServer) -> Result<(Arc<Config>, BTreeMap<String, AskedState>)> {
    let state = local.state();
    let mut states = BTreeMap::new();
    for (id, backend) in &state.registry.upstreams.backends {
        let asked = match local.ask(backend).await {
            Ok(offer) => {
                let accepted = state.config.upstreams.lock.servers.get(id);
                let review = OfferReview::new(id, accepted, &offer.locked, &state.config);
                Ok(json!({
                    "protocol": offer.protocol,
                    "offered_tools": offer.locked.tools.len(),
                    "changes": review.changes.len(),
                    "findings": review.findings.len(),
                }))
            }
            Err(error) => Err(clean_text(&error.message_chain(), 500)),
        };
        states.insert(id.clone(), asked);
    }
    Ok((Arc::clone(&state.config), states))
}

fn describe_server(config: &Config, server: &UpstreamServer, asked: Option<&AskedState>) -> Value {
    let upstreams = &config.upstreams;
    let locked: Option<&LockedServer> = upstreams.lock.servers.get(&server.id);
    let bundles = upstreams.bundles.iter().filter(|(_, bundle)| bundle.server_id == server.id);
    let bundles: Vec<Value> =
        bundles.map(|(id, bundle)| json!({"id": id, "mode": bundle.mode.name()})).collect();
    let mut row = json!({
        "id": server.id,
        "trust": server.server.trust.name(),
        "transport": server.server.transport.type_name(),
        "accepted_tools": locked.map(|locked| locked.tools.len()),
        "bundles": bundles,
    });
    if let Some(package) = PackageServer::from_server(server, config, &Arc::default()) {
        let checked = package.check_installed();
        row["installed"] = json!(checked.is_ok());
        if let Err(error) = checked {
            row["hint"] = json!(error.hint_text());
        }
    }
    match asked {
        Some(Ok(state)) => row["state"] = state.clone(),
        Some(Err(error)) => row["error"] = json!(error),
        None => {}
    }
    row
}

fn format_rows(config: &Config, rows: &[Value], terminal_width: Option<usize>) -> String {
    let mut text = String::new();
    let width = rows.iter().map(|row| text_of(&row["id"]).len()).max().unwrap_or(0);
    for row in rows {
        let line = format_row(row, width);
        let failure = row["error"].as_str().map(|error| format!("{:width$}  failed: {error}", ""));
        for line in [Some(line), failure].into_iter().flatten() {
            text.push_str(&wrap_line(&line, terminal_width, width + 2));
            text.push('\n');
        }
    }
    let _ = writeln!(text, "\nservers:  {}", show_path(config.upstreams.file.as_ref()));
    let _ = writeln!(text, "accepted: {}", show_path(config.upstreams.lock_path.as_ref()));
    text
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn format_row(row: &Value, width: usize) -> String {
    let mut line = String::new();
    let accepted = match row["accepted_tools"].as_u64() {
        Some(1) => "1 tool accepted".to_owned(),
        Some(count) => format!("{count} tools accepted"),
        None if row["trust"] == "trusted" => "not asked yet".to_owned(),
        None => "nothing accepted yet".to_owned(),
    };
    let modes: Vec<String> = row["bundles"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|bundle| text_of(&bundle["mode"]))
        .collect();
    let modes = if modes.is_empty() { "in no bundle".to_owned() } else { modes.join(", ") };
    let _ = write!(
        line,
        "{:width$}  {:5}  {:9}  {accepted}, {modes}",
        text_of(&row["id"]),
        text_of(&row["transport"]),
        text_of(&row["trust"])
    );
    if let Some(hint) = row["hint"].as_str() {
        let _ = write!(line, "; not installed. {hint}");
    }
    if let Some(state) = row.get("state") {
        let _ = write!(line, "; connected ({}), ", text_of(&state["protocol"]));
        let _ = match (state["changes"].as_u64(), state["findings"].as_u64()) {
            (Some(0), _) => write!(line, "as accepted"),
            (changes, findings) => write!(
                line,
                "{} changes, {} findings: see `ringfence upstream diff {}`",
                changes.unwrap_or_default(),
                findings.unwrap_or_default(),
                text_of(&row["id"])
            ),
        };
    }
    line
}
