//! Errors of the client: what happened, and what to do next.

use std::fmt;

/// Result of a client operation.
pub type Result<T, E = ClientError> = std::result::Result<T, E>;

/// Kind of a [`ClientError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The configuration is not valid.
    InvalidConfig,
    /// There is no server, bundle or tool with this name.
    NotFound,
    /// The server cannot be reached or started, or has ended.
    Unavailable,
    /// The server wants other credentials.
    Unauthenticated,
    /// The server took too long.
    DeadlineExceeded,
    /// The server sent more than is accepted.
    TooLarge,
    /// The server did not keep to the protocol.
    BadResponse,
    /// The server answered with an error of its own.
    ServerError,
    /// The call was cancelled, or its connection was closed on our side.
    Cancelled,
}

/// Error of the client, in words for a human.
#[derive(Debug, Clone)]
pub struct ClientError {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    rpc: Option<Box<RpcError>>,
    cause: ErrorCause,
}

/// Causes that the client itself reacts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ErrorCause {
    Other,
    /// The server no longer knows the session; the request did not run.
    SessionLost,
    /// An HTTP status, and no JSON-RPC answer.
    HttpStatus,
    /// The answer broke off; whether the request ran is not known.
    Interruption,
    /// The call is for a connection that is lost; it was not sent on the next one.
    OtherConnection,
    /// The server was too slow before it could be called.
    StartTimeout,
    /// The credentials are valid, but this request needs more rights.
    ScopeMissing,
}

/// Error object of a server's answer.
#[derive(Debug, Clone)]
pub struct RpcError {
    pub code: i64,
    pub message: String,
    /// JSON text of its `data`, as it came.
    pub data: Option<String>,
}

impl ClientError {
    /// Creates an error.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> ClientError {
        ClientError {
            kind,
            message: message.into(),
            hint: None,
            rpc: None,
            cause: ErrorCause::Other,
        }
    }

    /// Creates the error for a server's own error object.
    pub fn from_rpc(rpc: RpcError) -> ClientError {
        ClientError {
            kind: ErrorKind::ServerError,
            message: format!("the server answered with error {}: {}", rpc.code, rpc.message),
            hint: None,
            rpc: Some(Box::new(rpc)),
            cause: ErrorCause::Other,
        }
    }

    /// Adds what to do next.
    pub fn with_hint(mut self, hint: impl Into<String>) -> ClientError {
        self.hint = Some(hint.into());
        self
    }

    /// Adds where it happened, in front of the message.
    pub fn with_context(mut self, context: impl fmt::Display) -> ClientError {
        self.message = format!("{context}: {}", self.message);
        self
    }

    /// Marks the error of a lost session.
    pub(crate) fn with_session_lost(mut self) -> ClientError {
        self.cause = ErrorCause::SessionLost;
        self
    }

    /// Marks an answer that was only an HTTP status.
    pub(crate) fn with_http_status(mut self) -> ClientError {
        self.cause = ErrorCause::HttpStatus;
        self
    }

    /// Marks the refusal of one request, for which valid credentials have too few rights.
    #[cfg(feature = "oauth")]
    pub(crate) fn with_scope_missing(mut self) -> ClientError {
        self.cause = ErrorCause::ScopeMissing;
        self
    }

    /// Returns whether the server refuses every request until someone logs in.
    pub(crate) fn ends_access(&self) -> bool {
        self.kind == ErrorKind::Unauthenticated && self.cause != ErrorCause::ScopeMissing
    }

    /// Returns whether the credentials are valid, but have too few rights for this request. A login
    /// asks for them; until then, other requests are possible.
    pub fn is_scope_missing(&self) -> bool {
        self.cause == ErrorCause::ScopeMissing
    }

    /// Removes what the client would react to.
    pub(crate) fn without_cause(mut self) -> ClientError {
        self.cause = ErrorCause::Other;
        self
    }

    /// Marks an answer that broke off.
    pub(crate) fn with_interruption(mut self) -> ClientError {
        self.cause = ErrorCause::Interruption;
        self
    }

    /// Returns the error of a call whose connection has been replaced.
    pub(crate) fn other_connection() -> ClientError {
        ClientError {
            cause: ErrorCause::OtherConnection,
            ..ClientError::new(ErrorKind::Unavailable, "the connection was lost before the call")
        }
    }

    /// Marks the end of a connection whose call did not run, or may run again on another.
    pub(crate) fn into_other_connection(mut self) -> ClientError {
        self.cause = ErrorCause::OtherConnection;
        self
    }

    /// Marks a server that took too long to start, to greet us or to list its tools.
    pub(crate) fn with_start_timeout(mut self) -> ClientError {
        self.cause = ErrorCause::StartTimeout;
        self
    }

    /// Returns whether the server took too long before it could be called.
    pub fn is_start_timeout(&self) -> bool {
        self.cause == ErrorCause::StartTimeout
    }

    /// Returns whether the connection that the call is for ([`ToolCall::connection`]) is lost, and
    /// the call did not run or may run again. The message says how the connection ended, if that is
    /// known.
    ///
    /// [`ToolCall::connection`]: crate::ToolCall::connection
    pub fn is_other_connection(&self) -> bool {
        self.cause == ErrorCause::OtherConnection
    }

    /// Returns whether the answer broke off.
    pub(crate) fn is_interruption(&self) -> bool {
        self.cause == ErrorCause::Interruption
    }

    /// Returns whether the server no longer knows our session, so that the request did not run.
    pub fn is_session_lost(&self) -> bool {
        self.cause == ErrorCause::SessionLost
    }

    pub(crate) fn is_http_status(&self) -> bool {
        self.cause == ErrorCause::HttpStatus
    }

    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns what happened.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns what to do next, if that is known.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Returns the server's own error object, if it answered with one.
    pub fn rpc(&self) -> Option<&RpcError> {
        self.rpc.as_deref()
    }
}

/// Returns the error for a connection that was closed on our side.
pub(crate) fn closed_by_us() -> ClientError {
    ClientError::new(ErrorKind::Cancelled, "the connection was closed")
}

/// Returns the error for a message that is longer than accepted.
pub(crate) fn too_long(max_bytes: usize) -> ClientError {
    ClientError::new(
        ErrorKind::TooLarge,
        format!("the server's answer is longer than {max_bytes} bytes"),
    )
    .with_hint("Ask for less: a smaller range, fewer items or a narrower query.")
}

impl fmt::Display for ClientError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for ClientError {}
