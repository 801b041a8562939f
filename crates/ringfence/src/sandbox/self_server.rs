//! Our own binary as a child that serves on a pipe, for commands that show the real behaviour of
//! the server.

use std::ffi::OsString;
use std::io;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

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
