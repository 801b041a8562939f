use tokio::io::DuplexStream;

use super::*;

/// The browser's end of the line.
struct Far {
    stream: DuplexStream,
    bytes: Vec<u8>,
}

impl Far {
    async fn hear(&mut self) -> Value {
        loop {
            if let Some(end) = self.bytes.iter().position(|byte| *byte == 0) {
                let message = serde_json::from_slice(&self.bytes[..end]).unwrap();
                self.bytes.drain(..=end);
                return message;
            }
            assert!(self.stream.read_buf(&mut self.bytes).await.unwrap() > 0, "the line ended");
        }
    }

    async fn say(&mut self, message: Value) {
        self.stream.write_all(format!("{message}\0").as_bytes()).await.unwrap();
    }
}

fn pair() -> (CdpConnection, Far) {
    let (near, far) = tokio::io::duplex(1 << 12);
    (CdpConnection::new(near), Far { stream: far, bytes: Vec::new() })
}

#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl EventSink for Heard {
    fn handle_event(&self, _: &CdpConnection, event: CdpEvent<'_>) {
        lock_mutex(&self.0).push(format!("{} {}", event.method, event.params));
    }
}

#[tokio::test]
async fn an_answer_finds_its_call_whatever_the_order() {
    let (line, mut far) = pair();
    let both = async {
        tokio::join!(
            line.call_method(None, "One", json!({"a": 1})),
            line.call_method(Some("s"), "Two", json!({}))
        )
    };
    let answer = async {
        let (one, two) = (far.hear().await, far.hear().await);
        assert_eq!((one["method"].as_str(), one["params"]["a"].as_u64()), (Some("One"), Some(1)));
        assert_eq!((two["method"].as_str(), two["sessionId"].as_str()), (Some("Two"), Some("s")));
        far.say(json!({"id": two["id"], "sessionId": "s", "error": {"code": -1, "message": "no such thing"}})).await;
        far.say(json!({"id": one["id"], "result": {"is": "one"}})).await;
    };
    let ((one, two), ()) = tokio::join!(both, answer);
    assert_eq!(one.unwrap(), json!({"is": "one"}));
    let refused = two.unwrap_err();
    assert!(refused.message().contains("no such thing"), "{refused}");
    assert!(lock_mutex(&line.0.pending).is_empty());
}

#[tokio::test]
async fn events_reach_the_sink_of_their_session_before_the_next_answer() {
    let (line, mut far) = pair();
    let (own, page) = (Arc::new(Heard::default()), Arc::new(Heard::default()));
    line.set_sink(None, Arc::clone(&own) as Arc<dyn EventSink>);
    line.set_sink(Some("s"), Arc::clone(&page) as Arc<dyn EventSink>);
    let call = line.call_method(None, "Ask", json!({}));
    let far = async {
        let asked = far.hear().await;
        far.say(json!({"method": "A", "params": 1})).await;
        far.say(json!({"method": "B", "params": 2, "sessionId": "s"})).await;
        far.say(json!({"method": "C", "params": 3, "sessionId": "unknown"})).await;
        far.say(json!({"id": asked["id"], "result": {}})).await;
    };
    let (answer, ()) = tokio::join!(call, far);
    answer.unwrap();
    assert_eq!(*lock_mutex(&own.0), ["A 1"]);
    assert_eq!(*lock_mutex(&page.0), ["B 2"]);
}

#[tokio::test]
async fn a_cancelled_call_leaves_nothing_behind() {
    let (line, mut far) = pair();
    let call = line.call_method(None, "Slow", json!({}));
    let waited = tokio::time::timeout(Duration::from_millis(20), call).await;
    assert!(waited.is_err());
    assert!(lock_mutex(&line.0.pending).is_empty());
    let asked = far.hear().await;
    far.say(json!({"id": asked["id"], "result": {}})).await;
    let (next, ()) = tokio::join!(line.call_method(None, "Next", json!({})), async {
        let asked = far.hear().await;
        far.say(json!({"id": asked["id"], "result": {"next": true}})).await;
    });
    assert_eq!(next.unwrap(), json!({"next": true}));
}

