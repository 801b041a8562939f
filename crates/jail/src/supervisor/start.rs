//! Starts a run, from the supervisor's side.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags};
use rustix::process;

use super::SessionResources;
use super::tree::ProcessTree;
use super::wire::{InitCommand, InitReport};
use super::{RunBasis, RunFds, RunSpec, SupervisedRun};
use crate::cover_guard::CoverGuard;
use crate::error::{Layer, LayerContext, SandboxError};
use crate::init::{self, InitContext};
use crate::intercept::{self, ConnectPolicy, DenialLog, exec};
use crate::launch::{self, LaunchContext, LaunchMessage, LaunchOrder, SandboxProfile};
use crate::limits::RunLimits;
use crate::namespaces::Tier;
use crate::packet::PacketChannel;
use crate::protect::ProtectionGuard;
use crate::resolver;
use crate::rights::Rights;
use crate::sys::{self, ForkResult};

const RUN_NAMESPACES: libc::c_int = libc::CLONE_NEWNS | libc::CLONE_NEWPID;

/// A run in its own namespaces that is set up as far as its basis allows: its init waits for the
/// covers, and the process that becomes the program has every layer and waits for its order.
/// Nothing of a command is in it.
pub(super) struct PreparedRun {
    basis: RunBasis,
    /// Watches the hidden paths since before anything was mounted.
    cover_guard: CoverGuard,
    writable_roots: Vec<Option<DirectoryId>>,
    tree: ProcessTree,
    main: LaunchingProcess,
    run_limits: RunLimits,
    resources: RunDescriptors,
    tier: Tier,
}

/// Device and inode: Landlock allows writing to a directory, not to a path.
type DirectoryId = (u64, u64);

/// What a run's init has set up for the supervisor.
struct RunDescriptors {
    mounts: OwnedFd,
    network: Option<OwnedFd>,
    resolver_socket: Option<OwnedFd>,
    proxy: Option<(OwnedFd, u16)>,
}

/// The process that becomes the program, as the supervisor follows it.
struct LaunchingProcess {
    channel: PacketChannel,
    /// Its system calls arrive here, if it has a filter.
    listener: Option<OwnedFd>,
}

impl PreparedRun {
    /// Prepares a run inside the root of its session.
    pub(super) fn prepare(
        basis: RunBasis,
        session: &SessionResources<'_>,
    ) -> Result<PreparedRun, SandboxError> {
        let cover_guard = CoverGuard::new(&basis.rights);
        let writable_roots = identify_writable_roots(&basis.rights);
        let run_limits = RunLimits::new_in(session.cgroup_locations, "run", &basis.limits);
        let cgroup_joiner =
            run_limits.open_joiner().in_layer(Layer::Limits, "open the run's limits")?;
        let (talk, init_channel) =
            PacketChannel::pair().in_layer(Layer::Namespaces, "open a channel")?;
        let (channel, launch_channel) =
            PacketChannel::pair().in_layer(Layer::Namespaces, "open a channel")?;
        let first = match sys::fork(RUN_NAMESPACES)
            .in_layer(Layer::Namespaces, "create namespaces for the run")?
        {
            ForkResult::Child => {
                drop((talk, channel));
                init::run(InitContext {
                    basis: &basis,
                    network: session.network,
                    tier: session.tier,
                    mechanism: run_limits.mechanism(),
                    cgroup_joiner,
                    channel: init_channel,
                    launch_channel,
                })
            }
            ForkResult::Parent(first) => first,
        };
        drop((init_channel, launch_channel, cgroup_joiner));
        talk.send(&InitCommand::Go, &[]).in_layer(Layer::Namespaces, "let the run start")?;
        let resources = receive_descriptors(&talk)?;
        let main = LaunchingProcess::wait_until_ready(channel)?;
        let tree = ProcessTree::Namespace { first, talk };
        Ok(PreparedRun {
            basis,
            cover_guard,
            writable_roots,
            tree,
            main,
            run_limits,
            resources,
            tier: session.tier,
        })
    }

