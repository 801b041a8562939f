//! The tree of a run, and how it is ended.
//!
//! With a pid namespace of its own there is nothing to look for: its first process signals all the others, and when
//! it is killed the kernel kills them. Without one the tree is everything below this process, as /proc shows it. A
//! process group would not be enough: a daemon that forks twice and calls setsid leaves it. It cannot leave the
//! tree, because this process is the subreaper that every orphan of the run falls back to.

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

use super::Left;
use super::lifecycle::Event;
use crate::init::{News, Word};
use crate::packet::Channel;
use crate::sys;

/// Enough for anything that forks while it is being frozen; whatever is left gets the next round.
const FREEZE_PASSES: usize = 16;
const CHASE_PASSES: usize = 256;

/// Whose tree it is.
pub(super) enum Tree {
    /// Below this process.
    Walked { main: Pid },
    /// Below a child of ours, which every orphan falls back to. We trace the tree, and who traces must not be a parent:
    /// waiting for children would take the tracer's news.
    Beneath { first: Pid, talk: Channel },
    /// In a pid namespace, whose first process is our child.
    Namespace { first: Pid, talk: Channel },
}

impl Tree {
    /// Asks everything to end, by this signal.
    pub(super) fn terminate(&self, signal: i32) {
        match self {
            Tree::Walked { .. } => terminate(getpid(), signal),
            Tree::Beneath { first, .. } => terminate(*first, signal),
            // If it does not hear, it is dead, and with it everything else.
            Tree::Namespace { talk, .. } => drop(talk.send(&Word::Terminate(signal), &[])),
        }
    }

    /// A signal for the main process and its group, which is its own session's.
    pub(super) fn signal(&self, signal: i32) {
        match self {
            Tree::Walked { main } => drop(sys::trace::signal(-main.as_raw_nonzero().get(), signal)),
            Tree::Beneath { talk, .. } | Tree::Namespace { talk, .. } => {
                drop(talk.send(&Word::Signal(signal), &[]))
            }
        }
    }

    /// Ends everything there is.
    pub(super) fn kill(&self) {
        match self {
            Tree::Walked { .. } => kill(getpid()),
            Tree::Beneath { first, .. } => kill(*first),
            // Our child until we reap it, so the number is its own.
            Tree::Namespace { first, .. } => drop(kill_process(*first, Signal::KILL)),
        }
    }

    /// A way to list its processes from another thread.
    pub(super) fn lister(&self) -> impl Fn() -> Vec<Pid> + Send + Sync + 'static {
        let top = match self {
            Tree::Walked { .. } => getpid(),
            Tree::Beneath { first, .. } | Tree::Namespace { first, .. } => *first,
        };
        move || {
            below(top)
                .into_iter()
                .filter(|process| !process.dead)
                .map(|process| process.pid)
                .collect()
        }
    }

    /// Tells of the end of the main process and of the last one, from a thread that blocks.
    pub(super) fn listen(&self, events: Sender<Event>) -> io::Result<()> {
        let listener = thread::Builder::new();
        match self {
            Tree::Walked { main } => {
                let main = *main;
                listener.spawn(move || reap(main, &events))?;
            }
            Tree::Beneath { first, talk } | Tree::Namespace { first, talk } => {
                let (first, talk) = (*first, Channel::from(talk.as_fd().try_clone_to_owned()?));
                listener.spawn(move || hear(first, &talk, &events))?;
            }
        }
        Ok(())
    }
}

/// Hears of the main process's end from the first one, and sees the first one's own.
fn hear(first: Pid, talk: &Channel, events: &Sender<Event>) {
    while let Ok(Some((news, _))) = talk.receive::<News>() {
        if let News::Ended { code, signal, left } = news {
            let _ = events.send(Event::Ended { code, signal, left });
        }
    }
    let _ =
        rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(first), WaitOptions::empty()));
    let _ = events.send(Event::Empty);
}

/// Reaps the main process and every orphan. A descendant always has a living ancestor below us or is our child, so
/// having no child left means that the tree is gone.
fn reap(main: Pid, events: &Sender<Event>) {
    let mut ended: Option<WaitStatus> = None;
    let tell = |status: WaitStatus, alone: bool| {
        let left = if alone { Left::Nothing } else { Left::behind(living(getpid())) };
        let (code, signal) = (status.exit_status(), status.terminating_signal());
        let _ = events.send(Event::Ended { code, signal, left });
    };
    loop {
        // With the end of the main process in hand, one look decides whether anything else lives.
        let options = if ended.is_some() { WaitOptions::NOHANG } else { WaitOptions::empty() };
        match wait(options) {
            Ok(Some((pid, status))) if pid == main => ended = Some(status),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => {
                if let Some(status) = ended.take() {
                    tell(status, false);
                }
            }
            Err(_) => {
                if let Some(status) = ended.take() {
                    tell(status, true);
                }
                let _ = events.send(Event::Empty);
                return;
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pid: Pid,
    parent: i32,
    group: i32,
    /// In clock ticks since boot: with the pid it names one process for ever.
    started: u64,
    dead: bool,
    pub(crate) name: String,
}

/// Every living process that can be seen, but this one.
pub(crate) fn all_but_us() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| entry.file_name().to_str().and_then(read));
    found.filter(|process| !process.dead && process.pid != getpid()).collect()
}

/// The descendants of a process, those that have ended among them.
fn below(top: Pid) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if let Some(process) = entry.file_name().to_str().and_then(read) {
            children.entry(process.parent).or_default().push(process);
        }
    }
    let mut found = Vec::new();
    let mut open = vec![top.as_raw_nonzero().get()];
    while let Some(parent) = open.pop() {
        for process in children.remove(&parent).into_iter().flatten() {
            open.push(process.pid.as_raw_nonzero().get());
            // A thread group whose leader has ended may still have living threads, and a zombie takes a signal
            // unharmed, so only the count below leaves the dead out.
            found.push(process);
        }
    }
    found
}

