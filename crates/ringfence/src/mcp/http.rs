//! HTTP transport: `POST /mcp` (Streamable HTTP with its GET stream and DELETE), `GET /mcp/sse`,
//! and the checks before them on every route: Host, Origin, token, owner of the connection,
//! envelope, session.

mod access;
mod connection_activity;
mod direct_call;
mod guarded_body;
mod json_answer;
pub(super) mod limits;
mod listener;
mod priming_event;
mod sessions;
mod timed_stream;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Extension, Router};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{
    SessionManager, StreamableHttpServerConfig, StreamableHttpService,
};
use serde_json::{Map, Value, json};

use self::direct_call::try_direct_call;
pub(super) use self::guarded_body::{hold_guards, hold_guards_until};
use self::json_answer::prefer_json;
use self::limits::{LimitedResource, PrincipalLimits};
pub use self::listener::serve_http;
use self::priming_event::hide_priming_event;
use self::sessions::HttpSessions;
use super::auth::TokenVerifier;
use super::dispatch::{ConfigChecked, ProtocolHandler};
use super::envelope::{self, EnvelopeVerdict};
use super::in_flight::duplicate_id_error;
use super::methods::mcp_capabilities;
use super::server::ClientConnection;
use super::sse::{self, SseStreams};
use super::stdio::too_long_error;
use super::{Server, codex, codex_legacy, meta, version};
use crate::base::IgnorePoison;
use crate::base::{CancelCause, Error, Kind, Result};
use crate::session::Principal;
use access::{authenticate_request, check_host_and_origin, serve_metadata};

const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// Time limit for a body to arrive.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// A 2025 session that is unused for this long is ended.
const SESSION_IDLE_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Sender of an HTTP request that has been authenticated.
#[derive(Clone)]
pub struct AuthenticatedCaller {
    pub principal: Principal,
}

/// The HTTP side of a server.
pub struct HttpServer {
    pub(super) server: Arc<Server>,
    pub(super) verifier: Option<TokenVerifier>,
    engine: StreamableHttpService<ProtocolHandler, LocalSessionManager>,
    manager: Arc<LocalSessionManager>,
    sessions: Arc<HttpSessions>,
    pub(super) limits: Arc<PrincipalLimits>,
    /// Sessions for 2026-07-28 requests without a handle, one per principal.
    ambient_connections: Mutex<HashMap<Principal, ClientConnection>>,
}

fn build_router(app: Arc<HttpServer>) -> Router {
    Router::new()
        .route("/mcp", any(handle_mcp))
        .route("/mcp/sse", get(sse::open_stream))
        .route("/mcp/message", post(sse::post_message))
        .method_not_allowed_fallback(|| async {
            let error = Error::new(Kind::MethodNotFound, "method not allowed on this path")
                .with_reason("http_method")
                .with_hint(
                    "Use POST /mcp; or GET /mcp/sse and POST to the address in its first event.",
                );
            json_error(None, &error)
        })
        .layer(axum::extract::DefaultBodyLimit::max(app.server.config.limits.message_bytes))
        .layer(Extension(Arc::clone(&app.server)))
        .layer(Extension(Arc::<SseStreams>::default()))
        .layer(Extension(Arc::clone(&app.limits)))
        .layer(from_fn_with_state(Arc::clone(&app), authenticate_request))
        .route("/.well-known/oauth-protected-resource", get(serve_metadata))
        .route("/.well-known/oauth-protected-resource/{*resource}", get(serve_metadata))
        .fallback(|| async {
            json_error(
                None,
                &Error::new(Kind::NotFound, "nothing is served at this path")
                    .with_hint("The endpoint is POST /mcp."),
            )
        })
        .layer(from_fn_with_state(Arc::clone(&app), check_host_and_origin))
        .with_state(app)
}

