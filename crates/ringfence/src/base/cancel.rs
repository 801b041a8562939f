//! Cancellation with its cause: many things can end a call, and the audit record must say which did.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

/// Who or what ended a call early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The client sent `notifications/cancelled`.
    Client,
    /// The connection the answer would have gone to was closed (2026-07-28, SSE).
    Disconnect,
    /// The session was deleted or expired.
    SessionEnd,
    /// Standard input reached its end.
    Eof,
    /// SIGTERM or SIGINT to the server.
    Shutdown,
    /// The call's own time was up.
    Deadline,
    /// A question raised in mid-run was never answered.
    Unanswered,
    /// Somebody at the terminal or the console stopped it.
    Operator,
}

impl Cause {
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

/// A token that remembers the first cause. Children are cancelled with their parent and inherit its cause.
#[derive(Clone, Default)]
pub struct Cancel {
    token: CancellationToken,
    cause: Arc<OnceLock<Cause>>,
    parent: Option<Arc<Cancel>>,
}

impl Cancel {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn child(&self) -> Cancel {
        Cancel {
            token: self.token.child_token(),
            cause: Arc::default(),
            parent: Some(Arc::new(self.clone())),
        }
    }

    /// What everything ends with: the server's own.
    pub fn root(&self) -> Cancel {
        self.parent.as_ref().map_or_else(|| self.clone(), |parent| parent.root())
    }

    /// The first cause wins; later ones change nothing.
    pub fn cancel(&self, cause: Cause) {
        if !self.token.is_cancelled() {
            let _ = self.cause.set(cause);
        }
        self.token.cancel();
    }

    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    pub fn cause(&self) -> Option<Cause> {
        self.cause.get().copied().or_else(|| self.parent.as_ref().and_then(|parent| parent.cause()))
    }

    pub async fn cancelled(&self) -> Cause {
        self.token.cancelled().await;
        // A token is only ever cancelled through `cancel`, which sets the cause first.
        self.cause().unwrap_or(Cause::Shutdown)
    }

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
