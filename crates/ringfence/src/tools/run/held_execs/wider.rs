//! Commands that a rule lets into the wider sandbox. Each is an ordinary run with another profile,
//! judged and recorded like the run that causes it.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use jail::intercept::exec::wire::ExecRules;

use super::{CallDecider, RunExecRules, audit_network};
use crate::audit::CallEvents;
use crate::base::{Error, Result};
use crate::config::EscalationMode;
use crate::rulebook::EscalationStatus;
use crate::sandbox::escalate::{EscalationTarget, WiderTarget};
use crate::sandbox::{ExecPolicy, WiderRunOptions, WiderRuns};
use crate::tools::RunCx;

/// State that a run shares with the runs it causes in the wider sandbox; they are recorded with it.
pub(super) struct WiderRunContext {
    /// Records for the call that started the run.
    call_events: CallEvents,
    denied_hosts: Vec<String>,
    heuristics: bool,
    log: File,
    pub(super) runs: Arc<WiderRuns>,
}

impl WiderRunContext {
    pub(super) fn new(
        call_events: CallEvents,
        exec_rules: &RunExecRules,
        log: &File,
    ) -> Result<WiderRunContext> {
        Ok(WiderRunContext {
            call_events,
            denied_hosts: exec_rules.denied_hosts(),
            heuristics: exec_rules.rules.heuristics,
            log: clone_log(log)?,
            runs: Arc::default(),
        })
    }
}

fn clone_log(log: &File) -> Result<File> {
    log.try_clone()
        .map_err(|error| Error::internal("the list of execs cannot be shared").with_source(error))
}

/// The sandbox that the processes of a run are in.
pub(super) enum CurrentSandbox {
    Inside(WiderRunContext),
    Wider,
}

impl CurrentSandbox {
    /// Returns the name used in records for where a command ran that did not leave.
    pub(super) fn name(&self) -> &'static str {
        match self {
            CurrentSandbox::Inside(_) => "inside",
            CurrentSandbox::Wider => EscalationMode::Wider.name(),
        }
    }
}

impl CallDecider {
    /// Returns where commands that leave the sandbox run.
    pub(super) fn escalation_target<'a>(&'a self, cx: &'a RunCx) -> Result<EscalationTarget<'a>> {
        let (settings, launcher) = (&cx.settings, &self.launcher);
        let config = &settings.config;
        match (settings.sandbox.escalate, &config.policy.wider, &self.current_sandbox) {
            (EscalationMode::Wider, Some(wider), CurrentSandbox::Inside(wider_context)) => {
                Ok(EscalationTarget::Wider(Box::new(WiderTarget {
                    sandboxes: Arc::clone(&cx.session_ref.state.sandboxes),
                    config: Arc::clone(config),
                    sandbox_config: settings.sandbox.with_settings((**wider).clone()),
                    launcher: launcher.clone(),
                    terms: self.wider_terms(wider_context)?,
                })))
            }
            _ => Ok(EscalationTarget::Outside { launcher, config }),
        }
    }

    /// Returns the terms of a run in the wider sandbox. It is judged by the same rules, by a
    /// decider like this one, and is in the same record.
    fn wider_terms(&self, wider_context: &WiderRunContext) -> Result<WiderRunOptions> {
        let decider = CallDecider {
            owner: Arc::clone(&self.owner),
            started_read_denied: self.started_read_denied,
            call: Arc::clone(&self.call),
            launcher: self.launcher.clone(),
            rights: self.rights.clone(),
            initial_env: self.initial_env.clone(),
            rulebook: Arc::clone(&self.rulebook),
            // Nothing may leave the wider sandbox.
            leaving: EscalationStatus::Off,
            kept_inside: Arc::clone(&self.kept_inside),
            audited_count: AtomicUsize::new(0),
            short_secrets: self.owner.owner_cx().short_secrets(),
            current_sandbox: CurrentSandbox::Wider,
        };
        // The program itself has been judged; the programs it starts have not.
        let (table, heuristics) = (self.rulebook.table.clone(), wider_context.heuristics);
        let rules = ExecRules { table, heuristics, granted: true, ..ExecRules::default() };
        let log = Some(clone_log(&wider_context.log)?);
        Ok(WiderRunOptions {
            execs: ExecPolicy {
                rules,
                decider: Arc::new(decider),
                log,
                wider_runs: Arc::default(),
            },
            on_decision: audit_network(&wider_context.call_events),
            denied_hosts: wider_context.denied_hosts.clone(),
            wider_runs: Arc::clone(&wider_context.runs),
        })
    }
}
