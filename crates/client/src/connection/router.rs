//! Decides what each message of a server is for: an open call, the connection itself, or nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde_json::json;
use tokio::sync::{oneshot, watch};

use super::inbox::{CallEvent, CallInbox, ServerRequest};
use crate::error::{ClientError, ErrorKind, Result};
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
    /// Counts changes of the server's tool list.
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

impl Drop for PendingAnswer<'_> {
    fn drop(&mut self) {
        self.router.lock_state().open.remove(&self.id);
    }
}

impl Router {
    pub(crate) fn new(limits: &Limits, roots: Vec<Root>) -> Router {
        Router {
            state: Mutex::default(),
            next_id: AtomicU64::new(1),
            list_changes: watch::channel(0).0,
            roots,
            max_bad_messages: limits.bad_messages,
        }
    }

    /// Opens a request. Fails if the connection is closed.
    pub(crate) fn open_request(&self, inbox: Option<Arc<CallInbox>>) -> Result<PendingAnswer<'_>> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (answer, receiver) = oneshot::channel();
        let mut state = self.lock_state();
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        state.open.insert(id, OpenRequest { answer, inbox });
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

    /// Subscribes to changes of the tool list.
    pub(crate) fn list_changes(&self) -> watch::Receiver<u64> {
        self.list_changes.subscribe()
    }

    /// Handles a message. `stream` is the request on whose stream it came, where each request has a
    /// stream of its own. Returns the answer that the server is to get at once, if any.
    pub(crate) fn route(&self, message: Incoming, stream: Option<u64>) -> Option<(RawJson, Reply)> {
        match message {
            Incoming::Answer { id, result } => {
                // On a stream of its own the answer is for its request, whatever its id says: errors
                // about a missing session come under another one.
                match stream.or(id) {
                    Some(id) => self.answer_request(id, result),
                    None => self.handle_bad_message("an answer to no request", result.err()),
                }
                None
            }
            Incoming::Notification { method, params } => {
                self.route_notification(&method, params, stream);
                None
            }
            Incoming::Request { id, method, params } => {
                self.route_request(ServerRequest { id, method, params }, stream)
            }
            Incoming::Unknown => {
                self.handle_bad_message("a message that is not JSON-RPC", None);
                None
            }
        }
    }

    /// Ends a request with this answer.
    pub(crate) fn answer_request(&self, id: u64, result: Result<RawJson>) {
        let request = self.lock_state().open.remove(&id);
        match request {
            Some(request) => drop(request.answer.send(result)),
            // Answers to cancelled requests are normal.
            None => tracing::debug!("the server answered a request that is not open"),
        }
    }

    /// Counts a message that fits nowhere. If only one request is open it must be meant for that one,
    /// which would otherwise wait until its deadline. Too many end the connection.
    pub(crate) fn handle_bad_message(&self, description: &str, cause: Option<ClientError>) {
        let error = cause.unwrap_or_else(|| {
            ClientError::new(ErrorKind::BadResponse, format!("the server sent {description}"))
        });
        let (only_request, is_last_straw) = {
            let mut state = self.lock_state();
            state.bad_messages += 1;
            let only_request = match state.open.len() {
                1 => state.open.pop_first().map(|(_, request)| request),
                _ => None,
            };
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
        let error = ClientError::new(
            ErrorKind::TooLarge,
            format!("the server's answer is longer than {max_bytes} bytes"),
        )
        .with_hint("Ask for less: a smaller range, fewer items or a narrower query.");
        match id {
            Some(id) => self.answer_request(id, Err(error)),
            None => self.handle_bad_message("a message that is too long", Some(error)),
        }
    }

    fn route_notification(&self, method: &str, params: Option<RawJson>, stream: Option<u64>) {
        match (method, params) {
            ("notifications/tools/list_changed", _) => {
                self.list_changes.send_modify(|changes| *changes += 1);
            }
            ("notifications/progress", Some(params)) => {
                let inbox = self.inbox_of(stream.or_else(|| read_progress_token(&params)));
                self.deliver(inbox, CallEvent::Progress(params));
            }
            ("notifications/message", Some(params)) => {
                let inbox =
                    stream.map_or_else(|| self.latest_inbox(), |id| self.inbox_of(Some(id)));
                self.deliver(inbox, CallEvent::Log(params));
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
        stream: Option<u64>,
    ) -> Option<(RawJson, Reply)> {
        let id = request.id.clone();
        let reply = match request.method.as_str() {
            "ping" => Reply::Result(json!({})),
            "roots/list" => Reply::Result(json!({
                "roots": self.roots.iter().map(|root| json!({"uri": root.uri, "name": root.name}))
                    .collect::<Vec<_>>(),
            })),
            "elicitation/create" | "sampling/createMessage" => {
                let inbox =
                    stream.map_or_else(|| self.latest_inbox(), |id| self.inbox_of(Some(id)));
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

    /// Returns the inbox of the call that was started last: on a pipe a server does not say which
    /// call a question belongs to.
    fn latest_inbox(&self) -> Option<Arc<CallInbox>> {
        self.lock_state().open.values().rev().find_map(|request| request.inbox.clone())
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
