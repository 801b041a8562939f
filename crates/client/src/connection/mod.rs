//! Connections to servers. Each carries requests in both directions; what a request means is not
//! known here.

mod events;
mod http;
pub(crate) mod inbox;
mod lines;
mod pipe;
pub(crate) mod process;
pub(crate) mod router;
#[cfg(test)]
pub(crate) mod scripted;
mod sse;
pub(crate) mod web;

use std::sync::Arc;

use ::http::HeaderMap;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::auth::AuthProvider;
use crate::config::TransportConfig;
use crate::error::{ClientError, ErrorKind, Result};
use crate::handshake::{ClientProfile, Era};
use crate::limits::Limits;
use crate::message::{RawJson, Reply, write_message};
use http::HttpConnection;
use inbox::CallInbox;
use pipe::PipeConnection;
use process::{ServerProcess, SpawnRequest, Spawner};
use router::{Root, Router};
use sse::SseConnection;
use web::WebClient;

/// Connection to one server.
pub(crate) struct Connection {
    transport: Transport,
    router: Arc<Router>,
    process: Option<Arc<dyn ServerProcess>>,
}

enum Transport {
    Pipe(PipeConnection),
    Http(HttpConnection),
    Sse(SseConnection),
}

/// What a connection needs from its surroundings.
pub(crate) struct ConnectContext<'a> {
    pub(crate) server_id: &'a str,
    pub(crate) spawner: Option<&'a Arc<dyn Spawner>>,
    pub(crate) auth_provider: Option<Arc<dyn AuthProvider>>,
    pub(crate) roots: Vec<Root>,
    pub(crate) limits: &'a Limits,
    /// Counts changes of the tool list, over all connections.
    pub(crate) list_changes: watch::Sender<u64>,
    /// Holds the tasks of HTTP connections.
    pub(crate) web_tasks: TaskTracker,
}

impl Connection {
    /// Starts the server or connects to it. The server has not been greeted yet.
    pub(crate) async fn open(
        transport: &TransportConfig,
        context: ConnectContext<'_>,
    ) -> Result<Connection> {
        let (server_id, limits) = (context.server_id, context.limits);
        let router = Arc::new(Router::new(limits, context.roots, context.list_changes));
        let (auth_provider, web_tasks) = (context.auth_provider, context.web_tasks);
        let make_web = |remote| WebClient::new(server_id, remote, auth_provider, limits, web_tasks);
        let mut process = None;
        let transport = match transport {
            TransportConfig::Http(remote) => {
                Transport::Http(HttpConnection::new(make_web(remote)?, Arc::clone(&router)))
            }
            TransportConfig::Sse(remote) => {
                Transport::Sse(SseConnection::open(make_web(remote)?, Arc::clone(&router)).await?)
            }
            TransportConfig::Stdio(stdio) => {
                let Some(spawner) = context.spawner else {
                    return Err(ClientError::new(
                        ErrorKind::Unavailable,
                        "this program starts no stdio servers",
                    ));
                };
                let request = SpawnRequest {
                    server_id: server_id.to_owned(),
                    command: stdio.command.clone(),
                    args: stdio.args.clone(),
                    cwd: stdio.cwd.clone(),
                    env: stdio.env.clone(),
                };
                let spawned = spawner.spawn(request).await?;
                let server_process: Arc<dyn ServerProcess> = Arc::from(spawned.process);
                let watched = Arc::clone(&server_process);
                let describe_end = Box::pin(async move {
                    let end = watched.describe_end().await;
                    ClientError::new(ErrorKind::Unavailable, format!("the server ended: {end}"))
                });
                process = Some(server_process);
                Transport::Pipe(PipeConnection::start(
                    spawned.stdout,
                    spawned.stdin,
                    Arc::clone(&router),
                    limits.message_bytes,
                    describe_end,
                ))
            }
        };
        Ok(Connection { transport, router, process })
    }

    /// Returns whether the server could speak 2026-07-28 on this transport.
    pub(crate) fn may_be_stateless(&self) -> bool {
        !matches!(self.transport, Transport::Sse(_))
    }

    /// Returns whether fields of requests go into headers too, if the server speaks 2026-07-28.
    pub(crate) fn has_headers(&self) -> bool {
        matches!(self.transport, Transport::Http(_))
    }

