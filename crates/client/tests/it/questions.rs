//! Questions during a call: how many there may be, the pages that a call needs, and the place of a
//! call that waits for a human.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::BoxFuture;
use ringfence_client::{
    CallHandler, Era, ErrorKind, Limits, Question, QuestionAnswer, UnattendedCall,
};
use serde_json::{Value, json};

use super::harness::*;

/// Gives every question the same answer and records what it asks for.
struct SameAnswer {
    log: TextLog,
    action: &'static str,
}

impl SameAnswer {
    fn new(action: &'static str) -> SameAnswer {
        SameAnswer { log: TextLog::default(), action }
    }
}

impl CallHandler for SameAnswer {
    fn answer_questions(&self, questions: Vec<Question>) -> BoxFuture<'_, Vec<QuestionAnswer>> {
        let answers = questions.iter().map(|question| {
            let id = &question.params["elicitationId"];
            self.log.add(format!("{} {}", question.method, id.as_str().unwrap_or("none")));
            QuestionAnswer::Result(json!({"action": self.action}))
        });
        let answers = answers.collect();
        Box::pin(async move { answers })
    }
}

fn question(id: &str) -> Value {
    let params = json!({"message": "?", "requestedSchema": {"type": "object"}});
    json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params})
}

/// A server may ask for ever; the rounds are bounded.
#[tokio::test]
async fn rounds_of_questions_are_bounded() {
    for (era, kind) in ALL_PAIRS {
        let script = Script::new(era, move |request| async move {
            if era == Era::Stateless {
                let asked = question("q");
                let result = json!({"resultType": "input_required", "requestState": "again",
                    "inputRequests": {"q": {"method": asked["method"], "params": asked["params"]}}});
                return request.answer(result).await;
            }
            for number in 0..10 {
                request.speaker.send(question(&number.to_string())).await;
            }
            request.speaker.closed().await;
        });
        let limits = Limits { input_rounds: 3, ..test_limits() };
        let pair = start(kind, script, limits).await;
        let handler = SameAnswer::new("accept");
        let call = tool_call("x");
        let call = tokio::time::timeout(PATIENCE, pair.client.call_tool(&call, &handler));
        let error = call.await.expect("the call does not end").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadResponse, "{era:?} {kind:?}: {error}");
        assert_eq!(handler.log.texts().len(), 3, "{era:?} {kind:?}");
        pair.client.close().await;
    }
}

/// Answers a call after the user has been sent to some pages, each of them named by its number.
fn paged_script(pages: usize) -> Script {
    let calls = std::sync::Arc::new(AtomicUsize::new(0));
    Script::new(Era::Initialized, move |request| {
        let number = calls.fetch_add(1, Ordering::SeqCst);
        async move {
            if number >= pages {
                return request.answer_text("fine").await;
            }
            let page = json!({"mode": "url", "elicitationId": format!("e{number}"),
                "url": format!("https://example.com/{number}"), "message": "Log in."});
            let error =
                json!({"code": -32042, "message": "pages", "data": {"elicitations": [page]}});
            let answer = json!({"jsonrpc": "2.0", "id": request.id, "error": error});
            request.speaker.send(answer).await;
        }
    })
}

#[tokio::test]
async fn pages_that_a_call_needs_are_opened_first() {
    for kind in ALL_TRANSPORTS {
        let pair = start(kind, paged_script(2), test_limits()).await;
        let handler = SameAnswer::new("accept");
        pair.client.call_tool(&tool_call("x"), &handler).await.unwrap();
        assert_eq!(
            handler.log.texts(),
            ["elicitation/create e0", "elicitation/create e1"],
            "{kind:?}"
        );
        pair.client.close().await;
        // Those that no one opens end the call, and the error says where they are.
        let pair = start(kind, paged_script(1), test_limits()).await;
        let handler = SameAnswer::new("decline");
        let error = pair.client.call_tool(&tool_call("x"), &handler).await.unwrap_err();
        assert_eq!(error.rpc().map(|rpc| rpc.code), Some(-32042), "{kind:?}");
        assert!(error.hint().is_some_and(|hint| hint.contains("https://example.com/0")));
        assert_eq!(pair.server.count("tools/call"), 1, "{kind:?}");
        pair.client.close().await;
        let limits = Limits { input_rounds: 3, ..test_limits() };
        let pair = start(kind, paged_script(100), limits).await;
        let handler = SameAnswer::new("accept");
        assert!(pair.client.call_tool(&tool_call("x"), &handler).await.is_err());
        assert_eq!(handler.log.texts().len(), 3, "{kind:?}");
        pair.client.close().await;
    }
}

/// A page that was opened and is asked for again has not been finished: asking once more would only
/// open it again.
#[tokio::test]
async fn a_page_is_opened_once_in_a_call() {
    let script = Script::new(Era::Initialized, |request| async move {
        let page = json!({"mode": "url", "elicitationId": "e", "url": "https://user@example.com/",
            "message": "Log in."});
        let error = json!({"code": -32042, "message": "pages", "data": {"elicitations": [page]}});
        let answer = json!({"jsonrpc": "2.0", "id": request.id, "error": error});
        request.speaker.send(answer).await;
    });
    let pair = start(TransportKind::Pipe, script, test_limits()).await;
    let handler = SameAnswer::new("accept");
    let error = pair.client.call_tool(&tool_call("x"), &handler).await.unwrap_err();
    assert_eq!(handler.log.texts().len(), 1);
    // An address with a user in front of its host is a trick and not repeated.
    assert!(!error.hint().is_some_and(|hint| hint.contains("example.com")), "{error:?}");
    pair.client.close().await;
}

/// Answers when it is told to.
struct LateAnswer {
    asked: Signal,
    may_answer: Signal,
}

impl CallHandler for LateAnswer {
    fn answer_questions(&self, _: Vec<Question>) -> BoxFuture<'_, Vec<QuestionAnswer>> {
        self.asked.set();
        Box::pin(async {
            self.may_answer.wait().await;
            vec![QuestionAnswer::Result(json!({"action": "accept"}))]
        })
    }
}

#[tokio::test]
async fn a_call_that_waits_for_a_human_does_not_keep_others_waiting() {
    for (era, kind) in ALL_PAIRS {
        let script = Script::new(era, move |request| async move {
            if request.tool() == "fine" || request.params.get("inputResponses").is_some() {
                return request.answer_text("fine").await;
            }
            let asked = question("q");
            if era == Era::Stateless {
                let result = json!({"resultType": "input_required",
                    "inputRequests": {"q": {"method": asked["method"], "params": asked["params"]}}});
                return request.answer(result).await;
            }
            request.speaker.send(asked).await;
            request.server.wait_for_reply(&json!("q")).await;
            request.answer_text("asked").await;
        });
        let limits = Limits { calls_in_flight: 1, ..test_limits() };
        let pair = start(kind, script, limits).await;
        let handler = LateAnswer { asked: Signal::new(), may_answer: Signal::new() };
        let waiting = tool_call("ask");
        let waiting = pair.client.call_tool(&waiting, &handler);
        let others = async {
            handler.asked.wait().await;
            let other = tool_call("fine");
            let other = pair.client.call_tool(&other, &UnattendedCall);
            tokio::time::timeout(PATIENCE, other).await.expect("a free place").unwrap();
            handler.may_answer.set();
        };
        let (answer, ()) = tokio::join!(waiting, others);
        answer.unwrap();
        pair.client.close().await;
    }
}
