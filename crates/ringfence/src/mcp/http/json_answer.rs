//! Answers with one JSON body where an event stream would carry nothing but the answer.
//!
//! The engine opens an event stream for every request of a 2025 session, because messages may
//! precede the answer. Here the start of that stream is read: if its first message is the answer,
//! and it arrives soon, the client gets it as JSON. Any other stream is passed on unchanged, from
//! its first byte.

use axum::body::{Body, BodyDataStream};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use bytes::Bytes;
use futures::{StreamExt, stream};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::direct_call::FIRST_MESSAGE_WAIT;

/// Turns an event stream into a JSON body if the answer is its first message and arrives soon.
pub async fn prefer_json(response: Response) -> Response {
    if !is_event_stream(&response) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let mut events = body.into_data_stream();
    let mut read_events = Vec::new();
    let reading = read_quick_answer(&mut events, &mut read_events);
    match tokio::time::timeout(FIRST_MESSAGE_WAIT, reading).await {
        Ok(Some(answer)) => {
            parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            parts.headers.remove(CACHE_CONTROL);
            parts.headers.remove("x-accel-buffering");
            Response::from_parts(parts, Body::from(answer))
        }
        Ok(None) | Err(_) => {
            let events = stream::iter(read_events).chain(events);
            Response::from_parts(parts, Body::from_stream(events))
        }
    }
}

/// Returns whether the body of a response is an event stream.
pub fn is_event_stream(response: &Response) -> bool {
    let content_type = response.headers().get(CONTENT_TYPE);
    content_type
        .is_some_and(|content_type| content_type.as_bytes().starts_with(b"text/event-stream"))
}

/// Reads events up to the first message, and returns it if it is the answer. `read_events` receives
/// everything that was read, also if the caller stops waiting.
async fn read_quick_answer(
    events: &mut BodyDataStream,
    read_events: &mut Vec<Result<Bytes, axum::Error>>,
) -> Option<Bytes> {
    while let Some(event) = events.next().await {
        let content = event.as_ref().map_or(EventContent::OtherMessage, parse_event);
        read_events.push(event);
        match content {
            EventContent::NoMessage => {}
            EventContent::OtherMessage => return None,
            EventContent::Answer(answer) => return Some(answer),
        }
    }
    None
}

/// Content of one event of the engine.
#[derive(Debug, PartialEq)]
enum EventContent {
    /// A comment, or the first event of a stream, which names the point to resume from.
    NoMessage,
    /// The answer to the request.
    Answer(Bytes),
    /// A notification or a request, or something that must be passed on unread.
    OtherMessage,
}

/// Parses an event, which the engine writes as one frame: its data on the first line, as JSON
/// without line breaks, and then its id.
fn parse_event(event: &Bytes) -> EventContent {
    /// A message with a method is a notification or a request; one without is an answer.
    #[derive(Deserialize)]
    struct MessageMethod {
        method: Option<IgnoredAny>,
    }

    const DATA: &[u8] = b"data: ";
    let Some(data) = event.strip_prefix(DATA) else {
        return match event.starts_with(b":") {
            true => EventContent::NoMessage,
            false => EventContent::OtherMessage,
        };
    };
    if data.starts_with(b"\n") {
        return EventContent::NoMessage;
    }
    let mut messages = serde_json::Deserializer::from_slice(data).into_iter::<MessageMethod>();
    match messages.next() {
        Some(Ok(MessageMethod { method: None })) => {
            EventContent::Answer(event.slice(DATA.len()..DATA.len() + messages.byte_offset()))
        }
        _ => EventContent::OtherMessage,
    }
}

#[cfg(test)]
mod tests {
    use futures::Stream;

    use super::*;

    const PRIMING: &str = "data: \nid: 0/0\nretry: 3000\n\n";
    const PROGRESS: &str =
        "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\nid: 1/0\n\n";
    const ANSWER: &str =
        "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"method\":\"\\n\"}}\nid: 2/0\n\n";

    fn event_stream(events: impl Stream<Item = &'static str> + Send + 'static) -> Response {
        let events = events.map(|event| Ok::<_, axum::Error>(Bytes::from(event)));
        Response::builder()
            .header(CONTENT_TYPE, "text/event-stream")
            .header(CACHE_CONTROL, "no-cache")
            .header("mcp-session-id", "s")
            .body(Body::from_stream(events))
            .unwrap()
    }

    async fn whole_body(response: Response) -> String {
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn an_answer_without_messages_before_it_becomes_json() {
        let response = prefer_json(event_stream(stream::iter([PRIMING, ":\n\n", ANSWER]))).await;
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
        assert_eq!(response.headers()["mcp-session-id"], "s");
        assert!(!response.headers().contains_key(CACHE_CONTROL));
        let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"method":"\n"}}"#;
        assert_eq!(whole_body(response).await, answer);
    }

    #[tokio::test]
    async fn every_other_stream_is_passed_on_from_its_first_byte() {
        for events in [
            &[PRIMING, PROGRESS, ANSWER][..],
            &[PRIMING],
            &["data: {\"id\":\nid: 1\n\n", ANSWER],
            &["event: ping\ndata: 1\n\n", ANSWER],
        ] {
            let response = prefer_json(event_stream(stream::iter(events.to_vec()))).await;
            assert!(is_event_stream(&response), "{events:?}");
            assert_eq!(response.headers()[CACHE_CONTROL], "no-cache");
            assert_eq!(whole_body(response).await, events.concat());
        }
    }

    #[tokio::test]
    async fn a_stream_without_a_message_is_not_waited_for() {
        let (sender, answer) = tokio::sync::oneshot::channel();
        let late_answer = stream::once(async move { answer.await.unwrap() });
        let events = stream::iter([PRIMING]).chain(late_answer);
        let response = prefer_json(event_stream(events)).await;
        assert!(is_event_stream(&response));
        sender.send(ANSWER).unwrap();
        assert_eq!(whole_body(response).await, format!("{PRIMING}{ANSWER}"));
    }
}
