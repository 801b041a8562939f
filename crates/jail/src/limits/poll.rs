//! The watch over a run that no control group holds: what its processes use together, four times a second.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::Limits;

const INTERVAL: Duration = Duration::from_millis(250);
/// A look that takes long is followed by a longer pause, so that watching never costs more than a tenth of a core.
const SHARE: u32 = 10;

const MEMORY: u8 = 1;
const PROCESSES: u8 = 2;

/// Ends when it is dropped, and then never calls anything again.
#[derive(Debug)]
pub(super) struct Watch {
    exceeded: Arc<AtomicU8>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(super) fn start(
        limits: &Limits,
        list: impl Fn() -> Vec<Pid> + Send + 'static,
        end: impl FnOnce() + Send + 'static,
    ) -> io::Result<Watch> {
        let exceeded = Arc::new(AtomicU8::new(0));
        let (stop, stopped) = mpsc::channel();
        let (limits, flag) = (limits.clone(), Arc::clone(&exceeded));
        let look = move || {
            let found = judge(&limits, &list());
            flag.store(found, Ordering::Release);
            found != 0
        };
        let thread = thread::Builder::new()
            .name("limits".to_owned())
            .spawn(move || watch(&stopped, look, end))?;
        Ok(Watch { exceeded, stop: Some(stop), thread: Some(thread) })
    }

    pub(super) fn saw_memory(&self) -> bool {
        self.exceeded.load(Ordering::Acquire) == MEMORY
    }

    pub(super) fn saw_processes(&self) -> bool {
        self.exceeded.load(Ordering::Acquire) == PROCESSES
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(stopped: &Receiver<()>, look: impl Fn() -> bool, end: impl FnOnce()) {
    let mut pause = INTERVAL;
    while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let begun = Instant::now();
        if look() {
            return end();
        }
        pause = INTERVAL.max(begun.elapsed() * SHARE);
    }
}

fn judge(limits: &Limits, pids: &[Pid]) -> u8 {
    if limits.processes.is_some_and(|most| pids.len() as u64 > most) {
        return PROCESSES;
    }
    match limits.memory_bytes {
        // Pages that a fork shares with its parent count twice in the quick sum. It is never too small, so the exact
        // one, which walks every page, is only needed when it is too large.
        Some(most) if sum(pids, resident) > most && sum(pids, proportional) > most => MEMORY,
        _ => 0,
    }
}

/// A process that has ended in the meantime uses nothing.
fn sum(pids: &[Pid], of: fn(Pid) -> Option<u64>) -> u64 {
    pids.iter().filter_map(|pid| of(*pid)).sum()
}

fn resident(pid: Pid) -> Option<u64> {
    let status = read(pid, "status")?;
    Some(bytes(&status, "VmRSS:")? + bytes(&status, "VmSwap:").unwrap_or(0))
}

/// Its own pages, and its share of those that it has together with others.
fn proportional(pid: Pid) -> Option<u64> {
    let Some(rollup) = read(pid, "smaps_rollup") else {
        // Not ours to look into: what comes from files is shared for certain, the rest counts in full.
        let status = read(pid, "status")?;
        return Some(bytes(&status, "RssAnon:")? + bytes(&status, "VmSwap:").unwrap_or(0));
    };
    Some(bytes(&rollup, "Pss:")? + bytes(&rollup, "SwapPss:").unwrap_or(0))
}

fn read(pid: Pid, file: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/{file}")).ok()
}

fn bytes(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(value.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}
