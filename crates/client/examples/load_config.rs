//! Loads the configuration for the current directory, or the file given as first argument, and
//! prints where it comes from and what it contains.

#![allow(clippy::print_stdout)] // Printing is what this example is for.

use std::error::Error;
use std::path::PathBuf;

use ringfence_client::config::{EnvSource, LoadOptions, TransportConfig, load_config};

fn main() -> Result<(), Box<dyn Error>> {
    let options = LoadOptions {
        path: std::env::args_os().nth(1).map(PathBuf::from),
        env: EnvSource::from_process(),
        ..LoadOptions::new(std::env::current_dir()?)
    };
    let loaded = load_config(&options).inspect_err(|error| {
        eprintln!("{error}\n{}", error.hint().unwrap_or_default());
    });
    let loaded = loaded.map_err(|_| "the configuration was not loaded")?;
    for origin in &loaded.sources {
        println!("source: {origin}");
    }
    for (id, server) in &loaded.config.servers {
        let target = match &server.transport {
            // Only the origin: path and query may contain a token.
            TransportConfig::Http(remote) | TransportConfig::Sse(remote) => {
                remote.url.origin().ascii_serialization()
            }
            TransportConfig::Stdio(stdio) => stdio.command.clone(),
        };
        let (trust, transport) = (server.trust.name(), server.transport.type_name());
        println!("server {id}: {trust}, {transport}, {target}");
    }
    for (id, bundle) in &loaded.config.bundles {
        let (server, mode) = (&bundle.server_id, bundle.mode.name());
        let (allow, deny) = (&bundle.allow_tools, &bundle.deny_tools);
        println!("bundle {id}: {server}, {mode}, allow {allow:?}, deny {deny:?}");
    }
    for warning in loaded.config.warnings() {
        println!("warning: {warning}");
    }
    Ok(())
}
