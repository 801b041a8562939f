//! Reports all errors and warnings in the config.

use jail::probe::ProbeOutcome;

use super::health::{HealthCheck, health_error, health_ok, path_text};
use crate::base::Result;
use crate::config::{Config, ConfigFinding, ConfigFlags, FindingSeverity, ProcessEnv};
use crate::registry::config_check::check_config;

/// Checks the config and returns one entry per finding.
pub fn check_config_health(
    config: &Result<Config>,
    flags: &ConfigFlags,
    env: &ProcessEnv,
) -> Vec<HealthCheck> {
    let mut checks: Vec<HealthCheck> = match check_config(flags, env) {
        Ok(check) => check.findings.into_iter().map(health_from_finding).collect(),
        // The same failure is reported through `config` below.
        Err(_) => Vec::new(),
    };
    match config {
        Ok(config) => {
            let file =
                config.file.as_deref().map_or("none; defaults are used".to_owned(), path_text);
            checks.insert(0, health_ok("config", file));
        }
        Err(_) if checks.iter().any(|health| health.outcome == ProbeOutcome::Refused) => {}
        Err(error) => checks.insert(0, health_error("config", error)),
    }
    checks
}

fn health_from_finding(finding: ConfigFinding) -> HealthCheck {
    let outcome = match finding.severity {
        FindingSeverity::Error => ProbeOutcome::Refused,
        FindingSeverity::Warning => ProbeOutcome::NotTried,
    };
    let tool_note = finding
        .tool
        .as_ref()
        .map(|tool| format!("; tool `{tool}` was not loaded"))
        .unwrap_or_default();
    HealthCheck {
        name: "config",
        outcome,
        text: format!("{}{tool_note}", finding.to_line()),
        fix: Some(finding.hint),
    }
}
