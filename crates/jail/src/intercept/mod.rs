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
        let mut denials = self.0.lock().ignore_poison();
        let name: String =
            name.chars().map(|c| if c.is_control() { '?' } else { c }).take(200).collect();
        let key = match denials.len() < MAX_DENIALS || denials.contains_key(&(kind, name.clone())) {
            true => (kind, name),
            false => (kind, "…".to_owned()),
        };
        *denials.entry(key).or_default() += 1;
    }

    /// Removes one denial that our own attempt caused. Returns false when there was none: a call
    /// that should have been refused was not.
    pub fn remove_one(&self, kind: &'static str, name: &str) -> bool {
        let mut denials = self.0.lock().ignore_poison();
        let key = (kind, name.to_owned());
        match denials.get_mut(&key) {
            Some(1) => denials.remove(&key).is_some(),
            Some(count) => {
                *count -= 1;
                true
            }
            None => false,
        }
    }

    /// Returns whether this was refused at least once.
    pub fn contains(&self, kind: &'static str, name: &str) -> bool {
        let denials = self.0.lock().ignore_poison();
        denials.contains_key(&(kind, name.to_owned()))
    }

    /// Lists every denial with its count.
    pub fn list(&self) -> Vec<Denial> {
        let denials = self.0.lock().ignore_poison();
        let make_denial = |((kind, name), count): (&(&'static str, String), &u64)| Denial {
            kind: (*kind).to_owned(),
            name: name.clone(),
            count: *count,
        };
        denials.iter().map(make_denial).collect()
    }
}

/// Answers the run's system calls and keeps its covers in place, on separate threads, until the run
/// has ended.
///
/// Covers have a thread of their own: answering a call means reading the run's memory and paths,
/// and the run can make a thread that does so wait as long as it likes.
pub(crate) fn serve_syscalls(
    listener: OwnedFd,
    connect_policy: ConnectPolicy,
    cover_guard: CoverGuard,
    denials: DenialLog,
    exec_config: Option<exec::ExecWatchConfig>,
) -> io::Result<Option<Arc<exec::ExecWatch>>> {
    let listener = Arc::new(listener);
    let (watch, forwarded_calls) = match exec_config {
        None => (None, None),
        Some(config) => {
            let (call_sender, call_receiver) = mpsc::channel();
            let (wake_reader, wake_writer) = io::pipe()?;
            let forward_call = move |call| {
                if call_sender.send(call).is_ok() {
                    let _ = (&wake_writer).write_all(&[0]);
                }
            };
            (
                Some(exec::ExecWatch::start(
                    Arc::clone(&listener),
                    config,
                    Box::new(forward_call),
                )?),
                Some((wake_reader, call_receiver)),
            )
        }
    };
    if let Some(mounts) = connect_policy.mounts.as_ref().filter(|_| !cover_guard.is_idle()) {
        let (mounts, run_listener, denials) =
            (mounts.try_clone()?, Arc::clone(&listener), denials.clone());
        // The host replaced the file, and until now it was open to the run. The user has to learn
        // of that.
        let report_uncovered =
            move |path: &Path| denials.add("uncovered", &path.display().to_string());
        thread::Builder::new().spawn(move || {
            cover_guard.restore_until_end(&mounts, &run_listener, report_uncovered)
        })?;
    }
    let responder = SyscallResponder {
        listener,
        forwarded_calls,
        denials,
        pending_connects: Arc::default(),
        attempts: ConnectAttempts::default(),
    };
    thread::Builder::new().spawn(move || responder.serve_calls(connect_policy))?;
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
        let mut sockets = self.0.lock().ignore_poison();
        // Most sockets whose caller is gone are never asked for again.
        if sockets.len() >= 2 * MAX_PENDING {
            sockets.clear();
        }
        !sockets.insert(socket)
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
    fn serve_calls(self, connect_policy: ConnectPolicy) {
        // A thread that cannot enter the run's namespaces refuses every connection, rather than
        // connect from the wrong place.
        let entered_run = connect_policy.enter_run().map(Arc::new);
        while self.wait_for_call() {
            match self.next_call() {
                Ok(call) if call.call == libc::SYS_connect => match &entered_run {
                    Ok(entered_run) => self.connect_for_caller(entered_run, call),
                    Err(_) => {
                        sys::answer_call(self.listener.as_fd(), call.id, Err(libc::EACCES));
                    }
                },
                Ok(call) if rename::is_rename(call.call) => {
                    let is_completed = entered_run.as_ref().is_ok_and(|entered_run| {
                        rename::complete_noop_rename(entered_run, &self.listener, &call)
                    });
                    match is_completed {
                        true => drop(sys::answer_call(self.listener.as_fd(), call.id, Ok(0))),
                        false => drop(sys::trace::continue_call(self.listener.as_fd(), call.id)),
                    }
                }
                Ok(call) => match &entered_run {
                    Ok(entered_run)
                        if entered_run.nested
                            && seccomp::is_nesting_call(call.call, call.args[0]) =>
                    {
                        self.answer_namespace_call(entered_run, &call);
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
        let source = self
            .forwarded_calls
            .as_ref()
            .map_or(self.listener.as_fd(), |(wake_reader, _)| wake_reader.as_fd());
        loop {
            let mut poll_fds = [PollFd::from_borrowed_fd(source, PollFlags::IN)];
            match poll(&mut poll_fds, None) {
                Err(rustix::io::Errno::INTR) => {}
                polled => return polled.is_ok() && poll_fds[0].revents().contains(PollFlags::IN),
            }
        }
    }

    fn next_call(&self) -> io::Result<PendingCall> {
        match &self.forwarded_calls {
            None => sys::receive_call(self.listener.as_fd()),
            Some((wake_reader, call_receiver)) => {
                (&*wake_reader).read_exact(&mut [0])?;
                call_receiver.recv().map_err(io::Error::other)
            }
        }
    }

    /// Lets the caller create a user namespace, or refuses it.
    fn answer_namespace_call(&self, entered_run: &connect::EnteredRun, call: &PendingCall) {
        match nesting::may_create_user_namespace(&entered_run.proc, call) {
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
    fn connect_for_caller(&self, entered_run: &Arc<connect::EnteredRun>, call: PendingCall) {
        let listener = Arc::clone(&self.listener);
        let denials = self.denials.clone();
        match entered_run.prepare_connect(&listener, &call) {
            Ok(prepared) if self.pending_connects.fetch_add(1, Ordering::Relaxed) < MAX_PENDING => {
                let (pending, attempts, id) =
                    (Arc::clone(&self.pending_connects), self.attempts.clone(), call.id);
                // Connecting may take long, and O_NONBLOCK cannot say whether it does, since the
                // caller can change that flag meanwhile. On a thread of its own, the caller waits
                // and no one else does.
                let spawned = thread::Builder::new().stack_size(THREAD_STACK).spawn(move || {
                    let socket = prepared.socket_inode();
                    let is_retry = attempts.begin_attempt(socket);
                    let result = prepared.connect().map(|()| 0);
                    pending.fetch_sub(1, Ordering::Relaxed);
                    let result = match result.map_err(|refusal| refusal.record_denial(&denials)) {
                        Err(libc::EISCONN) if is_retry => Ok(0),
                        other => other,
                    };
                    let is_delivered = sys::answer_call(listener.as_fd(), id, result);
                    if is_delivered || result.is_err() {
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
