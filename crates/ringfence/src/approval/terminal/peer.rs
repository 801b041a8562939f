//! Checks on the peer of the approvals socket. The agent must not be able to approve its own calls,
//! so an answer is accepted only from a person's terminal: a process with a controlling terminal,
//! outside any sandbox, that neither this server nor its client started.

use std::fs;

use crate::base::client_process::find_client_process;

/// Facts about one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessFacts {
    pub parent: u32,
    pub has_terminal: bool,
    /// Start time, which tells the process from a later one with the same pid.
    pub start_time: u64,
    /// The process is in other namespaces or under a stricter filter than this server; `None` if it
    /// cannot be inspected.
    pub is_sandboxed: Option<bool>,
}

/// Process table. A trait, so that the rules can be tested without creating processes.
pub trait ProcessTable: Send + Sync + 'static {
    /// Returns the facts about a process, if it exists.
    fn read_process(&self, pid: u32) -> Option<ProcessFacts>;
}

/// Peer of a connection, as the kernel reported it when it connected.
#[derive(Debug, Clone, Copy)]
pub struct SocketPeer {
    pub uid: u32,
    pub pid: Option<u32>,
    /// Start time of that process, as seen when it connected.
    pub start_time: Option<u64>,
}

/// This server and its client, whose descendants may not answer.
#[derive(Debug, Clone, Copy)]
pub struct ServerProcess {
    pub pid: u32,
    /// Process that started us to talk over stdio; its other children belong to the agent as well.
    pub client: Option<u32>,
}

impl ServerProcess {
    /// Returns the identity of a network server, which has no client as its parent.
    pub fn without_client() -> Self {
        ServerProcess { pid: std::process::id(), client: None }
    }

    /// Returns the identity of a stdio server, which its client started, perhaps by a launcher.
    pub fn with_client() -> Self {
        ServerProcess { client: find_client_process(), ..ServerProcess::without_client() }
    }
}

/// Longest ancestry that is followed. Real ones are shorter; a table that changes during the walk
/// must not trap us.
const MAX_GENERATIONS: usize = 128;

/// Allows listing to the same user and to root.
pub fn may_list(peer: &SocketPeer, own_uid: u32) -> Result<(), &'static str> {
    if peer.uid == own_uid || peer.uid == 0 {
        Ok(())
    } else {
        Err("this server belongs to another user")
    }
}

/// Allows answering to the same users, but only from a person's terminal.
pub fn may_answer(
    peer: &SocketPeer,
    own_uid: u32,
    server: ServerProcess,
    table: &dyn ProcessTable,
) -> Result<(), &'static str> {
    may_list(peer, own_uid)?;
    let uninspectable = "the answering process cannot be inspected, so its answer is not accepted";
    let pid = peer.pid.ok_or(uninspectable)?;
    let process = table.read_process(pid).ok_or(uninspectable)?;
    if peer.start_time != Some(process.start_time) {
        return Err(uninspectable);
    }
    if !process.has_terminal {
        return Err("answers are accepted only from a terminal");
    }
    match process.is_sandboxed {
        Some(false) => {}
        Some(true) => return Err("answers are not accepted from inside a sandbox"),
        // Only root's processes cannot be inspected, and root does not need our permission for
        // anything.
        None if peer.uid == 0 && own_uid != 0 => {}
        None => return Err(uninspectable),
    }
    let forbidden_ancestors = [Some(server.pid), server.client.filter(|pid| *pid > 1)];
    let mut ancestor = pid;
    for _ in 0..MAX_GENERATIONS {
        if forbidden_ancestors.contains(&Some(ancestor)) {
            return Err(
                "processes started by this server or its client cannot answer its questions",
            );
        }
        if ancestor <= 1 {
            return Ok(());
        }
        ancestor = table.read_process(ancestor).ok_or(uninspectable)?.parent;
    }
    Err(uninspectable)
}

/// Process table of the system, from /proc.
pub struct ProcfsTable;

impl ProcessTable for ProcfsTable {
    fn read_process(&self, pid: u32) -> Option<ProcessFacts> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (parent, has_terminal, start_time) = parse_stat(&stat)?;
        Some(ProcessFacts { parent, has_terminal, start_time, is_sandboxed: is_sandboxed(pid) })
    }
}

/// Parses parent, terminal and start time from `/proc/PID/stat`. The name in parentheses is chosen
/// by the process and may contain anything, so the fields are counted from the last parenthesis.
pub fn parse_stat(stat: &str) -> Option<(u32, bool, u64)> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let terminal: i64 = fields.get(4)?.parse().ok()?;
    Some((fields.get(1)?.parse().ok()?, terminal != 0, fields.get(19)?.parse().ok()?))
}

fn is_sandboxed(pid: u32) -> Option<bool> {
    let own_pid = std::process::id();
    for namespace in ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"] {
        let link = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).ok();
        if link(pid)? != link(own_pid)? {
            return Some(true);
        }
    }
    let (theirs, ours) = (read_restraints(pid)?, read_restraints(own_pid)?);
    Some(theirs.0 > ours.0 || theirs.1 > ours.1)
}

