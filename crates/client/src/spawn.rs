//! Starts stdio servers as plain child processes, for programs without a sandbox of their own.

use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection::process::{ServerProcess, SpawnRequest, SpawnedServer, Spawner};
use crate::error::{ClientError, ErrorKind, Result};

/// Lines of standard error that are kept, and bytes of one line.
const KEPT_LINES: usize = 20;
const KEPT_LINE_BYTES: usize = 2 << 10;
/// Time for the last lines of standard error after the end of the process.
const STDERR_GRACE: Duration = Duration::from_millis(200);
/// Time between closing a server's input and killing it.
const EXIT_GRACE: Duration = Duration::from_secs(2);

/// Starts servers as child processes, each in its own process group.
#[derive(Debug, Default, Clone, Copy)]
pub struct ChildSpawner;

impl Spawner for ChildSpawner {
    fn spawn(&self, request: SpawnRequest) -> BoxFuture<'_, Result<SpawnedServer>> {
        Box::pin(async move { spawn_child(request) })
    }
}

fn spawn_child(request: SpawnRequest) -> Result<SpawnedServer> {
    let mut command = Command::new(&request.command);
    command.args(&request.args).envs(&request.env).process_group(0).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(cwd) = &request.cwd {
        command.current_dir(cwd);
    }
    let mut child = command.spawn().map_err(|error| {
        ClientError::new(
            ErrorKind::Unavailable,
            format!("`{}` could not be started: {error}", request.command),
        )
        .with_hint("Check `command` and PATH; give the whole path if it is installed elsewhere.")
    })?;
    let (Some(stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(ClientError::new(ErrorKind::Unavailable, "the server has no pipes"));
    };
    let stderr_tail = Arc::new(Mutex::new(Vec::new()));
    let tasks = TaskTracker::new();
    let reader = tasks.spawn(keep_last_lines(stderr, Arc::clone(&stderr_tail)));
    let (exit_sender, exit) = watch::channel(None);
    let kill = CancellationToken::new();
    let group = child.id();
    tasks.spawn(wait_for_exit(child, kill.clone(), exit_sender, reader));
    tasks.close();
    Ok(SpawnedServer {
        stdin: Box::new(stdin),
        stdout: Box::new(stdout),
        process: Box::new(ChildProcess { exit, stderr_tail, kill, group, tasks }),
    })
}

/// Our child process.
struct ChildProcess {
    /// How it ended, once it has.
    exit: watch::Receiver<Option<String>>,
    stderr_tail: Arc<Mutex<Vec<String>>>,
    kill: CancellationToken,
    group: Option<u32>,
    /// Its tasks: the one that waits for the process, and the reader of its standard error.
    tasks: TaskTracker,
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // Here and not only in the task: the runtime may be ending too.
        if self.exit.borrow().is_none() {
            kill_group(self.group);
        }
        self.kill.cancel();
    }
}

impl ServerProcess for ChildProcess {
    fn describe_end(&self) -> BoxFuture<'static, String> {
        let (mut exit, stderr_tail) = (self.exit.clone(), Arc::clone(&self.stderr_tail));
        Box::pin(async move {
            // A server may close its output and stay.
            let exited = tokio::time::timeout(EXIT_GRACE, exit.wait_for(Option::is_some)).await;
            let end = match exited {
                Ok(Ok(exit)) => exit.clone().unwrap_or_default(),
                _ => "it closed its output".to_owned(),
            };
            let lines = stderr_tail.lock().unwrap_or_else(PoisonError::into_inner).join("\n");
            if lines.is_empty() { end } else { format!("{end}; it wrote:\n{lines}") }
        })
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        let mut exit = self.exit.clone();
        Box::pin(async move {
            // Its input has been closed, which ends a well-behaved server.
            if tokio::time::timeout(EXIT_GRACE, exit.wait_for(Option::is_some)).await.is_err() {
                self.kill.cancel();
            }
            self.tasks.wait().await;
        })
    }
}

/// Waits for the end of the process, or kills its group.
async fn wait_for_exit(
    mut child: Child,
    kill: CancellationToken,
    exit: watch::Sender<Option<String>>,
    mut stderr_reader: tokio::task::JoinHandle<()>,
) {
    let group = child.id();
    let status = tokio::select! {
        status = child.wait() => status,
        () = kill.cancelled() => {
            kill_group(group);
            // The group's leader itself, in case it has left its group.
            let _ = child.start_kill();
            child.wait().await
        }
    };
    // What the server has started must not outlive it.
    kill_group(group);
    // The last lines say most; a process that inherited the pipe must not hold us up.
    if tokio::time::timeout(STDERR_GRACE, &mut stderr_reader).await.is_err() {
        tracing::debug!("a server's standard error stays open after its end");
        stderr_reader.abort();
    }
    let description = status.map_or_else(|error| error.to_string(), |status| status.to_string());
    exit.send_replace(Some(description));
}

fn kill_group(group: Option<u32>) {
    if let Some(group) = group.and_then(|id| rustix::process::Pid::from_raw(id.cast_signed())) {
        // No such group: everything in it has ended.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

/// Always reads, so that the server never waits for us, and keeps the last lines.
async fn keep_last_lines(stderr: impl AsyncRead + Unpin, tail: Arc<Mutex<Vec<String>>>) {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = KEPT_LINE_BYTES as u64;
        match (&mut reader).take(limit).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line);
                let text: String = text.chars().filter(|c| !c.is_control()).collect();
                let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
                if tail.len() >= KEPT_LINES {
                    tail.remove(0);
                }
                tail.push(text);
            }
        }
    }
}
