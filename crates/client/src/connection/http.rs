//! Streamable HTTP: every request is a POST, and its answer a JSON body or an event stream.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde::Serialize;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::events::EventReader;
use super::inbox::CallInbox;
use super::pipe::closed_by_us;
use super::router::{PendingAnswer, Router};
use super::web::{AnswerBody, WebClient};
use crate::error::{ClientError, ErrorKind, Result};
use crate::handshake::Era;
use crate::message::{RawJson, Reply, read_messages, write_message, write_reply};

const SESSION_HEADER: &str = "mcp-session-id";
const VERSION_HEADER: &str = "mcp-protocol-version";
/// Time for telling a server that a call is cancelled or a session over.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);
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

/// Connection over Streamable HTTP.
pub(crate) struct HttpConnection {
    shared: Arc<HttpShared>,
    tasks: TaskTracker,
    closed: CancellationToken,
}

struct HttpShared {
    web: WebClient,
    router: Arc<Router>,
    protocol: Mutex<ProtocolState>,
}

#[derive(Default, Clone)]
struct ProtocolState {
    session: Option<String>,
    era: Option<Era>,
    version: Option<String>,
}

impl HttpConnection {
    pub(crate) fn new(web: WebClient, router: Arc<Router>) -> HttpConnection {
        let shared = Arc::new(HttpShared { web, router, protocol: Mutex::default() });
        let connection =
            HttpConnection { shared, tasks: TaskTracker::new(), closed: CancellationToken::new() };
        connection.tasks.close();
        connection
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
            answer = self.shared.exchange(&mut pending, method, mirrored, message.into()) => answer,
            () = self.closed.cancelled() => Err(closed_by_us()),
        };
        // On 2026-07-28 the closed stream is the cancellation; what has ended needs none.
        guard.is_armed = false;
        answer
    }

    /// Sends a notification.
    pub(crate) async fn notify(&self, method: &str, params: Option<impl Serialize>) -> Result<()> {
        self.shared.post_message(write_message(None, method, params)?.into(), method).await
    }

    /// Answers a request of the server.
    pub(crate) async fn reply(&self, id: &RawJson, reply: &Reply) -> Result<()> {
        self.shared.post_message(write_reply(id, reply).into(), "").await
    }

    /// Listens for what the server says outside any call, as long as the connection lasts. Returns
    /// when the stream is open, so that a question during the first call is not lost.
    pub(crate) async fn listen(&self) {
        let (shared, closed) = (Arc::clone(&self.shared), self.closed.clone());
        let (opened, is_open) = oneshot::channel();
        self.tasks.spawn(async move {
            closed.run_until_cancelled(shared.listen(opened)).await;
        });
        // Without an answer in time the stream opens in the background.
        let _ = tokio::time::timeout(LISTEN_GRACE, is_open).await;
    }

    /// Ends the session and waits until nothing of the connection is left.
    pub(crate) async fn close(&self) {
        self.shared.router.close(closed_by_us());
        self.closed.cancel();
        self.tasks.wait().await;
        // A server that does not answer must not keep us.
        let _ = tokio::time::timeout(FAREWELL_TIMEOUT, self.shared.end_session()).await;
    }
}

