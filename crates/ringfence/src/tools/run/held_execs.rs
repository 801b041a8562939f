//! Decisions about the execs of a run: records them, asks about them, and lets commands leave the
//! sandbox.
//!
//! The run's supervisor sends its questions here. A rule that forbids has already decided by then.
//! A rule that prompts goes through the same gate as every other approval. A command that may leave
//! the sandbox is checked again and run on behalf of the waiting process. A command that a rule
//! allows but that cannot leave runs inside, as if no rule named it, and the record and the result
//! say why.

mod no_call;
mod question;
mod record;
mod run_rules;
mod wider;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::policy::Decision;
use futures::future::BoxFuture;
use jail::intercept::exec::wire::{ExecAnswer, HeldExec, RuledExec};
use jail::rights::Rights;
use serde_json::{Map, Value};

use super::asked_call::AskedCall;
use crate::base::call::Prepared;
use crate::base::{Error, Kind};
use crate::config::{EscalationMode, ProfileSetting, RiskyEscalation};
use crate::redact::short_secrets::ShortSecrets;
use crate::rulebook::escalation::{KEPT_BY_SETTING, NO_ONE_ANSWERED, NO_ONE_TO_ASK};
use crate::rulebook::{EscalationStatus, Rulebook, escalation_risk};
use crate::sandbox::escalate::{self, EscalatedExec};
use crate::sandbox::{ExecDecider, KeptInside, Launcher, WaitingExec, git};
use crate::tools::RunCx;
use record::exec_fields;
pub use record::{ExecList, audit_network};
pub use run_rules::RunExecRules;
use wider::CurrentSandbox;

/// Refusals of one run that are recorded individually; its supervisor reports no more either.
const MAX_AUDITED: usize = 10_000;

/// Why a command that a human was asked about stays inside.
const CHOSEN_INSIDE: &str = "the answer to the question was to run it inside";

struct CallDecider {
    owner: Arc<AskedCall>,
    started_read_denied: bool,
    call: Arc<Prepared>,
    launcher: Launcher,
    rights: Rights,
    initial_env: Vec<(String, String)>,
    rulebook: Arc<Rulebook>,
    leaving: EscalationStatus,
    kept_inside: Arc<KeptInside>,
    audited_count: AtomicUsize,
    short_secrets: ShortSecrets,
    current_sandbox: CurrentSandbox,
}

/// Where an approved command runs.
enum ExecDestination {
    /// In the sandbox it is in: no rule of the operator lets it out, for this reason.
    InPlace(&'static str),
    /// In the sandbox it is in, for this reason, although a rule lets it out.
    KeptInside(String),
    Outside(Box<EscalatedExec>),
}

impl ExecDecider for CallDecider {
    fn record_ruling(&self, ruled: RuledExec) {
        let outcome = if ruled.verdict.decision == Decision::Forbidden {
            "refused"
        } else {
            self.current_sandbox.name()
        };
        let mut fields =
            exec_fields(ruled.pid, &ruled.path, &ruled.argv, &ruled.verdict, &self.short_secrets);
        fields.extend([("by".to_owned(), "rule".into()), ("ran".to_owned(), outcome.into())]);
        if ruled.verdict.decision == Decision::Allow
            && let Some(reason) = ruled.kept_inside.as_deref().or(self.leaving.obstacle())
        {
            fields.insert("why".to_owned(), reason.into());
            self.kept_inside.add(&ruled.verdict.prefix, reason);
        }
        // This limit never applies to execs that were held and then run: a flood of decisions must
        // not let a command leave the sandbox unrecorded.
        if self.audited_count.fetch_add(1, Ordering::Relaxed) < MAX_AUDITED {
            self.write_record(fields);
        }
    }

    fn decide_exec(self: Arc<Self>, exec: WaitingExec) -> BoxFuture<'static, ExecAnswer> {
        Box::pin(async move { self.answer_exec(exec).await })
    }
}

