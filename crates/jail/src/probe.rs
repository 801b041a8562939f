//! Finds out which parts of the sandbox this host supports, by trying each in a separate process.
//!
//! Version numbers and settings never decide anything here; they only explain a failure
//! ([`HostSettings`]). The calling process must have a single thread, since it forks. It is not
//! changed, whatever its children do to themselves.

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

use crate::error::{Layer, LayerContext, SandboxError};
use crate::packet::PacketChannel;
use crate::sys::{self, ForkResult};
pub use host::HostSettings;
use namespaces::NamespaceBase;

/// Each attempt takes milliseconds; one that has not answered by then hangs.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

/// Kernel features that the sandbox uses, in the order in which they are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxFeature {
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

impl SandboxFeature {
    /// Returns the name shown by `ringfence doctor`.
    pub fn name(self) -> &'static str {
        match self {
            SandboxFeature::UserNamespace => "user namespace",
            SandboxFeature::MountNamespace => "mount namespace, read-only copy",
            SandboxFeature::PidNamespace => "pid namespace",
            SandboxFeature::Proc => "fresh /proc",
            SandboxFeature::NetworkNamespace => "network namespace, loopback",
            SandboxFeature::NoNewPrivileges => "no new privileges",
            SandboxFeature::Capabilities => "capabilities dropped",
            SandboxFeature::Landlock => "Landlock",
            SandboxFeature::Seccomp => "seccomp filter, listener",
            SandboxFeature::PidfdGetfd => "descriptors of a run (pidfd_getfd)",
            SandboxFeature::Trace => "tracing, to watch execs",
            SandboxFeature::Limits => "limits by control group",
            SandboxFeature::Bwrap => "bubblewrap",
        }
    }
}

/// Outcome of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeOutcome {
    Ok,
    Refused,
    /// There was nothing to try, or a prerequisite is missing.
    NotTried,
}

/// Result for a single feature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeResult {
    pub part: SandboxFeature,
    pub outcome: ProbeOutcome,
    /// Error number of the system call that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    /// Details on success; on failure, what was tried and the system's reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

/// Result of an attempt: a detail, or the step that failed.
type AttemptResult = Result<String, SandboxError>;

/// Tries everything. `scratch` is a directory that this user may write to.
pub fn probe_all(scratch: &Path) -> Vec<ProbeResult> {
    let user_namespace = record_attempt(
        SandboxFeature::UserNamespace,
        attempt_in_child(0, namespaces::enter_user_namespace),
    );
    let base = match user_namespace.outcome {
        ProbeOutcome::Ok => Some(NamespaceBase::UserNamespace),
        // Root can do without a user namespace if it has its capabilities.
        _ => attempt_in_child(0, namespaces::unshare_mounts_as_root)
            .is_ok()
            .then_some(NamespaceBase::Root),
    };
    let mut results = vec![user_namespace];
    let mut probe_on_base = |part, attempt: &dyn Fn(NamespaceBase) -> AttemptResult| {
        results.push(match base {
            Some(base) => record_attempt(part, attempt_in_child(0, || attempt(base))),
            None => record_skipped(part, "it needs a user namespace"),
        });
    };
    probe_on_base(SandboxFeature::MountNamespace, &|base| {
        namespaces::copy_mounts_read_only(base, scratch)
    });
    probe_on_base(SandboxFeature::PidNamespace, &namespaces::enter_pid_namespace);
    probe_on_base(SandboxFeature::Proc, &namespaces::mount_proc);
    probe_on_base(SandboxFeature::NetworkNamespace, &namespaces::make_isolated_network);
    results.push(record_attempt(
        SandboxFeature::NoNewPrivileges,
        attempt_in_child(0, process::set_no_new_privileges),
    ));
    results.push(record_attempt(
        SandboxFeature::Capabilities,
        attempt_in_child(0, process::drop_capabilities),
    ));
    results.push(record_attempt(
        SandboxFeature::Landlock,
        attempt_in_child(0, || process::apply_landlock(scratch)),
    ));
    results.push(record_attempt(
        SandboxFeature::Seccomp,
        attempt_in_child(0, process::intercept_a_call),
    ));
    results.push(record_attempt(
        SandboxFeature::PidfdGetfd,
        attempt_in_child(0, process::copy_child_descriptor),
    ));
    results
        .push(record_attempt(SandboxFeature::Trace, attempt_in_child(0, process::trace_a_child)));
    results.push(record_attempt(
        SandboxFeature::Limits,
        attempt_in_child(0, process::enforce_process_limit),
    ));
    results.push(match process::find_bwrap() {
        Some(bwrap) => {
            record_attempt(SandboxFeature::Bwrap, attempt_in_child(0, || process::run_bwrap(bwrap)))
        }
        None => record_skipped(SandboxFeature::Bwrap, "it is not installed"),
    });
    results
}

