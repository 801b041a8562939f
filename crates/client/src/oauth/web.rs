//! HTTP requests of OAuth: without redirects, bounded, and to allowed addresses only.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Collected, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use url::Url;

use super::address::{AddressPolicy, CheckedResolver, show_url};
use super::secret::SecretText;
use crate::connection::web::{root_cause, tls_config};
use crate::error::{ClientError, ErrorKind, Result};
use crate::limits::Limits;

/// Makes the requests of one piece of OAuth work, all within one deadline.
pub(super) struct OAuthWeb {
    policy: AddressPolicy,
    max_bytes: usize,
    deadline: Instant,
    timeout: Duration,
}

/// Request of OAuth.
pub(super) enum OAuthRequest<'a> {
    Get,
    /// JSON text.
    Post(String),
    /// Form, with the credentials of a client that sends them in a header.
    Form(&'a [(&'a str, &'a str)], Option<SecretText>),
}

/// Answer to a request of OAuth, whatever its status.
pub(super) struct OAuthAnswer {
    pub(super) status: StatusCode,
    body: Bytes,
}

impl OAuthAnswer {
    /// Reads the body as JSON. `None` if it is something else.
    pub(super) fn read_json<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&self.body).ok()
    }
}

impl OAuthWeb {
    /// Starts the clock of one piece of work.
    pub(super) fn new(policy: AddressPolicy, limits: &Limits) -> OAuthWeb {
        OAuthWeb {
            policy,
            max_bytes: limits.oauth_bytes,
            deadline: Instant::now() + limits.oauth_timeout,
            timeout: limits.oauth_timeout,
        }
    }

    pub(super) fn policy(&self) -> &AddressPolicy {
        &self.policy
    }

    /// Sends a request. A redirect is an answer like any other: what is sent here is for the host
    /// that was checked.
    pub(super) async fn send(&self, url: &Url, request: OAuthRequest<'_>) -> Result<OAuthAnswer> {
        self.bound(url, async {
            let (head, body) = self.exchange(url, request).await?.into_parts();
            let body = self.read_body(url, body).await?;
            Ok(OAuthAnswer { status: head.status, body })
        })
        .await
    }

    /// Sends a request whose answer matters only for its headers.
    pub(super) async fn send_for_headers(
        &self,
        url: &Url,
        request: OAuthRequest<'_>,
    ) -> Result<HeaderMap> {
        self.bound(url, async { Ok(self.exchange(url, request).await?.into_parts().0.headers) })
            .await
    }

    async fn bound<T>(&self, url: &Url, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.policy.check_url(url)?;
        tokio::time::timeout_at(self.deadline, work).await.unwrap_or_else(|_| {
            Err(ClientError::new(
                ErrorKind::DeadlineExceeded,
                format!("{} took longer than {} s", show_url(url), self.timeout.as_secs_f32()),
            ))
        })
    }

    async fn exchange(&self, url: &Url, request: OAuthRequest<'_>) -> Result<Response<Incoming>> {
        let mut connector = HttpConnector::new_with_resolver(CheckedResolver(self.policy.clone()));
        connector.enforce_http(false);
        connector.set_nodelay(true);
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls_config(url)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        // Requests are rare and go to different hosts, so that no connection is kept.
        let client =
            Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
        let request = build_request(url, request).map_err(|error| unreachable_host(url, &error))?;
        let response = client.request(request).await;
        response.map_err(|error| unreachable_host(url, &root_cause(&error)))
    }

    async fn read_body(&self, url: &Url, body: Incoming) -> Result<Bytes> {
        let body = Limited::new(body, self.max_bytes).collect().await;
        body.map(Collected::to_bytes).map_err(|error| {
            match error.downcast_ref::<http_body_util::LengthLimitError>() {
                Some(_) => ClientError::new(
                    ErrorKind::TooLarge,
                    format!("{} sent more than {} bytes", show_url(url), self.max_bytes),
                ),
                None => unreachable_host(url, &format_args!("its answer broke off ({error})")),
            }
        })
    }
}

fn unreachable_host(url: &Url, cause: &dyn fmt::Display) -> ClientError {
    let message = format!("{} cannot be reached: {cause}", show_url(url));
    ClientError::new(ErrorKind::Unavailable, message)
}

fn build_request(url: &Url, request: OAuthRequest<'_>) -> http::Result<Request<Full<Bytes>>> {
    let builder = Request::builder().uri(url.as_str()).header(ACCEPT, "application/json");
    match request {
        OAuthRequest::Get => builder.method(Method::GET).body(Full::default()),
        OAuthRequest::Post(text) => builder
            .method(Method::POST)
            // Servers of MCP refuse clients that do not accept both.
            .header(ACCEPT, "text/event-stream")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(text.into())),
        OAuthRequest::Form(fields, authorization) => {
            let mut form = url::form_urlencoded::Serializer::new(String::new());
            form.extend_pairs(fields);
            let mut builder = builder
                .method(Method::POST)
                .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
            if let Some(authorization) = authorization {
                let mut value = HeaderValue::from_str(authorization.expose())?;
                value.set_sensitive(true);
                builder = builder.header(AUTHORIZATION, value);
            }
            builder.body(Full::new(form.finish().into()))
        }
    }
}
