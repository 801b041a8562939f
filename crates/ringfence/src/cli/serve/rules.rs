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
    let book = match &server.config.workspace {
        Some(workspace) => policy.current_rules(workspace).await,
        // Each caller has its own workspace; the operator's rules are the same for all.
        None => {
            let book = policy.load_once(None).await;
            book.log_summary();
            Arc::new(book)
        }
    };
    let places = policy.locations();
    match places.unused_rules_warning(&book) {
        Some(overlooked) => tracing::warn!("rules: {overlooked}"),
        None if book.files.is_empty() && server.config.policy.escalate != EscalationMode::Off => {
            tracing::warn!("rules: none were found in {}", places.display_text());
        }
        None if book.files.is_empty() => {
            tracing::info!("rules: none were found in {}", places.display_text())
        }
        None => {
            let files: Vec<String> =
                book.files.iter().map(|file| file.display().to_string()).collect();
            tracing::info!("rules: files in effect: {}", files.join(", "));
        }
    }
    for line in escalation_lines(&book, &server.config) {
        tracing::warn!("rules: {line}");
    }
}

/// Returns one line per rule that lets a command leave the sandbox or keeps it inside. The operator
/// is responsible for what leaves, so each one is logged.
fn escalation_lines(book: &Rulebook, config: &Config) -> Vec<String> {
    let of = |decision| {
        book.table.prefixes.iter().filter(move |rule| rule.decision == decision && !rule.project)
    };
    let allowed = of(Decision::Allow).count();
    // Assume that someone can be asked; that is known only once the client has connected.
    match book.escalation_status(config, true) {
        EscalationStatus::Off => Vec::new(),
        EscalationStatus::Prevented(_) if allowed == 0 => Vec::new(),
        EscalationStatus::Prevented(why) => {
            vec![format!(
                "nothing leaves the sandbox; commands that match the {allowed} `allow` rules run inside: {why}"
            )]
        }
        EscalationStatus::Possible => {
            let (place, risky) = (config.policy.escalate.name(), config.policy.escalate_risky);
            let lines = of(Decision::Allow).map(|rule| format_allow_rule(rule, place, risky));
            let asked = of(Decision::Prompt).map(|rule| {
                format!(
                    "`{}` runs {place} after approval ({})",
                    lint::format_rule(rule),
                    format_origin(rule)
                )
            });
            lines.chain(asked).chain(format_held_back(of(Decision::Allow), risky)).collect()
        }
    }
}

fn format_allow_rule(rule: &PrefixRule, place: &str, risky: RiskyEscalation) -> String {
    let (words, at) = (lint::format_rule(rule), format_origin(rule));
    let exact = match escalation_risk::allows_exact_command(rule) {
        true => format!("runs {place} as written; with more words it "),
        false => String::new(),
    };
    match allow_treatment(rule, risky) {
        AllowTreatment::Escalates => format!("`{words}` runs {place} ({at})"),
        AllowTreatment::AsksFirst => format!("`{words}` {exact}needs approval first ({at})"),
        AllowTreatment::StaysInside => format!("`{words}` {exact}runs inside the sandbox ({at})"),
    }
}

/// Summarises how many `allow` rules do not let out everything they match, and names the key that
/// decides it.
fn format_held_back<'a>(
    allowed: impl Iterator<Item = &'a PrefixRule>,
    risky: RiskyEscalation,
) -> Option<String> {
    let (mut all, mut held_back) = (0, 0);
    for rule in allowed {
        all += 1;
        held_back += usize::from(allow_treatment(rule, risky) != AllowTreatment::Escalates);
    }
    let how = match risky {
        RiskyEscalation::Ask => {
            "need approval first, and run inside the sandbox if no one can be asked"
        }
        RiskyEscalation::Inside => "run inside the sandbox",
        RiskyEscalation::Outside => return None,
    };
    (held_back > 0).then(|| {
        format!(
            "{held_back} of {all} `allow` rules let out only the exact words that they name: commands with more words \
             than the rule {how} (`escalate_risky = {:?}` under [policy]; values: \"ask\", \"inside\", \"outside\"). \
             To let a command leave without approval, name every word of it in the rule",
            risky.name()
        )
    })
}

fn format_origin(rule: &PrefixRule) -> String {
    format!("{}:{}", rule.origin.file, rule.origin.line)
}
