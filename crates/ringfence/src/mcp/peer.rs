//! Identity of the peer of a TCP connection while auth is off. "Local" must then mean the same
//! user, outside every sandbox: on a shared machine everyone can reach 127.0.0.1, from any address
//! of the machine, and so can a run that shares our network.
//!
//! A peer that cannot be identified is refused.

mod address;
mod process;
mod socket;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::OnceCell;

use self::address::is_own_address;
use self::process::{SocketHolder, judge_holders};
use self::socket::find_peer_socket;
use crate::base::{Error, Result};

/// Accepted connection. Clones share what has been found out about it.
#[derive(Debug, Clone)]
pub struct AcceptedConnection {
    remote: SocketAddr,
    local: Option<SocketAddr>,
    verdict: Arc<OnceCell<PeerVerdict>>,
}

/// Verdict on the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeerVerdict {
    Admitted,
    OtherUser,
    Sandboxed,
    Unknown,
}

impl AcceptedConnection {
    /// Creates the entry for a socket that was just accepted.
    pub fn new(stream: &TcpStream, remote: SocketAddr) -> Self {
        AcceptedConnection { remote, local: stream.local_addr().ok(), verdict: Arc::default() }
    }

    /// Returns the address of the peer.
    pub fn remote_address(&self) -> SocketAddr {
        self.remote
    }

    /// Requires that the peer belongs to this user or to root, and is not in a Ringfence sandbox.
    /// With `exempt_other_machines`, only connections from this machine are checked. Looked up once
    /// per connection.
    pub async fn require_owner(&self, exempt_other_machines: bool) -> Result<()> {
        let verdict = self.verdict.get_or_init(|| async {
            let (remote, local) = (self.remote, self.local);
            // Reads files of /proc, one for each descriptor of other processes in the worst case.
            let verdict_task = tokio::task::spawn_blocking(move || {
                judge_peer(remote, local, exempt_other_machines)
            });
            verdict_task.await.unwrap_or(PeerVerdict::Unknown)
        });
        let (reason, message, hint) = match verdict.await {
            PeerVerdict::Admitted => return Ok(()),
            PeerVerdict::OtherUser => (
                "other_user",
                "this connection belongs to another user of this machine",
                "Turn on auth (MCP_AUTH_ENABLED) to serve more than one user.",
            ),
            PeerVerdict::Sandboxed => (
                "sandboxed_peer",
                "this connection comes from inside a sandbox",
                "Connect from a process that no Ringfence server started, or turn on auth (MCP_AUTH_ENABLED).",
            ),
            PeerVerdict::Unknown => (
                "unknown_owner",
                "the process at the other end of this connection cannot be identified",
                "Connect from the same machine and container, or turn on auth (MCP_AUTH_ENABLED).",
            ),
        };
        Err(Error::permission_denied(reason, message).with_hint(hint))
    }
}

fn judge_peer(
    remote: SocketAddr,
    local: Option<SocketAddr>,
    exempt_other_machines: bool,
) -> PeerVerdict {
    let Some(local) = local else { return PeerVerdict::Unknown };
    let Some(socket) = find_peer_socket(remote, local) else {
        // Only if no socket of this machine matches: a local process can choose any address of the
        // machine.
        return match exempt_other_machines && is_own_address(remote).is_ok_and(|is_own| !is_own) {
            true => PeerVerdict::Admitted,
            false => PeerVerdict::Unknown,
        };
    };
    // Root can do anything in any case.
    if ![0, rustix::process::geteuid().as_raw()].contains(&socket.uid) {
        return PeerVerdict::OtherUser;
    }
    match judge_holders(socket) {
        SocketHolder::Independent => PeerVerdict::Admitted,
        SocketHolder::Sandboxed => PeerVerdict::Sandboxed,
        SocketHolder::Unknown => PeerVerdict::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_without_a_known_owner_is_refused() {
        let local = Some("127.0.0.1:2".parse().unwrap());
        for remote in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            for exempt in [false, true] {
                assert_eq!(
                    judge_peer(remote.parse().unwrap(), local, exempt),
                    PeerVerdict::Unknown,
                    "{remote} {exempt}"
                );
            }
        }
        let elsewhere = "198.51.100.1:1".parse().unwrap();
        assert_eq!(judge_peer(elsewhere, local, false), PeerVerdict::Unknown);
        assert_eq!(judge_peer(elsewhere, None, true), PeerVerdict::Unknown);
    }
}
