//! The SSE transport of 2024: one event stream for everything that the server says, and a POST for
//! each of our messages.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;

use super::events::{EventReader, OverlongData};
use super::inbox::CallInbox;
use super::router::{MessageSource, Router};
use super::web::{AnswerBody, BACKGROUND_POST_TIMEOUT, MAX_OWN_REPLIES, WebClient};
use crate::error::{ClientError, ErrorKind, Result, closed_by_us};
use crate::message::{RawJson, Reply, read_messages, write_message, write_reply};

/// Connection over the SSE transport.
pub(crate) struct SseConnection {
    shared: Arc<SseShared>,
}

struct SseShared {
    web: WebClient,
    router: Arc<Router>,
    /// Address for our messages.
    endpoint: Url,
    tasks: TaskTracker,
    closed: CancellationToken,
    /// Bounds the answers that are being sent by the connection itself.
    replies: Arc<Semaphore>,
}

impl SseConnection {
    /// Opens the stream and waits until the server has said where our messages go.
    pub(crate) async fn open(web: WebClient, router: Arc<Router>) -> Result<SseConnection> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let response = web.send(Method::GET, &web.url, &headers, &Bytes::new()).await?;
        let AnswerBody::Events(body) = web.accept_answer(response).await? else {
            return Err(ClientError::new(
                ErrorKind::BadResponse,
                "the server has no event stream at this address",
            )
            .with_hint("Use the transport `http` for a server with Streamable HTTP."));
        };
        let mut events = EventReader::new_shared(body, web.max_bytes);
        let endpoint = loop {
            match events.next_event().await? {
                Some(event) if event.event == "endpoint" => break event.data,
                Some(_) => {}
                None => {
                    return Err(ClientError::new(
                        ErrorKind::BadResponse,
                        "the server ended the stream before it named its endpoint",
                    ));
                }
            }
        };
        let endpoint = resolve_endpoint(&web.url, &endpoint)?;
        let shared = Arc::new(SseShared {
            web,
            router,
            endpoint,
            tasks: TaskTracker::new(),
            closed: CancellationToken::new(),
            replies: Arc::new(Semaphore::new(MAX_OWN_REPLIES)),
        });
        let reader = Arc::clone(&shared);
        shared.tasks.spawn(async move {
            let reading = reader.read_events(events);
            if let Some(error) = reader.closed.run_until_cancelled(reading).await {
                reader.router.close(error);
            }
        });
        shared.tasks.close();
        Ok(SseConnection { shared })
    }

    /// Sends a request and waits for its answer. Dropping the future tells the server to stop.
    pub(crate) async fn request(
        &self,
        method: &str,
        params: impl FnOnce(u64) -> serde_json::Value,
        inbox: Option<Arc<CallInbox>>,
    ) -> Result<RawJson> {
        let mut pending = self.shared.router.open_request(inbox)?;
        let message = write_message(Some(pending.id), method, Some(params(pending.id)))?;
        let mut guard =
            SseCancelGuard { connection: self, id: pending.id, is_armed: method != "initialize" };
        let posting = self.shared.closed.run_until_cancelled(self.shared.post(message.into()));
        let answer = match posting.await {
            Some(Ok(())) => pending.wait().await,
            Some(Err(error)) => Err(error),
            None => Err(closed_by_us()),
        };
        guard.is_armed = false;
        answer
    }

    /// Sends a message for whose fate no one waits.
    pub(crate) fn send_in_background(&self, message: Vec<u8>) {
        if tokio::runtime::Handle::try_current().is_ok() {
            self.shared.post_in_background(message, None);
        }
    }

    /// Sends a notification.
    pub(crate) async fn notify(&self, method: &str, params: Option<impl Serialize>) -> Result<()> {
        self.shared.post(write_message(None, method, params)?.into()).await
    }

    /// Answers a request of the server.
    pub(crate) async fn reply(&self, id: &RawJson, reply: &Reply) -> Result<()> {
        self.shared.post(write_reply(id, reply).into()).await
    }

    /// Closes the stream and waits until nothing of the connection is left.
    pub(crate) async fn close(&self) {
        self.shared.router.close(closed_by_us());
        self.shared.closed.cancel();
        self.shared.tasks.wait().await;
        self.shared.web.close().await;
    }
}

