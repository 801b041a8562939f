//! System calls that the filter leaves to the supervisor.
//!
//! Calls that no run may make are refused and recorded. `connect` is made here on behalf of the
//! caller, on its own socket but with a copy of the address: the address that was checked is the
//! address that is connected to, whatever other threads do to the caller's memory and descriptors
//! meanwhile. Only these calls are let through, to be made by the caller itself: execs, whose
//! outcome is judged before the first instruction of the new program; the creation of namespaces by
//! a nested sandbox, for which everything that decides is in registers and in the kernel; and
//! renames, which the mounts decide about. Nothing else may be let through.

mod connect;
pub mod exec;
mod nesting;
pub mod rename;
mod unix_diag;

use std::collections::{BTreeMap, HashSet};
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};

use crate::cover_guard::CoverGuard;
use crate::poison::IgnorePoison;
use crate::seccomp;
use crate::sys::{self, PendingCall};
pub use connect::ConnectPolicy;

/// Kind of action that was refused, and how often.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    pub kind: String,
    pub name: String,
    pub count: u64,
}

/// Most connections that a run may be making at the same time. Each takes one of our threads and a
/// descriptor or two.
const MAX_PENDING: usize = 256;
const THREAD_STACK: usize = 64 << 10;

/// Most different denials that are listed by name. A longer list would tell the user no more.
const MAX_DENIALS: usize = 64;