/// Returns `NoNewPrivs` and the number of seccomp filters of a process.
fn read_restraints(pid: u32) -> Option<(u32, u32)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map_or(Some(0), |value| value.trim().parse().ok())
    };
    // Kernels before 5.9 do not count the filters; use the mode instead.
    let filters = if status.contains("Seccomp_filters:") {
        field("Seccomp_filters")?
    } else {
        field("Seccomp")?
    };
    Some((field("NoNewPrivs")?, filters))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    struct Table(HashMap<u32, ProcessFacts>);

    impl ProcessTable for Table {
        fn read_process(&self, pid: u32) -> Option<ProcessFacts> {
            self.0.get(&pid).copied()
        }
    }

    const UID: u32 = 1000;
    const SERVER: ServerProcess = ServerProcess { pid: 50, client: Some(40) };

    /// 1 init; 30 the user's shell; 40 the client; 50 the server; 60 a tool run; 61 its child; 70
    /// the client's own shell; 80 another terminal of the user; 90 a fenced process elsewhere.
    fn table() -> Table {
        let one = |parent| ProcessFacts {
            parent,
            has_terminal: true,
            start_time: 7,
            is_sandboxed: Some(false),
        };
        let parents =
            [(1, 0), (30, 1), (40, 30), (50, 40), (60, 50), (61, 60), (70, 40), (80, 30), (90, 30)];
        let mut table: HashMap<u32, ProcessFacts> =
            parents.into_iter().map(|(pid, parent)| (pid, one(parent))).collect();
        table.get_mut(&90).unwrap().is_sandboxed = Some(true);
        Table(table)
    }

    fn peer(pid: u32) -> SocketPeer {
        SocketPeer { uid: UID, pid: Some(pid), start_time: Some(7) }
    }

    #[test]
    fn a_persons_terminal_may_answer_and_the_agents_processes_may_not() {
        let table = table();
        let check = |pid| may_answer(&peer(pid), UID, SERVER, &table);
        assert_eq!(check(80), Ok(()));
        assert_eq!(check(30), Ok(()));
        for pid in [50, 60, 61] {
            assert!(check(pid).unwrap_err().contains("started"), "{pid}");
        }
        assert!(check(70).unwrap_err().contains("client"));
        assert!(check(90).unwrap_err().contains("sandbox"));
        assert!(check(999).is_err());
        // On the network the shell that started the server is a person's, not a client.
        let alone = ServerProcess { pid: 50, client: None };
        assert_eq!(may_answer(&peer(70), UID, alone, &table), Ok(()));
        // A client that is gone leaves us to init, and everything descends from that.
        assert_eq!(
            may_answer(&peer(80), UID, ServerProcess { pid: 50, client: Some(1) }, &table),
            Ok(())
        );
    }

    #[test]
    fn no_terminal_no_answer() {
        let mut table = table();
        table.0.get_mut(&80).unwrap().has_terminal = false;
        assert_eq!(
            may_answer(&peer(80), UID, SERVER, &table),
            Err("answers are accepted only from a terminal")
        );
        assert_eq!(may_list(&peer(80), UID), Ok(()));
    }

    #[test]
    fn another_user_may_not_even_list_and_root_may_answer_unseen() {
        let mut table = table();
        let stranger = SocketPeer { uid: 1001, ..peer(80) };
        assert!(may_list(&stranger, UID).is_err());
        assert!(may_answer(&stranger, UID, SERVER, &table).is_err());
        table.0.get_mut(&80).unwrap().is_sandboxed = None;
        assert!(may_answer(&peer(80), UID, SERVER, &table).is_err());
        assert_eq!(may_answer(&SocketPeer { uid: 0, ..peer(80) }, UID, SERVER, &table), Ok(()));
        // A server of root's can look at everything, so there it is no excuse.
        assert!(may_answer(&SocketPeer { uid: 0, ..peer(80) }, 0, SERVER, &table).is_err());
    }

    #[test]
    fn a_number_that_was_given_to_another_process_does_not_count() {
        let table = table();
        assert!(
            may_answer(&SocketPeer { start_time: Some(6), ..peer(80) }, UID, SERVER, &table)
                .is_err()
        );
        assert!(
            may_answer(&SocketPeer { start_time: None, ..peer(80) }, UID, SERVER, &table).is_err()
        );
        assert!(may_answer(&SocketPeer { pid: None, ..peer(80) }, UID, SERVER, &table).is_err());
        let mut circle = table;
        circle.0.get_mut(&30).unwrap().parent = 80;
        assert!(may_answer(&peer(80), UID, SERVER, &circle).is_err());
    }

    #[test]
    fn a_process_cannot_lie_with_its_name() {
        let stat =
            "77 (sh) S 1 1 1 34816 ) S 42 77 77 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0";
        assert_eq!(parse_stat(stat), Some((42, false, 12345)));
        assert_eq!(parse_stat("77 (sh"), None);
    }

    #[test]
    fn the_real_table_knows_this_process() {
        let own = ProcfsTable.read_process(std::process::id()).unwrap();
        assert_eq!(own.parent, rustix::process::getppid().unwrap().as_raw_pid() as u32);
        assert_eq!(own.is_sandboxed, Some(false));
        assert!(own.start_time > 0);
    }
}
