//! Starts a run, from the supervisor's side.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::process;

use super::SessionResources;
use super::tree::ProcessTree;
use super::wire::{InitCommand, InitReport};
use super::{RunFds, RunSpec, SupervisedRun};
use crate::cover_guard::CoverGuard;
use crate::error::{Layer, LayerContext, SandboxError};
use crate::init::{self, InitContext};
use crate::intercept::{self, ConnectPolicy, DenialLog, exec};
use crate::launch::{self, LaunchContext, LaunchMessage, SandboxProfile};
use crate::limits::RunLimits;
use crate::packet::PacketChannel;
use crate::protect::ProtectionGuard;
use crate::resolver;
use crate::sys::{self, ForkResult};

const RUN_NAMESPACES: libc::c_int = libc::CLONE_NEWNS | libc::CLONE_NEWPID;

/// Starts a run in its own namespaces, inside the root of its session.
pub(super) fn start_in_namespaces(
    spec: &RunSpec,
    mut fds: RunFds<OwnedFd>,
    session: &SessionResources<'_>,
) -> Result<(SupervisedRun, i32), SandboxError> {
    let protection = ProtectionGuard::acquire(&spec.rights).map_err(|error| {
        let path = error.path.display();
        SandboxError::from_io_error(Layer::Protected, format!("protect {path}"), &error.cause)
    })?;
    let run_limits = RunLimits::new_in(session.cgroup_locations, "run", &spec.limits);
    let cgroup_joiner =
        run_limits.open_joiner().in_layer(Layer::Limits, "open the run's limits")?;
    let proxy_channel = fds.proxy_channel.take();
    let denials = DenialLog::default();
    let exec_config = build_watch_config(spec, &mut fds, &denials);
    let (talk, init_channel) =
        PacketChannel::pair().in_layer(Layer::Namespaces, "open a channel")?;
    let (launch_channel, child_launch_channel) =
        PacketChannel::pair().in_layer(Layer::Namespaces, "open a channel")?;
    let first = match sys::fork(RUN_NAMESPACES)
        .in_layer(Layer::Namespaces, "create namespaces for the run")?
    {
        ForkResult::Child => {
            drop((talk, launch_channel, proxy_channel, exec_config));
            // The stand-ins for missing paths belong to the supervisor; this process must not
            // remove them.
            let covers = protection.covers.clone();
            std::mem::forget(protection);
            let context = InitContext {
                spec,
                covers: &covers,
                network: session.network,
                mechanism: run_limits.mechanism(),
                tier: session.tier,
                cgroup_joiner,
                channel: init_channel,
                launch_channel: child_launch_channel,
            };
            init::run(context, fds)
        }
        ForkResult::Parent(first) => first,
    };
    drop((fds, init_channel, child_launch_channel, cgroup_joiner));
    let tree = ProcessTree::Namespace { first, talk };
    let mut run = SupervisedRun {
        tree,
        grace: Duration::from_millis(spec.grace_ms),
        denials,
        run_limits,
        protection,
        exec_watch: None,
        tier: Some(session.tier),
    };
    let ProcessTree::Namespace { talk, .. } = &run.tree else { return Err(lost_init_error()) };
    talk.send(&InitCommand::Go, &[]).in_layer(Layer::Namespaces, "let the run start")?;
    let connect_policy = wait_until_ready(talk, proxy_channel, spec, &run.denials)?;
    let cover_guard = CoverGuard::new(&spec.rights, &run.protection.covers);
    follow_launch(
        &launch_channel,
        CallHandlers { connect_policy, cover_guard, exec_config },
        &mut run,
    )?;
    Ok((run, first.as_raw_nonzero().get()))
}

fn lost_init_error() -> SandboxError {
    SandboxError::from_message(Layer::Namespaces, "start the run", "its first process was lost")
}

/// Waits until the run's init has set up what belongs to the run, and takes the descriptors it
/// sends.
fn wait_until_ready(
    channel: &PacketChannel,
    proxy_channel: Option<OwnedFd>,
    spec: &RunSpec,
    denials: &DenialLog,
) -> Result<ConnectPolicy, SandboxError> {
    let report =
        channel.receive::<InitReport>().in_layer(Layer::Namespaces, "wait for the run's init")?;
    let (network, listener, fds) = match report {
        Some((InitReport::Ready { network, listener }, fds)) => (network, listener, fds),
        Some((InitReport::Failed(error), _)) => return Err(error),
        _ => return Err(lost_init_error()),
    };
    let mut fds = fds.into_iter();
    let mounts = fds.next();
    let (network, resolver_socket) = if network { (fds.next(), fds.next()) } else { (None, None) };
    if let Some(socket) = resolver_socket {
        resolver::serve_queries(socket.into(), denials.clone())
            .in_layer(Layer::Network, "serve the resolver")?;
    }
    if let (true, Some(listener), Some(proxy_channel)) = (listener, fds.next(), proxy_channel) {
        let proxy_channel = PacketChannel::from(proxy_channel);
        proxy_channel
            .send(&(), &[listener.as_fd()])
            .in_layer(Layer::Network, "hand out the proxy's listener")?;
    }
    let closed_ports = spec.shut_ports.clone();
    let nested = spec.rights.nested;
    Ok(ConnectPolicy {
        mounts,
        network,
        private_devices: list_private_devices(),
        processes: None,
        closed_ports,
        nested,
    })
}

/// Lists the devices of the file systems that only this session has.
fn list_private_devices() -> Vec<u64> {
    let device = |path| std::fs::metadata(path).ok().map(|found| found.dev());
    ["/tmp", "/var/tmp", "/run", "/dev/shm"].into_iter().filter_map(device).collect()
}

