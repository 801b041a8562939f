//! HTTP requests to one server: to its own origin only, without redirects.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioTimer;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;

use crate::auth::{AuthProvider, AuthRefusal, Authorization};
use crate::clean_text::clean_line;
use crate::config::RemoteTransport;
use crate::error::{ClientError, ErrorKind, Result, too_long};
use crate::limits::Limits;

/// Longest text of a refusal that is kept for the error.
const MAX_REFUSAL_BYTES: usize = 2 << 10;

/// Answers of the connection itself, such as those to pings, that are sent at a time. Further ones
/// are left out: a server that floods us with requests gets no more requests from us.
pub(crate) const MAX_OWN_REPLIES: usize = 8;
/// Time for posting what no one waits for, such as a cancellation or the end of a session.
pub(crate) const BACKGROUND_POST_TIMEOUT: Duration = Duration::from_secs(2);

/// HTTP client of one server.
pub(crate) struct WebClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    pub(crate) url: Url,
    /// Headers from the configuration.
    headers: HeaderMap,
    server_id: String,
    auth_provider: Option<Arc<dyn AuthProvider>>,
    pub(crate) max_bytes: usize,
    closed: CancellationToken,
    tasks: TaskTracker,
}

/// Runs the tasks of HTTP connections, so that closing can end them and wait for that.
#[derive(Clone)]
struct WebExecutor {
    closed: CancellationToken,
    tasks: TaskTracker,
}

impl<F> hyper::rt::Executor<F> for WebExecutor
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, future: F) {
        // A request that is still being dropped must not leave something behind.
        if self.closed.is_cancelled() {
            return;
        }
        let closed = self.closed.clone();
        self.tasks.spawn(async move {
            closed.run_until_cancelled(future).await;
        });
    }
}

impl Drop for WebClient {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

/// Body of a successful answer.
pub(crate) enum AnswerBody {
    Json(Incoming),
    Events(Incoming),
    /// 202, or nothing.
    Empty,
}

impl WebClient {
    pub(crate) fn new(
        server_id: &str,
        transport: &RemoteTransport,
        auth_provider: Option<Arc<dyn AuthProvider>>,
        limits: &Limits,
        tasks: TaskTracker,
    ) -> Result<WebClient> {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(limits.connect_timeout));
        let tls = tls_config(&transport.url)?;
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let mut headers = HeaderMap::new();
        for (name, value) in &transport.headers {
            let (Ok(name), Ok(mut value)) =
                (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value))
            else {
                return Err(ClientError::new(
                    ErrorKind::InvalidConfig,
                    format!("`{name}` of server `{server_id}` is not a header that can be sent"),
                ));
            };
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let closed = CancellationToken::new();
        let executor = WebExecutor { closed: closed.clone(), tasks: tasks.clone() };
        Ok(WebClient {
            client: Client::builder(executor).pool_timer(TokioTimer::new()).build(connector),
            url: transport.url.clone(),
            headers,
            server_id: server_id.to_owned(),
            auth_provider,
            max_bytes: limits.message_bytes,
            closed,
            tasks,
        })
    }

    /// Closes all sockets and waits until nothing of them is left.
    pub(crate) async fn close(&self) {
        self.closed.cancel();
        self.tasks.wait().await;
    }

    /// Sends a request. Credentials that are refused are renewed once, if their provider can.
    pub(crate) async fn send(
        &self,
        method: Method,
        url: &Url,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Response<Incoming>> {
        let mut is_repeated = false;
        loop {
            let authorization = self.authorize().await?;
            let sending =
                self.send_once(method.clone(), url, headers, body, authorization.as_ref());
            let response = sending.await?;
            let status = response.status();
            if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
                return Ok(response);
            }
            let Some(provider) = &self.auth_provider else {
                return Err(self.refusal_error(status));
            };
            let challenges = response.headers().get_all(WWW_AUTHENTICATE).iter();
            let challenges: Vec<&str> =
                challenges.filter_map(|value| value.to_str().ok()).collect();
            let refusal = AuthRefusal {
                server_id: self.server_id.clone(),
                status: status.as_u16(),
                challenge: challenges.join(", "),
                authorization,
                is_repeated,
            };
            if !provider.handle_refusal(refusal).await? || is_repeated {
                return Err(self.refusal_error(status));
            }
            is_repeated = true;
        }
    }

    async fn authorize(&self) -> Result<Option<Authorization>> {
        match &self.auth_provider {
            Some(provider) => provider.authorization(&self.server_id).await,
            None => Ok(None),
        }
    }

