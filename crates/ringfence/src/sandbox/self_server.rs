//! Our own binary as a child that serves on a pipe, for commands that show the real behaviour of
//! the server.

use std::ffi::OsString;
use std::io;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use ringfence_client::{
    ClientError, ErrorKind, ServerProcess, SpawnRequest, SpawnedServer, Spawner,
};
use tokio::process::Child as AsyncChild;
use tokio::sync::Mutex;

/// Time for the server to end what it runs and to close its audit log.
const EXIT_TIMEOUT: Duration = Duration::from_secs(15);

/// Child server that lives no longer than this value.
pub struct SelfServer {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
}

/// Starts `ringfence <args>` with exactly this environment. Its log stays on our standard error.
pub fn start_self_server(
    args: impl IntoIterator<Item = OsString>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> io::Result<SelfServer> {
    let mut child = Command::new("/proc/self/exe")
        .args(args)
        .env_clear()
        .envs(env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    Ok(SelfServer { child, stdin, stdout })
}

impl SelfServer {
    /// Returns the pipe for messages; `None` once it was closed.
    pub fn input_mut(&mut self) -> Option<&mut ChildStdin> {
        self.stdin.as_mut()
    }

    /// Takes the pipe for answers, which is possible once.
    pub fn take_output(&mut self) -> Option<ChildStdout> {
        self.stdout.take()
    }

    /// Closes the input, which makes the server exit; its output ends when it is gone.
    pub fn close_input(&mut self) {
        self.stdin = None;
    }
}

impl Drop for SelfServer {
    fn drop(&mut self) {
        // Killing fails if the server has already exited; either way it is reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts our own binary as a server for the client library. The server has our environment, and its
/// log stays on our standard error.
pub struct SelfSpawner;

impl Spawner for SelfSpawner {
    fn spawn(
        &self,
        request: SpawnRequest,
    ) -> BoxFuture<'_, ringfence_client::Result<SpawnedServer>> {
        Box::pin(async move { start_async(&request.args).map_err(|error| start_error(&error)) })
    }
}

fn start_async(args: &[String]) -> io::Result<SpawnedServer> {
    let mut child = tokio::process::Command::new("/proc/self/exe")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        // Ctrl-C reaches us alone: the end of its input makes the server end in order.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let missing = || io::Error::other("the server has no pipes");
    let stdin = child.stdin.take().ok_or_else(missing)?;
    let stdout = child.stdout.take().ok_or_else(missing)?;
    Ok(SpawnedServer {
        stdin: Box::new(stdin),
        stdout: Box::new(stdout),
        process: Box::new(SelfProcess(Arc::new(Mutex::new(child)))),
    })
}

fn start_error(error: &io::Error) -> ClientError {
    ClientError::new(ErrorKind::Unavailable, format!("the server could not be started: {error}"))
}

/// Process of the server. Dropping it kills the process.
struct SelfProcess(Arc<Mutex<AsyncChild>>);

impl ServerProcess for SelfProcess {
    fn describe_end(&self) -> BoxFuture<'static, String> {
        let child = Arc::clone(&self.0);
        Box::pin(async move {
            match tokio::time::timeout(EXIT_TIMEOUT, async { child.lock().await.wait().await })
                .await
            {
                Ok(Ok(status)) => status.to_string(),
                _ => "it closed its output".to_owned(),
            }
        })
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut child = self.0.lock().await;
            // Its input has been closed, which makes it exit.
            if tokio::time::timeout(EXIT_TIMEOUT, child.wait()).await.is_err() {
                // It may have exited in between.
                let _ = child.kill().await;
            }
        })
    }
}
