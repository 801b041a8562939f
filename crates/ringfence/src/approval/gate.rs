//! The approval gate. Nothing runs without passing it, and only the gate can create a [`Granted`].

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::choice::{limit_to_offered, read_answer};
use super::pending::{ApprovalAnswer, PendingQuestions};
use super::prompt::ApprovalPrompt;
use crate::audit::CallEvents;
use crate::base::call::Prepared;
use crate::base::client_handle::{ClientCapabilities, ClientHandle};
use crate::base::clock::{Deadline, unix_millis};
use crate::base::{CancelToken, Error, Kind, Result};
use crate::session::Session;

/// Source of an approval, and how far it reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// `policy` (no approval needed), `rule` (a rule of the operator), `trust` (approved earlier
    /// for this session), `client` or `terminal`.
    pub by: &'static str,
    pub for_session: bool,
    /// A human chose to run it in the sandbox, although the question was about running it outside.
    pub inside: bool,
}

impl Grant {
    fn new(by: &'static str, for_session: bool) -> Grant {
        Grant { by, for_session, inside: false }
    }
}

/// Value that may run, once. It cannot be cloned, and only the gate can create one:
///
/// ```compile_fail
/// use ringfence::{Grant, Granted};
/// let grant = Grant { by: "policy", for_session: false, inside: false };
/// let forged = Granted { inner: "rm -rf /", grant };
/// ```
///
/// The example fails for that reason alone, because this one compiles:
///
/// ```
/// use ringfence::{Grant, Granted};
/// let grant = Grant { by: "policy", for_session: false, inside: false };
/// fn run<T>(granted: Granted<T>) -> T {
///     granted.consume()
/// }
/// ```
#[derive(Debug)]
pub struct Granted<T> {
    inner: T,
    grant: Grant,
}

impl<T> Granted<T> {
    /// Returns the source and reach of the approval.
    pub fn grant(&self) -> Grant {
        self.grant
    }

    /// Converts the value to another form of the same thing, under the same grant.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Granted<U> {
        Granted { inner: convert(self.inner), grant: self.grant }
    }

    /// Returns the value in order to run it, which uses up the grant.
    pub fn consume(self) -> T {
        self.inner
    }
}

/// Key that the answer to a question is kept under for a session.
pub struct TrustKey {
    /// What is trusted: a rule, or a kind of question.
    pub subject: String,
    /// The exact command, host or definition.
    pub detail: String,
}

/// Context of a question: the call that raises it, and how long it may wait.
pub struct QuestionContext<'a> {
    pub session: &'a Session,
    /// Nothing that is granted to a call without a persistent session may outlive it.
    pub persistent: bool,
    pub client: &'a ClientHandle,
    pub cancel: &'a CancelToken,
    /// Paused while a human decides.
    pub deadline: &'a Deadline,
    pub call_events: &'a CallEvents,
    /// How long a question waits. Silence is not approval.
    pub expiry: Duration,
    /// How long the client itself waits, if it says so: a later answer would reach no one.
    pub response_timeout: Option<Duration>,
}

/// Gate that every call passes, asking a human where approval is required.
pub struct Gate {
    pub pending: Arc<PendingQuestions>,
    /// Questions may be answered with `ringfence approvals`.
    terminal_enabled: bool,
}

impl Gate {
    /// Creates a gate. With `terminal_enabled`, questions may be answered with `ringfence
    /// approvals`.
    pub fn new(terminal_enabled: bool) -> Self {
        Gate { pending: Arc::default(), terminal_enabled }
    }

    /// Returns whether anyone can be asked for a client with these capabilities: the client itself,
    /// or someone at a terminal. A client that answers without showing anything to a human is not
    /// asked, because its answer would not be a human's.
    pub fn can_ask(&self, capabilities: ClientCapabilities) -> bool {
        self.terminal_enabled || capabilities.elicitation && !capabilities.auto_answers
    }

    /// Lets a prepared call through, after asking for approval where it is required.
    pub async fn pass_call(
        &self,
        cx: &QuestionContext<'_>,
        call: Prepared,
    ) -> Result<Granted<Prepared>> {
        let Some(reason) = call.approval_reason.clone() else {
            return Ok(Granted { inner: call, grant: Grant::new("policy", false) });
        };
        if cx.persistent && cx.session.has_trust(&call.tool, &call.definition_hash) {
            cx.call_events.write_approval("approved", "trust", "session")?;
            return Ok(Granted { inner: call, grant: Grant::new("trust", true) });
        }
        let prompt = ApprovalPrompt::for_call(&call, &reason, cx.session);
        let grant = self
            .ask_for_approval(cx, ApprovalPrompt { offers_session: cx.persistent, ..prompt })
            .await?;
        if grant.for_session {
            cx.session.add_trust(&call.tool, &call.definition_hash);
        }
        Ok(Granted { inner: call, grant })
    }

    /// Asks a question that a running call raises. The grant covers the subject of the question,
    /// nothing wider.
    pub async fn confirm_once<T>(
        &self,
        cx: &QuestionContext<'_>,
        prompt: ApprovalPrompt,
        subject: T,
    ) -> Result<Granted<T>> {
        // There is no key under which an answer could be kept.
        let grant =
            self.ask_for_approval(cx, ApprovalPrompt { offers_session: false, ..prompt }).await?;
        Ok(Granted { inner: subject, grant })
    }

    /// Grants what a rule of the operator allows. No other approval is needed.
    pub fn grant_by_rule<T>(&self, subject: T) -> Granted<T> {
        Granted { inner: subject, grant: Grant::new("rule", false) }
    }

