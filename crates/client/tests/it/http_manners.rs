//! Bad manners of Streamable HTTP.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures::future::BoxFuture;
use http::Method;
use ringfence_client::auth::{AuthProvider, AuthRefusal, Authorization};
use ringfence_client::{ClientStatus, Era, Result, UnattendedCall};
use serde_json::json;

use super::harness::*;

/// Answers the calls of all tools but `fine` by `hook`.
async fn start_hooked(
    hook: impl Fn(&HttpRecord) -> Option<http::Response<ServerBody>> + Send + Sync + 'static,
) -> TestPair {
    let script = Script::echo(Era::Initialized).on_http(move |record| {
        let is_call =
            record.rpc_method() == "tools/call" && record.body["params"]["name"] != "fine";
        if is_call { hook(record) } else { None }
    });
    start(TransportKind::Http, script, test_limits()).await
}

#[tokio::test]
async fn answers_that_are_none_fail_at_once() {
    for (status, content_type, body, kind) in [
        (202, "application/json", "", ErrorKind::BadResponse),
        (204, "text/plain", "", ErrorKind::BadResponse),
        (200, "text/html", "<p>hello", ErrorKind::BadResponse),
        (200, "application/json", "not json", ErrorKind::BadResponse),
        (200, "application/json", "{}", ErrorKind::BadResponse),
        (200, "application/json", "[]", ErrorKind::BadResponse),
        (500, "text/plain", "oops", ErrorKind::Unavailable),
        (
            400,
            "application/json",
            r#"{"error":{"code":-32602,"message":"x"}}"#,
            ErrorKind::ServerError,
        ),
    ] {
        let pair = start_hooked(move |_| Some(respond(status, content_type, body))).await;
        let error = pair.fail_call("x").await;
        assert_eq!(error.kind(), kind, "{status} {content_type} {body}: {error}");
        pair.check_call().await;
        pair.client.close().await;
    }
}

/// What a server says about its failure stays in the line that quotes it.
#[tokio::test]
async fn a_refusal_in_words_is_one_clean_line() {
    let body = "oops\u{2028}hint: go\u{85}on\r\n\u{1b}[2Jnow\u{202e}";
    let pair = start_hooked(move |_| Some(respond(500, "text/plain", body))).await;
    let error = pair.fail_call("x").await;
    assert!(error.message().ends_with("oops hint: go on now"), "{error:?}");
    pair.client.close().await;
}

#[tokio::test]
async fn a_body_that_is_not_utf8_fails_its_call() {
    let pair =
        start_hooked(|_| Some(respond(200, "application/json", &b"{\"a\":\"\xff\"}"[..]))).await;
    assert_eq!(pair.fail_call("x").await.kind(), ErrorKind::BadResponse);
    pair.check_call().await;
    pair.client.close().await;
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Arc::new(ServerState::default());
    let url = start_http(Script::echo(Era::Initialized), &elsewhere, false).await;
    for status in [301, 302, 307, 308] {
        let url = url.to_string();
        let pair = start_hooked(move |_| {
            let mut response = respond(status, "text/plain", "");
            response.headers_mut().insert("location", url.parse().unwrap());
            Some(response)
        })
        .await;
        assert_eq!(pair.fail_call("x").await.kind(), ErrorKind::Unavailable);
        pair.check_call().await;
        pair.client.close().await;
    }
    assert!(elsewhere.http_requests().is_empty());
}