/// Everything that a run was refused so far.
#[derive(Debug, Clone, Default)]
pub struct DenialLog(Arc<Mutex<BTreeMap<(&'static str, String), u64>>>);

impl DenialLog {
    /// Counts a denial. When the list is full, names that are not in it are counted as `…`.
    pub fn add(&self, kind: &'static str, name: &str) {
        let mut all = self.0.lock().ignore_poison();
        let name: String =
            name.chars().map(|c| if c.is_control() { '?' } else { c }).take(200).collect();
        let key = match all.len() < MAX_DENIALS || all.contains_key(&(kind, name.clone())) {
            true => (kind, name),
            false => (kind, "…".to_owned()),
        };
        *all.entry(key).or_default() += 1;
    }

    /// Removes one denial that our own attempt caused. Returns false when there was none: a call
    /// that should have been refused was not.
    pub fn remove_one(&self, kind: &'static str, name: &str) -> bool {
        let mut all = self.0.lock().ignore_poison();
        let key = (kind, name.to_owned());
        match all.get_mut(&key) {
            Some(1) => all.remove(&key).is_some(),
            Some(count) => {
                *count -= 1;
                true
            }
            None => false,
        }
    }

    /// Returns whether this was refused at least once.
    pub fn contains(&self, kind: &'static str, name: &str) -> bool {
        let all = self.0.lock().ignore_poison();
        all.contains_key(&(kind, name.to_owned()))
    }

    /// Lists every denial with its count.
    pub fn list(&self) -> Vec<Denial> {
        let all = self.0.lock().ignore_poison();
        let denial = |((kind, name), count): (&(&'static str, String), &u64)| Denial {
            kind: (*kind).to_owned(),
            name: name.clone(),
            count: *count,
        };
        all.iter().map(denial).collect()
    }
}

/// Answers the run's system calls and keeps its covers in place, on separate threads, until the run
/// has ended.
///
/// Covers have a thread of their own: answering a call means reading the run's memory and paths,
/// and the run can make a thread that does so wait as long as it likes.
pub(crate) fn serve_syscalls(
    listener: OwnedFd,
    reach: ConnectPolicy,
    keeper: CoverGuard,
    denials: DenialLog,
    execs: Option<exec::ExecWatchConfig>,
) -> io::Result<Option<Arc<exec::ExecWatch>>> {
    let listener = Arc::new(listener);
    let (watch, handed) = match execs {
        None => (None, None),
        Some(terms) => {
            let (calls, inbox) = mpsc::channel();
            let (bell, ring) = io::pipe()?;
            let others = move |call| {
                if calls.send(call).is_ok() {
                    let _ = (&ring).write_all(&[0]);
                }
            };
            (
                Some(exec::ExecWatch::start(Arc::clone(&listener), terms, Box::new(others))?),
                Some((bell, inbox)),
            )
        }
    };
    if let Some(mounts) = reach.mounts.as_ref().filter(|_| !keeper.is_idle()) {
        let (mounts, run, denials) = (mounts.try_clone()?, Arc::clone(&listener), denials.clone());
        // The host replaced the file, and until now it was open to the run. The user has to learn
        // of that.
        let uncovered = move |path: &Path| denials.add("uncovered", &path.display().to_string());
        thread::Builder::new().spawn(move || keeper.restore_until_end(&mounts, &run, uncovered))?;
    }
    let gate = SyscallResponder {
        listener,
        forwarded_calls: handed,
        denials,
        pending_connects: Arc::default(),
        attempts: ConnectAttempts::default(),
    };
    thread::Builder::new().spawn(move || gate.serve_calls(reach))?;
    Ok(watch)
}

/// Sockets that are being connected, and those whose caller stopped waiting meanwhile. A signal
/// interrupts the caller's call, which the kernel may then restart: the restarted call must not
/// fail because the first attempt succeeds.
#[derive(Clone, Default)]
struct ConnectAttempts(Arc<Mutex<HashSet<u64>>>);

impl ConnectAttempts {
    /// Records an attempt for a socket. Returns whether one was recorded already.
    fn begin_attempt(&self, socket: u64) -> bool {
        let mut all = self.0.lock().ignore_poison();
        // Most sockets whose caller is gone are never asked for again.
        if all.len() >= 2 * MAX_PENDING {
            all.clear();
        }
        !all.insert(socket)
    }

    fn end_attempt(&self, socket: u64) {
        self.0.lock().ignore_poison().remove(&socket);
    }
}

/// Answers the calls on one run's listener.
struct SyscallResponder {
    listener: Arc<OwnedFd>,
    /// Calls that the exec watchers have taken from the listener and passed on.
    forwarded_calls: Option<(PipeReader, Receiver<PendingCall>)>,
    denials: DenialLog,
    /// Number of connections that are being made.
    pending_connects: Arc<AtomicUsize>,
    attempts: ConnectAttempts,
}

impl SyscallResponder {
    fn serve_calls(self, reach: ConnectPolicy) {
        // A thread that cannot enter the run's namespaces refuses every connection, rather than
        // connect from the wrong place.
        let place = reach.enter_run().map(Arc::new);
        while self.wait_for_call() {
            match self.next_call() {
                Ok(call) if call.call == libc::SYS_connect => match &place {
                    Ok(place) => self.connect_for_caller(place, call),
                    Err(_) => {
                        sys::answer_call(self.listener.as_fd(), call.id, Err(libc::EACCES));
                    }
                },
                Ok(call) if rename::is_rename(call.call) => {
                    let is_settled = place.as_ref().is_ok_and(|place| {
                        rename::complete_noop_rename(place, &self.listener, &call)
                    });
                    match is_settled {
                        true => drop(sys::answer_call(self.listener.as_fd(), call.id, Ok(0))),
                        false => drop(sys::trace::continue_call(self.listener.as_fd(), call.id)),
                    }
                }
                Ok(call) => match &place {
                    Ok(place)
                        if place.nested && seccomp::is_nesting_call(call.call, call.args[0]) =>
                    {
                        self.answer_namespace_call(place, &call);
                    }
                    _ => self.refuse_call(&call),
                },
                // The caller was killed meanwhile, or this thread was interrupted.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {}
                Err(_) => return,
            }
        }
    }

    /// Waits for a call. Returns false when no process uses the filter any more: from then on every
    /// attempt to receive a call fails.
    fn wait_for_call(&self) -> bool {
        let source =
            self.forwarded_calls.as_ref().map_or(self.listener.as_fd(), |(bell, _)| bell.as_fd());
        loop {
            let mut watched = [PollFd::from_borrowed_fd(source, PollFlags::IN)];
            match poll(&mut watched, None) {
                Err(rustix::io::Errno::INTR) => {}
                polled => return polled.is_ok() && watched[0].revents().contains(PollFlags::IN),
            }
        }
    }

    fn next_call(&self) -> io::Result<PendingCall> {
        match &self.forwarded_calls {
            None => sys::receive_call(self.listener.as_fd()),
            Some((bell, inbox)) => {
                (&*bell).read_exact(&mut [0])?;
                inbox.recv().map_err(io::Error::other)
            }
        }
    }

    /// Lets the caller create a user namespace, or refuses it.
    fn answer_namespace_call(&self, place: &connect::EnteredRun, call: &PendingCall) {
        match nesting::may_create_user_namespace(&place.proc, call) {
            true => drop(sys::trace::continue_call(self.listener.as_fd(), call.id)),
            false => self.refuse_call(call),
        }
    }

    fn refuse_call(&self, call: &PendingCall) {
        let name = seccomp::syscall_name(call.call).unwrap_or("unknown");
        self.denials.add("syscall", name);
        sys::answer_call(self.listener.as_fd(), call.id, Err(libc::EPERM));
    }

    /// Makes a connection on behalf of the caller.
    fn connect_for_caller(&self, place: &Arc<connect::EnteredRun>, call: PendingCall) {
        let listener = Arc::clone(&self.listener);
        let denials = self.denials.clone();
        match place.prepare_connect(&listener, &call) {
            Ok(ready) if self.pending_connects.fetch_add(1, Ordering::Relaxed) < MAX_PENDING => {
                let (pending, attempts, id) =
                    (Arc::clone(&self.pending_connects), self.attempts.clone(), call.id);
                // Connecting may take long, and O_NONBLOCK cannot say whether it does, since the
                // caller can change that flag meanwhile. On a thread of its own, the caller waits
                // and no one else does.
                let spawned = thread::Builder::new().stack_size(THREAD_STACK).spawn(move || {
                    let socket = ready.socket_inode();
                    let is_again = attempts.begin_attempt(socket);
                    let result = ready.connect().map(|()| 0);
                    pending.fetch_sub(1, Ordering::Relaxed);
                    let result = match result.map_err(|refusal| refusal.record_denial(&denials)) {
                        Err(libc::EISCONN) if is_again => Ok(0),
                        other => other,
                    };
                    let is_heard = sys::answer_call(listener.as_fd(), id, result);
                    if is_heard || result.is_err() {
                        attempts.end_attempt(socket);
                    }
                });
                if spawned.is_err() {
                    self.pending_connects.fetch_sub(1, Ordering::Relaxed);
                    sys::answer_call(self.listener.as_fd(), call.id, Err(libc::EAGAIN));
                }
            }
            Ok(_) => {
                self.pending_connects.fetch_sub(1, Ordering::Relaxed);
                sys::answer_call(listener.as_fd(), call.id, Err(libc::EAGAIN));
            }
            Err(refusal) => {
                let errno = refusal.record_denial(&denials);
                sys::answer_call(listener.as_fd(), call.id, Err(errno));
            }
        }
    }
}
