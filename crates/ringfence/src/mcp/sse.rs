//! `GET /mcp/sse`: the HTTP+SSE transport of 2024-11-05, for clients that know nothing newer. The
//! stream is the session: its first event says where to post, and when the stream closes the
//! session ends.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::Extension;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{FromRequest, Query, Request};
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::{RoleServer, serve_directly_with_ct};
use rmcp::transport::Transport;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::dispatch::ProtocolHandler;
use super::envelope::{self, EnvelopeVerdict};
use super::http::limits::{LimitedResource, PrincipalLimits};
use super::http::{AuthenticatedCaller, BODY_TIMEOUT, hold_guards, json_error, slow_body_error};
use super::in_flight::InFlightRequests;
use super::server::{ClientConnection, Server};
use super::stdio::{parse_message, serialize_answer, too_long_error};
use crate::base::IgnorePoison;
use crate::base::ids::{random_bytes, to_hex};
use crate::base::{CancelCause, Error, Kind};
use crate::session::Principal;

/// Open streams, by their session id.
#[derive(Default)]
pub struct SseStreams {
    open: Mutex<HashMap<String, SseStream>>,
}

#[derive(Clone)]
struct SseStream {
    principal: Principal,
    connection: ClientConnection,
    inbox: mpsc::Sender<ClientJsonRpcMessage>,
    outbox: mpsc::Sender<Vec<u8>>,
    /// Largest message, in bytes.
    max_message_bytes: usize,
    in_flight: Arc<InFlightRequests>,
}

impl SseStreams {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, SseStream>> {
        self.open.lock().ignore_poison()
    }
}

/// Guard that ends the session with its stream.
struct StreamGuard {
    streams: Arc<SseStreams>,
    id: String,
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        if let Some(stream) = self.streams.lock().remove(&self.id) {
            stream.connection.session().cancel.cancel(CancelCause::Disconnect);
        }
    }
}

struct SseTransport {
    inbox: mpsc::Receiver<ClientJsonRpcMessage>,
    outbox: mpsc::Sender<Vec<u8>>,
    in_flight: Arc<InFlightRequests>,
}

impl Transport<RoleServer> for SseTransport {
    type Error = std::io::Error;

    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = std::io::Result<()>> + Send + 'static {
        let outbox = self.outbox.clone();
        self.in_flight.release_answered(&message);
        let unread_guard = self.in_flight.count_unread();
        async move {
            let bytes = serialize_answer(&message)?;
            let result =
                outbox.send(bytes).await.map_err(|_| std::io::ErrorKind::BrokenPipe.into());
            drop(unread_guard);
            result
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        tokio::select! {
            message = self.inbox.recv() => message,
            () = self.outbox.closed() => None,
        }
    }

    async fn close(&mut self) -> std::io::Result<()> {
        self.inbox.close();
        Ok(())
    }
}

/// Opens a stream, and the session that ends with it.
pub async fn open_stream(
    Extension(server): Extension<Arc<Server>>,
    Extension(streams): Extension<Arc<SseStreams>>,
    Extension(limits): Extension<Arc<PrincipalLimits>>,
    Extension(caller): Extension<AuthenticatedCaller>,
) -> Response {
    let resource_guard = match limits.acquire_resource(&caller.principal, LimitedResource::Stream) {
        Ok(resource_guard) => resource_guard,
        Err(error) => return json_error(None, &error),
    };
    let connection = match server.connect_client(caller.principal.clone(), "sse") {
        Ok(connection) => connection,
        Err(error) => return json_error(None, &error),
    };
    let id = to_hex(&random_bytes::<16>());
    let (to_engine, inbox) = mpsc::channel(16);
    let (outbox, from_engine) = mpsc::channel(16);
    let max_message_bytes = server.config.limits.message_bytes;
    let in_flight = Arc::<InFlightRequests>::default();
    let stream = SseStream {
        principal: caller.principal,
        connection,
        inbox: to_engine,
        outbox: outbox.clone(),
        max_message_bytes,
        in_flight: Arc::clone(&in_flight),
    };
    streams.lock().insert(id.clone(), stream);
    let close_guard = StreamGuard { streams, id: id.clone() };
    let running = serve_directly_with_ct(
        ProtocolHandler { server: Arc::clone(&server) },
        SseTransport { inbox, outbox, in_flight },
        None,
        server.engine_shutdown.child_token(),
    );
    tokio::spawn(running.waiting());
    let response = Sse::new(stream_events(id, from_engine, close_guard, server))
        .keep_alive(KeepAlive::default());
    hold_guards(response.into_response(), resource_guard)
}

