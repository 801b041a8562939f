//! TCP listener: which connections are accepted, and how long they may take.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::HttpBody;
use axum::extract::ConnectInfo;
use axum::http::{Request, Version};
use axum::response::Response;
use axum::{Extension, Router};
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};

use super::super::peer::AcceptedConnection;
use super::connection_activity::ConnectionActivity;
use super::guarded_body::{ArrivingBody, hold_guards_and_probe};
use super::limits::{ConnectionPool, SlotHandle};
use super::timed_stream::TimedStream;
use super::{HttpServer, build_router, end_idle_sessions};
use crate::base::Result;

/// Time limit for the headers of a request, from the start of the connection or the end of the
/// previous request. A connection that is idle for longer ends; clients open another.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a response may wait for a client that does not read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves connections until shutdown.
pub async fn serve_http(app: Arc<HttpServer>, listener: TcpListener) -> Result<()> {
    tokio::spawn(end_idle_sessions(Arc::clone(&app)));
    let shutdown = app.server.shutdown.clone();
    let router = build_router(app);
    let graceful = GracefulShutdown::new();
    let pool = Arc::<ConnectionPool>::default();
    loop {
        let (stream, remote) = tokio::select! {
            accepted = accept_connection(&listener) => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    // Most likely out of descriptors: retrying immediately would only burn CPU
                    // time.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            _ = shutdown.cancelled() => break,
        };
        let slot = pool.add_connection();
        let connection = ConnectInfo(AcceptedConnection::new(&stream, remote));
        let router =
            router.clone().layer(Extension(connection)).layer(Extension(slot.slot_handle()));
        let activity = Arc::<ConnectionActivity>::default();
        let service = count_requests(
            TowerToHyperService::new(router),
            slot.slot_handle(),
            Arc::clone(&activity),
        );
        let http_connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .serve_connection(
                TokioIo::new(TimedStream::new(stream, WRITE_TIMEOUT, activity)),
                service_fn(service),
            );
        let http_connection = graceful.watch(http_connection);
        tokio::spawn(async move {
            tokio::select! {
                result = http_connection => if let Err(error) = result {
                    tracing::debug!("a connection ended: {error}");
                },
                () = slot.wait_for_eviction() => tracing::debug!("a connection was closed to make room for others"),
            }
        });
    }
    graceful.shutdown().await;
    Ok(())
}

type ServiceResult = std::result::Result<Response, Infallible>;

/// Counts each request while it is being answered. Called before the engine polls the connection
/// again, so that even the last request on it is known by then.
fn count_requests(
    router: TowerToHyperService<Router>,
    slot: SlotHandle,
    activity: Arc<ConnectionActivity>,
) -> impl Fn(Request<Incoming>) -> BoxFuture<'static, ServiceResult> {
    move |request| {
        let takes_interim = request.version() >= Version::HTTP_11;
        let guards = (
            slot.begin_request(),
            activity.begin_request(request.body().is_end_stream(), takes_interim),
        );
        let response =
            router.call(request.map(|body| ArrivingBody::new(body, Arc::clone(&activity))));
        let activity = Arc::clone(&activity);
        Box::pin(async move { Ok(hold_guards_and_probe(response.await?, guards, &activity)) })
    }
}

/// Accepts a connection without Nagle's algorithm. Responses are written in pieces; with it, each
/// piece would wait for the client's delayed acknowledgement of the one before.
async fn accept_connection(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, remote) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, remote))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_answer_waits_for_an_acknowledgement() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = accept_connection(&listener).await.unwrap();
        assert!(stream.nodelay().unwrap());
    }
}
