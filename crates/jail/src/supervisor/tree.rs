//! The process tree of a run, and how it is ended.
//!
//! With a pid namespace there is nothing to search for: its init signals all other processes, and
//! when the init is killed the kernel kills them. Without one the tree is everything below this
//! process, as `/proc` shows it. A process group would not be enough: a daemon that forks twice and
//! calls `setsid` leaves it. It cannot leave the tree, because this process is the subreaper to
//! which every orphan of the run is reparented.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::Sender;
use std::thread;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpgrp, getpid, kill_process,
    kill_process_group, pidfd_open, pidfd_send_signal, wait,
};

use super::LeftBehind;
use super::lifecycle::RunEvent;
use super::wire::{InitCommand, InitReport};
use crate::packet::PacketChannel;
use crate::sys;

/// Enough passes for anything that forks while it is being frozen; the next round gets the rest.
const FREEZE_PASSES: usize = 16;
const CHASE_PASSES: usize = 256;

/// Process tree of a run, by where it is rooted.
pub(super) enum ProcessTree {
    /// Below this process, which is the subreaper.
    BelowSelf { main: Pid },
    /// Below our child, which is the subreaper. We trace the tree, and a tracer must not be a
    /// parent of its tracees: waiting for children would consume the tracer's events.
    BelowChild { first: Pid, talk: PacketChannel },
    /// In a pid namespace whose init is our child.
    Namespace { first: Pid, talk: PacketChannel },
}

impl ProcessTree {
    /// Asks every process to end, with this signal.
    pub(super) fn terminate_all(&self, signal: i32) {
        match self {
            ProcessTree::BelowSelf { .. } => terminate_descendants(getpid(), signal),
            ProcessTree::BelowChild { first, .. } => terminate_descendants(*first, signal),
            // If the init does not receive this it is dead, and so is everything else.
            ProcessTree::Namespace { talk, .. } => {
                drop(talk.send(&InitCommand::Terminate(signal), &[]))
            }
        }
    }

    /// Sends a signal to the main process and its group, which belongs to the run's own session.
    pub(super) fn signal_main(&self, signal: i32) {
        match self {
            ProcessTree::BelowSelf { main } => {
                drop(sys::trace::signal_process(-main.as_raw_nonzero().get(), signal))
            }
            ProcessTree::BelowChild { talk, .. } | ProcessTree::Namespace { talk, .. } => {
                drop(talk.send(&InitCommand::Signal(signal), &[]))
            }
        }
    }

    /// Kills every process.
    pub(super) fn kill_all(&self) {
        match self {
            ProcessTree::BelowSelf { .. } => kill_descendants(getpid()),
            ProcessTree::BelowChild { first, .. } => kill_descendants(*first),
            // The pid cannot be reused: it is our child until we reap it.
            ProcessTree::Namespace { first, .. } => drop(kill_process(*first, Signal::KILL)),
        }
    }

    /// Returns a function that lists the tree's processes from another thread.
    pub(super) fn process_lister(&self) -> impl Fn() -> Vec<Pid> + Send + Sync + 'static {
        let root_pid = match self {
            ProcessTree::BelowSelf { .. } => getpid(),
            ProcessTree::BelowChild { first, .. } | ProcessTree::Namespace { first, .. } => *first,
        };
        move || {
            list_descendants(root_pid)
                .into_iter()
                .filter(|process| !process.is_dead)
                .map(|process| process.pid)
                .collect()
        }
    }

    /// Starts a thread that reports the end of the main process and of the last process.
    pub(super) fn spawn_listener(&self, events: Sender<RunEvent>) -> io::Result<()> {
        let builder = thread::Builder::new();
        match self {
            ProcessTree::BelowSelf { main } => {
                let main = *main;
                builder.spawn(move || reap_children(main, &events))?;
            }
            ProcessTree::BelowChild { first, talk } | ProcessTree::Namespace { first, talk } => {
                let (first, talk) =
                    (*first, PacketChannel::from(talk.as_fd().try_clone_to_owned()?));
                builder.spawn(move || forward_init_reports(first, &talk, &events))?;
            }
        }
        Ok(())
    }
}

