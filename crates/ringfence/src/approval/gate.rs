//! The gate. Nothing runs without passing it, and it alone can make a [`Granted`].

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::choice::{read_answer, settle};
use super::pending::{Answer, Pending};
use super::prompt::Prompt;
use crate::audit::Approvals;
use crate::base::call::Prepared;
use crate::base::caller::{Abilities, Caller};
use crate::base::clock::{Deadline, unix_millis};
use crate::base::{Cancel, Error, Kind, Result};
use crate::session::View;

/// Who allowed it, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// `policy` (nobody had to be asked), `rule` (a rule of the operator's), `trust` (this session said so before), `client`, `terminal`.
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

/// A value that may run, once. It cannot be cloned, and only the gate makes one:
///
/// ```compile_fail
/// use ringfence::approval::{Grant, Granted};
/// let forged = Granted { inner: "rm -rf /", grant: Grant { by: "policy", for_session: false, inside: false } };
/// ```
#[derive(Debug)]
pub struct Granted<T> {
    inner: T,
    grant: Grant,
}

impl<T> Granted<T> {
    pub fn grant(&self) -> Grant {
        self.grant
    }

    pub fn get(&self) -> &T {
        &self.inner
    }

    /// The same grant for the same thing in another form.
    pub fn map<U>(self, form: impl FnOnce(T) -> U) -> Granted<U> {
        Granted { inner: form(self.inner), grant: self.grant }
    }

    /// Running takes what was granted; the grant is used up with it.
    pub fn consume(self) -> T {
        self.inner
    }
}

/// What a question needs to know of the call that raises it.
pub struct AskCx<'a> {
    pub view: &'a View,
    pub caller: &'a Caller,
    pub cancel: &'a Cancel,
    /// Stands still while a human decides.
    pub deadline: &'a Deadline,
    pub approvals: &'a Approvals,
    /// Silence for so long is a no.
    pub expiry: Duration,
    /// How long the client itself waits, where it says so: an answer after that would reach nobody.
    pub patience: Option<Duration>,
}

pub struct Gate {
    pub pending: Arc<Pending>,
    /// Somebody may answer at `ringfence approvals`.
    terminal: bool,
}

impl Gate {
    pub fn new(terminal: bool) -> Self {
        Gate { pending: Arc::default(), terminal }
    }

    /// Whether anyone can be asked for a client with these abilities: the client itself, or someone at a terminal. A
    /// client that answers without showing anything to a human is not asked, because its answer would be no one's.
    pub fn can_ask(&self, abilities: Abilities) -> bool {
        self.terminal || abilities.elicitation && !abilities.answers_unseen
    }

    /// Lets a prepared call through, after asking where one has to.
    pub async fn pass(&self, cx: &AskCx<'_>, call: Prepared) -> Result<Granted<Prepared>> {
        let Some(why) = call.asks.clone() else {
            return Ok(Granted { inner: call, grant: Grant::new("policy", false) });
        };
        if cx.view.lasting && cx.view.session.trusts(&call.tool, &call.definition) {
            cx.approvals.write("approved", "trust", "session")?;
            return Ok(Granted { inner: call, grant: Grant::new("trust", true) });
        }
        let prompt = Prompt::of(&call, &why, &cx.view.session);
        let grant = self.decide(cx, Prompt { offers_session: cx.view.lasting, ..prompt }).await?;
        if grant.for_session {
            cx.view.session.trust(&call.tool, &call.definition);
        }
        Ok(Granted { inner: call, grant })
    }

    /// A question raised while a call runs. What is granted is the question's own subject, nothing wider.
    pub async fn confirm<T>(
        &self,
        cx: &AskCx<'_>,
        prompt: Prompt,
        subject: T,
    ) -> Result<Granted<T>> {
        // There is no key under which an answer could be kept.
        let grant = self.decide(cx, Prompt { offers_session: false, ..prompt }).await?;
        Ok(Granted { inner: subject, grant })
    }

    /// What a rule of the operator allows needs nobody's word beside.
    pub fn by_rule<T>(&self, subject: T) -> Granted<T> {
        Granted { inner: subject, grant: Grant::new("rule", false) }
    }

    /// The same as [`Gate::confirm`], for a question whose answer may be kept for the session under this key.
    pub async fn confirm_for_session<T>(
        &self,
        cx: &AskCx<'_>,
        prompt: Prompt,
        (what, which): (String, String),
        subject: T,
    ) -> Result<Granted<T>> {
        if cx.view.lasting && cx.view.session.trusts(&what, &which) {
            cx.approvals.write("approved", "trust", "session")?;
            return Ok(Granted { inner: subject, grant: Grant::new("trust", true) });
        }
        let grant = self.decide(cx, Prompt { offers_session: cx.view.lasting, ..prompt }).await?;
        if grant.for_session {
            cx.view.session.trust(&what, &which);
        }
        Ok(Granted { inner: subject, grant })
    }