fn stream_events(
    id: String,
    outbox: mpsc::Receiver<Vec<u8>>,
    close_guard: StreamGuard,
    server: Arc<Server>,
) -> impl Stream<Item = Result<Event, Infallible>> {
    let endpoint_event =
        Event::default().event("endpoint").data(format!("/mcp/message?session_id={id}"));
    let messages =
        futures::stream::unfold((outbox, close_guard), |(mut outbox, close_guard)| async move {
            let bytes = outbox.recv().await?;
            // Our own serializer made these bytes, so they are UTF-8 and hold no line break.
            let text = String::from_utf8_lossy(&bytes).into_owned();
            Some((Ok(Event::default().event("message").data(text)), (outbox, close_guard)))
        });
    let shutdown = server.engine_shutdown.clone();
    futures::stream::iter([Ok(endpoint_event)])
        .chain(messages)
        .take_until(shutdown.cancelled_owned())
}

/// Query of a posted message, which names its stream.
#[derive(Deserialize)]
pub struct StreamQuery {
    session_id: String,
}

/// Returns the error for a body that could not be read.
fn body_error(rejection: &BytesRejection, limit: usize) -> Error {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        return too_long_error(limit);
    }
    Error::new(Kind::InvalidRequest, "the body did not arrive whole")
        .with_hint("Send the message again.")
}

/// Receives a message for an open stream. Answers, errors included, go to the stream: that is where
/// clients of this transport expect them.
pub async fn post_message(
    Extension(streams): Extension<Arc<SseStreams>>,
    Extension(caller): Extension<AuthenticatedCaller>,
    query: Result<Query<StreamQuery>, QueryRejection>,
    request: Request,
) -> Response {
    let Ok(Query(query)) = query else {
        let error = Error::new(Kind::InvalidRequest, "there is no session_id")
            .with_hint("Open `GET /mcp/sse` and post to the address in its first event.");
        return json_error(None, &error);
    };
    let found = streams.lock().get(&query.session_id).cloned();
    // A stream of another principal must look like a missing one.
    let Some(stream) = found.filter(|stream| stream.principal == caller.principal) else {
        let error = Error::new(Kind::NotFound, "there is no such stream")
            .with_reason("unknown_session")
            .with_hint("Open `GET /mcp/sse` and post to the address in its first event.");
        return json_error(None, &error);
    };
    let body = match tokio::time::timeout(BODY_TIMEOUT, Bytes::from_request(request, &())).await {
        Ok(Ok(body)) => body,
        Ok(Err(rejection)) => {
            return json_error(None, &body_error(&rejection, stream.max_message_bytes));
        }
        Err(_) => return json_error(None, &slow_body_error()),
    };
    let delivered = match envelope::judge_message(&body) {
        EnvelopeVerdict::Ignore => return StatusCode::ACCEPTED.into_response(),
        EnvelopeVerdict::Refuse(_, refusal) => {
            stream.outbox.send(refusal.to_string().into_bytes()).await.is_ok()
        }
        EnvelopeVerdict::Pass(message) => {
            match parse_message(message, &stream.connection, &stream.in_flight) {
                Ok(message) => stream.inbox.send(message).await.is_ok(),
                Err(refusal) => stream.outbox.send(refusal.to_string().into_bytes()).await.is_ok(),
            }
        }
    };
    if delivered {
        StatusCode::ACCEPTED.into_response()
    } else {
        json_error(
            None,
            &Error::new(Kind::NotFound, "the stream has just been closed")
                .with_reason("unknown_session"),
        )
    }
}
