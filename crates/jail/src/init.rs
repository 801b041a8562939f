//! The run's init: the first process of its pid namespace.
//!
//! It sets up what belongs to this run alone, starts the program, reaps every orphan and reports
//! how the main process ended. When it dies, for whatever reason, the kernel kills every process in
//! the namespace.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

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
use crate::namespaces;
use crate::packet::PacketChannel;
use crate::resolver;
use crate::supervisor::wire::{InitCommand, InitReport};
use crate::supervisor::{LeftBehind, RunFds, RunSpec, tree};
use crate::sys::{self, ForkResult};

/// Everything the init needs, inherited from the supervisor through the fork.
pub struct InitContext<'a> {
    pub spec: &'a RunSpec,
    pub covers: &'a [PathBuf],
    pub network: Option<&'a OwnedFd>,
    pub mechanism: LimitMechanism,
    /// Lets this process enter the run's limits.
    pub cgroup_joiner: CgroupJoiner,
    /// Channel to the supervisor for this process.
    pub channel: PacketChannel,
    /// Channel to the supervisor for the process that becomes the program.
    pub launch_channel: PacketChannel,
}

/// Runs as the init until the run is over.
pub fn run(birth: InitContext<'_>, fds: RunFds<OwnedFd>) -> ! {
    let talk = birth.channel;
    let begun = set_parent_process_death_signal(Some(Signal::KILL))
        .in_layer(Layer::Namespaces, "set the parent-death signal");
    match (begun, talk.receive::<InitCommand>()) {
        (Ok(()), Ok(Some((InitCommand::Go, _)))) => {}
        // The supervisor has already died: nothing may start that it cannot end.
        _ => sys::exit_now(125),
    }
    let door = birth.cgroup_joiner;
    let entered = door.join().in_layer(Layer::Limits, "apply the run's limits").and_then(|()| {
        // Only now, so that the run sees its own control group as the root of the tree.
        sys::unshare(UnshareFlags::NEWCGROUP)
            .in_layer(Layer::Namespaces, "create a cgroup namespace")
    });
    drop(door);
    let started = entered
        .and_then(|()| prepare_run(birth.spec, birth.covers, birth.network, &fds, &talk))
        .and_then(|(directory, port)| {
            Ok((directory, port, sys::fork(0).in_layer(Layer::Program, "fork")?))
        });
    match started {
        Ok((directory, port, ForkResult::Child)) => {
            drop(talk);
            let step = LaunchContext {
                spec: birth.spec,
                mechanism: birth.mechanism,
                cgroup_joiner: None,
                working_directory: directory,
                covers: birth.covers,
                proxy_port: port,
                channel: &birth.launch_channel,
            };
            launch::become_program(step, fds)
        }
        Ok((directory, _, ForkResult::Parent(main))) => {
            drop((fds, birth.launch_channel, directory));
            reap_and_obey(main, talk, ReapScope::Everything)
        }
        Err(fault) => {
            let _ = talk.send(&InitReport::Failed(fault), &[]);
            sys::exit_now(125)
        }
    }
}

