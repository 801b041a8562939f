//! Streamable HTTP: every request is a POST, and its answer a JSON body or an event stream.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use hyper::body::Incoming;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::events::EventReader;
use super::inbox::CallInbox;
use super::router::{MessageSource, PendingAnswer, Router};
use super::web::{AnswerBody, BACKGROUND_POST_TIMEOUT, MAX_OWN_REPLIES, WebClient};
use crate::error::{ClientError, ErrorKind, Result, closed_by_us, too_long};
use crate::handshake::Era;
use crate::message::{RawJson, Reply, read_messages, write_message, write_reply};

const SESSION_HEADER: &str = "mcp-session-id";
const VERSION_HEADER: &str = "mcp-protocol-version";
/// Times that a stream which broke off is taken up again for one answer.
const MAX_RESUMPTIONS: usize = 5;
/// Bounds of the time after which a server wants a stream to be taken up again.
const RESUME_DELAY: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(10);
/// Time that a new connection waits for the stream which belongs to no request. Some servers answer
/// only when they have something to say.
const LISTEN_GRACE: Duration = Duration::from_millis(500);
/// Bounds of the time after which that stream is opened again; it doubles while streams are short.
const REOPEN_DELAY: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(60);

/// What is known about the stream that belongs to no call.
struct ListenerState {
    /// Dropped once the stream is open or refused.
    opened: Option<oneshot::Sender<()>>,
    last_id: Option<String>,
    /// Time after which the server wants the stream to be opened again.
    retry_ms: Option<u64>,
}

/// Connection over Streamable HTTP.
pub(crate) struct HttpConnection {
    shared: Arc<HttpShared>,
}

struct HttpShared {
    web: WebClient,
    router: Arc<Router>,
    protocol: Mutex<ProtocolState>,
    tasks: TaskTracker,
    closed: CancellationToken,
    /// Bounds the answers that are being sent by the connection itself.
    replies: Arc<Semaphore>,
}

#[derive(Default, Clone)]
struct ProtocolState {
    session: Option<String>,
    era: Option<Era>,
    version: Option<String>,
}

impl HttpConnection {
    pub(crate) fn new(web: WebClient, router: Arc<Router>) -> HttpConnection {
        let shared = HttpShared {
            web,
            router,
            protocol: Mutex::default(),
            tasks: TaskTracker::new(),
            closed: CancellationToken::new(),
            replies: Arc::new(Semaphore::new(MAX_OWN_REPLIES)),
        };
        shared.tasks.close();
        HttpConnection { shared: Arc::new(shared) }
    }

    /// Sets what the handshake found out; later requests carry it.
    pub(crate) fn set_protocol(&self, era: Era, version: &str) {
        let mut protocol = self.shared.lock_protocol();
        (protocol.era, protocol.version) = (Some(era), Some(version.to_owned()));
    }

    /// Sends a request and waits for its answer. `mirrored` are the headers that 2026-07-28 wants for
    /// a call. Dropping the future tells the server to stop.
    pub(crate) async fn request(
        &self,
        method: &str,
        mirrored: Option<&HeaderMap>,
        params: impl FnOnce(u64) -> serde_json::Value,
        inbox: Option<Arc<CallInbox>>,
    ) -> Result<RawJson> {
        let mut pending = self.shared.router.open_request(inbox)?;
        let message = write_message(Some(pending.id), method, Some(params(pending.id)))?;
        let mut guard = HttpCancelGuard { connection: self, id: pending.id, is_armed: true };
        let answer = tokio::select! {
            // First: closing breaks the answer off too, which must not look like the server's doing.
            biased;
            () = self.shared.closed.cancelled() => Err(closed_by_us()),
            answer = self.shared.exchange(&mut pending, method, mirrored, message.into()) => answer,
        };
        // On 2026-07-28 the closed stream is the cancellation; what has ended needs none.
        guard.is_armed = false;
        answer
    }

    /// Sends a message for whose fate no one waits.
    pub(crate) fn send_in_background(&self, message: Vec<u8>, method: &'static str) {
        if tokio::runtime::Handle::try_current().is_ok() {
            self.shared.post_in_background(message, method, None);
        }
    }

