//! Watches and judges every exec of a run.
//!
//! The filter stops each `execve` and `execveat` before it begins. A watcher seizes the calling
//! thread and lets the call continue; the kernel then stops the process again, after the new
//! program is in place and before its first instruction. What is in place is judged, not what was
//! requested: names, files and arguments can be exchanged while a call is in progress, but not
//! after it has completed. Then the process is released, made to write a message and exit, or held
//! until the server answers.

mod files;
mod hold;
mod image;
mod log;
mod mapping;
mod resolve;
mod stub;
pub mod wire;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use policy::{Decision, ExecCandidate, ExecJudge, ExecVerdict};
use rustix::event::{PollFd, PollFlags, poll};

use super::DenialLog;
use crate::packet::PacketChannel;
use crate::poison::IgnorePoison;
use crate::sys::trace::{self, TraceEvent};
use crate::sys::{self, PendingCall};
use files::{ExecFile, ExecFiles};
use hold::HeldProcess;
use image::ProcessImage;
use log::ExecLog;
use wire::{ExecNotice, ExecRules, RuledExec};

/// True if execs can be watched on this machine: a stopped program is given instructions, which are
/// specific to the machine.
pub const SUPPORTED: bool = cfg!(target_arch = "x86_64");

/// Name of the denial for a thread that cannot be traced.
pub const UNWATCHABLE: &str = "a program that cannot be watched";

/// Most watchers at the same time, unless the rules say otherwise. Waiting ones cost next to
/// nothing.
const DEFAULT_WATCHERS: usize = 16;
/// Most processes of a run that are held at the same time.
const MAX_HELD: usize = 64;
/// Most decisions that are reported one by one. A run can cause as many as it likes.
const MAX_REPORTED: u64 = 10_000;
const THREAD_STACK: usize = 256 << 10;

/// Handler for the run's calls that are not execs.
pub type OtherCallHandler = Box<dyn Fn(PendingCall) + Send + Sync>;

/// Everything that watching needs in addition to the listener.
pub struct ExecWatchConfig {
    pub rules: ExecRules,
    /// Channel on which decisions are reported and requested. Without it no one can be asked, and
    /// whatever needs an answer is refused.
    pub notices: Option<PacketChannel>,
    /// File for execs that no rule names.
    pub log: Option<OwnedFd>,
    pub denials: DenialLog,
}

/// State that all watchers of a run share.
pub struct ExecWatch {
    listener: Arc<OwnedFd>,
    judge: ExecJudge,
    escalates: bool,
    notices: Option<Arc<PacketChannel>>,
    log: ExecLog,
    denials: DenialLog,
    other_calls: OtherCallHandler,
    /// The next exec is the program itself, which was granted before.
    next_is_granted: AtomicBool,
    reported: AtomicU64,
    max_watchers: usize,
    watchers: AtomicUsize,
    idle_watchers: AtomicUsize,
    /// Locked by the watcher that waits for the next call. Without it the kernel would wake every
    /// waiting watcher for each call, all but one of them for nothing.
    receive_turn: Mutex<()>,
    /// Number of watchers for each thread that is seized and has not reached its exec. It can be
    /// more than one: a watcher may seize a thread that another has released and not yet removed
    /// here.
    traced: Mutex<HashMap<i32, usize>>,
    held_processes: Mutex<HashMap<u64, HeldProcess>>,
    next_id: AtomicU64,
    /// A thread receives answers. Most runs never ask.
    listening: AtomicBool,
}

impl ExecWatch {
    /// Starts to watch. Calls that are not execs go to `other_calls`.
    pub fn start(
        listener: Arc<OwnedFd>,
        config: ExecWatchConfig,
        other_calls: OtherCallHandler,
    ) -> io::Result<Arc<ExecWatch>> {
        let ExecWatchConfig { rules, notices, log, denials } = config;
        let watch = Arc::new(ExecWatch {
            listener,
            judge: ExecJudge::new(rules.table, rules.heuristics),
            escalates: rules.lets_out,
            notices: notices.map(Arc::new),
            // Only a program that is let into the wider sandbox was judged before.
            log: ExecLog::new(log, rules.granted.then_some("wider")),
            denials,
            other_calls,
            next_is_granted: AtomicBool::new(rules.granted),
            reported: AtomicU64::new(0),
            max_watchers: if rules.watchers == 0 { DEFAULT_WATCHERS } else { rules.watchers },
            watchers: AtomicUsize::new(0),
            idle_watchers: AtomicUsize::new(0),
            receive_turn: Mutex::default(),
            traced: Mutex::default(),
            held_processes: Mutex::default(),
            next_id: AtomicU64::new(1),
            listening: AtomicBool::new(false),
        });
        sys::enable_sync_wakeup(watch.listener.as_fd());
        watch.add_watcher()?;
        Ok(watch)
    }

    /// Returns the number of execs that no rule names. Everything known about them has been written
    /// when this returns.
    pub fn finish_log(&self) -> u64 {
        self.log.flush_and_count()
    }