impl Drop for SseConnection {
    fn drop(&mut self) {
        self.shared.closed.cancel();
    }
}

/// Sends `notifications/cancelled` if a request ends without an answer.
struct SseCancelGuard<'a> {
    connection: &'a SseConnection,
    id: u64,
    is_armed: bool,
}

impl Drop for SseCancelGuard<'_> {
    fn drop(&mut self) {
        if !self.is_armed || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let params = serde_json::json!({"requestId": self.id});
        if let Ok(message) = write_message(None, "notifications/cancelled", Some(params)) {
            self.connection.shared.post_in_background(message, None);
        }
    }
}

impl SseShared {
    /// Posts a message for whose fate no one waits. `permit` is held meanwhile.
    fn post_in_background(
        self: &Arc<Self>,
        message: Vec<u8>,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        let shared = Arc::clone(self);
        self.tasks.spawn(async move {
            let posting = shared.post(message.into());
            let posting = tokio::time::timeout(BACKGROUND_POST_TIMEOUT, posting);
            let _ = shared.closed.run_until_cancelled(posting).await;
            drop(permit);
        });
    }

    async fn post(&self, body: Bytes) -> Result<()> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let response = self.web.send(Method::POST, &self.endpoint, &headers, &body).await?;
        match response.status().is_success() {
            true => Ok(()),
            // A session that the server no longer knows; its stream is of no more use.
            false if response.status() == http::StatusCode::NOT_FOUND => Err(ClientError::new(
                ErrorKind::Unavailable,
                "the server no longer knows our session",
            )
            .with_session_lost()),
            false => Err(ClientError::new(
                ErrorKind::Unavailable,
                format!("the server answered with HTTP status {}", response.status()),
            )),
        }
    }

    /// Reads until the stream ends, and returns why it did.
    async fn read_events(self: &Arc<Self>, mut events: EventReader) -> ClientError {
        loop {
            let event = match events.next_event().await {
                Ok(Some(event)) => event,
                Ok(None) => {
                    return ClientError::new(
                        ErrorKind::Unavailable,
                        "the server ended its event stream",
                    );
                }
                // Nothing after it can be read.
                Err(error) => return error,
            };
            if let Some(OverlongData { answered_id }) = event.overlong {
                self.router.handle_long_message(answered_id, self.web.max_bytes);
                continue;
            }
            if event.data.is_empty() || !matches!(event.event.as_str(), "" | "message") {
                continue;
            }
            let Some(messages) = read_messages(&Arc::new(event.data)) else {
                let description = "an event that is not JSON";
                self.router.handle_bad_message(description, None, MessageSource::Shared);
                continue;
            };
            for message in messages {
                // Never wait here: a server that asks without taking answers must not stop the
                // reader, and gets a few answers at a time only.
                if let Some((id, reply)) = self.router.route(message, MessageSource::Shared)
                    && let Ok(permit) = Arc::clone(&self.replies).try_acquire_owned()
                {
                    self.post_in_background(write_reply(&id, &reply), Some(permit));
                }
            }
            if let Some(error) = self.router.closed_error() {
                return error;
            }
        }
    }
}

/// Returns the address for our messages. It must be at the server's own origin: another one would
/// get our headers.
fn resolve_endpoint(base: &Url, endpoint: &str) -> Result<Url> {
    base.join(endpoint.trim())
        .ok()
        .filter(|url| url.origin() == base.origin() && url.username().is_empty())
        .ok_or_else(|| {
            ClientError::new(
                ErrorKind::BadResponse,
                "the server names an endpoint that is not at its own address",
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_at_the_servers_own_origin() {
        let base = Url::parse("http://localhost:4000/a/sse").unwrap();
        let resolve = |endpoint: &str| resolve_endpoint(&base, endpoint).map(|url| url.to_string());
        assert_eq!(resolve("/messages?id=1").unwrap(), "http://localhost:4000/messages?id=1");
        assert_eq!(resolve("messages").unwrap(), "http://localhost:4000/a/messages");
        for endpoint in ["http://elsewhere/", "//elsewhere/x", "https://localhost:4000/", "file:/x"]
        {
            assert!(resolve(endpoint).is_err(), "{endpoint}");
        }
    }
}