impl Drop for HttpConnection {
    fn drop(&mut self) {
        self.closed.cancel();
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
        let (shared, id) = (Arc::clone(shared), self.id);
        self.connection.tasks.spawn(async move {
            let method = "notifications/cancelled";
            let params = serde_json::json!({"requestId": id});
            if let Ok(message) = write_message(None, method, Some(params)) {
                let sending = shared.post_message(message.into(), method);
                // No one waits for this any more.
                let _ = tokio::time::timeout(FAREWELL_TIMEOUT, sending).await;
            }
        });
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
        if is_discovery || protocol.era == Some(Era::Stateless) {
            set("mcp-method", method);
            headers.extend(mirrored.cloned().unwrap_or_default());
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers
    }

    /// Posts a request and follows its answer to the end.
    async fn exchange(
        &self,
        pending: &mut PendingAnswer<'_>,
        method: &str,
        mirrored: Option<&HeaderMap>,
        body: Bytes,
    ) -> Result<RawJson> {
        let headers = self.headers(method, mirrored);
        let had_session = headers.contains_key(SESSION_HEADER);
        let response = self.web.send(Method::POST, &self.web.url, &headers, &body).await?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND && had_session {
            return Err(session_lost());
        }
        if method == "initialize"
            && let Some(session) = response.headers().get(SESSION_HEADER)
        {
            self.lock_protocol().session = session.to_str().ok().map(str::to_owned);
        }
        match self.web.accept_answer(response).await? {
            AnswerBody::Json(body) => {
                let text = Arc::new(self.web.read_body(body).await?);
                self.route_text(&text, pending.id).await;
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
            Some(Err(error)) if had_session && is_session_error(&error) => Err(session_lost()),
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
        &self,
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
                        if !event.data.is_empty() {
                            self.route_text(&Arc::new(event.data), pending.id).await;
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
                }));
            };
            tokio::time::sleep(delay).await;
            match self.open_stream(Some(id)).await? {
                Some(resumed) => events = resumed,
                None => break,
            }
        }
        Err(ClientError::new(
            ErrorKind::Unavailable,
            "the server ended the stream before it answered",
        ))
    }

    /// Handles the messages of a text that came on the stream of a request.
    async fn route_text(&self, text: &Arc<String>, stream: u64) {
        let Some(messages) = read_messages(text) else {
            return self.router.answer_request(
                stream,
                Err(ClientError::new(ErrorKind::BadResponse, "the server's answer is not JSON")),
            );
        };
        for message in messages {
            if let Some((id, reply)) = self.router.route(message, Some(stream)) {
                // A server that does not take the answer has to live without it.
                let _ = self.post_message(write_reply(&id, &reply).into(), "").await;
            }
        }
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

    /// Opens a stream with GET; after an event, where it had ended. `None` if it is no event stream.
    async fn open_stream(&self, last_id: Option<&String>) -> Result<Option<EventReader>> {
        let mut headers = self.headers("", None);
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(Ok(value)) = last_id.map(|id| HeaderValue::from_str(id)) {
            headers.insert("last-event-id", value);
        }
        let response = self.web.send(Method::GET, &self.web.url, &headers, &Bytes::new()).await?;
        match self.web.accept_answer(response).await? {
            AnswerBody::Events(body) => Ok(Some(EventReader::new(body, self.web.max_bytes))),
            AnswerBody::Json(_) | AnswerBody::Empty => Ok(None),
        }
    }

    /// Listens on the stream that belongs to no request. Many servers have none (405). Servers end it
    /// after a while, so it is opened again.
    async fn listen(&self, opened: oneshot::Sender<()>) {
        let (mut opened, mut last_id, mut delay) = (Some(opened), None, *REOPEN_DELAY.start());
        loop {
            let (started, mut retry_ms) = (Instant::now(), None);
            let stream = self.open_stream(last_id.as_ref()).await;
            drop(opened.take());
            let is_refused = match stream {
                Ok(Some(mut events)) => {
                    while let Ok(Some(event)) = events.next_event().await {
                        last_id = event.id.or(last_id);
                        retry_ms = event.retry_ms.or(retry_ms);
                        self.route_event(&Arc::new(event.data)).await;
                    }
                    false
                }
                Ok(None) => true,
                Err(error) => error.is_http_status() || error.kind() != ErrorKind::Unavailable,
            };
            if is_refused {
                // A server that does not resume the stream may still open a new one.
                match last_id.take() {
                    Some(_) => continue,
                    None => return,
                }
            }
            delay = match (retry_ms, started.elapsed() > *REOPEN_DELAY.end()) {
                (Some(retry_ms), _) => Duration::from_millis(retry_ms),
                (None, true) => *REOPEN_DELAY.start(),
                (None, false) => delay * 2,
            };
            delay = delay.clamp(*REOPEN_DELAY.start(), *REOPEN_DELAY.end());
            tokio::time::sleep(delay).await;
        }
    }

    /// Handles the messages of an event that came outside any request.
    async fn route_event(&self, text: &Arc<String>) {
        for message in read_messages(text).into_iter().flatten() {
            if let Some((id, reply)) = self.router.route(message, None) {
                // A server that does not take the answer has to live without it.
                let _ = self.post_message(write_reply(&id, &reply).into(), "").await;
            }
        }
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
    use super::super::scripted::{ScriptedAnswer, serve_answers};
    use super::*;
    use crate::limits::Limits;

    async fn connect(
        answers: Vec<ScriptedAnswer>,
    ) -> (HttpConnection, tokio::task::JoinHandle<Vec<String>>) {
        let (transport, server) = serve_answers(answers).await;
        let limits = Limits::default();
        let web = WebClient::new("test", &transport, None, &limits).unwrap();
        (HttpConnection::new(web, Arc::new(Router::new(&limits, Vec::new()))), server)
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
        connection.listen().await;
        let requests = server.await.unwrap();
        let resumed: Vec<bool> =
            requests.iter().map(|request| request.contains("last-event-id: 7")).collect();
        assert_eq!(resumed, [false, true, false]);
        assert!(requests.iter().all(|request| request.starts_with("get /mcp")));
        assert_eq!(*connection.shared.router.list_changes().borrow(), 1);
        // The server refuses a new stream: the task ends.
        connection.tasks.wait().await;
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
