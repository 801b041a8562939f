//! The run's init: the first process of its pid namespace.
//!
//! It sets up what belongs to this run alone, forks the process that becomes the program, mounts the
//! covers when the command is known, reaps every orphan and reports how the main process ended. When
//! it dies, for whatever reason, the kernel kills every process in the namespace.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitOptions, WaitStatus, getpid, set_child_subreaper,
    set_dumpable_behavior, set_parent_process_death_signal, wait,
};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};

use crate::error::{Layer, LayerContext, SandboxError};
use crate::launch::{self, LaunchContext};
use crate::limits::{CgroupJoiner, LimitMechanism};
use crate::mounts;
use crate::namespaces::{self, Tier};
use crate::packet::PacketChannel;
use crate::resolver;
use crate::rights::Rights;
use crate::supervisor::wire::{InitCommand, InitReport};
use crate::supervisor::{LeftBehind, RunBasis, tree};
use crate::sys::{self, ForkResult};

/// Everything the init needs, inherited from the supervisor through the fork.
pub struct InitContext<'a> {
    pub basis: &'a RunBasis,
    pub network: Option<&'a OwnedFd>,
    pub tier: Tier,
    pub mechanism: LimitMechanism,
    /// Lets this process enter the run's limits.
    pub cgroup_joiner: CgroupJoiner,
    /// Channel to the supervisor for this process.
    pub channel: PacketChannel,
    /// Channel to the supervisor for the process that becomes the program.
    pub launch_channel: PacketChannel,
}

/// Runs as the init until the run is over.
pub fn run(context: InitContext<'_>) -> ! {
    let InitContext { basis, network, tier, mechanism, cgroup_joiner, channel, launch_channel } =
        context;
    let prepared = set_parent_process_death_signal(Some(Signal::KILL))
        .in_layer(Layer::Namespaces, "set the parent-death signal");
    match (prepared, channel.receive::<InitCommand>()) {
        (Ok(()), Ok(Some((InitCommand::Go, _)))) => {}
        // The supervisor has already died: nothing may start that it cannot end.
        _ => sys::exit_now(125),
    }
    let entered =
        cgroup_joiner.join().in_layer(Layer::Limits, "apply the run's limits").and_then(|()| {
            // Only now, so that the run sees its own control group as the root of the tree.
            sys::unshare(UnshareFlags::NEWCGROUP)
                .in_layer(Layer::Namespaces, "create a cgroup namespace")
        });
    drop(cgroup_joiner);
    let forked = entered
        .and_then(|()| RunResources::prepare(basis, network))
        .and_then(|resources| Ok((resources, sys::fork(0).in_layer(Layer::Program, "fork")?)));
    let main_pid = match forked {
        Ok((resources, ForkResult::Child)) => {
            drop((channel, resources));
            launch::become_program(LaunchContext {
                basis,
                tier: Some(tier),
                mechanism,
                cgroup_joiner: None,
                channel: launch_channel,
            })
        }
        Ok((resources, ForkResult::Parent(main_pid))) => {
            drop(launch_channel);
            resources.send_to_supervisor(&channel).map(|()| main_pid)
        }
        Err(error) => Err(error),
    };
    match main_pid.and_then(|main_pid| Ok((main_pid, cover_run(&basis.rights, &channel)?))) {
        Ok((main_pid, true)) => reap_and_obey(main_pid, channel, ReapScope::Everything),
        // The supervisor is gone, or the run is not needed. What was forked ends with this process.
        Ok((_, false)) => sys::exit_now(125),
        Err(error) => {
            let _ = channel.send(&InitReport::Failed(error), &[]);
            sys::exit_now(125)
        }
    }
}

/// Does the same for a run without namespaces, as far as it applies there: orphans are reparented
/// to this process.
pub fn run_on_host(
    basis: &RunBasis,
    mechanism: LimitMechanism,
    cgroup_joiner: CgroupJoiner,
    channel: PacketChannel,
    launch_channel: PacketChannel,
) -> ! {
    // No parent-death signal here: this process notices the supervisor's end itself, and kills the
    // tree before it exits.
    let prepared =
        set_child_subreaper(Some(getpid())).in_layer(Layer::Namespaces, "become a subreaper");
    match prepared.and_then(|()| sys::fork(0).in_layer(Layer::Program, "fork")) {
        Ok(ForkResult::Child) => {
            drop(channel);
            launch::become_program(LaunchContext {
                basis,
                tier: None,
                mechanism,
                cgroup_joiner: Some(cgroup_joiner),
                channel: launch_channel,
            })
        }
        Ok(ForkResult::Parent(main_pid)) => {
            drop((launch_channel, cgroup_joiner));
            reap_and_obey(main_pid, channel, ReapScope::Descendants)
        }
        Err(error) => {
            let _ = channel.send(&InitReport::Failed(error), &[]);
            sys::exit_now(125)
        }
    }
}

