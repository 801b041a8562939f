//! The first event of a stream, which has no data: it names the point to resume from.
//!
//! The protocol has it since 2025-11-25. Some clients of older versions parse the data of every
//! event as JSON and fail, so their streams begin with the first message.

use axum::body::Body;
use axum::response::Response;
use futures::StreamExt;
use futures::future::ready;

use super::json_answer::is_event_stream;

/// The first version with such events. Versions are dates.
const FIRST_VERSION: &str = "2025-11-25";

/// Removes events without data from a stream for a client of this version; without one, it is older.
pub fn hide_priming_event(version: Option<&str>, response: Response) -> Response {
    let is_known = version.is_some_and(|version| version >= FIRST_VERSION);
    if is_known || !is_event_stream(&response) {
        return response;
    }
    // The engine writes each event as one frame, data first.
    let (parts, body) = response.into_parts();
    let events = body
        .into_data_stream()
        .filter(|event| ready(!event.as_ref().is_ok_and(|event| event.starts_with(b"data: \n"))));
    Response::from_parts(parts, Body::from_stream(events))
}

#[cfg(test)]
mod tests {
    use axum::http::header::CONTENT_TYPE;
    use bytes::Bytes;
    use futures::stream;

    use super::*;

    const EVENTS: [&str; 3] =
        ["data: \nid: 0\nretry: 3000\n\n", ":\n\n", "data: {\"x\":1}\nid: 1\n\n"];

    async fn show(version: Option<&str>) -> String {
        let events = EVENTS.map(|event| Ok::<_, axum::Error>(Bytes::from(event)));
        let response = Response::builder()
            .header(CONTENT_TYPE, "text/event-stream")
            .body(Body::from_stream(stream::iter(events)))
            .unwrap();
        let body = hide_priming_event(version, response).into_body();
        String::from_utf8(axum::body::to_bytes(body, 1 << 20).await.unwrap().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn only_clients_that_know_it_get_the_event_without_data() {
        assert_eq!(show(Some("2025-11-25")).await, EVENTS.concat());
        for version in [None, Some("2025-03-26"), Some("2025-06-18")] {
            assert_eq!(show(version).await, EVENTS[1..].concat(), "{version:?}");
        }
    }
}