/// Receives the end of the main process from the init, then waits for the init itself.
fn forward_init_reports(init_pid: Pid, channel: &PacketChannel, events: &Sender<RunEvent>) {
    while let Ok(Some((report, _))) = channel.receive::<InitReport>() {
        if let InitReport::Ended { code, signal, left } = report {
            let _ = events.send(RunEvent::MainEnded { code, signal, left });
        }
    }
    let _ = rustix::io::retry_on_intr(|| {
        rustix::process::waitpid(Some(init_pid), WaitOptions::empty())
    });
    let _ = events.send(RunEvent::TreeEmpty);
}

/// Reaps the main process and every orphan. Every descendant is our child or has a living ancestor
/// that is, so having no child left means that the tree is gone.
fn reap_children(main_pid: Pid, events: &Sender<RunEvent>) {
    let mut main_status: Option<WaitStatus> = None;
    let send_main_end = |status: WaitStatus, is_alone: bool| {
        let left = if is_alone {
            LeftBehind::Nothing
        } else {
            LeftBehind::from_processes(list_living_descendants(getpid()))
        };
        let (code, signal) = (status.exit_status(), status.terminating_signal());
        let _ = events.send(RunEvent::MainEnded { code, signal, left });
    };
    loop {
        // Once the main process has ended, a single check that does not block decides whether
        // anything else is alive.
        let options =
            if main_status.is_some() { WaitOptions::NOHANG } else { WaitOptions::empty() };
        match wait(options) {
            Ok(Some((pid, status))) if pid == main_pid => main_status = Some(status),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => {
                if let Some(status) = main_status.take() {
                    send_main_end(status, false);
                }
            }
            Err(_) => {
                if let Some(status) = main_status.take() {
                    send_main_end(status, true);
                }
                let _ = events.send(RunEvent::TreeEmpty);
                return;
            }
        }
    }
}

/// A process, as `/proc/PID/stat` describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    pid: Pid,
    parent: i32,
    group: i32,
    /// Start time in clock ticks since boot: together with the pid it identifies one process
    /// permanently.
    start_ticks: u64,
    is_dead: bool,
    pub(crate) name: String,
}

/// Lists every living process that can be seen, except this one.
pub(crate) fn list_other_processes() -> Vec<ProcessStat> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str().and_then(read_process));
    processes.filter(|process| !process.is_dead && process.pid != getpid()).collect()
}

/// Lists the descendants of a process, including those that have ended.
fn list_descendants(root_pid: Pid) -> Vec<ProcessStat> {
    let mut children: HashMap<i32, Vec<ProcessStat>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if let Some(process) = entry.file_name().to_str().and_then(read_process) {
            children.entry(process.parent).or_default().push(process);
        }
    }
    let mut descendants = Vec::new();
    let mut pending = vec![root_pid.as_raw_nonzero().get()];
    while let Some(parent) = pending.pop() {
        for process in children.remove(&parent).into_iter().flatten() {
            pending.push(process.pid.as_raw_nonzero().get());
            // A thread group whose leader has ended may still have living threads, and a signal
            // does a zombie no harm, so only the count of the living leaves out the dead.
            descendants.push(process);
        }
    }
    descendants
}

/// Lists the descendants of a process that are alive.
pub(crate) fn list_living_descendants(root_pid: Pid) -> Vec<ProcessStat> {
    let mut descendants = list_descendants(root_pid);
    descendants.retain(|process| !process.is_dead);
    descendants
}

