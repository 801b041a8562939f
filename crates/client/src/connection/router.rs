//! Decides what each message of a server is for: an open call, the connection itself, or nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde_json::json;
use tokio::sync::{oneshot, watch};

use super::inbox::{CallEvent, CallInbox, ServerRequest};
use crate::error::{ClientError, ErrorKind, Result, too_long};
use crate::limits::Limits;
use crate::message::{Incoming, METHOD_NOT_FOUND, RawJson, Reply};

/// Directory that a server gets when it asks for roots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// `file://` URI.
    pub uri: String,
    pub name: String,
}

/// Our open requests, and what the connection answers itself.
pub(crate) struct Router {
    state: Mutex<RouterState>,
    next_id: AtomicU64,
    /// Counts changes of the server's tool list, over all connections to it.
    list_changes: watch::Sender<u64>,
    roots: Vec<Root>,
    max_bad_messages: usize,
}

#[derive(Default)]
struct RouterState {
    /// In the order in which they were started.
    open: BTreeMap<u64, OpenRequest>,
    closed: Option<ClientError>,
    bad_messages: usize,
}

struct OpenRequest {
    answer: oneshot::Sender<Result<RawJson>>,
    inbox: Option<Arc<CallInbox>>,
    /// It stays open as long as the connection: no stray message can be its answer.
    is_subscription: bool,
}

/// Where a message came from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MessageSource {
    /// A stream that all requests share.
    Shared,
    /// The stream of this request.
    Request(u64),
    /// A stream that carries no answers.
    Listener,
}

/// Our request that waits for its answer. Dropping it closes the request.
pub(crate) struct PendingAnswer<'a> {
    pub(crate) id: u64,
    router: &'a Router,
    answer: oneshot::Receiver<Result<RawJson>>,
    /// Answer that has been looked for and found.
    received: Option<Result<RawJson>>,
}

impl PendingAnswer<'_> {
    /// Waits for the answer.
    pub(crate) async fn wait(&mut self) -> Result<RawJson> {
        if let Some(answer) = self.take_answer() {
            return answer;
        }
        (&mut self.answer).await.unwrap_or_else(|_| {
            Err(ClientError::new(ErrorKind::Cancelled, "the connection was closed"))
        })
    }
}

impl PendingAnswer<'_> {
    /// Returns whether the answer is there.
    pub(crate) fn has_answer(&mut self) -> bool {
        if self.received.is_none() {
            self.received = self.answer.try_recv().ok();
        }
        self.received.is_some()
    }

    /// Takes the answer, if it is there.
    pub(crate) fn take_answer(&mut self) -> Option<Result<RawJson>> {
        self.has_answer();
        self.received.take()
    }
}

impl RouterState {
    /// Returns the only request that waits for an answer, if there is exactly one.
    fn only_request(&self) -> Option<u64> {
        let mut waiting = self.open.iter().filter(|(_, request)| !request.is_subscription);
        match (waiting.next(), waiting.next()) {
            (Some((id, _)), None) => Some(*id),
            _ => None,
        }
    }
}

impl Drop for PendingAnswer<'_> {
    fn drop(&mut self) {
        self.router.lock_state().open.remove(&self.id);
    }
}

impl Router {
    pub(crate) fn new(
        limits: &Limits,
        roots: Vec<Root>,
        list_changes: watch::Sender<u64>,
    ) -> Router {
        Router {
            state: Mutex::default(),
            next_id: AtomicU64::new(1),
            list_changes,
            roots,
            max_bad_messages: limits.bad_messages,
        }
    }