    /// Sends a notification.
    pub(crate) async fn notify(&self, method: &str, params: Option<impl Serialize>) -> Result<()> {
        self.shared.post_message(write_message(None, method, params)?.into(), method).await
    }

    /// Answers a request of the server.
    pub(crate) async fn reply(&self, id: &RawJson, reply: &Reply) -> Result<()> {
        self.shared.post_message(write_reply(id, reply).into(), "").await
    }

    /// Listens for what the server says outside any call, as long as the connection lasts: by the
    /// given subscription or, for a server with sessions, by the stream that belongs to no request.
    /// Returns when the stream is open, so that a question during the first call is not lost.
    pub(crate) async fn listen(&self, subscription: Option<serde_json::Value>) {
        let shared = Arc::clone(&self.shared);
        let (opened, is_open) = oneshot::channel();
        self.shared.tasks.spawn(async move {
            let listening = shared.listen(subscription.as_ref(), opened);
            shared.closed.run_until_cancelled(listening).await;
        });
        // Without an answer in time the stream opens in the background.
        let _ = tokio::time::timeout(LISTEN_GRACE, is_open).await;
    }

    /// Ends the session and waits until nothing of the connection is left.
    pub(crate) async fn close(&self) {
        self.shared.router.close(closed_by_us());
        self.shared.closed.cancel();
        self.shared.tasks.wait().await;
        // A server that does not answer must not keep us.
        let _ = tokio::time::timeout(BACKGROUND_POST_TIMEOUT, self.shared.end_session()).await;
        self.shared.web.close().await;
    }
}

impl Drop for HttpConnection {
    fn drop(&mut self) {
        self.shared.closed.cancel();
    }
}

/// Sends `notifications/cancelled` to a server with sessions if a request ends without an answer.
struct HttpCancelGuard<'a> {
    connection: &'a HttpConnection,
    id: u64,
    is_armed: bool,
}

impl Drop for HttpCancelGuard<'_> {
    fn drop(&mut self) {
        let shared = &self.connection.shared;
        if !self.is_armed
            || shared.lock_protocol().era != Some(Era::Initialized)
            || tokio::runtime::Handle::try_current().is_err()
        {
            return;
        }
        let method = "notifications/cancelled";
        let params = serde_json::json!({"requestId": self.id});
        if let Ok(message) = write_message(None, method, Some(params)) {
            shared.post_in_background(message, method, None);
        }
    }
}

