//! Finds the process that started this server to talk to it on standard input and output.
//!
//! It is not always the parent: `npx`, `uvx`, shells and the launcher of the npm package stand
//! between. They pass on their own standard input, so they have the same one as the server; the
//! client has the other end of it.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// Most launchers that are followed. Real chains have two or three; a table that changes during the
/// walk must not trap us.
const MAX_LAUNCHERS: usize = 32;

/// Returns the client of this server: its nearest ancestor with another standard input; without
/// /proc, its parent.
pub fn find_client_process() -> Option<u32> {
    let parent = || rustix::process::getppid()?.as_raw_pid().try_into().ok();
    find_client_of(std::process::id()).or_else(parent)
}

/// Going too far up would name a process that started the client, whose descendants include the
/// client's: a mistake in this direction trusts fewer processes, not more.
fn find_client_of(server: u32) -> Option<u32> {
    let mut ancestor = read_parent(server)?;
    // A terminal, a file or /dev/null is shared by processes that have nothing to do with us.
    let Some(input) = read_input(server).filter(is_channel) else { return Some(ancestor) };
    let is_ours = |other: &Metadata| (other.dev(), other.ino()) == (input.dev(), input.ino());
    for _ in 0..MAX_LAUNCHERS {
        // A process that cannot be inspected belongs to another user and is not our launcher.
        if ancestor <= 1 || !read_input(ancestor).as_ref().is_some_and(is_ours) {
            break;
        }
        ancestor = read_parent(ancestor)?;
    }
    Some(ancestor)
}

fn is_channel(input: &Metadata) -> bool {
    input.file_type().is_fifo() || input.file_type().is_socket()
}

fn read_input(pid: u32) -> Option<Metadata> {
    fs::metadata(format!("/proc/{pid}/fd/0")).ok()
}

fn read_parent(pid: u32) -> Option<u32> {
    // The name of the process, which it chooses itself, has no line breaks here.
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use rustix::process::{Pid, Signal, kill_process_group};

    use super::*;

    /// Starts a shell in a shell in a shell, and returns the pid of the innermost one.
    fn start_shells(input: Stdio) -> (Child, u32) {
        let mut outer = Command::new("sh");
        // The command after each shell keeps the outer one from becoming the inner one.
        outer.args(["-c", r#"sh -c 'sh -c "echo \$\$; read line; true"; true'; true"#]);
        let outer = outer.stdin(input).stdout(Stdio::piped()).process_group(0);
        let mut outer = outer.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(outer.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (outer, line.trim().parse().unwrap())
    }

    #[test]
    fn the_client_is_found_behind_launchers() {
        let (mut outer, inner) = start_shells(Stdio::piped());
        assert_ne!(read_parent(inner), Some(outer.id()));
        assert_eq!(find_client_of(inner), Some(std::process::id()));
        drop(outer.stdin.take());
        outer.wait().unwrap();
    }

    #[test]
    fn without_a_channel_the_parent_is_the_client() {
        let pseudo_terminal = fs::OpenOptions::new().read(true).write(true).open("/dev/ptmx");
        let (mut outer, inner) = start_shells(Stdio::from(pseudo_terminal.unwrap()));
        let parent = read_parent(inner).unwrap();
        assert_ne!(parent, outer.id());
        assert_eq!(find_client_of(inner), Some(parent));
        // With the inner ones, which read from a terminal that no one writes to.
        let group = Pid::from_child(&outer);
        kill_process_group(group, Signal::KILL).unwrap();
        outer.wait().unwrap();
    }
}
