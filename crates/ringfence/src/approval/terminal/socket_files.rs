//! The sockets of all servers of a root: where they are, and which of them are left over.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

/// Around the process id in the name of a socket.
const SOCKET_PREFIX: &str = "server-";
const SOCKET_SUFFIX: &str = ".sock";

/// Returns the directory for the sockets of all servers with this root.
pub fn socket_directory(root: &Path) -> PathBuf {
    root.join("run")
}

/// Path of a socket, and an address for it that fits into the 108 bytes that the kernel allows.
pub struct ServerSocket {
    pub path: PathBuf,
    pub address: PathBuf,
    /// Keeps the address valid.
    _dir: Option<OwnedFd>,
}

impl ServerSocket {
    pub(super) fn for_server(dir: &Path, pid: u32) -> std::io::Result<ServerSocket> {
        ServerSocket::from_path(dir.join(format!("{SOCKET_PREFIX}{pid}{SOCKET_SUFFIX}")))
    }

    /// Returns the socket at this path. A long path is reached through its opened directory.
    pub fn from_path(path: PathBuf) -> std::io::Result<ServerSocket> {
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(ErrorKind::InvalidInput.into());
        };
        if path.as_os_str().len() < 100 {
            return Ok(ServerSocket { address: path.clone(), path, _dir: None });
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(dir, flags, Mode::empty())?;
        let address = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
        Ok(ServerSocket { path, address, _dir: Some(dir) })
    }
}

/// Returns the process id and socket of every server of this root.
pub fn find_sockets(root: &Path) -> std::io::Result<Vec<(u32, PathBuf)>> {
    let entries = match fs::read_dir(socket_directory(root)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut sockets = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let pid_text =
            name.strip_prefix(SOCKET_PREFIX).and_then(|rest| rest.strip_suffix(SOCKET_SUFFIX));
        if let Some(pid) = pid_text.and_then(|pid_text| pid_text.parse().ok()) {
            sockets.push((pid, path));
        }
    }
    sockets.sort();
    Ok(sockets)
}

/// Removes the sockets of servers that were killed. Errors are ignored: the next server tries again.
pub fn remove_stale_sockets(root: &Path) {
    for (pid, path) in find_sockets(root).unwrap_or_default() {
        remove_if_stale(pid, &path);
    }
}

/// Removes a socket if its process is gone and it refuses connections. Returns whether it was stale.
pub fn remove_if_stale(pid: u32, path: &Path) -> bool {
    // The process alone does not decide: that of a server in another container is not visible here.
    // The connection alone does not either: a server that is starting has not listened yet.
    let refuses_connections = || {
        let socket = ServerSocket::from_path(path.to_owned());
        let connected = socket.and_then(|socket| UnixStream::connect(&socket.address));
        connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    };
    let is_stale = is_process_gone(pid) && refuses_connections();
    if is_stale {
        let _ = fs::remove_file(path);
    }
    is_stale
}

fn is_process_gone(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_none_or(|pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::config::scratch::Scratch;

    #[test]
    fn only_sockets_of_servers_that_are_gone_are_removed() {
        let scratch = Scratch::new();
        let run = scratch.dir("run");
        let bind = |pid: u32| {
            let path = run.join(format!("server-{pid}.sock"));
            (UnixListener::bind(&path).unwrap(), path)
        };
        // Beyond the largest process number there can be: one listens, as a server in another
        // container does, one does not. The third has a process, and has not listened yet.
        let (_listening, distant) = bind(4_194_306);
        let (_, dead) = bind(4_194_305);
        let (_, starting) = bind(std::process::id());
        remove_stale_sockets(scratch.path());
        assert!(distant.exists() && !dead.exists() && starting.exists());
        assert_eq!(find_sockets(scratch.path()).unwrap().len(), 2);
    }
}
