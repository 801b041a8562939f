//! Reports all errors and warnings in the config.

use jail::probe::ProbeOutcome;

use super::health::{Health, bad, good, shown};
use crate::base::Result;
use crate::config::{Config, Env, Finding, Flags, Severity};
use crate::registry::config_check::check_config;

/// Checks the config and returns one entry per finding.
pub fn look(config: &Result<Config>, flags: &Flags, env: &Env) -> Vec<Health> {
    let mut all: Vec<Health> = match check_config(flags, env) {
        Ok(look) => look.findings.into_iter().map(of_finding).collect(),
        // The same failure is reported through `config` below.
        Err(_) => Vec::new(),
    };
    match config {
        Ok(config) => {
            let file = config.file.as_deref().map_or("none; defaults are used".to_owned(), shown);
            all.insert(0, good("config", file));
        }
        Err(_) if all.iter().any(|health| health.outcome == ProbeOutcome::Refused) => {}
        Err(error) => all.insert(0, bad("config", error)),
    }
    all
}

fn of_finding(finding: Finding) -> Health {
    let outcome = match finding.severity {
        Severity::Error => ProbeOutcome::Refused,
        Severity::Warning => ProbeOutcome::NotTried,
    };
    let without = finding
        .tool
        .as_ref()
        .map(|tool| format!("; tool `{tool}` was not loaded"))
        .unwrap_or_default();
    Health {
        name: "config",
        outcome,
        text: format!("{}{without}", finding.line()),
        fix: Some(finding.hint),
    }
}