impl HttpShared {
    fn lock_protocol(&self) -> std::sync::MutexGuard<'_, ProtocolState> {
        self.protocol.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn headers(&self, method: &str, mirrored: Option<&HeaderMap>) -> HeaderMap {
        let protocol = self.lock_protocol().clone();
        let mut headers = HeaderMap::new();
        let mut set = |header: &'static str, value: &str| {
            // Values come from a server; what HTTP does not allow is left out, and the server says
            // that it is missing.
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(header, value);
            }
        };
        if let Some(session) = &protocol.session {
            set(SESSION_HEADER, session);
        }
        let is_discovery = method == "server/discover";
        if let Some(version) = &protocol.version {
            set(VERSION_HEADER, version);
        } else if is_discovery {
            set(VERSION_HEADER, crate::handshake::STATELESS_VERSION);
        }
        if is_discovery || protocol.era == Some(Era::Stateless) && !method.is_empty() {
            set("mcp-method", method);
            headers.extend(mirrored.cloned().unwrap_or_default());
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers
    }

    /// Posts a request and follows its answer to the end.
    async fn exchange(
        self: &Arc<Self>,
        pending: &mut PendingAnswer<'_>,
        method: &str,
        mirrored: Option<&HeaderMap>,
        body: Bytes,
    ) -> Result<RawJson> {
        let headers = self.headers(method, mirrored);
        let had_session = headers.contains_key(SESSION_HEADER);
        let response = self.web.send(Method::POST, &self.web.url, &headers, &body).await;
        let response = response.inspect_err(|error| {
            // A server that refuses us gets no further request, not even one that ends the session.
            if error.ends_access() {
                self.lock_protocol().session = None;
            }
        })?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND && had_session {
            return Err(self.lose_session());
        }
        if method == "initialize"
            && let Some(session) = response.headers().get(SESSION_HEADER)
        {
            self.lock_protocol().session = session.to_str().ok().map(str::to_owned);
        }
        match self.web.accept_answer(response).await? {
            AnswerBody::Json(body) => {
                let text = Arc::new(self.web.read_body(body).await?);
                self.route_text(&text, MessageSource::Request(pending.id));
            }
            AnswerBody::Events(body) => {
                self.follow_stream(pending, EventReader::new(body, self.web.max_bytes)).await?;
            }
            AnswerBody::Empty => {
                return Err(ClientError::new(
                    ErrorKind::BadResponse,
                    "the server accepted the request without answering it",
                ));
            }
        }
        match pending.take_answer() {
            Some(Err(error)) if had_session && is_session_error(&error) => Err(self.lose_session()),
            Some(answer) => answer,
            None => Err(ClientError::new(
                ErrorKind::BadResponse,
                format!("the server's answer (HTTP status {status}) is not for this request"),
            )),
        }
    }

    /// Reads the stream of a request until its answer is there. A stream that breaks off is taken up
    /// again where the server has said how.
    async fn follow_stream(
        self: &Arc<Self>,
        pending: &mut PendingAnswer<'_>,
        mut events: EventReader,
    ) -> Result<()> {
        let (mut last_id, mut delay) = (None, *RESUME_DELAY.start());
        for _ in 0..=MAX_RESUMPTIONS {
            let ended = loop {
                match events.next_event().await {
                    Ok(Some(event)) => {
                        last_id = event.id.or(last_id);
                        if let Some(retry_ms) = event.retry_ms {
                            delay = Duration::from_millis(retry_ms)
                                .clamp(*RESUME_DELAY.start(), *RESUME_DELAY.end());
                        }
                        if event.overlong.is_some() {
                            return Err(too_long(self.web.max_bytes));
                        }
                        if !event.data.is_empty() {
                            let source = MessageSource::Request(pending.id);
                            self.route_text(&Arc::new(event.data), source);
                        }
                        if pending.has_answer() {
                            return Ok(());
                        }
                    }
                    Ok(None) => break None,
                    Err(error) if error.kind() == ErrorKind::Unavailable => break Some(error),
                    Err(error) => return Err(error),
                }
            };
            // Streams of 2026-07-28 cannot be resumed, whatever ids their events have.
            let is_resumable = self.lock_protocol().era != Some(Era::Stateless);
            let Some(id) = last_id.as_ref().filter(|_| is_resumable) else {
                return Err(ended.unwrap_or_else(|| {
                    ClientError::new(
                        ErrorKind::Unavailable,
                        "the server ended the stream before it answered",
                    )
                    .with_interruption()
                }));
            };
            tokio::time::sleep(delay).await;
            let response = self.open_stream(Some(id)).await?;
            match self.web.accept_answer(response).await? {
                AnswerBody::Events(body) => events = EventReader::new(body, self.web.max_bytes),
                AnswerBody::Json(_) | AnswerBody::Empty => break,
            }
        }
        Err(ClientError::new(
            ErrorKind::Unavailable,
            "the server ended the stream before it answered",
        ))
    }

    /// Opens a stream with GET; after an event, where it had ended.
    async fn open_stream(&self, last_id: Option<&String>) -> Result<Response<Incoming>> {
        let mut headers = self.headers("", None);
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(Ok(value)) = last_id.map(|id| HeaderValue::from_str(id)) {
            headers.insert("last-event-id", value);
        }
        self.web.send(Method::GET, &self.web.url, &headers, &Bytes::new()).await
    }

    /// Handles the messages of a text.
    fn route_text(self: &Arc<Self>, text: &Arc<String>, source: MessageSource) {
        let Some(messages) = read_messages(text) else {
            return self.router.handle_bad_message("text that is not JSON", None, source);
        };
        for message in messages {
            // Never wait here: a server that asks without taking answers must not hold up the answer
            // of the call, and gets a few answers at a time only.
            if let Some((id, reply)) = self.router.route(message, source)
                && let Ok(permit) = Arc::clone(&self.replies).try_acquire_owned()
            {
                self.post_in_background(write_reply(&id, &reply), "", Some(permit));
            }
        }
    }

    /// Posts a message for whose fate no one waits. `permit` is held meanwhile.
    fn post_in_background(
        self: &Arc<Self>,
        message: Vec<u8>,
        method: &'static str,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        let shared = Arc::clone(self);
        self.tasks.spawn(async move {
            let posting = shared.post_message(message.into(), method);
            let _ = tokio::time::timeout(BACKGROUND_POST_TIMEOUT, posting).await;
            drop(permit);
        });
    }

    /// Forgets the session, which the server no longer knows. The request did not run.
    fn lose_session(&self) -> ClientError {
        self.lock_protocol().session = None;
        session_lost()
    }

    /// Posts a notification or an answer.
    async fn post_message(&self, body: Bytes, method: &str) -> Result<()> {
        let headers = self.headers(method, None);
        let response = self.web.send(Method::POST, &self.web.url, &headers, &body).await?;
        match response.status().is_success() {
            true => Ok(()),
            false if response.status() == StatusCode::NOT_FOUND => Err(session_lost()),
            false => Err(ClientError::new(
                ErrorKind::Unavailable,
                format!("the server answered with HTTP status {}", response.status()),
            )),
        }
    }

    /// Listens until the server says that it has nothing to listen to. Streams end now and then, so
    /// they are opened again, when the server says or with growing delays.
    async fn listen(
        self: &Arc<Self>,
        subscription: Option<&serde_json::Value>,
        opened: oneshot::Sender<()>,
    ) {
        let mut listener = ListenerState { opened: Some(opened), last_id: None, retry_ms: None };
        let mut delay = *REOPEN_DELAY.start();
        loop {
            let started = Instant::now();
            let is_refused = match subscription {
                Some(subscription) => {
                    self.listen_to_subscription(subscription, &mut listener).await
                }
                None => self.listen_to_session(&mut listener).await,
            };
            listener.opened = None;
            if is_refused {
                // A server that does not resume the stream may still open a new one.
                match listener.last_id.take() {
                    Some(_) => continue,
                    None => return,
                }
            }
            delay = match (listener.retry_ms.take(), started.elapsed() > *REOPEN_DELAY.end()) {
                (Some(retry_ms), _) => Duration::from_millis(retry_ms),
                (None, true) => *REOPEN_DELAY.start(),
                (None, false) => delay * 2,
            };
            delay = delay.clamp(*REOPEN_DELAY.start(), *REOPEN_DELAY.end());
            tokio::time::sleep(delay).await;
            // What happened meanwhile is not known.
            self.router.note_list_change();
        }
    }

    /// Listens on the stream that belongs to no request. Returns whether the server refuses it: many
    /// have none (405).
    async fn listen_to_session(self: &Arc<Self>, listener: &mut ListenerState) -> bool {
        let response = self.open_stream(listener.last_id.as_ref()).await;
        self.follow_listener(response, MessageSource::Listener, listener).await
    }

    /// Listens by a request of 2026-07-28. Returns whether the server refuses it.
    async fn listen_to_subscription(
        self: &Arc<Self>,
        subscription: &serde_json::Value,
        listener: &mut ListenerState,
    ) -> bool {
        let method = "subscriptions/listen";
        let Ok(mut pending) = self.router.open_subscription() else { return true };
        let Ok(body) = write_message(Some(pending.id), method, Some(subscription)) else {
            return true;
        };
        let headers = self.headers(method, None);
        let response = self.web.send(Method::POST, &self.web.url, &headers, &body.into()).await;
        let source = MessageSource::Request(pending.id);
        let is_refused = self.follow_listener(response, source, listener).await;
        // Streams of 2026-07-28 are not resumed.
        listener.last_id = None;
        is_refused || matches!(pending.take_answer(), Some(Err(_)))
    }

    /// Follows the stream of a listener to its end. Returns whether there was none.
    async fn follow_listener(
        self: &Arc<Self>,
        response: Result<Response<Incoming>>,
        source: MessageSource,
        listener: &mut ListenerState,
    ) -> bool {
        let answer = match response {
            Ok(response) => self.web.accept_answer(response).await,
            Err(error) => Err(error),
        };
        listener.opened = None;
        let mut events = match answer {
            Ok(AnswerBody::Events(body)) => EventReader::new(body, self.web.max_bytes),
            Ok(AnswerBody::Json(_) | AnswerBody::Empty) => return true,
            // A network that fails for a moment is no refusal.
            Err(error) => return error.is_http_status() || error.kind() != ErrorKind::Unavailable,
        };
        while let Ok(Some(event)) = events.next_event().await {
            listener.last_id = event.id.or(listener.last_id.take());
            listener.retry_ms = event.retry_ms.or(listener.retry_ms);
            if !event.data.is_empty() {
                self.route_text(&Arc::new(event.data), source);
            }
        }
        false
    }

    async fn end_session(&self) {
        let headers = self.headers("", None);
        if headers.contains_key(SESSION_HEADER) {
            // Servers need not support it.
            let _ = self.web.send(Method::DELETE, &self.web.url, &headers, &Bytes::new()).await;
        }
    }
}

