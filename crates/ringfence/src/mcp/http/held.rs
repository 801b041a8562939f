//! Answers that hold something until they have been sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::traffic::Traffic;

/// A body that keeps guards alive for as long as it is being sent.
struct HeldBody<G> {
    body: Body,
    _guards: G,
    /// Ends a stream that is still open.
    deadline: Option<Pin<Box<Sleep>>>,
    /// When a comment shall be sent, to find out whether anybody is left to read it.
    probe: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// Keeps these guards until the answer has been sent, or its connection has ended.
pub fn hold<G: Send + Unpin + 'static>(response: Response, guards: G) -> Response {
    hold_until(response, guards, None)
}

/// As [`hold`]; a stream that is still open by then ends. An answer of known length is always sent whole.
pub fn hold_until<G: Send + Unpin + 'static>(
    response: Response,
    guards: G,
    end: Option<Instant>,
) -> Response {
    response.map(|body| {
        let end = end.filter(|_| body.size_hint().exact().is_none());
        let deadline = end.map(|end| Box::pin(tokio::time::sleep_until(end)));
        Body::new(HeldBody { body, _guards: guards, deadline, probe: None })
    })
}

/// As [`hold`], for the answers of a connection: an event stream sends a comment when the client sends no more.
pub fn hold_and_probe<G: Send + Unpin + 'static>(
    response: Response,
    guards: G,
    traffic: &Arc<Traffic>,
) -> Response {
    let kind = response.headers().get(CONTENT_TYPE);
    let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    let probe = is_stream.then(|| Box::pin(Arc::clone(traffic).half_closed()) as Pin<Box<_>>);
    response.map(|body| Body::new(HeldBody { body, _guards: guards, deadline: None, probe }))
}

impl<G: Unpin> HttpBody for HeldBody<G> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // First, so that a stream which always has something to say ends as well.
        if self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(None);
        }
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_pending()
            && self.probe.as_mut().is_some_and(|probe| probe.as_mut().poll(cx).is_ready())
        {
            self.probe = None;
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b":\n\n")))));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request body that tells when it has arrived.
pub struct ArrivingBody<B> {
    body: B,
    traffic: Arc<Traffic>,
}

impl<B> ArrivingBody<B> {
    /// Tells this connection.
    pub fn new(body: B, traffic: Arc<Traffic>) -> Self {
        ArrivingBody { body, traffic }
    }
}

impl<B: HttpBody + Unpin> HttpBody for ArrivingBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None)) || self.body.is_end_stream() {
            self.traffic.note_received();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