    /// Like [`Gate::confirm_once`], for a question whose answer may be kept for the session under
    /// this key.
    pub async fn confirm_for_session<T>(
        &self,
        cx: &QuestionContext<'_>,
        prompt: ApprovalPrompt,
        trust_key: TrustKey,
        subject: T,
    ) -> Result<Granted<T>> {
        if cx.persistent && cx.session.has_trust(&trust_key.subject, &trust_key.detail) {
            cx.call_events.write_approval("approved", "trust", "session")?;
            return Ok(Granted { inner: subject, grant: Grant::new("trust", true) });
        }
        let grant = self
            .ask_for_approval(cx, ApprovalPrompt { offers_session: cx.persistent, ..prompt })
            .await?;
        if grant.for_session {
            cx.session.add_trust(&trust_key.subject, &trust_key.detail);
        }
        Ok(Granted { inner: subject, grant })
    }

    /// Asks everyone who can answer. The first answer decides, and silence is not approval.
    async fn ask_for_approval(
        &self,
        cx: &QuestionContext<'_>,
        prompt: ApprovalPrompt,
    ) -> Result<Grant> {
        let mut prompt = prompt.redacted();
        // A client that answers without showing anything to a human is not asked: its answer would
        // not be a human's.
        let capabilities = cx.client.capabilities();
        // Nor is a client whose call is over: a run may outlive it.
        let asks_client =
            capabilities.elicitation && !capabilities.auto_answers && !cx.client.is_gone();
        if !asks_client && !self.terminal_enabled {
            cx.call_events.write_approval("denied", "nobody", "once")?;
            return Err(no_asker_error(prompt.name(), capabilities.auto_answers));
        }
        if let Err(error) = prompt.check_length() {
            cx.call_events.write_approval("denied", "limit", "once")?;
            return Err(error);
        }
        let expiry = cx.expiry.min(cx.response_timeout.unwrap_or(cx.expiry));
        prompt.asked_unix_ms = unix_millis();
        let expiry_ms = u64::try_from(expiry.as_millis()).unwrap_or(u64::MAX);
        prompt.expires_unix_ms = prompt.asked_unix_ms.saturating_add(expiry_ms);
        let tool = prompt.name().to_owned();
        let choices = prompt.offered_answers();
        let elicitation = prompt.elicitation_params(capabilities.shows_empty_form_as_menu);
        let Some((question_guard, terminal_answer)) = self.pending.add_question(prompt) else {
            cx.call_events.write_approval("denied", "limit", "once")?;
            return Err(Error::new(
                Kind::ResourceExhausted,
                "too many questions are already waiting in this session",
            )
            .with_hint("Answer the open questions first."));
        };
        let pause = cx.deadline.pause();
        let outcome = tokio::select! {
            answer = terminal_answer, if self.terminal_enabled => answer.ok(),
            answer = ask_client(cx.client, elicitation, &choices), if asks_client => answer.map(|answer| (answer, "client")),
            () = tokio::time::sleep(expiry) => None,
            cause = cx.cancel.cancelled() => {
                cx.call_events.write_approval("expired", cause.name(), "once")?;
                return Err(Error::new(Kind::Cancelled, "the call was cancelled while it waited for approval"));
            }
        };
        drop((question_guard, pause));
        match outcome.map(|(answer, by)| (limit_to_offered(answer, &choices), by)) {
            None => {
                cx.call_events.write_approval("expired", "nobody", "once")?;
                Err(Error::new(
                    Kind::ApprovalExpired,
                    format!("approval of `{tool}` timed out: no one answered"),
                ))
            }
            Some((ApprovalAnswer::Deny, by)) => {
                cx.call_events.write_approval("denied", by, "once")?;
                Err(denied_error(&tool, by))
            }
            Some((answer, by)) => {
                cx.call_events.write_approval("approved", by, answer.name())?;
                Ok(Grant {
                    by,
                    for_session: answer == ApprovalAnswer::Session,
                    inside: answer == ApprovalAnswer::Inside,
                })
            }
        }
    }
}

fn denied_error(tool: &str, answered_by: &str) -> Error {
    let error = Error::new(Kind::ApprovalDenied, format!("`{tool}` was not allowed to run"));
    match answered_by {
        // A person's denial cannot be distinguished from an automatic one of the client.
        "client" => error.with_hint(
            "The client said no; headless clients do so automatically. Do not repeat the call unchanged. If no one was \
             shown the question, set `[approval] terminal = true` and answer with `ringfence approvals`.",
        ),
        _ => error.with_hint("The user said no at the terminal; do not repeat the call unchanged."),
    }
}

fn no_asker_error(tool: &str, auto_answers: bool) -> Error {
    let error = Error::new(
        Kind::ApprovalDenied,
        format!("`{tool}` needs a human's approval, and no one can be asked"),
    );
    if auto_answers {
        return error.with_reason("no_human").with_hint(
            "The client answers for its user: set `[approval] terminal = true` and answer with `ringfence approvals`.",
        );
    }
    error.with_reason("no_asker").with_hint(
        "Use a client that supports elicitation, or set `[approval] terminal = true` and answer with `ringfence approvals`.",
    )
}

/// Asks the client. Anything but a clear yes is a denial: an error, a cancelled dialog, an answer
/// that cannot be understood. Returns `None` for silence.
async fn ask_client(
    client: &ClientHandle,
    elicitation: Value,
    choices: &[ApprovalAnswer],
) -> Option<ApprovalAnswer> {
    match client.ask_client("elicitation/create", elicitation).await {
        Ok(answer) => Some(read_answer(&answer, choices)),
        Err(error) if error.kind() == Kind::ApprovalExpired => None,
        Err(error) => {
            tracing::info!("the client did not answer: {}", error.log_line());
            Some(ApprovalAnswer::Deny)
        }
    }
}
