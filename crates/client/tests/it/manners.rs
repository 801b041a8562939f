//! Servers that do not keep to the protocol, on every transport.

use std::time::{Duration, Instant};

use ringfence_client::{Era, Limits};
use serde_json::json;

use super::harness::*;

const LEGACY: Era = Era::Initialized;

/// Answers the tool `fine`, and leaves every other to `misbehave`.
fn script<F: Future<Output = ()> + Send + 'static>(
    misbehave: impl Fn(ClientRequest) -> F + Clone + Send + Sync + 'static,
) -> Script {
    Script::new(LEGACY, move |request| {
        let misbehave = misbehave.clone();
        async move {
            match request.tool() {
                "fine" => request.answer_text("fine").await,
                _ => misbehave(request).await,
            }
        }
    })
}

/// An overlong answer fails its own call at once. The id is the first member, or the last.
#[tokio::test]
async fn an_overlong_answer_fails_only_its_call() {
    for kind in ALL_TRANSPORTS {
        let released = Signal::new();
        let is_released = released.clone();
        let script = script(move |request| {
            let released = is_released.clone();
            async move {
                let (id, text) = (&request.id, "x".repeat(300_000));
                match request.tool() {
                    "slow" => {
                        released.wait().await;
                        request.answer_text("slow").await;
                    }
                    "first" => {
                        let message = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"{text}"}}"#);
                        request.speaker.send_text(message).await;
                    }
                    _ => {
                        let message = format!(r#"{{"result":"{text}","jsonrpc":"2.0","id":{id}}}"#);
                        request.speaker.send_text(message).await;
                    }
                }
            }
        });
        let limits = Limits { message_bytes: 64 << 10, ..test_limits() };
        let pair = start(kind, script, limits).await;
        let slow = pair.call("slow");
        let others = async {
            pair.server.wait_for(|message| message["params"]["name"] == "slow").await;
            for tool in ["first", "last"] {
                let error = pair.fail_call(tool).await;
                assert_eq!(error.kind(), ErrorKind::TooLarge, "{kind:?} {tool}: {error}");
                pair.check_call().await;
            }
            released.set();
        };
        let (slow, ()) = tokio::join!(slow, others);
        assert!(slow.unwrap().get().contains("slow"), "{kind:?}");
        assert_eq!(pair.server.count("tools/call"), 5);
        pair.client.close().await;
    }
}

#[tokio::test]
async fn results_are_passed_on_byte_for_byte() {
    const RESULTS: [&str; 4] = [
        "{}",
        r#"{"content":[{"type":"hologram","depth":1.50,"x":1e400}],"zz":null,  "aa":[ ]}"#,
        r#"{"content":[{"type":"text","text":"\u00e9","annotations":{"x":1}}],"isError":false}"#,
        "[]",
    ];
    for kind in ALL_TRANSPORTS {
        let script = script(|request| async move {
            let result = RESULTS[request.tool().parse::<usize>().unwrap()];
            let message = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, request.id);
            request.speaker.send_text(message).await;
        });
        let pair = start(kind, script, test_limits()).await;
        for (index, result) in RESULTS.iter().enumerate() {
            assert_eq!(pair.call(&index.to_string()).await.unwrap().get(), *result, "{kind:?}");
        }
        pair.client.close().await;
    }
}

/// Each manner ends the call at once, though no answer with its id comes, and the next call works.
#[tokio::test]
async fn a_bad_answer_ends_the_only_call_at_once() {
    const MANNERS: [(&str, ErrorKind); 7] = [
        ("not-utf8", ErrorKind::BadResponse),
        ("not-json", ErrorKind::BadResponse),
        ("not-rpc", ErrorKind::BadResponse),
        ("text-error", ErrorKind::ServerError),
        ("null-id", ErrorKind::ServerError),
        ("other-id", ErrorKind::BadResponse),
        ("cancelled", ErrorKind::BadResponse),
    ];
    for kind in ALL_TRANSPORTS {
        let script = script(|request| async move {
            let id = &request.id;
            let text = match request.tool() {
                "not-utf8" => b"{\"jsonrpc\":\"2.0\",\"result\":\"\xff\xfe\"}".to_vec(),
                "not-json" => b"{\"jsonrpc\": oops".to_vec(),
                "not-rpc" => b"{\"hello\":1}".to_vec(),
                "text-error" => format!(r#"{{"id":{id},"error":"it broke"}}"#).into_bytes(),
                "null-id" => {
                    br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}"#
                        .to_vec()
                }
                "other-id" => br#"{"jsonrpc":"2.0","id":987654,"result":{}}"#.to_vec(),
                _ => {
                    let params = json!({"requestId": id, "reason": "no"});
                    return request.notify("notifications/cancelled", params).await;
                }
            };
            request.speaker.send_text(text).await;
            // A stream of its own stays open: its end is not what ends the call.
            request.speaker.closed().await;
        });
        let pair = start(kind, script, test_limits()).await;
        pair.check_call().await;
        for (manner, expected) in MANNERS {
            // On Streamable HTTP the stream says whose answer it is.
            if (kind, manner) == (TransportKind::Http, "other-id") {
                assert_eq!(pair.call(manner).await.unwrap().get(), "{}");
                continue;
            }
            // On the SSE transport bytes that are not UTF-8 break the only stream.
            let error = pair.fail_call(manner).await;
            assert_eq!(error.kind(), expected, "{kind:?} {manner}: {error}");
            pair.check_call().await;
        }
        pair.client.close().await;
    }
}

