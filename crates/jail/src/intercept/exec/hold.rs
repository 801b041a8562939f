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
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread;

use policy::{Decision, Verdict};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::files::ExecFiles;
use super::image::Image;
use super::wire::{Answer, HeldExec, Notice, Reply, enclose};
use super::{MAX_HELD, STACK, Watch, kill, release, resolve, stub};
use crate::packet::Channel;
use crate::sys::trace::{self, Change};

/// Signal that wakes a watcher waiting for its process. No program is affected by it.
const WAKE: i32 = libc::SIGURG;
/// Most ancestors that are reported.
const PARENTS: usize = 12;
/// Most bytes in the arguments of a command that is asked about, and in its environment.
const ASKED: usize = 16 << 10;
const TAKEN: usize = 512 << 10;
/// Exit code of a command that should be asked about and cannot be: it has too many words to read,
/// or too many processes are waiting.
const REFUSED: i32 = 126;
/// Exit code of a command that should be asked about where no one can be asked, as after a no.
const DENIED: i32 = 1;

/// A held process and its answer.
#[derive(Default)]
pub struct Slot {
    process: i32,
    begun: bool,
    answer: Option<Answer>,
}

/// Everything needed to let a held program start after all.
struct Kept {
    image: Image,
    code: [u8; stub::KEPT],
    mask: u64,
    /// The words of its rule, recorded if it is refused.
    name: String,
}

/// Description of a process that is about to be held, for the server.
struct Prepared {
    notices: Arc<Channel>,
    letter: OwnedFd,
    streams: Vec<OwnedFd>,
}

impl Watch {
    /// Holds a process until it is answered. Returns false when this thread has waited for the
    /// process and another watcher has taken its place.
    pub(super) fn hold(
        self: &Arc<Self>,
        process: i32,
        image: Image,
        files: ExecFiles,
        verdict: Verdict,
    ) -> bool {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let name = verdict.prefix.join(" ");
        let prepared = match self.prepare_hold(process, id, &image, &files, &verdict) {
            Ok(prepared) => prepared,
            // The process has not been touched yet. One that a rule allows starts here: an `allow`
            // must not make a command worse, and in the sandbox it may do what it may do without a
            // rule.
            Err(error) if verdict.decision == Decision::Allow => {
                self.slots().remove(&id);
                self.tell(process, &files, &image.argv(), &verdict, Some(error.to_string()));
                release(process, 0);
                return true;
            }
            Err(error) => {
                self.refuse(process, id, &image, &files, &error);
                return true;
            }
        };
        match begin_hold(process, id, &image, &prepared) {
            Ok(kept) => {
                drop(prepared);
                let kept = Kept { image, code: kept.0, mask: kept.1, name };
                self.wait_for(process, id, &kept);
                self.slots().remove(&id);
                false
            }
            Err(error) => {
                self.refuse(process, id, &image, &files, &error);
                true
            }
        }
    }

    /// Ends a process that cannot be held, with a message that says why.
    fn refuse(&self, process: i32, id: u64, image: &Image, files: &ExecFiles, error: &io::Error) {
        self.slots().remove(&id);
        self.denials.add("exec", "a program that nobody could be asked about");
        let code = if self.notices.is_none() { DENIED } else { REFUSED };
        let message =
            format!("ringfence: {}: cannot be approved: {error}\n", files.program.identity.path);
        match stub::end(process, image, &message, code) {
            Ok(()) => release(process, 0),
            Err(_) => kill(process),
        }
    }

    /// Prepares to hold a process, without touching the process itself.
    fn prepare_hold(
        self: &Arc<Self>,
        process: i32,
        id: u64,
        image: &Image,
        files: &ExecFiles,
        verdict: &Verdict,
    ) -> io::Result<Prepared> {
        let Some(notices) = self.notices.clone() else {
            return Err(io::Error::other("no one can be asked"));
        };
        let (held, streams) = describe(process, image, files, verdict.clone())?;
        let letter = enclose(&held)?;
        {
            let mut slots = self.slots();
            if slots.len() >= MAX_HELD {
                return Err(io::Error::other(
                    "too many commands are already waiting for an answer",
                ));
            }
            slots.insert(id, Slot { process, ..Slot::default() });
        }
        self.hear_from(&notices)?;
        // From now on this thread waits for this process only.
        self.add_watcher()?;
        Ok(Prepared { notices, letter, streams })
    }

    fn wait_for(&self, process: i32, id: u64, kept: &Kept) {
        while let Ok((_, change)) = trace::wait() {
            if change == Change::Gone {
                break;
            }
            let (answer, begun) = match self.slots().get_mut(&id) {
                Some(slot) => (slot.answer.take(), slot.begun),
                None => (None, false),
            };
            if let Some(answer) = answer {
                if matches!(answer, Answer::Refuse(..)) {
                    self.denials.add("exec", &kept.name);
                }
                let signal = if let Change::Signal(signal) = change { signal } else { 0 };
                return finish(process, kept, &answer, if signal == WAKE { 0 } else { signal });
            }
            let went_on = match change {
                Change::Signal(WAKE) => trace::resume(process, 0),
                Change::Signal(signal) if begun => {
                    self.notify(&Notice::Signal(id, signal));
                    trace::resume(process, 0)
                }
                Change::Signal(signal) => trace::resume(process, signal),
                Change::Stop(signal) if signal != libc::SIGTRAP => {
                    if begun {
                        self.notify(&Notice::Signal(id, signal));
                    }
                    trace::stay_stopped(process)
                }
                _ => trace::resume(process, 0),
            };
            // A failure means that it was killed while it was stopped; the next change says so.
            let _ = went_on;
        }
        self.notify(&Notice::Gone(id));
    }

