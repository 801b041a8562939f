//! Holds a process until the server answers: until a question is decided, or until the command that
//! runs elsewhere in its place has ended.
//!
//! A held process executes nothing except a system call that waits. Its signals reach its watcher
//! first: while a human decides they have their usual effect; once the command runs elsewhere they
//! are passed on to it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::thread;

use policy::{Decision, ExecVerdict};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::files::ExecFiles;
use super::image::ProcessImage;
use super::wire::{ExecAnswer, ExecNotice, ExecReply, HeldExec, write_memory_file};
use super::{ExecWatch, MAX_HELD, THREAD_STACK, kill_tracee, release_tracee, resolve, stub};
use crate::packet::PacketChannel;
use crate::poison::IgnorePoison;
use crate::sys::trace::{self, TraceEvent};

/// Signal that wakes a watcher waiting for its process. No program is affected by it.
const WAKE_SIGNAL: i32 = libc::SIGURG;
/// Most ancestors that are reported.
const MAX_ANCESTORS: usize = 12;
/// Most bytes in the arguments of a command that is asked about, and in its environment.
const MAX_ARGV_BYTES: usize = 16 << 10;
const MAX_ENV_BYTES: usize = 512 << 10;
/// Exit code of a command that should be asked about and cannot be: it has too many words to read,
/// or too many processes are waiting.
const EXIT_CANNOT_ASK: i32 = 126;
/// Exit code of a command that should be asked about where no one can be asked, as after a no.
const EXIT_DENIED: i32 = 1;

/// A held process and its answer.
#[derive(Default)]
pub struct HeldProcess {
    process: i32,
    runs_elsewhere: bool,
    answer: Option<ExecAnswer>,
}

/// Everything needed to let a held program start after all.
struct SavedProgram {
    image: ProcessImage,
    saved_code: [u8; stub::SAVED_BYTES],
    signal_mask: u64,
    /// The words of its rule, recorded if it is refused.
    rule_words: String,
}

/// Description of a process that is about to be held, for the server.
struct HoldRequest {
    notices: Arc<PacketChannel>,
    description: OwnedFd,
    streams: Vec<OwnedFd>,
}

impl ExecWatch {
    /// Holds a process until it is answered. Returns false when this thread has waited for the
    /// process and another watcher has taken its place.
    pub(super) fn hold_process(
        self: &Arc<Self>,
        process: i32,
        image: ProcessImage,
        files: ExecFiles,
        verdict: ExecVerdict,
    ) -> bool {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let rule_words = verdict.prefix.join(" ");
        let request = match self.prepare_hold(process, id, &image, &files, &verdict) {
            Ok(request) => request,
            // The process has not been touched yet. One that a rule allows starts here: an `allow`
            // must not make a command worse, and in the sandbox it may do what it may do without a
            // rule.
            Err(error) if verdict.decision == Decision::Allow => {
                self.lock_held().remove(&id);
                self.report_decision(
                    process,
                    &files,
                    &image.argv(),
                    &verdict,
                    Some(error.to_string()),
                );
                release_tracee(process, 0);
                return true;
            }
            Err(error) => {
                self.refuse_hold(process, id, &image, &files, &error);
                return true;
            }
        };
        match begin_hold(process, id, &image, &request) {
            Ok(saved) => {
                drop(request);
                let saved =
                    SavedProgram { image, saved_code: saved.0, signal_mask: saved.1, rule_words };
                self.wait_for_answer(process, id, &saved);
                self.lock_held().remove(&id);
                false
            }
            Err(error) => {
                self.refuse_hold(process, id, &image, &files, &error);
                true
            }
        }
    }

    /// Ends a process that cannot be held, with a message that says why.
    fn refuse_hold(
        &self,
        process: i32,
        id: u64,
        image: &ProcessImage,
        files: &ExecFiles,
        error: &io::Error,
    ) {
        self.lock_held().remove(&id);
        self.denials.add("exec", "a program that nobody could be asked about");
        let code = if self.notices.is_none() { EXIT_DENIED } else { EXIT_CANNOT_ASK };
        let message =
            format!("ringfence: {}: cannot be approved: {error}\n", files.program.identity.path);
        match stub::inject_exit(process, image, &message, code) {
            Ok(()) => release_tracee(process, 0),
            Err(_) => kill_tracee(process),
        }
    }

