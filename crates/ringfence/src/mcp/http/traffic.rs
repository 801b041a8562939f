//! What is going on on one connection, shared by its socket and its answers.
//!
//! A client may shut down its side after the request and wait for the answer (a half-closed connection). To us that
//! looks like a client that has gone, whose call must end. What tells them apart is to send something: a client that has
//! gone answers with a reset.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The state of one connection.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Requests whose answers have not been sent.
    requests: AtomicUsize,
    /// The newest request has arrived whole.
    is_received: AtomicBool,
    /// Something of the newest answer is on its way.
    has_answered: AtomicBool,
    /// The client understands an interim answer.
    takes_interim: AtomicBool,
    is_half_closed: AtomicBool,
    half_closed: Notify,
}

impl Traffic {
    /// Notes the beginning of a request; it ends with the guard.
    pub fn begin_request(self: &Arc<Self>, is_received: bool, takes_interim: bool) -> TrafficGuard {
        self.is_received.store(is_received, Ordering::Release);
        self.has_answered.store(false, Ordering::Release);
        self.takes_interim.store(takes_interim, Ordering::Release);
        self.requests.fetch_add(1, Ordering::AcqRel);
        TrafficGuard(Arc::clone(self))
    }

    /// Notes that the body of the newest request has arrived.
    pub fn note_received(&self) {
        self.is_received.store(true, Ordering::Release);
    }

    /// Notes that something was written.
    pub fn note_written(&self) {
        self.has_answered.store(true, Ordering::Release);
    }

    /// Notes that the client sends no more.
    pub fn note_half_closed(&self) {
        self.is_half_closed.store(true, Ordering::Release);
        self.half_closed.notify_waiters();
    }

    /// Whether a request waits for its answer.
    pub fn is_busy(&self) -> bool {
        self.requests.load(Ordering::Acquire) > 0
    }

    /// Whether the newest request has arrived whole.
    pub fn is_received(&self) -> bool {
        self.is_received.load(Ordering::Acquire)
    }

    /// Whether an interim answer may be sent now: before the answer itself, to a client that knows what that is.
    pub fn may_send_interim(&self) -> bool {
        self.takes_interim.load(Ordering::Acquire) && !self.has_answered.load(Ordering::Acquire)
    }

    /// Waits until the client sends no more.
    pub async fn half_closed(self: Arc<Self>) {
        let told = self.half_closed.notified();
        tokio::pin!(told);
        // Listen first, look then: nothing is missed between the two.
        told.as_mut().enable();
        if !self.is_half_closed.load(Ordering::Acquire) {
            told.await;
        }
    }
}

/// A request on a connection, until its answer has been sent.
pub struct TrafficGuard(Arc<Traffic>);

impl Drop for TrafficGuard {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::AcqRel);
    }
}
