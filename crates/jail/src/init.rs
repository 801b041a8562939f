//! The first process of a run's own pid namespace. It puts up what belongs to the run, starts the program, reaps
//! every orphan and tells how it went. When it dies, for whatever reason, the kernel kills everything in there.

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

/// What the supervisor has to say to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// It is where it shall be; now it may begin.
    Go,
    /// Everything is asked to end, by this signal.
    Terminate(i32),
    /// A signal for the main process and its group.
    Signal(i32),
}

/// What it has to say to the supervisor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// With the run's mount namespace; its network namespace and the socket of its resolver when the network is its
    /// own; and the proxy's listener when it has one.
    Ready {
        network: bool,
        listener: bool,
    },
    Failed(Fault),
    /// How the main process ended, and what it has left behind.
    Ended {
        code: Option<i32>,
        signal: Option<i32>,
        left: Left,
    },
}

/// Everything it needs, as the supervisor leaves it by forking.
pub struct Birth<'a> {
    pub spec: &'a Spec,
    pub covers: &'a [PathBuf],
    pub network: Option<&'a OwnedFd>,
    pub means: Means,
    /// The way to the run's limits.
    pub door: Door,
    /// To the supervisor, from this process.
    pub talk: Channel,
    /// To the supervisor, from the process that becomes the program.
    pub child: Channel,
}

/// Lives until the run is over.
pub fn run(birth: Birth<'_>, fds: Fds<OwnedFd>) -> ! {
    let talk = birth.talk;
    let begun = set_parent_process_death_signal(Some(Signal::KILL))
        .in_layer(Layer::Namespaces, "die with the supervisor");
    match (begun, talk.receive::<Word>()) {
        (Ok(()), Ok(Some((Word::Go, _)))) => {}
        // The supervisor is gone already.
        _ => sys::leave(125),
    }
    let door = birth.door;
    let entered =
        door.enter().in_layer(Layer::Limits, "put the run under its limits").and_then(|()| {
            // After that, so that the run finds itself at the top of its own tree of control groups.
            sys::unshare(UnshareFlags::NEWCGROUP)
                .in_layer(Layer::Namespaces, "make a namespace for control groups")
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

/// The same for a run without namespaces, as far as there is anything to do: orphans fall back to this process.
pub fn reap_on_the_host(
    spec: &Spec,
    means: Means,
    door: Door,
    talk: Channel,
    child: Channel,
    fds: Fds<OwnedFd>,
) -> ! {
    // It does not die with the supervisor: it hears of its end, and ends the tree first.
    let begun = set_child_subreaper(Some(getpid())).in_layer(Layer::Namespaces, "own every orphan");
    let forked = begun.and_then(|()| {
        let directory =
            fds.cwd.try_clone().in_layer(Layer::Directory, "keep the working directory")?;
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

/// What there is beside the main process, for the one that reaps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Around {
    /// Every process it can see.
    Everything,
    /// Those below it.
    Below,
}

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
    // The descriptor leads through the host's mounts and must not be used; it only says which directory was meant.
    if !mounts::is_same(directory.as_fd(), fds.cwd.as_fd())
        .in_layer(Layer::Directory, "look at the working directory")?
    {
        return Err(Fault::other(
            Layer::Directory,
            "open the working directory",
            "it is not the one that was checked",
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
    talk.send(&news, &borrowed).in_layer(Layer::Namespaces, "tell the supervisor")?;
    Ok((directory, port))
}

/// Reaps until no one is left, and passes on what the supervisor says meanwhile.
///
/// This process has one thread and no handler of a signal, so that its number is its only name: in a namespace of its
/// own, what is refused for the number 1 is refused for this process ([`crate::seccomp`]). A second thread would be
/// another way to name it, with a number that no filter knows.
fn reap(main: Pid, talk: Channel, around: Around) -> ! {
    let Ok(children) = isolate(&talk) else { sys::leave(125) };
    let mut ended: Option<WaitStatus> = None;
    loop {
        collect(main, &talk, around, &mut ended);
        let mut watched =
            [PollFd::new(&talk, PollFlags::IN), PollFd::new(&children, PollFlags::IN)];
        match poll(&mut watched, None) {
            Ok(_) | Err(Errno::INTR) => {}
            // What cannot hear the supervisor must not outlive it.
            Err(_) => leave_with_all(around),
        }
        if !watched[1].revents().is_empty() {
            // Only that something ended matters; what did is asked below.
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

/// Gives up everything that a process inside could use this one for, and returns what tells of ended children.
fn isolate(talk: &Channel) -> io::Result<OwnedFd> {
    // No one inside shall read or trace this process, which the kernel lets do more than any other in here.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(
        None,
        CapabilitySets { effective: none, permitted: none, inheritable: none },
    )?;
    sys::signals::drop_handlers()?;
    let children = sys::signals::watch_children()?;
    // What the supervisor had open is open here as well, and is none of this process's business.
    sys::close_all_but(&[talk.as_fd(), children.as_fd()])?;
    Ok(children)
}

/// Reaps whatever has ended. Once the main process has, the supervisor is told, and told whether anything else lives:
/// every process in here has a living ancestor that is our child, or is our child itself.
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

fn tell(talk: &Channel, ended: Option<WaitStatus>, around: Option<Around>) {
    let Some(status) = ended else { return };
    let left = match around {
        None => Left::Nothing,
        Some(Around::Everything) => Left::behind(tree::all_but_us()),
        Some(Around::Below) => Left::behind(tree::living(getpid())),
    };
    let news =
        News::Ended { code: status.exit_status(), signal: status.terminating_signal(), left };
    // A supervisor that does not hear it is gone, and so are we when it is.
    let _ = talk.send(&news, &[]);
}

fn obey(word: Word, main: Pid, around: Around) {
    match word {
        Word::Terminate(signal) if around == Around::Everything => {
            // A stopped process is woken, so that it can end.
            let _ = sys::kill_everything(signal);
            let _ = sys::kill_everything(libc::SIGCONT);
        }
        Word::Signal(signal) => drop(sys::trace::signal(-main.as_raw_nonzero().get(), signal)),
        Word::Go | Word::Terminate(_) => {}
    }
}

/// The supervisor is gone. In a namespace everything goes with this process.
fn leave_with_all(around: Around) -> ! {
    if around == Around::Below {
        tree::kill(getpid());
    }
    sys::leave(0)
}
