//! Both eras on every transport: questions, progress, log lines, cancellation and list changes.

use std::sync::Mutex;
use std::time::Duration;

use futures::future::BoxFuture;
use ringfence_client::{
    CallHandler, Era, Limits, Question, QuestionAnswer, RawJson, ToolCall, UnattendedCall,
};
use serde_json::{Value, json};

use super::harness::*;

/// Records what it is told, and answers questions with a number.
#[derive(Default)]
struct RecordingHandler {
    log: TextLog,
    answers: Mutex<usize>,
}

impl CallHandler for RecordingHandler {
    fn answer_questions(&self, questions: Vec<Question>) -> BoxFuture<'_, Vec<QuestionAnswer>> {
        let answers = questions.iter().map(|question| {
            let mut count = self.answers.lock().unwrap();
            *count += 1;
            self.log.add(format!("question {}", question.params["message"].as_str().unwrap()));
            let content = json!({"number": *count});
            QuestionAnswer::Result(json!({"action": "accept", "content": content}))
        });
        let answers = answers.collect();
        Box::pin(async move { answers })
    }

    fn handle_progress(&self, params: &RawJson) {
        let params: Value = params.parse().unwrap();
        self.log.add(format!("progress {}", params["progress"]));
    }

    fn log_level(&self) -> Option<&str> {
        Some("info")
    }

    fn handle_log(&self, params: &RawJson) {
        let params: Value = params.parse().unwrap();
        self.log.add(format!("log {}", params["data"]));
    }
}

fn elicitation(message: &str) -> Value {
    json!({"mode": "form", "message": message, "requestedSchema": {"type": "object"}})
}

/// Asks twice, and answers with the answers.
async fn ask_twice(request: ClientRequest, era: Era) {
    let number = |answer: &Value| answer["content"]["number"].clone();
    if era == Era::Initialized {
        let mut numbers = Vec::new();
        for (id, message) in [("q1", "first?"), ("q2", "second?")] {
            let method = "elicitation/create";
            let question = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": elicitation(message)});
            request.speaker.send(question).await;
            numbers.push(number(&request.server.wait_for_reply(&json!(id)).await["result"]));
        }
        return request.answer(json!({"numbers": numbers})).await;
    }
    let ask = |message: &str, state: Value| {
        let question = json!({"method": "elicitation/create", "params": elicitation(message)});
        json!({"resultType": "input_required", "inputRequests": {"q": question}, "requestState": state})
    };
    let answer = number(&request.params["inputResponses"]["q"]);
    match request.params["requestState"].clone() {
        Value::Null => request.answer(ask("first?", json!("round one"))).await,
        Value::String(state) => {
            assert_eq!(state, "round one");
            request.answer(ask("second?", json!([answer]))).await;
        }
        state => {
            request.answer(json!({"resultType": "complete", "numbers": [state[0], answer]})).await;
        }
    }
}

#[tokio::test]
async fn questions_reach_the_handler() {
    for (era, kind) in ALL_PAIRS {
        let script = Script::new(era, move |request| ask_twice(request, era));
        let pair = start(kind, script, test_limits()).await;
        let handler = RecordingHandler::default();
        let result = pair.client.call_tool(&tool_call("x"), &handler).await.unwrap();
        let result: Value = result.parse().unwrap();
        assert_eq!(result["numbers"], json!([1, 2]), "{era:?} {kind:?}");
        assert_eq!(handler.log.texts(), ["question first?", "question second?"]);
        pair.client.close().await;
    }
}

