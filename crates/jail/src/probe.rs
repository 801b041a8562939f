//! Finds out which parts of the sandbox this host supports, by trying each in a separate process.
//!
//! Version numbers and settings never decide anything here; they only explain a failure ([`Host`]).
//! The calling process must have a single thread, since it forks. It is not changed, whatever its
//! children do to themselves.

mod host;
mod namespaces;
mod process;

use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, waitpid,
};
use serde::{Deserialize, Serialize};

use crate::fault::{Fault, InLayer, Layer};
use crate::packet::Channel;
use crate::sys::{self, Fork};
pub use host::Host;
use namespaces::Ground;

/// Each attempt takes milliseconds; one that has not answered by then hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Kernel features that the sandbox uses, in the order in which they are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    UserNamespace,
    MountNamespace,
    PidNamespace,
    Proc,
    NetworkNamespace,
    NoNewPrivileges,
    Capabilities,
    Landlock,
    Seccomp,
    PidfdGetfd,
    Trace,
    Limits,
    Bwrap,
}

impl Part {
    /// Returns the name shown by `ringfence doctor`.
    pub fn name(self) -> &'static str {
        match self {
            Part::UserNamespace => "user namespace",
            Part::MountNamespace => "mount namespace, read-only copy",
            Part::PidNamespace => "pid namespace",
            Part::Proc => "fresh /proc",
            Part::NetworkNamespace => "network namespace, loopback",
            Part::NoNewPrivileges => "no new privileges",
            Part::Capabilities => "capabilities dropped",
            Part::Landlock => "Landlock",
            Part::Seccomp => "seccomp filter, listener",
            Part::PidfdGetfd => "descriptors of a run (pidfd_getfd)",
            Part::Trace => "tracing, to watch execs",
            Part::Limits => "limits by control group",
            Part::Bwrap => "bubblewrap",
        }
    }
}

/// Outcome of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Ok,
    Refused,
    /// There was nothing to try, or a prerequisite is missing.
    NotTried,
}

/// Result for a single feature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    pub part: Part,
    pub outcome: Outcome,
    /// Error number of the system call that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    /// Details on success; on failure, what was tried and the system's reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

/// Result of an attempt: a detail, or the step that failed.
type Seen = Result<String, Fault>;

/// Tries everything. `scratch` is a directory that this user may write to.
pub fn run(scratch: &Path) -> Vec<Tried> {
    let user = tried(Part::UserNamespace, in_child(0, namespaces::become_user));
    let ground = match user.outcome {
        Outcome::Ok => Some(Ground::User),
        // Root can do without a user namespace if it has its capabilities.
        _ => in_child(0, namespaces::do_without_user).is_ok().then_some(Ground::Root),
    };
    let mut all = vec![user];
    let mut on_ground = |part, attempt: &dyn Fn(Ground) -> Seen| {
        all.push(match ground {
            Some(ground) => tried(part, in_child(0, || attempt(ground))),
            None => not_tried(part, "it needs a user namespace"),
        });
    };
    on_ground(Part::MountNamespace, &|ground| namespaces::copy_mounts(ground, scratch));
    on_ground(Part::PidNamespace, &namespaces::count_from_one);
    on_ground(Part::Proc, &namespaces::mount_proc);
    on_ground(Part::NetworkNamespace, &namespaces::make_network);
    all.push(tried(Part::NoNewPrivileges, in_child(0, process::refuse_privileges)));
    all.push(tried(Part::Capabilities, in_child(0, process::drop_capabilities)));
    all.push(tried(Part::Landlock, in_child(0, || process::restrict(scratch))));
    all.push(tried(Part::Seccomp, in_child(0, process::answer_a_call)));
    all.push(tried(Part::PidfdGetfd, in_child(0, process::take_a_descriptor)));
    all.push(tried(Part::Trace, in_child(0, process::trace_a_child)));
    all.push(tried(Part::Limits, in_child(0, process::limit)));
    all.push(match process::bwrap() {
        Some(bwrap) => tried(Part::Bwrap, in_child(0, || process::run_bwrap(bwrap))),
        None => not_tried(Part::Bwrap, "it is not installed"),
    });
    all
}

fn tried(part: Part, seen: Seen) -> Tried {
    match seen {
        Ok(text) => Tried { part, outcome: Outcome::Ok, errno: None, text },
        Err(fault) => {
            let text = format!("{}: {}", fault.what, fault.text);
            Tried { part, outcome: Outcome::Refused, errno: fault.errno, text }
        }
    }
}

fn not_tried(part: Part, why: &str) -> Tried {
    Tried { part, outcome: Outcome::NotTried, errno: None, text: why.to_owned() }
}

/// Makes the attempt in a child process, in new namespaces (`CLONE_NEW…`) if any are given, and
/// returns the result that the child reports.
fn in_child(namespaces: libc::c_int, attempt: impl FnOnce() -> Seen) -> Seen {
    let (ours, theirs) = Channel::pair().in_layer(Layer::Program, "open a channel")?;
    match sys::fork(namespaces).in_layer(Layer::Namespaces, "start a test process")? {
        Fork::Child => {
            drop(ours);
            // A child that hangs is killed, and its own children with it.
            let tied = set_parent_process_death_signal(Some(Signal::KILL))
                .in_layer(Layer::Program, "die with the parent");
            let sent = theirs.send(&tied.and_then(|()| attempt()), &[]);
            sys::leave(i32::from(sent.is_err()))
        }
        Fork::Parent(child) => {
            drop(theirs);
            let seen = hear(&ours);
            end(child);
            seen
        }
    }
}

/// Waits for the result of a child, for as long as [`PATIENCE`] allows.
fn hear(channel: &Channel) -> Seen {
    let mut watched = [PollFd::new(channel, PollFlags::IN)];
    let patience = Timespec { tv_sec: PATIENCE.as_secs().try_into().unwrap_or(10), tv_nsec: 0 };
    let ready = rustix::io::retry_on_intr(|| poll(&mut watched, Some(&patience)));
    if ready.in_layer(Layer::Program, "wait for the test process")? == 0 {
        return Err(Fault::other(
            Layer::Program,
            "wait for the test process",
            "it does not respond",
        ));
    }
    match channel.receive::<Seen>().in_layer(Layer::Program, "receive the result")? {
        Some((seen, _)) => seen,
        None => Err(Fault::other(Layer::Program, "run the test process", "it was killed")),
    }
}

fn end(child: Pid) {
    let _ = kill_process(child, Signal::KILL);
    let _ = rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()));
}

/// Error for an operation that should have been refused and was not: the feature does not work,
/// whatever the kernel reported.
fn not_refused(layer: Layer, what: &str) -> Fault {
    Fault::other(layer, what, "it was not refused")
}
