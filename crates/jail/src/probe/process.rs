//! Attempts that concern a single process: what it does to itself, or its parent to it.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use rustix::thread::UnshareFlags;

use super::{AttemptResult, attempt_in_child, kill_and_reap, not_refused_error};
use crate::error::{Layer, LayerContext, SandboxError};
use crate::limits::{ResourceLimits, RunLimits};
use crate::packet::PacketChannel;
use crate::sys::{self, ForkResult, trace};
use crate::{landlock as fence, launch, mounts, seccomp};

/// Absolute paths only: a `bwrap` found in a workspace or through PATH could be any program.
const BWRAP_PATHS: &[&str] = &["/usr/bin/bwrap", "/usr/local/bin/bwrap"];

/// Returns the path of the installed bubblewrap.
pub fn find_bwrap() -> Option<&'static Path> {
    BWRAP_PATHS.iter().map(Path::new).find(|path| path.is_file())
}

/// Sets the no-new-privileges flag, which must then be reported as set.
pub fn set_no_new_privileges() -> AttemptResult {
    rustix::thread::set_no_new_privs(true)
        .in_layer(Layer::Capabilities, "refuse new privileges")?;
    match rustix::thread::no_new_privs() {
        Ok(true) => Ok(String::new()),
        _ => Err(SandboxError::from_message(
            Layer::Capabilities,
            "refuse new privileges",
            "the kernel did not set the flag",
        )),
    }
}

/// Drops all capabilities as a run does; an operation that needs one must then fail.
pub fn drop_capabilities() -> AttemptResult {
    let layer = Layer::Capabilities;
    launch::drop_capabilities().in_layer(layer, "give up every capability")?;
    let remaining = rustix::thread::capabilities(None).in_layer(layer, "read the capabilities")?;
    if !remaining.effective.is_empty() || !remaining.permitted.is_empty() {
        return Err(not_refused_error(layer, "keep a capability"));
    }
    match sys::unshare(UnshareFlags::NEWNS) {
        Err(_) => Ok(String::new()),
        Ok(()) => Err(not_refused_error(layer, "use a capability")),
    }
}

/// Applies Landlock as a run does, with one writable directory: a write inside must succeed, and a
/// write next to it must not.
pub fn apply_landlock(scratch: &Path) -> AttemptResult {
    let layer = Layer::Landlock;
    let (inside, outside) = (scratch.join("inside"), scratch.join("outside"));
    for directory in [&inside, &outside] {
        fs::create_dir_all(directory).in_layer(layer, "prepare")?;
    }
    let abi = fence::newest_abi();
    rustix::thread::set_no_new_privs(true).in_layer(layer, "refuse new privileges")?;
    fence::restrict_thread(&fence::LandlockRules {
        writable: std::slice::from_ref(&inside),
        files: &[],
        scoped: true,
    })?;
    File::create(inside.join("file")).in_layer(layer, "write in a permitted directory")?;
    if File::create(outside.join("file")).is_ok() {
        return Err(not_refused_error(layer, "write outside"));
    }
    let parent = rustix::process::getppid();
    let signalled = parent.is_some_and(|parent| rustix::process::test_kill_process(parent).is_ok());
    match (abi, signalled) {
        (6.., true) => Err(not_refused_error(layer, "signal a process outside")),
        (6.., false) => Ok(format!("ABI {abi} or newer")),
        _ => Ok(format!("ABI {abi}: signals and abstract sockets are left to the other layers")),
    }
}

/// An error that the kernel never returns for this call, so that it can only come from us.
const ANSWER_ERRNO: i32 = libc::EDOTDOT;

/// Starts a child with a run's filter, which makes a call that the filter passes to the supervisor;
/// the child must get our answer.
pub fn intercept_a_call() -> AttemptResult {
    let layer = Layer::Seccomp;
    let (parent_channel, child_channel) =
        PacketChannel::pair().in_layer(layer, "open a channel")?;
    match sys::fork(0).in_layer(layer, "fork")? {
        ForkResult::Child => {
            drop(parent_channel);
            let result = make_filtered_call(&child_channel);
            let _ = child_channel.send(&result, &[]);
            sys::exit_now(0)
        }
        ForkResult::Parent(child) => {
            drop(child_channel);
            let result = answer_filtered_call(&parent_channel);
            kill_and_reap(child);
            result
        }
    }
}

/// In the child: installs the filter and makes a call that is passed to the listener.
fn make_filtered_call(channel: &PacketChannel) -> AttemptResult {
    let layer = Layer::Seccomp;
    rustix::thread::set_no_new_privs(true).in_layer(layer, "refuse new privileges")?;
    let program = seccomp::compile_filter(seccomp::select_rules(seccomp::FilterOptions {
        own_namespaces: true,
        ..seccomp::FilterOptions::default()
    }));
    let listener = sys::install_filter(&program, true).in_layer(layer, "install the filter")?;
    let Some(listener) = listener else {
        return Err(SandboxError::from_message(layer, "install the filter", "no listener"));
    };
    channel
        .send(&AttemptResult::Ok(String::new()), &[listener.as_fd()])
        .in_layer(layer, "pass the listener")?;
    drop(listener);
    match rustix::net::socket(AddressFamily::VSOCK, SocketType::STREAM, None) {
        Err(errno) if errno == Errno::from_raw_os_error(ANSWER_ERRNO) => Ok(String::new()),
        Err(errno) => Err(errno).in_layer(layer, "receive the answer"),
        Ok(_) => Err(not_refused_error(layer, "make a forbidden call")),
    }
}

