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
    let guard = ProtectionGuard::acquire(&spec.rights).map_err(|unprotected| {
        let path = unprotected.path.display();
        SandboxError::from_io_error(Layer::Protected, format!("protect {path}"), &unprotected.cause)
    })?;
    let cage = RunLimits::new_in(session.cgroup_locations, "run", &spec.limits);
    let door = cage.open_joiner().in_layer(Layer::Limits, "open the run's limits")?;
    let handout = fds.proxy_channel.take();
    let denials = DenialLog::default();
    let exec = build_watch_config(spec, &mut fds, &denials);
    let (talk, theirs) = PacketChannel::pair().in_layer(Layer::Namespaces, "open a channel")?;
    let (child, childs) = PacketChannel::pair().in_layer(Layer::Namespaces, "open a channel")?;
    let first = match sys::fork(RUN_NAMESPACES)
        .in_layer(Layer::Namespaces, "create namespaces for the run")?
    {
        ForkResult::Child => {
            drop((talk, child, handout, exec));
            // The stand-ins for missing paths belong to the supervisor; this process must not
            // remove them.
            let covers = guard.covers.clone();
            std::mem::forget(guard);
            let birth = InitContext {
                spec,
                covers: &covers,
                network: session.network,
                mechanism: cage.mechanism(),
                cgroup_joiner: door,
                channel: theirs,
                launch_channel: childs,
            };
            init::run(birth, fds)
        }
        ForkResult::Parent(first) => first,
    };
    drop((fds, theirs, childs, door));
    let tree = ProcessTree::Namespace { first, talk };
    let mut run = SupervisedRun {
        tree,
        grace: Duration::from_millis(spec.grace_ms),
        denials,
        run_limits: cage,
        protection: guard,
        exec_watch: None,
    };
    let ProcessTree::Namespace { talk, .. } = &run.tree else { return Err(lost_init_error()) };
    talk.send(&InitCommand::Go, &[]).in_layer(Layer::Namespaces, "let the run start")?;
    let reach = wait_until_ready(talk, handout, spec, &run.denials)?;
    let keeper = CoverGuard::new(&spec.rights, &run.protection.covers);
    follow_launch(
        &child,
        CallHandlers { connect_policy: reach, cover_guard: keeper, exec_config: exec },
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
    talk: &PacketChannel,
    handout: Option<OwnedFd>,
    spec: &RunSpec,
    denials: &DenialLog,
) -> Result<ConnectPolicy, SandboxError> {
    let news =
        talk.receive::<InitReport>().in_layer(Layer::Namespaces, "wait for the run's init")?;
    let (network, listener, fds) = match news {
        Some((InitReport::Ready { network, listener }, fds)) => (network, listener, fds),
        Some((InitReport::Failed(fault), _)) => return Err(fault),
        _ => return Err(lost_init_error()),
    };
    let mut fds = fds.into_iter();
    let mounts = fds.next();
    let (network, names) = if network { (fds.next(), fds.next()) } else { (None, None) };
    if let Some(socket) = names {
        resolver::serve_queries(socket.into(), denials.clone())
            .in_layer(Layer::Network, "serve the resolver")?;
    }
    if let (true, Some(listener), Some(handout)) = (listener, fds.next(), handout) {
        let handout = PacketChannel::from(handout);
        handout
            .send(&(), &[listener.as_fd()])
            .in_layer(Layer::Network, "hand out the proxy's listener")?;
    }
    let shut_ports = spec.shut_ports.clone();
    let nested = spec.rights.nested;
    Ok(ConnectPolicy {
        mounts,
        network,
        private_devices: list_private_devices(),
        processes: None,
        closed_ports: shut_ports,
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
    child: &PacketChannel,
    post: CallHandlers,
    run: &mut SupervisedRun,
) -> Result<(), SandboxError> {
    let mut post = Some(post);
    loop {
        match child.receive::<LaunchMessage>().in_layer(Layer::Program, "wait for the program")? {
            // The canary's own attempt has to arrive here; otherwise the filter is not what it
            // should be.
            None if post.is_none() && !run.denials.remove_one("syscall", launch::CANARY_CALL) => {
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
            Some((LaunchMessage::Failed(fault), _)) => return Err(fault),
            Some((LaunchMessage::Listening, mut fds)) => {
                let (Some(listener), Some(post)) = (fds.pop(), post.take()) else {
                    return Err(lost_init_error());
                };
                let CallHandlers { connect_policy: reach, cover_guard: keeper, exec_config: exec } =
                    post;
                run.exec_watch =
                    intercept::serve_syscalls(listener, reach, keeper, run.denials.clone(), exec)
                        .in_layer(Layer::Seccomp, "serve the run's system calls")?;
                child.send(&true, &[]).in_layer(Layer::Seccomp, "let the program start")?;
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
    let fenced = match spec.fence {
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
    let cage = RunLimits::new("run", &spec.limits);
    let door = cage.open_joiner().in_layer(Layer::Limits, "open the run's limits")?;
    let denials = DenialLog::default();
    let exec = build_watch_config(spec, &mut fds, &denials);
    let (talk, theirs) = PacketChannel::pair().in_layer(Layer::Program, "open a channel")?;
    let (child, childs) = PacketChannel::pair().in_layer(Layer::Program, "open a channel")?;
    if !fenced {
        process::set_child_subreaper(Some(process::getpid()))
            .in_layer(Layer::Namespaces, "become a subreaper")?;
    }
    let first = match sys::fork(0).in_layer(Layer::Program, "fork")? {
        ForkResult::Child => {
            drop((child, talk, exec));
            let means = cage.mechanism();
            if fenced {
                init::run_on_host(spec, means, door, theirs, childs, fds)
            }
            let Ok(directory) = fds.cwd.try_clone() else { sys::exit_now(125) };
            launch::become_program(
                LaunchContext {
                    spec,
                    mechanism: means,
                    cgroup_joiner: Some(door),
                    working_directory: directory,
                    covers: &[],
                    proxy_port: None,
                    channel: &childs,
                },
                fds,
            )
        }
        ForkResult::Parent(first) => first,
    };
    drop((fds, childs, theirs, door));
    let tree = if fenced {
        ProcessTree::BelowChild { first, talk }
    } else {
        ProcessTree::BelowSelf { main: first }
    };
    let grace = Duration::from_millis(spec.grace_ms);
    let mut run = SupervisedRun {
        tree,
        grace,
        denials,
        run_limits: cage,
        protection: ProtectionGuard::default(),
        exec_watch: None,
    };
    let reach = ConnectPolicy {
        mounts: None,
        network: None,
        private_devices: Vec::new(),
        processes: Some(Box::new(run.tree.process_lister())),
        closed_ports: spec.shut_ports.clone(),
        nested: false,
    };
    match follow_launch(
        &child,
        CallHandlers {
            connect_policy: reach,
            cover_guard: CoverGuard::without_covers(),
            exec_config: exec,
        },
        &mut run,
    ) {
        Ok(()) => Ok((run, first.as_raw_nonzero().get())),
        Err(fault) => {
            run.tree.kill_all();
            Err(fault)
        }
    }
}