impl HttpServer {
    /// Creates the HTTP side of a server. Fails if the key for tokens cannot be used.
    pub fn new(server: Arc<Server>) -> Result<Arc<Self>> {
        let mut manager = LocalSessionManager::default();
        // The engine would end a silent session in mid-call; we end idle sessions only.
        manager.session_config.keep_alive = None;
        let manager = Arc::new(manager);
        let handler = ProtocolHandler { server: Arc::clone(&server) };
        let config = StreamableHttpServerConfig::default()
            .with_cancellation_token(server.engine_shutdown.child_token())
            .with_max_request_body_bytes(server.config.limits.message_bytes)
            // Applies to 2026-07-28 only; `json_answer` does the same for 2025 sessions.
            .with_json_response(true)
            // Host and Origin have been checked before, on every route.
            .disable_allowed_hosts();
        Ok(Arc::new(HttpServer {
            verifier: server.config.auth.as_ref().map(TokenVerifier::new).transpose()?,
            engine: StreamableHttpService::new(
                move || Ok(handler.clone()),
                Arc::clone(&manager),
                config,
            ),
            manager,
            sessions: Arc::default(),
            limits: Arc::default(),
            ambient_connections: Mutex::default(),
            server,
        }))
    }

    fn ambient_connection(&self, principal: &Principal) -> Result<ClientConnection> {
        let mut ambient = self.ambient_connections.lock().ignore_poison();
        if let Some(connection) = ambient.get(principal) {
            return Ok(connection.clone());
        }
        let mut connection = self.server.connect_unlisted(principal.clone(), "http")?;
        connection.persistent = false;
        ambient.insert(principal.clone(), connection.clone());
        Ok(connection)
    }

    /// Returns whether nothing is running in a session.
    fn is_session_idle(&self, connection: &ClientConnection) -> bool {
        self.server.is_session_idle(&connection.session().id)
    }

    /// Makes the engine forget sessions that have ended.
    async fn forget_sessions(&self, ids: impl IntoIterator<Item = String>) {
        for id in ids {
            if let Err(error) = self.manager.close_session(&id.into()).await {
                tracing::warn!("cannot end an idle session: {error}");
            }
        }
    }
}

/// Ends sessions that have been unused for long and in which nothing is running, until shutdown.
async fn end_idle_sessions(app: Arc<HttpServer>) {
    let mut interval = tokio::time::interval(Duration::from_secs(60));
    loop {
        tokio::select! {
            _ = interval.tick() => {}
            _ = app.server.shutdown.cancelled() => return,
        }
        app.server.end_idle_sessions();
        let ended_ids = app
            .sessions
            .end_idle_sessions(SESSION_IDLE_LIMIT, |connection| app.is_session_idle(connection));
        app.forget_sessions(ended_ids).await;
    }
}

/// Returns an error as an HTTP response: the status of its kind, with a JSON-RPC body.
pub fn json_error(id: Option<Value>, error: &Error) -> Response {
    // HTTP has a status of its own for some of our reasons.
    let status = match error.reason_name() {
        Some("not_acceptable") => 406,
        Some("media_type") => 415,
        Some("http_method") => 405,
        _ => error.kind().table_row().http,
    };
    let mut response = json_response(status, &envelope::refusal_message(id, error));
    if status == 405 {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, POST, DELETE"));
    }
    response
}

pub(super) fn json_response(status: u16, body: &Value) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn handle_mcp(
    State(app): State<Arc<HttpServer>>,
    Extension(caller): Extension<AuthenticatedCaller>,
    request: Request,
) -> Response {
    let result = match *request.method() {
        Method::POST => handle_post(&app, &caller, request).await,
        Method::GET | Method::DELETE => handle_session_request(&app, &caller, request).await,
        _ => Err((
            None,
            Error::new(Kind::MethodNotFound, "this HTTP method is not allowed; use POST")
                .with_reason("http_method")
                .with_hint("GET and DELETE are only for sessions of 2025 protocol versions."),
        )),
    };
    result.unwrap_or_else(|(id, error)| json_error(id, &error))
}

