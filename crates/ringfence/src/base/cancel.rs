//! Cancellation with its cause: many things can end a call, and the audit record must say which.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

/// Cause of an early end of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
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

impl Cause {
    /// Returns the name used in the audit log.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Client => "client",
            Cause::Disconnect => "disconnect",
            Cause::SessionEnd => "session_end",
            Cause::Eof => "eof",
            Cause::Shutdown => "shutdown",
            Cause::Deadline => "deadline",
            Cause::Unanswered => "unanswered",
            Cause::Operator => "operator",
        }
    }
}

/// Cancellation token that remembers its first cause. Cancelling a parent cancels its children,
/// which inherit its cause.
#[derive(Clone, Default)]
pub struct Cancel {
    token: CancellationToken,
    cause: Arc<OnceLock<Cause>>,
    parent: Option<Arc<Cancel>>,
}

impl Cancel {
    /// Creates a token without a parent.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a token that is cancelled together with this one.
    pub fn child(&self) -> Cancel {
        Cancel {
            token: self.token.child_token(),
            cause: Arc::default(),
            parent: Some(Arc::new(self.clone())),
        }
    }

    /// Returns the topmost ancestor: the server's own token, whose cancellation ends everything.
    pub fn root(&self) -> Cancel {
        self.parent.as_ref().map_or_else(|| self.clone(), |parent| parent.root())
    }

    /// Cancels the token. The first cause wins; later ones change nothing.
    pub fn cancel(&self, cause: Cause) {
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
    pub fn cause(&self) -> Option<Cause> {
        self.cause.get().copied().or_else(|| self.parent.as_ref().and_then(|parent| parent.cause()))
    }

    /// Resolves with the cause once the token is cancelled.
    pub async fn cancelled(&self) -> Cause {
        self.token.cancelled().await;
        // A token is cancelled only through `cancel`, which sets the cause first.
        self.cause().unwrap_or(Cause::Shutdown)
    }

    /// Returns the underlying token, for APIs that take one.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_cause_wins_and_children_inherit_it() {
        let session = Cancel::new();
        let call = session.child();
        session.cancel(Cause::SessionEnd);
        call.cancel(Cause::Deadline);
        assert_eq!(call.cancelled().await, Cause::SessionEnd);

        let session = Cancel::new();
        let call = session.child();
        call.cancel(Cause::Client);
        assert_eq!(call.cause(), Some(Cause::Client));
        assert!(!session.is_cancelled());
    }
}
