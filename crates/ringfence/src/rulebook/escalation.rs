//! Determines whether anything that rules allow can leave the sandbox, as far as that is known
//! before it runs.
//!
//! A command that cannot leave runs inside, so this affects more than a message: while nothing can
//! leave, no run has to ask the server about allowed commands, and `.git` stays as writable as it
//! is without rules.

use ::policy::{Decision, PrefixRule};

use super::Rulebook;
use super::escalation_risk;
use crate::config::{Config, EscalationMode, RiskyEscalation};
use crate::sandbox::escalate::escalation_account;

/// Why a command stays inside although a rule allows it: the operator configured it so.
pub const KEPT_BY_SETTING: &str = "its rule does not name the whole command, and `escalate_risky` under [policy] is \"inside\"; a rule with every word of the command lets it leave";
/// The same, if no one can be asked.
pub const NO_ONE_TO_ASK: &str = "its rule does not name the whole command, and no one can be asked whether it may leave (`escalate_risky` under [policy]); a rule with every word of the command lets it leave without approval";
/// The same, if someone was asked and did not answer in time.
pub const NO_ONE_ANSWERED: &str = "its rule does not name the whole command, and no one answered whether it may leave (`escalate_risky` under [policy]); a rule with every word of the command lets it leave without approval";

/// Outcome for commands that rules allow to leave the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EscalationStatus {
    /// `escalate` is off: no rule lets anything leave.
    Off,
    /// Rules would let commands leave, but none can, for this reason.
    Prevented(String),
    Possible,
}

impl EscalationStatus {
    /// Returns why nothing can leave although the operator enabled it.
    pub fn obstacle(&self) -> Option<&str> {
        match self {
            EscalationStatus::Prevented(reason) => Some(reason),
            EscalationStatus::Off | EscalationStatus::Possible => None,
        }
    }
}

/// How an `allow` rule is treated, for listings of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowTreatment {
    /// Every command that it allows leaves the sandbox.
    Escalates,
    /// A command with more words than the rule needs approval.
    AsksFirst,
    /// A command with more words than the rule stays inside.
    StaysInside,
}

/// Returns how commands of an `allow` rule are treated, provided that anything can leave.
pub fn allow_treatment(rule: &PrefixRule, risky: RiskyEscalation) -> AllowTreatment {
    match risky {
        RiskyEscalation::Outside => AllowTreatment::Escalates,
        _ if escalation_risk::is_harmless(&rule.program) => AllowTreatment::Escalates,
        RiskyEscalation::Ask => AllowTreatment::AsksFirst,
        RiskyEscalation::Inside => AllowTreatment::StaysInside,
    }
}

impl Rulebook {
    /// Returns whether anything can leave a sandbox that lets commands out to `escalate`; `can_ask`
    /// says whether anyone answers questions.
    pub fn escalation_status(
        &self,
        config: &Config,
        escalate: EscalationMode,
        can_ask: bool,
    ) -> EscalationStatus {
        let policy = &config.policy;
        if escalate == EscalationMode::Off {
            return EscalationStatus::Off;
        }
        if !self.faults.is_empty() {
            return EscalationStatus::Prevented(
                "a rules file is broken; `ringfence rules test` shows where".to_owned(),
            );
        }
        if escalate == EscalationMode::Outside
            && let Err(error) = escalation_account(config)
        {
            return EscalationStatus::Prevented(error.message_chain());
        }
        let mut escalating_rules = self
            .table
            .prefixes
            .iter()
            .filter(|rule| rule.decision < Decision::Forbidden && !rule.project);
        let is_possible = escalating_rules.clone().next().is_none()
            || escalating_rules.any(|rule| can_escalate(rule, config, can_ask));
        match (is_possible, policy.escalate_risky) {
            (true, _) => EscalationStatus::Possible,
            (false, RiskyEscalation::Inside) => {
                EscalationStatus::Prevented(KEPT_BY_SETTING.to_owned())
            }
            (false, _) => EscalationStatus::Prevented(NO_ONE_TO_ASK.to_owned()),
        }
    }
}

/// Returns whether some command of this rule can leave.
fn can_escalate(rule: &PrefixRule, config: &Config, can_ask: bool) -> bool {
    match rule.decision {
        Decision::Forbidden => false,
        Decision::Prompt => can_ask,
        Decision::Allow => match allow_treatment(rule, config.policy.escalate_risky) {
            AllowTreatment::Escalates => true,
            AllowTreatment::AsksFirst => can_ask || escalation_risk::allows_exact_command(rule),
            AllowTreatment::StaysInside => escalation_risk::allows_exact_command(rule),
        },
    }
}
