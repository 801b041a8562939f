//! State of one connection, shared by its socket and its responses.
//!
//! A client may shut down its sending side after the request and wait for the answer (a half-closed
//! connection). To us that looks like a client that has disconnected, whose call must end. Sending
//! something tells them apart: a client that is gone answers with a reset.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// State of one connection.
#[derive(Debug, Default)]
pub struct ConnectionActivity {
    /// Requests whose responses have not been sent.
    requests: AtomicUsize,
    /// The newest request has arrived completely.
    is_received: AtomicBool,
    /// Part of the newest response has been written.
    has_answered: AtomicBool,
    /// The client understands an interim response.
    takes_interim: AtomicBool,
    is_half_closed: AtomicBool,
    half_closed: Notify,
}

impl ConnectionActivity {
    /// Counts a request until the guard is dropped.
    pub fn begin_request(
        self: &Arc<Self>,
        is_received: bool,
        takes_interim: bool,
    ) -> ActivityGuard {
        self.is_received.store(is_received, Ordering::Release);
        self.has_answered.store(false, Ordering::Release);
        self.takes_interim.store(takes_interim, Ordering::Release);
        self.requests.fetch_add(1, Ordering::AcqRel);
        ActivityGuard(Arc::clone(self))
    }

    /// Records that the body of the newest request has arrived.
    pub fn note_received(&self) {
        self.is_received.store(true, Ordering::Release);
    }

    /// Records that something was written.
    pub fn note_written(&self) {
        self.has_answered.store(true, Ordering::Release);
    }

    /// Records that the client has stopped sending.
    pub fn note_half_closed(&self) {
        self.is_half_closed.store(true, Ordering::Release);
        self.half_closed.notify_waiters();
    }

    /// Returns whether a request waits for its response.
    pub fn is_busy(&self) -> bool {
        self.requests.load(Ordering::Acquire) > 0
    }

    /// Returns whether the newest request has arrived completely.
    pub fn is_received(&self) -> bool {
        self.is_received.load(Ordering::Acquire)
    }

    /// Returns whether an interim response may be sent now: before the response itself, to a client
    /// that understands it.
    pub fn may_send_interim(&self) -> bool {
        self.takes_interim.load(Ordering::Acquire) && !self.has_answered.load(Ordering::Acquire)
    }

    /// Waits until the client has stopped sending.
    pub async fn wait_for_half_close(self: Arc<Self>) {
        let notification = self.half_closed.notified();
        tokio::pin!(notification);
        // Register before reading the flag, so that no notification is missed in between.
        notification.as_mut().enable();
        if !self.is_half_closed.load(Ordering::Acquire) {
            notification.await;
        }
    }
}

/// Request on a connection, until its response has been sent.
pub struct ActivityGuard(Arc<ConnectionActivity>);

impl Drop for ActivityGuard {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::AcqRel);
    }
}
