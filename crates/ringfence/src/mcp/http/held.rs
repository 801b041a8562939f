//! Answers that hold something until they have been sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

/// A body that keeps guards alive for as long as it is being sent.
struct HeldBody<G> {
    body: Body,
    _guards: G,
    /// Ends a stream that is still open.
    deadline: Option<Pin<Box<Sleep>>>,
}

/// Keeps these guards until the answer has been sent, or its connection has ended.
pub fn hold<G: Send + Unpin + 'static>(response: Response, guards: G) -> Response {
    hold_until(response, guards, None)
}

/// As [`hold`]; a stream that is still open by then ends. An answer of known length is always sent whole.
pub fn hold_until<G: Send + Unpin + 'static>(response: Response, guards: G, end: Option<Instant>) -> Response {
    response.map(|body| {
        let end = end.filter(|_| body.size_hint().exact().is_none());
        let deadline = end.map(|end| Box::pin(tokio::time::sleep_until(end)));
        Body::new(HeldBody { body, _guards: guards, deadline })
    })
}

impl<G: Unpin> HttpBody for HeldBody<G> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // First, so that a stream which always has something to say ends as well.
        if self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(None);
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
