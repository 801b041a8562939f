//! Exec decisions for `ringfence sandbox`, which its caller makes in advance on the command line.

use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use jail::intercept::exec::wire::{ExecAnswer, ExecRules, HeldExec, RuledExec};
use jail::rights::Rights;
use policy::{Decision, RuleTable};

use crate::approval::Gate;
use crate::config::{Config, Escalate, EscalateRisky, Heuristics};
use crate::sandbox::escalate::{self, Exec, ReasonToAsk, Where};
use crate::sandbox::{Desk, KeptInside, Launcher, Waiting};

/// Decision about commands that a rule asks about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OnPrompt {
    /// Run the command as if it had been approved
    Allow,
    /// Refuse the command
    Deny,
}

/// Rules for one run.
pub struct Ruling {
    pub table: RuleTable,
    /// Reason why nothing can leave the sandbox although the config allows it, if there is one.
    pub obstacle: Option<String>,
    pub on_prompt: OnPrompt,
    /// Decides whether an `allow` rule is enough for a command to leave.
    pub reason_to_ask: ReasonToAsk,
    /// Reasons reported for a command that stays because its rule is not enough: by the operator's
    /// setting, and because the caller answers no prompts.
    pub risky_stays: [&'static str; 2],
    /// Number of threads that watch execs; zero leaves it to the supervisor.
    pub watchers: usize,
}

impl Ruling {
    /// Returns the rules in the form that the supervisor takes.
    pub fn rules(&self, config: &Config) -> ExecRules {
        ExecRules {
            table: self.table.clone(),
            heuristics: config.policy.heuristics == Heuristics::Prompt,
            lets_out: self.lets_out(config),
            granted: false,
            watchers: self.watchers,
        }
    }

    /// Returns whether any exec may need a decision.
    pub fn is_needed(&self, config: &Config) -> bool {
        !self.table.prefixes.is_empty() || config.policy.heuristics == Heuristics::Prompt
    }

    /// Returns whether commands may leave the sandbox.
    pub fn lets_out(&self, config: &Config) -> bool {
        config.policy.escalate == Escalate::Outside && self.obstacle.is_none()
    }

    /// Builds the decider for one run.
    pub fn desk(
        self,
        config: &Config,
        rights: &Rights,
        kept_inside: &Arc<KeptInside>,
    ) -> Arc<dyn Desk> {
        let stays = match config.policy.escalate {
            Escalate::Off => None,
            Escalate::Wider => Some("`ringfence sandbox` has no wider sandbox".to_owned()),
            Escalate::Outside => self.obstacle.clone(),
        };
        Arc::new(AttachedDesk {
            lets_out: self.lets_out(config),
            stays,
            ruling: self,
            config: config.clone(),
            rights: rights.clone(),
            launcher: Launcher::new(PathBuf::from("/proc/self/exe")),
            gate: Gate::new(false),
            kept_inside: Arc::clone(kept_inside),
        })
    }
}

struct AttachedDesk {
    ruling: Ruling,
    lets_out: bool,
    /// Reason why nothing leaves although the operator wants it to.
    stays: Option<String>,
    config: Config,
    rights: Rights,
    launcher: Launcher,
    gate: Gate,
    kept_inside: Arc<KeptInside>,
}

/// Place where an allowed command runs.
enum Place {
    Inside,
    /// Inside, for this reason, although a rule lets it out.
    Kept(String),
    Outside(Box<Exec>),
}

impl Desk for AttachedDesk {
    fn ruled(&self, ruled: RuledExec) {
        if ruled.verdict.decision == Decision::Allow
            && let Some(why) = ruled.kept_inside.as_ref().or(self.stays.as_ref())
        {
            self.kept_inside.add(&ruled.verdict.prefix, why);
        }
    }

    fn held(self: Arc<Self>, waiting: Waiting) -> BoxFuture<'static, ExecAnswer> {
        Box::pin(async move { self.answer(waiting).await })
    }
}

impl AttachedDesk {
    async fn answer(self: &Arc<Self>, waiting: Waiting) -> ExecAnswer {
        let held = waiting.held.clone();
        let is_allowed = held.verdict.decision == Decision::Allow;
        if !is_allowed && self.ruling.on_prompt == OnPrompt::Deny {
            let path = &held.program.path;
            return ExecAnswer::Refuse(
                format!(
                    "ringfence: {path}: not allowed: a rule requires approval (use `--on-prompt allow`)\n"
                ),
                1,
            );
        }
        let exec = match self.place(&held).await {
            Place::Inside => return ExecAnswer::Run,
            Place::Kept(why) => return self.run_inside(&held, &why),
            Place::Outside(exec) => exec,
        };
        let granted = self.gate.by_rule((*exec, waiting));
        let outside = Where::Outside { launcher: &self.launcher, config: &self.config };
        match escalate::run(granted, outside).await {
            Ok(answer) => answer,
            Err(why) if is_allowed => {
                self.run_inside(&held, &format!("it could not be started outside: {why}"))
            }
            Err(why) => escalate::refusal(&held.program.path, &why),
        }
    }

    async fn place(self: &Arc<Self>, held: &HeldExec) -> Place {
        if !held.itself || held.verdict.origin.file == policy::HEURISTICS_ORIGIN {
            return Place::Inside;
        }
        if !self.lets_out {
            return self.stays.clone().map_or(Place::Inside, Place::Kept);
        }
        let (desk, checked) = (Arc::clone(self), held.clone());
        // This is the only run, so no earlier one could write to `.git`.
        let check = move || Exec::check(&checked, &desk.rights, &desk.ruling.table, false);
        let exec = match tokio::task::spawn_blocking(check).await {
            Ok(Ok(exec)) => exec,
            Ok(Err(why)) => return Place::Kept(why),
            Err(error) => return Place::Kept(format!("it could not be checked: {error}")),
        };
        let [by_setting, unanswered] = self.ruling.risky_stays;
        let is_asked = escalate::reason_to_ask(held, self.ruling.reason_to_ask).is_some();
        match (is_asked, self.config.policy.escalate_risky, self.ruling.on_prompt) {
            (true, EscalateRisky::Inside, _) => Place::Kept(by_setting.to_owned()),
            (true, EscalateRisky::Ask, OnPrompt::Deny) => Place::Kept(unanswered.to_owned()),
            _ => Place::Outside(Box::new(exec)),
        }
    }

    fn run_inside(&self, held: &HeldExec, why: &str) -> ExecAnswer {
        self.kept_inside.add(&held.verdict.prefix, why);
        ExecAnswer::Run
    }
}
