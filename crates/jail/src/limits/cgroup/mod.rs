//! One control group: a directory that the kernel fills with files.

mod legacy;
mod name;
mod place;
mod unified;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use name::sweep;

pub(super) use legacy::create as create_legacy;
pub(super) use name::Name;
pub use place::Places;
pub(super) use unified::{create as create_unified, create_bare};

/// Every round finds what was born during the one before; with forks shut off, two are enough.
const KILL_ROUNDS: usize = 64;
/// More than most of these files have.
const READ_BYTES: usize = 8192;
/// A process that has ended leaves its group a moment later, and version 1 has no event for that.
const PAUSE: Duration = Duration::from_micros(200);

/// A group that is removed when this is dropped, if nothing lives in it.
#[derive(Debug)]
pub(super) struct Group {
    path: PathBuf,
    /// A fork of the owner inherits this value, but not the right to remove what it names.
    owner: Pid,
}

impl Group {
    fn create(parent: &Path, name: &Name) -> io::Result<Group> {
        let path = parent.join(name.as_str());
        fs::create_dir(&path)?;
        Ok(Group { path, owner: getpid() })
    }

    /// A group that is there already; its drop removes it like any other.
    fn existing(path: PathBuf) -> Group {
        Group { path, owner: getpid() }
    }

    /// One write, which is what the kernel parses; the file is never created.
    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        write(&self.path.join(file), value)
    }

    /// The number behind `key` in a file of `key number` lines; nothing when either is missing.
    pub(super) fn count(&self, file: &str, key: &str) -> u64 {
        let text = read(&self.path.join(file)).unwrap_or_default();
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok());
        value.unwrap_or(0)
    }

    pub(super) fn add(&self, pid: Pid) -> io::Result<()> {
        self.set("cgroup.procs", &pid.to_string())
    }

    /// The processes in it that this process can see.
    fn pids(&self) -> io::Result<Vec<Pid>> {
        let text = read(&self.path.join("cgroup.procs"))?;
        Ok(text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect())
    }

    pub(super) fn is_empty(&self) -> io::Result<bool> {
        // Version 2 says so itself, of groups below as well.
        match read(&self.path.join("cgroup.events")) {
            Ok(events) => Ok(events.lines().any(|line| line == "populated 0")),
            Err(_) => Ok(read(&self.path.join("cgroup.procs"))?.is_empty()),
        }
    }

    /// Kills everything in it; whether it did. Nothing can be started in it afterwards.
    pub(super) fn kill(&self) -> bool {
        if self.set("cgroup.kill", "1").is_ok() {
            return true;
        }
        // Older kernels and version 1: with no fork possible any more, a walk through the list misses nobody. Where
        // that cannot be said, the rounds have to outrun the forks.
        let _ = self.set("pids.max", "0");
        let mut signalled = Vec::new();
        (0..KILL_ROUNDS).any(|_| matches!(self.kill_round(&mut signalled), Ok(0)))
    }

    /// Kills what was not killed before, and says how many those were.
    fn kill_round(&self, signalled: &mut Vec<Pid>) -> io::Result<usize> {
        let found = self.pids()?.into_iter().filter(|pid| !signalled.contains(pid));
        let held: Vec<_> = found
            .filter_map(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)))
            .collect();
        // A pid that is still on the list belongs to the process that the descriptor holds, not to a successor.
        let listed = self.pids()?;
        for (pid, process) in held.iter().filter(|(pid, _)| listed.contains(pid)) {
            match pidfd_send_signal(process, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => signalled.push(*pid),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(held.len())
    }

    /// Removes it as soon as the last process in it is gone; what is not gone in time stays, for a later sweep.
    pub(super) fn remove_when_empty(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        while self.remove().is_err() {
            if Instant::now() >= until {
                return false;
            }
            for pid in self.pids().unwrap_or_default() {
                if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
                    wait_for(&process, until);
                }
            }
            std::thread::sleep(PAUSE);
        }
        true
    }

    fn remove(&self) -> io::Result<()> {
        match fs::remove_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// A descriptor for `CLONE_INTO_CGROUP`.
    pub(super) fn directory(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(CWD, &self.path, flags, Mode::empty())?)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.owner == getpid() {
            let _ = self.remove();
        }
    }
}

fn wait_for(process: &OwnedFd, until: Instant) {
    let left = until.saturating_duration_since(Instant::now());
    let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit));
}

/// In one read: the size that such a file states is nothing, and asking for it byte by byte doubles the cost.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::with_capacity(READ_BYTES);
    File::open(path)?.take(u64::MAX).read_to_string(&mut text)?;
    Ok(text)
}

fn write(path: &Path, value: &str) -> io::Result<()> {
    File::options().write(true).open(path)?.write_all(value.as_bytes())
}

/// The way into a cage for a process that enters by itself: opened beforehand, so that neither a new root nor lost
/// privileges stand in the way.
///
/// Moving another process costs a grace period of the kernel, some ten milliseconds on an idle machine. A thread that
/// moves itself in version 1 costs microseconds.
#[derive(Debug)]
pub struct Door(Vec<File>);

impl Door {
    pub(super) fn open(groups: &[Group]) -> io::Result<Door> {
        let open = |group: &Group| {
            // `tasks` is version 1's file of threads, the one that needs no grace period.
            let file = File::options().write(true).open(group.path.join("tasks"));
            file.or_else(|_| File::options().write(true).open(group.path.join("cgroup.procs")))
        };
        Ok(Door(groups.iter().map(open).collect::<io::Result<_>>()?))
    }

    /// Moves the calling thread into the cage, and in version 2 its process. For a child between fork and exec, which
    /// has no other thread: it allocates nothing.
    pub fn enter(&self) -> io::Result<()> {
        self.0.iter().try_for_each(|mut file| file.write_all(b"0"))
    }
}
