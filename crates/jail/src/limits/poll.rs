//! Polls the total usage of a run that no control group limits, four times a second.

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
/// Pause after a check, as a multiple of its duration: checking never uses more than a tenth of a
/// core.
const SHARE: u32 = 10;

/// Values of the flag that records which limit was exceeded.
const MEMORY: u8 = 1;
const PROCESSES: u8 = 2;

/// Polling thread that stops when this is dropped and calls nothing afterwards.
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

/// Checks until stopped; calls `end` once when a limit is exceeded.
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

/// Returns which limit these processes exceed, or zero.
fn judge(limits: &Limits, pids: &[Pid]) -> u8 {
    if limits.processes.is_some_and(|most| pids.len() as u64 > most) {
        return PROCESSES;
    }
    match limits.memory_bytes {
        // The quick sum counts pages that a fork shares with its parent twice. It is never too
        // small, so the exact sum, which walks every page, is needed only when the quick one
        // exceeds the limit.
        Some(most) if sum(pids, resident) > most && sum(pids, proportional) > most => MEMORY,
        _ => 0,
    }
}

/// Adds up the usage. A process that has ended in the meantime uses nothing.
fn sum(pids: &[Pid], of: fn(Pid) -> Option<u64>) -> u64 {
    pids.iter().filter_map(|pid| of(*pid)).sum()
}

/// Returns the resident set size plus swap.
fn resident(pid: Pid) -> Option<u64> {
    let status = read(pid, "status")?;
    Some(bytes(&status, "VmRSS:")? + bytes(&status, "VmSwap:").unwrap_or(0))
}

/// Returns the proportional set size: its own pages plus its share of pages used together with
/// others.
fn proportional(pid: Pid) -> Option<u64> {
    let Some(rollup) = read(pid, "smaps_rollup") else {
        // We may not read this process's page map. File-backed pages are certainly shared and are
        // left out; everything else counts in full.
        let status = read(pid, "status")?;
        return Some(bytes(&status, "RssAnon:")? + bytes(&status, "VmSwap:").unwrap_or(0));
    };
    Some(bytes(&rollup, "Pss:")? + bytes(&rollup, "SwapPss:").unwrap_or(0))
}

fn read(pid: Pid, file: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/{file}")).ok()
}

/// Parses the value of a `key: number kB` line.
fn bytes(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(value.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}
