//! Servers that send without end. Memory is measured, so these tests run alone in a process of
//! their own, which one test starts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use ringfence_client::{
    CallHandler, Era, Limits, Question, QuestionAnswer, RawJson, ToolCall, UnattendedCall,
};
use serde_json::json;

use super::harness::*;

const MAX_GROWTH: usize = 20 << 20;
const NOTIFICATIONS: usize = 200_000;
/// Notifications that the server sends at once.
const CHUNK: usize = 500;

#[test]
fn memory_stays_bounded() {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["floods::", "--ignored", "--test-threads=1"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains(" 6 passed"), "{text}");
}

struct MemoryCheck {
    before: usize,
}

impl MemoryCheck {
    fn start() -> MemoryCheck {
        MemoryCheck { before: resident_bytes() }
    }

    #[track_caller]
    fn check(&self, what: &str) {
        let growth = resident_bytes().saturating_sub(self.before);
        assert!(growth < MAX_GROWTH, "{what}: {growth} bytes more");
    }
}

#[derive(Default)]
struct CountingHandler {
    progress: AtomicUsize,
    logs: AtomicUsize,
    last_progress: AtomicUsize,
}

impl CallHandler for CountingHandler {
    fn answer_questions(&self, questions: Vec<Question>) -> BoxFuture<'_, Vec<QuestionAnswer>> {
        UnattendedCall.answer_questions(questions)
    }

    fn handle_progress(&self, params: &RawJson) {
        let params: serde_json::Value = params.parse().unwrap();
        let number = params["progress"].as_u64().unwrap() as usize;
        let previous = self.last_progress.swap(number, Ordering::SeqCst);
        assert!(number > previous, "{number} after {previous}");
        self.progress.fetch_add(1, Ordering::SeqCst);
    }

    fn handle_log(&self, _: &RawJson) {
        self.logs.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
#[ignore = "measures memory; started by memory_stays_bounded"]
async fn floods_of_notifications_take_no_memory() {
    for kind in ALL_TRANSPORTS {
        let script = Script::new(Era::Initialized, |request| async move {
            let token = request.progress_token().clone();
            for start in (0..NOTIFICATIONS).step_by(CHUNK) {
                let mut chunk = Vec::new();
                for number in start..start + CHUNK {
                    let log = format!(
                        r#"{{"method":"notifications/message","params":{{"data":{number}}}}}"#
                    );
                    let progress = format!(
                        r#"{{"method":"notifications/progress","params":{{"progressToken":{token},"progress":{}}}}}"#,
                        number + 1
                    );
                    chunk.extend(request.speaker.frame(log.as_bytes()));
                    chunk.extend(request.speaker.frame(progress.as_bytes()));
                }
                request.speaker.send_bytes(chunk).await;
            }
            request.answer_text("done").await;
        });
        let pair = start(kind, script, test_limits()).await;
        let memory = MemoryCheck::start();
        let handler = CountingHandler::default();
        let call = ToolCall { timeout: Some(PATIENCE * 10), ..tool_call("x") };
        let result = pair.client.call_tool(&call, &handler).await.unwrap();
        assert!(result.get().contains("done"), "{kind:?}");
        assert!(handler.logs.load(Ordering::SeqCst) > 0);
        assert!(handler.progress.load(Ordering::SeqCst) > 0);
        // The latest is never lost.
        assert_eq!(handler.last_progress.load(Ordering::SeqCst), NOTIFICATIONS);
        memory.check(&format!("{kind:?}"));
        pair.client.close().await;
    }
}

#[tokio::test]
#[ignore = "measures memory; started by memory_stays_bounded"]
async fn long_log_lines_take_no_memory() {
    for kind in ALL_TRANSPORTS {
        let script = Script::new(Era::Initialized, |request| async move {
            let data = "x".repeat(500_000);
            for _ in 0..100 {
                request.notify("notifications/message", json!({"data": data})).await;
            }
            request.answer_text("done").await;
        });
        let pair = start(kind, script, test_limits()).await;
        let memory = MemoryCheck::start();
        assert!(pair.call("x").await.is_ok());
        memory.check(&format!("{kind:?}"));
        pair.client.close().await;
    }
}

/// The clock runs while a server only talks.
#[tokio::test]
#[ignore = "measures memory; started by memory_stays_bounded"]
async fn endless_progress_ends_by_the_deadline() {
    for kind in ALL_TRANSPORTS {
        let script = Script::new(Era::Initialized, |request| async move {
            let token = request.progress_token().clone();
            while !request.speaker.is_closed()
                && !request.server.has_seen("notifications/cancelled")
            {
                let params = json!({"progressToken": token, "progress": 1});
                request.notify("notifications/progress", params).await;
            }
        });
        let limits = Limits { call_timeout: Duration::from_millis(300), ..test_limits() };
        let pair = start(kind, script, limits).await;
        assert_eq!(pair.fail_call("x").await.kind(), ErrorKind::DeadlineExceeded, "{kind:?}");
        pair.server.wait_for_method("notifications/cancelled").await;
        pair.client.close().await;
    }
}

/// Pings are answered as far as the server takes answers, and never hold up the call.
#[tokio::test]
#[ignore = "measures memory; started by memory_stays_bounded"]
async fn floods_of_pings_hold_up_nothing() {
    for kind in ALL_TRANSPORTS {
        let script = Script::new(Era::Initialized, |request| async move {
            for id in 0..2_000 {
                let ping = json!({"jsonrpc": "2.0", "id": format!("ping-{id}"), "method": "ping"});
                request.speaker.send(ping).await;
            }
            request.answer_text("done").await;
        });
        let pair = start(kind, script, test_limits()).await;
        let memory = MemoryCheck::start();
        assert!(pair.call("x").await.is_ok(), "{kind:?}");
        let answered = pair
            .server
            .wait_for(|message| message["id"].as_str().is_some_and(|id| id.starts_with("ping")))
            .await;
        assert_eq!(answered["result"], json!({}));
        memory.check(&format!("{kind:?}"));
        pair.client.close().await;
    }
}

#[tokio::test]
#[ignore = "measures memory; started by memory_stays_bounded"]
async fn a_large_body_is_refused_without_being_read() {
    let script = Script::new(Era::Initialized, |_| async {}).on_http(|record| {
        let is_call =
            record.rpc_method() == "tools/call" && record.body["params"]["name"] != "fine";
        is_call.then(|| respond(200, "application/json", vec![b' '; 50 << 20]))
    });
    let pair = start(TransportKind::Http, script, test_limits()).await;
    let memory = MemoryCheck::start();
    // The body itself is the server's, and in the same process.
    assert_eq!(pair.fail_call("x").await.kind(), ErrorKind::TooLarge);
    pair.client.close().await;
    pair.server.wait_for_sockets(0).await;
    memory.check("body");
}

#[tokio::test]
#[ignore = "measures memory; started by memory_stays_bounded"]
async fn an_endless_event_is_too_large_at_once() {
    let script = Script::new(Era::Initialized, |request| async move {
        if request.tool() == "fine" {
            return request.answer_text("fine").await;
        }
        request.speaker.send_bytes("data: {\"result\":\"").await;
        let chunk = bytes::Bytes::from(vec![b'x'; 100_000]);
        for _ in 0..200 {
            request.speaker.send_bytes(chunk.clone()).await;
        }
        request.speaker.closed().await;
    });
    let pair = start(TransportKind::Http, script, test_limits()).await;
    pair.check_call().await;
    let memory = MemoryCheck::start();
    assert_eq!(pair.fail_call("x").await.kind(), ErrorKind::TooLarge);
    memory.check("event");
    pair.check_call().await;
    pair.client.close().await;
}
