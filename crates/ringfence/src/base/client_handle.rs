//! Handle from a running call back to its client: progress, log lines, questions.
//!
//! A run never talks to the transport. It sends events, and the request handler that is currently
//! attached to the run delivers them. A run can therefore outlive a request where the protocol
//! needs that (2026-07-28 asks a question by ending the request and takes the answer from the next
//! one), and a client that reads nothing slows the run down instead of filling our memory.

use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};

use super::error::{Error, Kind, Result};
use crate::redact::known_secrets;

/// Client capabilities that matter to a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientCapabilities {
    pub elicitation: bool,
    /// Opens an address that a question names.
    pub elicitation_url: bool,
    pub sampling: bool,
    pub roots: bool,
    /// Accepts a task instead of a result (2026-07-28, the tasks extension).
    pub tasks: bool,
    /// Sent a progress token with the request.
    pub progress: bool,
    /// Requested log messages (2025: `logging/setLevel`, 2026: `_meta` log level).
    pub logging: bool,
    /// Answers questions automatically, so neither its yes nor its no comes from a human.
    pub auto_answers: bool,
    /// Shows an empty form as a menu: allow, allow for this session, deny. Codex does; other
    /// clients show a bare yes and no.
    pub shows_empty_form_as_menu: bool,
}

/// A capability that a call may require of its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCapability {
    Elicitation,
    Sampling,
    Roots,
    Tasks,
}

impl ClientCapability {
    fn from_method(method: &str) -> Option<Self> {
        match method {
            "elicitation/create" => Some(ClientCapability::Elicitation),
            "sampling/createMessage" => Some(ClientCapability::Sampling),
            "roots/list" => Some(ClientCapability::Roots),
            _ => None,
        }
    }

    /// Returns the JSON with which a client would declare this capability.
    fn to_declaration(self) -> Value {
        match self {
            ClientCapability::Elicitation => json!({"elicitation": {}}),
            ClientCapability::Sampling => json!({"sampling": {}}),
            ClientCapability::Roots => json!({"roots": {}}),
            ClientCapability::Tasks => json!({"extensions": {"io.modelcontextprotocol/tasks": {}}}),
        }
    }
}

/// Message from a run to the request handler attached to it.
pub enum ClientEvent {
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
    Ask(Vec<ClientQuestion>),
    /// The run is to continue in the background; resolves once it does.
    Detach(oneshot::Sender<()>),
}

/// One question to the client: a server-to-client MCP request (`elicitation/create`,
/// `sampling/createMessage`, `roots/list`) and the channel for its answer.
pub struct ClientQuestion {
    /// Name under which the client answers, if the tool gives one. Only a question with a name can
    /// be answered before it is asked; an approval never has one.
    pub key: Option<&'static str>,
    pub method: &'static str,
    pub params: Value,
    pub reply: oneshot::Sender<Result<Value>>,
}

/// Handle with which a run reaches its client.
#[derive(Clone)]
pub struct ClientHandle {
    events: mpsc::Sender<ClientEvent>,
    capabilities: ClientCapabilities,
}

/// Receives the events of a call.
pub struct ClientEventReceiver {
    /// Event that its receiver could not handle.
    returned: Option<ClientEvent>,
    inbox: mpsc::Receiver<ClientEvent>,
}

impl ClientEventReceiver {
    /// Receives the next event; `None` if there will be no more.
    pub async fn recv(&mut self) -> Option<ClientEvent> {
        match self.returned.take() {
            Some(event) => Some(event),
            None => self.inbox.recv().await,
        }
    }

    /// Gives an event back: it is the next that is received.
    pub fn return_event(&mut self, event: ClientEvent) {
        self.returned = Some(event);
    }
}

impl ClientHandle {
    /// Creates a handle, and the receiver for the request handler.
    pub fn new(capabilities: ClientCapabilities) -> (Self, ClientEventReceiver) {
        // One slot: each event is received before the next one is created.
        let (events, inbox) = mpsc::channel(1);
        (ClientHandle { events, capabilities }, ClientEventReceiver { returned: None, inbox })
    }

    /// Returns whether no request handler is attached any more, because the call is over.
    pub fn is_gone(&self) -> bool {
        self.events.is_closed()
    }

    /// Returns the client's capabilities.
    pub fn capabilities(&self) -> ClientCapabilities {
        self.capabilities
    }

    /// Reports progress. Returns once the transport has accepted the message; this is the
    /// back-pressure that a run's output pump waits on. Does nothing for a client that did not ask
    /// for progress.
    pub async fn send_progress(&self, message: String, progress: f64, total: Option<f64>) {
        if !self.capabilities.progress {
            return;
        }
        let (done, delivered) = oneshot::channel();
        let message = known_secrets::redact_str(&message).into_owned();
        if self.events.send(ClientEvent::Progress { message, progress, total, done }).await.is_ok()
        {
            // The client may have disconnected; then there is nothing to wait for.
            let _ = delivered.await;
        }
    }