/// The processes that belong to the run, as the process that reaps them finds them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReapScope {
    /// Every process it can see: its pid namespace holds nothing else.
    Everything,
    /// Its own descendants.
    Descendants,
}

/// What belongs to one run and is prepared before its command is known.
struct RunResources {
    mount_namespace: OwnedFd,
    network_namespace: Option<OwnedFd>,
    resolver_socket: Option<OwnedFd>,
    proxy: Option<(OwnedFd, u16)>,
}

impl RunResources {
    /// Sets up the run's network and the mounts that it has in any case.
    fn prepare(basis: &RunBasis, network: Option<&OwnedFd>) -> Result<RunResources, SandboxError> {
        let (mut proxy, mut resolver_socket, mut resolv_conf) = (None, None, None);
        if let Some(network) = network {
            namespaces::join_network(network)?;
            let (socket, address) =
                resolver::bind_socket().in_layer(Layer::Network, "open the resolver's port")?;
            resolv_conf = Some(resolver::format_resolv_conf(address));
            resolver_socket = Some(socket.into());
            if basis.has_proxy {
                let (listener, port) = namespaces::open_proxy_listener()?;
                proxy = Some((listener.into(), port));
            }
        }
        mounts::build_run_mounts(&basis.rights, resolv_conf.as_deref())?;
        let open_namespace = |name: &str| {
            std::fs::File::open(format!("/proc/self/ns/{name}"))
                .map(OwnedFd::from)
                .in_layer(Layer::Namespaces, name)
        };
        Ok(RunResources {
            mount_namespace: open_namespace("mnt")?,
            network_namespace: network.map(|_| open_namespace("net")).transpose()?,
            resolver_socket,
            proxy,
        })
    }

    /// Reports to the supervisor that the run is prepared.
    fn send_to_supervisor(self, channel: &PacketChannel) -> Result<(), SandboxError> {
        let report = InitReport::Prepared {
            has_network: self.network_namespace.is_some(),
            proxy_port: self.proxy.as_ref().map(|(_, port)| *port),
        };
        let sent: Vec<_> = [&self.mount_namespace]
            .into_iter()
            .chain(&self.network_namespace)
            .chain(&self.resolver_socket)
            .chain(self.proxy.as_ref().map(|(listener, _)| listener))
            .map(AsFd::as_fd)
            .collect();
        channel.send(&report, &sent).in_layer(Layer::Namespaces, "report to the supervisor")
    }
}

/// Waits for the command to mount the run's covers, and sends the working directory as the run sees
/// it. Returns false when the command does not come.
fn cover_run(rights: &Rights, channel: &PacketChannel) -> Result<bool, SandboxError> {
    let received =
        channel.receive::<InitCommand>().in_layer(Layer::Namespaces, "wait for the command")?;
    let Some((InitCommand::Cover { covers, cwd }, mut fds)) = received else { return Ok(false) };
    mounts::restrict_run(rights, &covers)?;
    let directory = mounts::open_working_directory(&cwd)
        .in_layer(Layer::Directory, "open the working directory")?;
    // This descriptor leads through the host's mounts and must not be used; it only identifies the
    // directory that was checked.
    let is_checked = match fds.pop() {
        Some(checked) => mounts::is_same_object(directory.as_fd(), checked.as_fd())
            .in_layer(Layer::Directory, "compare the working directory")?,
        None => false,
    };
    if !is_checked {
        return Err(SandboxError::from_message(
            Layer::Directory,
            "open the working directory",
            "it is not the directory that was checked",
        ));
    }
    channel
        .send(&InitReport::Covered, &[directory.as_fd()])
        .in_layer(Layer::Namespaces, "report to the supervisor")?;
    Ok(true)
}

