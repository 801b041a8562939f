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
use serde::{Deserialize, Serialize};

use crate::fault::{Fault, InLayer, Layer};
use crate::launch::{self, Step};
use crate::limits::{Door, Means};
use crate::mounts;
use crate::namespaces;
use crate::packet::Channel;
use crate::resolver;
use crate::supervisor::{Fds, Left, Spec, tree};
use crate::sys::{self, Fork};

/// Command from the supervisor to the run's init.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// Begin to set up the run.
    Go,
    /// Ask every process of the run to end, with this signal.
    Terminate(i32),
    /// Send a signal to the main process and its group.
    Signal(i32),
}

/// Report from the run's init to the supervisor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// The run is set up. Comes with the run's mount namespace; with its network namespace and its
    /// resolver's socket if it has its own network; and with the proxy's listener if it has one.
    Ready {
        network: bool,
        listener: bool,
    },
    Failed(Fault),
    /// How the main process ended, and what it left behind.
    Ended {
        code: Option<i32>,
        signal: Option<i32>,
        left: Left,
    },
}

/// Everything the init needs, inherited from the supervisor through the fork.
pub struct Birth<'a> {
    pub spec: &'a Spec,
    pub covers: &'a [PathBuf],
    pub network: Option<&'a OwnedFd>,
    pub means: Means,
    /// Lets this process enter the run's limits.
    pub door: Door,
    /// Channel to the supervisor for this process.
    pub talk: Channel,
    /// Channel to the supervisor for the process that becomes the program.
    pub child: Channel,
}

/// Runs as the init until the run is over.
pub fn run(birth: Birth<'_>, fds: Fds<OwnedFd>) -> ! {
    let talk = birth.talk;
    let begun = set_parent_process_death_signal(Some(Signal::KILL))
        .in_layer(Layer::Namespaces, "set the parent-death signal");
    match (begun, talk.receive::<Word>()) {
        (Ok(()), Ok(Some((Word::Go, _)))) => {}
        // The supervisor has already died: nothing may start that it cannot end.
        _ => sys::leave(125),
    }
    let door = birth.door;
    let entered = door.enter().in_layer(Layer::Limits, "apply the run's limits").and_then(|()| {
        // Only now, so that the run sees its own control group as the root of the tree.
        sys::unshare(UnshareFlags::NEWCGROUP)
            .in_layer(Layer::Namespaces, "create a cgroup namespace")
    });
    drop(door);
    let started = entered
        .and_then(|()| prepare(birth.spec, birth.covers, birth.network, &fds, &talk))
        .and_then(|(directory, port)| {
            Ok((directory, port, sys::fork(0).in_layer(Layer::Program, "fork")?))
        });
    match started {
        Ok((directory, port, Fork::Child)) => {
            drop(talk);
            let step = Step {
                spec: birth.spec,
                means: birth.means,
                door: None,
                directory,
                covers: birth.covers,
                port,
                talk: &birth.child,
            };
            launch::become_program(step, fds)
        }
        Ok((directory, _, Fork::Parent(main))) => {
            drop((fds, birth.child, directory));
            reap(main, talk, Around::Everything)
        }
        Err(fault) => {
            let _ = talk.send(&News::Failed(fault), &[]);
            sys::leave(125)
        }
    }
}

/// Does the same for a run without namespaces, as far as it applies there: orphans are reparented
/// to this process.
pub fn reap_on_the_host(
    spec: &Spec,
    means: Means,
    door: Door,
    talk: Channel,
    child: Channel,
    fds: Fds<OwnedFd>,
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
        Ok((directory, Fork::Child)) => {
            drop(talk);
            launch::become_program(
                Step {
                    spec,
                    means,
                    door: Some(door),
                    directory,
                    covers: &[],
                    port: None,
                    talk: &child,
                },
                fds,
            )
        }
        Ok((directory, Fork::Parent(main))) => {
            drop((fds, child, directory, door));
            reap(main, talk, Around::Below)
        }
        Err(fault) => {
            let _ = talk.send(&News::Failed(fault), &[]);
            sys::leave(125)
        }
    }
}

/// The processes that belong to the run, as the process that reaps them finds them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Around {
    /// Every process it can see: its pid namespace holds nothing else.
    Everything,
    /// Its own descendants.
    Below,
}