/// Returns the error for a session that the server no longer knows. The request did not run.
fn session_lost() -> ClientError {
    ClientError::new(ErrorKind::Unavailable, "the server no longer knows our session")
        .with_session_lost()
}

/// Some servers report a lost session as an error of the protocol.
fn is_session_error(error: &ClientError) -> bool {
    error.rpc().is_some_and(|rpc| {
        matches!(rpc.code, -32600 | -32001 | -32000)
            && rpc.message.to_ascii_lowercase().contains("session")
    })
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::super::scripted::{ScriptedAnswer, serve_answers};
    use super::*;
    use crate::limits::Limits;

    async fn connect(
        answers: Vec<ScriptedAnswer>,
    ) -> (HttpConnection, tokio::task::JoinHandle<Vec<String>>) {
        let (transport, server) = serve_answers(answers).await;
        let limits = Limits::default();
        let web = WebClient::new("test", &transport, None, &limits, TaskTracker::new()).unwrap();
        let router = Router::new(&limits, Vec::new(), watch::channel(0).0);
        (HttpConnection::new(web, Arc::new(router)), server)
    }

    fn events(body: &str) -> ScriptedAnswer {
        ScriptedAnswer { status: 200, media_type: "text/event-stream", body: body.to_owned() }
    }

    #[tokio::test]
    async fn the_stream_outside_requests_is_opened_again_where_it_ended() {
        let change = r#"data: {"method":"notifications/tools/list_changed"}"#;
        let change = events(&format!("id: 7\nretry: 1\n{change}\n\n"));
        let refusal = ScriptedAnswer { status: 405, media_type: "text/plain", body: String::new() };
        let (connection, server) = connect(vec![change, refusal.clone(), refusal]).await;
        connection.listen(None).await;
        let requests = server.await.unwrap();
        let resumed: Vec<bool> =
            requests.iter().map(|request| request.contains("last-event-id: 7")).collect();
        assert_eq!(resumed, [false, true, false]);
        assert!(requests.iter().all(|request| request.starts_with("get /mcp")));
        // The server refuses a new stream: the task ends.
        connection.shared.tasks.wait().await;
    }

    #[tokio::test]
    async fn a_stream_of_2026_is_not_resumed() {
        let (connection, server) = connect(vec![events("id: 7\ndata:\n\n")]).await;
        connection.set_protocol(Era::Stateless, "2026-07-28");
        let answer = connection.request("tools/list", None, |_| serde_json::json!({}), None).await;
        assert!(answer.unwrap_err().message().contains("ended the stream"));
        assert!(server.await.unwrap()[0].starts_with("post /mcp"));
    }
}