    /// Prepares to hold a process, without touching the process itself.
    fn prepare_hold(
        self: &Arc<Self>,
        process: i32,
        id: u64,
        image: &ProcessImage,
        files: &ExecFiles,
        verdict: &ExecVerdict,
    ) -> io::Result<HoldRequest> {
        let Some(notices) = self.notices.clone() else {
            return Err(io::Error::other("no one can be asked"));
        };
        let (held_exec, streams) = describe_exec(process, image, files, verdict.clone())?;
        let description = write_memory_file(&held_exec)?;
        {
            let mut held_processes = self.lock_held();
            if held_processes.len() >= MAX_HELD {
                return Err(io::Error::other(
                    "too many commands are already waiting for an answer",
                ));
            }
            held_processes.insert(id, HeldProcess { process, ..HeldProcess::default() });
        }
        self.spawn_answer_receiver(&notices)?;
        // From now on this thread waits for this process only.
        self.add_watcher()?;
        Ok(HoldRequest { notices, description, streams })
    }

    fn wait_for_answer(&self, process: i32, id: u64, saved: &SavedProgram) {
        while let Ok((_, event)) = trace::wait_for_event() {
            if event == TraceEvent::Exited {
                break;
            }
            let (answer, runs_elsewhere) = match self.lock_held().get_mut(&id) {
                Some(held_process) => (held_process.answer.take(), held_process.runs_elsewhere),
                None => (None, false),
            };
            if let Some(answer) = answer {
                if matches!(answer, ExecAnswer::Refuse(..)) {
                    self.denials.add("exec", &saved.rule_words);
                }
                let signal = if let TraceEvent::Signal(signal) = event { signal } else { 0 };
                return apply_answer(
                    process,
                    saved,
                    &answer,
                    if signal == WAKE_SIGNAL { 0 } else { signal },
                );
            }
            let resumed = match event {
                TraceEvent::Signal(WAKE_SIGNAL) => trace::resume_thread(process, 0),
                TraceEvent::Signal(signal) if runs_elsewhere => {
                    self.send_notice(&ExecNotice::Signal(id, signal));
                    trace::resume_thread(process, 0)
                }
                TraceEvent::Signal(signal) => trace::resume_thread(process, signal),
                TraceEvent::Stop(signal) if signal != libc::SIGTRAP => {
                    if runs_elsewhere {
                        self.send_notice(&ExecNotice::Signal(id, signal));
                    }
                    trace::listen_while_stopped(process)
                }
                _ => trace::resume_thread(process, 0),
            };
            // A failure means that it was killed while it was stopped; the next change says so.
            let _ = resumed;
        }
        self.send_notice(&ExecNotice::Gone(id));
    }

    fn send_notice(&self, notice: &ExecNotice) {
        if let Some(notices) = &self.notices {
            // If the server is gone, so is the run.
            let _ = notices.send(notice, &[]);
        }
    }

    /// Starts a thread that receives answers, with the first question.
    fn spawn_answer_receiver(self: &Arc<Self>, notices: &Arc<PacketChannel>) -> io::Result<()> {
        if self.listening.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let (watch, notices) = (Arc::clone(self), Arc::clone(notices));
        let spawned = thread::Builder::new()
            .stack_size(THREAD_STACK)
            .spawn(move || watch.receive_answers(&notices));
        if spawned.is_err() {
            self.listening.store(false, Ordering::Relaxed);
        }
        spawned.map(drop)
    }

    /// Delivers the server's answers to the processes they are for.
    fn receive_answers(&self, notices: &PacketChannel) {
        while let Ok(Some((ExecReply { id, answer }, _))) = notices.receive::<ExecReply>() {
            let mut held_processes = self.lock_held();
            // A process that is gone needs no answer.
            let Some(held_process) = held_processes.get_mut(&id) else { continue };
            match answer {
                ExecAnswer::Begun => held_process.runs_elsewhere = true,
                answer => {
                    held_process.answer = Some(answer);
                    let _ = trace::signal_process(held_process.process, WAKE_SIGNAL);
                }
            }
        }
    }

    fn lock_held(&self) -> MutexGuard<'_, std::collections::HashMap<u64, HeldProcess>> {
        self.held_processes.lock().ignore_poison()
    }
}

/// Makes the process wait, and reports it to the server. Returns the code that waiting has
/// overwritten, and the signal mask.
fn begin_hold(
    process: i32,
    id: u64,
    image: &ProcessImage,
    request: &HoldRequest,
) -> io::Result<([u8; stub::SAVED_BYTES], u64)> {
    let signal_mask = trace::read_signal_mask(process)?;
    trace::write_signal_mask(process, 0)?;
    let saved_code = stub::inject_pause(process, image)?;
    trace::resume_thread(process, 0)?;
    let HoldRequest { notices, description, streams } = request;
    let fds: Vec<_> = [description].into_iter().chain(streams).map(AsFd::as_fd).collect();
    if notices.send(&ExecNotice::Held(id), &fds).is_err() {
        // The server is gone, and the run ends with it.
        kill_tracee(process);
    }
    Ok((saved_code, signal_mask))
}