/// Sets up the run's network, mounts and working directory, and sends the supervisor the
/// descriptors it needs. Returns the working directory and the proxy's port.
fn prepare(
    spec: &Spec,
    covers: &[PathBuf],
    network: Option<&OwnedFd>,
    fds: &Fds<OwnedFd>,
    talk: &Channel,
) -> Result<(OwnedFd, Option<u16>), Fault> {
    let (mut proxy, mut names) = (None, None);
    if let Some(network) = network {
        namespaces::join_network(network)?;
        names = Some(resolver::bind().in_layer(Layer::Network, "open the resolver's port")?);
        if !spec.proxy_env.is_empty() {
            proxy = Some(namespaces::listen()?);
        }
    }
    let resolv_conf = names.as_ref().map(|(_, address)| resolver::settings(*address));
    mounts::build_run(&spec.rights, covers, resolv_conf.as_deref())?;
    let directory = mounts::open_directory(&spec.cwd)
        .in_layer(Layer::Directory, "open the working directory")?;
    // This descriptor leads through the host's mounts and must not be used; it only identifies the
    // directory that was checked.
    if !mounts::is_same(directory.as_fd(), fds.cwd.as_fd())
        .in_layer(Layer::Directory, "compare the working directory")?
    {
        return Err(Fault::other(
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
    let news = News::Ready { network: network.is_some(), listener };
    talk.send(&news, &borrowed).in_layer(Layer::Namespaces, "report to the supervisor")?;
    Ok((directory, port))
}

/// Reaps children until none is left, and carries out the supervisor's commands meanwhile.
///
/// This process has one thread and no signal handler, so that its pid is the only way to name it:
/// in a pid namespace, seccomp refuses calls that target pid 1 ([`crate::seccomp`]). A second
/// thread could be named by a thread id that no filter knows.
fn reap(main: Pid, talk: Channel, around: Around) -> ! {
    let Ok(children) = isolate(&talk) else { sys::leave(125) };
    let mut ended: Option<WaitStatus> = None;
    loop {
        collect(main, &talk, around, &mut ended);
        let mut watched =
            [PollFd::new(&talk, PollFlags::IN), PollFd::new(&children, PollFlags::IN)];
        match poll(&mut watched, None) {
            Ok(_) | Err(Errno::INTR) => {}
            // A process that cannot hear the supervisor must not outlive it.
            Err(_) => leave_with_all(around),
        }
        if !watched[1].revents().is_empty() {
            // It only matters that a child ended; the next pass asks which.
            let _ = rustix::io::read(&children, &mut [0; 4096]);
        }
        if !watched[0].revents().is_empty() {
            match talk.receive::<Word>() {
                Ok(Some((word, _))) => obey(word, main, around),
                Ok(None) | Err(_) => leave_with_all(around),
            }
        }
    }
}

/// Gives up everything that a process of the run could use this one for. Returns a descriptor that
/// becomes readable when a child ends.
fn isolate(talk: &Channel) -> io::Result<OwnedFd> {
    // No process of the run may read or trace this one: the kernel lets it do more than any other
    // process in the namespace.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(
        None,
        CapabilitySets { effective: none, permitted: none, inheritable: none },
    )?;
    sys::signals::drop_handlers()?;
    let children = sys::signals::watch_children()?;
    // The fork inherited everything the supervisor had open. None of it may be reachable from here.
    sys::close_all_but(&[talk.as_fd(), children.as_fd()])?;
    Ok(children)
}

/// Reaps every child that has ended. Once the main process has ended, reports that to the
/// supervisor, and whether anything else is alive: every process in here is our child or has a
/// living ancestor that is.
fn collect(main: Pid, talk: &Channel, around: Around, ended: &mut Option<WaitStatus>) {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == main => *ended = Some(status),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return tell(talk, ended.take(), Some(around)),
            Err(_) => {
                tell(talk, ended.take(), None);
                sys::leave(0)
            }
        }
    }
}

/// Reports the end of the main process, once it has ended. `around` is `None` when no child is
/// left.
fn tell(talk: &Channel, ended: Option<WaitStatus>, around: Option<Around>) {
    let Some(status) = ended else { return };
    let left = match around {
        None => Left::Nothing,
        Some(Around::Everything) => Left::behind(tree::all_but_us()),
        Some(Around::Below) => Left::behind(tree::living(getpid())),
    };
    let news =
        News::Ended { code: status.exit_status(), signal: status.terminating_signal(), left };
    // If this cannot be sent, the supervisor is dead, and this process ends with it.
    let _ = talk.send(&news, &[]);
}

fn obey(word: Word, main: Pid, around: Around) {
    match word {
        Word::Terminate(signal) if around == Around::Everything => {
            // SIGCONT wakes a stopped process, so that it can end.
            let _ = sys::kill_everything(signal);
            let _ = sys::kill_everything(libc::SIGCONT);
        }
        Word::Signal(signal) => drop(sys::trace::signal(-main.as_raw_nonzero().get(), signal)),
        Word::Go | Word::Terminate(_) => {}
    }
}

/// Exits because the supervisor is gone. In a pid namespace the kernel then kills everything else;
/// on the host the descendants are killed here.
fn leave_with_all(around: Around) -> ! {
    if around == Around::Below {
        tree::kill(getpid());
    }
    sys::leave(0)
}