    fn notify(&self, notice: &Notice) {
        if let Some(notices) = &self.notices {
            // If the server is gone, so is the run.
            let _ = notices.send(notice, &[]);
        }
    }

    /// Starts a thread that receives answers, with the first question.
    fn hear_from(self: &Arc<Self>, notices: &Arc<Channel>) -> io::Result<()> {
        if self.hears.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let (watch, notices) = (Arc::clone(self), Arc::clone(notices));
        let spawned = thread::Builder::new().stack_size(STACK).spawn(move || watch.hear(&notices));
        if spawned.is_err() {
            self.hears.store(false, Ordering::Relaxed);
        }
        spawned.map(drop)
    }

    /// Delivers the server's answers to the processes they are for.
    fn hear(&self, notices: &Channel) {
        while let Ok(Some((Reply { id, answer }, _))) = notices.receive_long::<Reply>() {
            let mut slots = self.slots();
            // A process that is gone needs no answer.
            let Some(slot) = slots.get_mut(&id) else { continue };
            match answer {
                Answer::Begun => slot.begun = true,
                answer => {
                    slot.answer = Some(answer);
                    let _ = trace::signal(slot.process, WAKE);
                }
            }
        }
    }

    fn slots(&self) -> MutexGuard<'_, std::collections::HashMap<u64, Slot>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the process wait, and reports it to the server. Returns the code that waiting has
/// overwritten, and the signal mask.
fn begin_hold(
    process: i32,
    id: u64,
    image: &Image,
    prepared: &Prepared,
) -> io::Result<([u8; stub::KEPT], u64)> {
    let mask = trace::signal_mask(process)?;
    trace::set_signal_mask(process, 0)?;
    let code = stub::wait(process, image)?;
    trace::resume(process, 0)?;
    let Prepared { notices, letter, streams } = prepared;
    let fds: Vec<_> = [letter].into_iter().chain(streams).map(AsFd::as_fd).collect();
    if notices.send(&Notice::Held(id), &fds).is_err() {
        // The server is gone, and the run ends with it.
        kill(process);
    }
    Ok((code, mask))
}

/// Applies an answer to the process, which is stopped.
fn finish(process: i32, kept: &Kept, answer: &Answer, signal: i32) {
    let image = &kept.image;
    let (done, signal) = match answer {
        Answer::Run => {
            let begun = stub::begin(process, image, &kept.code);
            (begun.and_then(|()| trace::set_signal_mask(process, kept.mask)), signal)
        }
        Answer::Refuse(message, code) => (stub::end(process, image, message, *code), 0),
        Answer::Ended { signal: Some(libc::SIGKILL), .. } => return kill(process),
        // It dies of the same signal or, if it was started to ignore that, exits with the code that
        // shells use.
        Answer::Ended { signal: Some(signal), .. } => {
            (stub::end(process, image, "", 128 + signal), *signal)
        }
        Answer::Ended { code, .. } => (stub::end(process, image, "", code.unwrap_or(REFUSED)), 0),
        Answer::Begun => (Ok(()), signal),
    };
    match done {
        Ok(()) => release(process, signal),
        Err(_) => kill(process),
    }
}

/// Copies everything that the decision depends on: none of it is read again.
fn describe(
    process: i32,
    image: &Image,
    files: &ExecFiles,
    verdict: Verdict,
) -> io::Result<(HeldExec, Vec<OwnedFd>)> {
    let argv = image.argv();
    // A human reads the whole question, and what is read is what runs.
    if argv.iter().map(|word| word.len() + 1).sum::<usize>() > ASKED
        || image.env().map(<[u8]>::len).sum::<usize>() > TAKEN
    {
        return Err(io::Error::other("it has too many words to ask about"));
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let garbled =
        argv.iter().copied().chain(image.env()).any(|bytes| std::str::from_utf8(bytes).is_err());
    let pair = |entry: &[u8]| {
        let entry = text(entry);
        entry.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    let cwd = resolve::describe(process, &resolve::open_link(process, "cwd")?)?;
    let number = Pid::from_raw(process).ok_or_else(|| io::Error::other("invalid pid"))?;
    let handle = pidfd_open(number, PidfdFlags::empty())?;
    let streams = [0, 1, 2].map(|fd| pidfd_getfd(&handle, fd, PidfdGetfdFlags::empty()).ok());
    let itself = verdict.out.is_some();
    let held = HeldExec {
        pid: process,
        program: files.program.identity.clone(),
        script: files.script.as_ref().map(|script| script.identity.clone()),
        script_at: files.script.as_ref().map_or(0, |script| script.argv_start),
        argv: argv.iter().map(|word| text(word)).collect(),
        env: image.env().filter_map(pair).collect(),
        cwd,
        words: argv
            .len()
            .saturating_sub(files.iter().nth(verdict.view).map_or(0, |file| file.argv_start)),
        parents: parents(process),
        garbled,
        itself,
        verdict,
        streams: [streams[0].is_some(), streams[1].is_some(), streams[2].is_some()],
    };
    Ok((held, streams.into_iter().flatten().collect()))
}

/// Lists the ancestors of a process, up to the run's first process.
fn parents(process: i32) -> Vec<String> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let mut found = Vec::new();
    let mut at = process;
    while found.len() < PARENTS {
        let Ok(status) = fs::read_to_string(format!("/proc/{at}/status")) else { break };
        let field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name));
            value.map(|value| value.trim().to_owned())
        };
        if at != process {
            found.push(format!("{}({at})", field("Name:").unwrap_or_default()));
        }
        match field("PPid:").and_then(|parent| parent.parse().ok()) {
            Some(parent) if parent != own && parent > 1 => at = parent,
            _ => break,
        }
    }
    // The last one is the run's own init, which no one chose to start.
    if found.len() < PARENTS {
        found.pop();
    }
    found
}