/// Everything that answers the run's system calls, kept until the listener for them arrives.
struct CallHandlers {
    connect_policy: ConnectPolicy,
    cover_guard: CoverGuard,
    exec_config: Option<exec::ExecWatchConfig>,
}

/// Builds what is needed to judge execs, if they are judged.
fn build_watch_config(
    spec: &RunSpec,
    fds: &mut RunFds<OwnedFd>,
    denials: &DenialLog,
) -> Option<exec::ExecWatchConfig> {
    let (notices, log) = (fds.exec_channel.take().map(PacketChannel::from), fds.exec_log.take());
    let rules = spec.exec.clone()?;
    Some(exec::ExecWatchConfig { rules, notices, log, denials: denials.clone() })
}

/// Serves the process that becomes the program until it has become the program.
fn follow_launch(
    channel: &PacketChannel,
    handlers: CallHandlers,
    run: &mut SupervisedRun,
) -> Result<(), SandboxError> {
    let mut handlers = Some(handlers);
    loop {
        match channel.receive::<LaunchMessage>().in_layer(Layer::Program, "wait for the program")? {
            // The canary's own attempt has to arrive here; otherwise the filter is not what it
            // should be.
            None if handlers.is_none()
                && !run.denials.remove_one("syscall", launch::CANARY_CALL) =>
            {
                return Err(SandboxError::from_message(
                    Layer::Canary,
                    "receive the canary's call",
                    "the filter did not pass it to the supervisor",
                ));
            }
            None => return Ok(()),
            Some((LaunchMessage::Failed(_), _))
                if run.denials.contains("exec", exec::UNWATCHABLE) =>
            {
                return Err(SandboxError::from_message(
                    Layer::Exec,
                    "watch the program",
                    "tracing was refused",
                ));
            }
            Some((LaunchMessage::Failed(error), _)) => return Err(error),
            Some((LaunchMessage::Listening, mut fds)) => {
                let (Some(listener), Some(handlers)) = (fds.pop(), handlers.take()) else {
                    return Err(lost_init_error());
                };
                let CallHandlers { connect_policy, cover_guard, exec_config } = handlers;
                run.exec_watch = intercept::serve_syscalls(
                    listener,
                    connect_policy,
                    cover_guard,
                    run.denials.clone(),
                    exec_config,
                )
                .in_layer(Layer::Seccomp, "serve the run's system calls")?;
                channel.send(&true, &[]).in_layer(Layer::Seccomp, "let the program start")?;
            }
        }
    }
}

/// Starts a run without namespaces. With a sandbox its orphans are reparented to our child,
/// which leaves us free to trace; without one they are reparented to us.
pub(super) fn start_on_host(
    spec: &RunSpec,
    mut fds: RunFds<OwnedFd>,
) -> Result<(SupervisedRun, i32), SandboxError> {
    let is_sandboxed = match spec.fence {
        SandboxProfile::Default => {
            return Err(SandboxError::from_message(
                Layer::Namespaces,
                "start the run",
                "it has no session",
            ));
        }
        SandboxProfile::Contained => true,
        SandboxProfile::None => false,
    };
    let run_limits = RunLimits::new("run", &spec.limits);
    let cgroup_joiner =
        run_limits.open_joiner().in_layer(Layer::Limits, "open the run's limits")?;
    let denials = DenialLog::default();
    let exec_config = build_watch_config(spec, &mut fds, &denials);
    let (talk, init_channel) = PacketChannel::pair().in_layer(Layer::Program, "open a channel")?;
    let (launch_channel, child_launch_channel) =
        PacketChannel::pair().in_layer(Layer::Program, "open a channel")?;
    if !is_sandboxed {
        process::set_child_subreaper(Some(process::getpid()))
            .in_layer(Layer::Namespaces, "become a subreaper")?;
    }
    let first = match sys::fork(0).in_layer(Layer::Program, "fork")? {
        ForkResult::Child => {
            drop((launch_channel, talk, exec_config));
            let mechanism = run_limits.mechanism();
            if is_sandboxed {
                init::run_on_host(
                    spec,
                    mechanism,
                    cgroup_joiner,
                    init_channel,
                    child_launch_channel,
                    fds,
                )
            }
            let Ok(directory) = fds.cwd.try_clone() else { sys::exit_now(125) };
            launch::become_program(
                LaunchContext {
                    spec,
                    tier: None,
                    mechanism,
                    cgroup_joiner: Some(cgroup_joiner),
                    working_directory: directory,
                    covers: &[],
                    proxy_port: None,
                    channel: &child_launch_channel,
                },
                fds,
            )
        }
        ForkResult::Parent(first) => first,
    };
    drop((fds, child_launch_channel, init_channel, cgroup_joiner));
    let tree = if is_sandboxed {
        ProcessTree::BelowChild { first, talk }
    } else {
        ProcessTree::BelowSelf { main: first }
    };
    let grace = Duration::from_millis(spec.grace_ms);
    let mut run = SupervisedRun {
        tree,
        grace,
        denials,
        run_limits,
        protection: ProtectionGuard::default(),
        exec_watch: None,
        tier: None,
    };
    let connect_policy = ConnectPolicy {
        mounts: None,
        network: None,
        private_devices: Vec::new(),
        processes: Some(Box::new(run.tree.process_lister())),
        closed_ports: spec.shut_ports.clone(),
        nested: false,
    };
    match follow_launch(
        &launch_channel,
        CallHandlers { connect_policy, cover_guard: CoverGuard::without_covers(), exec_config },
        &mut run,
    ) {
        Ok(()) => Ok((run, first.as_raw_nonzero().get())),
        Err(error) => {
            run.tree.kill_all();
            Err(error)
        }
    }
}
