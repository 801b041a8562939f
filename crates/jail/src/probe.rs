//! What this host lets a fence be made of, found out by trying each part in a process of its own.
//!
//! Nothing here goes by version numbers or settings: those explain a refusal ([`Host`]) and never decide. The process
//! must have one thread, since it forks; it stays as it is, whatever its children do to themselves.

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

/// Each takes milliseconds; one that has not answered by now hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a fence is made of, in the order in which it is tried.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Ok,
    Refused,
    /// There was nothing to try, or nothing to try it on.
    NotTried,
}

/// What came of one part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    pub part: Part,
    pub outcome: Outcome,
    /// Of the system call that was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    /// What was seen; of a refusal, what was tried and the system's reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

/// What an attempt comes to: what was seen, or which step was refused.
type Seen = Result<String, Fault>;

/// Tries everything. `scratch` is a directory that this user may write to.
pub fn run(scratch: &Path) -> Vec<Tried> {
    let user = tried(Part::UserNamespace, in_child(0, namespaces::become_user));
    let ground = match user.outcome {
        Outcome::Ok => Some(Ground::User),
        // Root may do without, if it is a root with its capabilities.
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

/// Makes the attempt in a child, in new namespaces (`CLONE_NEW…`) if any are named, and takes its word for it.
fn in_child(namespaces: libc::c_int, attempt: impl FnOnce() -> Seen) -> Seen {
    let (ours, theirs) = Channel::pair().in_layer(Layer::Program, "open a channel")?;
    match sys::fork(namespaces).in_layer(Layer::Namespaces, "start a process for it")? {
        Fork::Child => {
            drop(ours);
            // One that hangs is killed, and its own children go with it.
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

fn hear(channel: &Channel) -> Seen {
    let mut watched = [PollFd::new(channel, PollFlags::IN)];
    let patience = Timespec { tv_sec: PATIENCE.as_secs().try_into().unwrap_or(10), tv_nsec: 0 };
    let ready = rustix::io::retry_on_intr(|| poll(&mut watched, Some(&patience)));
    if ready.in_layer(Layer::Program, "wait for it")? == 0 {
        return Err(Fault::other(Layer::Program, "wait for it", "it hangs"));
    }
    match channel.receive::<Seen>().in_layer(Layer::Program, "hear of it")? {
        Some((seen, _)) => seen,
        None => Err(Fault::other(Layer::Program, "try it", "the process that tried was killed")),
    }
}

fn end(child: Pid) {
    let _ = kill_process(child, Signal::KILL);
    let _ = rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()));
}

/// For what should have been refused and was not: such a part does not hold, whatever it said.
fn not_refused(layer: Layer, what: &str) -> Fault {
    Fault::other(layer, what, "it was not refused")
}