    /// Asks everyone who can answer; the first answer counts, and silence is a no.
    async fn decide(&self, cx: &AskCx<'_>, prompt: Prompt) -> Result<Grant> {
        let mut prompt = prompt.redacted();
        // A client that answers without showing anything to anybody is not asked: its answer would be nobody's.
        let abilities = cx.caller.abilities();
        // Nor is one whose call is over: a run may have outlived it.
        let by_client = abilities.elicitation && !abilities.answers_unseen && !cx.caller.is_gone();
        if !by_client && !self.terminal {
            cx.approvals.write("denied", "nobody", "once")?;
            return Err(nobody_to_ask(prompt.name(), abilities.answers_unseen));
        }
        if let Err(error) = prompt.check_length() {
            cx.approvals.write("denied", "limit", "once")?;
            return Err(error);
        }
        let expiry = cx.expiry.min(cx.patience.unwrap_or(cx.expiry));
        prompt.asked_unix_ms = unix_millis();
        let lasts_ms = u64::try_from(expiry.as_millis()).unwrap_or(u64::MAX);
        prompt.expires_unix_ms = prompt.asked_unix_ms.saturating_add(lasts_ms);
        let tool = prompt.name().to_owned();
        let choices = prompt.choices();
        let elicitation = prompt.elicitation(abilities.turns_empty_form_into_menu);
        let Some((asked, at_terminal)) = self.pending.ask(prompt) else {
            cx.approvals.write("denied", "limit", "once")?;
            return Err(Error::new(
                Kind::ResourceExhausted,
                "too many questions wait in this session already",
            )
            .hint("Have the open questions answered first."));
        };
        let pause = cx.deadline.pause();
        let outcome = tokio::select! {
            answer = at_terminal, if self.terminal => answer.ok(),
            answer = ask_client(cx.caller, elicitation, &choices), if by_client => answer.map(|answer| (answer, "client")),
            () = tokio::time::sleep(expiry) => None,
            cause = cx.cancel.cancelled() => {
                cx.approvals.write("expired", cause.name(), "once")?;
                return Err(Error::new(Kind::Cancelled, "the call was cancelled while it waited for approval"));
            }
        };
        drop((asked, pause));
        match outcome.map(|(answer, by)| (settle(answer, &choices), by)) {
            None => {
                cx.approvals.write("expired", "nobody", "once")?;
                Err(Error::new(
                    Kind::ApprovalExpired,
                    format!("nobody answered whether `{tool}` may run"),
                ))
            }
            Some((Answer::Deny, by)) => {
                cx.approvals.write("denied", by, "once")?;
                Err(denied(&tool, by))
            }
            Some((answer, by)) => {
                cx.approvals.write("approved", by, answer.name())?;
                Ok(Grant {
                    by,
                    for_session: answer == Answer::Session,
                    inside: answer == Answer::Inside,
                })
            }
        }
    }
}

fn denied(tool: &str, by: &str) -> Error {
    let error = Error::new(Kind::ApprovalDenied, format!("`{tool}` was not allowed to run"));
    match by {
        // We cannot tell a person's no from a client's own.
        "client" => error.hint(
            "The client said no; headless clients do so by themselves. Do not repeat the call unchanged. If nobody was \
             shown the question, set `[approval] terminal = true` and answer with `ringfence approvals`.",
        ),
        _ => error.hint("The user said no at the terminal; do not repeat the call unchanged."),
    }
}

fn nobody_to_ask(tool: &str, answers_unseen: bool) -> Error {
    let error = Error::new(
        Kind::ApprovalDenied,
        format!("`{tool}` needs a human's approval and nobody can be asked"),
    );
    if answers_unseen {
        return error.reason("no_human").hint(
            "The client answers for its user: set `[approval] terminal = true` and answer with `ringfence approvals`.",
        );
    }
    error.reason("no_asker").hint(
        "Use a client that supports elicitation, or set `[approval] terminal = true` and answer with `ringfence approvals`.",
    )
}

/// Anything but a clear yes is a no: an error, a cancelled dialog, an answer we do not understand. None is silence.
async fn ask_client(caller: &Caller, elicitation: Value, choices: &[Answer]) -> Option<Answer> {
    match caller.ask("elicitation/create", elicitation).await {
        Ok(answer) => Some(read_answer(&answer, choices)),
        Err(error) if error.kind() == Kind::ApprovalExpired => None,
        Err(error) => {
            tracing::info!("the client did not answer: {}", error.log_line());
            Some(Answer::Deny)
        }
    }
}