/// Applies an answer to the process, which is stopped.
fn apply_answer(process: i32, saved: &SavedProgram, answer: &ExecAnswer, signal: i32) {
    let image = &saved.image;
    let (result, signal) = match answer {
        ExecAnswer::Run => {
            let restored = stub::restore_start(process, image, &saved.saved_code);
            (restored.and_then(|()| trace::write_signal_mask(process, saved.signal_mask)), signal)
        }
        ExecAnswer::Refuse(message, code) => (stub::inject_exit(process, image, message, *code), 0),
        ExecAnswer::Ended { signal: Some(libc::SIGKILL), .. } => return kill_tracee(process),
        // It dies of the same signal or, if it was started to ignore that, exits with the code that
        // shells use.
        ExecAnswer::Ended { signal: Some(signal), .. } => {
            (stub::inject_exit(process, image, "", 128 + signal), *signal)
        }
        ExecAnswer::Ended { code, .. } => {
            (stub::inject_exit(process, image, "", code.unwrap_or(EXIT_CANNOT_ASK)), 0)
        }
        ExecAnswer::Begun => (Ok(()), signal),
    };
    match result {
        Ok(()) => release_tracee(process, signal),
        Err(_) => kill_tracee(process),
    }
}

/// Copies everything that the decision depends on: none of it is read again.
fn describe_exec(
    process: i32,
    image: &ProcessImage,
    files: &ExecFiles,
    verdict: ExecVerdict,
) -> io::Result<(HeldExec, Vec<OwnedFd>)> {
    let argv = image.argv();
    // A human reads the whole question, and what is read is what runs.
    if argv.iter().map(|word| word.len() + 1).sum::<usize>() > MAX_ARGV_BYTES
        || image.env().map(<[u8]>::len).sum::<usize>() > MAX_ENV_BYTES
    {
        return Err(io::Error::other("it has too many words to ask about"));
    }
    let to_text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let garbled =
        argv.iter().copied().chain(image.env()).any(|bytes| std::str::from_utf8(bytes).is_err());
    let parse_env_entry = |entry: &[u8]| {
        let entry = to_text(entry);
        entry.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    let cwd = resolve::describe_file(process, &resolve::open_link(process, "cwd")?)?;
    let pid = Pid::from_raw(process).ok_or_else(|| io::Error::other("invalid pid"))?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let streams = [0, 1, 2].map(|fd| pidfd_getfd(&pidfd, fd, PidfdGetfdFlags::empty()).ok());
    let itself = verdict.out.is_some();
    let held_exec = HeldExec {
        pid: process,
        program: files.program.identity.clone(),
        script: files.script.as_ref().map(|script| script.identity.clone()),
        script_at: files.script.as_ref().map_or(0, |script| script.argv_start),
        argv: argv.iter().map(|word| to_text(word)).collect(),
        env: image.env().filter_map(parse_env_entry).collect(),
        cwd,
        words: argv
            .len()
            .saturating_sub(files.iter().nth(verdict.view).map_or(0, |file| file.argv_start)),
        parents: list_ancestors(process),
        garbled,
        itself,
        verdict,
        streams: [streams[0].is_some(), streams[1].is_some(), streams[2].is_some()],
    };
    Ok((held_exec, streams.into_iter().flatten().collect()))
}

/// Lists the ancestors of a process, up to the run's first process.
fn list_ancestors(process: i32) -> Vec<String> {
    let own_pid = rustix::process::getpid().as_raw_nonzero().get();
    let mut ancestors = Vec::new();
    let mut current = process;
    while ancestors.len() < MAX_ANCESTORS {
        let Ok(status) = fs::read_to_string(format!("/proc/{current}/status")) else { break };
        let read_field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name));
            value.map(|value| value.trim().to_owned())
        };
        if current != process {
            ancestors.push(format!("{}({current})", read_field("Name:").unwrap_or_default()));
        }
        match read_field("PPid:").and_then(|parent| parent.parse().ok()) {
            Some(parent) if parent != own_pid && parent > 1 => current = parent,
            _ => break,
        }
    }
    // The last one is the run's own init, which no one chose to start.
    if ancestors.len() < MAX_ANCESTORS {
        ancestors.pop();
    }
    ancestors
}
