//! The line from a running call back to the client that made it: progress, log lines, questions.
//!
//! A run does not speak to the transport itself. It sends events; whoever is attached to the run (the request
//! handler of the moment) carries them out. So a run outlives one request where the protocol wants that
//! (2026-07-28 asks by ending the request and taking up the answer in the next one), and a client that reads
//! nothing slows the run down instead of filling our memory.

use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};

use super::error::{Error, Kind, Result};
use crate::redact::known;

/// What the client said it can do, as far as a run may care.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Abilities {
    pub elicitation: bool,
    pub sampling: bool,
    pub roots: bool,
    /// It can be given a task instead of a result (2026-07-28, the tasks extension).
    pub tasks: bool,
    /// It gave a progress token.
    pub progress: bool,
    /// It asked for log messages (2025: `logging/setLevel`, 2026: `_meta` log level).
    pub logging: bool,
    /// It answers by itself, so neither its yes nor its no is a human's word.
    pub answers_unseen: bool,
    /// It shows an empty form as a menu: allow, allow for this session, deny. Codex does; other clients show a bare
    /// yes and no.
    pub turns_empty_form_into_menu: bool,
}

/// What a call may need of its client.
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

    /// As a client would have declared it.
    fn declaration(self) -> Value {
        match self {
            Ability::Elicitation => json!({"elicitation": {}}),
            Ability::Sampling => json!({"sampling": {}}),
            Ability::Roots => json!({"roots": {}}),
            Ability::Tasks => json!({"extensions": {"io.modelcontextprotocol/tasks": {}}}),
        }
    }
}

pub enum Event {
    /// One progress message; `done` resolves once the transport has taken it.
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
    /// A notification in words of its own, for clients that were written for another server. It is told which request
    /// it belongs to.
    Notify {
        method: &'static str,
        params: Map<String, Value>,
        done: oneshot::Sender<()>,
    },
    /// Questions that belong into one round.
    Ask(Vec<Question>),
    /// The run goes on in the background; resolves once it does.
    Detach(oneshot::Sender<()>),
}

/// One question to the client: an MCP request of the server's (`elicitation/create`, `sampling/createMessage`,
/// `roots/list`) and where the answer goes.
pub struct Question {
    /// The name the client answers by, where the tool has one for it. Only a question with a name of its own can
    /// be answered before it is asked; an approval has none.
    pub key: Option<&'static str>,
    pub method: &'static str,
    pub params: Value,
    pub reply: oneshot::Sender<Result<Value>>,
}

#[derive(Clone)]
pub struct Caller {
    events: mpsc::Sender<Event>,
    abilities: Abilities,
}

impl Caller {
    pub fn new(abilities: Abilities) -> (Self, mpsc::Receiver<Event>) {
        // One slot: an event is taken before the next is made.
        let (events, inbox) = mpsc::channel(1);
        (Caller { events, abilities }, inbox)
    }

    /// Nobody is on the line any more: the call is over.
    pub fn is_gone(&self) -> bool {
        self.events.is_closed()
    }

    pub fn abilities(&self) -> Abilities {
        self.abilities
    }

    /// Shows the client how far the run is; returns when the transport has taken the message, which is the
    /// back-pressure that a run's output pump waits on. Nothing happens for a client that did not ask.
    pub async fn progress(&self, message: String, progress: f64, total: Option<f64>) {
        if !self.abilities.progress {
            return;
        }
        let (done, taken) = oneshot::channel();
        let message = known::redact(&message).into_owned();
        if self.events.send(Event::Progress { message, progress, total, done }).await.is_ok() {
            // An error means that nobody is attached any more: there is nobody to wait for.
            let _ = taken.await;
        }
    }

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

    /// Tells the client something that only one which was written for it understands.
    pub async fn notify(&self, method: &'static str, params: Map<String, Value>) {
        let (done, taken) = oneshot::channel();
        if self.events.send(Event::Notify { method, params, done }).await.is_ok() {
            let _ = taken.await;
        }
    }

    /// Refuses what cannot be done without an ability that the client did not declare.
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

    /// Goes on in the background: the client gets a task at once and looks after it by its id. Nothing happens
    /// for a client that did not declare that it can.
    pub async fn detach(&self) {
        if !self.abilities.tasks {
            return;
        }
        let (done, taken) = oneshot::channel();
        if self.events.send(Event::Detach(done)).await.is_ok() {
            // An error means that nobody is attached any more: then it is in the background already.
            let _ = taken.await;
        }
    }

    /// Asks the client several things in one round.
    pub async fn ask_all(&self, questions: Vec<(&'static str, Value)>) -> Vec<Result<Value>> {
        self.put(questions.into_iter().map(|(method, params)| (None, method, params)).collect())
            .await
    }

    /// The same under names of the tool's own: `(name, method, params)`.
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

    /// A client is never asked for what it did not declare, so a round is put whole or not at all.
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
        let gone = || Error::new(Kind::Unavailable, "the client is gone");
        if self.events.send(Event::Ask(questions)).await.is_err() {
            return answers.iter().map(|_| Err(gone())).collect();
        }
        let mut results = Vec::with_capacity(answers.len());
        for answer in answers {
            results.push(answer.await.unwrap_or_else(|_| Err(gone())));
        }
        results
    }

    pub async fn ask(&self, method: &'static str, params: Value) -> Result<Value> {
        self.ask_all(vec![(method, params)])
            .await
            .pop()
            .unwrap_or_else(|| Ok(Value::Object(Map::new())))
    }

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
