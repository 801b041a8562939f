//! Handshakes: what a server may say to `server/discover`, and what not to `initialize`.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ringfence_client::{ClientStatus, Era, Limits};
use serde_json::json;

use super::harness::*;

#[track_caller]
fn check_era(pair: &TestPair, era: Era) {
    match pair.client.status() {
        ClientStatus::Connected(greeting) => assert_eq!(greeting.era, era),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_error_to_discover_means_initialize_on_the_same_connection() {
    for kind in [TransportKind::Pipe, TransportKind::Http] {
        for code in [-32601, -32602, -32600, -32000, -32603, 0] {
            let script =
                Script::echo(Era::Initialized).on("server/discover", move |request| async move {
                    request.fail(code, "no").await
                });
            let pair = start(kind, script, test_limits()).await;
            pair.check_call().await;
            check_era(&pair, Era::Initialized);
            assert_eq!(pair.server.count("server/discover"), 1);
            assert_eq!(pair.server.count("initialize"), 1);
            assert!(pair.server.starts.load(Ordering::SeqCst) <= 1);
            pair.client.close().await;
        }
    }
}

#[tokio::test]
async fn silence_to_discover_means_initialize_on_the_same_connection() {
    for kind in [TransportKind::Pipe, TransportKind::Http] {
        let script = Script::echo(Era::Initialized).on("server/discover", |request| async move {
            tokio::spawn(async move { request.speaker.closed().await });
        });
        let limits = Limits { discover_timeout: Duration::from_millis(100), ..test_limits() };
        let pair = start(kind, script, limits).await;
        pair.check_call().await;
        check_era(&pair, Era::Initialized);
        assert!(pair.server.starts.load(Ordering::SeqCst) <= 1);
        pair.client.close().await;
    }
}

/// A server of 2026-07-28 that starts slowly answers after it has been given up.
#[tokio::test]
async fn a_late_answer_to_discover_counts() {
    let script = Script::echo(Era::Stateless).on("server/discover", |request| async move {
        tokio::spawn(async move {
            request.server.wait_for_method("initialize").await;
            request.answer(json!({"supportedVersions": ["2026-07-28"], "capabilities": {}})).await;
            request
                .speaker
                .send(json!({"id": 2, "error": {"code": -32601, "message": "no"}}))
                .await;
        });
    });
    let script = script.on("initialize", |_| async {});
    let limits = Limits { discover_timeout: Duration::from_millis(100), ..test_limits() };
    let pair = start(TransportKind::Pipe, script, limits).await;
    pair.check_call().await;
    check_era(&pair, Era::Stateless);
    pair.client.close().await;
}

#[tokio::test]
async fn silence_to_everything_ends_in_time() {
    for kind in ALL_TRANSPORTS {
        let wait = |request: ClientRequest| async move {
            tokio::spawn(async move { request.speaker.closed().await });
        };
        let script =
            Script::echo(Era::Initialized).on("server/discover", wait).on("initialize", wait);
        let limits = Limits {
            discover_timeout: Duration::from_millis(100),
            handshake_timeout: Duration::from_millis(200),
            ..test_limits()
        };
        let pair = start(kind, script, limits).await;
        let started = Instant::now();
        assert_eq!(pair.fail_call("x").await.kind(), ErrorKind::DeadlineExceeded, "{kind:?}");
        assert!(started.elapsed() < Duration::from_secs(5), "{kind:?}");
        assert!(matches!(pair.client.status(), ClientStatus::Failed { retry_in: Some(_), .. }));
        pair.client.close().await;
        assert_eq!(alive_tasks(), 0, "{kind:?}");
    }
}

#[tokio::test]
async fn http_statuses_to_discover_mean_initialize() {
    for status in [400, 404, 405, 500] {
        for (content_type, body) in [
            (
                "application/json",
                r#"{"jsonrpc":"2.0","id":"x","error":{"code":-32000,"message":"Bad Request: no session"}}"#,
            ),
            (
                "application/json",
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}"#,
            ),
            ("application/json", r#"{"detail":"Not Found"}"#),
            ("application/json", ""),
            ("text/html", "<h1>no</h1>"),
        ] {
            let script = Script::echo(Era::Initialized).on_http(move |record| {
                (record.rpc_method() == "server/discover")
                    .then(|| respond(status, content_type, body))
            });
            let pair = start(TransportKind::Http, script, test_limits()).await;
            pair.check_call().await;
            check_era(&pair, Era::Initialized);
            pair.client.close().await;
        }
    }
}

/// Only an error of 2026-07-28 itself, without an older version, is final.
#[tokio::test]
async fn an_unsupported_version_is_final_unless_an_older_one_is_named() {
    for (data, is_fine) in [(json!({"supported": ["2025-11-25"]}), true), (json!({}), false)] {
        let script = Script::echo(Era::Initialized).on("server/discover", move |request| {
            let error = json!({"code": -32022, "message": "version", "data": data});
            async move { request.speaker.send(json!({"id": request.id, "error": error})).await }
        });
        let pair = start(TransportKind::Pipe, script, test_limits()).await;
        assert_eq!(pair.call("fine").await.is_ok(), is_fine);
        pair.client.close().await;
    }
}

#[tokio::test]
async fn an_enormous_greeting_is_refused() {
    let script = Script::echo(Era::Initialized).on("initialize", |request| async move {
        let text = "x".repeat(1 << 20);
        request.answer(json!({"protocolVersion": "2025-11-25", "instructions": text})).await;
    });
    let pair = start(TransportKind::Pipe, script, test_limits()).await;
    assert_eq!(pair.fail_call("x").await.kind(), ErrorKind::TooLarge);
    pair.client.close().await;
}
