//! Our own binary once more, as a server on a pipe, for the commands that show the real thing.

use std::ffi::OsString;
use std::io;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A server that lives no longer than this value.
pub struct OwnServer {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
}

/// Starts `ringfence <args>` with exactly this environment. Its log stays on our standard error.
pub fn own_server(
    args: impl IntoIterator<Item = OsString>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> io::Result<OwnServer> {
    let mut child = Command::new("/proc/self/exe")
        .args(args)
        .env_clear()
        .envs(env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    Ok(OwnServer { child, stdin, stdout })
}

impl OwnServer {
    /// Where messages go; `None` once the server was told to end.
    pub fn input(&mut self) -> Option<&mut ChildStdin> {
        self.stdin.as_mut()
    }

    /// Where answers come from; it is given away once.
    pub fn take_output(&mut self) -> Option<ChildStdout> {
        self.stdout.take()
    }

    /// The end of its input is the end of the server; its output ends when it is gone.
    pub fn close_input(&mut self) {
        self.stdin = None;
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        // One that ended by itself cannot be killed any more; either way it is reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
