//! Names of control group directories, which identify their owner, and removal of groups whose
//! owner is dead.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};

use super::{ControlGroup, read_file};

const PREFIX: &str = "ringfence";
/// Maximum length of the run's own name, which keeps the whole well below the limit for directory
/// names.
const MAX_RUN_CHARS: usize = 64;
/// Maximum number of groups examined at once, so that a new run does not pay for thousands of them.
/// Still more than one run can leave behind.
const MAX_EXAMINED: usize = 8;

/// Directory name `ringfence-<pid namespace>-<pid>-<start time of that process>-<count>-<run>`. It
/// is unique across processes and across the groups of one process. The pid namespace is part of it
/// because a pid means nothing in another one.
#[derive(Debug)]
pub(in crate::limits) struct CgroupName {
    text: String,
    namespace: u64,
}

impl CgroupName {
    pub(in crate::limits) fn new(run_name: &str) -> io::Result<CgroupName> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let namespace = fs::metadata("/proc/self/ns/pid")?.ino();
        let pid = getpid();
        let start_ticks = start_time(pid)
            .ok_or_else(|| io::Error::other("cannot read the start time of this process"))?;
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let sanitize = |letter: char| {
            if letter.is_ascii_alphanumeric() || letter == '_' { letter } else { '-' }
        };
        let run_name: String = run_name.chars().take(MAX_RUN_CHARS).map(sanitize).collect();
        Ok(CgroupName {
            text: format!("{PREFIX}-{namespace:x}-{pid}-{start_ticks}-{count}-{run_name}"),
            namespace,
        })
    }

    pub(in crate::limits) fn as_str(&self) -> &str {
        &self.text
    }
}

/// Returns the start time in clock ticks since boot. Together with the pid it identifies a process
/// permanently.
fn start_time(pid: Pid) -> Option<u64> {
    // The process name in this file may contain parentheses, spaces and bytes that are not UTF-8.
    // Ours does not, and a process whose file cannot be read is assumed to be alive.
    let stat = read_file(Path::new(&format!("/proc/{pid}/stat"))).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Kills and removes the groups below `parent` whose owner is dead. Groups that are not empty yet
/// are left to the next sweep.
pub(in crate::limits) fn remove_stale_groups(parent: &Path, own_name: &CgroupName) {
    // On this file system a directory has two links plus one for each subdirectory.
    if fs::metadata(parent).is_ok_and(|directory| directory.nlink() <= 2) {
        return;
    }
    let is_group = |entry: &fs::DirEntry| {
        entry.file_name().to_str().is_some_and(|name| parse_name(name).is_some())
    };
    let mut entries: Vec<fs::DirEntry> =
        fs::read_dir(parent).into_iter().flatten().flatten().filter(is_group).collect();
    // Others the next time: pids count up.
    let first = getpid().as_raw_nonzero().get().unsigned_abs() as usize * MAX_EXAMINED;
    let count = entries.len().max(1);
    entries.rotate_left(first % count);
    let stale = entries.into_iter().take(MAX_EXAMINED).filter(|entry| {
        entry.file_name().to_str().is_some_and(|name| is_stale(name, own_name.namespace))
    });
    for entry in stale {
        let group = ControlGroup::from_existing(entry.path());
        if group.remove_directory().is_err() {
            group.kill_all();
        }
    }
}

/// Returns whether the owner was in our pid namespace and is dead. Owners in other namespaces
/// cannot be judged.
fn is_stale(name: &str, namespace: u64) -> bool {
    parse_name(name).is_some_and(|(owner_namespace, pid, start_ticks)| {
        owner_namespace == namespace && !is_alive(pid, start_ticks)
    })
}

/// Splits a name into pid namespace, pid and start time.
fn parse_name(name: &str) -> Option<(u64, Pid, u64)> {
    let mut fields = name.strip_prefix(PREFIX)?.strip_prefix('-')?.splitn(5, '-');
    let namespace = u64::from_str_radix(fields.next()?, 16).ok()?;
    let pid = Pid::from_raw(fields.next()?.parse().ok().filter(|pid| *pid > 0)?)?;
    let start_ticks = fields.next()?.parse().ok()?;
    fields.next()?.parse::<u64>().ok()?;
    fields.next()?;
    Some((namespace, pid, start_ticks))
}

/// Returns whether the process is alive. In doubt it is: /proc may hide a process that still
/// exists.
fn is_alive(pid: Pid, start_ticks: u64) -> bool {
    test_kill_process(pid) != Err(Errno::SRCH)
        && start_time(pid).is_none_or(|started| started == start_ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_whose_it_is_and_nothing_else_passes_for_one() {
        let name = CgroupName::new("run 7/../x\n").unwrap();
        let parsed = parse_name(name.as_str()).unwrap();
        assert_eq!(parsed, (name.namespace, getpid(), start_time(getpid()).unwrap()));
        assert!(name.as_str().ends_with("-run-7----x-"), "{}", name.as_str());
        for other in [
            "ringfence",
            "ringfence-1-2-3-4",
            "ringfence-x-2-3-4-r",
            "ringfence-1--2-3-4-r",
            "a-1-2-3-4-r",
        ] {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }

    #[test]
    fn two_cages_of_one_run_have_two_names() {
        assert_ne!(
            CgroupName::new("run").unwrap().as_str(),
            CgroupName::new("run").unwrap().as_str()
        );
        assert!(CgroupName::new(&"x".repeat(4096)).unwrap().as_str().len() < 200);
    }

    #[test]
    fn only_a_dead_owner_of_our_own_namespace_is_stale() {
        let name = CgroupName::new("run").unwrap();
        let (namespace, pid, start) = parse_name(name.as_str()).unwrap();
        assert!(!is_stale(name.as_str(), namespace), "the owner is this process");
        // The same pid reused by a later process, and a pid above the largest that the kernel
        // assigns.
        let reused = format!("ringfence-{namespace:x}-{pid}-{}-0-run", start - 1);
        assert!(is_stale(&reused, namespace));
        assert!(is_stale(&format!("ringfence-{namespace:x}-{}-1-0-run", i32::MAX), namespace));
        assert!(!is_stale(&reused, namespace + 1), "another namespace is not ours to judge");
    }
}