    /// Returns whether this run was prepared for such a command, still waits, and nothing that it was
    /// prepared for has changed. Its processes send nothing while they wait, so anything that can be
    /// read is their end.
    pub(super) fn fits(&mut self, spec: &RunSpec) -> bool {
        let ProcessTree::Namespace { talk, .. } = &self.tree else { return false };
        let mut ends =
            [talk, &self.main.channel].map(|channel| PollFd::new(channel, PollFlags::IN));
        let is_waiting = poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0);
        is_waiting
            && self.basis == spec.basis()
            && self.writable_roots == identify_writable_roots(&self.basis.rights)
            && !self.cover_guard.may_have_changed()
    }

    /// Ends a run that no command needs, and waits until nothing of it is left: a caller that waits for
    /// the session to end finds nothing of it afterwards.
    pub(super) fn end(self) {
        self.tree.kill_all();
        if let ProcessTree::Namespace { first, .. } = &self.tree {
            // The kernel ends the processes of a pid namespace before their init is reaped.
            let _ = rustix::io::retry_on_intr(|| {
                process::waitpid(Some(*first), process::WaitOptions::empty())
            });
        }
    }

    /// Has the run become its command.
    pub(super) fn start(
        self,
        spec: &RunSpec,
        mut fds: RunFds<OwnedFd>,
    ) -> Result<(SupervisedRun, i32), SandboxError> {
        let PreparedRun { basis, mut cover_guard, tree, main, run_limits, resources, tier, .. } =
            self;
        // What must be covered, and what is missing, is determined now: it may have changed since
        // the run was prepared.
        let protection = ProtectionGuard::acquire(&basis.rights).map_err(|error| {
            let path = error.path.display();
            SandboxError::from_io_error(Layer::Protected, format!("protect {path}"), &error.cause)
        })?;
        let denials = DenialLog::default();
        let mut run = SupervisedRun {
            tree,
            grace: Duration::from_millis(spec.grace_ms),
            denials,
            run_limits,
            protection,
            removed_stand_ins: Vec::new(),
            exec_watch: None,
            tier: Some(tier),
        };
        let ProcessTree::Namespace { first, talk } = &run.tree else {
            return Err(lost_init_error());
        };
        let main_pid = first.as_raw_nonzero().get();
        let covers = run.protection.covers.clone();
        // Before the covers are mounted, so that no change between the two goes unnoticed.
        cover_guard.add_covers(&covers);
        let command = InitCommand::Cover { covers: covers.clone(), cwd: spec.cwd.clone() };
        talk.send(&command, &[fds.cwd.as_fd()])
            .in_layer(Layer::Namespaces, "name the covers to the run's init")?;
        let RunDescriptors { mounts, network, resolver_socket, proxy } = resources;
        let proxy_port = proxy.as_ref().map(|(_, port)| *port);
        if let Some(socket) = resolver_socket {
            let socket = UdpSocket::from(socket);
            drop_waiting_queries(&socket).in_layer(Layer::Network, "clear the resolver")?;
            resolver::serve_queries(socket, run.denials.clone())
                .in_layer(Layer::Network, "serve the resolver")?;
        }
        if let (Some((listener, _)), Some(proxy_channel)) = (proxy, fds.proxy_channel.take()) {
            drop_waiting_connections(&listener)
                .in_layer(Layer::Network, "clear the proxy's listener")?;
            PacketChannel::from(proxy_channel)
                .send(&(), &[listener.as_fd()])
                .in_layer(Layer::Network, "hand out the proxy's listener")?;
        }
        let connect_policy = ConnectPolicy {
            mounts: Some(mounts),
            network,
            private_devices: list_private_devices(),
            processes: None,
            closed_ports: spec.shut_ports.clone(),
            nested: basis.rights.nested,
        };
        let exec_config = build_watch_config(spec, &mut fds, &run.denials);
        fds.cwd = wait_until_covered(talk)?;
        let handlers = CallHandlers { connect_policy, cover_guard, exec_config };
        main.become_program(build_order(spec, covers, proxy_port), fds, handlers, &mut run)?;
        Ok((run, main_pid))
    }
}

