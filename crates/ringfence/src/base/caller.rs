//! The line from a running call back to the client that made it: progress, log lines, questions.
//!
//! A run does not speak to the transport itself. It sends events; whoever is attached to the run (the request
//! handler of the moment) carries them out. So a run outlives one request where the protocol wants that
//! (2026-07-28 asks by ending the request and taking up the answer in the next one), and a client that reads
//! nothing slows the run down instead of filling our memory.

use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};

use super::error::{Error, Kind, Result};

/// What the client said it can do, as far as a run may care.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Abilities {
    pub elicitation: bool,
    pub sampling: bool,
    pub roots: bool,
    /// It gave a progress token.
    pub progress: bool,
    /// It asked for log messages (2025: `logging/setLevel`, 2026: `_meta` log level).
    pub logging: bool,
    /// Its own sandbox is off, so its "accept" may be automatic and is not a human's word.
    pub accepts_unseen: bool,
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
    /// Questions that belong into one round.
    Ask(Vec<Question>),
}

/// One question to the client: an MCP request of the server's (`elicitation/create`, `sampling/createMessage`,
/// `roots/list`) and where the answer goes.
pub struct Question {
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
        if self.events.send(Event::Progress { message, progress, total, done }).await.is_ok() {
            // An error means that nobody is attached any more: there is nobody to wait for.
            let _ = taken.await;
        }
    }

    pub async fn log(&self, level: &'static str, logger: &str, data: Value) {
        if !self.abilities.logging {
            return;
        }
        let (done, taken) = oneshot::channel();
        if self.events.send(Event::Log { level, logger: logger.to_owned(), data, done }).await.is_ok() {
            let _ = taken.await;
        }
    }

    /// Asks the client several things in one round.
    pub async fn ask_all(&self, questions: Vec<(&'static str, Value)>) -> Vec<Result<Value>> {
        let (questions, answers): (Vec<_>, Vec<_>) = questions
            .into_iter()
            .map(|(method, params)| {
                let (reply, answer) = oneshot::channel();
                (Question { method, params, reply }, answer)
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
        self.ask_all(vec![(method, params)]).await.pop().unwrap_or_else(|| Ok(Value::Object(Map::new())))
    }
}