    /// Opens a request. Fails if the connection is closed.
    pub(crate) fn open_request(&self, inbox: Option<Arc<CallInbox>>) -> Result<PendingAnswer<'_>> {
        self.open(inbox, false)
    }

    /// Opens a request that stays open as long as the connection.
    pub(crate) fn open_subscription(&self) -> Result<PendingAnswer<'_>> {
        self.open(None, true)
    }

    fn open(
        &self,
        inbox: Option<Arc<CallInbox>>,
        is_subscription: bool,
    ) -> Result<PendingAnswer<'_>> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (answer, receiver) = oneshot::channel();
        let mut state = self.lock_state();
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        state.open.insert(id, OpenRequest { answer, inbox, is_subscription });
        Ok(PendingAnswer { id, router: self, answer: receiver, received: None })
    }

    /// Closes the connection: every open request fails with this error, and so does every later one.
    pub(crate) fn close(&self, error: ClientError) {
        let open = {
            let mut state = self.lock_state();
            state.closed.get_or_insert(error.clone());
            std::mem::take(&mut state.open)
        };
        for request in open.into_values() {
            // A caller that has gone needs no answer.
            let _ = request.answer.send(Err(error.clone()));
        }
    }

    /// Returns why the connection is closed, if it is.
    pub(crate) fn closed_error(&self) -> Option<ClientError> {
        self.lock_state().closed.clone()
    }

    /// Counts a change of the tool list.
    pub(crate) fn note_list_change(&self) {
        self.list_changes.send_modify(|changes| *changes += 1);
    }

    /// Handles a message. Returns the answer that the server is to get at once, if any.
    pub(crate) fn route(
        &self,
        message: Incoming,
        source: MessageSource,
    ) -> Option<(RawJson, Reply)> {
        match message {
            Incoming::Answer { id, result } => {
                self.route_answer(id, result, source);
                None
            }
            Incoming::Notification { method, params } => {
                self.route_notification(&method, params, source);
                None
            }
            Incoming::Request { id, method, params } => {
                self.route_request(ServerRequest { id, method, params }, source)
            }
            Incoming::Unknown => {
                self.handle_bad_message("a message that is not JSON-RPC", None, source);
                None
            }
        }
    }

    fn route_answer(&self, id: Option<u64>, result: Result<RawJson>, source: MessageSource) {
        let is_given = |id: &u64| *id < self.next_id.load(Ordering::Relaxed);
        match (source, id) {
            // On a stream of its own the answer is for its request, whatever its id says: errors
            // about a missing session come under another one.
            (MessageSource::Request(stream), _) => self.answer_request(stream, result),
            // Answers to cancelled requests are normal.
            (_, Some(id)) if is_given(&id) => self.answer_request(id, result),
            _ => self.handle_bad_message("an answer to no request", result.err(), source),
        }
    }

    /// Ends a request with this answer.
    pub(crate) fn answer_request(&self, id: u64, result: Result<RawJson>) {
        let request = {
            let mut state = self.lock_state();
            let request = state.open.remove(&id);
            if request.is_some() {
                state.bad_messages = 0;
            }
            request
        };
        match request {
            Some(request) => drop(request.answer.send(result)),
            None => tracing::debug!("the server answered a request that is not open"),
        }
    }

    /// Counts text between the messages, such as a line that a server prints for its developers. No
    /// request fails because of it. Too much of it ends the connection.
    pub(crate) fn handle_stray_text(&self) {
        tracing::debug!("the server sent text that is not a message");
        self.handle_bad_message("text that is not a message", None, MessageSource::Listener);
    }

    /// Counts a message that fits nowhere. If only one request can be meant by it, that one fails
    /// instead of waiting until its deadline. Too many end the connection.
    pub(crate) fn handle_bad_message(
        &self,
        description: &str,
        cause: Option<ClientError>,
        source: MessageSource,
    ) {
        let error = cause.unwrap_or_else(|| {
            ClientError::new(ErrorKind::BadResponse, format!("the server sent {description}"))
        });
        let (only_request, is_last_straw) = {
            let mut state = self.lock_state();
            state.bad_messages += 1;
            let only_request = match source {
                MessageSource::Request(id) => Some(id),
                MessageSource::Shared => state.only_request(),
                MessageSource::Listener => None,
            };
            let only_request = only_request.and_then(|id| state.open.remove(&id));
            (only_request, state.bad_messages >= self.max_bad_messages)
        };
        tracing::debug!("{}", error.message());
        if let Some(request) = only_request {
            let _ = request.answer.send(Err(error));
        }
        if is_last_straw {
            self.close(ClientError::new(
                ErrorKind::BadResponse,
                "the server sent too many messages that are not JSON-RPC",
            ));
        }
    }

    /// Fails the request that an overlong message answers, as far as that can be found out.
    pub(crate) fn handle_long_message(&self, id: Option<u64>, max_bytes: usize) {
        self.route_answer(id, Err(too_long(max_bytes)), MessageSource::Shared);
    }

    fn route_notification(&self, method: &str, params: Option<RawJson>, source: MessageSource) {
        match (method, params) {
            ("notifications/tools/list_changed", _) => self.note_list_change(),
            ("notifications/progress", Some(params)) => {
                let id = match source {
                    MessageSource::Request(id) => Some(id),
                    _ => read_progress_token(&params),
                };
                self.deliver(self.inbox_of(id), CallEvent::Progress(params));
            }
            ("notifications/message", Some(params)) => {
                self.deliver(self.find_inbox(source), CallEvent::Log(params));
            }
            ("notifications/cancelled", Some(params)) => {
                if let Some(id) = read_cancelled_request(&params) {
                    self.answer_request(
                        id,
                        Err(ClientError::new(
                            ErrorKind::BadResponse,
                            "the server cancelled our request instead of answering it",
                        )),
                    );
                }
            }
            _ => {}
        }
    }

    /// Passes a request to its call, or answers what belongs to no call.
    fn route_request(
        &self,
        request: ServerRequest,
        source: MessageSource,
    ) -> Option<(RawJson, Reply)> {
        let id = request.id.clone();
        let reply = match request.method.as_str() {
            "ping" => Reply::Result(json!({})),
            "roots/list" => Reply::Result(json!({
                "roots": self.roots.iter().map(|root| json!({"uri": root.uri, "name": root.name}))
                    .collect::<Vec<_>>(),
            })),
            "elicitation/create" | "sampling/createMessage" => {
                let inbox = self.find_inbox(source);
                let is_elicitation = request.method == "elicitation/create";
                let delivered =
                    inbox.is_some_and(|inbox| inbox.add_event(CallEvent::Request(request)).is_ok());
                match (delivered, is_elicitation) {
                    (true, _) => return None,
                    (false, true) => Reply::Result(json!({"action": "cancel"})),
                    (false, false) => {
                        Reply::Error { code: METHOD_NOT_FOUND, message: "no call takes this" }
                    }
                }
            }
            _ => Reply::Error { code: METHOD_NOT_FOUND, message: "this client has no such method" },
        };
        Some((id, reply))
    }

    fn deliver(&self, inbox: Option<Arc<CallInbox>>, event: CallEvent) {
        // What is said outside any call has no reader.
        if let Some(inbox) = inbox {
            let _ = inbox.add_event(event);
        }
    }

    fn inbox_of(&self, id: Option<u64>) -> Option<Arc<CallInbox>> {
        self.lock_state().open.get(&id?)?.inbox.clone()
    }

    /// Returns the inbox of the call that a message belongs to. On a shared stream a server does not
    /// say which one that is; the call that was started last is the best guess.
    fn find_inbox(&self, source: MessageSource) -> Option<Arc<CallInbox>> {
        match source {
            MessageSource::Request(id) => self.inbox_of(Some(id)),
            MessageSource::Shared | MessageSource::Listener => {
                self.lock_state().open.values().rev().find_map(|request| request.inbox.clone())
            }
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, RouterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Progress tokens are the ids of their requests.
fn read_progress_token(params: &RawJson) -> Option<u64> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ProgressParams {
        progress_token: NumberOrText,
    }
    params.parse::<ProgressParams>().ok()?.progress_token.number()
}

fn read_cancelled_request(params: &RawJson) -> Option<u64> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct CancelledParams {
        request_id: NumberOrText,
    }
    params.parse::<CancelledParams>().ok()?.request_id.number()
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u64),
    Text(String),
}

impl NumberOrText {
    fn number(self) -> Option<u64> {
        match self {
            NumberOrText::Number(number) => Some(number),
            NumberOrText::Text(text) => text.parse().ok(),
        }
    }
}