    fn add_watcher(self: &Arc<Self>) -> io::Result<()> {
        self.watchers.fetch_add(1, Ordering::Relaxed);
        let watch = Arc::clone(self);
        let spawned = thread::Builder::new().stack_size(THREAD_STACK).spawn(move || {
            watch.run_watcher();
            watch.watchers.fetch_sub(1, Ordering::Relaxed);
        });
        if spawned.is_err() {
            self.watchers.fetch_sub(1, Ordering::Relaxed);
        }
        spawned.map(drop)
    }

    /// Runs one watcher: takes a call, follows it to its end, takes the next. It never takes a call
    /// while it traces a thread.
    fn run_watcher(self: &Arc<Self>) {
        loop {
            self.idle_watchers.fetch_add(1, Ordering::Relaxed);
            let turn = self.receive_turn.lock().ignore_poison();
            let call = sys::receive_call(self.listener.as_fd());
            let is_last_idle = self.idle_watchers.fetch_sub(1, Ordering::Relaxed) == 1;
            match call {
                Ok(call) if is_exec(&call) => {
                    if !self.follow_exec(&call, is_last_idle, turn) {
                        return;
                    }
                }
                Ok(call) => {
                    drop(turn);
                    (self.other_calls)(call);
                }
                Err(error) => {
                    drop(turn);
                    match error.raw_os_error() {
                        Some(libc::EINTR) => {}
                        // The caller is gone, or no process uses the filter any more, which will
                        // not change.
                        Some(libc::ENOENT) if self.is_filter_in_use() => {}
                        _ => return,
                    }
                }
            }
        }
    }

    fn is_filter_in_use(&self) -> bool {
        let mut poll_fds = [PollFd::new(&*self.listener, PollFlags::IN)];
        let _ = poll(&mut poll_fds, None);
        !poll_fds[0].revents().contains(PollFlags::HUP)
    }

    /// Follows one exec to its end. Returns false when the watcher is no longer needed.
    fn follow_exec(
        self: &Arc<Self>,
        call: &PendingCall,
        is_last_idle: bool,
        turn: MutexGuard<'_, ()>,
    ) -> bool {
        let Ok(thread) = i32::try_from(call.thread) else { return true };
        if !self.seize_thread(thread, call.id) {
            return true;
        }
        // If the caller no longer waits, it was killed or interrupted; the interruption below ends
        // the tracing.
        let _ = trace::continue_call(self.listener.as_fd(), call.id);
        let _ = trace::interrupt_thread(thread);
        // Not earlier: waking the next watcher takes time, for which the caller would have to wait.
        drop(turn);
        if is_last_idle && self.watchers.load(Ordering::Relaxed) < self.max_watchers {
            // Another watcher should be ready for the next call. If none can be started, that call
            // waits for this one.
            let _ = self.add_watcher();
        }
        let event = trace::wait_for_event();
        if let Ok((process, TraceEvent::Exec)) = event {
            self.forget_thread(thread);
            return self.decide_exec(process);
        }
        match event {
            // The call failed, or was not made after all.
            Ok((process, TraceEvent::Stop(_))) => release_tracee(process, 0),
            Ok((process, TraceEvent::Signal(signal))) => release_tracee(process, signal),
            // The thread was killed, or another thread of its process was faster.
            Ok((_, _)) | Err(_) => {}
        }
        self.forget_thread(thread);
        true
    }

    /// Becomes the tracer of a thread, or makes sure that its call is not made.
    ///
    /// A thread that another of our watchers traces has made its next attempt before that watcher
    /// could interrupt it. The interruption is on its way: it cancels this call, and the thread
    /// makes it again. Any other thread that cannot be seized has a foreign tracer or is out of our
    /// reach: what cannot be judged is not executed.
    fn seize_thread(&self, thread: i32, call: u64) -> bool {
        // Under the lock, so that a watcher that fails finds out here which one was faster.
        let mut traced = self.lock_traced();
        if trace::seize_thread(thread).is_ok() {
            *traced.entry(thread).or_default() += 1;
            return true;
        }
        if !traced.contains_key(&thread) && sys::is_still_pending(self.listener.as_fd(), call) {
            self.denials.add("exec", UNWATCHABLE);
            sys::answer_call(self.listener.as_fd(), call, Err(libc::EPERM));
        }
        false
    }

    fn forget_thread(&self, thread: i32) {
        let mut traced = self.lock_traced();
        if let Some(count) = traced.get_mut(&thread) {
            *count -= 1;
            if *count == 0 {
                traced.remove(&thread);
            }
        }
    }

