//! Logs the rules when a server starts: which files are in effect, which commands may leave the
//! sandbox, and which stay inside.

use std::sync::Arc;

use policy::{Decision, PrefixRule};

use crate::config::{Config, EscalationMode, RiskyEscalation};
use crate::mcp::Server;
use crate::rulebook::escalation::{AllowTreatment, allow_treatment};
use crate::rulebook::{EscalationStatus, Rulebook, escalation_risk, lint};

/// Reads the rules once, so that errors in them are logged before the first call. The server does
/// not wait for this.
pub async fn report_rules(server: Arc<Server>) {
    let policy = &server.pipeline.policy;
    let rulebook = match &server.config.workspace {
        Some(workspace) => policy.current_rules(workspace).await,
        // Each caller has its own workspace; the operator's rules are the same for all.
        None => {
            let rulebook = policy.load_once(None).await;
            rulebook.log_summary();
            Arc::new(rulebook)
        }
    };
    let locations = policy.locations();
    match locations.unused_rules_warning(&rulebook) {
        Some(warning) => tracing::warn!("rules: {warning}"),
        None if rulebook.files.is_empty()
            && server.config.policy.escalate != EscalationMode::Off =>
        {
            tracing::warn!("rules: none were found in {}", locations.display_text());
        }
        None if rulebook.files.is_empty() => {
            tracing::info!("rules: none were found in {}", locations.display_text())
        }
        None => {
            let files: Vec<String> =
                rulebook.files.iter().map(|file| file.display().to_string()).collect();
            tracing::info!("rules: files in effect: {}", files.join(", "));
        }
    }
    for line in escalation_lines(&rulebook, &server.config) {
        tracing::warn!("rules: {line}");
    }
}

/// Returns one line per rule that lets a command leave the sandbox or keeps it inside. The operator
/// is responsible for what leaves, so each one is logged.
fn escalation_lines(rulebook: &Rulebook, config: &Config) -> Vec<String> {
    let rules_with = |decision| {
        rulebook
            .table
            .prefixes
            .iter()
            .filter(move |rule| rule.decision == decision && !rule.project)
    };
    let allowed = rules_with(Decision::Allow).count();
    // Assume that someone can be asked; that is known only once the client has connected.
    match rulebook.escalation_status(config, config.policy.escalate, true) {
        EscalationStatus::Off => Vec::new(),
        EscalationStatus::Prevented(_) if allowed == 0 => Vec::new(),
        EscalationStatus::Prevented(obstacle) => {
            vec![format!(
                "nothing leaves the sandbox; commands that match the {allowed} `allow` rules run inside: {obstacle}"
            )]
        }
        EscalationStatus::Possible => {
            let (destination, risky) =
                (config.policy.escalate.name(), config.policy.escalate_risky);
            let allow_lines =
                rules_with(Decision::Allow).map(|rule| format_allow_rule(rule, destination, risky));
            let prompt_lines = rules_with(Decision::Prompt).map(|rule| {
                format!(
                    "`{}` runs {destination} after approval ({})",
                    lint::format_rule(rule),
                    format_origin(rule)
                )
            });
            allow_lines
                .chain(prompt_lines)
                .chain(format_held_back(rules_with(Decision::Allow), risky))
                .collect()
        }
    }
}

fn format_allow_rule(rule: &PrefixRule, destination: &str, risky: RiskyEscalation) -> String {
    let (pattern, origin) = (lint::format_rule(rule), format_origin(rule));
    let exact_note = match escalation_risk::allows_exact_command(rule) {
        true => format!("runs {destination} as written; with more words it "),
        false => String::new(),
    };
    match allow_treatment(rule, risky) {
        AllowTreatment::Escalates => format!("`{pattern}` runs {destination} ({origin})"),
        AllowTreatment::AsksFirst => {
            format!("`{pattern}` {exact_note}needs approval first ({origin})")
        }
        AllowTreatment::StaysInside => {
            format!("`{pattern}` {exact_note}runs inside the sandbox ({origin})")
        }
    }
}

/// Summarises how many `allow` rules do not let out everything they match, and names the key that
/// decides it.
fn format_held_back<'a>(
    allowed: impl Iterator<Item = &'a PrefixRule>,
    risky: RiskyEscalation,
) -> Option<String> {
    let (mut total, mut held_back) = (0, 0);
    for rule in allowed {
        total += 1;
        held_back += usize::from(allow_treatment(rule, risky) != AllowTreatment::Escalates);
    }
    let consequence = match risky {
        RiskyEscalation::Ask => {
            "need approval first, and run inside the sandbox if no one can be asked"
        }
        RiskyEscalation::Inside => "run inside the sandbox",
        RiskyEscalation::Outside => return None,
    };
    (held_back > 0).then(|| {
        format!(
            "{held_back} of {total} `allow` rules let out only the exact words that they name: commands with more words \
             than the rule {consequence} (`escalate_risky = {:?}` under [policy]; values: \"ask\", \"inside\", \"outside\"). \
             To let a command leave without approval, name every word of it in the rule",
            risky.name()
        )
    })
}

fn format_origin(rule: &PrefixRule) -> String {
    format!("{}:{}", rule.origin.file, rule.origin.line)
}
