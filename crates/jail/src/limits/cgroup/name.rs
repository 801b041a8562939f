//! The name of a cage's directory, which says whose it is, and the removal of those whose owner is dead.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};

use super::{Group, read};

const PREFIX: &str = "ringfence";
/// Of the run's own name, so that the whole stays far below what a directory may be called.
const RUN_CHARS: usize = 64;
/// One cage shall not pay for a thousand dead ones.
const SWEEP: usize = 32;

/// `ringfence-<pid namespace>-<pid>-<start of that process>-<count>-<run>`: no two processes, and no two cages of one
/// process, share it. The namespace is there because a pid says nothing to a reader in another one.
#[derive(Debug)]
pub(in crate::limits) struct Name {
    text: String,
    namespace: u64,
}

impl Name {
    pub(in crate::limits) fn new(run: &str) -> io::Result<Name> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let namespace = fs::metadata("/proc/self/ns/pid")?.ino();
        let pid = getpid();
        let started = started(pid)
            .ok_or_else(|| io::Error::other("the start of this process cannot be read"))?;
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let plain = |letter: char| {
            if letter.is_ascii_alphanumeric() || letter == '_' { letter } else { '-' }
        };
        let run: String = run.chars().take(RUN_CHARS).map(plain).collect();
        Ok(Name {
            text: format!("{PREFIX}-{namespace:x}-{pid}-{started}-{count}-{run}"),
            namespace,
        })
    }

    pub(in crate::limits) fn as_str(&self) -> &str {
        &self.text
    }
}

/// In clock ticks since boot: with the pid it names one process for ever.
fn started(pid: Pid) -> Option<u64> {
    // The name in it may hold anything, parentheses and spaces too, and bytes that are no text: ours does not, and
    // whoever cannot be read is taken to live.
    let stat = read(Path::new(&format!("/proc/{pid}/stat"))).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Ends and removes the cages below `parent` whose owner is dead. What is still dying is left to the next sweep.
pub(in crate::limits) fn sweep(parent: &Path, own: &Name) {
    // A directory of this file system has two links and one for each directory in it.
    if fs::metadata(parent).is_ok_and(|directory| directory.nlink() <= 2) {
        return;
    }
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let stale = entries.filter(|entry| {
        entry.file_name().to_str().is_some_and(|name| is_stale(name, own.namespace))
    });
    for entry in stale.take(SWEEP) {
        let group = Group::existing(entry.path());
        if group.remove().is_err() {
            group.kill();
        }
    }
}

fn is_stale(name: &str, namespace: u64) -> bool {
    parse(name).is_some_and(|(theirs, pid, start)| theirs == namespace && !lives(pid, start))
}

fn parse(name: &str) -> Option<(u64, Pid, u64)> {
    let mut fields = name.strip_prefix(PREFIX)?.strip_prefix('-')?.splitn(5, '-');
    let namespace = u64::from_str_radix(fields.next()?, 16).ok()?;
    let pid = Pid::from_raw(fields.next()?.parse().ok().filter(|pid| *pid > 0)?)?;
    let started = fields.next()?.parse().ok()?;
    fields.next()?.parse::<u64>().ok()?;
    fields.next()?;
    Some((namespace, pid, started))
}

/// In doubt it lives: /proc may hide a process that the kernel still knows.
fn lives(pid: Pid, start: u64) -> bool {
    test_kill_process(pid) != Err(Errno::SRCH)
        && started(pid).is_none_or(|started| started == start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_whose_it_is_and_nothing_else_passes_for_one() {
        let name = Name::new("run 7/../x\n").unwrap();
        let parsed = parse(name.as_str()).unwrap();
        assert_eq!(parsed, (name.namespace, getpid(), started(getpid()).unwrap()));
        assert!(name.as_str().ends_with("-run-7----x-"), "{}", name.as_str());
        for other in [
            "ringfence",
            "ringfence-1-2-3-4",
            "ringfence-x-2-3-4-r",
            "ringfence-1--2-3-4-r",
            "a-1-2-3-4-r",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn two_cages_of_one_run_have_two_names() {
        assert_ne!(Name::new("run").unwrap().as_str(), Name::new("run").unwrap().as_str());
        assert!(Name::new(&"x".repeat(4096)).unwrap().as_str().len() < 200);
    }

    #[test]
    fn only_a_dead_owner_of_our_own_namespace_is_stale() {
        let name = Name::new("run").unwrap();
        let (namespace, pid, start) = parse(name.as_str()).unwrap();
        assert!(!is_stale(name.as_str(), namespace), "the owner is this process");
        // The same pid given to a later process, and a pid beyond the largest that the kernel gives.
        let reused = format!("ringfence-{namespace:x}-{pid}-{}-0-run", start - 1);
        assert!(is_stale(&reused, namespace));
        assert!(is_stale(&format!("ringfence-{namespace:x}-{}-1-0-run", i32::MAX), namespace));
        assert!(!is_stale(&reused, namespace + 1), "another namespace is not ours to judge");
    }
}
