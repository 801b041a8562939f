//! Polls the total usage of a run that no control group limits, four times a second.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::ResourceLimits;

const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Pause after a check, as a multiple of its duration: checking never uses more than a tenth of a
/// core.
const PAUSE_FACTOR: u32 = 10;

/// Values of the flag that records which limit was exceeded.
const EXCEEDED_MEMORY: u8 = 1;
const EXCEEDED_PROCESSES: u8 = 2;

/// Polling thread that stops when this is dropped and calls nothing afterwards.
#[derive(Debug)]
pub(super) struct UsageWatch {
    exceeded: Arc<AtomicU8>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl UsageWatch {
    pub(super) fn start(
        limits: &ResourceLimits,
        list_pids: impl Fn() -> Vec<Pid> + Send + 'static,
        on_exceeded: impl FnOnce() + Send + 'static,
    ) -> io::Result<UsageWatch> {
        let exceeded = Arc::new(AtomicU8::new(0));
        let (stop, stop_receiver) = mpsc::channel();
        let (limits, exceeded_flag) = (limits.clone(), Arc::clone(&exceeded));
        let is_exceeded = move || {
            let exceeded_limit = find_exceeded_limit(&limits, &list_pids());
            exceeded_flag.store(exceeded_limit, Ordering::Release);
            exceeded_limit != 0
        };
        let thread = thread::Builder::new()
            .name("limits".to_owned())
            .spawn(move || poll_usage(&stop_receiver, is_exceeded, on_exceeded))?;
        Ok(UsageWatch { exceeded, stop: Some(stop), thread: Some(thread) })
    }

    pub(super) fn exceeded_memory(&self) -> bool {
        self.exceeded.load(Ordering::Acquire) == EXCEEDED_MEMORY
    }

    pub(super) fn exceeded_processes(&self) -> bool {
        self.exceeded.load(Ordering::Acquire) == EXCEEDED_PROCESSES
    }
}

impl Drop for UsageWatch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Checks until stopped; calls `on_exceeded` once when a limit is exceeded.
fn poll_usage(
    stop_receiver: &Receiver<()>,
    is_exceeded: impl Fn() -> bool,
    on_exceeded: impl FnOnce(),
) {
    let mut pause = POLL_INTERVAL;
    while stop_receiver.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let check_started = Instant::now();
        if is_exceeded() {
            return on_exceeded();
        }
        pause = POLL_INTERVAL.max(check_started.elapsed() * PAUSE_FACTOR);
    }
}

/// Returns which limit these processes exceed, or zero.
fn find_exceeded_limit(limits: &ResourceLimits, pids: &[Pid]) -> u8 {
    if limits.processes.is_some_and(|maximum| pids.len() as u64 > maximum) {
        return EXCEEDED_PROCESSES;
    }
    match limits.memory_bytes {
        // The quick sum counts pages that a fork shares with its parent twice. It is never too
        // small, so the exact sum, which walks every page, is needed only when the quick one
        // exceeds the limit.
        Some(maximum)
            if sum_usage(pids, resident_bytes) > maximum
                && sum_usage(pids, proportional_bytes) > maximum =>
        {
            EXCEEDED_MEMORY
        }
        _ => 0,
    }
}

/// Adds up the usage. A process that has ended in the meantime uses nothing.
fn sum_usage(pids: &[Pid], measure: fn(Pid) -> Option<u64>) -> u64 {
    pids.iter().filter_map(|pid| measure(*pid)).sum()
}

/// Returns the resident set size plus swap.
fn resident_bytes(pid: Pid) -> Option<u64> {
    let status = read_proc_file(pid, "status")?;
    Some(parse_kilobytes(&status, "VmRSS:")? + parse_kilobytes(&status, "VmSwap:").unwrap_or(0))
}

/// Returns the proportional set size: its own pages plus its share of pages used together with
/// others.
fn proportional_bytes(pid: Pid) -> Option<u64> {
    let Some(rollup) = read_proc_file(pid, "smaps_rollup") else {
        // We may not read this process's page map. File-backed pages are certainly shared and are
        // left out; everything else counts in full.
        let status = read_proc_file(pid, "status")?;
        return Some(
            parse_kilobytes(&status, "RssAnon:")?
                + parse_kilobytes(&status, "VmSwap:").unwrap_or(0),
        );
    };
    Some(parse_kilobytes(&rollup, "Pss:")? + parse_kilobytes(&rollup, "SwapPss:").unwrap_or(0))
}

fn read_proc_file(pid: Pid, file: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/{file}")).ok()
}

/// Parses the value of a `key: number kB` line.
fn parse_kilobytes(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(value.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}