/// Returns the error for a body that did not arrive in [`BODY_TIMEOUT`].
pub(super) fn slow_body_error() -> Error {
    Error::new(Kind::InvalidRequest, "the body did not arrive in time")
        .with_reason("slow_body")
        .with_hint("Send it again.")
}

type RefusedRequest = (Option<Value>, Error);

/// Handles `GET` (the stream of server messages) and `DELETE` (the end) of a 2025 session.
async fn handle_session_request(
    app: &Arc<HttpServer>,
    caller: &AuthenticatedCaller,
    mut request: Request,
) -> std::result::Result<Response, RefusedRequest> {
    let stateless = header_text(request.headers(), &VERSION_HEADER)
        .is_some_and(|version| version == version::STATELESS);
    let Some(id) = header_text(request.headers(), &SESSION_HEADER).filter(|_| !stateless) else {
        let error = Error::new(
            Kind::InvalidRequest,
            "GET and DELETE need a session of a 2025 protocol version (header Mcp-Session-Id)",
        );
        let error = error
            .with_hint("Send the Mcp-Session-Id from `initialize`; 2026-07-28 uses POST only.");
        return Err((
            None,
            if stateless {
                error.with_reason("http_method")
            } else {
                error.with_reason("not_initialized")
            },
        ));
    };
    let refused = |error: Error| (None, error);
    let (connection, streams) =
        app.sessions.find_session(&id, &caller.principal).map_err(refused)?;
    let is_delete = request.method() == Method::DELETE;
    let stream_guard = match is_delete {
        true => None,
        false => Some(
            app.limits
                .acquire_resource(&caller.principal, LimitedResource::Stream)
                .map_err(refused)?,
        ),
    };
    request.extensions_mut().insert(connection);
    let response = complete_error_response(call_engine(app, request).await, None).await;
    if is_delete && response.status().is_success() {
        app.sessions.end_session(&id, CancelCause::SessionEnd);
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Ok(hold_guards(response, (streams, stream_guard)))
}

/// Handles `POST`: one message.
async fn handle_post(
    app: &Arc<HttpServer>,
    caller: &AuthenticatedCaller,
    request: Request,
) -> std::result::Result<Response, RefusedRequest> {
    let (mut parts, body) = request.into_parts();
    check_media_types(&mut parts.headers).map_err(|error| (None, error))?;
    let limit = app.server.config.limits.message_bytes;
    let bytes = tokio::time::timeout(BODY_TIMEOUT, axum::body::to_bytes(body, limit))
        .await
        .map_err(|_| (None, slow_body_error()))?
        .map_err(|error| (None, too_long_error(limit).with_source(error)))?;
    let mut message = match envelope::judge_message(&bytes) {
        EnvelopeVerdict::Pass(message) => message,
        EnvelopeVerdict::Refuse(kind, refusal) => {
            return Ok(json_response(kind.table_row().http, &refusal));
        }
        EnvelopeVerdict::Ignore => return Ok(StatusCode::ACCEPTED.into_response()),
    };
    let id = message.get("id").cloned();
    let refused = |error: Error| (id.clone(), error);
    let method = message.get("method").and_then(Value::as_str).unwrap_or_default();
    if method == "mcp.capabilities" && !codex_legacy::is_active(&app.server) {
        let connection = app.ambient_connection(&caller.principal).map_err(refused)?;
        let result =
            mcp_capabilities::describe_server(&app.server, Some(connection.session())).await;
        return Ok(json_response(200, &json!({"jsonrpc": "2.0", "id": id, "result": result})));
    }
    let place = match (&id, method) {
        (Some(_), method) if !method.is_empty() => Some(
            app.limits
                .acquire_resource(&caller.principal, LimitedResource::Call)
                .map_err(refused)?,
        ),
        _ => None,
    };
    let stateless = is_stateless(&message, &parts.headers).map_err(refused)?;
    let session = header_text(&parts.headers, &SESSION_HEADER).filter(|_| !stateless);
    let mut reservation = None;
    let (connection, streams) = match (&session, stateless) {
        (Some(session), _) => {
            app.sessions.find_session(session, &caller.principal).map_err(refused)?
        }
        (None, true) => {
            (app.ambient_connection(&caller.principal).map_err(refused)?, Arc::default())
        }
        (None, false) if method == "initialize" => {
            let reserved = app
                .sessions
                .reserve_session(&caller.principal, |connection| app.is_session_idle(connection));
            let (place, ended_id) = reserved.map_err(refused)?;
            app.forget_sessions(ended_id).await;
            reservation = Some(place);
            (
                app.server.connect_client(caller.principal.clone(), "http").map_err(refused)?,
                Arc::default(),
            )
        }
        (None, false) => {
            return Err(refused(
                Error::new(Kind::InvalidRequest, "there is no session")
                    .with_reason("not_initialized")
                    .with_hint("Send `initialize` and then its Mcp-Session-Id with each request, or use 2026-07-28."),
            ));
        }
    };
    if let (true, Some(id)) = (session.is_some() && !method.is_empty(), &id)
        && app.server.is_running(&connection.session().id, &id.to_string())
    {
        return Err(refused(duplicate_id_error()));
    }
    if method == "notifications/cancelled" && session.is_some() {
        // Bypass the engine's queue, which is blocked while a client does not read.
        let request =
            message.get("params").and_then(|params| params.get("requestId")).map(Value::to_string);
        app.server.cancel_call(
            &connection.session().id,
            &request.unwrap_or_default(),
            CancelCause::Client,
        );
    }
    if session.is_none() {
        // The engine must not find a session that we have not checked.
        parts.headers.remove(&SESSION_HEADER);
    }
    parts.extensions.insert(connection.clone());
    if let Some(pushed) = store_pushed_state(app, &connection, &message).map_err(refused)? {
        parts.extensions.insert(pushed);
    }
    if method == "tools/call" {
        // The engine compares headers with the schema of the tool, which must be the newest.
        app.server.pipeline.reload_if_changed().await;
        parts.extensions.insert(ConfigChecked);
    }
    if method == "tools/call" && session.is_some() && id.is_some() {
        (parts, message) = match try_direct_call(app, &connection, parts, message).await {
            Ok(response) => return Ok(hold_guards(response, (streams, place))),
            Err(request) => request,
        };
    }
    let response = forward_to_engine(app, parts, message).await;
    if let (Some(reservation), Some(new)) =
        (reservation, header_text(response.headers(), &SESSION_HEADER))
    {
        reservation.store_session(new, connection, Arc::clone(&streams));
    }
    let response = prefer_json(complete_error_response(response, id).await).await;
    Ok(hold_guards(response, (streams, place)))
}

/// Passes a message to the engine, which reads what was validated, not the original bytes.
async fn forward_to_engine(
    app: &HttpServer,
    mut parts: Parts,
    message: Map<String, Value>,
) -> Response {
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    parts.headers.remove(axum::http::header::CONTENT_LENGTH);
    let body = Body::from(Value::Object(message).to_string());
    call_engine(app, Request::from_parts(parts, body)).await
}

async fn call_engine(app: &HttpServer, request: Request) -> Response {
    let header_version = header_text(request.headers(), &VERSION_HEADER);
    let connection = request.extensions().get::<ClientConnection>().cloned();
    let response = app.engine.handle(request).await.map(Body::new);
    // What was agreed on decides: clients send other versions in the header.
    let agreed_version = connection
        .and_then(|connection| connection.declared_client())
        .map(|client| client.protocol.clone());
    hide_priming_event(agreed_version.or(header_version).as_deref(), response)
}

/// Stores the sandbox state that a client pushes, before the message is passed on. Without a
/// session of its own, the state belongs to the session whose handle comes with it.
fn store_pushed_state(
    app: &HttpServer,
    connection: &ClientConnection,
    message: &Map<String, Value>,
) -> Result<Option<codex::PushedState>> {
    if message.get("method").and_then(Value::as_str) != Some(codex::UPDATE_METHOD)
        || codex_legacy::is_active(&app.server)
    {
        return Ok(None);
    }
    let params = message.get("params");
    let session = match connection.persistent {
        true => Arc::clone(connection.session()),
        false => {
            let handle = params
                .and_then(|params| params.get("_meta"))
                .and_then(|request_meta| request_meta.get(meta::SESSION));
            let session_ref =
                app.server.session_by_handle(connection, handle.and_then(Value::as_str))?;
            Some(Arc::clone(session_ref.session()))
                .filter(|_| session_ref.persistent)
                .ok_or_else(codex::no_session_error)?
        }
    };
    Ok(codex::PushedState::store_from_message(message.get("method"), params, &session))
}

fn header_text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// Checks Content-Type and Accept. Curl users and small clients accept anything, and then get what
/// MCP sends. A client that asks for something else gets an error.
fn check_media_types(headers: &mut HeaderMap) -> Result<()> {
    if !headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|value| {
        value
            .split(';')
            .next()
            .is_some_and(|media| media.trim().eq_ignore_ascii_case("application/json"))
    }) {
        return Err(Error::new(Kind::InvalidRequest, "the body must be JSON")
            .with_reason("media_type")
            .with_hint("Send `Content-Type: application/json`."));
    }
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("*/*");
    let accepts = |media: &str| accept.contains(media) || accept.contains("*/*");
    if !(accepts("application/json") && accepts("text/event-stream")) {
        return Err(Error::new(
            Kind::InvalidRequest,
            "the client must accept JSON and event streams",
        )
        .with_reason("not_acceptable")
        .with_hint("Send `Accept: application/json, text/event-stream`."));
    }
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    Ok(())
}

