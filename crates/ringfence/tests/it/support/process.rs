//! Processes as the kernel shows them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A time to sleep that nobody else sleeps: it is found again in the list of processes.
pub fn marker() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("300.{:07}{:03}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// The processes that have this word among their arguments.
pub fn with_argument(marker: &str) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return vec![] };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == marker.as_bytes())
        })
        .collect()
}

/// A command that says `begun`, leaves a child behind in a session of its own, and sleeps.
pub fn tree(marker: &str) -> String {
    format!("echo begun; (setsid -f sleep {marker}); sleep {marker}; echo never")
}

pub fn wait_for_tree(marker: &str) {
    super::eventually(super::DEADLINE, "the tree runs", || with_argument(marker).len() == 2);
}

pub fn wait_for_death(marker: &str, within: Duration) {
    super::eventually(within, "the tree is dead", || with_argument(marker).is_empty());
}

/// A number of kilobytes from `/proc/PID/status`.
pub fn status_kb(pid: u32, name: &str) -> u64 {
    let text =
        std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .expect("a line of that name");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Whose child it is.
pub fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}

/// Its children, in the order in which each of its threads started them.
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return vec![] };
    let lists = tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok())
        .collect::<Vec<_>>();
    lists.iter().flat_map(|list| list.split_whitespace()).flat_map(str::parse).collect()
}