/// Reaps children until none is left, and carries out the supervisor's commands meanwhile.
///
/// This process has one thread and no signal handler, so that its pid is the only way to name it:
/// in a pid namespace, seccomp refuses calls that target pid 1 ([`crate::seccomp`]). A second
/// thread could be named by a thread id that no filter knows.
fn reap_and_obey(main_pid: Pid, channel: PacketChannel, scope: ReapScope) -> ! {
    let Ok(child_signals) = isolate_self(&channel) else { sys::exit_now(125) };
    let mut main_status: Option<WaitStatus> = None;
    loop {
        reap_ended(main_pid, &channel, scope, &mut main_status);
        let mut poll_fds =
            [PollFd::new(&channel, PollFlags::IN), PollFd::new(&child_signals, PollFlags::IN)];
        match poll(&mut poll_fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            // A process that cannot hear the supervisor must not outlive it.
            Err(_) => exit_with_tree(scope),
        }
        if !poll_fds[1].revents().is_empty() {
            // It only matters that a child ended; the next pass asks which.
            let _ = rustix::io::read(&child_signals, &mut [0; 4096]);
        }
        if !poll_fds[0].revents().is_empty() {
            match channel.receive::<InitCommand>() {
                Ok(Some((command, _))) => obey_command(command, main_pid, scope),
                Ok(None) | Err(_) => exit_with_tree(scope),
            }
        }
    }
}

/// Gives up everything that a process of the run could use this one for. Returns a descriptor that
/// becomes readable when a child ends.
fn isolate_self(channel: &PacketChannel) -> io::Result<OwnedFd> {
    // No process of the run may read or trace this one: the kernel lets it do more than any other
    // process in the namespace.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let no_capabilities = CapabilitySet::empty();
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: no_capabilities,
            permitted: no_capabilities,
            inheritable: no_capabilities,
        },
    )?;
    sys::signals::reset_handlers()?;
    let child_signals = sys::signals::open_child_signalfd()?;
    // The fork inherited everything the supervisor had open. None of it may be reachable from here.
    sys::close_all_except(&[channel.as_fd(), child_signals.as_fd()])?;
    Ok(child_signals)
}

/// Reaps every child that has ended. Once the main process has ended, reports that to the
/// supervisor, and whether anything else is alive: every process in here is our child or has a
/// living ancestor that is.
fn reap_ended(
    main_pid: Pid,
    channel: &PacketChannel,
    scope: ReapScope,
    main_status: &mut Option<WaitStatus>,
) {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == main_pid => *main_status = Some(status),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return report_main_end(channel, main_status.take(), Some(scope)),
            Err(_) => {
                report_main_end(channel, main_status.take(), None);
                sys::exit_now(0)
            }
        }
    }
}

/// Reports the end of the main process, once it has ended. `scope` is `None` when no child is
/// left.
fn report_main_end(
    channel: &PacketChannel,
    main_status: Option<WaitStatus>,
    scope: Option<ReapScope>,
) {
    let Some(status) = main_status else { return };
    let left = match scope {
        None => LeftBehind::Nothing,
        Some(ReapScope::Everything) => LeftBehind::from_processes(tree::list_other_processes()),
        Some(ReapScope::Descendants) => {
            LeftBehind::from_processes(tree::list_living_descendants(getpid()))
        }
    };
    let report =
        InitReport::Ended { code: status.exit_status(), signal: status.terminating_signal(), left };
    // If this cannot be sent, the supervisor is dead, and this process ends with it.
    let _ = channel.send(&report, &[]);
}

fn obey_command(command: InitCommand, main_pid: Pid, scope: ReapScope) {
    match command {
        InitCommand::Terminate(signal) if scope == ReapScope::Everything => {
            // SIGCONT wakes a stopped process, so that it can end.
            let _ = sys::kill_all_visible(signal);
            let _ = sys::kill_all_visible(libc::SIGCONT);
        }
        InitCommand::Signal(signal) => {
            drop(sys::trace::signal_process(-main_pid.as_raw_nonzero().get(), signal))
        }
        InitCommand::Go | InitCommand::Cover { .. } | InitCommand::Terminate(_) => {}
    }
}

/// Exits because the supervisor is gone. In a pid namespace the kernel then kills everything else;
/// on the host the descendants are killed here.
fn exit_with_tree(scope: ReapScope) -> ! {
    if scope == ReapScope::Descendants {
        tree::kill_descendants(getpid());
    }
    sys::exit_now(0)
}