fn record_attempt(part: SandboxFeature, result: AttemptResult) -> ProbeResult {
    match result {
        Ok(text) => ProbeResult { part, outcome: ProbeOutcome::Ok, errno: None, text },
        Err(error) => {
            let text = format!("{}: {}", error.what, error.text);
            ProbeResult { part, outcome: ProbeOutcome::Refused, errno: error.errno, text }
        }
    }
}

fn record_skipped(part: SandboxFeature, reason: &str) -> ProbeResult {
    ProbeResult { part, outcome: ProbeOutcome::NotTried, errno: None, text: reason.to_owned() }
}

/// Makes the attempt in a child process, in new namespaces (`CLONE_NEW…`) if any are given, and
/// returns the result that the child reports.
fn attempt_in_child(
    namespaces: libc::c_int,
    attempt: impl FnOnce() -> AttemptResult,
) -> AttemptResult {
    let (parent_channel, child_channel) =
        PacketChannel::pair().in_layer(Layer::Program, "open a channel")?;
    match sys::fork(namespaces).in_layer(Layer::Namespaces, "start a test process")? {
        ForkResult::Child => {
            drop(parent_channel);
            // A child that hangs is killed, and its own children with it.
            let prepared = set_parent_process_death_signal(Some(Signal::KILL))
                .in_layer(Layer::Program, "die with the parent");
            let sent = child_channel.send(&prepared.and_then(|()| attempt()), &[]);
            sys::exit_now(i32::from(sent.is_err()))
        }
        ForkResult::Parent(child) => {
            drop(child_channel);
            let result = receive_result(&parent_channel);
            kill_and_reap(child);
            result
        }
    }
}

/// Waits for the result of a child, for as long as [`ATTEMPT_TIMEOUT`] allows.
fn receive_result(channel: &PacketChannel) -> AttemptResult {
    let mut poll_fds = [PollFd::new(channel, PollFlags::IN)];
    let timeout =
        Timespec { tv_sec: ATTEMPT_TIMEOUT.as_secs().try_into().unwrap_or(10), tv_nsec: 0 };
    let ready = rustix::io::retry_on_intr(|| poll(&mut poll_fds, Some(&timeout)));
    if ready.in_layer(Layer::Program, "wait for the test process")? == 0 {
        return Err(SandboxError::from_message(
            Layer::Program,
            "wait for the test process",
            "it does not respond",
        ));
    }
    match channel.receive::<AttemptResult>().in_layer(Layer::Program, "receive the result")? {
        Some((result, _)) => result,
        None => {
            Err(SandboxError::from_message(Layer::Program, "run the test process", "it was killed"))
        }
    }
}

fn kill_and_reap(child: Pid) {
    let _ = kill_process(child, Signal::KILL);
    let _ = rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()));
}

/// Error for an operation that should have been refused and was not: the feature does not work,
/// whatever the kernel reported.
fn not_refused_error(layer: Layer, what: &str) -> SandboxError {
    SandboxError::from_message(layer, what, "it was not refused")
}
