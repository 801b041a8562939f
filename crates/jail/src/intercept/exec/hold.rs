//! A process that waits for the server: for an answer to a question, or for the end of what runs in its stead.
//!
//! It executes nothing but a system call that waits. Its signals come to its watcher first: while a human decides they
//! do what they do to any program; once something runs in its stead they are passed on.

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

/// Wakes a watcher that waits for its process. No program minds it.
const WAKE: i32 = libc::SIGURG;
/// Ancestors that are told.
const PARENTS: usize = 12;
/// The most words of a command that is asked about, and of its environment, in bytes.
const ASKED: usize = 16 << 10;
const TAKEN: usize = 512 << 10;
/// What is asked about and cannot be: there are too many words to read, or too many processes that wait.
const REFUSED: i32 = 126;
/// What is asked about where no one can be asked, as after a no.
const DENIED: i32 = 1;

/// One held process, and what was answered.
#[derive(Default)]
pub struct Slot {
    process: i32,
    begun: bool,
    answer: Option<Answer>,
}

/// What is needed to let it begin after all.
struct Kept {
    image: Image,
    code: [u8; stub::KEPT],
    mask: u64,
    /// The words of its rule, for when it is refused.
    name: String,
}

/// What the server is sent about a process that is about to be held.
struct Prepared {
    notices: Arc<Channel>,
    letter: OwnedFd,
    streams: Vec<OwnedFd>,
}

impl Watch {
    /// Holds a process until it is answered for. False: this thread was the process's, and another has its place.
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
            // Nothing was done to the process yet. One that a rule allows begins here: an `allow` must not make a
            // command worse, and in the sandbox it may do what it may do without a rule.
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

    fn refuse(&self, process: i32, id: u64, image: &Image, files: &ExecFiles, error: &io::Error) {
        self.slots().remove(&id);
        self.denials.add("exec", "a program that nobody could be asked about");
        let code = if self.notices.is_none() { DENIED } else { REFUSED };
        let message =
            format!("ringfence: {}: cannot be asked for: {error}\n", files.program.identity.path);
        match stub::end(process, image, &message, code) {
            Ok(()) => release(process, 0),
            Err(_) => kill(process),
        }
    }

    /// Everything that holding a process takes and that leaves the process itself alone.
    fn prepare_hold(
        self: &Arc<Self>,
        process: i32,
        id: u64,
        image: &Image,
        files: &ExecFiles,
        verdict: &Verdict,
    ) -> io::Result<Prepared> {
        let Some(notices) = self.notices.clone() else {
            return Err(io::Error::other("there is no one to ask"));
        };
        let (held, streams) = describe(process, image, files, verdict.clone())?;
        let letter = enclose(&held)?;
        {
            let mut slots = self.slots();
            if slots.len() >= MAX_HELD {
                return Err(io::Error::other("too many commands wait for an answer already"));
            }
            slots.insert(id, Slot { process, ..Slot::default() });
        }
        self.hear_from(&notices)?;
        // This thread waits for this process from now on.
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
            // It was killed while it stood still; the next change says so.
            let _ = went_on;
        }
        self.notify(&Notice::Gone(id));
    }

    fn notify(&self, notice: &Notice) {
        if let Some(notices) = &self.notices {
            // When the server is gone, so is the run.
            let _ = notices.send(notice, &[]);
        }
    }

    /// Sees to it that answers are heard, from the first question on.
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

    /// Takes the server's answers to those that they are for.
    fn hear(&self, notices: &Channel) {
        while let Ok(Some((Reply { id, answer }, _))) = notices.receive_long::<Reply>() {
            let mut slots = self.slots();
            // One that is gone needs no answer.
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

/// Makes the process wait, and tells the server of it. Returns the code that waiting has overwritten, and the mask.
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
        // The server is gone; the run ends with it.
        kill(process);
    }
    Ok((code, mask))
}

/// Does to the process, which stands still, what was answered.
fn finish(process: i32, kept: &Kept, answer: &Answer, signal: i32) {
    let image = &kept.image;
    let (done, signal) = match answer {
        Answer::Run => {
            let begun = stub::begin(process, image, &kept.code);
            (begun.and_then(|()| trace::set_signal_mask(process, kept.mask)), signal)
        }
        Answer::Refuse(message, code) => (stub::end(process, image, message, *code), 0),
        Answer::Ended { signal: Some(libc::SIGKILL), .. } => return kill(process),
        // It dies of the same signal, or, where it was started to ignore it, with the code that shells use.
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

/// Everything that decides, copied: nothing of it is looked at again.
fn describe(
    process: i32,
    image: &Image,
    files: &ExecFiles,
    verdict: Verdict,
) -> io::Result<(HeldExec, Vec<OwnedFd>)> {
    let argv = image.argv();
    // A question is read by a human, whole, and what is read is what runs.
    if argv.iter().map(|word| word.len() + 1).sum::<usize>() > ASKED
        || image.env().map(<[u8]>::len).sum::<usize>() > TAKEN
    {
        return Err(io::Error::other("it has too many words for a question"));
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let garbled =
        argv.iter().copied().chain(image.env()).any(|bytes| std::str::from_utf8(bytes).is_err());
    let pair = |entry: &[u8]| {
        let entry = text(entry);
        entry.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    let cwd = resolve::describe(process, &resolve::open_link(process, "cwd")?)?;
    let number = Pid::from_raw(process).ok_or_else(|| io::Error::other("no process"))?;
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

/// Up to the run's first process.
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
    // The run's own init is nobody's choice.
    if found.len() < PARENTS {
        found.pop();
    }
    found
}
