//! Client side of the servers' sockets, for `ringfence approvals` and `ringfence ps`.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::approval::terminal::{ServerSocket, SocketRequest, find_sockets, remove_if_stale};
use crate::base::{Error, Kind, Result};

/// Timeout for one exchange with a server.
const SERVER_TIMEOUT: Duration = Duration::from_secs(5);
/// Upper bound for one reply; a server holds a bounded number of questions and sessions.
const MAX_REPLY_BYTES: u64 = 64 * 1024 * 1024;

/// Sends a request to every server of this root. Returns process id, socket and reply of each that
/// answers; sockets of servers that were killed are removed.
pub fn ask_all(root: &Path, request: &SocketRequest) -> Result<Vec<(u32, PathBuf, Value)>> {
    let sockets = find_sockets(root).map_err(|error| {
        Error::new(Kind::Unavailable, "cannot list the servers of this root")
            .with_hint("Give the server's root with `--root` (or SANDBOX_ROOT).")
            .with_source(error)
    })?;
    let mut replies = Vec::new();
    for (pid, path) in sockets {
        match exchange_message(&path, request) {
            Ok(reply) => replies.push((pid, path, reply)),
            // A live server may only be slow.
            Err(error) if !remove_if_stale(pid, &path) => {
                tracing::warn!("server {pid} does not answer: {error}");
            }
            Err(_) => {}
        }
    }
    Ok(replies)
}

/// Sends one request to a server and returns its reply.
pub fn exchange_message(path: &Path, request: &SocketRequest) -> std::io::Result<Value> {
    let socket = ServerSocket::from_path(path.to_owned())?;
    let mut stream = UnixStream::connect(&socket.address)?;
    stream.set_read_timeout(Some(SERVER_TIMEOUT))?;
    stream.set_write_timeout(Some(SERVER_TIMEOUT))?;
    stream.write_all(format!("{}\n", serde_json::to_string(request)?).as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream.take(MAX_REPLY_BYTES)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}
