//! Processes of stdio servers: who starts them, and what is known about their end.

use std::collections::BTreeMap;
use std::path::PathBuf;

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::Result;

/// Server to be started.
#[derive(Clone)]
pub struct SpawnRequest {
    /// Id of the server in the configuration.
    pub server_id: String,
    pub command: String,
    pub args: Vec<String>,
    pub cwd: Option<PathBuf>,
    pub env: BTreeMap<String, String>,
}

/// Starts stdio servers. An embedding program decides where they run; ringfence starts them in its
/// sandbox.
pub trait Spawner: Send + Sync {
    /// Starts a server. Everything that it starts must end with [`ServerProcess::stop`].
    fn spawn(&self, request: SpawnRequest) -> BoxFuture<'_, Result<SpawnedServer>>;
}

/// Server that has been started.
pub struct SpawnedServer {
    pub stdin: Box<dyn AsyncWrite + Send + Unpin>,
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    pub process: Box<dyn ServerProcess>,
}

/// Handle to a server's process. Dropping it must end the process too.
pub trait ServerProcess: Send + Sync {
    /// Waits for its end, and describes it: the exit code or signal, and the last lines of its
    /// standard error.
    fn describe_end(&self) -> BoxFuture<'static, String>;

    /// Ends the process and everything that it has started, and waits until they are gone.
    fn stop(&self) -> BoxFuture<'_, ()>;
}