    fn lock_traced(&self) -> MutexGuard<'_, HashMap<i32, usize>> {
        self.traced.lock().ignore_poison()
    }

    /// Judges the program that is in place, then releases the process, ends it or holds it. Returns
    /// false when the watcher is no longer needed.
    fn decide_exec(self: &Arc<Self>, process: i32) -> bool {
        if self.next_is_granted.swap(false, Ordering::Relaxed) {
            release_tracee(process, 0);
            return true;
        }
        let identified = ProcessImage::read(process)
            .and_then(|image| Ok((ExecFiles::identify(process, &image)?, image)));
        let Ok((mut files, image)) = identified else {
            // The program may be executed but not read, so it would run unseen.
            self.denials.add("exec", "a program that cannot be read");
            kill_tracee(process);
            return true;
        };
        if !self.judge.is_empty() {
            files.identify_entry(process, image.registers.program_counter());
        }
        let argv = image.argv();
        let verdict = self.judge_files(&files, &argv);
        let is_forbidden =
            verdict.as_ref().is_some_and(|verdict| verdict.decision == Decision::Forbidden);
        if let Some(name) =
            files.unidentified.as_deref().filter(|_| !is_forbidden && !self.judge.is_empty())
        {
            self.denials.add("exec", "a file that cannot be seen");
            let name = sanitize_line(name);
            let message = format!(
                "ringfence: {name}: forbidden: cannot determine which file this refers to; use its real path\n"
            );
            self.end_process(process, &image, &message);
            return true;
        }
        let Some(verdict) = verdict else {
            self.log.record_exec(process, &files.program.identity.path, &argv);
            release_tracee(process, 0);
            return true;
        };
        match verdict.decision {
            Decision::Forbidden => {
                self.report_decision(process, &files, &argv, &verdict, None);
                self.forbid_exec(process, &image, &files, &verdict);
            }
            Decision::Prompt => return self.hold_process(process, image, files, verdict),
            Decision::Allow if self.escalates => {
                return self.hold_process(process, image, files, verdict);
            }
            Decision::Allow => {
                self.report_decision(process, &files, &argv, &verdict, None);
                release_tracee(process, 0);
            }
        }
        true
    }

    /// Judges all files that the process was started from; `None` if no rule names them.
    fn judge_files(&self, files: &ExecFiles, argv: &[&[u8]]) -> Option<ExecVerdict> {
        if self.judge.is_empty() {
            return None;
        }
        let judged_files: Vec<&ExecFile> = files.iter().collect();
        let candidates: Vec<ExecCandidate<'_>> =
            judged_files.iter().map(|file| build_view(files, file, argv)).collect();
        self.judge.judge_exec(&candidates, |index, host_file| {
            judged_files.get(index).is_some_and(|file| file.is_copy_of(Path::new(&host_file.path)))
        })
    }

    fn forbid_exec(
        &self,
        process: i32,
        image: &ProcessImage,
        files: &ExecFiles,
        verdict: &ExecVerdict,
    ) {
        let name = verdict.prefix.join(" ");
        self.denials.add("exec", &name);
        let reason = verdict.justification.as_deref().unwrap_or("a rule forbids it");
        let path = files.iter().nth(verdict.view).map_or("", |file| &file.identity.path);
        let message =
            format!("ringfence: {}: forbidden: {}\n", sanitize_line(path), sanitize_line(reason));
        self.end_process(process, image, &message);
    }

    fn end_process(&self, process: i32, image: &ProcessImage, message: &str) {
        match stub::inject_exit(process, image, message, 1) {
            Ok(()) => release_tracee(process, 0),
            Err(_) => kill_tracee(process),
        }
    }

    fn report_decision(
        &self,
        pid: i32,
        files: &ExecFiles,
        argv: &[&[u8]],
        verdict: &ExecVerdict,
        kept_inside: Option<String>,
    ) {
        let Some(notices) = &self.notices else { return };
        if self.reported.fetch_add(1, Ordering::Relaxed) < MAX_REPORTED {
            let path = files.program.identity.path.clone();
            let mut ruled_exec = RuledExec {
                pid,
                path,
                argv: log::truncate_argv(argv),
                verdict: verdict.clone(),
                kept_inside,
            };
            // A packet is short, so only the first of many words are kept.
            ruled_exec.argv.truncate(64);
            // If the server is gone, so is the run.
            let _ = notices.send(&ExecNotice::Ruled(ruled_exec), &[]);
        }
    }
}

fn is_exec(call: &PendingCall) -> bool {
    [libc::SYS_execve, libc::SYS_execveat].contains(&call.call)
}

fn build_view<'a>(
    files: &ExecFiles,
    file: &'a ExecFile,
    argv: &'a [&'a [u8]],
) -> ExecCandidate<'a> {
    ExecCandidate {
        real_path: &file.identity.path,
        called_path: &file.called_path,
        device: file.identity.device,
        inode: file.identity.inode,
        size: file.size,
        argv: argv.get(file.argv_start..).unwrap_or_default(),
        is_started: files.is_started(file),
    }
}

/// Stops tracing a process. One that was killed meanwhile has to be waited for, or its real parent
/// never learns of its end.
fn release_tracee(process: i32, signal: i32) {
    if trace::detach_thread(process, signal).is_ok() {
        return;
    }
    while let Ok((process, event)) = trace::wait_for_event() {
        if event != TraceEvent::Exited && trace::detach_thread(process, 0).is_ok() {
            return;
        }
    }
}

/// Kills a traced process and waits until it is gone.
fn kill_tracee(process: i32) {
    let _ = trace::signal_process(process, libc::SIGKILL);
    while trace::wait_for_event().is_ok() {}
}

/// Replaces control characters, so that text from the run cannot fake another line.
fn sanitize_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).take(1000).collect()
}
