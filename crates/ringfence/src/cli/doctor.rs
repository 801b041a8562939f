//! `ringfence doctor`: tests what the sandbox can do on this host, and what that means for each
//! promise.
//!
//! It judges by trying, never by version numbers or settings; those only help to explain a failure.

mod canary;
mod config;
mod fixes;
mod health;
mod rules;
mod servers;
mod show;
mod trials;
mod verdict;
mod workspace;

use std::io::Write;
use std::path::PathBuf;

use jail::probe::{self, HostSettings, ProbeOutcome, ProbeResult, SandboxFeature};
use serde::Serialize;

use crate::base::{Error, Result};
use crate::config::{ConfigFlags, ProcessEnv, prepare_root, resolve_config};
use health::HealthCheck;
use trials::TrialResult;
use verdict::HostVerdict;
use workspace::TrialWorkspace;

/// Test every sandbox layer on this host; report what works and how to fix the rest
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes describe the host, not the config: 0 if the profile `default` works, 1 if only `contained` works, 2 if neither works.\nTo test the config as well, use --json and read `verdict.ready`."
)]
pub struct DoctorArgs {
    /// Directory to use as the workspace of the tests (default: the current directory)
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Directory for runtime files (default: $XDG_STATE_HOME/ringfence)
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Config file to read (default: $XDG_CONFIG_HOME/ringfence/config.toml)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// JSON file with other MCP servers, each of which is tried
    #[arg(long, value_name = "FILE")]
    upstreams: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Run inside a sandbox: attempt what the sandbox must refuse
    #[arg(long, hide = true, value_name = "JSON")]
    canary: Option<String>,
}

/// Everything `ringfence doctor` reports; `--json` prints it as it is.
#[derive(Serialize)]
struct DoctorReport {
    version: &'static str,
    host: HostSettings,
    layers: Vec<LayerResult>,
    fences: Vec<TrialResult>,
    health: Vec<HealthCheck>,
    verdict: HostVerdict,
}

#[derive(Serialize)]
struct LayerResult {
    name: &'static str,
    #[serde(flatten)]
    tried: ProbeResult,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

/// Runs `ringfence doctor` and returns the exit code.
pub fn run(args: DoctorArgs, out: &mut impl Write) -> Result<u8> {
    let unwritable = |error| Error::internal("the output cannot be written").with_source(error);
    if let Some(task) = &args.canary {
        return canary::run(task, out).map(|()| 0).map_err(unwritable);
    }
    let json = args.json;
    let report = collect_findings(args)?;
    let result = match json {
        true => serde_json::to_string_pretty(&report)
            .map_err(std::io::Error::other)
            .and_then(|text| writeln!(out, "{text}")),
        false => show::write_report(&report, show::ReportStyle::for_stdout(), out),
    };
    result.and_then(|()| out.flush()).map_err(unwritable)?;
    Ok(report.verdict.exit_code)
}

fn collect_findings(args: DoctorArgs) -> Result<DoctorReport> {
    let flags = ConfigFlags {
        root: args.root,
        workspace: args.workspace,
        config: args.config,
        upstreams: args.upstreams,
        ..ConfigFlags::default()
    };
    let env = ProcessEnv::from_process();
    let config = resolve_config(&flags, &env);
    let root_result = config.as_ref().ok().map(prepare_root);
    let mut health = config::check_config_health(&config, &flags, &env);
    health.extend(health::check_environment(&config, root_result.as_ref()));
    let usable_config = config.ok().filter(|_| matches!(root_result, Some(Ok(()))));
    let trial_workspace =
        TrialWorkspace::create(usable_config.as_ref(), &flags).map_err(|error| {
            Error::internal(format!("cannot create a directory for the tests: {error}"))
        })?;
    // Must come before anything that starts a thread: the probes fork this process.
    let tried = probe::probe_all(&trial_workspace.probe_dir);
    let host = HostSettings::read();
    let fences = trials::run_trials(&trial_workspace, &host, &tried);
    health.extend(usable_config.as_ref().map(rules::check_rules).into_iter().flatten());
    health.extend(usable_config.as_ref().map(servers::check_servers).into_iter().flatten());
    let configured_profile = usable_config.as_ref().map(|config| config.default_sandbox.profile);
    let verdict = verdict::judge_host(&fences, configured_profile, trial_workspace.network);
    let layers = tried.into_iter().map(|tried| layer_result(tried, &host)).collect();
    Ok(DoctorReport { version: env!("CARGO_PKG_VERSION"), host, layers, fences, health, verdict })
}

fn layer_result(tried: ProbeResult, host: &HostSettings) -> LayerResult {
    // No fix for bubblewrap: it is only a workaround for a refusal that has its own line and its
    // own fix.
    let needs_fix = tried.outcome == ProbeOutcome::Refused && tried.part != SandboxFeature::Bwrap;
    let fix = needs_fix.then(|| fixes::suggest_fix(tried.part, tried.errno, host));
    LayerResult { name: tried.part.name(), tried, fix }
}
