//! Exec decisions for `ringfence sandbox`, which its caller makes in advance on the command line.

use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use jail::intercept::exec::wire::{ExecAnswer, ExecRules, HeldExec, RuledExec};
use jail::rights::Rights;
use policy::{Decision, RuleTable};

use crate::approval::Gate;
use crate::config::{Config, EscalationMode, HeuristicsMode, RiskyEscalation};
use crate::sandbox::escalate::{self, ApprovalReasonFn, EscalatedExec, EscalationTarget};
use crate::sandbox::{ExecDecider, KeptInside, Launcher, WaitingExec};

/// Decision about commands that a rule asks about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OnPrompt {
    /// Run the command as if it had been approved
    Allow,
    /// Refuse the command
    Deny,
}

/// Rules for one run.
pub struct ForegroundRules {
    pub table: RuleTable,
    /// Reason why nothing can leave the sandbox although the config allows it, if there is one.
    pub escalation_obstacle: Option<String>,
    pub on_prompt: OnPrompt,
    /// Decides whether an `allow` rule is enough for a command to leave.
    pub reason_to_ask: ApprovalReasonFn,
    /// Reasons reported for a command that stays because its rule is not enough: by the operator's
    /// setting, and because the caller answers no prompts.
    pub kept_inside_reasons: [&'static str; 2],
    /// Number of threads that watch execs; zero leaves it to the supervisor.
    pub watchers: usize,
}

impl ForegroundRules {
    /// Returns the rules in the form that the supervisor takes.
    pub fn exec_rules(&self, config: &Config) -> ExecRules {
        ExecRules {
            table: self.table.clone(),
            heuristics: config.policy.heuristics == HeuristicsMode::Prompt,
            lets_out: self.escalates(config),
            granted: false,
            watchers: self.watchers,
        }
    }

    /// Returns whether any exec may need a decision.
    pub fn needs_decider(&self, config: &Config) -> bool {
        !self.table.prefixes.is_empty() || config.policy.heuristics == HeuristicsMode::Prompt
    }

    /// Returns whether commands may leave the sandbox.
    pub fn escalates(&self, config: &Config) -> bool {
        config.policy.escalate == EscalationMode::Outside && self.escalation_obstacle.is_none()
    }

    /// Builds the decider for one run.
    pub fn into_decider(
        self,
        config: &Config,
        rights: &Rights,
        kept_inside: &Arc<KeptInside>,
    ) -> Arc<dyn ExecDecider> {
        let kept_inside_reason = match config.policy.escalate {
            EscalationMode::Off => None,
            EscalationMode::Wider => Some("`ringfence sandbox` has no wider sandbox".to_owned()),
            EscalationMode::Outside => self.escalation_obstacle.clone(),
        };
        Arc::new(ForegroundDecider {
            escalates: self.escalates(config),
            kept_inside_reason,
            rules: self,
            config: config.clone(),
            rights: rights.clone(),
            launcher: Launcher::new(PathBuf::from("/proc/self/exe")),
            gate: Gate::new(false),
            kept_inside: Arc::clone(kept_inside),
        })
    }
}

struct ForegroundDecider {
    rules: ForegroundRules,
    escalates: bool,
    /// Reason why nothing leaves although the operator wants it to.
    kept_inside_reason: Option<String>,
    config: Config,
    rights: Rights,
    launcher: Launcher,
    gate: Gate,
    kept_inside: Arc<KeptInside>,
}

/// Place where an allowed command runs.
enum ExecPlacement {
    Inside,
    /// Inside, for this reason, although a rule lets it out.
    Kept(String),
    Outside(Box<EscalatedExec>),
}

impl ExecDecider for ForegroundDecider {
    fn record_ruling(&self, ruled: RuledExec) {
        if ruled.verdict.decision == Decision::Allow
            && let Some(reason) = ruled.kept_inside.as_ref().or(self.kept_inside_reason.as_ref())
        {
            self.kept_inside.add(&ruled.verdict.prefix, reason);
        }
    }

    fn decide_exec(self: Arc<Self>, waiting: WaitingExec) -> BoxFuture<'static, ExecAnswer> {
        Box::pin(async move { self.answer_exec(waiting).await })
    }
}

impl ForegroundDecider {
    async fn answer_exec(self: &Arc<Self>, waiting: WaitingExec) -> ExecAnswer {
        let held_exec = waiting.held.clone();
        let is_allowed = held_exec.verdict.decision == Decision::Allow;
        if !is_allowed && self.rules.on_prompt == OnPrompt::Deny {
            let path = &held_exec.program.path;
            return ExecAnswer::Refuse(
                format!(
                    "ringfence: {path}: not allowed: a rule requires approval (use `--on-prompt allow`)\n"
                ),
                1,
            );
        }
        let exec = match self.choose_placement(&held_exec).await {
            ExecPlacement::Inside => return ExecAnswer::Run,
            ExecPlacement::Kept(reason) => return self.run_inside(&held_exec, &reason),
            ExecPlacement::Outside(exec) => exec,
        };
        let granted = self.gate.grant_by_rule((*exec, waiting));
        let target = EscalationTarget::Outside { launcher: &self.launcher, config: &self.config };
        match escalate::run_escalated(granted, target).await {
            Ok(answer) => answer,
            Err(reason) if is_allowed => {
                self.run_inside(&held_exec, &format!("it could not be started outside: {reason}"))
            }
            Err(reason) => escalate::refuse_escalation(&held_exec.program.path, &reason),
        }
    }

    async fn choose_placement(self: &Arc<Self>, held_exec: &HeldExec) -> ExecPlacement {
        if !held_exec.itself || held_exec.verdict.origin.file == policy::HEURISTICS_ORIGIN {
            return ExecPlacement::Inside;
        }
        if !self.escalates {
            return self
                .kept_inside_reason
                .clone()
                .map_or(ExecPlacement::Inside, ExecPlacement::Kept);
        }
        let (decider, exec_to_check) = (Arc::clone(self), held_exec.clone());
        // This is the only run, so no earlier one could write to `.git`.
        let check = move || {
            EscalatedExec::verify_held(&exec_to_check, &decider.rights, &decider.rules.table, false)
        };
        let exec = match tokio::task::spawn_blocking(check).await {
            Ok(Ok(exec)) => exec,
            Ok(Err(reason)) => return ExecPlacement::Kept(reason),
            Err(error) => return ExecPlacement::Kept(format!("it could not be checked: {error}")),
        };
        let [by_setting, unanswered] = self.rules.kept_inside_reasons;
        let needs_approval =
            escalate::approval_reason(held_exec, self.rules.reason_to_ask).is_some();
        match (needs_approval, self.config.policy.escalate_risky, self.rules.on_prompt) {
            (true, RiskyEscalation::Inside, _) => ExecPlacement::Kept(by_setting.to_owned()),
            (true, RiskyEscalation::Ask, OnPrompt::Deny) => {
                ExecPlacement::Kept(unanswered.to_owned())
            }
            _ => ExecPlacement::Outside(Box::new(exec)),
        }
    }

    fn run_inside(&self, held_exec: &HeldExec, reason: &str) -> ExecAnswer {
        self.kept_inside.add(&held_exec.verdict.prefix, reason);
        ExecAnswer::Run
    }
}
