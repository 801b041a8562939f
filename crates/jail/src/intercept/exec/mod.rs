//! Every exec of a run, seen and judged.
//!
//! The filter stops each `execve` and `execveat` before it begins. A watcher seizes the calling thread and lets the
//! call go on; the kernel then stops the process again, after the new program is in place and before its first
//! instruction. What is there is judged, not what was asked for: names, files and arguments can be exchanged while a
//! call is under way, but not any more when it is done. Then the process is let go, made to write a message and end,
//! or held: it waits until the server has an answer.

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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use policy::{Decision, Judge, Verdict, View};
use rustix::event::{PollFd, PollFlags, poll};

use super::Denials;
use crate::packet::Channel;
use crate::sys::trace::{self, Change};
use crate::sys::{self, Notification};
use files::{ExecFile, ExecFiles};
use hold::Slot;
use image::Image;
use log::Log;
use wire::{Notice, Ruled, Rules};

/// Whether execs can be watched on this machine: a stopped program is given instructions, which are the machine's own.
pub const SUPPORTED: bool = cfg!(target_arch = "x86_64");

/// What is denied where a thread cannot be traced.
pub const UNWATCHABLE: &str = "a program that cannot be watched";

/// Watchers at the same time, where nobody says otherwise. Waiting ones cost next to nothing.
const WATCHERS: usize = 16;
/// Processes of a run that are held at the same time.
const MAX_HELD: usize = 64;
/// Decisions that are told one by one. A run can cause as many as it likes.
const TOLD: u64 = 10_000;
const STACK: usize = 256 << 10;

/// Where the rest of a run's calls go.
pub type Others = Box<dyn Fn(Notification) + Send + Sync>;

/// What watching needs beside the listener.
pub struct Terms {
    pub rules: Rules,
    /// Where decisions are told, and asked for. Without it nothing is asked: what would be is refused.
    pub notices: Option<Channel>,
    /// Where execs that no rule names are written.
    pub log: Option<OwnedFd>,
    pub denials: Denials,
}

/// What all watchers of a run share.
pub struct Watch {
    listener: Arc<OwnedFd>,
    judge: Judge,
    lets_out: bool,
    notices: Option<Arc<Channel>>,
    log: Log,
    denials: Denials,
    others: Others,
    /// The next exec is the program itself, which was granted before.
    granted: AtomicBool,
    ruled: AtomicU64,
    most: usize,
    watchers: AtomicUsize,
    idle: AtomicUsize,
    /// Locked by the one that waits for the next call. For each call the kernel wakes everyone who waits for it, to find
    /// that all but one were woken for nothing.
    turn: Mutex<()>,
    /// Threads that are seized and have not got to their exec, by how many watchers: one may be about to seize a thread
    /// that another has let go and not yet struck out.
    traced: Mutex<HashMap<i32, usize>>,
    held: Mutex<HashMap<u64, Slot>>,
    next: AtomicU64,
    /// Somebody listens for answers. Most runs ask nothing.
    hears: AtomicBool,
}

impl Watch {
    /// Begins to watch. Calls that are no execs go to `others`.
    pub fn begin(listener: Arc<OwnedFd>, terms: Terms, others: Others) -> io::Result<Arc<Watch>> {
        let Terms { rules, notices, log, denials } = terms;
        let watch = Arc::new(Watch {
            listener,
            judge: Judge::new(rules.table, rules.heuristics),
            lets_out: rules.lets_out,
            notices: notices.map(Arc::new),
            // Only what is let into the wider sandbox was judged before.
            log: Log::new(log, rules.granted.then_some("wider")),
            denials,
            others,
            granted: AtomicBool::new(rules.granted),
            ruled: AtomicU64::new(0),
            most: if rules.watchers == 0 { WATCHERS } else { rules.watchers },
            watchers: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            turn: Mutex::default(),
            traced: Mutex::default(),
            held: Mutex::default(),
            next: AtomicU64::new(1),
            hears: AtomicBool::new(false),
        });
        sys::wake_where_called(watch.listener.as_fd());
        watch.add_watcher()?;
        Ok(watch)
    }

    /// How many execs no rule has named. What is known of them has been written when this returns.
    pub fn finish(&self) -> u64 {
        self.log.finish()
    }