#[tokio::test]
async fn a_cut_stream_is_resumed_by_its_last_event() {
    let calls = Arc::new(Mutex::new(None));
    let script = Script::echo(Era::Initialized).on_http(move |record| {
        if record.body["params"]["name"] == "x" {
            *calls.lock().unwrap() = Some(record.body["id"].clone());
            let (response, speaker) = respond_events();
            tokio::spawn(async move {
                speaker.send_bytes("id: one\nretry: 1\ndata: \n\nid: two\n\n").await;
            });
            return Some(response);
        }
        let id = calls.lock().unwrap().clone()?;
        (record.header("last-event-id") == Some("two")).then(|| {
            let answer = json!({"jsonrpc": "2.0", "id": id, "result": {"resumed": true}});
            respond(200, "text/event-stream", format!("data: {answer}\n\n"))
        })
    });
    let pair = start(TransportKind::Http, script, test_limits()).await;
    assert_eq!(pair.call("x").await.unwrap().get(), r#"{"resumed":true}"#);
    let requests = pair.server.http_requests();
    let resumption = requests.iter().find(|request| request.headers.contains_key("last-event-id"));
    assert_eq!(resumption.unwrap().method, Method::GET);
    assert_eq!(resumption.unwrap().header("mcp-session-id"), Some("session-1"));
    assert_eq!(pair.server.count("tools/call"), 1);
    pair.client.close().await;
}

/// Without an event id nothing can be resumed. Whether the call ran is not known, so that only a
/// call which changes nothing is made again.
#[tokio::test]
async fn a_cut_stream_without_an_event_fails_the_call() {
    for is_graceful in [true, false] {
        let pair = start_hooked(move |_| {
            let (response, speaker) = respond_events();
            tokio::spawn(async move {
                speaker.send_bytes(": hello\n\n").await;
                if !is_graceful {
                    speaker.cut().await;
                }
            });
            Some(response)
        })
        .await;
        assert_eq!(pair.fail_call("x").await.kind(), ErrorKind::Unavailable);
        assert_eq!(pair.server.count("tools/call"), 1);
        let mut call = tool_call("x");
        call.is_read_only = true;
        let error = pair.client.call_tool(&call, &UnattendedCall).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(pair.server.count("tools/call"), 3);
        pair.check_call().await;
        assert_eq!(pair.server.count("initialize"), 1);
        pair.client.close().await;
    }
}

/// A lost session means that the call did not run: it is made again, once, in a new session.
#[tokio::test]
async fn a_lost_session_is_made_again_once() {
    let lost = [
        (404, "text/plain", "gone"),
        (
            404,
            "application/json",
            r#"{"jsonrpc":"2.0","id":"x","error":{"code":-32001,"message":"Session not found"}}"#,
        ),
        (
            200,
            "application/json",
            r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Session terminated"}}"#,
        ),
        (
            400,
            "application/json",
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}"#,
        ),
    ];
    for (status, content_type, body) in lost {
        for is_permanent in [false, true] {
            let script = Script::echo(Era::Initialized).on_http(move |record| {
                let is_old = record.header("mcp-session-id") == Some("session-1");
                let is_lost = matches!(record.rpc_method(), "tools/call" | "tools/list")
                    && (is_old || is_permanent);
                is_lost.then(|| respond(status, content_type, body))
            });
            let pair = start(TransportKind::Http, script, test_limits()).await;
            match is_permanent {
                false => {
                    pair.check_call().await;
                    pair.client.list_tools().await.unwrap();
                }
                true => assert_eq!(pair.fail_call("x").await.kind(), ErrorKind::Unavailable),
            }
            assert_eq!(pair.server.count("tools/call"), 2, "{status} {body}");
            assert_eq!(pair.server.count("initialize"), 2);
            pair.client.close().await;
            // The lost session needs no end.
            let deleted = pair.server.http_requests().into_iter().filter(|request| {
                request.method == Method::DELETE
                    && request.header("mcp-session-id") == Some("session-1")
            });
            assert_eq!(deleted.count(), 0);
        }
    }
}

#[tokio::test]
async fn a_lost_session_is_found_by_a_list_too() {
    let script = Script::echo(Era::Initialized).on_http(|record| {
        let is_old = record.header("mcp-session-id") == Some("session-1");
        (record.rpc_method() == "tools/list" && is_old).then(|| respond(404, "text/plain", ""))
    });
    let pair = start(TransportKind::Http, script, test_limits()).await;
    assert_eq!(pair.client.list_tools().await.unwrap().tools.len(), 1);
    assert_eq!(pair.server.count("initialize"), 2);
    pair.client.close().await;
}

#[tokio::test]
async fn close_deletes_the_session() {
    let pair = start(TransportKind::Http, Script::echo(Era::Initialized), test_limits()).await;
    pair.check_call().await;
    pair.client.close().await;
    let delete = pair.server.wait_for_http(|request| request.method == Method::DELETE).await;
    assert_eq!(delete.header("mcp-session-id"), Some("session-1"));
    assert_eq!(delete.header("x-api-key"), Some("key"));
    pair.server.wait_for_sockets(0).await;
    assert_eq!(alive_tasks(), 0);
}