fn read_process(pid: &str) -> Option<ProcessStat> {
    if !pid.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    parse_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses `pid (name) state ppid pgrp …`. The name may contain anything, also parentheses and
/// spaces, so the last closing parenthesis ends it.
fn parse_stat(stat: &[u8]) -> Option<ProcessStat> {
    let stat = String::from_utf8_lossy(stat);
    let (head, tail) = stat.rsplit_once(')')?;
    let (pid, name) = head.split_once(" (")?;
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    Some(ProcessStat {
        pid: Pid::from_raw(pid.parse().ok()?)?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
        is_dead: matches!(*fields.first()?, "Z" | "X"),
        name: name.to_owned(),
    })
}

/// Asks every descendant to end. SIGCONT wakes a stopped process, so that it can.
fn terminate_descendants(root_pid: Pid, signal: i32) {
    let signal = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
    for process in list_descendants(root_pid) {
        signal_process(&process, signal);
        signal_process(&process, Signal::CONT);
    }
}

/// Kills every descendant. They are stopped first, so that none can fork away from the signal; then
/// whole groups are killed, because the kernel signals a group in one step.
pub(crate) fn kill_descendants(root_pid: Pid) {
    let mut frozen = HashMap::new();
    for _ in 0..FREEZE_PASSES {
        for _ in 0..CHASE_PASSES {
            if !freeze_new(list_living_children(root_pid), &mut frozen) {
                break;
            }
        }
        if !freeze_new(list_living_descendants(root_pid), &mut frozen) {
            break;
        }
    }
    let own_group = getpgrp().as_raw_nonzero().get();
    let groups: BTreeSet<i32> =
        frozen.values().map(|process| process.group).filter(|group| *group != own_group).collect();
    for group in groups.into_iter().filter_map(Pid::from_raw) {
        // The group may be gone already; what the kernel does not let us signal is tried one by one
        // below.
        let _ = kill_process_group(group, Signal::KILL);
    }
    for process in frozen.values() {
        signal_process(process, Signal::KILL);
    }
}

/// Stops processes that were not stopped before. Returns whether there were any.
fn freeze_new(processes: Vec<ProcessStat>, frozen: &mut HashMap<(Pid, u64), ProcessStat>) -> bool {
    let count_before = frozen.len();
    for process in processes {
        if let Entry::Vacant(slot) = frozen.entry((process.pid, process.start_ticks)) {
            signal_process(&process, Signal::STOP);
            slot.insert(process);
        }
    }
    frozen.len() > count_before
}

/// Lists the living children of the process that orphans are reparented to, without walking through
/// all of /proc. A process that forks and exits without pause is gone before a walk ends, but every
/// one of its generations can be caught here.
fn list_living_children(root_pid: Pid) -> Vec<ProcessStat> {
    let lists = fs::read_dir(format!("/proc/{}/task", root_pid.as_raw_nonzero()))
        .into_iter()
        .flatten()
        .flatten();
    let lists = lists.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children = lists.flat_map(|list| {
        list.split_ascii_whitespace().filter_map(read_process).collect::<Vec<_>>()
    });
    children.filter(|process| !process.is_dead).collect()
}

/// Signals the process that was seen and never one that has reused its pid: the pidfd is opened
/// first and the pid's start time is compared afterwards, so all three are the same process.
fn signal_process(process: &ProcessStat, signal: Signal) {
    let Ok(pidfd) = pidfd_open(process.pid, PidfdFlags::empty()) else { return };
    let pid_text = process.pid.as_raw_nonzero().to_string();
    if read_process(&pid_text).is_some_and(|current| current.start_ticks == process.start_ticks) {
        // It may have ended meanwhile. A process of another user (setuid) is not ours to end; it is
        // waited for.
        let _ = pidfd_send_signal(&pidfd, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_does_not_confuse_the_parser() {
        let mut line =
            b"42 (a) R 1 1 (b) S 7 8 9 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 123456 0 0".to_vec();
        let process = parse_stat(&line).unwrap();
        assert_eq!(process.name, "a) R 1 1 (b");
        assert_eq!(
            (process.parent, process.group, process.start_ticks, process.is_dead),
            (7, 8, 123_456, false)
        );
        line.truncate(30);
        assert_eq!(parse_stat(&line), None);
    }

    #[test]
    fn a_signal_is_not_sent_to_a_process_that_has_taken_over_the_number() {
        let mut child = std::process::Command::new("/bin/sleep").arg("30").spawn().unwrap();
        let mut seen = read_process(&child.id().to_string()).unwrap();
        seen.start_ticks += 1;
        signal_process(&seen, Signal::KILL);
        assert_eq!(child.try_wait().unwrap(), None);
        seen.start_ticks -= 1;
        signal_process(&seen, Signal::KILL);
        assert!(!child.wait().unwrap().success());
    }
}
