//! A single control group: a directory that the kernel fills with files.

mod legacy;
mod locations;
mod name;
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

use name::remove_stale_groups;

pub(super) use legacy::create_groups as create_legacy;
pub use locations::CgroupLocations;
pub(super) use name::CgroupName;
pub(super) use unified::{create_group as create_unified, create_unlimited_group};

/// Each round finds processes forked during the previous one; once forks are disabled, two rounds
/// are enough.
const KILL_ROUNDS: usize = 64;
/// Larger than most cgroup files.
const READ_CAPACITY: usize = 8192;
/// A process that has ended leaves its group slightly later, and version 1 has no event for that.
const REMOVE_PAUSE: Duration = Duration::from_micros(200);

/// A control group that is removed on drop if no process is left in it.
#[derive(Debug)]
pub(super) struct ControlGroup {
    path: PathBuf,
    /// A fork of the owner inherits this value but must not remove the group.
    owner: Pid,
}

impl ControlGroup {
    fn create_below(parent: &Path, name: &CgroupName) -> io::Result<ControlGroup> {
        let path = parent.join(name.as_str());
        fs::create_dir(&path)?;
        Ok(ControlGroup { path, owner: getpid() })
    }

    /// Refers to an existing group, which is also removed on drop.
    fn from_existing(path: PathBuf) -> ControlGroup {
        ControlGroup { path, owner: getpid() }
    }

    /// Writes a value in a single write, as the kernel expects; never creates the file.
    fn write_file(&self, file: &str, value: &str) -> io::Result<()> {
        write_value(&self.path.join(file), value)
    }

    /// Returns the number after `key` in a file of `key number` lines, or zero if either is
    /// missing.
    pub(super) fn read_count(&self, file: &str, key: &str) -> u64 {
        let text = read_file(&self.path.join(file)).unwrap_or_default();
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok());
        value.unwrap_or(0)
    }

    pub(super) fn add_process(&self, pid: Pid) -> io::Result<()> {
        self.write_file("cgroup.procs", &pid.to_string())
    }

    /// Returns the processes in the group that are visible to this process.
    fn list_pids(&self) -> io::Result<Vec<Pid>> {
        let text = read_file(&self.path.join("cgroup.procs"))?;
        Ok(text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect())
    }

    pub(super) fn is_empty(&self) -> io::Result<bool> {
        // Version 2 reports this itself, including child groups.
        match read_file(&self.path.join("cgroup.events")) {
            Ok(events) => Ok(events.lines().any(|line| line == "populated 0")),
            Err(_) => Ok(read_file(&self.path.join("cgroup.procs"))?.is_empty()),
        }
    }

    /// Kills all processes in the group, and returns whether that succeeded. Nothing can be started
    /// in it afterwards.
    pub(super) fn kill_all(&self) -> bool {
        if self.write_file("cgroup.kill", "1").is_ok() {
            return true;
        }
        // Older kernels and version 1: once forks are disabled, walking the list misses no process.
        // If they cannot be disabled, the rounds have to be faster than the forks.
        let _ = self.write_file("pids.max", "0");
        let mut signalled = Vec::new();
        (0..KILL_ROUNDS).any(|_| matches!(self.kill_round(&mut signalled), Ok(0)))
    }

    /// Kills processes that were not signalled before, and returns how many were found.
    fn kill_round(&self, signalled: &mut Vec<Pid>) -> io::Result<usize> {
        let new_pids = self.list_pids()?.into_iter().filter(|pid| !signalled.contains(pid));
        let pidfds: Vec<_> = new_pids
            .filter_map(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)))
            .collect();
        // A pid that is still listed belongs to the process behind the descriptor and not to one
        // that reused the number.
        let listed = self.list_pids()?;
        for (pid, pidfd) in pidfds.iter().filter(|(pid, _)| listed.contains(pid)) {
            match pidfd_send_signal(pidfd, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => signalled.push(*pid),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(pidfds.len())
    }

    /// Removes the group once its last process is gone. If that takes too long, the group is left
    /// for a later sweep.
    pub(super) fn remove_when_empty(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        while self.remove_directory().is_err() {
            if Instant::now() >= deadline {
                return false;
            }
            for pid in self.list_pids().unwrap_or_default() {
                if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) {
                    wait_for_exit(&pidfd, deadline);
                }
            }
            std::thread::sleep(REMOVE_PAUSE);
        }
        true
    }

    fn remove_directory(&self) -> io::Result<()> {
        match fs::remove_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Opens a descriptor for `CLONE_INTO_CGROUP`.
    pub(super) fn open_directory(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(CWD, &self.path, flags, Mode::empty())?)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        if self.owner == getpid() {
            let _ = self.remove_directory();
        }
    }
}

fn wait_for_exit(pidfd: &OwnedFd, deadline: Instant) {
    let remaining = deadline.saturating_duration_since(Instant::now());
    let timeout = Timespec {
        tv_sec: remaining.as_secs() as i64,
        tv_nsec: i64::from(remaining.subsec_nanos()),
    };
    let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&timeout));
}

/// Reads a file at once: these files report size zero, and reading them in small pieces doubles the
/// cost.
fn read_file(path: &Path) -> io::Result<String> {
    let mut text = String::with_capacity(READ_CAPACITY);
    File::open(path)?.take(u64::MAX).read_to_string(&mut text)?;
    Ok(text)
}

fn write_value(path: &Path, value: &str) -> io::Result<()> {
    File::options().write(true).open(path)?.write_all(value.as_bytes())
}

/// Descriptors with which a process moves itself into a run's control groups. They are opened
/// beforehand, so that neither a new root nor dropped privileges get in the way.
///
/// Moving another process costs a kernel grace period, about ten milliseconds on an idle machine.
/// In version 1 a thread that moves itself takes microseconds.
#[derive(Debug)]
pub struct CgroupJoiner(Vec<File>);

impl CgroupJoiner {
    pub(super) fn open(groups: &[ControlGroup]) -> io::Result<CgroupJoiner> {
        let open = |group: &ControlGroup| {
            // `tasks` is the version 1 file for single threads, the only one that needs no grace
            // period.
            let file = File::options().write(true).open(group.path.join("tasks"));
            file.or_else(|_| File::options().write(true).open(group.path.join("cgroup.procs")))
        };
        Ok(CgroupJoiner(groups.iter().map(open).collect::<io::Result<_>>()?))
    }

    /// Moves the calling thread into the groups; in version 2 its whole process. Meant for a child
    /// between fork and exec, which has a single thread: it allocates nothing.
    pub fn join(&self) -> io::Result<()> {
        self.0.iter().try_for_each(|mut file| file.write_all(b"0"))
    }
}
