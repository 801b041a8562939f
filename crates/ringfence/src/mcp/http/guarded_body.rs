//! Response bodies that hold something until they have been sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::connection_activity::ConnectionActivity;
use super::json_answer::is_event_stream;

/// Body that keeps guards alive while it is being sent.
struct GuardedBody<G> {
    body: Body,
    _guards: G,
    /// When a stream that is still open is ended.
    deadline: Option<Pin<Box<Sleep>>>,
    /// When to send a comment, to find out whether the client still reads.
    probe: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// Keeps these guards until the response has been sent, or its connection has ended.
pub fn hold_guards<G: Send + Unpin + 'static>(response: Response, guards: G) -> Response {
    hold_guards_until(response, guards, None)
}

/// Like [`hold_guards`], but also ends a stream that is still open at `expiry`. A response of known
/// length is always sent in full.
pub fn hold_guards_until<G: Send + Unpin + 'static>(
    response: Response,
    guards: G,
    expiry: Option<Instant>,
) -> Response {
    response.map(|body| {
        let expiry = expiry.filter(|_| body.size_hint().exact().is_none());
        let deadline = expiry.map(|expiry| Box::pin(tokio::time::sleep_until(expiry)));
        Body::new(GuardedBody { body, _guards: guards, deadline, probe: None })
    })
}

/// Like [`hold_guards`], for the responses of a connection: an event stream sends a comment when
/// the client has stopped sending.
pub fn hold_guards_and_probe<G: Send + Unpin + 'static>(
    response: Response,
    guards: G,
    activity: &Arc<ConnectionActivity>,
) -> Response {
    let probe = is_event_stream(&response)
        .then(|| Box::pin(Arc::clone(activity).wait_for_half_close()) as Pin<Box<_>>);
    response.map(|body| Body::new(GuardedBody { body, _guards: guards, deadline: None, probe }))
}

impl<G: Unpin> HttpBody for GuardedBody<G> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // First, so that a stream which always has data ends as well.
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

/// Request body that reports when it has arrived completely.
pub struct ArrivingBody<B> {
    body: B,
    activity: Arc<ConnectionActivity>,
}

impl<B> ArrivingBody<B> {
    /// Wraps a body that reports to this connection.
    pub fn new(body: B, activity: Arc<ConnectionActivity>) -> Self {
        ArrivingBody { body, activity }
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
            self.activity.note_received();
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