    fn add_watcher(self: &Arc<Self>) -> io::Result<()> {
        self.watchers.fetch_add(1, Ordering::Relaxed);
        let watch = Arc::clone(self);
        let spawned = thread::Builder::new().stack_size(STACK).spawn(move || {
            watch.watch();
            watch.watchers.fetch_sub(1, Ordering::Relaxed);
        });
        if spawned.is_err() {
            self.watchers.fetch_sub(1, Ordering::Relaxed);
        }
        spawned.map(drop)
    }

    /// One watcher: takes a call, sees it through, takes the next. It never takes one while it traces another.
    fn watch(self: &Arc<Self>) {
        loop {
            self.idle.fetch_add(1, Ordering::Relaxed);
            let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            let call = sys::notification(self.listener.as_fd());
            let last = self.idle.fetch_sub(1, Ordering::Relaxed) == 1;
            match call {
                Ok(call) if is_exec(&call) => {
                    if !self.see_through(&call, last, turn) {
                        return;
                    }
                }
                Ok(call) => {
                    drop(turn);
                    (self.others)(call);
                }
                Err(error) => {
                    drop(turn);
                    match error.raw_os_error() {
                        Some(libc::EINTR) => {}
                        // Its caller is gone, or no process uses the filter any more and it will be so for ever.
                        Some(libc::ENOENT) if self.is_in_use() => {}
                        _ => return,
                    }
                }
            }
        }
    }

    fn is_in_use(&self) -> bool {
        let mut watched = [PollFd::new(&*self.listener, PollFlags::IN)];
        let _ = poll(&mut watched, None);
        !watched[0].revents().contains(PollFlags::HUP)
    }

    /// Follows one exec to its end. False when the watcher is not needed any more.
    fn see_through(
        self: &Arc<Self>,
        call: &Notification,
        last: bool,
        turn: MutexGuard<'_, ()>,
    ) -> bool {
        let Ok(thread) = i32::try_from(call.thread) else { return true };
        if !self.seize(thread, call.id) {
            return true;
        }
        // When the caller does not wait any more it was killed or interrupted; the interruption below ends the tracing.
        let _ = trace::let_through(self.listener.as_fd(), call.id);
        let _ = trace::interrupt(thread);
        // Not before: to wake the next one takes time, which the caller would have to wait.
        drop(turn);
        if last && self.watchers.load(Ordering::Relaxed) < self.most {
            // Somebody else shall be there for the next one. If not, it waits for us.
            let _ = self.add_watcher();
        }
        let change = trace::wait();
        if let Ok((process, Change::Exec)) = change {
            self.let_go(thread);
            return self.decide(process);
        }
        match change {
            // The call has failed, or was not made after all.
            Ok((process, Change::Stop(_))) => release(process, 0),
            Ok((process, Change::Signal(signal))) => release(process, signal),
            // Killed, or another thread of its process was faster.
            Ok((_, _)) | Err(_) => {}
        }
        self.let_go(thread);
        true
    }

    /// Becomes the tracer of a thread, or sees to it that its call is not made.
    ///
    /// One that is traced by another of our watchers has made its next attempt before that one could interrupt it. The
    /// interruption is on its way; it takes this call back, and it is made again. Any other is traced by somebody else
    /// or out of our reach: what cannot be judged is not done.
    fn seize(&self, thread: i32, call: u64) -> bool {
        // Under the lock, so that whoever fails finds out here who was faster.
        let mut traced = self.traced();
        if trace::seize(thread).is_ok() {
            *traced.entry(thread).or_default() += 1;
            return true;
        }
        if !traced.contains_key(&thread) && sys::still_waits(self.listener.as_fd(), call) {
            self.denials.add("exec", UNWATCHABLE);
            sys::answer(self.listener.as_fd(), call, Err(libc::EPERM));
        }
        false
    }

    fn let_go(&self, thread: i32) {
        let mut traced = self.traced();
        if let Some(count) = traced.get_mut(&thread) {
            *count -= 1;
            if *count == 0 {
                traced.remove(&thread);
            }
        }
    }

