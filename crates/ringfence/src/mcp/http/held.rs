//! Answers that hold something until they have been sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

/// A body that keeps guards alive for as long as it is being sent.
struct HeldBody<G> {
    body: Body,
    _guards: G,
}

/// Keeps these guards until the answer has been sent, or its connection has ended.
pub fn hold<G: Send + Unpin + 'static>(response: Response, guards: G) -> Response {
    response.map(|body| Body::new(HeldBody { body, _guards: guards }))
}

impl<G: Unpin> HttpBody for HeldBody<G> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