#[tokio::test]
async fn a_browser_that_ends_or_talks_nonsense_fails_every_call_at_once() {
    for last_words in ["", "{not json\0"] {
        let (line, mut far) = pair();
        let call = line.call_method(None, "Ask", json!({}));
        let end = async {
            far.hear().await;
            far.stream.write_all(last_words.as_bytes()).await.unwrap();
            if last_words.is_empty() {
                drop(far);
            }
        };
        let (answer, ()) = tokio::join!(call, end);
        assert_eq!(answer.unwrap_err().reason_name(), Some("browser_ended"));
        line.wait_closed().await;
        assert_eq!(
            line.call_method(None, "Ask", json!({})).await.unwrap_err().reason_name(),
            Some("browser_ended")
        );
    }
}

/// Bytes come as the kernel has them, in parts and several messages at a time.
#[tokio::test]
async fn messages_are_told_apart_wherever_they_are_cut() {
    let (line, mut far) = pair();
    let heard = Arc::new(Heard::default());
    line.set_sink(None, Arc::clone(&heard) as Arc<dyn EventSink>);
    let long = "x".repeat(100_000);
    let text = format!(
        "{}\0{}\0",
        json!({"method": "Long", "params": long}),
        json!({"method": "Short", "params": 1})
    );
    let call = line.call_method(None, "Ask", json!({}));
    let far = async {
        let asked = far.hear().await;
        for part in text.as_bytes().chunks(777) {
            far.stream.write_all(part).await.unwrap();
        }
        far.say(json!({"id": asked["id"], "result": {}})).await;
    };
    let (answer, ()) = tokio::join!(call, far);
    answer.unwrap();
    let heard = lock_mutex(&heard.0);
    assert_eq!(heard.len(), 2);
    assert_eq!(heard[0].len(), "Long ".len() + 2 + long.len());
    assert_eq!(heard[1], "Short 1");
}

/// Neither one that nobody waits for nor an event: the browser goes on, and so do the others.
#[tokio::test]
async fn a_message_that_is_too_long_costs_its_own_call_and_nothing_else() {
    let (near, far) = tokio::io::duplex(1 << 20);
    let (line, mut far) = (CdpConnection::new(near), Far { stream: far, bytes: Vec::new() });
    let heard = Arc::new(Heard::default());
    line.set_sink(None, Arc::clone(&heard) as Arc<dyn EventSink>);
    let calls = async {
        tokio::join!(
            line.call_method(None, "One", json!({})),
            line.call_method(None, "Two", json!({}))
        )
    };
    let far = async {
        let (one, two) = (far.hear().await, far.hear().await);
        let x = "x".repeat(MAX_EVENT_BYTES);
        far.say(json!({"method": "Long", "params": x})).await;
        far.say(json!({"id": 999_999, "result": x})).await;
        far.stream
            .write_all(format!("{{\"id\":{},\"result\":\"", one["id"]).as_bytes())
            .await
            .unwrap();
        for _ in 0..=MAX_REPLY_BYTES / MAX_EVENT_BYTES {
            far.stream.write_all(x.as_bytes()).await.unwrap();
        }
        far.stream.write_all(b"\"}\0").await.unwrap();
        far.say(json!({"method": "Short", "params": 1})).await;
        far.say(json!({"id": two["id"], "result": {"is": "two"}})).await;
    };
    let ((one, two), ()) = tokio::join!(calls, far);
    assert_eq!(one.unwrap_err().kind(), Kind::TooLarge);
    assert_eq!(two.unwrap(), json!({"is": "two"}));
    assert_eq!(*lock_mutex(&heard.0), ["Short 1"]);
}

#[tokio::test]
async fn a_call_has_the_patience_that_it_asks_for() {
    let (line, _far) = pair();
    let begun = tokio::time::Instant::now();
    let slow = line
        .call_with_timeout(None, "Slow", json!({}), Duration::from_millis(30))
        .await
        .unwrap_err();
    assert_eq!(slow.reason_name(), Some("browser_hung"));
    assert!(
        (Duration::from_millis(30)..REPLY_TIMEOUT).contains(&begun.elapsed()),
        "{:?}",
        begun.elapsed()
    );
}