    /// Sets what the handshake found out.
    pub(crate) fn set_protocol(&self, era: Era, version: &str) {
        if let Transport::Http(connection) = &self.transport {
            connection.set_protocol(era, version);
        }
    }

    /// Listens for what a server says outside any call, where that needs a stream of its own: changes
    /// of the tool list and, with sessions, the questions of servers that do not say which call they
    /// belong to.
    pub(crate) async fn listen(&self, era: Era, profile: &ClientProfile) {
        let subscription = (era == Era::Stateless).then(|| {
            json!({
                "_meta": profile.request_meta(),
                "notifications": {"toolsListChanged": true},
            })
        });
        match (&self.transport, subscription) {
            (Transport::Http(connection), subscription) => connection.listen(subscription).await,
            (Transport::Pipe(connection), Some(subscription)) => connection.listen(subscription),
            (Transport::Pipe(_) | Transport::Sse(_), _) => {}
        }
    }

    /// Sends a request that belongs to no call.
    pub(crate) async fn request(
        &self,
        method: &str,
        mirrored: Option<&HeaderMap>,
        params: impl FnOnce(u64) -> Value,
    ) -> Result<RawJson> {
        self.send_request(method, mirrored, params, None).await
    }

    /// Sends a request for a call. What the server says meanwhile goes to its inbox. `params` is given
    /// the id, which is the progress token too; `mirrored` are headers for HTTP.
    pub(crate) async fn call(
        &self,
        method: &str,
        mirrored: Option<&HeaderMap>,
        params: impl FnOnce(u64) -> Value,
        inbox: &Arc<CallInbox>,
    ) -> Result<RawJson> {
        self.send_request(method, mirrored, params, Some(Arc::clone(inbox))).await
    }

    async fn send_request(
        &self,
        method: &str,
        mirrored: Option<&HeaderMap>,
        params: impl FnOnce(u64) -> Value,
        inbox: Option<Arc<CallInbox>>,
    ) -> Result<RawJson> {
        match &self.transport {
            Transport::Pipe(connection) => connection.request(method, params, inbox).await,
            Transport::Http(connection) => {
                connection.request(method, mirrored, params, inbox).await
            }
            Transport::Sse(connection) => connection.request(method, params, inbox).await,
        }
    }

    /// Sends a request for whose answer no one waits.
    pub(crate) fn request_in_background(&self, method: &'static str, params: Value) {
        // The request is closed at once, so that its answer counts as one that came too late.
        let Ok(pending) = self.router.open_request(None) else { return };
        let Ok(message) = write_message(Some(pending.id), method, Some(params)) else { return };
        match &self.transport {
            Transport::Pipe(connection) => connection.send_in_background(message),
            Transport::Http(connection) => connection.send_in_background(message, method),
            Transport::Sse(connection) => connection.send_in_background(message),
        }
    }

    /// Sends a notification.
    pub(crate) async fn notify(&self, method: &str, params: Value) -> Result<()> {
        match &self.transport {
            Transport::Pipe(connection) => connection.notify(method, Some(params)).await,
            Transport::Http(connection) => connection.notify(method, Some(params)).await,
            Transport::Sse(connection) => connection.notify(method, Some(params)).await,
        }
    }

    /// Answers a request of the server.
    pub(crate) async fn reply(&self, id: &RawJson, reply: &Reply) -> Result<()> {
        match &self.transport {
            Transport::Pipe(connection) => connection.reply(id, reply).await,
            Transport::Http(connection) => connection.reply(id, reply).await,
            Transport::Sse(connection) => connection.reply(id, reply).await,
        }
    }

    /// Returns why the connection is closed, if it is.
    pub(crate) fn closed_error(&self) -> Option<ClientError> {
        self.router.closed_error()
    }

    /// Closes the connection, ends the server's process and waits until nothing of them is left.
    pub(crate) async fn close(&self) {
        match &self.transport {
            Transport::Pipe(connection) => connection.close().await,
            Transport::Http(connection) => connection.close().await,
            Transport::Sse(connection) => connection.close().await,
        }
        if let Some(process) = &self.process {
            process.stop().await;
        }
    }
}