#[tokio::test]
async fn without_anyone_a_question_is_cancelled() {
    for (era, kind) in ALL_PAIRS {
        let script = Script::new(era, move |request| async move {
            let params = elicitation("x?");
            let is_answered = !request.params["inputResponses"].is_null();
            let answer = match (era, is_answered) {
                (Era::Initialized, _) => {
                    let message = json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": params});
                    request.speaker.send(message).await;
                    request.server.wait_for_reply(&json!("q")).await["result"].take()
                }
                (Era::Stateless, false) => {
                    let question = json!({"method": "elicitation/create", "params": params});
                    let result =
                        json!({"resultType": "input_required", "inputRequests": {"q": question}});
                    return request.answer(result).await;
                }
                (Era::Stateless, true) => request.params["inputResponses"]["q"].clone(),
            };
            request.answer(json!({"got": answer})).await;
        });
        let pair = start(kind, script, test_limits()).await;
        let result = pair.call("x").await.unwrap();
        assert_eq!(result.get(), r#"{"got":{"action":"cancel"}}"#, "{era:?} {kind:?}");
        pair.client.close().await;
    }
}

#[tokio::test]
async fn progress_and_log_lines_come_in_order_and_before_the_result() {
    for (era, kind) in ALL_PAIRS {
        let script = Script::new(era, |request| async move {
            let token = request.progress_token().clone();
            for number in 1..=200 {
                let params = json!({"progressToken": token, "progress": number});
                request.notify("notifications/progress", params).await;
            }
            for number in 1..=20 {
                let params = json!({"level": "info", "data": number});
                request.notify("notifications/message", params).await;
            }
            let level = &request.params["_meta"]["io.modelcontextprotocol/logLevel"];
            request.answer(json!({"level": level})).await;
        });
        let pair = start(kind, script, test_limits()).await;
        let handler = RecordingHandler::default();
        let result = pair.client.call_tool(&tool_call("x"), &handler).await.unwrap();
        let texts = handler.log.texts();
        let numbers = |prefix: &str| -> Vec<usize> {
            texts.iter().filter_map(|text| text.strip_prefix(prefix)?.parse().ok()).collect()
        };
        let progress = numbers("progress ");
        assert!(progress.is_sorted() && progress.last() == Some(&200), "{progress:?}");
        assert_eq!(numbers("log "), (1..=20).collect::<Vec<_>>(), "{era:?} {kind:?}");
        let level = if era == Era::Stateless { r#"{"level":"info"}"# } else { r#"{"level":null}"# };
        assert_eq!(result.get(), level);
        pair.client.close().await;
    }
}

#[tokio::test]
async fn dropping_a_call_cancels_it() {
    for (era, kind) in ALL_PAIRS {
        let closed = Signal::new();
        let reports_close = closed.clone();
        let script = Script::new(era, move |request| {
            let closed = reports_close.clone();
            async move {
                if request.tool() == "fine" {
                    return request.answer_text("fine").await;
                }
                request.speaker.closed().await;
                closed.set();
            }
        });
        let pair = start(kind, script, test_limits()).await;
        pair.check_call().await;
        let id = tokio::select! {
            result = pair.call("slow") => panic!("{result:?}"),
            mut message = pair.server.wait_for(|message| message["params"]["name"] == "slow") => {
                message["id"].take()
            }
        };
        match (era, kind) {
            (Era::Stateless, TransportKind::Http) => {
                closed.wait().await;
                assert_eq!(pair.server.count("notifications/cancelled"), 0);
            }
            _ => {
                let cancelled = pair.server.wait_for_method("notifications/cancelled").await;
                assert_eq!(cancelled["params"]["requestId"], id, "{era:?} {kind:?}");
            }
        }
        pair.check_call().await;
        pair.client.close().await;
    }
}

/// While someone is asked the clock stands still, and an answer ends the question.
#[tokio::test]
async fn a_question_ends_with_its_call() {
    struct NeverAnswers(Signal);

    impl CallHandler for NeverAnswers {
        fn answer_questions(&self, _: Vec<Question>) -> BoxFuture<'_, Vec<QuestionAnswer>> {
            self.0.set();
            Box::pin(std::future::pending())
        }
    }

    for kind in ALL_TRANSPORTS {
        let asked = Signal::new();
        let is_asked = asked.clone();
        let script = Script::new(Era::Initialized, move |request| {
            let asked = is_asked.clone();
            async move {
                let question = json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": elicitation("x?")});
                request.speaker.send(question).await;
                asked.wait().await;
                // Longer than the call's time.
                tokio::time::sleep(Duration::from_millis(400)).await;
                request.answer_text("too late").await;
            }
        });
        let limits = Limits { call_timeout: Duration::from_millis(300), ..test_limits() };
        let pair = start(kind, script, limits).await;
        let (call, handler) = (tool_call("x"), NeverAnswers(asked));
        let call = tokio::time::timeout(PATIENCE, pair.client.call_tool(&call, &handler));
        assert!(call.await.unwrap().unwrap().get().contains("too late"), "{kind:?}");
        pair.client.close().await;
    }
}

#[tokio::test]
async fn a_burst_of_list_changes_causes_few_lists() {
    for (era, kind) in ALL_PAIRS {
        let pair = start(kind, Script::echo(era), test_limits()).await;
        pair.client.list_tools().await.unwrap();
        pair.client.list_tools().await.unwrap();
        assert_eq!(pair.server.count("tools/list"), 1);
        let mut changes = pair.client.watch_list_changes();
        let before = *changes.borrow_and_update();
        let listener = pair.server.listener().await;
        for _ in 0..50 {
            let method = "notifications/tools/list_changed";
            listener.send(json!({"jsonrpc": "2.0", "method": method})).await;
        }
        let listing = async {
            loop {
                changes.changed().await.unwrap();
                let count = *changes.borrow_and_update();
                pair.client.list_tools().await.unwrap();
                if count == before + 50 {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, listing).await.unwrap();
        let lists = pair.server.count("tools/list");
        assert!((2..=3).contains(&lists), "{era:?} {kind:?}: {lists}");
        pair.client.close().await;
    }
}

/// A server that was started again may have other tools.
#[tokio::test]
async fn a_new_connection_lists_again() {
    for (era, kind) in ALL_PAIRS {
        let pair = start(kind, Script::echo(era), test_limits()).await;
        pair.client.list_tools().await.unwrap();
        pair.client.close().await;
        pair.client.list_tools().await.unwrap();
        assert_eq!(pair.server.count("tools/list"), 2, "{era:?} {kind:?}");
        pair.client.close().await;
    }
}

/// A server without subscriptions is used without them.
#[tokio::test]
async fn a_server_may_refuse_subscriptions() {
    for kind in [TransportKind::Pipe, TransportKind::Http] {
        let script = Script::echo(Era::Stateless)
            .on("subscriptions/listen", |request| async move { request.fail(-32601, "no").await });
        let pair = start(kind, script, test_limits()).await;
        pair.check_call().await;
        pair.server.wait_for_method("subscriptions/listen").await;
        pair.client.call_tool(&tool_call("fine"), &UnattendedCall).await.unwrap();
        pair.client.close().await;
        assert_eq!(alive_tasks(), 0);
    }
}

/// Questions that are not even objects end the call, and nothing else.
#[tokio::test]
async fn questions_of_any_form_end_the_call_with_an_error() {
    for kind in [TransportKind::Pipe, TransportKind::Http] {
        let script = Script::new(Era::Stateless, |request| async move {
            match request.tool() {
                "fine" => request.answer_text("fine").await,
                _ => {
                    let questions = json!({"a": 5, "b": "text", "c": null, "d": []});
                    let result =
                        json!({"resultType": "input_required", "inputRequests": questions});
                    request.answer(result).await;
                }
            }
        });
        let pair = start(kind, script, test_limits()).await;
        let error = pair.fail_call("odd").await;
        assert_eq!(error.kind(), ErrorKind::BadResponse, "{kind:?}: {error}");
        pair.check_call().await;
    }
}

/// A tool that only runs as a task is started as one, asked for its result, and cancelled with the
/// call.
#[tokio::test]
async fn a_tool_that_only_runs_as_a_task_is_followed_to_its_result() {
    for kind in ALL_TRANSPORTS {
        let script = Script::new(Era::Initialized, |request| async move {
            match request.params["task"]["ttl"].is_u64() {
                true => {
                    let task = json!({"taskId": request.tool(), "status": "working"});
                    request.answer(json!({"task": task})).await;
                }
                false => request.answer_text("fine").await,
            }
        })
        .on("tasks/result", |request| async move {
            match request.params["taskId"].as_str() {
                Some("quick") => request.answer_text("done").await,
                // Never answered; the server reads on meanwhile.
                _ => drop(tokio::spawn(async move { request.speaker.closed().await })),
            }
        });
        let pair = start(kind, script, test_limits()).await;
        let task_call = |tool: &str| ToolCall { runs_as_task: true, ..tool_call(tool) };
        let result = pair.client.call_tool(&task_call("quick"), &UnattendedCall).await.unwrap();
        assert!(result.get().contains("done"), "{kind:?}: {}", result.get());
        assert_eq!(pair.server.count("tasks/cancel"), 0);
        let slow = task_call("slow");
        tokio::select! {
            result = pair.client.call_tool(&slow, &UnattendedCall) => panic!("{result:?}"),
            _ = pair.server.wait_for(|message| message["params"]["taskId"] == "slow") => {}
        }
        let cancelled = pair.server.wait_for_method("tasks/cancel").await;
        assert_eq!(cancelled["params"]["taskId"], "slow", "{kind:?}");
        pair.check_call().await;
        pair.client.close().await;
    }
}

/// A call for one connection is never sent on the next, whose server may be another by then.
#[tokio::test]
async fn a_call_for_a_connection_is_not_sent_on_the_next() {
    for (era, kind) in ALL_PAIRS {
        let pair = start(kind, Script::echo(era), test_limits()).await;
        let first = pair.client.list_tools().await.unwrap().connection;
        assert_eq!(first, pair.client.connection_count());
        let call = ToolCall { connection: Some(first), ..tool_call("x") };
        pair.client.call_tool(&call, &UnattendedCall).await.unwrap();
        pair.client.close().await;
        let error = pair.client.call_tool(&call, &UnattendedCall).await.unwrap_err();
        assert!(error.is_other_connection(), "{era:?} {kind:?}: {error}");
        assert_eq!(pair.server.count("tools/call"), 1, "{era:?} {kind:?}");
        let next = pair.client.list_tools().await.unwrap().connection;
        let call = ToolCall { connection: Some(next), ..tool_call("x") };
        pair.client.call_tool(&call, &UnattendedCall).await.unwrap();
        pair.client.close().await;
    }
}