    async fn send_once(
        &self,
        method: Method,
        url: &Url,
        headers: &HeaderMap,
        body: &Bytes,
        authorization: Option<&Authorization>,
    ) -> Result<Response<Incoming>> {
        let mut request = Request::builder()
            .method(method)
            .uri(url.as_str())
            .body(Full::new(body.clone()))
            .map_err(|error| self.connect_error(&error))?;
        request.headers_mut().extend(self.headers.clone());
        request.headers_mut().extend(headers.clone());
        if let Some(authorization) = authorization {
            let mut value = HeaderValue::from_str(authorization.header_value())
                .map_err(|_| self.connect_error(&"its credentials cannot be sent"))?;
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        let response = self.client.request(request).await;
        response.map_err(|error| self.connect_error(&root_cause(&error)))
    }

    /// Sorts a successful answer by its body. Everything else is an error: redirects are not
    /// followed, because they would carry headers and arguments elsewhere.
    pub(crate) async fn accept_answer(&self, response: Response<Incoming>) -> Result<AnswerBody> {
        let status = response.status();
        let content_type = response.headers().get(CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        if status.is_success() {
            return match media_type.to_ascii_lowercase().as_str() {
                _ if status == StatusCode::ACCEPTED || status == StatusCode::NO_CONTENT => {
                    Ok(AnswerBody::Empty)
                }
                "application/json" => Ok(AnswerBody::Json(response.into_body())),
                "text/event-stream" => Ok(AnswerBody::Events(response.into_body())),
                other => Err(ClientError::new(
                    ErrorKind::BadResponse,
                    format!("the server answered with `{other}` instead of JSON or events"),
                )),
            };
        }
        if status.is_redirection() {
            return Err(ClientError::new(
                ErrorKind::Unavailable,
                format!("the server redirects elsewhere ({status})"),
            )
            .with_hint("Put the address that it redirects to into the configuration."));
        }
        if media_type.eq_ignore_ascii_case("application/json") {
            return Ok(AnswerBody::Json(response.into_body()));
        }
        let text = Limited::new(response.into_body(), MAX_REFUSAL_BYTES).collect().await;
        let text = text.map(|body| body.to_bytes()).unwrap_or_default();
        let text = clean_line(&String::from_utf8_lossy(&text), MAX_REFUSAL_BYTES);
        Err(ClientError::new(
            ErrorKind::Unavailable,
            format!("the server answered with HTTP status {status} {text}").trim_end().to_owned(),
        )
        .with_http_status())
    }

    /// Reads a JSON body.
    pub(crate) async fn read_body(&self, body: Incoming) -> Result<String> {
        if body.size_hint().lower() > self.max_bytes as u64 {
            return Err(too_long(self.max_bytes));
        }
        let body = Limited::new(body, self.max_bytes).collect().await.map_err(|error| {
            match error.downcast_ref::<http_body_util::LengthLimitError>() {
                Some(_) => too_long(self.max_bytes),
                None => ClientError::new(
                    ErrorKind::Unavailable,
                    format!("the server's answer broke off: {error}"),
                )
                .with_interruption(),
            }
        })?;
        String::from_utf8(body.to_bytes().into())
            .map_err(|_| ClientError::new(ErrorKind::BadResponse, "the answer is not UTF-8"))
    }

    fn refusal_error(&self, status: StatusCode) -> ClientError {
        ClientError::new(
            ErrorKind::Unauthenticated,
            format!("the server `{}` refused our credentials ({status})", self.server_id),
        )
    }

    fn connect_error(&self, cause: &dyn std::fmt::Display) -> ClientError {
        ClientError::new(
            ErrorKind::Unavailable,
            format!("the server `{}` cannot be reached: {cause}", self.server_id),
        )
    }
}

/// Returns the innermost cause of an error: "client error (Connect)" alone helps no one.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Trusts the certificates of the system. They are read only where they are needed: a host without
/// any still reaches servers on loopback.
pub(crate) fn tls_config(url: &Url) -> Result<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    if url.scheme() == "https" {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(ClientError::new(
                ErrorKind::Unavailable,
                "this host has no certificates of authorities, so no server can be verified",
            )
            .with_hint("Install the package `ca-certificates`."));
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map(|builder| builder.with_root_certificates(roots).with_no_client_auth())
        .map_err(|error| ClientError::new(ErrorKind::Unavailable, format!("TLS: {error}")))
}