/// Identifies the directories that a run may write; `None` for one that is missing.
fn identify_writable_roots(rights: &Rights) -> Vec<Option<DirectoryId>> {
    let identify =
        |root: &Path| std::fs::metadata(root).ok().map(|found| (found.dev(), found.ino()));
    rights.writable_roots().map(identify).collect()
}

/// Drops the queries that other runs in the network have sent to a run that was not there yet: they
/// would be recorded as its own.
fn drop_waiting_queries(socket: &UdpSocket) -> io::Result<()> {
    let flags = RecvFlags::DONTWAIT;
    loop {
        match rustix::net::recv(socket, &mut [0; 1], flags) {
            Ok(_) | Err(Errno::INTR | Errno::CONNREFUSED) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Does the same with connections to its proxy.
fn drop_waiting_connections(listener: &OwnedFd) -> io::Result<()> {
    let mut poll_fds = [PollFd::new(listener, PollFlags::IN)];
    while poll(&mut poll_fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? > 0 {
        match rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn lost_init_error() -> SandboxError {
    SandboxError::from_message(Layer::Namespaces, "start the run", "its first process was lost")
}

/// Waits until the run's init has set up what belongs to the run, and takes the descriptors it
/// sends.
fn receive_descriptors(channel: &PacketChannel) -> Result<RunDescriptors, SandboxError> {
    let report =
        channel.receive::<InitReport>().in_layer(Layer::Namespaces, "wait for the run's init")?;
    let (has_network, proxy_port, fds) = match report {
        Some((InitReport::Prepared { has_network, proxy_port }, fds)) => {
            (has_network, proxy_port, fds)
        }
        Some((InitReport::Failed(error), _)) => return Err(error),
        _ => return Err(lost_init_error()),
    };
    let mut fds = fds.into_iter();
    let mounts = fds.next().ok_or_else(lost_init_error)?;
    let (network, resolver_socket) =
        if has_network { (fds.next(), fds.next()) } else { (None, None) };
    Ok(RunDescriptors { mounts, network, resolver_socket, proxy: fds.next().zip(proxy_port) })
}

/// Waits until the run's init has mounted the covers, and returns the working directory as the run
/// sees it.
fn wait_until_covered(channel: &PacketChannel) -> Result<OwnedFd, SandboxError> {
    let report =
        channel.receive::<InitReport>().in_layer(Layer::Namespaces, "wait for the run's init")?;
    match report {
        Some((InitReport::Covered, mut fds)) => fds.pop().ok_or_else(lost_init_error),
        Some((InitReport::Failed(error), _)) => Err(error),
        _ => Err(lost_init_error()),
    }
}

fn build_order(spec: &RunSpec, covers: Vec<PathBuf>, proxy_port: Option<u16>) -> LaunchOrder {
    let mut env = spec.env.clone();
    if let Some(port) = proxy_port {
        env.extend(spec.proxy_env.iter().map(|(name, value)| {
            (name.clone(), value.replace(launch::PORT_PLACEHOLDER, &port.to_string()))
        }));
    }
    LaunchOrder {
        program: spec.program.clone(),
        args: spec.args.clone(),
        argv0: spec.argv0.clone(),
        env,
        covers,
        user: spec.user.clone(),
        has_program_file: false,
        has_driver_socket: false,
    }
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

impl LaunchingProcess {
    /// Waits until every layer of the process is in place.
    fn wait_until_ready(channel: PacketChannel) -> Result<LaunchingProcess, SandboxError> {
        let message =
            channel.receive::<LaunchMessage>().in_layer(Layer::Program, "wait for the program")?;
        match message {
            Some((LaunchMessage::Ready, mut fds)) => {
                Ok(LaunchingProcess { channel, listener: fds.pop() })
            }
            Some((LaunchMessage::Failed(error), _)) => Err(error),
            None => Err(lost_init_error()),
        }
    }

    /// Serves the run's system calls, orders the process to become the program, and waits until it
    /// has.
    fn become_program(
        self,
        order: LaunchOrder,
        fds: RunFds<OwnedFd>,
        handlers: CallHandlers,
        run: &mut SupervisedRun,
    ) -> Result<(), SandboxError> {
        let is_filtered = self.listener.is_some();
        if let Some(listener) = self.listener {
            let CallHandlers { connect_policy, cover_guard, exec_config } = handlers;
            run.exec_watch = intercept::serve_syscalls(
                listener,
                connect_policy,
                cover_guard,
                run.denials.clone(),
                exec_config,
            )
            .in_layer(Layer::Seccomp, "serve the run's system calls")?;
        }
        let RunFds { stdin, stdout, stderr, cwd, program_file, driver_socket, .. } = fds;
        let order = LaunchOrder {
            has_program_file: program_file.is_some(),
            has_driver_socket: driver_socket.is_some(),
            ..order
        };
        let attached: Vec<_> = [&cwd, &stdin, &stdout, &stderr]
            .into_iter()
            .chain(&program_file)
            .chain(&driver_socket)
            .map(AsFd::as_fd)
            .collect();
        self.channel.send(&order, &attached).in_layer(Layer::Program, "order the program")?;
        drop((stdin, stdout, stderr, cwd, program_file, driver_socket));
        match self
            .channel
            .receive::<LaunchMessage>()
            .in_layer(Layer::Program, "wait for the program")?
        {
            // The canary's own attempt has to arrive here; otherwise the filter is not what it
            // should be.
            None if is_filtered && !run.denials.remove_one("syscall", launch::CANARY_CALL) => {
                Err(SandboxError::from_message(
                    Layer::Canary,
                    "receive the canary's call",
                    "the filter did not pass it to the supervisor",
                ))
            }
            None => Ok(()),
            Some((LaunchMessage::Failed(_), _))
                if run.denials.contains("exec", exec::UNWATCHABLE) =>
            {
                Err(SandboxError::from_message(
                    Layer::Exec,
                    "watch the program",
                    "tracing was refused",
                ))
            }
            Some((LaunchMessage::Failed(error), _)) => Err(error),
            Some((LaunchMessage::Ready, _)) => Err(lost_init_error()),
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
    let (channel, launch_channel) =
        PacketChannel::pair().in_layer(Layer::Program, "open a channel")?;
    if !is_sandboxed {
        process::set_child_subreaper(Some(process::getpid()))
            .in_layer(Layer::Namespaces, "become a subreaper")?;
    }
    let basis = spec.basis();
    let first = match sys::fork(0).in_layer(Layer::Program, "fork")? {
        ForkResult::Child => {
            drop((channel, talk, exec_config, fds));
            let mechanism = run_limits.mechanism();
            if is_sandboxed {
                init::run_on_host(&basis, mechanism, cgroup_joiner, init_channel, launch_channel)
            }
            launch::become_program(LaunchContext {
                basis: &basis,
                tier: None,
                mechanism,
                cgroup_joiner: Some(cgroup_joiner),
                channel: launch_channel,
            })
        }
        ForkResult::Parent(first) => first,
    };
    drop((launch_channel, init_channel, cgroup_joiner));
    let tree = if is_sandboxed {
        ProcessTree::BelowChild { first, talk }
    } else {
        ProcessTree::BelowSelf { main: first }
    };
    let mut run = SupervisedRun {
        tree,
        grace: Duration::from_millis(spec.grace_ms),
        denials,
        run_limits,
        protection: ProtectionGuard::default(),
        removed_stand_ins: Vec::new(),
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
    let handlers =
        CallHandlers { connect_policy, cover_guard: CoverGuard::without_covers(), exec_config };
    let started = LaunchingProcess::wait_until_ready(channel).and_then(|main| {
        main.become_program(build_order(spec, Vec::new(), None), fds, handlers, &mut run)
    });
    match started {
        Ok(()) => Ok((run, first.as_raw_nonzero().get())),
        Err(error) => {
            run.tree.kill_all();
            Err(error)
        }
    }
}