/// The living among them.
pub(crate) fn living(top: Pid) -> Vec<Process> {
    let mut all = below(top);
    all.retain(|process| !process.dead);
    all
}

fn read(pid: &str) -> Option<Process> {
    if !pid.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// `pid (name) state ppid pgrp …`: the name may hold anything, parentheses and spaces too, so the last one counts.
fn parse(stat: &[u8]) -> Option<Process> {
    let stat = String::from_utf8_lossy(stat);
    let (head, tail) = stat.rsplit_once(')')?;
    let (pid, name) = head.split_once(" (")?;
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    Some(Process {
        pid: Pid::from_raw(pid.parse().ok()?)?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        dead: matches!(*fields.first()?, "Z" | "X"),
        name: name.to_owned(),
    })
}

/// Asks everything to end. A stopped process is woken, so that it can.
fn terminate(top: Pid, by: i32) {
    let by = Signal::from_named_raw(by).unwrap_or(Signal::TERM);
    for process in below(top) {
        signal(&process, by);
        signal(&process, Signal::CONT);
    }
}

/// Ends everything there is. Frozen first, so that nothing forks away from the signal; whole groups next, because
/// the kernel signals a group in one step.
pub(crate) fn kill(top: Pid) {
    let mut frozen = HashMap::new();
    for _ in 0..FREEZE_PASSES {
        for _ in 0..CHASE_PASSES {
            if !freeze(children(top), &mut frozen) {
                break;
            }
        }
        if !freeze(living(top), &mut frozen) {
            break;
        }
    }
    let own = getpgrp().as_raw_nonzero().get();
    let groups: BTreeSet<i32> =
        frozen.values().map(|process| process.group).filter(|group| *group != own).collect();
    for group in groups.into_iter().filter_map(Pid::from_raw) {
        // It may be gone already, and what the kernel does not let us signal is tried one by one below.
        let _ = kill_process_group(group, Signal::KILL);
    }
    for process in frozen.values() {
        signal(process, Signal::KILL);
    }
}

/// Stops what was not stopped before; says whether there was any such.
fn freeze(found: Vec<Process>, frozen: &mut HashMap<(Pid, u64), Process>) -> bool {
    let before = frozen.len();
    for process in found {
        if let Entry::Vacant(place) = frozen.entry((process.pid, process.started)) {
            signal(&process, Signal::STOP);
            place.insert(process);
        }
    }
    frozen.len() > before
}

/// The living children of whoever the orphans fall to, found without a walk through all of /proc. A process that forks
/// and exits without pause is gone before a walk ends, but every one of its generations can be caught here.
fn children(top: Pid) -> Vec<Process> {
    let lists = fs::read_dir(format!("/proc/{}/task", top.as_raw_nonzero()))
        .into_iter()
        .flatten()
        .flatten();
    let lists = lists.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let found =
        lists.flat_map(|list| list.split_ascii_whitespace().filter_map(read).collect::<Vec<_>>());
    found.filter(|process| !process.dead).collect()
}

/// Signals the process that was seen and never one that has taken over its number: the descriptor is opened first
/// and the number looked at again, so all three are the same process.
fn signal(process: &Process, signal: Signal) {
    let Ok(handle) = pidfd_open(process.pid, PidfdFlags::empty()) else { return };
    let number = process.pid.as_raw_nonzero().to_string();
    if read(&number).is_some_and(|now| now.started == process.started) {
        // It may have ended meanwhile; a process of another user (setuid) is not ours to end and is waited for.
        let _ = pidfd_send_signal(&handle, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_does_not_confuse_the_parser() {
        let mut line =
            b"42 (a) R 1 1 (b) S 7 8 9 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 123456 0 0".to_vec();
        let process = parse(&line).unwrap();
        assert_eq!(process.name, "a) R 1 1 (b");
        assert_eq!(
            (process.parent, process.group, process.started, process.dead),
            (7, 8, 123_456, false)
        );
        line.truncate(30);
        assert_eq!(parse(&line), None);
    }

    #[test]
    fn a_signal_is_not_sent_to_a_process_that_has_taken_over_the_number() {
        let mut child = std::process::Command::new("/bin/sleep").arg("30").spawn().unwrap();
        let mut seen = read(&child.id().to_string()).unwrap();
        seen.started += 1;
        signal(&seen, Signal::KILL);
        assert_eq!(child.try_wait().unwrap(), None);
        seen.started -= 1;
        signal(&seen, Signal::KILL);
        assert!(!child.wait().unwrap().success());
    }
}
