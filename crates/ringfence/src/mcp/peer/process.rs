//! Search for the process that holds a socket, and whether a Ringfence server started that process.
//!
//! A process in a sandbox has the user id of its server, so the id alone does not keep it out, and
//! with `allow_network` it shares our network. Its ancestry identifies it: above every run is a
//! zygote or supervisor, orphans fall back to the run's own init, and all of them die with the
//! supervisor. A run cannot change any of that.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use super::socket::PeerSocket;
use crate::approval::terminal::parse_stat;

/// Longest ancestry that is followed. Real ones are shorter; a table that changes during the walk
/// must not trap us.
const MAX_GENERATIONS: usize = 256;
/// How often a search without result is repeated: the table changes during the search.
const MAX_ATTEMPTS: usize = 3;

/// Kind of process that holds a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketHolder {
    /// Process that no Ringfence server started.
    Independent,
    /// Process in a sandbox, a supervisor, or a server that connects for a run.
    Sandboxed,
    Unknown,
}

/// Finds the processes that hold this socket and judges them. One independent holder is enough: it
/// could forward anything that it is sent, so a second holder inside a sandbox adds nothing.
pub fn judge_holders(socket: PeerSocket) -> SocketHolder {
    let known_holder = (0..MAX_ATTEMPTS)
        .map(|_| search_processes(socket))
        .find(|holder| *holder != SocketHolder::Unknown);
    known_holder.unwrap_or(SocketHolder::Unknown)
}

fn search_processes(socket: PeerSocket) -> SocketHolder {
    let Some(ancestors) = own_ancestors() else { return SocketHolder::Unknown };
    let socket_link = format!("socket:[{}]", socket.inode);
    let processes = list_processes();
    let mut is_sandboxed = false;
    let mut is_unseen = false;
    let mut is_hidden_server = false;
    for pid in &processes {
        match find_descriptor(*pid, &socket_link) {
            Ok(Some(path)) => {
                let started_by_us = is_started_by_us(*pid, &ancestors).map(|started_by_us| {
                    started_by_us || is_ringfence(*pid) && !is_own_client(*pid)
                });
                // Still the same process, not a later one with its pid.
                match started_by_us.filter(|_| links_to(&path, &socket_link)) {
                    Some(false) => return SocketHolder::Independent,
                    Some(true) => is_sandboxed = true,
                    None => {}
                }
            }
            Err(error)
                if error.kind() == io::ErrorKind::PermissionDenied
                    && has_user(*pid, socket.uid) =>
            {
                is_unseen = true;
                is_hidden_server |= is_named_like_us(*pid);
            }
            Ok(None) | Err(_) => {}
        }
    }
    if is_sandboxed {
        return SocketHolder::Sandboxed;
    }
    // Some programs hide their descriptors (`sshd` does), and root's are hidden from everyone else.
    // One of those holds the socket, unless a sandbox has hidden it: in a thread with its own
    // descriptor table, or in transit through a unix socket. So there must be no sandbox that could
    // do that. Nor may there be another server: servers hide their descriptors as well, and hold
    // the connections that their proxies make for runs.
    if is_unseen
        && !is_hidden_server
        && !processes.iter().any(|pid| could_hide_socket(*pid, &ancestors))
    {
        return SocketHolder::Independent;
    }
    SocketHolder::Unknown
}

/// Lists all processes, newest first: a client that connects is more often a new process than an
/// old one.
fn list_processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable_by(|one, other| other.cmp(one));
    pids
}

fn find_descriptor(pid: u32, socket_link: &str) -> io::Result<Option<String>> {
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = format!("/proc/{pid}/fd/{}", entry?.file_name().display());
        if links_to(&path, socket_link) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn links_to(path: &str, expected: &str) -> bool {
    fs::read_link(path).is_ok_and(|target| target.as_os_str() == expected)
}

/// Returns this process and its ancestors. What they started is not in a sandbox as seen from here,
/// even if all of us run in one.
fn own_ancestors() -> Option<Vec<u32>> {
    let mut chain = vec![std::process::id()];
    while chain.len() < MAX_GENERATIONS {
        match parent_of(*chain.last()?)? {
            0 => return Some(chain),
            parent => chain.push(parent),
        }
    }
    None
}

/// Returns whether this or another server started the process; `None` if the table changed during
/// the walk.
fn is_started_by_us(pid: u32, ancestors: &[u32]) -> Option<bool> {
    let our_pid = std::process::id();
    let (mut child, mut current) = (None, pid);
    for _ in 0..MAX_GENERATIONS {
        if current == our_pid {
            return Some(true);
        }
        if current == 0 || ancestors.contains(&current) {
            return Some(false);
        }
        let (is_runner, parent) = (is_run_process(current)?, parent_of(current)?);
        // A process whose parent has died gets a new one, so the data is about the parent only if
        // it still is the parent.
        if child.is_some_and(|child| parent_of(child) != Some(current)) {
            return None;
        }
        if is_runner {
            return Some(true);
        }
        (child, current) = (Some(current), parent);
    }
    None
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&stat).map(|(parent, ..)| parent)
}

