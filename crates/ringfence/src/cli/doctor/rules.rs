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
    let policy = RulebookCache::new(RuleLocations::from_config(config));
    let book = runtime.block_on(policy.load_once(config.workspace.as_deref()));
    let mut all = vec![check_rule_files(&book, policy.locations())];
    all.extend(book.faults.iter().map(|fault| HealthCheck {
        name: "rules",
        outcome: ProbeOutcome::Refused,
        text: format!("{}: {}", fault.location(), fault.message),
        fix: Some("fix the file; until then nothing it allows leaves the sandbox. `ringfence rules test` shows the location.".to_owned()),
    }));
    all.extend(book.ignored.iter().map(|ignored| HealthCheck {
        name: "rules",
        outcome: ProbeOutcome::NotTried,
        text: format!("{}: {}", ignored.location(), ignored.message),
        fix: None,
    }));
    if !config.policy.intercept && !book.table.prefixes.is_empty() {
        all.push(HealthCheck {
            name: "rules",
            outcome: ProbeOutcome::Refused,
            text: "rules are configured but exec interception is off: every run is refused"
                .to_owned(),
            fix: Some("set `intercept = true` under [policy], or remove the rules.".to_owned()),
        });
    }
    all.push(check_escalation(config, &book));
    all
}

/// Reports the rule files in effect, or where they were searched for.
fn check_rule_files(book: &Rulebook, places: &RuleLocations) -> HealthCheck {
    if let Some(overlooked) = places.unused_rules_warning(book) {
        return HealthCheck {
            name: "rules",
            outcome: ProbeOutcome::NotTried,
            text: overlooked,
            fix: None,
        };
    }
    let (rules, files) = (book.table.prefixes.len(), book.files.len());
    let names: Vec<String> = book.files.iter().map(|file| file.display().to_string()).collect();
    let text = match files {
        0 => format!("none in {}", places.display_text()),
        _ => format!("{rules} in {files} files: {}", names.join(", ")),
    };
    HealthCheck { name: "rules", outcome: ProbeOutcome::Ok, text, fix: None }
}

fn check_escalation(config: &Config, book: &Rulebook) -> HealthCheck {
    let name = "escalation";
    let fine = |text: String| HealthCheck { name, outcome: ProbeOutcome::Ok, text, fix: None };
    let policy = &config.policy;
    match book.escalation_status(config, true) {
        EscalationStatus::Off => {
            fine("off: commands that rules allow run in the sandbox".to_owned())
        }
        EscalationStatus::Possible => {
            let ways_out =
                || book.table.prefixes.iter().filter(|rule| rule.decision < Decision::Forbidden);
            let is_held_back = |rule: &&PrefixRule| {
                rule.decision == Decision::Allow
                    && allow_treatment(rule, policy.escalate_risky) != AllowTreatment::Escalates
            };
            let held_back = match (ways_out().filter(is_held_back).count(), policy.escalate_risky) {
                (0, _) | (_, RiskyEscalation::Outside) => String::new(),
                (some, RiskyEscalation::Ask) => format!(
                    ", {some} of them only after approval if a command has more words than the rule; if no one can \
                     be asked, it runs inside (`escalate_risky`)"
                ),
                (some, RiskyEscalation::Inside) => {
                    format!(
                        ", {some} of them only with the exact words of the rule (`escalate_risky`)"
                    )
                }
            };
            fine(format!(
                "{}: {} rules let commands out{held_back}",
                policy.escalate.name(),
                ways_out().count()
            ))
        }
        EscalationStatus::Prevented(why) => HealthCheck {
            name,
            outcome: ProbeOutcome::Refused,
            text: format!("nothing leaves; commands that rules allow run in the sandbox: {why}"),
            fix: escalate::escalation_account(config)
                .err()
                .and_then(|error| error.hint_text().map(str::to_owned)),
        },
    }
}
