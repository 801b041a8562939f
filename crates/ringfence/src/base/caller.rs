//! Handle from a running call back to its client: progress, log lines, questions.
//!
//! A run never talks to the transport. It sends events, and the request handler that is currently
//! attached to the run delivers them. A run can therefore outlive a request where the protocol
//! needs that (2026-07-28 asks a question by ending the request and takes the answer from the next
//! one), and a client that reads nothing slows the run down instead of filling our memory.

use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};

use super::error::{Error, Kind, Result};
use crate::redact::known;

/// Client capabilities that matter to a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Abilities {
    pub elicitation: bool,
    pub sampling: bool,
    pub roots: bool,
    /// Accepts a task instead of a result (2026-07-28, the tasks extension).
    pub tasks: bool,
    /// Sent a progress token with the request.
    pub progress: bool,
    /// Requested log messages (2025: `logging/setLevel`, 2026: `_meta` log level).
    pub logging: bool,
    /// Answers questions automatically, so neither its yes nor its no comes from a human.
    pub answers_unseen: bool,
    /// Shows an empty form as a menu: allow, allow for this session, deny. Codex does; other
    /// clients show a bare yes and no.
    pub turns_empty_form_into_menu: bool,
}

/// A capability that a call may require of its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ability {
    Elicitation,
    Sampling,
    Roots,
    Tasks,
}

impl Ability {
    fn of(method: &str) -> Option<Self> {
        match method {
            "elicitation/create" => Some(Ability::Elicitation),
            "sampling/createMessage" => Some(Ability::Sampling),
            "roots/list" => Some(Ability::Roots),
            _ => None,
        }
    }

    /// Returns the JSON with which a client would declare this capability.
    fn declaration(self) -> Value {
        match self {
            Ability::Elicitation => json!({"elicitation": {}}),
            Ability::Sampling => json!({"sampling": {}}),
            Ability::Roots => json!({"roots": {}}),
            Ability::Tasks => json!({"extensions": {"io.modelcontextprotocol/tasks": {}}}),
        }
    }
}

/// Message from a run to the request handler attached to it.
pub enum Event {
    /// One progress message; `done` resolves once the transport has accepted it.
    Progress {
        message: String,
        progress: f64,
        total: Option<f64>,
        done: oneshot::Sender<()>,
    },
    Log {
        level: &'static str,
        logger: String,
        data: Value,
        done: oneshot::Sender<()>,
    },
    /// A server-specific notification, for clients written for another server. The request it
    /// belongs to is added to it.
    Notify {
        method: &'static str,
        params: Map<String, Value>,
        done: oneshot::Sender<()>,
    },
    /// Questions to be asked in one round.
    Ask(Vec<Question>),
    /// The run is to continue in the background; resolves once it does.
    Detach(oneshot::Sender<()>),
}

/// One question to the client: a server-to-client MCP request (`elicitation/create`,
/// `sampling/createMessage`, `roots/list`) and the channel for its answer.
pub struct Question {
    /// Name under which the client answers, if the tool gives one. Only a question with a name can
    /// be answered before it is asked; an approval never has one.
    pub key: Option<&'static str>,
    pub method: &'static str,
    pub params: Value,
    pub reply: oneshot::Sender<Result<Value>>,
}

/// Handle with which a run reaches its client.
#[derive(Clone)]
pub struct Caller {
    events: mpsc::Sender<Event>,
    abilities: Abilities,
}

impl Caller {
    /// Creates a handle, and the receiver for the request handler.
    pub fn new(abilities: Abilities) -> (Self, mpsc::Receiver<Event>) {
        // One slot: each event is received before the next one is created.
        let (events, inbox) = mpsc::channel(1);
        (Caller { events, abilities }, inbox)
    }

    /// Returns whether no request handler is attached any more, because the call is over.
    pub fn is_gone(&self) -> bool {
        self.events.is_closed()
    }

    /// Returns the client's capabilities.
    pub fn abilities(&self) -> Abilities {
        self.abilities
    }

    /// Reports progress. Returns once the transport has accepted the message; this is the
    /// back-pressure that a run's output pump waits on. Does nothing for a client that did not ask
    /// for progress.
    pub async fn progress(&self, message: String, progress: f64, total: Option<f64>) {
        if !self.abilities.progress {
            return;
        }
        let (done, taken) = oneshot::channel();
        let message = known::redact(&message).into_owned();
        if self.events.send(Event::Progress { message, progress, total, done }).await.is_ok() {
            // The client may have disconnected; then there is nothing to wait for.
            let _ = taken.await;
        }
    }

    /// Sends a log message. Does nothing for a client that did not ask for log messages.
    pub async fn log(&self, level: &'static str, logger: &str, mut data: Value) {
        if !self.abilities.logging {
            return;
        }
        known::redact_value(&mut data);
        let (done, taken) = oneshot::channel();
        if self
            .events
            .send(Event::Log { level, logger: logger.to_owned(), data, done })
            .await
            .is_ok()
        {
            let _ = taken.await;
        }
    }