/// In the parent: receives the listener and answers the child's call.
fn answer_filtered_call(channel: &PacketChannel) -> AttemptResult {
    let layer = Layer::Seccomp;
    let lost_child_error =
        || SandboxError::from_message(layer, "install the filter", "the test process was killed");
    let next_result = || {
        channel
            .receive::<AttemptResult>()
            .in_layer(layer, "receive the result")?
            .ok_or_else(lost_child_error)
    };
    let (install_result, mut fds) = next_result()?;
    install_result?;
    let listener = fds.pop().ok_or_else(lost_child_error)?;
    let call = sys::receive_call(listener.as_fd()).in_layer(layer, "receive a system call")?;
    sys::answer_call(listener.as_fd(), call.id, Err(ANSWER_ERRNO));
    next_result()?.0
}

/// Copies a descriptor from a child, as the interception of `connect` does.
pub fn copy_child_descriptor() -> AttemptResult {
    let layer = Layer::Seccomp;
    let (parent_channel, child_channel) =
        PacketChannel::pair().in_layer(layer, "open a channel")?;
    let child = match sys::fork(0).in_layer(layer, "fork")? {
        ForkResult::Child => {
            drop(parent_channel);
            // Until the other end is closed.
            let _ = child_channel.receive::<()>();
            sys::exit_now(0)
        }
        ForkResult::Parent(child) => child,
    };
    let copied =
        pidfd_open(child, PidfdFlags::empty()).in_layer(layer, "open a pidfd").and_then(|pidfd| {
            let fd_number = child_channel.as_fd().as_raw_fd();
            pidfd_getfd(pidfd, fd_number, PidfdGetfdFlags::empty())
                .in_layer(layer, "copy a descriptor from a child")
        });
    kill_and_reap(child);
    match mounts::is_same_object(copied?.as_fd(), child_channel.as_fd()) {
        Ok(true) => Ok(String::new()),
        _ => Err(SandboxError::from_message(
            layer,
            "copy a descriptor from a child",
            "it is a different one",
        )),
    }
}

/// Traces a child, as the supervisor does with a thread that is about to execute another program.
pub fn trace_a_child() -> AttemptResult {
    let layer = Layer::Exec;
    if !crate::intercept::exec::SUPPORTED {
        return Err(SandboxError::from_message(
            layer,
            "intercept an exec",
            "not supported on this architecture",
        ));
    }
    let (parent_channel, child_channel) =
        PacketChannel::pair().in_layer(layer, "open a channel")?;
    let child = match sys::fork(0).in_layer(layer, "fork")? {
        ForkResult::Child => {
            drop(parent_channel);
            let _ = child_channel.receive::<()>();
            sys::exit_now(0)
        }
        ForkResult::Parent(child) => child,
    };
    let pid = child.as_raw_nonzero().get();
    let traced = trace::seize_thread(pid)
        .and_then(|()| trace::interrupt_thread(pid))
        .and_then(|()| trace::wait_for_event())
        .and_then(|_| trace::read_registers(pid))
        .and_then(|_| trace::detach_thread(pid, 0))
        .in_layer(layer, "trace a child");
    drop(parent_channel);
    kill_and_reap(child);
    traced.map(|()| String::new())
}

/// Creates a group limited to a single process, which must refuse a second one.
pub fn enforce_process_limit() -> AttemptResult {
    let layer = Layer::Limits;
    let limits = ResourceLimits {
        processes: Some(1),
        memory_bytes: Some(64 << 20),
        ..ResourceLimits::default()
    };
    let run_limits = RunLimits::new("doctor", &limits);
    let mechanism = run_limits.mechanism();
    if mechanism.is_advisory() {
        // Keep the reason and drop the advice that follows it.
        let reason =
            run_limits.downgrade_reason().and_then(|reason| reason.split("; limits are").next());
        return Err(SandboxError::from_message(
            layer,
            "make a control group",
            reason.unwrap_or("none is available"),
        ));
    }
    let cgroup_joiner = run_limits.open_joiner().in_layer(layer, "open the group")?;
    attempt_in_child(0, || {
        cgroup_joiner.join().in_layer(layer, "enter the group")?;
        match sys::fork(0) {
            Ok(ForkResult::Child) => sys::exit_now(0),
            Ok(ForkResult::Parent(child)) => {
                kill_and_reap(child);
                Err(not_refused_error(layer, "start one process too many"))
            }
            Err(_) => Ok(mechanism.name().to_owned()),
        }
    })
}

/// Runs a program in bubblewrap, which must be trustworthy: owned by root and writable by no one
/// else.
pub fn run_bwrap(bwrap: &Path) -> AttemptResult {
    let layer = Layer::Program;
    let metadata = fs::metadata(bwrap).in_layer(layer, "read its owner and mode")?;
    if metadata.uid() != 0 || metadata.mode() & 0o022 != 0 {
        return Err(SandboxError::from_message(
            layer,
            "trust it",
            "it is not owned by root, or others can write to it",
        ));
    }
    let mut command = Command::new(bwrap);
    command
        .args(["--unshare-user", "--bind", "/", "/", "--", "/bin/true"])
        .env_clear()
        .current_dir("/");
    let output =
        command.stdin(Stdio::null()).stdout(Stdio::null()).output().in_layer(layer, "start it")?;
    match output.status.success() {
        true => Ok(bwrap.display().to_string()),
        false => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let line: String = stderr
                .lines()
                .last()
                .unwrap_or_default()
                .chars()
                .filter(|c| !c.is_control())
                .take(200)
                .collect();
            Err(SandboxError::from_message(layer, "run /bin/true in it", line))
        }
    }
}