/// Does the same for a run without namespaces, as far as it applies there: orphans are reparented
/// to this process.
pub fn run_on_host(
    spec: &RunSpec,
    means: LimitMechanism,
    door: CgroupJoiner,
    talk: PacketChannel,
    child: PacketChannel,
    fds: RunFds<OwnedFd>,
) -> ! {
    // No parent-death signal here: this process notices the supervisor's end itself, and kills the
    // tree before it exits.
    let begun =
        set_child_subreaper(Some(getpid())).in_layer(Layer::Namespaces, "become a subreaper");
    let forked = begun.and_then(|()| {
        let directory =
            fds.cwd.try_clone().in_layer(Layer::Directory, "duplicate the working directory")?;
        Ok((directory, sys::fork(0).in_layer(Layer::Program, "fork")?))
    });
    match forked {
        Ok((directory, ForkResult::Child)) => {
            drop(talk);
            launch::become_program(
                LaunchContext {
                    spec,
                    mechanism: means,
                    cgroup_joiner: Some(door),
                    working_directory: directory,
                    covers: &[],
                    proxy_port: None,
                    channel: &child,
                },
                fds,
            )
        }
        Ok((directory, ForkResult::Parent(main))) => {
            drop((fds, child, directory, door));
            reap_and_obey(main, talk, ReapScope::Descendants)
        }
        Err(fault) => {
            let _ = talk.send(&InitReport::Failed(fault), &[]);
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

/// Sets up the run's network, mounts and working directory, and sends the supervisor the
/// descriptors it needs. Returns the working directory and the proxy's port.
fn prepare_run(
    spec: &RunSpec,
    covers: &[PathBuf],
    network: Option<&OwnedFd>,
    fds: &RunFds<OwnedFd>,
    talk: &PacketChannel,
) -> Result<(OwnedFd, Option<u16>), SandboxError> {
    let (mut proxy, mut names) = (None, None);
    if let Some(network) = network {
        namespaces::join_network(network)?;
        names = Some(resolver::bind_socket().in_layer(Layer::Network, "open the resolver's port")?);
        if !spec.proxy_env.is_empty() {
            proxy = Some(namespaces::open_proxy_listener()?);
        }
    }
    let resolv_conf = names.as_ref().map(|(_, address)| resolver::format_resolv_conf(*address));
    mounts::build_run_mounts(&spec.rights, covers, resolv_conf.as_deref())?;
    let directory = mounts::open_working_directory(&spec.cwd)
        .in_layer(Layer::Directory, "open the working directory")?;
    // This descriptor leads through the host's mounts and must not be used; it only identifies the
    // directory that was checked.
    if !mounts::is_same_object(directory.as_fd(), fds.cwd.as_fd())
        .in_layer(Layer::Directory, "compare the working directory")?
    {
        return Err(SandboxError::from_message(
            Layer::Directory,
            "open the working directory",
            "it is not the directory that was checked",
        ));
    }
    let own = |name: &str| {
        std::fs::File::open(format!("/proc/self/ns/{name}")).in_layer(Layer::Namespaces, name)
    };
    let mut handed = vec![OwnedFd::from(own("mnt")?)];
    if network.is_some() {
        handed.push(own("net")?.into());
    }
    handed.extend(names.map(|(socket, _)| OwnedFd::from(socket)));
    let port = proxy.as_ref().map(|(_, port)| *port);
    let listener = proxy.is_some();
    handed.extend(proxy.map(|(listener, _)| OwnedFd::from(listener)));
    let borrowed: Vec<_> = handed.iter().map(AsFd::as_fd).collect();
    let news = InitReport::Ready { network: network.is_some(), listener };
    talk.send(&news, &borrowed).in_layer(Layer::Namespaces, "report to the supervisor")?;
    Ok((directory, port))
}

/// Reaps children until none is left, and carries out the supervisor's commands meanwhile.
///
/// This process has one thread and no signal handler, so that its pid is the only way to name it:
/// in a pid namespace, seccomp refuses calls that target pid 1 ([`crate::seccomp`]). A second
/// thread could be named by a thread id that no filter knows.
fn reap_and_obey(main: Pid, talk: PacketChannel, around: ReapScope) -> ! {
    let Ok(children) = isolate_self(&talk) else { sys::exit_now(125) };
    let mut ended: Option<WaitStatus> = None;
    loop {
        reap_ended(main, &talk, around, &mut ended);
        let mut watched =
            [PollFd::new(&talk, PollFlags::IN), PollFd::new(&children, PollFlags::IN)];
        match poll(&mut watched, None) {
            Ok(_) | Err(Errno::INTR) => {}
            // A process that cannot hear the supervisor must not outlive it.
            Err(_) => exit_with_tree(around),
        }
        if !watched[1].revents().is_empty() {
            // It only matters that a child ended; the next pass asks which.
            let _ = rustix::io::read(&children, &mut [0; 4096]);
        }
        if !watched[0].revents().is_empty() {
            match talk.receive::<InitCommand>() {
                Ok(Some((word, _))) => obey_command(word, main, around),
                Ok(None) | Err(_) => exit_with_tree(around),
            }
        }
    }
}

/// Gives up everything that a process of the run could use this one for. Returns a descriptor that
/// becomes readable when a child ends.
fn isolate_self(talk: &PacketChannel) -> io::Result<OwnedFd> {
    // No process of the run may read or trace this one: the kernel lets it do more than any other
    // process in the namespace.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(
        None,
        CapabilitySets { effective: none, permitted: none, inheritable: none },
    )?;
    sys::signals::reset_handlers()?;
    let children = sys::signals::open_child_signalfd()?;
    // The fork inherited everything the supervisor had open. None of it may be reachable from here.
    sys::close_all_except(&[talk.as_fd(), children.as_fd()])?;
    Ok(children)
}

/// Reaps every child that has ended. Once the main process has ended, reports that to the
/// supervisor, and whether anything else is alive: every process in here is our child or has a
/// living ancestor that is.
fn reap_ended(main: Pid, talk: &PacketChannel, around: ReapScope, ended: &mut Option<WaitStatus>) {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == main => *ended = Some(status),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return report_main_end(talk, ended.take(), Some(around)),
            Err(_) => {
                report_main_end(talk, ended.take(), None);
                sys::exit_now(0)
            }
        }
    }
}

/// Reports the end of the main process, once it has ended. `around` is `None` when no child is
/// left.
fn report_main_end(talk: &PacketChannel, ended: Option<WaitStatus>, around: Option<ReapScope>) {
    let Some(status) = ended else { return };
    let left = match around {
        None => LeftBehind::Nothing,
        Some(ReapScope::Everything) => LeftBehind::from_processes(tree::list_other_processes()),
        Some(ReapScope::Descendants) => {
            LeftBehind::from_processes(tree::list_living_descendants(getpid()))
        }
    };
    let news =
        InitReport::Ended { code: status.exit_status(), signal: status.terminating_signal(), left };
    // If this cannot be sent, the supervisor is dead, and this process ends with it.
    let _ = talk.send(&news, &[]);
}

fn obey_command(word: InitCommand, main: Pid, around: ReapScope) {
    match word {
        InitCommand::Terminate(signal) if around == ReapScope::Everything => {
            // SIGCONT wakes a stopped process, so that it can end.
            let _ = sys::kill_all_visible(signal);
            let _ = sys::kill_all_visible(libc::SIGCONT);
        }
        InitCommand::Signal(signal) => {
            drop(sys::trace::signal_process(-main.as_raw_nonzero().get(), signal))
        }
        InitCommand::Go | InitCommand::Terminate(_) => {}
    }
}

/// Exits because the supervisor is gone. In a pid namespace the kernel then kills everything else;
/// on the host the descendants are killed here.
fn exit_with_tree(around: ReapScope) -> ! {
    if around == ReapScope::Descendants {
        tree::kill_descendants(getpid());
    }
    sys::exit_now(0)
}
