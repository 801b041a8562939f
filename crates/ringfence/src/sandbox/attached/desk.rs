//! Who answers for the execs of `ringfence sandbox`: whoever called it, on the command line.

use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use jail::intercept::exec::wire::{Answer, Ruled, Rules};
use jail::rights::Rights;
use policy::{Decision, Table};

use crate::approval::Gate;
use crate::config::{Config, Escalate, Heuristics};
use crate::sandbox::escalate::{self, Exec, Risk, Where};
use crate::sandbox::{Desk, Launcher, Waiting};

/// What becomes of a command that a rule asks about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OnPrompt {
    /// It runs, as if somebody had been asked
    Allow,
    /// It does not
    Deny,
}

/// The rules for one run.
pub struct Ruling {
    pub table: Table,
    /// Some could not be read, so nothing is let out.
    pub broken: bool,
    pub on_prompt: OnPrompt,
    pub risk: Risk,
    /// How many threads watch; zero leaves it to the supervisor.
    pub watchers: usize,
}

impl Ruling {
    pub fn rules(&self, config: &Config) -> Rules {
        Rules {
            table: self.table.clone(),
            heuristics: config.policy.heuristics == Heuristics::Prompt,
            lets_out: self.lets_out(config),
            granted: false,
            watchers: self.watchers,
        }
    }

    /// Whether anything can be asked at all.
    pub fn is_needed(&self, config: &Config) -> bool {
        !self.table.prefixes.is_empty() || config.policy.heuristics == Heuristics::Prompt
    }

    pub fn lets_out(&self, config: &Config) -> bool {
        // There is one sandbox here; what would go to a wider one stays in it.
        config.policy.escalate == Escalate::Outside && !self.broken
    }

    pub fn desk(self, config: &Config, rights: &Rights) -> Arc<dyn Desk> {
        let lets_out = self.lets_out(config);
        Arc::new(AttachedDesk {
            lets_out,
            table: self.table,
            on_prompt: self.on_prompt,
            risk: self.risk,
            config: config.clone(),
            rights: rights.clone(),
            launcher: Launcher::new(PathBuf::from("/proc/self/exe")),
            gate: Gate::new(false),
        })
    }
}

struct AttachedDesk {
    table: Table,
    on_prompt: OnPrompt,
    risk: Risk,
    lets_out: bool,
    config: Config,
    rights: Rights,
    launcher: Launcher,
    gate: Gate,
}

impl Desk for AttachedDesk {
    fn ruled(&self, _ruled: Ruled) {}

    fn held(self: Arc<Self>, waiting: Waiting) -> BoxFuture<'static, Answer> {
        Box::pin(async move { self.answer(waiting).await })
    }
}

impl AttachedDesk {
    async fn answer(&self, waiting: Waiting) -> Answer {
        let held = &waiting.held;
        let leaves = self.lets_out && held.itself && held.verdict.origin.file != policy::HEURISTICS;
        let risk = escalate::unsaid(held, self.risk).filter(|_| leaves);
        if self.on_prompt == OnPrompt::Deny && (held.verdict.decision == Decision::Prompt || risk.is_some()) {
            let path = &held.program.path;
            let why = risk.map_or("a rule asks for it".to_owned(), |risk| {
                format!("it would run outside the sandbox with more than its rule says: {risk}")
            });
            return Answer::Refuse(format!("ringfence: {path}: not allowed: {why} (`--on-prompt allow`)\n"), 1);
        }
        if !leaves {
            return Answer::Run;
        }
        let checked = escalate::account(&self.config)
            .map_err(|error| error.detail())
            .and_then(|_| Exec::check(held, &self.rights, &self.table));
        match checked {
            Ok(exec) => {
                let granted = self.gate.by_rule((exec, waiting));
                escalate::run(granted, Where::Outside { launcher: &self.launcher, config: &self.config }).await
            }
            Err(why) => escalate::refusal(&held.program.path, &why),
        }
    }
}
