//! The rules for the execs of one run, and who decides by them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use ::policy::Decision;
use jail::intercept::exec::wire::ExecRules;

use super::no_call::NoCallDecider;
use super::wider::{CurrentSandbox, WiderRunContext};
use super::{CallDecider, denies_reading};
use crate::audit::CallEvents;
use crate::base::call::Prepared;
use crate::base::{Error, Result};
use crate::config::{Config, HeuristicsMode, ProfileSetting};
use crate::rulebook::{EscalationStatus, Rulebook, RulebookCache};
use crate::sandbox::{ExecPolicy, KeptInside, Launcher, SessionSandbox, create_exec_log, env, git};
use crate::tools::RunCx;
use crate::tools::run::asked_call::AskedCall;

/// The rules for one run, and whether commands may leave its sandbox.
pub struct RunExecRules {
    pub rulebook: Arc<Rulebook>,
    pub rules: ExecRules,
    leaving: EscalationStatus,
}

impl RunExecRules {
    /// Takes the current rules. A run keeps those it started with.
    pub async fn current(cx: &RunCx) -> Result<Option<RunExecRules>> {
        let settings = &cx.settings;
        let (profile, workspace) = (settings.sandbox.settings.profile, settings.workspace.path());
        let rulebook =
            watched_rules(&settings.config, profile, &cx.services.policy, workspace).await?;
        let Some(rulebook) = rulebook else { return Ok(None) };
        // The rules may have changed since the call was prepared. If they now let git out, the
        // repository would have to be read-only in this call, and it may not be.
        let is_guarded = !git::escalates_git(&rulebook.table)
            || git::is_repository_closed(cx.settings.workspace.rights());
        let leaving = match rulebook.escalation_status(
            &cx.settings.config,
            cx.settings.sandbox.escalate,
            cx.services.gate.can_ask(cx.control.client.capabilities()),
        ) {
            EscalationStatus::Possible if !is_guarded => {
                EscalationStatus::Prevented("the rules changed as the call began".to_owned())
            }
            leaving => leaving,
        };
        let heuristics = cx.settings.config.policy.heuristics == HeuristicsMode::Prompt;
        let lets_out = leaving == EscalationStatus::Possible;
        let rules = ExecRules {
            table: rulebook.table.clone(),
            heuristics,
            lets_out,
            ..ExecRules::default()
        };
        Ok(Some(RunExecRules { rulebook, rules, leaving }))
    }

    /// Takes the current rules for a run that belongs to no call, as for
    /// [`RunExecRules::into_unattended_decider`].
    pub async fn current_without_call(
        config: &Config,
        profile: ProfileSetting,
        policy: &RulebookCache,
        workspace: &Path,
    ) -> Result<Option<RunExecRules>> {
        let rulebook = watched_rules(config, profile, policy, workspace).await?;
        Ok(rulebook.map(|rulebook| RunExecRules {
            rules: ExecRules { table: rulebook.table.clone(), ..ExecRules::default() },
            leaving: EscalationStatus::Off,
            rulebook,
        }))
    }

    /// Returns the same rules for a run that nothing may leave.
    #[must_use]
    pub fn without_escalation(self) -> RunExecRules {
        let leaving = match self.leaving {
            EscalationStatus::Possible => EscalationStatus::Prevented(
                "commands of this tool do not leave the sandbox".to_owned(),
            ),
            leaving => leaving,
        };
        RunExecRules { rules: ExecRules { lets_out: false, ..self.rules }, leaving, ..self }
    }

    /// Returns the decider for a run that belongs to no call: nothing leaves it, and no one is
    /// asked about it.
    pub fn into_unattended_decider(
        self,
        call_events: CallEvents,
        root: &Path,
    ) -> Result<ExecPolicy> {
        let rules = ExecRules { lets_out: false, heuristics: false, ..self.rules };
        let decider = NoCallDecider::new(call_events);
        Ok(ExecPolicy {
            rules,
            decider: Arc::new(decider),
            log: Some(create_exec_log(root)?),
            wider_runs: Arc::default(),
        })
    }

    /// Returns the hosts that a rule denies. If several rules name a host, the last one that
    /// decides applies, as in Codex. An `allow` rule opens no host, because that is up to the
    /// operator's configuration, and `prompt` rules are skipped, because no one can be asked about
    /// a host.
    pub fn denied_hosts(&self) -> Vec<String> {
        let mut last_decisions = BTreeMap::new();
        for rule in
            self.rulebook.table.networks.iter().filter(|rule| rule.decision != Decision::Prompt)
        {
            last_decisions.insert(rule.host.clone(), rule.decision);
        }
        last_decisions
            .into_iter()
            .filter(|(_, decision)| *decision == Decision::Forbidden)
            .map(|(host, _)| host)
            .collect()
    }

    /// Returns the decider for one run. `env` is the run's initial environment, used to show what a
    /// command has changed; `kept_inside` collects the commands that did not leave, for the result.
    pub fn into_call_decider(
        self,
        owner: &Arc<AskedCall>,
        call: Arc<Prepared>,
        launcher: &Launcher,
        sandbox: &SessionSandbox,
        command_env: &[(String, String)],
        kept_inside: &Arc<KeptInside>,
    ) -> Result<ExecPolicy> {
        let cx = owner.owner_cx();
        let log = create_exec_log(&cx.settings.config.root)?;
        let wider_context = WiderRunContext::new(cx.control.call_events.clone(), &self, &log)?;
        let wider_runs = Arc::clone(&wider_context.runs);
        let decider = CallDecider {
            started_read_denied: denies_reading(&cx),
            owner: Arc::clone(owner),
            call,
            launcher: launcher.clone(),
            // The rights of the whole sandbox, not just of this call: files that this call may not
            // write could have been written by another call of the session, so they must not be
            // trusted outside either.
            rights: sandbox.rights.clone(),
            initial_env: env::merge_env(command_env.to_vec(), sandbox.env.clone()),
            rulebook: self.rulebook,
            leaving: self.leaving,
            kept_inside: Arc::clone(kept_inside),
            audited_count: AtomicUsize::new(0),
            short_secrets: cx.short_secrets(),
            current_sandbox: CurrentSandbox::Inside(wider_context),
        };
        Ok(ExecPolicy { rules: self.rules, decider: Arc::new(decider), log: Some(log), wider_runs })
    }
}

/// Returns the rules that apply to runs in this workspace, or `None` if their execs are not
/// watched.
async fn watched_rules(
    config: &Config,
    profile: ProfileSetting,
    policy: &RulebookCache,
    workspace: &Path,
) -> Result<Option<Arc<Rulebook>>> {
    if profile == ProfileSetting::None {
        return Ok(None);
    }
    let rulebook = policy.current_rules(workspace).await;
    if config.policy.intercept && jail::intercept::exec::SUPPORTED {
        return Ok(Some(rulebook));
    }
    // Rules that are not enforced would be worse than none.
    match rulebook.table.prefixes.is_empty() && rulebook.faults.is_empty() {
        true => Ok(None),
        false => Err(Error::permission_denied(
            "rules_unwatched",
            "rules are configured but exec interception is off",
        )
        .with_hint(
            "Set `intercept = true` under [policy], or remove the rules; `ringfence doctor` shows what this host supports.",
        )),
    }
}