/// Returns whether a process is a zygote, a supervisor or the init of a run, which share their
/// command line. Other processes can imitate it, and are then refused as well.
fn is_run_process(pid: u32) -> Option<bool> {
    let cmdline = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let argument = cmdline.split(|byte| *byte == 0).nth(1).unwrap_or_default();
    Some(
        [jail::zygote::ARGUMENT, jail::supervisor::ARGUMENT]
            .iter()
            .any(|name| name.as_bytes() == argument),
    )
}

/// Returns whether a process of our program is `ringfence tools` or `ringfence call`. Those connect
/// only where the person who started them says, and have no proxy: a server that they start is a
/// process of its own. No run can change the command line of a process outside it.
fn is_own_client(pid: u32) -> bool {
    let cmdline = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let command = cmdline.split(|byte| *byte == 0).nth(1);
    command.is_some_and(|command| [&b"tools"[..], b"call"].contains(&command))
}

/// Returns whether a process runs our program: the proxy of a run is part of its server, which
/// connects where the run tells it to.
fn is_ringfence(pid: u32) -> bool {
    let link = format!("/proc/{pid}/exe");
    let file_id = |path: &str| fs::metadata(path).ok().map(|data| (data.dev(), data.ino()));
    let name = fs::read_link(&link).ok();
    let name = name.as_ref().and_then(|path| path.file_name()?.to_str());
    let name = name.map(|name| name.strip_suffix(" (deleted)").unwrap_or(name));
    name == Some("ringfence")
        || file_id(&link).is_some_and(|theirs| file_id("/proc/self/exe") == Some(theirs))
}

/// Returns whether a process that hides from us has the name of our program. Everyone can read the
/// name, and no run can change it.
fn is_named_like_us(pid: u32) -> bool {
    let name = |pid: u32| fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    let theirs = name(pid);
    theirs.as_deref().map(str::trim_end) == Some("ringfence") || theirs == name(std::process::id())
}

/// Returns whether this may be a sandboxed process on our network. A seccomp filter can never be
/// removed, and only the programs of a run have one, not the processes above them.
fn could_hide_socket(pid: u32, ancestors: &[u32]) -> bool {
    const FILTERED: &str = "2";
    if status_field(pid, "Seccomp").is_none_or(|mode| mode != FILTERED) {
        return false;
    }
    let network = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let is_other_network =
        network(&pid.to_string()).is_some_and(|theirs| network("self") != Some(theirs));
    !is_other_network && is_started_by_us(pid, ancestors) != Some(false)
}

fn has_user(pid: u32, uid: u32) -> bool {
    status_field(pid, "Uid")
        .is_some_and(|ids| ids.split_whitespace().any(|id| id.parse() == Ok(uid)))
}

fn status_field(pid: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.map(|value| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_started_us_is_independent_and_what_we_start_is_not() {
        let own = own_ancestors().unwrap();
        assert_eq!(own.first(), Some(&std::process::id()));
        for ancestor in &own[1..] {
            assert_eq!(is_started_by_us(*ancestor, &own), Some(false), "{ancestor}");
        }
        let mut child = Command::new("sleep").arg("300").stdin(Stdio::null()).spawn().unwrap();
        assert_eq!(is_started_by_us(child.id(), &own), Some(true));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(is_started_by_us(child.id(), &own), None);
    }

    #[test]
    fn a_zygote_is_known_by_its_command_line() {
        assert_eq!(is_run_process(std::process::id()), Some(false));
        // `tail` takes the word for the name of a file, and waits on the other one.
        let mut other = Command::new("tail");
        let other = other
            .args([jail::zygote::ARGUMENT, "-f", "/dev/null"])
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        let mut other = other.spawn().unwrap();
        // The line is empty until the program is in place.
        while fs::read(format!("/proc/{}/cmdline", other.id())).unwrap().is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(is_run_process(other.id()), Some(true));
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_socket_of_our_own_is_not_that_of_an_independent_process() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, remote) = listener.accept().unwrap();
        let socket =
            super::super::socket::find_peer_socket(remote, server.local_addr().unwrap()).unwrap();
        assert_eq!(judge_holders(socket), SocketHolder::Sandboxed);
        drop(client);
        assert_eq!(
            search_processes(PeerSocket { inode: u64::MAX, ..socket }),
            SocketHolder::Unknown
        );
    }
}
