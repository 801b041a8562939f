//! Checks the rules: whether they can be read, and which commands they let out of the sandbox.

use jail::probe::ProbeOutcome;
use policy::{Decision, PrefixRule};

use super::health::HealthCheck;
use crate::config::{Config, RiskyEscalation};
use crate::rulebook::escalation::{AllowTreatment, allow_treatment};
use crate::rulebook::{EscalationStatus, RuleLocations, Rulebook, RulebookCache};
use crate::sandbox::escalate;

/// Reads the rules and returns one entry per finding.
pub fn check_rules(config: &Config) -> Vec<HealthCheck> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return Vec::new() };
    let cache = RulebookCache::new(RuleLocations::from_config(config));
    let rulebook = runtime.block_on(cache.load_once(config.workspace.as_deref()));
    let mut checks = vec![check_rule_files(&rulebook, cache.locations())];
    checks.extend(rulebook.faults.iter().map(|rules_error| HealthCheck {
        name: "rules",
        outcome: ProbeOutcome::Refused,
        text: format!("{}: {}", rules_error.location(), rules_error.message),
        fix: Some("fix the file; until then nothing it allows leaves the sandbox. `ringfence rules test` shows the location.".to_owned()),
    }));
    checks.extend(rulebook.ignored.iter().map(|ignored| HealthCheck {
        name: "rules",
        outcome: ProbeOutcome::NotTried,
        text: format!("{}: {}", ignored.location(), ignored.message),
        fix: None,
    }));
    if !config.policy.intercept && !rulebook.table.prefixes.is_empty() {
        checks.push(HealthCheck {
            name: "rules",
            outcome: ProbeOutcome::Refused,
            text: "rules are configured but exec interception is off: every run is refused"
                .to_owned(),
            fix: Some("set `intercept = true` under [policy], or remove the rules.".to_owned()),
        });
    }
    checks.push(check_escalation(config, &rulebook));
    checks
}

/// Reports the rule files in effect, or where they were searched for.
fn check_rule_files(rulebook: &Rulebook, locations: &RuleLocations) -> HealthCheck {
    if let Some(warning) = locations.unused_rules_warning(rulebook) {
        return HealthCheck {
            name: "rules",
            outcome: ProbeOutcome::NotTried,
            text: warning,
            fix: None,
        };
    }
    let (rules, files) = (rulebook.table.prefixes.len(), rulebook.files.len());
    let names: Vec<String> = rulebook.files.iter().map(|file| file.display().to_string()).collect();
    let text = match files {
        0 => format!("none in {}", locations.display_text()),
        _ => format!("{rules} in {files} files: {}", names.join(", ")),
    };
    HealthCheck { name: "rules", outcome: ProbeOutcome::Ok, text, fix: None }
}

fn check_escalation(config: &Config, rulebook: &Rulebook) -> HealthCheck {
    let name = "escalation";
    let ok_check = |text: String| HealthCheck { name, outcome: ProbeOutcome::Ok, text, fix: None };
    let policy = &config.policy;
    match rulebook.escalation_status(config, config.policy.escalate, true) {
        EscalationStatus::Off => {
            ok_check("off: commands that rules allow run in the sandbox".to_owned())
        }
        EscalationStatus::Possible => {
            let permissive_rules = || {
                rulebook.table.prefixes.iter().filter(|rule| rule.decision < Decision::Forbidden)
            };
            let is_held_back = |rule: &&PrefixRule| {
                rule.decision == Decision::Allow
                    && allow_treatment(rule, policy.escalate_risky) != AllowTreatment::Escalates
            };
            let held_back_note = match (
                permissive_rules().filter(is_held_back).count(),
                policy.escalate_risky,
            ) {
                (0, _) | (_, RiskyEscalation::Outside) => String::new(),
                (count, RiskyEscalation::Ask) => format!(
                    ", {count} of them only after approval if a command has more words than the rule; if no one can \
                     be asked, it runs inside (`escalate_risky`)"
                ),
                (count, RiskyEscalation::Inside) => {
                    format!(
                        ", {count} of them only with the exact words of the rule (`escalate_risky`)"
                    )
                }
            };
            ok_check(format!(
                "{}: {} rules let commands out{held_back_note}",
                policy.escalate.name(),
                permissive_rules().count()
            ))
        }
        EscalationStatus::Prevented(obstacle) => HealthCheck {
            name,
            outcome: ProbeOutcome::Refused,
            text: format!(
                "nothing leaves; commands that rules allow run in the sandbox: {obstacle}"
            ),
            fix: escalate::escalation_account(config)
                .err()
                .and_then(|error| error.hint_text().map(str::to_owned)),
        },
    }
}