    /// Sends a notification that only clients written for it understand.
    pub async fn notify(&self, method: &'static str, params: Map<String, Value>) {
        let (done, taken) = oneshot::channel();
        if self.events.send(Event::Notify { method, params, done }).await.is_ok() {
            let _ = taken.await;
        }
    }

    /// Fails if the client did not declare this capability.
    pub fn require(&self, ability: Ability) -> Result<()> {
        let declared = match ability {
            Ability::Elicitation => self.abilities.elicitation,
            Ability::Sampling => self.abilities.sampling,
            Ability::Roots => self.abilities.roots,
            Ability::Tasks => self.abilities.tasks,
        };
        if declared {
            return Ok(());
        }
        let declaration = ability.declaration();
        Err(Error::new(
            Kind::InvalidRequest,
            "the call needs a capability that the client did not declare",
        )
        .reason("missing_capability")
        .code(-32021)
        .hint(format!("Declare {declaration} in the client's capabilities, or use another tool."))
        .with("requiredCapabilities", declaration))
    }

    /// Continues the run in the background: the client immediately gets a task and polls it by its
    /// id. Does nothing for a client that did not declare support for tasks.
    pub async fn detach(&self) {
        if !self.abilities.tasks {
            return;
        }
        let (done, taken) = oneshot::channel();
        if self.events.send(Event::Detach(done)).await.is_ok() {
            // The client may have disconnected; then the run is in the background already.
            let _ = taken.await;
        }
    }

    /// Asks the client several questions in one round.
    pub async fn ask_all(&self, questions: Vec<(&'static str, Value)>) -> Vec<Result<Value>> {
        self.put(questions.into_iter().map(|(method, params)| (None, method, params)).collect())
            .await
    }

    /// Asks several questions under names chosen by the tool: `(name, method, params)`.
    pub async fn ask_all_named(
        &self,
        questions: Vec<(&'static str, &'static str, Value)>,
    ) -> Vec<Result<Value>> {
        self.put(
            questions
                .into_iter()
                .map(|(key, method, params)| (Some(key), method, params))
                .collect(),
        )
        .await
    }

    /// Sends one round of questions. A client is never asked for something it did not declare, so a
    /// round is sent as a whole or not at all.
    async fn put(
        &self,
        questions: Vec<(Option<&'static str>, &'static str, Value)>,
    ) -> Vec<Result<Value>> {
        let lacking =
            |method| Ability::of(method).filter(|ability| self.require(*ability).is_err());
        if let Some(ability) = questions.iter().find_map(|(_, method, _)| lacking(method)) {
            return questions.iter().map(|_| self.require(ability).map(|()| Value::Null)).collect();
        }
        let (questions, answers): (Vec<_>, Vec<_>) = questions
            .into_iter()
            .map(|(key, method, mut params)| {
                known::redact_value(&mut params);
                let (reply, answer) = oneshot::channel();
                (Question { key, method, params, reply }, answer)
            })
            .unzip();
        let gone = || Error::new(Kind::Unavailable, "the client has disconnected");
        if self.events.send(Event::Ask(questions)).await.is_err() {
            return answers.iter().map(|_| Err(gone())).collect();
        }
        let mut results = Vec::with_capacity(answers.len());
        for answer in answers {
            results.push(answer.await.unwrap_or_else(|_| Err(gone())));
        }
        results
    }

    /// Asks the client one question.
    pub async fn ask(&self, method: &'static str, params: Value) -> Result<Value> {
        self.ask_all(vec![(method, params)])
            .await
            .pop()
            .unwrap_or_else(|| Ok(Value::Object(Map::new())))
    }

    /// Asks the client one question under a name chosen by the tool.
    pub async fn ask_named(
        &self,
        key: &'static str,
        method: &'static str,
        params: Value,
    ) -> Result<Value> {
        self.ask_all_named(vec![(key, method, params)])
            .await
            .pop()
            .unwrap_or_else(|| Ok(Value::Object(Map::new())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_is_never_asked_for_what_it_did_not_declare() {
        let (caller, mut events) =
            Caller::new(Abilities { elicitation: true, ..Abilities::default() });
        let round = vec![("elicitation/create", json!({})), ("sampling/createMessage", json!({}))];
        for answer in caller.ask_all(round).await {
            let error = answer.unwrap_err();
            assert_eq!(error.wire_code(), -32021);
            let body = error.body(&crate::base::TraceId::mint());
            assert_eq!(body["requiredCapabilities"], json!({"sampling": {}}));
        }
        assert!(events.try_recv().is_err(), "nothing was sent");
        caller.detach().await;
        assert!(events.try_recv().is_err(), "a client without tasks gets none");
    }
}