    /// Sends a log message. Does nothing for a client that did not ask for log messages.
    pub async fn send_log(&self, level: &'static str, logger: &str, mut data: Value) {
        if !self.capabilities.logging {
            return;
        }
        known_secrets::redact_value(&mut data);
        let (done, delivered) = oneshot::channel();
        if self
            .events
            .send(ClientEvent::Log { level, logger: logger.to_owned(), data, done })
            .await
            .is_ok()
        {
            let _ = delivered.await;
        }
    }

    /// Sends a notification that only clients written for it understand.
    pub async fn send_notification(&self, method: &'static str, params: Map<String, Value>) {
        let (done, delivered) = oneshot::channel();
        if self.events.send(ClientEvent::Notify { method, params, done }).await.is_ok() {
            let _ = delivered.await;
        }
    }

    /// Fails if the client did not declare this capability.
    pub fn require_capability(&self, capability: ClientCapability) -> Result<()> {
        let declared = match capability {
            ClientCapability::Elicitation => self.capabilities.elicitation,
            ClientCapability::Sampling => self.capabilities.sampling,
            ClientCapability::Roots => self.capabilities.roots,
            ClientCapability::Tasks => self.capabilities.tasks,
        };
        if declared {
            return Ok(());
        }
        let declaration = capability.to_declaration();
        Err(Error::new(
            Kind::InvalidRequest,
            "the call needs a capability that the client did not declare",
        )
        .with_reason("missing_capability")
        .with_code(-32021)
        .with_hint(format!(
            "Declare {declaration} in the client's capabilities, or use another tool."
        ))
        .with_fact("requiredCapabilities", declaration))
    }

    /// Continues the run in the background: the client immediately gets a task and polls it by its
    /// id. Does nothing for a client that did not declare support for tasks.
    pub async fn move_to_background(&self) {
        if !self.capabilities.tasks {
            return;
        }
        let (done, delivered) = oneshot::channel();
        if self.events.send(ClientEvent::Detach(done)).await.is_ok() {
            // The client may have disconnected; then the run is in the background already.
            let _ = delivered.await;
        }
    }

    /// Asks the client several questions in one round.
    pub async fn ask_all(&self, questions: Vec<(&'static str, Value)>) -> Vec<Result<Value>> {
        self.ask_round(
            questions.into_iter().map(|(method, params)| (None, method, params)).collect(),
        )
        .await
    }

    /// Asks several questions under names chosen by the tool: `(name, method, params)`.
    pub async fn ask_all_named(
        &self,
        questions: Vec<(&'static str, &'static str, Value)>,
    ) -> Vec<Result<Value>> {
        self.ask_round(
            questions
                .into_iter()
                .map(|(key, method, params)| (Some(key), method, params))
                .collect(),
        )
        .await
    }

    /// Sends one round of questions. A client is never asked for something it did not declare, so a
    /// round is sent as a whole or not at all.
    async fn ask_round(
        &self,
        questions: Vec<(Option<&'static str>, &'static str, Value)>,
    ) -> Vec<Result<Value>> {
        let missing_capability = |method| {
            ClientCapability::from_method(method)
                .filter(|capability| self.require_capability(*capability).is_err())
        };
        if let Some(capability) =
            questions.iter().find_map(|(_, method, _)| missing_capability(method))
        {
            return questions
                .iter()
                .map(|_| self.require_capability(capability).map(|()| Value::Null))
                .collect();
        }
        let (questions, answers): (Vec<_>, Vec<_>) = questions
            .into_iter()
            .map(|(key, method, mut params)| {
                known_secrets::redact_value(&mut params);
                let (reply, answer) = oneshot::channel();
                (ClientQuestion { key, method, params, reply }, answer)
            })
            .unzip();
        let disconnected_error = || Error::new(Kind::Unavailable, "the client has disconnected");
        if self.events.send(ClientEvent::Ask(questions)).await.is_err() {
            return answers.iter().map(|_| Err(disconnected_error())).collect();
        }
        let mut results = Vec::with_capacity(answers.len());
        for answer in answers {
            results.push(answer.await.unwrap_or_else(|_| Err(disconnected_error())));
        }
        results
    }

    /// Asks the client one question.
    pub async fn ask_client(&self, method: &'static str, params: Value) -> Result<Value> {
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
        let (caller, mut events) = ClientHandle::new(ClientCapabilities {
            elicitation: true,
            ..ClientCapabilities::default()
        });
        let round = vec![("elicitation/create", json!({})), ("sampling/createMessage", json!({}))];
        for answer in caller.ask_all(round).await {
            let error = answer.unwrap_err();
            assert_eq!(error.wire_code(), -32021);
            let body = error.to_body(&crate::base::TraceId::generate());
            assert_eq!(body["requiredCapabilities"], json!({"sampling": {}}));
        }
        assert!(events.inbox.try_recv().is_err(), "nothing was sent");
        caller.move_to_background().await;
        assert!(events.inbox.try_recv().is_err(), "a client without tasks gets none");
    }
}