impl CallDecider {
    async fn answer_exec(&self, waiting: WaitingExec) -> ExecAnswer {
        let held_exec = waiting.held.clone();
        let (destination, reason) = self.plan_exec(&held_exec).await;
        let granted = match reason {
            None => self.owner.owner_cx().services.gate.grant_by_rule(waiting),
            Some(reason) => {
                match self.ask_approval(&held_exec, &destination, &reason, waiting).await {
                    Ok(granted) => granted,
                    // An `allow` needs no approval to run inside, because that is what happens
                    // without the rule.
                    Err(error) => {
                        if held_exec.verdict.decision == Decision::Allow
                            && let Some(cause) = unanswered_reason(&error)
                        {
                            return self.run_inside(&held_exec, "rule", Some(cause));
                        }
                        self.record_exec(&held_exec, "approval", "refused", None);
                        let (cause, hint) =
                            (error.message_chain(), error.hint_text().unwrap_or_default());
                        let message = format!(
                            "ringfence: {}: not allowed: {cause}. {hint}",
                            held_exec.program.path
                        );
                        return ExecAnswer::Refuse(format!("{}\n", message.trim_end()), 1);
                    }
                }
            }
        };
        let granted_by = granted.grant().by;
        if granted.grant().inside {
            return self.run_inside(&held_exec, granted_by, Some(CHOSEN_INSIDE));
        }
        let exec = match destination {
            ExecDestination::InPlace(_) => return self.run_inside(&held_exec, granted_by, None),
            ExecDestination::KeptInside(cause) => {
                return self.run_inside(&held_exec, granted_by, Some(&cause));
            }
            ExecDestination::Outside(exec) => exec,
        };
        let cx = self.owner.owner_cx();
        if !self.record_exec(&held_exec, granted_by, cx.settings.sandbox.escalate.name(), None) {
            return refuse_unrecorded(&held_exec);
        }
        let outcome = match self.escalation_target(&cx) {
            Ok(destination) => {
                escalate::run_escalated(granted.map(|waiting| (*exec, waiting)), destination).await
            }
            Err(error) => Err(error.message_chain()),
        };
        match outcome {
            Ok(answer) => answer,
            Err(cause) if held_exec.verdict.decision == Decision::Allow => self.run_inside(
                &held_exec,
                granted_by,
                Some(&format!("it could not be started outside: {cause}")),
            ),
            // The human approved running it outside, and nothing else.
            Err(cause) => escalate::refuse_escalation(&held_exec.program.path, &cause),
        }
    }

    /// Lets it run in the sandbox it is in; `reason` says why it did not leave although a rule lets
    /// it.
    fn run_inside(
        &self,
        held_exec: &HeldExec,
        granted_by: &str,
        reason: Option<&str>,
    ) -> ExecAnswer {
        let reason = reason.map(|reason| {
            match escalate::is_git(&held_exec.program.path) && self.is_repository_closed() {
                true => format!("{reason}; `.git` is read-only here while a rule lets git out"),
                false => reason.to_owned(),
            }
        });
        if !self.record_exec(held_exec, granted_by, self.current_sandbox.name(), reason.as_deref())
        {
            return refuse_unrecorded(held_exec);
        }
        if let Some(reason) = reason {
            self.kept_inside.add(&held_exec.verdict.prefix, &reason);
        }
        ExecAnswer::Run
    }

    fn is_repository_closed(&self) -> bool {
        let cx = self.owner.owner_cx();
        // Without mounts nothing inside the workspace can be made read-only.
        cx.settings.sandbox.settings.profile != ProfileSetting::Contained
            && git::is_repository_closed(cx.settings.workspace.rights())
    }

    /// Returns where it would run and why approval is required first, if it is. A rule alone
    /// suffices if it names every word of the command, or if the program is harmless with any
    /// arguments.
    async fn plan_exec(&self, held_exec: &HeldExec) -> (ExecDestination, Option<String>) {
        let destination = self.choose_destination(held_exec).await;
        if held_exec.verdict.decision != Decision::Allow {
            let reason = match &held_exec.verdict.justification {
                Some(justification) => format!("A rule requires approval: {justification}"),
                None => "A rule requires approval.".to_owned(),
            };
            return (destination, Some(reason));
        }
        let risk = match destination {
            ExecDestination::Outside(_) => {
                escalate::approval_reason(held_exec, escalation_risk::reason_to_ask)
            }
            ExecDestination::InPlace(_) | ExecDestination::KeptInside(_) => None,
        };
        match (risk, self.owner.owner_cx().settings.config.policy.escalate_risky) {
            (None, _) | (Some(_), RiskyEscalation::Outside) => (destination, None),
            (Some(_), RiskyEscalation::Inside) => {
                (ExecDestination::KeptInside(KEPT_BY_SETTING.to_owned()), None)
            }
            (Some(reason), RiskyEscalation::Ask) => (
                destination,
                Some(format!(
                    "It would run outside the sandbox with more than its rule says: {reason}."
                )),
            ),
        }
    }