    fn traced(&self) -> MutexGuard<'_, HashMap<i32, usize>> {
        self.traced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decide(self: &Arc<Self>, process: i32) -> bool {
        if self.granted.swap(false, Ordering::Relaxed) {
            release(process, 0);
            return true;
        }
        let identified = Image::read(process)
            .and_then(|image| Ok((ExecFiles::identify(process, &image)?, image)));
        let Ok((mut files, image)) = identified else {
            // A program that may be run and not read. It would have run unseen.
            self.denials.add("exec", "a program that cannot be read");
            kill(process);
            return true;
        };
        if !self.judge.is_empty() {
            files.identify_entry(process, image.registers.pc());
        }
        let argv = image.argv();
        let verdict = self.judge(&files, &argv);
        let is_forbidden =
            verdict.as_ref().is_some_and(|verdict| verdict.decision == Decision::Forbidden);
        if let Some(name) =
            files.unidentified.as_deref().filter(|_| !is_forbidden && !self.judge.is_empty())
        {
            self.denials.add("exec", "a file that cannot be seen");
            let name = one_line(name);
            let message = format!(
                "ringfence: {name}: forbidden: what it stands for cannot be seen; call it by its own path\n"
            );
            self.end(process, &image, &message);
            return true;
        }
        let Some(verdict) = verdict else {
            self.log.add(process, &files.program.identity.path, &argv);
            release(process, 0);
            return true;
        };
        match verdict.decision {
            Decision::Forbidden => {
                self.tell(process, &files, &argv, &verdict, None);
                self.forbid(process, &image, &files, &verdict);
            }
            Decision::Prompt => return self.hold(process, image, files, verdict),
            Decision::Allow if self.lets_out => return self.hold(process, image, files, verdict),
            Decision::Allow => {
                self.tell(process, &files, &argv, &verdict, None);
                release(process, 0);
            }
        }
        true
    }

    fn judge(&self, files: &ExecFiles, argv: &[&[u8]]) -> Option<Verdict> {
        if self.judge.is_empty() {
            return None;
        }
        let judged: Vec<&ExecFile> = files.iter().collect();
        let views: Vec<View<'_>> = judged.iter().map(|file| view(files, file, argv)).collect();
        self.judge.judge(&views, |at, other| {
            judged.get(at).is_some_and(|file| file.is_copy_of(Path::new(&other.path)))
        })
    }

    fn forbid(&self, process: i32, image: &Image, files: &ExecFiles, verdict: &Verdict) {
        let name = verdict.prefix.join(" ");
        self.denials.add("exec", &name);
        let why = verdict.justification.as_deref().unwrap_or("a rule forbids it");
        let path = files.iter().nth(verdict.view).map_or("", |file| &file.identity.path);
        let message = format!("ringfence: {}: forbidden: {}\n", one_line(path), one_line(why));
        self.end(process, image, &message);
    }

    fn end(&self, process: i32, image: &Image, message: &str) {
        match stub::end(process, image, message, 1) {
            Ok(()) => release(process, 0),
            Err(_) => kill(process),
        }
    }

    fn tell(
        &self,
        pid: i32,
        files: &ExecFiles,
        argv: &[&[u8]],
        verdict: &Verdict,
        kept_inside: Option<String>,
    ) {
        let Some(notices) = &self.notices else { return };
        if self.ruled.fetch_add(1, Ordering::Relaxed) < TOLD {
            let path = files.program.identity.path.clone();
            let mut ruled =
                Ruled { pid, path, argv: log::cut(argv), verdict: verdict.clone(), kept_inside };
            // A packet is short; what has many words keeps the first.
            ruled.argv.truncate(64);
            // When the server is gone, so is the run.
            let _ = notices.send(&Notice::Ruled(ruled), &[]);
        }
    }
}

fn is_exec(call: &Notification) -> bool {
    [libc::SYS_execve, libc::SYS_execveat].contains(&call.call)
}

fn view<'a>(files: &ExecFiles, file: &'a ExecFile, argv: &'a [&'a [u8]]) -> View<'a> {
    View {
        path: &file.identity.path,
        called: &file.called,
        device: file.identity.device,
        inode: file.identity.inode,
        size: file.size,
        argv: argv.get(file.argv_start..).unwrap_or_default(),
        is_started: files.is_started(file),
    }
}

/// Lets it go. One that was killed meanwhile has to be waited for, or its real parent never hears of it.
fn release(process: i32, signal: i32) {
    if trace::detach(process, signal).is_ok() {
        return;
    }
    while let Ok((process, change)) = trace::wait() {
        if change != Change::Gone && trace::detach(process, 0).is_ok() {
            return;
        }
    }
}

fn kill(process: i32) {
    let _ = trace::signal(process, libc::SIGKILL);
    while trace::wait().is_ok() {}
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).take(1000).collect()
}