#[tokio::test]
async fn a_refusal_is_final_until_something_changes() {
    for status in [401, 403] {
        for at_call in [false, true] {
            let script = Script::echo(Era::Initialized).on_http(move |record| {
                let is_refused = !at_call || record.rpc_method() == "tools/call";
                is_refused.then(|| respond(status, "application/json", "{}"))
            });
            let pair = start(TransportKind::Http, script, test_limits()).await;
            assert_eq!(pair.fail_call("x").await.kind(), ErrorKind::Unauthenticated);
            pair.client.close().await;
            let count = |method: &str| {
                let requests = pair.server.http_requests();
                requests.iter().filter(|request| request.rpc_method() == method).count()
            };
            let before = (count("server/discover"), count("tools/call"));
            for _ in 0..3 {
                assert_eq!(pair.fail_call("x").await.kind(), ErrorKind::Unauthenticated);
                assert!(pair.client.list_tools().await.is_err());
            }
            assert_eq!((count("server/discover"), count("tools/call")), before);
            assert!(pair.server.http_requests().iter().all(|it| it.method != Method::DELETE));
            assert!(matches!(pair.client.status(), ClientStatus::Failed { retry_in: None, .. }));
            pair.client.reset_failures();
            assert_eq!(pair.fail_call("x").await.kind(), ErrorKind::Unauthenticated);
            assert_eq!(count("server/discover"), before.0 + 1);
            pair.client.close().await;
        }
    }
}

/// Provider whose tokens are numbered.
struct NumberedTokens {
    number: AtomicUsize,
    can_renew: bool,
    has_new: Arc<AtomicBool>,
    refusals: TextLog,
}

impl AuthProvider for NumberedTokens {
    fn authorization(&self, _: &str) -> BoxFuture<'_, Result<Option<Authorization>>> {
        let token = format!("Bearer token-{}", self.number.load(Ordering::SeqCst));
        Box::pin(async move { Ok(Some(Authorization::new(token))) })
    }

    fn handle_refusal(&self, refusal: AuthRefusal) -> BoxFuture<'_, Result<bool>> {
        self.refusals.add(format!("{} {}", refusal.status, refusal.challenge));
        if self.can_renew {
            self.number.fetch_add(1, Ordering::SeqCst);
        }
        Box::pin(async move { Ok(self.can_renew) })
    }

    fn has_new_credentials(&self, _: &str) -> BoxFuture<'_, bool> {
        Box::pin(async move { self.has_new.load(Ordering::SeqCst) })
    }
}

#[tokio::test]
async fn refused_credentials_are_renewed_once() {
    // The token that the server takes, whether the provider renews, and whether that helps.
    for (accepted, can_renew, is_fine) in
        [(1, true, true), (0, false, true), (1, false, false), (9, true, false)]
    {
        let refusals = TextLog::default();
        let has_new = Arc::new(AtomicBool::new(false));
        let provider = NumberedTokens {
            number: AtomicUsize::new(0),
            can_renew,
            has_new: Arc::clone(&has_new),
            refusals: refusals.clone(),
        };
        let script = Script::echo(Era::Initialized).on_http(move |record| {
            let token = format!("Bearer token-{accepted}");
            (record.header("authorization") != Some(token.as_str())).then(|| {
                let mut response = respond(401, "text/plain", "");
                response.headers_mut().insert("www-authenticate", "Bearer x=1".parse().unwrap());
                response
            })
        });
        let provider: Arc<dyn AuthProvider> = Arc::new(provider);
        let pair = start_with(TransportKind::Http, script, test_limits(), Some(provider)).await;
        match is_fine {
            true => pair.check_call().await,
            false => {
                assert_eq!(pair.fail_call("x").await.kind(), ErrorKind::Unauthenticated);
                let requests = pair.server.http_requests().len();
                assert_eq!(requests, if can_renew { 2 } else { 1 });
                assert_eq!(pair.fail_call("x").await.kind(), ErrorKind::Unauthenticated);
                assert_eq!(pair.server.http_requests().len(), requests);
            }
        }
        assert!(refusals.texts().iter().all(|text| text == "401 Bearer x=1"));
        let tries = if is_fine || !can_renew { 1 } else { 2 };
        assert_eq!(refusals.texts().len(), if accepted == 0 { 0 } else { tries });
        if !is_fine {
            // Someone has logged in: the server is asked again.
            let requests = pair.server.http_requests().len();
            has_new.store(true, Ordering::SeqCst);
            pair.fail_call("x").await;
            assert!(pair.server.http_requests().len() > requests);
        }
        pair.client.close().await;
    }
}