    /// Determines where it would run, before anyone is asked.
    async fn choose_destination(&self, held_exec: &HeldExec) -> ExecDestination {
        match &self.leaving {
            EscalationStatus::Off => return ExecDestination::InPlace("nothing leaves the sandbox"),
            _ if !held_exec.itself => {
                return ExecDestination::InPlace("it is not the program that the rule names");
            }
            _ if held_exec.verdict.origin.file == ::policy::HEURISTICS_ORIGIN => {
                return ExecDestination::InPlace("no rule lets it out");
            }
            EscalationStatus::Prevented(reason) => {
                return ExecDestination::KeptInside(reason.clone());
            }
            EscalationStatus::Possible => {}
        }
        if self.is_read_denied() {
            return ExecDestination::KeptInside(
                "the client's sandbox denies reading, which cannot be enforced outside".to_owned(),
            );
        }
        let cx = self.owner.owner_cx();
        if cx.settings.sandbox.escalate == EscalationMode::Outside
            && let Err(error) = escalate::escalation_account(&cx.settings.config)
        {
            return ExecDestination::KeptInside(error.message_chain());
        }
        let is_repository_open =
            cx.services.policy.has_open_repository(cx.settings.workspace.path());
        let (held_exec, rights, rulebook) =
            (held_exec.clone(), self.rights.clone(), Arc::clone(&self.rulebook));
        let check = move || {
            EscalatedExec::verify_held(&held_exec, &rights, &rulebook.table, is_repository_open)
        };
        match tokio::task::spawn_blocking(check).await {
            Ok(Ok(exec)) => ExecDestination::Outside(Box::new(exec)),
            Ok(Err(reason)) => ExecDestination::KeptInside(reason),
            Err(error) => ExecDestination::KeptInside(format!("it could not be checked: {error}")),
        }
    }

    /// Returns whether reading is denied by the sandbox the run was started under, or by that of
    /// the call that is attached now.
    fn is_read_denied(&self) -> bool {
        self.started_read_denied || denies_reading(&self.owner.owner_cx())
    }

    /// Records the decision before it is carried out. Returns false if it cannot be recorded; the
    /// command must then not run.
    fn record_exec(
        &self,
        held_exec: &HeldExec,
        granted_by: &str,
        ran: &str,
        reason: Option<&str>,
    ) -> bool {
        if ran == "refused" && self.audited_count.fetch_add(1, Ordering::Relaxed) >= MAX_AUDITED {
            return true;
        }
        let mut fields = exec_fields(
            held_exec.pid,
            &held_exec.program.path,
            &held_exec.argv,
            &held_exec.verdict,
            &self.short_secrets,
        );
        if let Some(script) = &held_exec.script {
            fields.insert("script".to_owned(), script.path.clone().into());
        }
        fields.extend([("by".to_owned(), granted_by.into()), ("ran".to_owned(), ran.into())]);
        if let Some(reason) = reason {
            fields.insert("why".to_owned(), reason.into());
        }
        self.write_record(fields)
    }

    fn write_record(&self, fields: Map<String, Value>) -> bool {
        let cx = self.owner.owner_cx();
        let mut fields = fields;
        if cx.trace_id != self.call.trace_id {
            // Another call than the one that started the run is attached now.
            fields.insert("started_by".to_owned(), self.call.trace_id.as_str().into());
        }
        let written = cx.control.call_events.write_exec(fields);
        if let Err(error) = &written {
            tracing::error!("a decision about an exec could not be recorded: {}", error.log_line());
        }
        written.is_ok()
    }
}

fn denies_reading(cx: &RunCx) -> bool {
    let (session_rights, call_rights) =
        (cx.session().workspace.rights(), cx.settings.workspace.rights());
    // Paths that became private later are hidden by us, not by the client, and no command outside
    // is sent to read them.
    let is_already_hidden = |path| {
        session_rights.hidden.contains(path) || cx.settings.config.private_paths.contains(path)
    };
    !call_rights.hidden.iter().all(is_already_hidden) || !call_rights.partial_covers.is_empty()
}

fn refuse_unrecorded(held_exec: &HeldExec) -> ExecAnswer {
    let message =
        format!("ringfence: {}: refused: it could not be recorded\n", held_exec.program.path);
    ExecAnswer::Refuse(message, 126)
}

/// Returns why no one has answered, if that is what the error means. In that case no one has said
/// no either.
fn unanswered_reason(error: &Error) -> Option<&'static str> {
    match (error.kind(), error.reason_name()) {
        (Kind::ApprovalExpired, _) => Some(NO_ONE_ANSWERED),
        (Kind::TooLarge, _) => {
            Some("its rule does not name the whole command, and it is too long for a question")
        }
        (Kind::ResourceExhausted, _) => Some(
            "its rule does not name the whole command, and too many questions wait in this session already",
        ),
        (_, Some("no_asker" | "no_human")) => Some(NO_ONE_TO_ASK),
        _ => None,
    }
}
