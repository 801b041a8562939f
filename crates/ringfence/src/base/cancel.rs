//! Cancellation with its cause: many things can end a call, and the audit record must say which.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

/// Cause of an early end of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelCause {
    /// The client sent `notifications/cancelled`.
    Client,
    /// The connection that was waiting for the answer was closed (2026-07-28, SSE).
    Disconnect,
    /// The session was deleted or expired.
    SessionEnd,
    /// Standard input reached its end.
    Eof,
    /// SIGTERM or SIGINT to the server.
    Shutdown,
    /// The call exceeded its own time limit.
    Deadline,
    /// A question asked during the run was never answered.
    Unanswered,
    /// A human stopped it at the terminal or console.
    Operator,
}

impl CancelCause {
    /// Returns the name used in the audit log.
    pub fn name(self) -> &'static str {
        match self {
            CancelCause::Client => "client",
            CancelCause::Disconnect => "disconnect",
            CancelCause::SessionEnd => "session_end",
            CancelCause::Eof => "eof",
            CancelCause::Shutdown => "shutdown",
            CancelCause::Deadline => "deadline",
            CancelCause::Unanswered => "unanswered",
            CancelCause::Operator => "operator",
        }
    }
}

/// Cancellation token that remembers its first cause. Cancelling a parent cancels its children,
/// which inherit its cause.
#[derive(Clone, Default)]
pub struct CancelToken {
    token: CancellationToken,
    cause: Arc<OnceLock<CancelCause>>,
    parent: Option<Arc<CancelToken>>,
}

impl CancelToken {
    /// Creates a token without a parent.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a token that is cancelled together with this one.
    pub fn new_child(&self) -> CancelToken {
        CancelToken {
            token: self.token.child_token(),
            cause: Arc::default(),
            parent: Some(Arc::new(self.clone())),
        }
    }

    /// Returns the topmost ancestor: the server's own token, whose cancellation ends everything.
    pub fn root_token(&self) -> CancelToken {
        self.parent.as_ref().map_or_else(|| self.clone(), |parent| parent.root_token())
    }

    /// Cancels the token. The first cause wins; later ones change nothing.
    pub fn cancel(&self, cause: CancelCause) {
        if !self.token.is_cancelled() {
            let _ = self.cause.set(cause);
        }
        self.token.cancel();
    }

    /// Returns whether the token or an ancestor was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Returns the cause, if the token was cancelled.
    pub fn cause(&self) -> Option<CancelCause> {
        self.cause.get().copied().or_else(|| self.parent.as_ref().and_then(|parent| parent.cause()))
    }

    /// Resolves with the cause once the token is cancelled.
    pub async fn cancelled(&self) -> CancelCause {
        self.token.cancelled().await;
        // A token is cancelled only through `cancel`, which sets the cause first.
        self.cause().unwrap_or(CancelCause::Shutdown)
    }

    /// Returns the underlying token, for APIs that take one.
    pub fn inner_token(&self) -> &CancellationToken {
        &self.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_cause_wins_and_children_inherit_it() {
        let session = CancelToken::new();
        let call = session.new_child();
        session.cancel(CancelCause::SessionEnd);
        call.cancel(CancelCause::Deadline);
        assert_eq!(call.cancelled().await, CancelCause::SessionEnd);

        let session = CancelToken::new();
        let call = session.new_child();
        call.cancel(CancelCause::Client);
        assert_eq!(call.cause(), Some(CancelCause::Client));
        assert!(!session.is_cancelled());
    }
}