/// With two calls open no one knows whose answer a bad message is: both wait for their own.
#[tokio::test]
async fn a_bad_answer_fails_no_other_call() {
    for kind in ALL_TRANSPORTS {
        let released = Signal::new();
        let is_released = released.clone();
        let script = script(move |request| {
            let released = is_released.clone();
            async move {
                released.wait().await;
                request
                    .speaker
                    .send(json!({"id": null, "error": {"code": 1, "message": "no"}}))
                    .await;
                if request.tool() == "late" {
                    request.answer_text("late").await;
                }
            }
        });
        let limits = Limits { call_timeout: Duration::from_millis(500), ..test_limits() };
        let pair = start(kind, script, limits).await;
        pair.check_call().await;
        let release = async {
            for tool in ["late", "never"] {
                pair.server.wait_for(|message| message["params"]["name"] == tool).await;
            }
            released.set();
        };
        let (late, never, ()) = tokio::join!(pair.call("late"), pair.call("never"), release);
        match kind {
            TransportKind::Http => assert_eq!(late.unwrap_err().kind(), ErrorKind::ServerError),
            _ => assert!(late.unwrap().get().contains("late")),
        }
        assert!(never.is_err());
        pair.check_call().await;
        pair.client.close().await;
    }
}

/// Text that a server prints for its developers is not a message.
#[tokio::test]
async fn stray_lines_do_not_disturb_calls() {
    let script = script(|request| async move {
        request.speaker.send_text("Processing your request...").await;
        request.answer_text("done").await;
    })
    .on("initialize", |request| async move {
        request.speaker.send_text("Server is running on stdio").await;
        let answer = json!({"protocolVersion": "2025-06-18", "capabilities": {}});
        request.answer(answer).await;
    });
    let limits = Limits { bad_messages: 5, ..test_limits() };
    let pair = start(TransportKind::Pipe, script, limits).await;
    for _ in 0..20 {
        assert!(pair.call("x").await.unwrap().get().contains("done"));
    }
    assert_eq!(pair.server.starts.load(std::sync::atomic::Ordering::SeqCst), 1);
    pair.client.close().await;
}

/// A server that sends nothing else is given up.
#[tokio::test]
async fn endless_rubbish_ends_the_connection() {
    let script = script(|request| async move {
        for _ in 0..50 {
            request.speaker.send_text("rubbish").await;
        }
    });
    let limits = Limits { bad_messages: 20, ..test_limits() };
    let pair = start(TransportKind::Pipe, script, limits).await;
    assert_eq!(pair.fail_call("x").await.kind(), ErrorKind::BadResponse);
    pair.check_call().await;
    pair.client.close().await;
}

#[tokio::test]
async fn a_batch_is_taken_apart() {
    for kind in ALL_TRANSPORTS {
        let script = script(|request| async move {
            let batch = json!([
                {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": 1}},
                {"jsonrpc": "2.0", "id": request.id, "result": {"content": []}},
            ]);
            request.speaker.send(batch).await;
        });
        let pair = start(kind, script, test_limits()).await;
        assert_eq!(pair.call("x").await.unwrap().get(), r#"{"content":[]}"#, "{kind:?}");
        pair.client.close().await;
    }
}

#[tokio::test]
async fn silence_ends_by_the_deadline() {
    for kind in ALL_TRANSPORTS {
        let script = script(|request| async move { request.speaker.closed().await });
        let limits = Limits { call_timeout: Duration::from_millis(300), ..test_limits() };
        let pair = start(kind, script, limits).await;
        pair.check_call().await;
        let started = Instant::now();
        assert_eq!(pair.fail_call("x").await.kind(), ErrorKind::DeadlineExceeded, "{kind:?}");
        assert!(started.elapsed() < Duration::from_secs(5), "{kind:?}");
        let id =
            pair.server.wait_for(|message| message["params"]["name"] == "x").await["id"].take();
        let cancelled = pair.server.wait_for_method("notifications/cancelled").await;
        assert_eq!(cancelled["params"]["requestId"], id);
        pair.check_call().await;
        pair.client.close().await;
    }
}