/// Returns whether this is a message of 2026-07-28, which has no sessions. Everything else belongs
/// to a session, and the session to a principal: a message must not be able to evade that check.
fn is_stateless(message: &Map<String, Value>, headers: &HeaderMap) -> Result<bool> {
    let Some(method) = message.get("method").and_then(Value::as_str) else { return Ok(false) };
    let body_version = message
        .get("params")
        .and_then(|params| params.get("_meta"))
        .and_then(|meta| meta.get(version::VERSION_META));
    let header_version =
        headers.get(VERSION_HEADER).map(|value| value.to_str().unwrap_or_default());
    if body_version.is_none()
        && let Some(header_version) = header_version
        && !version::supported_versions().contains(&header_version)
    {
        let shown_version: String = header_version.chars().take(64).collect();
        return Err(Error::new(
            Kind::UnsupportedVersion,
            "this MCP-Protocol-Version is not supported",
        )
        .with_code(-32022)
        .with_fact("supported", json!(version::supported_versions()))
        .with_fact("requested", shown_version));
    }
    let protocol_version = body_version.and_then(Value::as_str).or(header_version);
    Ok(method != "initialize"
        && (method == "server/discover"
            || protocol_version.is_some_and(|it| it >= version::STATELESS)))
}

/// Adds the fields that all our errors have to the engine's own error responses.
async fn complete_error_response(response: Response, id: Option<Value>) -> Response {
    let status = response.status();
    if !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
    let body = match serde_json::from_slice::<Value>(&bytes) {
        Ok(mut message) if message.get("error").is_some() => {
            envelope::complete_error(&mut message);
            message
        }
        _ => envelope::refusal_message(id, &error_from_status(status, &bytes)),
    };
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    parts.headers.remove(axum::http::header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(body.to_string()))
}

fn error_from_status(status: StatusCode, text: &[u8]) -> Error {
    let kind = match status {
        StatusCode::NOT_FOUND => Kind::NotFound,
        StatusCode::METHOD_NOT_ALLOWED => Kind::MethodNotFound,
        StatusCode::PAYLOAD_TOO_LARGE => Kind::TooLarge,
        status if status.is_server_error() => Kind::Internal,
        _ => Kind::InvalidRequest,
    };
    let text: String = String::from_utf8_lossy(text).chars().take(200).collect();
    Error::new(kind, if text.is_empty() { status.to_string() } else { text })
}
