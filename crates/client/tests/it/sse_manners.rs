//! Bad manners of the SSE transport of 2024.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Method;
use ringfence_client::Era;

use super::harness::*;

#[tokio::test]
async fn an_endpoint_at_another_origin_is_refused() {
    let elsewhere = Arc::new(ServerState::default());
    let url = start_http(Script::echo(Era::Initialized), &elsewhere, true).await;
    let script = Script::echo(Era::Initialized).on_http(move |record| {
        let events = format!("event: endpoint\ndata: {url}\n\n");
        (record.method == Method::GET).then(|| respond(200, "text/event-stream", events))
    });
    let pair = start(TransportKind::Sse, script, test_limits()).await;
    assert_eq!(pair.fail_call("x").await.kind(), ErrorKind::BadResponse);
    assert!(elsewhere.http_requests().is_empty());
    pair.client.close().await;
    assert_eq!(alive_tasks(), 0);
}

#[tokio::test]
async fn a_stream_that_ends_fails_its_calls_and_is_opened_again() {
    let script = Script::new(Era::Initialized, |request| async move {
        match request.tool() {
            "fine" => request.answer_text("fine").await,
            _ => request.speaker.cut().await,
        }
    });
    let pair = start(TransportKind::Sse, script, test_limits()).await;
    assert_eq!(pair.fail_call("x").await.kind(), ErrorKind::Unavailable);
    pair.check_call().await;
    assert_eq!(pair.server.starts.load(Ordering::SeqCst), 2);
    pair.client.close().await;
}

#[tokio::test]
async fn a_post_that_fails_fails_its_call_only() {
    for (status, kind) in [(500, ErrorKind::Unavailable), (403, ErrorKind::Unauthenticated)] {
        let script = Script::echo(Era::Initialized).on_http(move |record| {
            (record.body["params"]["name"] == "x").then(|| respond(status, "text/plain", "no"))
        });
        let pair = start(TransportKind::Sse, script, test_limits()).await;
        pair.check_call().await;
        assert_eq!(pair.fail_call("x").await.kind(), kind);
        pair.client.reset_failures();
        pair.check_call().await;
        pair.client.close().await;
    }
}

#[tokio::test]
async fn a_lost_session_is_made_again() {
    let failures = AtomicUsize::new(0);
    let script = Script::echo(Era::Initialized).on_http(move |record| {
        let is_first =
            record.rpc_method() == "tools/call" && failures.fetch_add(1, Ordering::SeqCst) == 0;
        is_first.then(|| respond(404, "text/plain", "Could not find session"))
    });
    let pair = start(TransportKind::Sse, script, test_limits()).await;
    pair.check_call().await;
    assert_eq!(pair.server.starts.load(Ordering::SeqCst), 2);
    pair.client.close().await;
}

#[tokio::test]
async fn a_server_without_the_transport_is_an_error() {
    for (status, content_type) in
        [(404, "text/plain"), (405, "text/plain"), (200, "application/json")]
    {
        let script = Script::echo(Era::Initialized)
            .on_http(move |_| Some(respond(status, content_type, "{}")));
        let pair = start(TransportKind::Sse, script, test_limits()).await;
        let kind = pair.fail_call("x").await.kind();
        assert!(matches!(kind, ErrorKind::BadResponse | ErrorKind::Unavailable), "{kind:?}");
        pair.client.close().await;
    }
}
