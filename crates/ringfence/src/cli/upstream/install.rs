//! `ringfence upstream install`.

use std::fmt::Write as _;
use std::io::Write;

use ringfence_client::clean_text;
use serde_json::{Value, json};

use super::{LocalServer, confirm, run_connected, write_text};
use crate::audit::CallEvents;
use crate::base::{Error, Result};
use crate::cli::config::ConfigLocation;
use crate::upstream::learn::write_installed;
use crate::upstream::packages::PackageServer;
use crate::upstream::packages::install::{InstallPlan, NewPackage, remove_unused};

/// Arguments of `ringfence upstream install`.
///
/// `serve` never downloads anything. The package is installed in a sandbox that can write one
/// directory and reach the registry, and its files are recorded in `mcp.lock`.
#[derive(clap::Args)]
pub struct UpstreamInstallArgs {
    /// Server, as the upstreams file names it
    id: String,
    /// Run the install scripts of the packages, or build them, in the sandbox
    #[arg(long)]
    scripts: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    location: ConfigLocation,
}

pub fn run(args: &UpstreamInstallArgs, out: &mut impl Write) -> Result<String> {
    run_connected(&args.location, async |local| {
        let backend = local.find_backend(&args.id)?;
        let package = backend.package.as_deref().ok_or_else(|| {
            Error::invalid_arguments(format!("the server `{}` needs no installation", args.id))
                .with_hint("Only servers whose command is npx, bunx, uvx or pipx are installed.")
        })?;
        let state = local.state();
        let context = local.server.pipeline.upstream_context(&state, &args.id, &local.session);
        let plan = InstallPlan::new(package, &context, args.scripts).await?;
        write_text(out, &plan.describe())?;
        confirm("Install this?", args.yes, out)?;
        let facts = json!({"registry": plan.registry.host, "scripts": args.scripts});
        // A reader that is gone does not stop the installation.
        let installed =
            plan.install(&mut |line| drop(write_text(out, &format!("  {line}\n")))).await;
        record_install(&context.call_events, facts, &installed)?;
        take_into_use(local, package, &installed?)
    })
}

/// Recorded first: what is not in the log must not take effect.
fn record_install(
    events: &CallEvents,
    mut facts: Value,
    installed: &Result<NewPackage>,
) -> Result<()> {
    match installed {
        Ok(new) => {
            let locked = &new.locked;
            facts["outcome"] = json!("ok");
            facts["runner"] = json!(locked.runner);
            facts["requested"] = json!(locked.requested);
            facts["version"] = json!(clean_text(&locked.version, 100));
            facts["integrity"] = json!(locked.integrity);
            facts["tree"] = json!(locked.tree);
        }
        Err(error) => {
            facts["outcome"] = json!("failed");
            facts["error"] = json!(error.kind().name());
            facts["reason"] = json!(error.reason_name());
        }
    }
    events.write_upstream("upstream.install", facts.as_object().cloned().unwrap_or_default())
}

/// Replaces the installed files and records them for every server with the same command.
fn take_into_use(local: &LocalServer, package: &PackageServer, new: &NewPackage) -> Result<String> {
    let state = local.state();
    let users = package.list_users(&state.config);
    new.activate(package)?;
    write_installed(&state.config.upstreams, &users, &new.locked)?;
    remove_unused(&state.config);
    Ok(describe_installed(&users, package, new))
}

fn describe_installed(users: &[String], package: &PackageServer, new: &NewPackage) -> String {
    let locked = &new.locked;
    let mut text = String::new();
    let version = clean_text(&locked.version, 100);
    let _ = writeln!(
        text,
        "Installed version {version} for {}; it starts `{}`.",
        users.join(", "),
        new.program
    );
    if package.has_other_archive(locked) {
        let _ = writeln!(
            text,
            "WARNING: mcp.lock had version {version} with another archive. It was made for another platform, or the registry has replaced it."
        );
    }
    let _ = writeln!(text, "Running servers take it over at once.");
    text
}
